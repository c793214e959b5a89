"""Where legends and names go in a picture: where they hide least."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.path import Path as Outline
from matplotlib.transforms import Bbox

from lrnas.reporting.figures.style import Place, label_ticks, plain_text, settle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CORNERS: tuple[Any, ...] = (
    "lower right",
    "lower left",
    "upper left",
    "upper right",
    "lower center",
    "upper center",
    "center right",
)
"""Networks that cost much and know little are few: the first is mostly free."""
OFFSETS = tuple(product((7, -7), (-10, 5, -21, 16, -32, 27, -43, 38, -54, 49)))
"""Of a name from its point, in points, the best first; those that are farther than NEAR get a line to it."""
NEAR = 12
LINE = 0.3
"""How bad it is to cross a line; to hide a mark is 1."""
STRANGE = 0.5
"""How bad it is to be nearer to the point of another name, or to have a line to its own across that one."""
CROSSED = 10.0
"""How bad it is that the line to a point crosses another name, or the legend."""
FAR = 0.01
"""How bad it is to be a point farther away."""
NOTHING = ("None", "none", "", " ", None)
"""Matplotlib's words for a line without marks, or marks without a line."""
NEVER = 100.0
"""How bad it is to lie on another name, or beyond the axes."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What there is on axes, in pixels."""

    marks: npt.NDArray[np.float64]
    """Left, bottom, right, top."""
    lines: list[Outline]

    def hidden(self, box: Bbox) -> float:
        """What a box would hide."""
        left, bottom, right, top = self.marks.T
        marks = (left < box.x1) & (right > box.x0) & (bottom < box.y1) & (top > box.y0)
        return float(marks.sum()) + LINE * sum(line.intersects_bbox(box, filled=False) for line in self.lines)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What names have taken, in pixels, as they are written one after the other."""

    boxes: list[Bbox]
    """Of names, and of the legend."""
    leaders: list[Outline]
    """Lines from names to points."""


def finish_costs(axes: Axes, named: Iterable[tuple[str, Place]], **texts: Any) -> None:
    """What pictures of accuracy against cost have in common; to be called when all is drawn."""
    axes.set(xscale="log", **texts)
    label_ticks(axes.xaxis)
    axes.grid(True, which="both", alpha=0.25)
    settle(_figure(axes))
    add_legend(axes)
    name_points(axes, named)


def add_legend(axes: Axes, size: float = 8) -> None:
    """In the corner where it hides least; the figure must be settled."""
    drawn = _look(axes)
    legend = axes.legend(loc="best", fontsize=size)
    renderer = _renderer(axes)

    def hidden(corner: Any) -> float:
        legend.set_loc(corner)
        return drawn.hidden(legend.get_window_extent(renderer))

    legend.set_loc(min(CORNERS, key=hidden))


def name_points(axes: Axes, named: Iterable[tuple[str, Place]]) -> None:
    """Write names beside points, the rightmost first; the figure must be settled."""
    drawn = _look(axes)
    legend = axes.get_legend()
    taken = _Taken([] if legend is None else [legend.get_window_extent(_renderer(axes))], [])
    named = sorted(named, key=lambda item: -item[1][0])
    centres = axes.transData.transform(np.reshape([point for _, point in named], (-1, 2)))
    for i, (name, point) in enumerate(named):
        others = np.delete(centres, i, axis=0)
        _name(axes, plain_text(name), point, others, drawn, taken)


def _name(axes: Axes, text: str, point: Place, others: npt.NDArray[np.float64], drawn: _Drawn, taken: _Taken) -> None:
    """Write a name, and add it to what is taken; `others` are the points of other names."""
    pixel = _figure(axes).dpi / 72
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "zorder": 5}
    measured = axes.annotate(text, point, xytext=(0, 0), **style)
    box = measured.get_window_extent(_renderer(axes))
    measured.remove()
    inside = axes.get_window_extent()
    centre = axes.transData.transform([point])

    def moved(offset: tuple[int, int]) -> Bbox:
        x, y = offset
        return box.translated(x * pixel - (box.width if x < 0 else 0), y * pixel)

    def leader(offset: tuple[int, int]) -> Outline:
        own = moved(offset)
        x, y = _near_corner(offset)
        return Outline([centre[0], (own.x0 + x * own.width, own.y0 + y * own.height)])

    def badness(offset: tuple[int, int]) -> float:
        own = moved(offset)
        beyond = own.x0 < inside.x0 or own.x1 > inside.x1 or own.y0 < inside.y0 or own.y1 > inside.y1
        covered = beyond + sum(own.overlaps(other) for other in taken.boxes)
        crossed = sum(line.intersects_bbox(own) for line in taken.leaders)
        strange = len(others) > 0 and _distances(own, others).min() < _distances(own, centre)[0]
        if _is_far(offset):
            line = leader(offset)
            crossed += sum(line.intersects_bbox(other) for other in taken.boxes)
            around = [Bbox([other - 4 * pixel, other + 4 * pixel]) for other in others]
            strange += sum(line.intersects_bbox(box) for box in around)
        cost = NEVER * covered + CROSSED * crossed + STRANGE * strange + FAR * max(abs(offset[1]) - NEAR, 0)
        return float(cost + drawn.hidden(own))

    best = min(OFFSETS, key=badness)
    side = "left" if best[0] > 0 else "right"
    look = {"arrowstyle": "-", "color": "0.6", "lw": 0.5, "shrinkB": 3, "relpos": _near_corner(best)}
    axes.annotate(text, point, xytext=best, ha=side, arrowprops=look if _is_far(best) else None, **style)
    taken.boxes.append(moved(best).padded(2 * pixel, 0))
    taken.leaders.extend([leader(best)] if _is_far(best) else [])


def _is_far(offset: tuple[int, int]) -> bool:
    """Whether a name gets a line to its point."""
    return abs(offset[1]) > NEAR


def _near_corner(offset: tuple[int, int]) -> tuple[float, float]:
    """The corner of a name that is nearest to its point, as shares of the name's width and height."""
    x, y = offset
    return float(x < 0), float(y < 0)


def _distances(box: Bbox, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """From the edge of a box."""
    x, y = points.T
    across = np.maximum(np.maximum(box.x0 - x, x - box.x1), 0)
    away: npt.NDArray[np.float64] = np.hypot(across, np.maximum(np.maximum(box.y0 - y, y - box.y1), 0))
    return away


def _look(axes: Axes) -> _Drawn:
    """Marks of scatters and lines; lines, and the bars of errors."""
    pixel = _figure(axes).dpi / 72
    marks, lines = [np.empty((0, 4))], []

    def add_marks(centres: npt.NDArray[np.float64], size: float) -> None:
        x, y = centres.T
        reach = pixel * (size / 2 + 1)
        marks.append(np.stack([x - reach, y - reach, x + reach, y + reach], axis=1))

    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            lines += [collection.get_transform().transform_path(path) for path in collection.get_paths()]
        elif isinstance(collection, PathCollection):
            centres: npt.NDArray[np.float64] = np.ma.filled(np.ma.asarray(collection.get_offsets(), float), np.nan)
            size = float(np.sqrt(np.max(collection.get_sizes(), initial=0)))
            add_marks(collection.get_offset_transform().transform(centres), size)
    for line in axes.lines:
        path = line.get_transform().transform_path(line.get_path())
        if line.get_marker() not in NOTHING:
            add_marks(np.asarray(path.vertices, float), line.get_markersize())
        if line.get_linestyle() not in NOTHING:
            lines.append(path)
    once = np.unique(np.concatenate(marks), axis=0)  # a ring around a mark is where the mark is
    return _Drawn(once, [line for line in lines if len(np.asarray(line.vertices)) > 1])


def _figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def _renderer(axes: Axes) -> Any:
    return _figure(axes)._get_renderer()  # type: ignore[attr-defined]
