"""Helpers for all figures: formats, sizes, texts, and writing files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import matplotlib.style
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from lrnas._files import write_atomically
from lrnas.errors import LrnasError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

FORMATS = ("png", "svg", "pdf")
DPI = 150
"""Resolution of PNG files: small letters stay readable in print."""
COARSE_DPI = 110
"""Resolution of wide figures: 10 inches are as wide as a page of the documentation."""
NOTEBOOK_DPI = 90
"""Resolution of figures in notebooks: 7.5 inches are as wide as a cell."""
SAVE_OPTIONS: Any = {"svg.hashsalt": "lrnas", "svg.fonttype": "none", "pdf.fonttype": 42}
"""Options of Matplotlib that keep text as text and make files reproducible."""
NO_DATES: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata by format that leave out the date."""
FOOTER_SIZE = 6.5
"""Font size of footers, in points."""
Files = Path | Sequence[Path]
"""One file, several for the same figure in several formats, or none."""
in_own_style = matplotlib.style.context("default")
"""Decorator for functions that draw: styles that other packages set, as Optuna does, change nothing."""
Position = tuple[float, float]
"""x and y in the units of the axes."""


def check_format(name: Path | str) -> str:
    """Format of a figure.

    Args:
        name: A file, whose suffix gives the format, or the format itself.

    Returns:
        One of `FORMATS`.
    """
    found = (name.suffix if isinstance(name, Path) else name).removeprefix(".").lower()
    if found not in FORMATS:
        raise LrnasError(f"the format of a figure must be {', '.join(FORMATS)}; got {str(name)!r}; choose one of these")
    return found


class NotebookFigure(Figure):
    """Figure that notebooks show, whether pyplot is loaded or not."""

    @in_own_style
    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=NOTEBOOK_DPI)
        return buffer.getvalue()


def make_figure(width: float, height: float, dpi: float = DPI) -> Figure:
    """Empty figure with a width and height in inches. It opens no window and need not be closed."""
    return NotebookFigure(figsize=(width, height), dpi=dpi, layout="constrained")


def figure_of(axes: Axes) -> Figure:
    """The figure that axes belong to."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def add_footer(figure: Figure, lines: Sequence[str]) -> None:
    """Write lines in small letters below a figure, wrapped to its width."""
    text = wrap_text("\n".join(lines), figure.get_figwidth(), FOOTER_SIZE)
    figure.supxlabel(text, x=0.01, ha="left", fontsize=FOOTER_SIZE, color="0.4")


def label_ticks(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, also between powers of ten; call it after drawing everything."""
    low, high = axis.get_view_interval()
    if high >= 1e4 * low:
        return
    steps = (1, 2, 5) if high > 20 * low else (1, 2, 3, 5, 7)
    axis.set_major_locator(LogLocator(subs=steps) if high > 3 * low else MaxNLocator(6))
    axis.set_major_formatter(lambda value, position: f"{value:,.10g}")
    axis.set_minor_formatter(NullFormatter())


def settle_layout(figure: Figure) -> None:
    """Compute the layout once and keep it: nothing moves when something is added or another file is written."""
    if not isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def save_figure(figure: Figure, path: Files) -> Figure:
    """Write a figure to files, and return it; the same numbers give the same bytes."""
    files = [path] if isinstance(path, Path) else path
    formats = [check_format(file) for file in files]
    settle_layout(figure)
    for file, name in zip(files, formats, strict=True):
        try:
            with write_atomically(file) as part, matplotlib.rc_context(SAVE_OPTIONS):
                figure.savefig(part, format=name, metadata=NO_DATES[name])
        except OSError as error:
            raise LrnasError(f"cannot write {file}: {error.strerror or error}; give another file") from None
    return figure


def escape_text(text: str) -> str:
    """Text with escaped dollar signs, because Matplotlib reads text between two of them as mathematics."""
    return text.replace("$", r"\$")


def wrap_text(text: str, width: float, size: float) -> str:
    """Escaped text, wrapped to a width in inches at a font size in points."""
    letters = int(72 * width / (0.6 * size))  # average width of a letter of the default font
    lines = (textwrap.wrap(line, letters, break_on_hyphens=False) or [""] for line in text.splitlines())
    return escape_text("\n".join(piece for pieces in lines for piece in pieces))


def legend_text(name: str, width: float = 7, size: float = 8) -> str:
    """Wrapped and escaped text for a legend; Matplotlib leaves out entries that begin with an underscore."""
    return wrap_text(f" {name}" if name.startswith("_") else name, width, size)


def number_text(value: float) -> str:
    """A number with three digits, without powers of ten."""
    return f"{float(f'{value:.3g}'):,.10g}"
