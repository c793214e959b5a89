"""The paper's figures, drawn: by name, from what was published and what was measured here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from lrnas.drawing import Files, add_footer, label_text, make_figure, name_points, plain_text, save_figure
from lrnas.errors import UnknownName
from lrnas.figure_data import Panel, PaperFigure, Places, Series
from lrnas.table_figures import other_data, state_of_the_art, table_figure
from lrnas.time_figures import gradients, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

__all__ = ["FIGURES", "draw_paper_figure", "make_paper_figure"]

FIGURES: dict[str, Callable[[Places], PaperFigure]] = {
    **{name: table_figure(name) for name in ("table1", "table2", "table3", "table4")},
    "table5": state_of_the_art,
    "other-data": other_data,
    "times": times,
    "gradients": gradients,
}
MOST_COLUMNS = 3
COLOURS = [f"C{i}" for i in range(10) if i not in (3, 7)] * 4
"""Red and grey have a meaning of their own."""


def make_paper_figure(name: str, places: Places) -> PaperFigure:
    """A figure by its name."""
    if name not in FIGURES:
        raise UnknownName("figure", name, FIGURES)
    return FIGURES[name](places)


def draw_paper_figure(figure: PaperFigure, path: Files) -> None:
    """Draw a figure as the suffixes of files say."""
    number = len(figure.panels)
    columns = figure.columns or (2 if number == 4 else min(number, MOST_COLUMNS))
    rows = math.ceil(number / columns)
    width = 9.2 if figure.columns == 1 else max(4.6 * columns, 6)
    drawn = make_figure(width, 3.9 * rows + 0.6)
    grid = drawn.subplots(rows, columns, squeeze=False).flatten()
    drawn.suptitle(plain_text(figure.title), fontsize=11)
    add_footer(drawn, figure.footer)
    for axes in grid[number:]:
        axes.set_axis_off()
    for axes, panel in zip(grid, figure.panels, strict=False):
        _draw(axes, panel)
    drawn.draw_without_rendering()
    drawn.set_layout_engine("none")  # everything has its place, and names find theirs without moving it
    for axes, panel in zip(grid, figure.panels, strict=False):
        if panel.named:
            name_points(axes, _places(panel))
    save_figure(drawn, path)


def _draw(axes: Axes, panel: Panel) -> None:
    if panel.band is not None:
        axes.axhspan(*panel.band, color="0.9", label=f"within a factor of {panel.band[1]:g}")
    coloured = [series for series in panel.series if series.style in ("measured", "line")]
    for series in panel.series:
        _draw_series(axes, series, coloured.index(series) if series in coloured else 0)
    if panel.shares:
        far = 1.06 * max(1, *(max(mark.x, mark.y) for series in panel.series for mark in series.marks))
        axes.plot([0, far], [0, far], color="0.7", lw=1, zorder=1, label="time goes with MACs")
        axes.scatter([1], [1], marker="s", color="0.4", s=24, zorder=2, label="the dense network")
        axes.set(xlim=(0, 1.15), ylim=(0, far))
    else:
        axes.margins(0.12 if panel.named else 0.06)
    for name in panel.log:
        axes.set(**{f"{name}scale": "log"})
        _label_ticks(getattr(axes, f"{name}axis"))
    if any(series.style == "line" for series in panel.series):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(plain_text(panel.title), fontsize=9)
    axes.set_xlabel(plain_text(panel.x_label), fontsize=9)
    axes.set_ylabel(plain_text(panel.y_label), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, which="both" if len(panel.log) == 1 else "major", alpha=0.25)
    axes.legend(fontsize=7, loc="best")


def _label_ticks(axis: Axis) -> None:
    """Plain numbers, and some between the powers of ten, where there are few of these."""
    low, high = axis.get_view_interval()
    if high < 1e4 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 10 * low else (1, 2, 3, 5, 7)))
        axis.set_major_formatter(lambda value, position: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())


def _draw_series(axes: Axes, series: Series, number: int) -> None:
    marks, label = series.marks, label_text(series.label)
    if not marks:
        axes.plot([], [], " ", label=label)
        return
    x, y = [mark.x for mark in marks], [mark.y for mark in marks]
    if series.style == "published":
        axes.scatter(x, y, s=44, color="tab:red", marker="D", label=label, zorder=3)
    elif series.style == "beside":
        axes.scatter(x, y, s=30, color="0.45", marker="s", label=label, zorder=2)
    elif series.style == "line":
        axes.plot(x, y, marker=".", color=COLOURS[number], lw=max(3.5 - 0.8 * number, 1), label=label)
    else:
        errors = [math.nan if mark.error is None else mark.error for mark in marks]
        axes.errorbar(
            x,
            y,
            errors if any(mark.error is not None for mark in marks) else None,
            fmt="o",
            ms=5,
            color=COLOURS[number],
            capsize=3,
            zorder=4,
            label=label_text(_with_seeds(series)),
        )


def _with_seeds(series: Series) -> str:
    """A label that says of how many seeds the marks are, where marks are of seeds."""
    numbers = {mark.number for mark in series.marks}
    if numbers == {1}:
        return series.label
    few, most = min(numbers), max(numbers)
    return f"{series.label}\n(mean ± sd over {few if few == most else f'{few} to {most}'} seeds)"


def _places(panel: Panel) -> dict[str, tuple[float, float]]:
    """One for each name: the published mark's, where there is one."""
    found: dict[str, tuple[float, float]] = {}
    for series in panel.series:
        for mark in series.marks:
            found.setdefault(mark.name, (mark.x, mark.y))
    return found
