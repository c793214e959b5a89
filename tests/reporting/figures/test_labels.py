"""Legends and names hide neither marks nor each other, if there is room."""

import csv
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from lrnas.reporting.figures.labels import _distances, add_legend, name_positions
from lrnas.reporting.figures.report_plots import FRONT_SIZE
from lrnas.reporting.figures.style import Position, label_ticks, make_figure, settle_layout

RESULTS = Path(__file__).parents[3] / "results"


def boxes(axes: Axes) -> list[Bbox]:
    """Boxes of names, without the lines to their points."""
    axes.figure.draw_without_rendering()
    renderer = axes.figure._get_renderer()
    return [Text.get_window_extent(note, renderer) for note in axes.texts]


def leaders(axes: Axes) -> dict[str, Outline]:
    """The lines from names to points, as they are drawn."""
    axes.figure.draw_without_rendering()
    arrows = {note.get_text(): note.arrow_patch for note in axes.texts if note.arrow_patch is not None}
    return {name: arrow.get_transform().transform_path(arrow.get_path()) for name, arrow in arrows.items()}


def crossings(axes: Axes) -> list[tuple[str, str]]:
    """Pairs of names: the line of the first one crosses the second one."""
    lines = leaders(axes)
    names = {note.get_text(): box for note, box in zip(axes.texts, boxes(axes), strict=True)}
    return [
        (own, other)
        for own, line in lines.items()
        for other, box in names.items()
        if other != own and line.intersects_bbox(box, filled=False)
    ]


def test_names_hide_neither_marks_nor_names_nor_the_legend() -> None:
    figure = make_figure(7, 5)
    axes = figure.subplots()
    random = np.random.default_rng(0)
    x, y = random.uniform(0, 10, (2, 40))
    axes.scatter(x, y, s=26)
    axes.step([0, 5, 10], [1, 6, 9], where="post")
    named = [(f"network-{i}", (x[i], y[i])) for i in range(12)]
    settle_layout(figure)
    axes.plot([], [], "o", label="some points")
    add_legend(axes)
    name_positions(axes, named)
    names = boxes(axes)
    assert len(names) == 12
    legend = axes.get_legend().get_window_extent()
    marks = axes.transData.transform(np.stack([x, y], axis=1))
    for i, box in enumerate(names):
        assert not any(box.contains(*mark) for mark in marks)
        assert not any(box.overlaps(other) for other in [*names[:i], legend])
        assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1


def test_a_name_is_nearest_to_its_own_point() -> None:
    """With two points side by side, neither name is placed where it would be read as the other's."""
    figure = make_figure(7, 5)
    axes = figure.subplots()
    places = {"left": (5.0, 5.0), "right": (5.25, 5.0)}
    axes.scatter(*zip(*places.values(), strict=True))
    axes.set(xlim=(0, 10), ylim=(0, 10))
    settle_layout(figure)
    name_positions(axes, places.items())
    for note, box in zip(axes.texts, boxes(axes), strict=True):
        middle = (box.x0 + box.x1) / 2
        away = {name: abs(axes.transData.transform(place)[0] - middle) for name, place in places.items()}
        assert min(away, key=lambda name: away[name]) == note.get_text()


@pytest.mark.parametrize("is_known", [False, True])
def test_a_name_is_nearest_to_its_own_point_also_beside_a_point_without_name(is_known: bool) -> None:
    figure = make_figure(7, 5)
    axes = figure.subplots()
    own, other = (5.0, 5.0), (5.3, 4.8)
    axes.set(xlim=(0, 10), ylim=(0, 10))
    settle_layout(figure)
    name_positions(axes, [("own", own)], [other] if is_known else [])
    (box,) = boxes(axes)
    near, far = _distances(box, axes.transData.transform([own, other]))
    assert (near < far) == is_known


def test_lines_to_points_do_not_cross_other_names() -> None:
    """A search in which two of the paper's networks lie side by side, among others, once had such a line."""
    with (RESULTS / "search" / "vgg11-cifar10.csv").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["status"] == "completed"]
    places: dict[str, list[Position]] = {"reference": [], "found": [], "front": []}
    named: list[tuple[str, Position]] = []
    for row in rows:
        place = int(row["macs"]) / 1e6, 100 * float(row["accuracy"])
        is_reference = row["point"].startswith("vgg")
        named += [(row["point"], place)] if is_reference else []
        places["reference" if is_reference else "found"].append(place)
        places["front"] += [place] if row["on_front"] == "True" else []
    figure = make_figure(*FRONT_SIZE)
    axes = figure.subplots()
    axes.scatter(*zip(*places["found"], strict=True), s=26, label="trained in full")
    axes.scatter(*zip(*places["reference"], strict=True), s=48, marker="D", label="reference")
    axes.step(*zip(*sorted(places["front"]), strict=True), where="post", label="front")
    axes.set_ylim(66.2, 89.3)
    axes.set(xscale="log", xlabel="cost", ylabel="accuracy", title="vgg11-cifar10")
    label_ticks(axes.xaxis)
    settle_layout(figure)
    add_legend(axes)
    name_positions(axes, named)
    assert len(axes.texts) == 8 and leaders(axes)  # some names have lines, else nothing could cross
    assert crossings(axes) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lines_to_points_do_not_cross_names_in_a_crowd(seed: int) -> None:
    """The order in which names and lines are placed does not matter."""
    figure = make_figure(7, 5)
    axes = figure.subplots()
    places = np.random.default_rng(seed).normal(5, 0.7, (9, 2))
    axes.scatter(*places.T)
    axes.set(xlim=(0, 10), ylim=(0, 10))
    settle_layout(figure)
    name_positions(axes, [(f"network-{i}", (x, y)) for i, (x, y) in enumerate(places)])
    assert leaders(axes)
    assert crossings(axes) == []


def test_a_legend_without_a_free_place_is_below() -> None:
    figure = make_figure(7.5, 5)
    axes = figure.subplots()
    axes.scatter(*np.random.default_rng(0).uniform(0, 10, (2, 200)), label="points")
    axes.set_xlabel("cost")
    for number in range(3):
        axes.plot([], [], label=f"a line with a long name in the legend, {number}")
    settle_layout(figure)
    add_legend(axes, below=True)
    figure.draw_without_rendering()
    legend, label = axes.get_legend().get_window_extent(), axes.xaxis.label.get_window_extent()
    assert legend.y0 >= 0 and legend.y1 <= label.y0 and legend.x0 >= 0 and legend.x1 <= figure.bbox.x1
    assert axes.bbox.height > 0.6 * figure.bbox.height


@pytest.mark.parametrize("free", ["lower right", "lower left", "upper left", "upper right"])
def test_legends_are_placed_where_nothing_is_drawn(free: str) -> None:
    """Error bars are avoided too."""
    figure = make_figure(5, 4)
    axes = figure.subplots()
    corners = {f"{y} {x}": (i, j) for i, x in enumerate(("left", "right")) for j, y in enumerate(("lower", "upper"))}
    places = [place for name, place in corners.items() if name != free]
    axes.errorbar(*zip(*places, strict=True), 0.2, fmt="o", label="points")
    axes.set(xlim=(-0.2, 1.2), ylim=(-0.2, 1.2))
    settle_layout(figure)
    add_legend(axes)
    legend = axes.get_legend().get_window_extent()
    centre = axes.transAxes.inverted().transform(((legend.x0 + legend.x1) / 2, (legend.y0 + legend.y1) / 2))
    assert (centre > 0.5).tolist() == [corners[free][0] == 1, corners[free][1] == 1]
