"""Tests of the report page: names never become markup, and everything works in a real browser."""

import base64
import csv
import gzip
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filled_studies import fill_study
from pages import read_data
from PIL import Image
from retrainings import FOUND, retrain_by_hand, some_finals
from small_studies import SPACE, cost, make_finals, make_limited_search, make_proposals, make_search

from lrnas.reporting.html import ASSETS, make_page, pack
from lrnas.reporting.layer_view import SHADES
from lrnas.reporting.report import PALETTE, Report, make_report
from lrnas.study.location import Whereabouts
from lrnas.study.objectives import Limits
from lrnas.study.retrained import Final, Retrained

EVIL = "<img src=x onerror=alert(1)>"
MARGIN = 28.0
"""Margin of printed sheets, in points; slightly less than the 12 mm of the style sheet."""


def write_page(
    folder: Path, trials: int, names: tuple[str, ...] = ("s",), *, tested: bool = False, **more: Any
) -> Path:
    where = f"journal:{folder / 'journal'}"
    records = [fill_study(folder, trials, name=name, storage=where, seed=i, **more) for i, name in enumerate(names)]
    retrained = [some_finals(record, point=EVIL) for record in records] if tested else []
    file = folder / "report.html"
    file.write_text(make_page(make_report(records, retrained=retrained)), encoding="utf-8")
    return file


def write(file: Path, report: Report) -> Path:
    file.write_text(make_page(report), encoding="utf-8")
    return file


def test_a_page_is_self_contained(tmp_path: Path) -> None:
    page = write_page(tmp_path, 5).read_text(encoding="utf-8")
    assert "@@" not in page.replace("@@iterator", "")
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", page)
    assert "default-src 'none'" in page
    data = read_data(page)
    assert [network["name"] for network in data["studies"][0]["networks"]][:3] == ["nin", "nin-c3", "nin-c3-lr"]
    assert set(data["shades"]) == {"kx1", "1xk", "kxk", "1x1", "other"}


def test_names_do_not_become_markup(tmp_path: Path) -> None:
    page = write_page(tmp_path, 3, (EVIL, "<script >")).read_text(encoding="utf-8")
    assert EVIL not in page and "&lt;img src=x" in page
    assert page.count("</script>") == 3
    assert read_data(page)["studies"][0]["name"] == EVIL


def test_the_headline_is_at_the_top_and_links_to_a_card(tmp_path: Path) -> None:
    head = write_page(tmp_path, 8, ("s", "a 'b'")).read_text(encoding="utf-8").partition("</header>")[0]
    lines = re.findall(r'<p class="headline">(.*)</p>', head)
    assert [line.partition(":")[0] for line in lines] == ["s", "a &#x27;b&#x27;"]
    assert "; nin has 74.88 %. Validation images after 9 epochs of training, one seed." in lines[0]
    assert '(<a href="#s/trial-' in lines[0] and '(<a href="#a%20&#x27;b&#x27;/trial-' in lines[1]


def lab(colour: str) -> np.ndarray:
    """A colour as CIELAB coordinates, in which distances are differences that people see."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [((part + 0.055) / 1.055) ** 2.4 if part > 0.04045 else part / 12.92 for part in (red, green, blue)]
    white = (0.9505, 1.0, 1.089)
    x, y, z = np.cbrt(
        np.matmul([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]], linear) / white
    )
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_a_colour_has_one_meaning() -> None:
    style = (ASSETS / "page.css").read_text(encoding="utf-8")
    found = {name: re.findall(rf"--{name}: (#\w+)", style) for name in ("found", "reference", "muted", "ink")}
    assert all(len(set(shades)) == 2 for shades in found.values())  # light and dark
    for i in range(2):
        meanings = [*SHADES.values(), *(shades[i] for shades in found.values())]
        distances = [np.linalg.norm(lab(a) - lab(b)) for a, b in combinations(meanings, 2)]
        assert min(distances) > 20
    assert min(np.linalg.norm(lab(a) - lab(b)) for a in PALETTE[:14] for b in SHADES.values()) > 20


def test_finals_are_data_of_the_page() -> None:
    search = make_search()
    page = read_data(make_page(make_report([search])))
    assert page["studies"][0]["finals"] == [] and page["studies"][0]["training"] == "20 epochs of training"
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.0,)})
    report = make_report([search])
    assert report.studies[0].training == "short training, 20 epochs"
    assert [network.name for network in report.studies[0].front] == ["nin-c3-lr"]
    assert report.studies[0].best == pytest.approx(0.955)  # the short trainings have a longer front
    (final,) = read_data(make_page(report))["studies"][0]["finals"]  # the other one diverged
    assert (final["name"], final["trial"], final["mark"], final["promised"]) == ("nin-c3-lr", 2, "front", [0.9, 0.01])
    assert final["mean"] == pytest.approx(0.955) and final["deviation"] == pytest.approx(0.0070711, abs=1e-6)


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
    """An open page, with the errors and requests that it made."""

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
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]")

    def _note_request(self, request: Any) -> None:
        if request.url.startswith(("http", "ws")):
            self.complaints.append(request.url)

    def see_all(self) -> None:
        """Wait until all charts are drawn, for which nobody has to scroll."""
        self.page.wait_for_selector("html[data-drawn=yes]")

    def wait_for(self, what: str) -> None:
        """Wait until an expression is true; Playwright's own way is blocked by the page's security policy."""
        for _ in range(100):
            if self.page.evaluate(what):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(what)

    def points(self) -> Any:
        return self.page.locator("#front .scatterlayer .points path")

    def move_to(self, point: Any, chart: str = "front") -> tuple[float, float]:
        point.scroll_into_view_if_needed()
        box = point.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x - 1, y)
        self.page.mouse.move(x, y)
        self.page.wait_for_selector(f"#{chart} .hoverlayer .hovertext")
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
    x, y = tab.move_to(tab.points().last)  # the last reference network
    told = page.locator("#front .hoverlayer").text_content()
    assert "nin-c3-lr" in told and "conv1: 3×1 96 | 1×3 96" in told
    assert "120 M MACs (0.539 of nin)" in told
    page.mouse.click(x, y)
    page.wait_for_selector("#card[open]")
    assert page.locator("#card-title").inner_text() == "nin-c3-lr (trial 2)"
    assert "share of nin's MACs\n0.539" in page.locator("#card .facts").inner_text()
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
    for chart in ("tested", "history", "allocation", "curves"):
        assert page.locator(f"#{chart} .main-svg").count(), chart
    assert not page.locator("#importances-section").is_visible()  # too few networks
    names = page.locator("main h2").all_inner_texts()
    assert names == ["Which network?", "Is it really better?", "What is it made of?", "How did the search go?"]
    outside = page.evaluate("byId('front').data[0].y.filter((y) => y < byId('front').layout.yaxis.range[0]).length")
    few = f"Not shown: {outside} of {sum(network['is_partial'] for network in networks)} networks stopped early"
    assert outside and few in page.locator("#front-what").inner_text()
    (study,) = read_data(file.read_text(encoding="utf-8"))["studies"]
    best = [network for network in networks if network["number"] in study["best"]]
    labels = set(page.locator("#front .annotation-text").all_text_contents())
    assert {network["name"] for network in best} <= labels
    assert page.locator("#best tbody tr").count() == len(best) + 1  # and the dense network
    assert page.locator("#tested .points path").count() == 3 + 1  # and a ring
    assert page.locator("#tested .errorbar path.yerror").count() == 2  # one seed has no deviation
    assert (
        page.locator("#tested-heads")
        .inner_text()
        .startswith("s@paper, on cifar10: 3 of 4 networks tested; 5 runs not done")
    )
    assert f"{EVIL}: unknown, no found network that costs no more" in page.locator("#summary").inner_text()
    row = page.locator("#verdicts tbody tr").first.locator("td").all_inner_texts()
    assert row == [EVIL, "unknown", *["–"] * 5, "no found network that costs no more was retrained"]
    low, high = page.evaluate("document.getElementById('tested').layout.yaxis.range")
    assert low < 89.3 and high > 94.7  # means of 90 to 92, and the bars
    assert "Welch" in page.locator("#verdict-test").inner_text()
    page.get_by_role("button", name="linear").click()
    assert page.evaluate("document.getElementById('front').layout.xaxis.type") == "linear"
    page.select_option("#axis", "params")
    assert page.evaluate("document.getElementById('front').layout.xaxis.title.text") == "parameters, millions"
    page.get_by_role("button", name="by time").click()
    assert page.evaluate("document.getElementById('history').layout.xaxis.title.text").startswith("training time")
    page.get_by_label("switch between light and dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    page.set_viewport_size({"width": 1280, "height": 900})
    page.evaluate("byId('studies').rows[1].cells[9].textContent = '52 min (short 32 min, longer 5 min, full 15 min)'")
    page.evaluate("byId('studies').rows[1].cells[10].textContent = 'NVIDIA H200'")
    assert page.evaluate("(one => one.scrollWidth - one.clientWidth)(byId('studies').parentElement)") <= 0  # it fits
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
    assert page.evaluate("document.documentElement.scrollWidth") == 400  # nothing is wider than the screen
    page.locator("#front").hover()
    assert not page.locator("#front .modebar").is_visible()  # it would lie over the legend
    page.evaluate("turnToPaper()")  # charts become wider; legends stay above them
    box = "(one, name) => one.querySelector(name).getBoundingClientRect()"
    over = f"drawnCharts().filter((one) => ({box})(one, '.legend').bottom > ({box})(one, '.nsewdrag').top + 1)"
    assert page.evaluate("drawnCharts().length") > 3 and page.evaluate(f"{over}.map((one) => one.id)") == []
    page.evaluate("turnToScreen()")
    rows = page.locator("#trials tbody tr")
    assert rows.count() == len(networks) == 24
    page.locator("#trials th button", has_text="accuracy").click()
    best = max(network["accuracy"] for network in networks)
    assert f"{100 * best:.2f} %" in rows.first.inner_text()
    page.locator("#find").fill("nin-c3-lr")
    assert rows.count() == (found := sum("nin-c3-lr" in network["name"] for network in networks))
    assert page.locator("#number").inner_text() == f"{found} of 24 trials"
    page.locator("#find").fill("")
    page.locator("#only-front").check()
    front = [network for network in networks if network["on_front"]]
    assert rows.count() == len(front)
    found = csv_of(tab)
    assert {row["study"] for row in found} == {"one", EVIL} and len(found) == len(front)
    assert all(json.loads(row["architecture"])["backbone"].startswith("nin") for row in found)
    assert page.locator(".scroll[data-more]", has=page.locator("#trials")).count() == 1  # it can be scrolled
    page.evaluate("byId('trials').parentElement.scrollTo(1e4, 0)")
    page.wait_for_selector(".scroll[data-wide]:not([data-more]) > #trials")
    rows.first.locator("a").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#card[open]")
    assert tab.complaints == []


def printed(tab: Tab, file: Path, **paper: Any) -> tuple[list[str], list[np.ndarray]]:
    """Texts of the printed sheets within their margins, and their images."""
    pdfium = pytest.importorskip("pypdfium2")
    tab.page.pdf(path=file, **paper)
    texts, pictures = [], []
    with pdfium.PdfDocument(file) as document:
        for sheet in document:
            width, height = sheet.get_size()
            texts.append(sheet.get_textpage().get_text_bounded(MARGIN, MARGIN, width - MARGIN, height - MARGIN))
            pictures.append(np.asarray(sheet.render().to_pil().convert("L")))
    return [text.replace("\r\n", "\n") for text in texts], pictures


@pytest.mark.slow
@pytest.mark.parametrize(("name", "landscape"), [("A4", False), ("Letter", False), ("A4", True)])
def test_the_page_on_paper(browser: Any, tmp_path: Path, name: str, landscape: bool) -> None:
    """A dark, wide page of which only the first chart was drawn is printed completely and in light colours."""
    file = write_page(tmp_path, 130, stopped=0.2)
    (study,) = read_data(file.read_text(encoding="utf-8"))["studies"]
    tab = Tab(browser, file, 1400, 900, "dark")
    page = tab.page
    paper = {"format": name, "landscape": landscape, "print_background": True}
    texts, pictures = printed(tab, tmp_path / "page.pdf", **paper)

    def of(title: str) -> str:
        """Text after a heading on its sheet; texts of charts come last."""
        (text,) = (text for text in texts if f"{title}\n" in text)
        return text.partition(f"{title}\n")[2]

    points = {network["name"] for network in study["networks"] if network["is_reference"]}
    assert points == {"nin", "nin-c3", "nin-c3-lr"} <= set(of("Accuracy against cost").split())
    costs = [network["macs"] / 1e6 for network in study["networks"] if network["on_front"]]
    columns = of("Layers of the networks on the front").replace("\n", "")  # rotated numbers come in pieces
    assert len(costs) > 5 and [cost for cost in costs if f"{cost:.3g}" not in columns] == []
    epochs = "".join(str(epoch) for epoch in range(1, study["epochs"] + 1))
    assert epochs in "".join(of("Accuracy by epoch").split())  # PDFium reads ticks as one word or as several
    for title, axis in {
        "Accuracy against cost": "multiply-accumulates, millions",
        "How the front grew": "finished trials",
        "Layers of the networks on the front": "multiply-accumulates, millions",
        "Accuracy by epoch": "epoch",
        "Importance of parameters": "importance",
    }.items():
        assert axis in of(title).splitlines(), title  # on the same sheet: charts are whole
    for control in ("linear", "by time", "Download", "Show more", "Click on a network"):
        assert not any(control in text for text in texts), control
    assert of("All trials").startswith("130 trials The first 100 trials are listed here")
    assert sum("parameters epochs seconds" in text.replace("\n", " ") for text in texts) > 1  # on each of its sheets
    for picture in pictures:
        assert np.median(picture) == 255  # light
        assert picture[:, -int(MARGIN) :].min() == 255  # nothing reaches the edge

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    assert page.evaluate("drawnCharts().length") == 5
    fits = "drawnCharts().every((one) => one._fullLayout.width === one.clientWidth && one.clientWidth {})"
    tab.wait_for(fits.format("> 1100"))
    assert page.evaluate("document.querySelectorAll('.main-svg[viewBox]').length") == 0
    page.set_viewport_size({"width": 1100, "height": 900})  # charts still follow the size of the window
    tab.wait_for(fits.format("< 1100"))
    assert tab.complaints == []


@pytest.mark.slow
def test_tables_and_cards_on_paper(browser: Any, tmp_path: Path) -> None:
    """Long names without spaces fit on paper; if a card is open, only the card is printed."""
    name = "a_name_without_a_place_to_break_" * 3
    file = write_page(tmp_path, 8, (name, "b"), space="googlenet")
    networks = read_data(file.read_text(encoding="utf-8"))["studies"][0]["networks"]
    tab = Tab(browser, file, 1400, 900)
    page = tab.page
    texts, pictures = printed(tab, tmp_path / "page.pdf", format="A4")
    assert any("hardware" in text for text in texts) and all(
        picture[:, -int(MARGIN) :].min() == 255 for picture in pictures
    )
    assert any("study shown below" in text for text in texts)
    page.locator("#trials a").first.click()
    page.wait_for_selector("#card[open]")
    texts, _ = printed(tab, tmp_path / "card.pdf", format="A4")
    assert texts[0].startswith(f"{networks[0]['name']} (trial 0)\n") and not any("All trials" in text for text in texts)
    words = {word for text in texts for word in text.split()}
    assert {layer["name"] for layer in networks[0]["layers"]} | {"epoch"} <= words
    assert "Copy" not in words and page.locator("#card").is_visible()
    tab.wait_for("byId('card-curve')._fullLayout.width === byId('card-curve').clientWidth")
    assert page.locator("#card-curve").bounding_box()["width"] > 800
    assert tab.complaints == []


@pytest.mark.slow
def test_a_card_has_an_address_in_a_browser(browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser, write_page(tmp_path, 8, ("one", "it's #2")), 1400, 900)
    page, bare = tab.page, tab.page.url

    def title() -> str | None:
        return page.locator("#card-title").inner_text() if page.locator("#card[open]").count() else None

    page.goto(f"{bare}#it's%20%232/trial-4")
    page.wait_for_selector("#card[open]")
    assert title() == "dense-x0.25 (trial 4)" and "it's #2" in page.locator("#card .facts").inner_text()
    page.get_by_role("button", name="Copy link").click()
    assert page.evaluate("navigator.clipboard.readText()") == f"{bare}#it's%20%232/trial-4"
    page.keyboard.press("Escape")
    tab.wait_for(f"location.href === {json.dumps(bare)}")
    page.locator("header a").first.click()
    page.wait_for_selector("#card[open]")
    assert re.search(r"#one/trial-\d$", page.url)
    page.go_back()
    page.wait_for_selector("#card", state="hidden")
    page.reload()
    page.wait_for_selector("html[data-drawn=yes]")
    assert title() is None
    page.goto(f"{bare}#trial-99")  # there is no such trial
    page.wait_for_selector("html[data-drawn=yes]")
    assert title() is None and tab.complaints == []


@pytest.mark.slow
def test_several_retrainings_in_a_browser(browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser, write_page(tmp_path, 12, ("one", EVIL), tested=True), 1400, 900)
    page = tab.page
    tab.see_all()
    assert page.locator("#tested-heads p").count() == 2
    assert page.locator("#tested-title").inner_text() == "Trained again for 160 epochs and tested"
    assert "after 160 epochs of training" in page.locator("#summary").inner_text()
    steps = "byId('tested').data.filter((trace) => trace.mode === 'lines' && trace.meta !== 'key')"
    assert page.evaluate(f"{steps}.map((trace) => trace.line.color)") == list(PALETTE[:2])  # a staircase each
    rings = "byId('tested').data.filter((trace) => trace.marker?.size === 17 && trace.meta !== 'key')"
    assert page.evaluate(f"{rings}.map((trace) => trace.x.length)") == [1, 1]
    assert page.locator("#verdicts tbody tr").first.inner_text().startswith(f"{EVIL}\tone@paper")
    assert "one@paper, on cifar10: 3 of 4 networks tested" in page.locator("#summary p").first.inner_text()
    legend = page.locator("#tested .legend").text_content()
    assert all(name in legend for name in ("best for the cost shown", "front by means", f"{EVIL}@paper, reference"))
    assert tab.complaints == []


@pytest.mark.slow
def test_a_retraining_without_tests_has_no_chart_in_a_browser(browser: Any, tmp_path: Path) -> None:
    record = fill_study(tmp_path, 5, storage=f"journal:{tmp_path / 'journal'}")
    retrained = some_finals(record)
    begun = tuple(replace(final, accuracies=()) for final in retrained.finals)
    report = make_report([record], retrained=[replace(retrained, finals=begun)])
    tab = Tab(browser, write(tmp_path / "report.html", report), 1400, 900)
    tab.see_all()
    assert tab.page.locator("#tested-title").inner_text() == "Trained again for 160 epochs, not tested yet"
    assert not tab.page.locator("#tested").is_visible() and not tab.page.locator("#tested-caption").is_visible()
    assert tab.page.locator("#tested-table").is_visible() and tab.complaints == []


@pytest.mark.slow
def test_tested_networks_open_their_cards_in_a_browser(browser: Any, tmp_path: Path) -> None:
    record = fill_study(tmp_path, 12, storage=f"journal:{tmp_path / 'journal'}")
    found = next(trial for trial in record.trials if trial.number == FOUND)
    file = tmp_path / "report.html"
    file.write_text(make_page(make_report([record], retrained=[retrain_by_hand(record)])), encoding="utf-8")
    tab = Tab(browser, file, 1400, 900)
    page = tab.page
    lines = page.locator("#summary li")
    assert (
        page.locator("#summary b").first.inner_text()
        == "Of 3 reference networks: 1 dominated, 1 no difference shown, 1 unknown."
    )
    assert lines.last.inner_text().startswith(f"nin: dominated by trial {FOUND} at 0.031 of its MACs")
    assert page.locator("#summary").bounding_box()["y"] > page.locator("#front").bounding_box()["y"]
    assert "validation accuracy, one seed" in page.locator("#studies th", has_text="best").inner_text()
    tab.see_all()

    def card() -> list[str]:
        page.wait_for_selector("#card[open]")
        told = [page.locator("#card-title").inner_text(), page.locator("#card .facts").inner_text()]
        page.keyboard.press("Escape")
        return told

    lines.last.locator("a").click()
    title, facts = card()
    assert title == f"{found.point} (trial {FOUND})" and "94.70 ± 0.10 %, 3 seeds (s@paper)" in facts.replace("\n", " ")
    page.locator("#verdicts tbody tr").first.locator("a").first.click()
    title, facts = card()
    assert title == "nin-c3-lr (trial 2)" and "93.00 %, 1 seed, 1 diverged, 2 failed, 3 open (s@paper)" in facts
    assert page.locator("#verdicts th").first.inner_text() == "reference"
    row = page.locator("#verdicts tbody tr").last.locator("td").all_inner_texts()
    assert row[:5] == ["nin", "dominated", f"trial {FOUND}", "0.031", "+4.20"] and "nin:" not in row[-1]

    names = page.locator("#tested-table th").all_inner_texts()
    assert names[1:] == [
        "MACs",
        "share",
        "parameters",
        "test accuracy",
        "n",
        "runs",
        "diverged",
        "failed",
        "open",
        "note",
    ]
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#tested-table tbody tr").all()]
    assert [row[4] for row in rows] == ["94.70 ± 0.10 %", "–", "93.00 %", "94.50 ± 0.71 %", "90.50 ± 0.50 %"]
    assert rows[2][5:] == ["1", "20", "1", "2", "3", "reference, last error: out of memory"]
    assert rows[0][5:7] == ["3", "70, 71, 72"] and rows[0][-1] == "front"
    note = page.locator("#tested-note").inner_text()
    assert "numbers for lrnas export STUDY@RECIPE:RUN" in note and "by chance" not in note

    x, y = tab.move_to(page.locator("#tested .points path").first, "tested")
    assert f"trial {FOUND}, s@paper" in page.locator("#tested .hoverlayer").text_content()
    page.mouse.click(x, y)
    assert card()[0] == f"{found.point} (trial {FOUND})"
    symbols = page.evaluate("document.getElementById('tested').data.map((trace) => trace.marker?.symbol)")
    assert symbols == [None, "circle", "diamond", "diamond-open", "circle-open"]  # one seed is hollow; and rings
    for chart in ("front", "tested", "history", "allocation", "curves"):
        assert page.locator(f"#{chart}[role=img]").get_attribute("aria-label"), chart
    assert tab.complaints == []


@pytest.mark.slow
def test_the_page_shows_the_command_that_tests_networks_in_a_browser(browser: Any, tmp_path: Path) -> None:
    where = f"journal:{tmp_path / 'journal'}"
    trials = {"it's": 6, "own": 6, "empty": 0}
    records = [fill_study(tmp_path, number, name=name, storage=where) for name, number in trials.items()]
    records[1].manifest["trainable"] = "mine:train"
    report = make_report([replace(record, where=Whereabouts("my studies")) for record in records])
    file = tmp_path / "report.html"
    file.write_text(make_page(report), encoding="utf-8")
    tab = Tab(browser, file, 1400, 900)
    page = tab.page
    told = page.locator("#summary p b").all_inner_texts()
    assert told == ["No network of it's is tested yet.", "No network of own is tested."]
    line = report.studies[0].retrain
    assert line is not None and page.locator("#summary code").first.inner_text() == line.line
    assert "--studies 'my studies'" in line.line
    page.locator("#summary .line button").first.click()
    assert page.evaluate("navigator.clipboard.readText()") == line.line
    assert tab.complaints == []


@pytest.mark.slow
def test_rings_and_line_show_two_fronts_in_a_browser(browser: Any, tmp_path: Path) -> None:
    where = f"journal:{tmp_path / 'journal'}"
    report = make_report([fill_study(tmp_path, 40, storage=where, objectives="accuracy,macs,params", stopped=0.2)])
    (study,) = report.studies
    networks = tuple(
        replace(network, trial=replace(network.trial, on_front=True)) if network.name == "nin" else network
        for network in study.networks
    )
    file = tmp_path / "report.html"
    file.write_text(make_page(replace(report, studies=(replace(study, networks=networks),))), encoding="utf-8")
    tab = Tab(browser, file, 1400, 900)
    page = tab.page
    ringed = "byId('front').data.filter((one) => one.marker?.line).map((one) => [one.name, one.x.length])"
    on_front = [network.is_reference for network in networks if network.trial.on_front]
    assert page.evaluate(ringed) == [["on the front", on_front.count(False)], ["reference", on_front.count(True)]]
    legend = page.locator("#front .legend").text_content()
    assert "best for the cost shown" in legend and "9 epochs of training" in legend
    assert "front of the study's objectives (accuracy, MACs, parameters)" in page.locator("#front-what").inner_text()

    def ticks() -> list[str]:
        return list(page.locator("#front .xtick text").all_text_contents())

    assert {"10", "20", "50", "100", "200"} <= set(ticks()) <= {"1", "2", "5", "10", "20", "50", "100", "200", "500"}
    page.evaluate("Plotly.relayout('front', { 'xaxis.range[0]': Math.log10(110), 'xaxis.range[1]': Math.log10(190) })")
    page.wait_for_function("document.querySelectorAll('#front .xtick').length > 2")
    assert all(110 <= int(text) <= 190 for text in ticks())
    page.get_by_role("button", name="linear").click()
    assert "0" in ticks()

    tab.see_all()
    full = sum(network.is_full for network in networks)
    note = page.locator("#importances-note").inner_text()
    assert note.startswith(f"From {full} trained networks. 20 of 22 parameters are shown")
    assert page.locator("#importances .main-svg").count()
    assert tab.complaints == []


def csv_of(tab: Tab) -> list[dict[str, str]]:
    """The downloaded table."""
    with tab.page.expect_download() as download:
        tab.page.locator("#download").click()
    with Path(download.value.path()).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
def test_rings_are_of_the_accuracies_that_are_shown_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """If only some studies have finals, the chart shows short trainings, ringed by their own front."""
    search = make_search()
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.97,)})
    plain = fill_study(tmp_path, 8, name="plain", storage=f"journal:{tmp_path / 'journal'}")
    ringed = (
        "byId('front').data.filter((one) => one.marker?.line)"
        ".filter((one) => ['0', 'reference', undefined].includes(one.legendgroup))"
        ".flatMap((one) => one.y).map((value) => Math.round(10 * value)).sort()"
    )
    for studies, expected in (([search], [970]), ([search, plain], [700, 800, 900])):
        tab = Tab(browser, write(tmp_path / "report.html", make_report(studies)), 1400, 900)
        assert tab.page.evaluate(ringed) == expected
        rows = [row for row in csv_of(tab) if row["study"] == "s"]
        assert [row["accuracy"] for row in rows if row["on_front"] == "true"] == ["0.7", "0.8", "0.9"]
        assert [row["final"] for row in rows if row["on_final_front"] == "true"] == ["0.97"]
        tab.page.locator("#only-front").check()  # the front of each study, as in the table of studies
        assert [row["point"] for row in csv_of(tab) if row["study"] == "s"] == ["lr-x0.25"]
        assert tab.complaints == []


@pytest.mark.slow
def test_the_chart_offers_and_explains_only_what_it_has_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """Short trainings far below the finals are not drawn, and there may be no reference network."""
    finals = {"nin-c3-lr": (0.995, 0.996), **dict.fromkeys(("lr-x0.25", "dense-x0.25", "dense-x0.5"), (0.992, 0.994))}
    near, far = make_search(), make_search()
    make_finals(near, {name: tuple(value - 0.1 for value in values) for name, values in finals.items()})
    make_finals(far, finals)
    for search, has_faint in ((near, True), (far, False)):
        (study,) = make_report([search]).studies
        networks = tuple(network for network in study.networks if has_faint or not network.is_reference)
        report = replace(make_report([search]), studies=(replace(study, networks=networks),))
        tab = Tab(browser, write(tmp_path / "report.html", report), 1400, 900)
        assert tab.page.locator("#show-partial").is_visible() == has_faint
        text = tab.page.locator("#front-what").inner_text()
        assert ("Faint:" in text, "Diamonds:" in text) == (has_faint, has_faint)
        assert ("after short training" in tab.page.locator("#front .legend").text_content()) == has_faint
        assert "Not shown: " in text  # networks that are outside the axis are counted in any case
        assert tab.complaints == []


@pytest.mark.slow
def test_short_trainings_are_all_shown_beside_one_or_two_finals_in_a_browser(browser: Any, tmp_path: Path) -> None:
    searches = [make_search(), replace(make_search(), name="other")]  # with accuracies from 0.7 to 0.9
    for search in searches:
        make_finals(search, {"nin-c3-lr": (0.995, 0.996), "lr-x0.25": (0.992, 0.994)})
    for studies in (searches[:1], searches):
        tab = Tab(browser, write(tmp_path / "report.html", make_report(studies)), 1400, 900)
        assert tab.page.evaluate("byId('front').layout.yaxis.range[0]") < 70
        assert "Not shown" not in tab.page.locator("#front-what").inner_text()
        tab.page.locator("#show-partial").uncheck()
        assert tab.page.evaluate("byId('front').layout.yaxis.range[0]") > 98
        assert tab.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, 8])
def test_studies_and_a_few_finals_have_names_in_a_browser(browser: Any, tmp_path: Path, most: int) -> None:
    """Also if all networks of a study are on the front, or reference networks."""
    searches = [replace(make_search(), name=name) for name in ("first", "second")]
    # the second is on the front of the first study, but not at the top of the page
    make_finals(searches[0], {"lr-x0.25": (0.8, 0.81), "dense-x0.25": (0.9, 0.91)})
    make_finals(searches[1], {"nin-c3-lr": (0.95, 0.96)})
    page = make_page(make_report(searches))
    assert page.count("const MOST_NAMED = 8;") == 1
    file = tmp_path / "report.html"
    file.write_text(page.replace("const MOST_NAMED = 8;", f"const MOST_NAMED = {most};"), encoding="utf-8")
    tab = Tab(browser, file, 1400, 900)
    legend = tab.page.locator("#front .legendtext")
    assert legend.all_text_contents() == ["first", "second", "best for the cost shown"]
    names = "byId('front').layout.annotations.filter((one) => one.showarrow).map((one) => one.text)"
    shown = tab.page.evaluate(names)
    assert len(shown) == (3 if most == 8 else 2) and "nin-c3-lr" in shown
    marks = tab.points().count()
    tab.page.locator("#front .legendtoggle").first.click()
    tab.wait_for(f"document.querySelectorAll('#front .scatterlayer .points path').length < {marks}")
    assert tab.complaints == []


@pytest.mark.slow
def test_lines_at_costs_say_to_which_studies_they_belong_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """As in the figure: a network of the same name has other costs for other images."""
    limited = replace(make_limited_search(), name="a")
    same = replace(make_search(), name="b")
    larger = replace(same, name="c", manifest=same.manifest | {"image_size": 16})
    lines = "byId('front').layout.annotations.filter((one) => !one.showarrow).map((one) => one.text)"
    for studies, expected in (
        ([limited, replace(limited, name="b")], {f"{name}, beyond the limit" for name in SPACE.points}),
        ([limited, same], {"nin, beyond the limit (a); the dense network (b)", "nin-c3, beyond the limit (a)"}),
        ([same, larger], {"nin, the dense network (b)", "nin, the dense network (c)"}),
        (
            [limited, *(replace(larger, name=str(i)) for i in range(3))],
            {"nin, beyond the limit (a)", "nin-c3, beyond the limit (a)", "nin, the dense network (3 of 4 studies)"},
        ),
    ):
        tab = Tab(browser, write(tmp_path / "report.html", make_report(studies)), 1400, 900)
        assert set(tab.page.evaluate(lines)) == expected
        assert tab.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 700, 1400])
def test_names_do_not_lie_on_texts_of_lines_in_a_browser(browser: Any, tmp_path: Path, width: int) -> None:
    search = make_search()
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "dense-x0.5": (0.96, 0.96), "dense-x0.25": (0.94, 0.96)})
    proposals = make_proposals(limits=Limits(max_macs=9e6))
    proposals.enqueue(SPACE.points)
    proposal = proposals.ask()
    assert proposal is not None and proposal.point == "nin-c3-lr"
    proposals.ledger.report_epoch(proposal.number, [0.9], 1.0)
    proposals.ledger.complete(proposal.number, 0.9)
    limited = replace(proposals.study, name="another-study")
    make_finals(limited, {"nin-c3-lr": (0.95, 0.96)})
    tab = Tab(browser, write(tmp_path / "report.html", make_report([search, limited])), width, 900)
    overlaps = """() => {
      const boxes = [...document.querySelectorAll("#front .annotation-text")].map((one) => one.getBoundingClientRect());
      const [texts, names] = [true, false].map((isUpright) => boxes.filter((box) => (box.height > box.width) === isUpright));
      return [texts.length, names.length, names.filter((box) => texts.some((text) => box.left < text.right && text.left < box.right && box.top < text.bottom && text.top < box.bottom)).length];
    }"""  # noqa: E501
    found = tab.page.evaluate(overlaps)
    assert found[0] == 2 and found[1] >= 3 and found[2] == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_filters_in_a_card_are_labelled_where_there_is_room_in_a_browser(
    browser: Any, tmp_path: Path, width: int
) -> None:
    tab = Tab(browser, write(tmp_path / "report.html", make_report([make_search()])), width, 900)
    labels = """() => {
      const found = [];
      for (let number = 2; number < 190; number += 3) {
        const bar = filterBar({ groups: [[3, 1, number, "kx1"], [1, 3, 192 - number, "1xk"]] }, 192);
        document.body.append(bar);
        for (const group of bar.querySelectorAll(".group")) {
          const text = document.createRange(), box = group.getBoundingClientRect();
          text.selectNodeContents(group);
          const { left, right, top } = text.getBoundingClientRect();
          found.push(top >= box.bottom ? "hidden" : left >= box.left && right <= box.right ? "whole" : "cut");
        }
      }
      return found;
    }"""
    shown = tab.page.evaluate(labels)
    assert set(shown) == {"hidden", "whole"} and shown.count("whole") > shown.count("hidden")


@pytest.mark.slow
@pytest.mark.parametrize("digits", [0, 1, 2, 3])
def test_the_page_rounds_as_python_in_a_browser(browser: Any, tmp_path: Path, digits: int) -> None:
    tab = Tab(browser, write(tmp_path / "report.html", make_report([make_search()])), 1280, 900)
    values = [*(i / 64 for i in (*range(-300, -64), *range(300))), *(i / 1000 for i in range(1, 3000, 7))]
    shown = tab.page.evaluate("([values, digits]) => values.map((value) => fixed(value, digits))", [values, digits])
    assert shown == [f"{value:.{digits}f}" for value in values]


@pytest.mark.slow
def test_names_lie_beside_the_axis_and_the_line_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """Two networks at the two ends of a short front with long error bars."""
    search = make_search()
    make_finals(search, {"dense-x0.25": (0.98, 0.999), "nin-c3-lr": (0.991, 0.999)})
    tab = Tab(browser, write(tmp_path / "report.html", make_report([search])), 1200, 900)
    clear = """() => {
      const line = document.querySelector("#front .scatterlayer .js-line"), places = [];
      for (let at = 0; at <= line.getTotalLength(); at += 1) places.push(line.getPointAtLength(at).matrixTransform(line.getScreenCTM()));
      const { left } = document.querySelector("#front .nsewdrag").getBoundingClientRect();
      return [...document.querySelectorAll("#front .annotation-text")].map((one) => one.getBoundingClientRect())
        .map((box) => box.left >= left && !places.some(({ x, y }) => x > box.left && x < box.right && y > box.top && y < box.bottom));
    }"""  # noqa: E501
    assert tab.page.evaluate(clear).count(True) >= 2 and all(tab.page.evaluate(clear))


@pytest.mark.slow
def test_a_dense_network_that_a_limit_left_out_before_it_was_trained_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """The study has it twice: beyond the limit, and trained after the limit was raised."""
    proposals = make_proposals(limits=Limits(max_macs=2e6))
    proposals.enqueue({"nin": SPACE.points["nin"], "lr-x0.25": SPACE.uniform["lr-x0.25"]})
    for limits, accuracy in ((proposals.limits, 0.7), (Limits(), 0.9)):
        proposals.limits = limits
        proposals.enqueue({"nin": SPACE.points["nin"]})
        proposal = proposals.ask()
        assert proposal is not None
        proposals.ledger.report_epoch(proposal.number, [accuracy], 1.0)
        proposals.ledger.complete(proposal.number, accuracy)
    tab = Tab(browser, write(tmp_path / "report.html", make_report([proposals.study])), 1400, 900)
    row = tab.page.locator("#best tr").filter(has_text="dense").first.inner_text()
    assert "90.00 %" in row and "trial 2" in row


@pytest.mark.slow
def test_curves_show_the_front_of_the_short_trainings_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """As `curves.png` does: the curves are not those of the finals."""
    short, full = make_search(), make_search()
    make_finals(full, {"nin-c3-lr": (0.95, 0.96), "dense-x0.5": (0.97,)})
    told = "Curves and front are those of the short training, before the finals."
    shown = (
        "[byId('curves').layout.xaxis.title.text, byId('curves-level').textContent,"
        " byId('curves').data.filter((one) => one.name === 'on the front').flatMap((one) => one.text).filter(Boolean)]"
    )
    for search, label, note in ((short, "epoch", ""), (full, "epoch of the short training", told)):
        tab = Tab(browser, write(tmp_path / "report.html", make_report([search])), 1400, 900)
        tab.see_all()
        assert tab.page.evaluate(shown) == [label, note, ["lr-x0.25 (trial 0)", "dense-x0.25 (trial 1)"]]
        assert tab.complaints == []


@pytest.mark.slow
def test_accuracies_above_those_of_the_finals_are_within_the_axis_in_a_browser(browser: Any, tmp_path: Path) -> None:
    search = make_search()  # with up to 0.9
    make_finals(search, {"nin-c3-lr": (0.4, 0.42), "lr-x0.25": (0.3,)})
    tab = Tab(browser, write(tmp_path / "report.html", make_report([search])), 1400, 900)
    low, high = tab.page.evaluate("byId('front').layout.yaxis.range")
    assert low < 30 and high > 90


@pytest.mark.slow
def test_the_table_of_the_best_names_a_network_that_is_not_on_the_front(browser: Any, tmp_path: Path) -> None:
    search = make_search()
    nin = cost(SPACE.points["nin"])
    rival = next(trial for trial in search.trials if trial.point == "dense-x0.5")
    finals = (
        Final("nin", "", "nin", None, int(nin["macs"]), int(nin["params"]), "paper", (0, 1), (0.8, 0.81)),
        Final(rival.identity, "", None, rival.number, rival.macs, rival.params, "paper", (0, 1), (0.9, 0.91)),
    )
    tested = Retrained("s", "paper", {"epochs": 9}, "digits", finals)
    for retrained, told in (((), ""), ((tested,), "at the top of the page")):
        report = make_report([search], retrained=retrained)
        tab = Tab(browser, write(tmp_path / "report.html", report), 1400, 900)
        what = tab.page.locator("#best-what").inner_text()
        assert what.startswith(
            f"The networks on the front{told and ', and the network ' + told}. To compare with: nin. "
        )
        assert tab.page.locator("#best tbody tr").first.inner_text().startswith("nin, dense")
        assert tab.page.locator("#best tbody tr", has_text="dense-x0.5").count() == bool(retrained)
        assert tab.complaints == []


@pytest.mark.slow
def test_the_level_of_the_front_is_told_if_only_some_studies_have_finals(browser: Any, tmp_path: Path) -> None:
    search, other = make_search(), make_search()
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.93,)})
    short = "For studies with finals, networks and front are those of the short training, before the finals."
    full = "The networks on the front (for studies with finals, that of the full training)"
    for studies, is_told in (([search, replace(other, name="other")], True), ([search], False), ([other], False)):
        tab = Tab(browser, write(tmp_path / "report.html", make_report(studies)), 1400, 900)
        assert (short in tab.page.locator("#front-kind").inner_text()) == is_told
        assert tab.page.locator("#best-what").inner_text().startswith(full) == is_told
        assert tab.complaints == []


@pytest.mark.slow
def test_a_chart_that_fails_is_told_and_the_others_are_drawn(browser: Any, tmp_path: Path) -> None:
    file = write_page(tmp_path, 24)
    text = file.read_text(encoding="utf-8")
    broken = text.replace("function drawHistory() {", 'function drawHistory() { throw new Error("no ink");')
    assert broken != text
    file.write_text(broken, encoding="utf-8")
    tab = Tab(browser, file, 1400, 900)
    tab.see_all()
    assert tab.page.locator("#trouble").inner_text() == 'The chart "history" cannot be shown: no ink'
    assert tab.page.locator("#curves .main-svg").count()
    assert len(tab.complaints) == 1 and "no ink" in tab.complaints[0]


@pytest.mark.slow
def test_the_front_by_means_differs_from_the_line_of_one_cost_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """A network with fewer parameters and more MACs is on the front; a note says that it has only one run."""
    record = fill_study(tmp_path, 12, storage=f"journal:{tmp_path / 'journal'}", objectives="accuracy,macs,params")
    retrained = some_finals(record)
    first = replace(retrained.finals[0], costs=("macs", "params"), runs=(0, 1, 2))
    small = replace(
        first, identity="small", macs=2 * first.macs, params=first.params // 2, accuracies=(0.8,), runs=(3,)
    )
    beaten = replace(small, identity="beaten", macs=3 * first.macs, params=first.params, runs=(4,))
    report = make_report([record], retrained=[replace(retrained, finals=(first, small, beaten))])
    tab = Tab(browser, write(tmp_path / "report.html", report), 1400, 900)
    page = tab.page
    tab.see_all()

    def places(name: str) -> Any:
        return page.evaluate(f"byId('tested').data.find((trace) => trace.name === '{name}').x")

    for axis, best in (("macs", [first]), ("params", [small, first])):
        page.select_option("#axis", axis)
        corners = dict.fromkeys(places("best for the cost shown"))  # the line continues to the highest cost
        assert list(corners)[: len(best)] == pytest.approx([getattr(final, axis) / 1e6 for final in best])
        assert len(corners) == len(best) + (axis == "macs")
        assert places("front by means") == pytest.approx([getattr(final, axis) / 1e6 for final in (first, small)])
    notes = [row.locator("td").last.inner_text() for row in page.locator("#tested-table tbody tr").all()]
    assert [note.split(",")[0] for note in notes] == ["front", "front by fewer runs", "reference"]
    assert "may be on the front, or not, by chance" in page.locator("#tested-note").inner_text()
    assert "front by means (test accuracy, MACs, parameters)" in page.locator("#tested-section").inner_text()
    assert tab.complaints == []


@pytest.mark.slow
def test_a_study_has_one_colour_on_the_page(browser: Any, tmp_path: Path) -> None:
    """Colours do not depend on how many other studies there are or what these have to show."""
    where = f"journal:{tmp_path / 'journal'}"
    record = fill_study(tmp_path, 5, storage=where)
    report = make_report([fill_study(tmp_path, 0, name="empty", storage=where), record])
    some = [report.studies[0], *(replace(report.studies[1], name=f"s{i}") for i in range(12))]
    (one,) = make_report([record], retrained=[some_finals(record)]).tested
    tested = [replace(one, retrained=replace(one.retrained, study=study.name)) for study in some[2:]]
    file = tmp_path / "report.html"
    tab = Tab(browser, write(file, replace(report, studies=tuple(some), tested=tuple(tested))), 1400, 900)
    tab.see_all()

    def lines(chart: str) -> Any:
        drawn = f"byId('{chart}').data.filter((one) => one.mode === 'lines' && one.meta !== 'key' && one.x.length)"
        return tab.page.evaluate(f"{drawn}.map((one) => one.line.color)")

    assert lines("front") == lines("history") == list(PALETTE[1:13]) and lines("tested") == list(PALETTE[2:13])
    assert tab.complaints == []
    alone = replace(report, studies=tuple(some), tested=tuple(tested[:1]))
    tab = Tab(browser, write(file, alone), 1400, 900)
    tab.see_all()
    assert lines("tested") == [PALETTE[2]] and tab.complaints == []


@pytest.mark.slow
def test_a_p_value_that_explains_a_verdict_is_shown_in_a_browser(browser: Any, tmp_path: Path) -> None:
    record = fill_study(tmp_path, 5, storage=f"journal:{tmp_path / 'journal'}")
    retrained = some_finals(record)
    first = replace(retrained.finals[0], point=None)
    accuracies = {"rival": (0.925, 0.935, 0.945)} | {f"o{i}": (0.88, 0.90, 0.92 + i / 1000) for i in range(9)}
    found = [replace(first, identity=name, accuracies=values) for name, values in accuracies.items()]
    point = replace(first, identity="p", point="nin", macs=2 * first.macs, accuracies=(0.90, 0.91, 0.92))
    report = make_report([record], retrained=[replace(retrained, finals=(*found, point))])
    (verdict,) = report.tested[0].verdicts
    tab = Tab(browser, write(tmp_path / "report.html", report), 1400, 900)
    tab.see_all()
    row = tab.page.locator("#verdicts tbody tr").locator("td").all_inner_texts()
    assert row[1] == "no difference shown" and row[5].startswith("+0.") and row[6] == f"{verdict.p:.3f}"
    assert row[7] == "as far as 3 runs tell; p is corrected over the 10 compared"
    assert tab.complaints == []


@pytest.mark.slow
def test_costs_that_are_not_known_in_a_browser(browser: Any, tmp_path: Path) -> None:
    where = f"journal:{tmp_path / 'journal'}"
    plain = fill_study(tmp_path, 12, name="plain", storage=where)
    timed = fill_study(tmp_path, 12, name="timed", storage=where, objectives="accuracy,latency")
    report = make_report([plain, timed])
    file = tmp_path / "report.html"
    file.write_text(make_page(report), encoding="utf-8")
    tab = Tab(browser, file, 1400, 900)
    page = tab.page
    tab.see_all()
    page.select_option("#axis", "latency")
    layout = "document.getElementById('allocation').layout.xaxis"
    assert page.evaluate(f"{layout}.title.text") == "multiply-accumulates, millions"
    assert all(page.evaluate(f"{layout}.ticktext"))
    page.select_option("#study", "1")
    assert page.evaluate(f"{layout}.title.text") == "latency, ms"
    assert tab.complaints == []

    (study,) = make_report([timed]).studies
    networks = tuple(  # only one network, which waits, has a known latency
        replace(
            network, trial=replace(network.trial, status="waiting") if not i else replace(network.trial, latency=None)
        )
        for i, network in enumerate(study.networks)
    )
    file.write_text(make_page(replace(report, studies=(replace(study, networks=networks),))), encoding="utf-8")
    tab = Tab(browser, file, 1400, 900)
    page = tab.page
    assert page.locator("#front .main-svg").count()
    page.select_option("#axis", "latency")
    assert not page.locator("#front").is_visible()
    told = "This cost is not known for any trained network: latency, ms. Choose another cost."
    assert page.locator("#front-empty").inner_text() == told
    page.select_option("#axis", "macs")
    assert page.locator("#front").is_visible() and not page.locator("#front-empty").is_visible()
    assert tab.points().count() > 5 and tab.complaints == []


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
def test_many_points_are_painted_as_one_element(browser: Any, tmp_path: Path) -> None:
    file = write_page(tmp_path, 800)
    networks = read_data(file.read_text(encoding="utf-8"))["studies"][0]["networks"]
    full = [network for network in networks if network["is_full"]]
    plain = [network for network in full if not network["on_front"] and not network["is_reference"]]
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
    best = max(plain, key=lambda network: network["accuracy"])  # no other mark is near
    x, y = map(float, painted()[1][plain.index(best)].split(","))
    corner = page.locator("#front .nsewdrag").bounding_box()
    page.mouse.move(corner["x"] + x - 1, corner["y"] + y)
    page.mouse.move(corner["x"] + x, corner["y"] + y)
    page.wait_for_selector("#front .hoverlayer .hovertext")
    assert best["name"] in page.locator("#front .hoverlayer").text_content()
    page.mouse.click(corner["x"] + x, corner["y"] + y)
    page.wait_for_selector("#card[open]")
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
    assert (abs(picture - shade).max(axis=-1) < 5).sum() > 10 * len(plain)  # some marks overlap
    assert tab.complaints == []


@pytest.mark.slow
def test_an_empty_study_in_a_browser(browser: Any, tmp_path: Path) -> None:
    tab = Tab(browser, write_page(tmp_path, 0), 1400, 900)
    assert "no trained network yet" in tab.page.locator("#remarks").inner_text()
    tab.see_all()
    sections = tab.page.locator("main section:visible")
    assert sections.count() == 1 and sections.locator("#studies").count() == 1  # empty sections are left out
    tab.page.evaluate("() => { page.data.remarks = ['left out: 1 (`lrnas data` lists them).']; drawOverview(); }")
    assert tab.page.locator("#remarks").inner_text().strip() == "left out: 1 (lrnas data lists them)."
    assert tab.page.locator("#remarks code").inner_text() == "lrnas data"
    assert tab.complaints == []


@pytest.mark.slow
def test_a_page_of_2000_trials_in_a_browser(browser: Any, tmp_path: Path) -> None:
    file = write_page(tmp_path, 2000)
    assert file.stat().st_size < 8e6
    tab = Tab(browser, file, 1400, 900)
    assert tab.points().count() < 300  # the others are painted as one element
    tab.see_all()
    assert tab.page.locator("#number").inner_text() == "2,000 trials"
    assert tab.complaints == []
