"""The paper's figures, drawn: by name, from what was published and what was measured here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from matplotlib.ticker import MaxNLocator

from lrnas.errors import UnknownName
from lrnas.reporting.figures.labels import add_legend, name_points
from lrnas.reporting.figures.style import (
    COARSE,
    Files,
    add_footer,
    fit_text,
    label_text,
    label_ticks,
    make_figure,
    plain_text,
    save_figure,
    settle,
)
from lrnas.reporting.paper.data import Panel, PaperFigure, Places, Series
from lrnas.reporting.paper.tables import other_data, state_of_the_art, table_figure
from lrnas.reporting.paper.times import gradients, times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES: dict[str, Callable[[Places], PaperFigure]] = {
    **{name: table_figure(name) for name in ("table1", "table2", "table3", "table4")},
    "table5": state_of_the_art,
    "other-data": other_data,
    "times": times,
    "gradients": gradients,
}
MOST_COLUMNS = 3
COLOURS = [f"C{i}" for i in range(10) if i not in (3, 7)]
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
    drawn = make_figure(width, 3.9 * rows + 0.6, COARSE)
    grid = drawn.subplots(rows, columns, squeeze=False).flatten()
    drawn.suptitle(plain_text(figure.title), fontsize=11)
    add_footer(drawn, figure.footer)
    for axes in grid[number:]:
        axes.set_axis_off()
    for axes, panel in zip(grid, figure.panels, strict=False):
        _draw(axes, panel, width / columns - 0.5)
    settle(drawn)
    for axes, panel in zip(grid, figure.panels, strict=False):
        add_legend(axes, 7)
        if panel.named:
            name_points(axes, _places(panel).items())
    save_figure(drawn, path)


def _draw(axes: Axes, panel: Panel, width: float) -> None:
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
        if panel.named and "x" in panel.log:  # most are at one end, and names are wide
            axes.margins(x=0.3 if width < 6 else 0.12)
    for name in panel.log:
        axes.set(**{f"{name}scale": "log"})
        label_ticks(getattr(axes, f"{name}axis"))
    if any(series.style == "line" for series in panel.series):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(fit_text(panel.title, width, 9), fontsize=9)
    axes.set_xlabel(plain_text(panel.x_label), fontsize=9)
    axes.set_ylabel(plain_text(panel.y_label), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, which="both" if len(panel.log) == 1 else "major", alpha=0.25)


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
        axes.plot(x, y, marker=".", color=COLOURS[number % len(COLOURS)], lw=max(3.5 - 0.8 * number, 1), label=label)
    else:
        errors = [math.nan if mark.error is None else mark.error for mark in marks]
        axes.errorbar(
            x,
            y,
            errors if any(mark.error is not None for mark in marks) else None,
            fmt="o",
            ms=5,
            color=COLOURS[number % len(COLOURS)],
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
