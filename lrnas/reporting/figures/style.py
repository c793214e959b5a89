"""What all pictures have in common: formats, files that are the same for the same numbers, a footer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from lrnas.errors import LrnasError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

FORMATS = ("png", "svg", "pdf")
DPI = 150
"""Of png: small letters can be read in print."""
COARSE = 110
"""Likewise, for wide pictures: one of 10 inches is as wide as a page of documentation, and small."""
SAVED: Any = {"svg.hashsalt": "lrnas", "svg.fonttype": "none", "pdf.fonttype": 42}
"""Text stays text, to be searched and edited, and names inside a file are the same each time."""
DATES: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Left out."""
FRONT = (7.5, 5.0)
"""Inches, of accuracy against cost."""
FOOTER = 6.5
"""Points."""
BEST = "best for the cost shown"
"""A staircase, in legends: where there are several costs, the front is another matter."""
INK = "0.15"
"""Of rings around what is on a front."""
LAYERS = {"o": 3.0, "D": 4.0}
"""The paper's networks, which are diamonds, lie above those that were found."""
Files = Path | Sequence[Path]
"""One, or several for the same figure in several forms."""
Place = tuple[float, float]
"""On axes, in their own units."""


def check_format(name: Path | str) -> str:
    """The format that a file's suffix asks for, or one by its own name."""
    found = (name.suffix if isinstance(name, Path) else name).removeprefix(".").lower()
    if found not in FORMATS:
        raise LrnasError(f"pictures are written as {', '.join(FORMATS)}; got {str(name)!r}; choose one of these")
    return found


def make_figure(width: float, height: float, dpi: float = DPI) -> Figure:
    """In inches. It belongs to nobody but the caller: no window, and nothing to close."""
    return Figure(figsize=(width, height), dpi=dpi, layout="constrained")


def add_footer(figure: Figure, lines: Sequence[str]) -> None:
    """Where the numbers come from, in small letters below."""
    text = fit_text("\n".join(lines), figure.get_figwidth(), FOOTER)
    figure.supxlabel(text, x=0.01, ha="left", fontsize=FOOTER, color="0.4")


def label_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis, also between the powers of ten; to be called when all is drawn."""
    low, high = axis.get_view_interval()
    if high >= 1e4 * low:
        return
    steps = (1, 2, 5) if high > 20 * low else (1, 2, 3, 5, 7)
    axis.set_major_locator(LogLocator(subs=steps) if high > 3 * low else MaxNLocator(6))
    axis.set_major_formatter(lambda value, position: f"{value:,.10g}")
    axis.set_minor_formatter(NullFormatter())


def settle(figure: Figure) -> None:
    """Give everything its place, once: nothing moves any more, whatever is added and however it is written."""
    if not isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


def save_figure(figure: Figure, path: Files) -> None:
    """Write a picture as suffixes say; the same numbers make the same file."""
    files = [path] if isinstance(path, Path) else path
    formats = [check_format(file) for file in files]
    settle(figure)  # or each file would be laid out anew, after the one before it
    for file, name in zip(files, formats, strict=True):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with matplotlib.rc_context(SAVED):
                figure.savefig(file, metadata=DATES[name])
        except OSError as error:
            raise LrnasError(f"cannot write {file}: {error.strerror or error}; give another file") from None


def plain_text(name: str) -> str:
    """A name or path as it is: between two dollars Matplotlib would read mathematics."""
    return name.replace("$", r"\$")


def label_text(name: str) -> str:
    """A name for a legend, from which Matplotlib leaves out what begins with an underscore."""
    return plain_text(f" {name}" if name.startswith("_") else name)


def fit_text(text: str, width: float, size: float) -> str:
    """The same in lines that have room in so many inches, at so many points."""
    letters = int(72 * width / (0.6 * size))  # of the default font, on average
    lines = (textwrap.wrap(line, letters, break_on_hyphens=False) or [""] for line in text.splitlines())
    return plain_text("\n".join(piece for pieces in lines for piece in pieces))


def number_text(value: float) -> str:
    """Three digits, without powers of ten."""
    return f"{float(f'{value:.3g}'):,.10g}"


def staircase(places: Iterable[Place]) -> list[Place]:
    """The best accuracy for every cost, cheapest first, as far as the dearest."""
    best: list[Place] = []
    ordered = sorted(places, key=lambda place: (place[0], -place[1]))
    for place in ordered:
        if not best or place[1] > best[-1][1]:
            best.append(place)
    if best and ordered[-1][0] > best[-1][0]:
        best.append((ordered[-1][0], best[-1][1]))
    return best


def add_rings(axes: Axes, places: Mapping[str, Sequence[Place]], sizes: Mapping[str, float]) -> None:
    """Around what is on a front, by the marks that are there, with an entry for the legend."""
    label: str | None = "on the front"
    for marker, some in places.items():
        if some:
            x, y = zip(*some, strict=True)
            style: dict[str, Any] = {"facecolors": "none", "edgecolors": INK, "linewidths": 1.2}
            axes.scatter(x, y, s=sizes[marker], marker=marker, zorder=LAYERS[marker], label=label, **style)
            label = None
