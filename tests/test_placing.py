"""Legends and names in pictures: that they hide neither marks nor each other, where there is room."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from lrnas.drawing import make_figure, settle
from lrnas.placing import add_legend, name_points


def boxes(axes: Axes) -> list[Bbox]:
    """Of names, without the lines to their points."""
    renderer = axes.figure._get_renderer()
    found = []
    for note in axes.texts:
        note.arrow_patch = None
        found.append(note.get_window_extent(renderer))
    return found


def test_names_hide_neither_marks_nor_names_nor_the_legend() -> None:
    figure = make_figure(7, 5)
    axes = figure.subplots()
    random = np.random.default_rng(0)
    x, y = random.uniform(0, 10, (2, 40))
    axes.scatter(x, y, s=26)
    axes.step([0, 5, 10], [1, 6, 9], where="post")
    named = [(f"network-{i}", (x[i], y[i])) for i in range(12)]
    settle(figure)
    axes.plot([], [], "o", label="some points")
    add_legend(axes)
    name_points(axes, named)
    names = boxes(axes)
    assert len(names) == 12
    legend = axes.get_legend().get_window_extent()
    marks = axes.transData.transform(np.stack([x, y], axis=1))
    for i, box in enumerate(names):
        assert not any(box.contains(*mark) for mark in marks)
        assert not any(box.overlaps(other) for other in [*names[:i], legend])
        assert axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 and axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1


def test_a_name_is_nearest_to_its_own_point() -> None:
    """Two points side by side: neither name stands where it would be read as the other's."""
    figure = make_figure(7, 5)
    axes = figure.subplots()
    places = {"left": (5.0, 5.0), "right": (5.25, 5.0)}
    axes.scatter(*zip(*places.values(), strict=True))
    axes.set(xlim=(0, 10), ylim=(0, 10))
    settle(figure)
    name_points(axes, places.items())
    for note, box in zip(axes.texts, boxes(axes), strict=True):
        middle = (box.x0 + box.x1) / 2
        away = {name: abs(axes.transData.transform(place)[0] - middle) for name, place in places.items()}
        assert min(away, key=lambda name: away[name]) == note.get_text()


@pytest.mark.parametrize("free", ["lower right", "lower left", "upper left", "upper right"])
def test_legends_go_where_nothing_is(free: str) -> None:
    """Also bars of errors count."""
    figure = make_figure(5, 4)
    axes = figure.subplots()
    corners = {f"{y} {x}": (i, j) for i, x in enumerate(("left", "right")) for j, y in enumerate(("lower", "upper"))}
    places = [place for name, place in corners.items() if name != free]
    axes.errorbar(*zip(*places, strict=True), 0.2, fmt="o", label="points")
    axes.set(xlim=(-0.2, 1.2), ylim=(-0.2, 1.2))
    settle(figure)
    add_legend(axes)
    legend = axes.get_legend().get_window_extent()
    centre = axes.transAxes.inverted().transform(((legend.x0 + legend.x1) / 2, (legend.y0 + legend.y1) / 2))
    assert (centre > 0.5).tolist() == [corners[free][0] == 1, corners[free][1] == 1]
