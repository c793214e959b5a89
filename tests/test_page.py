"""The page of a report: safe whatever things are called, and alive in a real browser."""

import base64
import csv
import gzip
import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled_studies import fill_study
from PIL import Image
from test_report import some_finals

from lrnas.page import make_page, pack
from lrnas.report import make_report

EVIL = "<img src=x onerror=alert(1)>"


def read_data(page: str) -> dict[str, Any]:
    """All data of a page, put together again."""
    found = re.search(r'<script id="data"[^>]*>([^<]*)</script>', page)
    assert found is not None
    data: dict[str, Any]
    data, *parts = (json.loads(gzip.decompress(base64.b64decode(part))) for part in found[1].split("\n"))
    networks = [network for study in data["studies"] for network in study["networks"]]
    for network, texts in zip(networks, (texts for part in parts for texts in part), strict=True):
        layers = network["layers"]
        network["layers"] = [
            data["shapes"][shape] | {"macs": macs, "params": params}
            for shape, macs, params in zip(layers["shapes"], layers["macs"], layers["params"], strict=True)
        ]
        network |= texts
    return data


def write_page(
    folder: Path, trials: int, names: tuple[str, ...] = ("s",), *, tested: bool = False, **more: Any
) -> Path:
    where = f"journal:{folder / 'journal'}"
    records = [fill_study(folder, trials, name=name, storage=where, seed=i, **more) for i, name in enumerate(names)]
    retrained = [some_finals(record, point=EVIL) for record in records] if tested else []
    file = folder / "report.html"
    file.write_text(make_page(make_report(records, retrained=retrained)), encoding="utf-8")
    return file


def test_a_page_holds_all_it_needs(tmp_path: Path) -> None:
    page = write_page(tmp_path, 5).read_text(encoding="utf-8")
    assert "@@" not in page.replace("@@iterator", "")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    assert "default-src 'none'" in page
    data = read_data(page)
    assert [network["name"] for network in data["studies"][0]["networks"]][:3] == ["nin", "nin-c3", "nin-c3-lr"]
    assert set(data["shades"]) == {"kx1", "1xk", "kxk", "1x1", "other"}


def test_names_do_not_become_markup(tmp_path: Path) -> None:
    page = write_page(tmp_path, 3, (EVIL, "</script >\u2028".replace("/", ""))).read_text(encoding="utf-8")
    assert EVIL not in page and "&lt;img src=x" in page
    assert page.count("</script>") == 3
    assert read_data(page)["studies"][0]["name"] == EVIL


def test_numbers_that_json_does_not_have() -> None:
    packed = pack({"a": [float("nan"), 1.5], "b": {"c": float("inf")}})
    assert json.loads(gzip.decompress(base64.b64decode(packed))) == {"a": [None, 1.5], "b": {"c": None}}


# --- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page that is open, and what it complained about."""

    def __init__(self, browser: Any, file: Path, width: int, height: int, scheme: str = "light") -> None:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda line: self.complaints.append(line.text) if line.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("request", self._note_request)
        begun = time.perf_counter()
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]")
        self.seconds = time.perf_counter() - begun

    def _note_request(self, request: Any) -> None:
        if request.url.startswith(("http", "ws")):
            self.complaints.append(request.url)

    def see_all(self) -> None:
        """Scroll to the end and back: charts are drawn when they come in sight."""
        height = self.page.evaluate("document.documentElement.scrollHeight")
        for y in range(0, height + 1500, 300):
            self.page.evaluate(f"scrollTo(0, {y})")
            self.page.wait_for_timeout(50)
        self.page.evaluate("scrollTo(0, 0)")

    def points(self) -> Any:
        return self.page.locator("#front .scatterlayer .points path")

    def move_to(self, point: Any) -> tuple[float, float]:
        box = point.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x - 1, y)
        self.page.mouse.move(x, y)
        self.page.wait_for_selector("#front .hoverlayer .hovertext")
        return x, y


@pytest.mark.slow
def test_the_page_in_a_browser(browser: Any, tmp_path: Path) -> None:
    file = write_page(tmp_path, 20, tested=True)
    networks = read_data(file.read_text(encoding="utf-8"))["studies"][0]["networks"]
    shown = [network for network in networks if network["is_full"] or network["is_partial"]]
    tab = Tab(browser, file, 1400, 900)
    page = tab.page
    assert tab.points().count() == len(shown)
    buttons = page.locator("#front .modebar-btn").evaluate_all("all => all.map(one => one.dataset.title)")
    assert "Zoom" in buttons and not any("hare" in title for title in buttons)  # nothing is uploaded
    x, y = tab.move_to(tab.points().last)  # of the paper's, the last
    told = page.locator("#front .hoverlayer").text_content()
    assert "nin-c3-lr" in told and "conv1: 3×1 96 | 1×3 96" in told
    page.mouse.click(x, y)
    assert page.locator("#card-title").inner_text() == "nin-c3-lr"
    network = next(network for network in networks if network["point"] == "nin-c3-lr")
    rows = page.locator("#card tbody tr")
    assert rows.count() == len(network["layers"])
    assert "3×1 96" in rows.first.inner_text() and f"{network['layers'][0]['macs']:,}" in rows.first.inner_text()
    assert page.locator("#card-curve .scatterlayer .points path").count() == len(network["curve"])
    page.locator("#card .line button").nth(1).click()
    assert page.evaluate("navigator.clipboard.readText()") == network["lines"][1][1]
    page.keyboard.press("Escape")
    assert not page.locator("#card").is_visible()

    tab.see_all()
    for chart in ("finals", "history", "allocation", "curves"):
        assert page.locator(f"#{chart} .main-svg").count(), chart
    full = sum(network["is_full"] for network in networks)
    assert not page.locator("#importances").is_visible()
    assert f"Left out: {full} networks are trained in full" in page.locator("#importances-note").inner_text()
    assert page.locator("#finals .points path").count() == 3
    assert page.locator("#finals .errorbar path.yerror").count() == 2  # one seed has no deviation
    assert (
        page.locator("#tested").inner_text().startswith("s@paper, on cifar10: 3 of 4 networks tested; 5 runs not done")
    )
    assert f"{EVIL}: not reached, no network found" in page.locator("#verdicts").inner_text()
    low, high = page.evaluate("document.getElementById('finals').layout.yaxis.range")
    assert low < 89.3 and high > 94.7  # means of 90 to 92, and the bars
    assert "Welch" in page.locator("#verdict-test").inner_text()
    page.get_by_role("button", name="linear").click()
    assert page.evaluate("document.getElementById('front').layout.xaxis.type") == "linear"
    page.select_option("#axis", "params")
    assert page.evaluate("document.getElementById('front').layout.xaxis.title.text") == "parameters, millions"
    page.get_by_role("button", name="by time").click()
    assert page.evaluate("document.getElementById('history').layout.xaxis.title.text").startswith("training time")
    page.get_by_label("light or dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert tab.complaints == []


@pytest.mark.slow
def test_the_table_in_a_browser(browser: Any, tmp_path: Path) -> None:
    file = write_page(tmp_path, 12, ("one", EVIL))
    networks = [
        network for study in read_data(file.read_text(encoding="utf-8"))["studies"] for network in study["networks"]
    ]
    tab = Tab(browser, file, 400, 800, "dark")
    page = tab.page
    tab.see_all()
    assert page.evaluate("document.documentElement.scrollWidth") == 400  # nothing sticks out
    rows = page.locator("#trials tbody tr")
    assert rows.count() == len(networks) == 24
    page.locator("#trials th button", has_text="accuracy").click()
    best = max(network["accuracy"] for network in networks)
    assert f"{100 * best:.2f} %" in rows.first.inner_text()
    page.locator("#find").fill("nin-c3-lr")
    assert rows.count() == sum("nin-c3-lr" in network["name"] for network in networks)
    page.locator("#find").fill("")
    page.locator("#only-front").check()
    front = [network for network in networks if network["on_front"]]
    assert rows.count() == len(front)
    with page.expect_download() as download:
        page.locator("#download").click()
    with Path(download.value.path()).open(newline="", encoding="utf-8") as stream:
        found = list(csv.DictReader(stream))
    assert {row["study"] for row in found} == {"one", EVIL} and len(found) == len(front)
    assert all(json.loads(row["architecture"])["backbone"].startswith("nin") for row in found)
    rows.first.locator("button").focus()
    page.keyboard.press("Enter")
    assert page.locator("#card").is_visible()
    assert tab.complaints == []


@pytest.mark.slow
def test_several_retrainings_in_a_browser(browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser, write_page(tmp_path, 12, ("one", EVIL), tested=True), 1400, 900)
    page = tab.page
    tab.see_all()
    assert page.locator("#tested p").count() == 2
    steps = "document.getElementById('finals').data.filter((trace) => trace.mode === 'lines').length"
    assert page.evaluate(steps) == 2  # a staircase each
    assert page.locator("#verdicts tr").first.inner_text().startswith("one@paper")
    assert f"{EVIL}@paper, the paper's" in page.locator("#finals .legend").text_content()
    assert tab.complaints == []


@pytest.mark.slow
def test_networks_that_were_all_stopped_can_be_hidden_and_shown(browser: Any, tmp_path: Path) -> None:
    record = fill_study(tmp_path, 12, storage=f"journal:{tmp_path / 'journal'}", stopped=1.0)
    report = make_report([record])
    (study,) = report.studies
    networks = tuple(network for network in study.networks if not network.is_full)
    file = tmp_path / "report.html"
    file.write_text(make_page(replace(report, studies=(replace(study, networks=networks),))), encoding="utf-8")
    tab = Tab(browser, file, 1400, 900)
    assert tab.points().count() == len(networks)
    for shown in (0, len(networks)):
        tab.page.locator("#show-partial").click()
        assert tab.page.locator("#front-section").is_visible() and tab.points().count() == shown
    assert tab.complaints == []


@pytest.mark.slow
def test_points_that_are_painted_as_one(browser: Any, tmp_path: Path) -> None:
    file = write_page(tmp_path, 800)
    networks = read_data(file.read_text(encoding="utf-8"))["studies"][0]["networks"]
    full = [network for network in networks if network["is_full"]]
    plain = [network for network in full if not network["on_front"] and not network["is_paper"]]
    stopped = [network for network in networks if network["is_partial"]]
    tab = Tab(browser, file, 1400, 900)
    page = tab.page
    dots = page.locator("#front .dots")

    def painted() -> list[list[str]]:
        return [
            re.findall(r"M([\d.-]+,[\d.-]+)h0", path)
            for path in dots.evaluate_all("all => all.map(one => one.getAttribute('d'))")
        ]

    assert list(map(len, painted())) == [len(stopped), len(plain)]
    best = max(plain, key=lambda network: network["accuracy"])  # it lies apart
    x, y = map(float, painted()[1][plain.index(best)].split(","))
    corner = page.locator("#front .nsewdrag").bounding_box()
    page.mouse.move(corner["x"] + x - 1, corner["y"] + y)
    page.mouse.move(corner["x"] + x, corner["y"] + y)
    page.wait_for_selector("#front .hoverlayer .hovertext")
    assert best["name"] in page.locator("#front .hoverlayer").text_content()
    page.mouse.click(corner["x"] + x, corner["y"] + y)
    assert page.locator("#card-title").inner_text() == best["name"]
    assert page.locator("#card .line code").first.inner_text() == best["lines"][0][1]
    page.keyboard.press("Escape")

    before = painted()[1]
    page.mouse.move(corner["x"] + 300, corner["y"] + 100)
    page.mouse.down()
    page.mouse.move(corner["x"] + 600, corner["y"] + 300)
    page.mouse.up()
    assert len(painted()[1]) == len(before) and painted()[1] != before  # drawn larger
    before = painted()[1]
    page.get_by_role("button", name="linear").click()
    assert len(painted()[1]) == len(before) and painted()[1] != before
    page.locator("#show-partial").uncheck()
    assert list(map(len, painted())) == [len(plain)]
    page.locator("#front .legendtoggle").first.click()
    page.wait_for_selector("#front .dots", state="detached")  # Plotly waits for a second click
    page.locator("#front .legendtoggle").first.click()
    page.wait_for_selector("#front .dots")
    page.locator("#front").hover()
    with page.expect_download() as download:
        page.locator("#front .modebar-btn[data-title*=PNG]").click()
    picture = np.asarray(Image.open(download.value.path()).convert("RGB")).astype(int)
    shade = [int(part, 16) for part in re.findall("..", page.evaluate("colour('--found')")[1:])]
    assert (abs(picture - shade).max(axis=-1) < 5).sum() > 10 * len(plain)  # some lie on others
    assert tab.complaints == []


@pytest.mark.slow
def test_an_empty_study_in_a_browser(browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser, write_page(tmp_path, 0), 1400, 900)
    assert "no network trained in full yet" in tab.page.locator("#remarks").inner_text()
    tab.see_all()
    assert tab.complaints == []


@pytest.mark.slow
def test_a_page_of_2000_trials_in_a_browser(browser: Any, tmp_path: Path) -> None:
    file = write_page(tmp_path, 2000)
    assert file.stat().st_size < 8e6
    tab = Tab(browser, file, 1400, 900)
    assert tab.seconds < 10  # docs/report.md has what it takes; a machine may have other work
    assert tab.points().count() < 300  # the others are drawn as one
    tab.see_all()
    assert tab.page.locator("#number").inner_text() == "2,000 trials"
    assert tab.complaints == []
