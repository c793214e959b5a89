"""Figures for print: that they are written in every form, show what they should, and say when there is nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from filled_studies import fill_study
from matplotlib.axes import Axes
from PIL import Image
from test_report import some_finals

from lrnas.errors import LrnasError
from lrnas.figures import (
    check_figure_file,
    plot_allocation,
    plot_curves,
    plot_finals,
    plot_fronts,
    plot_history,
    plot_importances,
)
from lrnas.plots import name_points, plot_front
from lrnas.record import Record
from lrnas.report import Report, make_report


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder = tmp_path_factory.mktemp("studies")
    where = f"journal:{folder / 'journal'}"
    first = fill_study(folder, 20, name="a $b$ <c>", storage=where, stopped=0.0)
    return [first, fill_study(folder, 8, name="two", storage=where, seed=1)]


@pytest.fixture(scope="module")
def report(records: list[Record]) -> Report:
    return make_report(records, retrained=[some_finals(records[0])])


@pytest.mark.slow
def test_figures_tell_what_they_show(report: Report, records: list[Record], tmp_path: Path) -> None:
    study = report.studies[0]
    texts = {}
    for name, draw in {
        "fronts": lambda file: plot_fronts(report, file),
        "history": lambda file: plot_history(report.studies, file),
        "curves": lambda file: plot_curves(study, file),
        "allocation": lambda file: plot_allocation(study, file, report.axis),
        "importances": lambda file: plot_importances(study, file),
        "finals": lambda file: plot_finals(report, file),
    }.items():
        draw(tmp_path / f"{name}.svg")
        texts[name] = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    assert "a $b$ &lt;c&gt;" in texts["fronts"] and "two" in texts["fronts"] and "nin-c3-lr" in texts["fronts"]
    assert "hours of training" in texts["history"] and "rungs" in texts["curves"]
    assert all(name in texts["allocation"] for name in ("conv1", "conv3", "k×k", "join"))
    assert "accuracy" in texts["importances"] and "conv1.width" in texts["importances"]
    assert "20 networks trained in full, 20 of 22 parameters" in texts["importances"]
    assert "mean ± sd over seeds" in texts["finals"]
    plot_front(records[0], tmp_path / "one.svg", "params")
    assert "parameters, millions" in (tmp_path / "one.svg").read_text(encoding="utf-8")


def test_every_final_has_its_own_place(records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same networks in two retrainings, with other accuracies; one seed has no bar, and names no mathematics."""
    first = some_finals(records[0], point="$x$ and $y$")
    lower = [replace(final, accuracies=tuple(value / 2 for value in final.accuracies)) for final in first.finals]
    two = make_report(records, retrained=[first, replace(first, study="two", finals=tuple(lower))])
    drawn: list[Axes] = []
    monkeypatch.setattr("lrnas.figures.name_points", lambda axes, named: drawn.append(axes) or name_points(axes, named))
    plot_finals(two, tmp_path / "finals.svg")
    (axes,) = drawn
    tested = [final for final in first.finals if final.accuracies]
    places = [(final.macs / 1e6, share * final.mean) for share in (100, 50) for final in tested]
    assert [tuple(note.xy) for note in sorted(axes.texts, key=lambda note: (-note.xy[1] // 60, note.xy[0]))] == [
        pytest.approx(place) for place in places
    ]
    bars = [bar for container in axes.containers for bar in container.lines[2][0].get_segments()]
    assert [len(bar) for bar in bars] == [2, 0, 2, 2, 0, 2]
    assert len([line for line in axes.lines if line.get_drawstyle() == "steps-post"]) == 2
    text = (tmp_path / "finals.svg").read_text(encoding="utf-8")
    assert text.count("$x$ and $y$") == len(places) and "two@paper, the paper&#x27;s" in text.replace("'", "&#x27;")


def test_figures_come_in_three_forms(report: Report, tmp_path: Path) -> None:
    plot_history(report.studies, tmp_path / "history.pdf")
    assert (tmp_path / "history.pdf").read_bytes().startswith(b"%PDF")
    plot_history(report.studies, tmp_path / "history.png")
    with Image.open(tmp_path / "history.png") as image:
        assert image.size == (1350, 600)
    with pytest.raises(LrnasError, match=r"a figure is a \.pdf, \.png or \.svg; got 'x\.gif'"):
        check_figure_file(Path("x.gif"))


def test_studies_with_nothing_to_show(tmp_path: Path) -> None:
    report = make_report([fill_study(tmp_path, 0, storage=f"journal:{tmp_path / 'journal'}")])
    file = tmp_path / "figure.png"
    for draw, message in (
        (lambda: plot_fronts(report, file), "no network is trained in full yet"),
        (lambda: plot_history(report.studies, file), "no network is trained in full yet"),
        (lambda: plot_curves(report.studies[0], file), "no curve to show"),
        (lambda: plot_allocation(report.studies[0], file, report.axis), "no front to show"),
        (lambda: plot_importances(report.studies[0], file), "too few networks"),
    ):
        with pytest.raises(LrnasError, match=message):
            draw()
    assert not file.exists()
