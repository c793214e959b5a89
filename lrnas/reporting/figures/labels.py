"""Positions of legends and names in a figure, chosen so that they hide as little as possible.

The package adjustText was tried instead: its names touch marks and each other, and its lines to points cross names.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.path import Path as Outline
from matplotlib.transforms import Bbox, ScaledTranslation

from lrnas.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CORNERS: tuple[Any, ...] = (
    *("lower right", "lower left", "upper left", "upper right"),
    *("lower center", "upper center", "center right"),
)
"""Positions of a legend, the preferred first: few networks are at the lower right, expensive and inaccurate."""
OFFSETS = tuple(product((7, -7), (-10, 5, -21, 16, -32, 27, -43, 38, -54, 49)))
"""Offsets of a name from its point, in points, the preferred first."""
NEAR = 12
"""Vertical offset, in points, beyond which a line connects a name to its point."""
EMPTY = ("None", "none", "", " ", None)
"""Matplotlib's values for a line without marks, or marks without a line."""
# Costs of a position, where hiding a mark costs 1:
LINE_HIDDEN = 0.3
AMBIGUOUS = 0.5
"""The name is nearer to another point than to its own, or its line crosses another point."""
NAME_CROSSED = 10.0
"""The line to a point crosses another name or the legend."""
DISTANCE = 0.01
"""Each point of distance."""
OVERLAP = 100.0
"""The name lies on another name or the legend, or outside the axes."""


class _Canvas:
    """Everything on axes that legends and names should not hide, in pixels."""

    def __init__(self, axes: Axes) -> None:
        figure = style.figure_of(axes)
        self.axes = axes
        self.pixel = figure.dpi / 72
        """Pixels in a point."""
        self.renderer = figure._get_renderer()  # type: ignore[attr-defined]
        legend = axes.get_legend()
        texts = [*axes.texts, *([] if legend is None else [legend])]
        self.boxes: list[Any] = [text.get_window_extent(self.renderer) for text in texts]
        """Boxes of the legend, of names and of other texts."""
        self.leaders: list[Outline] = []
        """Lines from names to their points."""
        marks: list[npt.NDArray[np.float64]] = [np.empty((0, 3))]
        lines: list[Outline] = []

        def add_marks(centres: npt.NDArray[np.float64], size: float) -> None:
            marks.append(np.column_stack([centres, np.full(len(centres), self.pixel * (size / 2 + 1))]))

        for collection in axes.collections:
            if isinstance(collection, LineCollection):
                lines += [collection.get_transform().transform_path(path) for path in collection.get_paths()]
            elif isinstance(collection, PathCollection):
                centres: npt.NDArray[np.float64] = np.ma.filled(np.ma.asarray(collection.get_offsets(), float), np.nan)
                size = float(np.sqrt(np.max(collection.get_sizes(), initial=0)))
                add_marks(collection.get_offset_transform().transform(centres), size)
        for line in (line for line in axes.lines if line.get_transform() == axes.transData):  # not across the axes
            path = line.get_transform().transform_path(line.get_path())
            if line.get_marker() not in EMPTY:
                add_marks(np.asarray(path.vertices, float), line.get_markersize())
            if line.get_linestyle() not in EMPTY:
                lines.append(path)
        self.marks = np.unique(np.concatenate(marks), axis=0)  # a ring is at the place of its mark
        """x, y and half the size of every mark."""
        self.lines = [line for line in lines if len(np.asarray(line.vertices)) > 1]

    def hidden_by(self, box: Bbox) -> float:
        """Cost of the marks and lines that a box would hide."""
        x, y, reach = self.marks.T
        hidden = (x - reach < box.x1) & (x + reach > box.x0) & (y - reach < box.y1) & (y + reach > box.y0)
        return float(hidden.sum()) + LINE_HIDDEN * sum(line.intersects_bbox(box, filled=False) for line in self.lines)

    def add_name(
        self, text: str, position: style.Position, centre: npt.NDArray[np.float64], others: npt.NDArray[np.float64]
    ) -> None:
        """Write a name at the position where it hides least.

        Args:
            text: The name.
            position: Its position in the units of the axes.
            centre: The same in pixels, [1, 2].
            others: Positions of all other points, with and without names, in pixels, [number, 2].
        """
        look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "zorder": 5}
        measured = self.axes.annotate(text, position, xytext=(0, 0), **look)
        size = measured.get_window_extent(self.renderer)
        measured.remove()
        inside = self.axes.get_window_extent()
        around_others = [Bbox([other - 4 * self.pixel, other + 4 * self.pixel]) for other in others]

        def move(offset: tuple[int, int]) -> tuple[Bbox, list[Outline]]:
            """Box of the name at an offset, and the line from its nearest corner to the point if it is far away."""
            x, y = offset
            box = size.translated(x * self.pixel - (size.width if x < 0 else 0), y * self.pixel)
            corner = box.x1 if x < 0 else box.x0, box.y1 if y < 0 else box.y0
            return box, [Outline([centre[0], corner])] if abs(y) > NEAR else []

        def cost(offset: tuple[int, int]) -> float:
            box, leaders = move(offset)
            is_outside = box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1
            overlaps = is_outside + box.count_overlaps(self.boxes)
            crossed = sum(leader.intersects_bbox(box) for leader in self.leaders)
            ambiguous = int(len(others) > 0 and _distances(box, others).min() < _distances(box, centre)[0])
            for leader in leaders:
                crossed += sum(leader.intersects_bbox(other) for other in self.boxes)
                ambiguous += sum(leader.intersects_bbox(other) for other in around_others)
            far = DISTANCE * max(abs(offset[1]) - NEAR, 0)
            return float(
                OVERLAP * overlaps + NAME_CROSSED * crossed + AMBIGUOUS * ambiguous + far + self.hidden_by(box)
            )

        x, y = best = min(OFFSETS, key=cost)
        box, leaders = move(best)
        line = {"arrowstyle": "-", "color": "0.6", "lw": 0.5, "shrinkB": 3, "relpos": (float(x < 0), float(y < 0))}
        side = "left" if x > 0 else "right"
        self.axes.annotate(text, position, xytext=best, ha=side, arrowprops=line if leaders else None, **look)
        self.boxes.append(box.padded(2 * self.pixel, 0))
        self.leaders += leaders


def add_legend(axes: Axes, size: float = 8, *, below: bool = False) -> None:
    """Add a legend at the position where it hides least; call `style.settle_layout` first.

    Args:
        axes: Axes on which everything is drawn.
        size: Font size in points.
        below: Whether it is put below the axes if it would hide something everywhere else.
    """
    canvas = _Canvas(axes)
    legend = axes.legend(loc="best", fontsize=size)

    def cost(corner: Any) -> float:
        legend.set_loc(corner)
        box = legend.get_window_extent(canvas.renderer)
        return canvas.hidden_by(box) + box.count_overlaps(canvas.boxes)

    best = min(CORNERS, key=cost)
    legend.set_loc(best)
    if below and cost(best):
        _put_below(axes, canvas, size)


def _put_below(axes: Axes, canvas: _Canvas, size: float) -> None:
    """Put the legend below the label of the x axis, in as many columns as fit, and compute the layout again."""
    figure, label = style.figure_of(axes), axes.xaxis.get_tightbbox(canvas.renderer)
    assert label is not None
    down = ScaledTranslation(0, (label.y0 - axes.bbox.y0) / figure.dpi, figure.dpi_scale_trans)
    for columns in (3, 2, 1):
        look: dict[str, Any] = {"loc": "upper center", "fontsize": size, "ncols": columns}
        legend = axes.legend(bbox_to_anchor=(0.5, 0), bbox_transform=axes.transAxes + down, **look)
        if legend.get_window_extent(canvas.renderer).width <= axes.bbox.width:
            break
    figure.set_layout_engine("constrained")
    style.settle_layout(figure)


def name_positions(
    axes: Axes, named: Iterable[tuple[str, style.Position]], unnamed: Iterable[style.Position] = ()
) -> None:
    """Write names beside positions, from right to left; call `style.settle_layout` first.

    Args:
        axes: Axes on which everything is drawn, with the legend.
        named: Names and their positions.
        unnamed: Positions without a name, to which no name should seem to belong.
    """
    canvas = _Canvas(axes)
    named = sorted(named, key=lambda item: -item[1][0])
    centres = axes.transData.transform(np.reshape([*(position for _, position in named), *unnamed], (-1, 2)))
    for i, (name, position) in enumerate(named):
        canvas.add_name(style.escape_text(name), position, centres[i : i + 1], np.delete(centres, i, axis=0))


def _distances(box: Bbox, points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Distances of points from the edge of a box; 0 inside."""
    x, y = points.T
    distances: npt.NDArray[np.float64] = np.hypot(x - x.clip(box.x0, box.x1), y - y.clip(box.y0, box.y1))
    return distances
