"""What all pictures have in common: formats, files that are the same for the same numbers, a footer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from lrnas.errors import LrnasError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "FORMATS",
    "Files",
    "Place",
    "add_footer",
    "check_format",
    "label_text",
    "make_figure",
    "name_points",
    "plain_text",
    "save_figure",
]

FORMATS = ("png", "svg", "pdf")
DPI = 150
"""Of png: small letters can be read in print."""
SAVED: Any = {"svg.hashsalt": "lrnas", "svg.fonttype": "none", "pdf.fonttype": 42}
"""Text stays text, to be searched and edited, and names inside a file are the same each time."""
DATES: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Left out."""
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


def make_figure(width: float, height: float) -> Figure:
    """In inches. It belongs to nobody but the caller: no window, and nothing to close."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def add_footer(figure: Figure, lines: Sequence[str]) -> None:
    """Where the numbers come from, in small letters below."""
    figure.supxlabel(plain_text("\n".join(lines)), x=0.01, ha="left", fontsize=6.5, color="0.4")


def save_figure(figure: Figure, path: Files) -> None:
    """Write a picture as suffixes say; the same numbers make the same file."""
    files = [path] if isinstance(path, Path) else path
    formats = [check_format(file) for file in files]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # or each file would be laid out anew, after the one before it
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


def name_points(axes: Axes, named: Mapping[str, Place] | Iterable[tuple[str, Place]]) -> None:
    """Write names beside points, the rightmost first, where they hide neither points nor names."""
    named = list(named.items() if isinstance(named, Mapping) else named)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    taken = [Bbox.from_bounds(x - 7, y - 7, 14, 14) for x, y in (axes.transData.transform(place) for _, place in named)]
    for name, point in sorted(named, key=lambda item: -item[1][0]):
        _label(axes, plain_text(name), point, taken)


def _label(axes: Axes, text: str, point: tuple[float, float], taken: list[Bbox]) -> None:
    """Write a name beside a point, where no other name is."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    renderer = figure._get_renderer()  # type: ignore[attr-defined]
    for x, y in product((7, -7), (-10, 5, -21, 16, -32, 27, -43, 38)):
        side = "left" if x > 0 else "right"
        note = axes.annotate(
            text,
            point,
            xytext=(x, y),
            textcoords="offset points",
            fontsize=8,
            ha=side,
            arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.5, "shrinkB": 3} if abs(y) > 12 else None,
            zorder=5,
        )
        note.update_positions(renderer)
        box = Text.get_window_extent(note)  # without the line to the point
        inside = axes.get_window_extent()
        if inside.x0 < box.x0 and box.x1 < inside.x1 and not any(box.overlaps(other) for other in taken):
            break
        note.remove()
    else:
        note = axes.annotate(text, point, xytext=(7, -10), textcoords="offset points", fontsize=8)
        note.update_positions(renderer)
        box = Text.get_window_extent(note)
    taken.append(box)
