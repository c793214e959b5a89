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

from lrnas.drawing import Place, label_ticks, plain_text, settle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["add_legend", "finish_costs", "name_points"]

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
    taken = [] if legend is None else [legend.get_window_extent(_renderer(axes))]
    named = sorted(named, key=lambda item: -item[1][0])
    centres = axes.transData.transform(np.reshape([point for _, point in named], (-1, 2)))
    for i, (name, point) in enumerate(named):
        others = np.delete(centres, i, axis=0)
        taken.append(_name(axes, plain_text(name), point, others, drawn, taken))


def _name(
    axes: Axes, text: str, point: Place, others: npt.NDArray[np.float64], drawn: _Drawn, taken: list[Bbox]
) -> Bbox:
    """Write a name, and tell where it is; `others` are the points of other names."""
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

    def badness(offset: tuple[int, int]) -> float:
        own = moved(offset)
        beyond = own.x0 < inside.x0 or own.x1 > inside.x1 or own.y0 < inside.y0 or own.y1 > inside.y1
        covered = beyond + sum(own.overlaps(other) for other in taken)
        strange = len(others) > 0 and _distances(own, others).min() < _distances(own, centre)[0]
        if abs(offset[1]) > NEAR:
            leader = Outline([centre[0], ((own.x0 + own.x1) / 2, (own.y0 + own.y1) / 2)])
            around = [Bbox([other - 4 * pixel, other + 4 * pixel]) for other in others]
            strange += sum(leader.intersects_bbox(box) for box in around)
        cost = NEVER * covered + STRANGE * strange + FAR * max(abs(offset[1]) - NEAR, 0)
        return float(cost + drawn.hidden(own))

    best = min(OFFSETS, key=badness)
    leader = {"arrowstyle": "-", "color": "0.6", "lw": 0.5, "shrinkB": 3} if abs(best[1]) > NEAR else None
    side = "left" if best[0] > 0 else "right"
    axes.annotate(text, point, xytext=best, ha=side, arrowprops=leader, **style)
    return moved(best).padded(2 * pixel, 0)


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
    return _Drawn(np.concatenate(marks), [line for line in lines if len(np.asarray(line.vertices)) > 1])


def _figure(axes: Axes) -> Figure:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def _renderer(axes: Axes) -> Any:
    return _figure(axes)._get_renderer()  # type: ignore[attr-defined]
