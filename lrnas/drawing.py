"""What all pictures have in common: formats, files that are the same for the same numbers, a footer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from lrnas.errors import LrnasError

__all__ = ["FORMATS", "add_footer", "check_format", "make_figure", "save_figure"]

FORMATS = ("png", "svg", "pdf")
DPI = 110
"""Of png: a picture of 10 inches is as wide as a page of documentation, and small."""


def check_format(suffix: str) -> str:
    """A format by its name or a file's suffix."""
    name = suffix.removeprefix(".").lower()
    if name not in FORMATS:
        raise LrnasError(f"pictures are written as {', '.join(FORMATS)}; got {suffix!r}; choose one of these")
    return name


def make_figure(width: float, height: float) -> Figure:
    """In inches. It belongs to nobody but the caller: no window, and nothing to close."""
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def add_footer(figure: Figure, lines: Sequence[str]) -> None:
    """Where the numbers come from, in small letters below."""
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=6.5, color="0.4")


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a picture as its suffix says; without a date, so that the same numbers make the same file."""
    dates = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context({"svg.hashsalt": "lrnas"}):
            figure.savefig(path, metadata=dates[check_format(path.suffix)])
    except OSError as error:
        raise LrnasError(f"cannot write {path}: {error.strerror or error}; give another --out") from None
    return path
