"""Figures made of panels: their marks and lines as data, and functions that draw them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from matplotlib.ticker import MaxNLocator

from lrnas.reporting.figures import style
from lrnas.reporting.figures.labels import add_legend, name_positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lrnas.profiling.profile import Profile

Style = Literal["published", "measured", "beside", "line", "proportion"]
"""Style of marks; "beside" is for marks to compare with, "proportion" is a thin grey line from (0, 0) to a mark."""
MACS_LABEL = "multiply-accumulates of an image, millions"
MAX_COLUMNS = 3
COLOURS = [f"C{i}" for i in range(10) if i not in (3, 7)]
"""Colours of measured series; red is for published marks, grey for marks to compare with."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One network or layer in a panel."""

    name: str
    x: float
    y: float
    error: float | None = None
    """Standard deviation over seeds; None if unknown."""
    number: int = 1
    """Number of seeds."""


@dataclass(frozen=True, slots=True)
class Series:
    """Marks with the same style and one entry in the legend."""

    label: str
    style: Style
    marks: tuple[Mark, ...]
    """The marks; empty if the series is only a legend entry which says that something is missing."""
    is_published: bool = False
    """True for numbers from the paper, False for numbers measured by this project."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    title: str = ""
    log: str = ""
    """Logarithmic axes: "", "x", "y" or "xy"."""
    named: bool = True
    """Whether names are written beside marks."""
    shares: bool = False
    """Whether both axes are shares of a baseline, which is then drawn at (1, 1)."""
    band: tuple[float, float] | None = None
    """Range of good values on the y axis, drawn in grey."""


@dataclass(frozen=True, slots=True)
class PanelFigure:
    """A figure as data, before it is drawn."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    footer: tuple[str, ...]
    """Lines that say where the numbers come from."""
    columns: int | None = None
    """Columns of panels; None: as many as fit on a page. A single column is as wide as two."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@style.in_own_style
def draw_panels(figure: PanelFigure, path: style.Files) -> None:
    """Draw a figure and write it to one or several files.

    Args:
        figure: The figure as data.
        path: File or files to write; the suffix of each gives its format.
    """
    number = len(figure.panels)
    columns = figure.columns or (2 if number == 4 else min(number, MAX_COLUMNS))
    rows = math.ceil(number / columns)
    width = 9.2 if figure.columns == 1 else max(4.6 * columns, 6)
    drawn = style.make_figure(width, 3.9 * rows + 0.6, style.COARSE_DPI)
    grid = drawn.subplots(rows, columns, squeeze=False).flatten()
    drawn.suptitle(style.wrap_text(figure.title, width, 11), fontsize=11)
    style.add_footer(drawn, figure.footer)
    for axes in grid[number:]:
        axes.set_axis_off()
    for axes, panel in zip(grid, figure.panels, strict=False):
        _draw_panel(axes, panel, width / columns - 0.5)
    style.settle_layout(drawn)
    for axes, panel in zip(grid, figure.panels, strict=False):
        add_legend(axes, 7)
        if panel.named:
            name_positions(axes, _named_positions(panel).items())
    style.save_figure(drawn, path)


def plot_times(profile: Profile, path: style.Files) -> None:
    """Draw the time of a forward pass against multiply-accumulates, for layers and for whole networks.

    Args:
        profile: Measured networks; the panel of layers is left out if no layers were measured.
        path: File or files to write; the suffix of each gives its format.
    """
    networks = profile.to_dict()["networks"]
    marks = {
        network["name"]: Mark(network["name"], network["macs"] / 1e6, network["forward_ms"]) for network in networks
    }
    lines = [
        Series(f"time proportional to MACs, from {name}", "proportion", (mark,))
        for name, mark in marks.items()
        if any(network["baseline"] == name for network in networks)
    ]
    measured = Series("measured", "measured", tuple(marks.values()))
    panels = [
        *_layers_panel(networks),
        Panel(MACS_LABEL, "forward pass, ms", (*lines, measured), "networks"),
    ]
    draw_panels(PanelFigure("times", str(profile.conditions), tuple(panels), ()), path)


def _layers_panel(networks: list[dict[str, Any]]) -> list[Panel]:
    """Panel of the layers of profiled networks, or an empty list if no layers were measured."""
    series = [
        Series(
            network["name"],
            "beside" if network["name"] == network["baseline"] else "measured",
            tuple(
                Mark(layer["name"], layer["macs"] / 1e6, layer["forward_ms"])
                for layer in network["layers"]
                if layer["macs"]
            ),
        )
        for network in networks
    ]
    has_layers = any(each.marks for each in series)
    return [Panel(MACS_LABEL, "ms", tuple(series), "layers", log="xy", named=False)] if has_layers else []


def _draw_panel(axes: Axes, panel: Panel, width: float) -> None:
    if panel.band is not None:
        axes.axhspan(*panel.band, color="0.9", label=f"within a factor of {panel.band[1]:g}")
    coloured = [series for series in panel.series if series.style in ("measured", "line")]
    for series in panel.series:
        number = coloured.index(series) if series in coloured else 0
        size = 5 if panel.named else max(8 - number, 4)  # layers that networks share stay visible below each other
        _draw_series(axes, series, number, size, width)
    if panel.shares:
        end = 1.06 * max(1, *(max(mark.x, mark.y) for series in panel.series for mark in series.marks))
        axes.plot([0, end], [0, end], color="0.7", lw=1, zorder=1, label="time proportional to MACs")
        axes.scatter([1], [1], marker="s", color="0.4", s=24, zorder=2, label="the dense network")
        axes.set(xlim=(0, 1.15), ylim=(0, end))
    else:
        axes.margins(0.12 if panel.named else 0.06)
        if panel.named and "x" in panel.log:  # most marks are at one end, and names are wide
            axes.margins(x=0.3 if width < 6 else 0.12)
    if any(series.style == "proportion" for series in panel.series):
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    for name in panel.log:
        axes.set(**{f"{name}scale": "log"})
        style.label_ticks(getattr(axes, f"{name}axis"))
    if any(series.style == "line" for series in panel.series):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_title(style.wrap_text(panel.title, width, 9), fontsize=9)
    axes.set_xlabel(style.escape_text(panel.x_label), fontsize=9)
    axes.set_ylabel(style.escape_text(panel.y_label), fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(True, which="both" if len(panel.log) == 1 else "major", alpha=0.25)


def _draw_series(axes: Axes, series: Series, number: int, size: float, width: float) -> None:
    """Draw a series; `number` is its place among the coloured series of the panel, `size` the size of its marks."""
    marks, label = series.marks, style.legend_text(_label_with_seeds(series), width - 0.7, 7)
    x, y = [mark.x for mark in marks], [mark.y for mark in marks]
    colour = COLOURS[number % len(COLOURS)]
    if not marks:
        axes.plot([], [], " ", label=label)
    elif series.style == "published":
        axes.scatter(x, y, s=44, color="tab:red", marker="D", label=label, zorder=3)
    elif series.style == "beside":
        axes.scatter(x, y, s=30, color="0.45", marker="s", label=label, zorder=2)
    elif series.style == "proportion":
        axes.plot([0, *x], [0, *y], color="0.7", lw=1, zorder=1, label=label)
    elif series.style == "line":
        axes.plot(x, y, marker=".", color=colour, lw=max(3.5 - 0.8 * number, 1), label=label)
    else:
        errors = [math.nan if mark.error is None else mark.error for mark in marks]
        bars = errors if any(mark.error is not None for mark in marks) else None
        axes.errorbar(x, y, bars, fmt="o", ms=size, color=colour, capsize=3, zorder=4, label=label)


def _label_with_seeds(series: Series) -> str:
    """Label of a series, with the number of seeds if it has means over seeds."""
    numbers = {mark.number for mark in series.marks} or {1}
    if numbers == {1}:
        return series.label
    few, most = min(numbers), max(numbers)
    return f"{series.label}\n(mean ± sd over {few if few == most else f'{few} to {most}'} seeds)"


def _named_positions(panel: Panel) -> dict[str, style.Position]:
    """Position of the first mark of every name."""
    marks = [mark for series in panel.series for mark in series.marks if mark.name]
    return {mark.name: (mark.x, mark.y) for mark in reversed(marks)}
