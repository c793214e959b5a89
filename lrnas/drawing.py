"""What all pictures have in common: formats, files that are the same for the same numbers, a footer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from lrnas.errors import LrnasError

__all__ = ["FORMATS", "Files", "add_footer", "check_format", "make_figure", "save_figure"]

FORMATS = ("png", "svg", "pdf")
DPI = 150
"""Of png: small letters can be read in print."""
SAVED: Any = {"svg.hashsalt": "lrnas", "svg.fonttype": "none", "pdf.fonttype": 42}
"""Text stays text, to be searched and edited, and names inside a file are the same each time."""
DATES: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Left out."""
Files = Path | Sequence[Path]
"""One, or several for the same figure in several forms."""


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
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6.5, color="0.4")


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
