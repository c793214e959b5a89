"""The paper's figures: their numbers, the sources of the numbers, and drawing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.errors import DataError, UnknownName
from lrnas.models.paper import get_point, paper_points
from lrnas.recipes import Recipe
from lrnas.reporting.figures.panels import PanelFigure, draw_panels
from lrnas.reporting.paper.figures import FIGURES, make_paper_figure
from lrnas.reporting.paper.records import read_runs
from lrnas.reporting.paper.tables import NothingToDraw, Sources

RESULTS = Path(__file__).parents[3] / "results"


def write_record(
    folder: Path, network: str, seed: int, accuracy: float | None, data: str = "cifar10", **recipe: object
) -> Path:
    """Write a record as `lrnas reproduce` does."""
    architecture = get_point(network).architecture
    record = {
        "network": network,
        "architecture": architecture.to_dict(),
        "identity": {"data": data, "image_size": None, "recipe": {**Recipe().to_dict(), **recipe}, "seed": seed},
        "recipe_name": "own",
        "test_accuracy": accuracy,
        "macs": 1_000_000,
        "provenance": {"commit": "0123456789", "hardware": "a machine"},
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{network}-{data.replace(':', '-')}-{seed}-{len(recipe)}.json"
    file.write_text(json.dumps(record))
    return file


def marks(figure: PanelFigure, panel: int, series: int) -> dict[str, tuple[float, float]]:
    return {mark.name: (mark.x, mark.y) for mark in figure.panels[panel].series[series].marks}


def test_runs_are_merged_over_seeds_but_not_over_recipes(tmp_path: Path) -> None:
    folder = tmp_path / "reproduce"
    write_record(folder, "nin", 0, 0.5).rename(folder / "z0.json")  # the same run once more
    write_record(folder, "nin", 1, 0.1).rename(folder / "z1.json")  # another run with a seed that was already read
    for seed, accuracy in enumerate((0.5, 0.7, None)):
        write_record(folder, "nin", seed, accuracy)
    write_record(folder, "nin", 0, 0.9, lr=0.5)
    write_record(folder, "nin-c3", 0, None)  # all its runs diverged
    (folder / "summary.json").write_text("[]")
    one, other = read_runs(folder)
    assert {one.accuracies, other.accuracies} == {(0.5, 0.7), (0.9,)}
    both = max(one, other, key=lambda runs: len(runs.accuracies))
    assert (both.mean, both.diverged, both.commits) == (pytest.approx(0.6), 1, ("0123456",))
    assert (both.repeated, other.repeated + one.repeated) == (1, 1)
    figure = make_paper_figure("table4", Sources(tmp_path))
    assert "3 runs, 1 more diverged, 1 more with repeated seeds left out" in figure.footer[1]
    assert both.deviation == pytest.approx(0.1414, abs=1e-4)


def test_recipes_with_the_same_name_have_different_labels(tmp_path: Path) -> None:
    folder = tmp_path / "reproduce"
    write_record(folder, "nin", 0, 0.5, data="digits")
    write_record(folder, "nin", 0, 0.6, data="digits", epochs=99)
    (panel,) = make_paper_figure("other-data", Sources(tmp_path)).panels
    wanted = {f"measured here, recipe own, epochs {Recipe().epochs}": 50, "measured here, recipe own, epochs 99": 60}
    assert {series.label: series.marks[0].y for series in panel.series} == wanted
    for pad in (1, 2):  # the fourth field that differs
        file = write_record(folder, "nin", 0, pad / 10, data="digits", epochs=9, batch_size=64, lr=0.2, pad=pad)
        file.rename(folder / f"z{pad}.json")
    (panel,) = make_paper_figure("other-data", Sources(tmp_path)).panels
    assert [series.marks[0].y for series in panel.series] == [50, 60, 10, 20]
    assert panel.series[3].label == "measured here, recipe own, epochs 9, batch_size 64, lr 0.2, pad 2"


def test_records_that_cannot_be_read(tmp_path: Path) -> None:
    assert read_runs(tmp_path / "nowhere") == []
    file = write_record(tmp_path, "nin", 0, 0.5)
    file.write_text(file.read_text()[:50])
    with pytest.raises(DataError, match="cannot be read"):
        read_runs(tmp_path)
    file.write_text(json.dumps({"identity": {}, "architecture": {}, "test_accuracy": 1}))
    with pytest.raises(DataError, match="is not a valid record of a run"):
        read_runs(tmp_path)
    whole = json.loads(write_record(tmp_path, "nin", 0, 0.5).read_text())
    for part in ("macs", "network"):
        file.write_text(json.dumps({key: value for key, value in whole.items() if key != part}))
        with pytest.raises(
            DataError, match=rf"{file.name} is not a valid record of a run \(KeyError: '{part}'\); move it"
        ):
            read_runs(tmp_path)


def test_table_4_has_measured_and_published_numbers() -> None:
    figure = make_paper_figure("table4", Sources(RESULTS))
    published, measured = marks(figure, 0, 0), marks(figure, 0, 1)
    assert published["nin-c3-lr"] == pytest.approx((104.261834, 91.78))
    assert measured["nin-c3-lr"] == pytest.approx((104.261834, 91.66), abs=0.005)
    assert measured["nin"] == pytest.approx((192.859658, 91.83), abs=0.005)
    assert marks(figure, 1, 1)["nin-c3"][0] == pytest.approx(0.773642)
    first = figure.panels[0].series[1].marks[0]
    assert first.number == 3 and first.error is not None and 0.1 < first.error < 0.3
    assert "9 runs" in figure.footer[1] and "93e6855" in figure.footer[1] and "H200" in figure.footer[1]


def test_published_marks_have_the_numbers_of_the_paper() -> None:
    numbers = []
    for name in ("table1", "table3", "table4"):
        figure = make_paper_figure(name, Sources(Path("nowhere")))
        found = {mark.name: mark for panel in figure.panels[:1] for mark in panel.series[0].marks}
        unit = 1e6 if name == "table4" else 1e9
        for point in paper_points().values():
            if point.name in found:
                assert found[point.name].x * unit == pytest.approx(point.published.multiply_acc)
                assert found[point.name].y == pytest.approx(100 * point.published.accuracy)
        assert "nothing measured here" in figure.panels[0].series[1].label and not figure.panels[0].series[1].marks
        numbers.append(len(found))
    assert numbers == [8, 3, 3] and sum(numbers) == len(paper_points())
    places = make_paper_figure("table2", Sources(Path("nowhere")))
    assert marks(places, 0, 0)["vgg-gmp-lr"] == pytest.approx((0.629533610, 52.0))


def test_a_folder_of_images_can_be_the_data_of_a_table(tmp_path: Path) -> None:
    write_record(tmp_path / "reproduce", "vgg-gmp-lr", 0, 0.66, data="folder:12ab")
    elsewhere = Sources(tmp_path)
    assert make_paper_figure("table1", elsewhere).panels[0].series[1].marks == ()
    assert make_paper_figure("other-data", elsewhere).panels[0].title == "folder:12ab"
    file = write_record(tmp_path / "later" / "reproduce", "vgg-gmp-lr", 0, 0.66, data="folder:12ab")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"data_name": "folder:photos"}))
    assert make_paper_figure("other-data", Sources(tmp_path / "later")).panels[0].title == "folder:photos"
    named = Sources(tmp_path, {"table1": "folder:12ab"})
    assert marks(make_paper_figure("table1", named), 0, 1) == {"vgg-gmp-lr": pytest.approx((2.518134440, 66.0))}
    with pytest.raises(NothingToDraw, match=r"found none in .*/reproduce"):
        make_paper_figure("other-data", named)
    places = Sources(tmp_path, {"table2": "folder:12ab"})
    x, y = marks(make_paper_figure("table2", places), 0, 1)["vgg-gmp-lr"]
    assert y == pytest.approx(66) and x == pytest.approx(2.5, abs=0.1)  # at stride 1, as this network is


def test_costs_in_table_5_are_sums_over_all_crops() -> None:
    figure = make_paper_figure("table5", Sources(RESULTS))
    assert marks(figure, 0, 1)["googlenet-144x"] == pytest.approx((229.112161920, 92.11))
    assert marks(figure, 1, 1)["msra-c"] == pytest.approx((330.603368, 94.29))
    assert {"vgg-11", "googlenet-lr"} <= marks(figure, 0, 0).keys() and "vgg-11, augmented" in marks(figure, 0, 1)


def test_times_from_the_paper_and_measured_times() -> None:
    figure = make_paper_figure("times", Sources(RESULTS))
    paper, layers, networks = figure.panels
    assert len(paper.series[0].marks) == 16 and paper.series[1].marks[0].y == pytest.approx(2.23236)
    dense = {mark.name: mark.x for mark in layers.series[0].marks}
    assert dense["conv2_1"] == pytest.approx(64 * 128 * 9 * 112 * 112 / 1e6)
    assert networks.series[0].label == "inference, commit e696551"
    vgg = [mark.y for mark in networks.series[0].marks if mark.name == "vgg-gmp-lr"]
    assert vgg == [pytest.approx(0.3376, abs=1e-4)]
    assert len(figure.footer) == 3
    assert figure.footer[2].startswith(f"Measured: {RESULTS.as_posix()}/composite_networks.json, commit e696551, ")
    alone = make_paper_figure("times", Sources(Path("nowhere")))
    assert len(alone.panels) == 1 and "Nothing measured here" in alone.footer[1]


def test_gradients_are_those_of_the_file(tmp_path: Path) -> None:
    figure = make_paper_figure("gradients", Sources(RESULTS))
    kept = json.loads((RESULTS / "gradient_variance.json").read_text(encoding="utf-8"))
    wanted = kept["geometric_mean_variance_relative_to_the_last_layer"]["3×1 || 1×3"]["composite"]
    assert [mark.y for mark in figure.panels[0].series[0].marks] == wanted
    with pytest.raises(NothingToDraw, match=r"gradient_variance.json does not exist; make it with"):
        make_paper_figure("gradients", Sources(tmp_path))
    (tmp_path / "gradient_variance.json").write_text("{}")
    with pytest.raises(DataError, match="it has no provenance"):
        make_paper_figure("gradients", Sources(tmp_path))
    known = {name: value for name, value in kept["provenance"].items() if name not in ("commit", "hardware")}
    (tmp_path / "gradient_variance.json").write_text(json.dumps({**kept, "provenance": known}))
    told = make_paper_figure("gradients", Sources(tmp_path)).footer[0]
    assert told.startswith(f"Measured: {tmp_path.as_posix()}/gradient_variance.json, commit unknown, unknown hardware.")


def is_drawn(name: str, folder: Path) -> bool:
    file = folder / f"{name}.png"
    draw_panels(make_paper_figure(name, Sources(RESULTS)), file)
    pixels = np.asarray(Image.open(file).convert("RGB"))
    coloured = (pixels.max(axis=2).astype(int) - pixels.min(axis=2) > 60).sum()
    return bool(100 < coloured < pixels.size / 6) and file.stat().st_size < 150_000


def test_a_figure_is_drawn(tmp_path: Path) -> None:
    assert is_drawn("table4", tmp_path)


@pytest.mark.slow
def test_every_figure_is_drawn(tmp_path: Path) -> None:
    assert {name: is_drawn(name, tmp_path) for name in FIGURES} == dict.fromkeys(FIGURES, True)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_record(tmp_path / "reproduce", "nin", 0, 0.9, data="digits")
    options = ["other-data", "--results", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(["figures", *options, "--format", "svg,pdf", "--json"]) == 0
    (figure,) = json.loads(capsys.readouterr().out)
    assert figure["files"] == [str(tmp_path / "out" / f"other-data.{suffix}") for suffix in ("svg", "pdf")]
    assert figure["panels"][0]["series"][0]["marks"][0]["y"] == 90
    first, second = (Path(file).read_bytes() for file in figure["files"])
    assert first.startswith(b"<?xml") and second.startswith(b"%PDF")
    assert main(["figures", *options, "--format", "svg"]) == 0
    assert "other-data" in capsys.readouterr().out
    assert Path(figure["files"][0]).read_bytes() == first  # the same numbers, the same file
    assert b">multiply-accumulates, millions</text>" in first


def test_dollar_signs_in_names_and_folders_are_plain_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, shown = "net $a_$ b <script>", "net $a_$ b &lt;script&gt;"
    folder = Path(name)
    file = write_record(folder / "reproduce", "nin", 0, 0.9, data=name.replace(" ", "_"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "network": name, "recipe_name": f"_{name}"}))
    shutil.copy(RESULTS / "gradient_variance.json", folder)
    texts = {}
    for figure in ("other-data", "gradients"):
        draw_panels(make_paper_figure(figure, Sources(folder)), tmp_path / "figure.svg")
        texts[figure] = (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert f">{shown}</text>" in texts["other-data"] and shown.replace(" ", "_") in texts["other-data"]
    assert f"recipe _{shown}" in texts["other-data"]
    assert f">Measured: {shown}/gradient_variance.json" in texts["gradients"]


def test_figures_without_numbers_are_left_out_unless_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--results", str(tmp_path), "--out", str(tmp_path)]
    assert main(["figures", "gradients", *options]) == 2
    assert "benchmarks/gradient_variance.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table9"], "unknown figure 'table9'"),
        (["--format", "bmp"], "png, svg, pdf; got 'bmp'"),
        (["--data", "table7=x"], "table1 to table4; got 'table7'"),
        (["--data", "table1"], "--data takes TABLE=NAME; got 'table1'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", *arguments, "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err


def test_an_unknown_figure() -> None:
    with pytest.raises(UnknownName, match=r"did you mean table4\?$"):
        make_paper_figure("tabel4", Sources())


def test_networks_that_are_not_in_the_paper_are_counted(tmp_path: Path) -> None:
    own = Architecture("nin_3x3")
    file = write_record(tmp_path / "reproduce", "nin", 0, 0.9)
    record = json.loads(file.read_text())
    file.write_text(json.dumps({**record, "network": "own", "architecture": own.to_dict()}))
    found = marks(make_paper_figure("table4", Sources(tmp_path)), 0, 1)
    assert found.keys() == {"own"} and found["own"][1] == pytest.approx(90)
