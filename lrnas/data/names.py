"""The names of data sets, and where sets are kept; needs no torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str, int, int], None]
"""Told what is going on, how many bytes, or images, are done and how many there are (0: unknown)."""

SETS = {
    "digits": "scikit-learn's 1,797 handwritten digits; comes with the package, trains in seconds",
    "cifar10": "60,000 photographs of 32×32 pixels in 10 classes",
}

STREAMS = {"folder": "folder:PATH", "hfds": "hfds/NAME", "wds": "wds/FOLDER", "tfds": "tfds/NAME"}
"""What is read as it is needed, and how to say where it is."""


def data_folder(folder: str | Path | None = None) -> Path:
    """Where data sets are kept: as given, else $LRNAS_DATA, else ~/.cache/lrnas."""
    return Path(folder or os.environ.get("LRNAS_DATA") or Path.home() / ".cache" / "lrnas")


def pin_data_folder() -> None:
    """Say $LRNAS_DATA in full, for workers, which inherit it and whose current folder is another."""
    if kept := os.environ.get("LRNAS_DATA"):
        os.environ["LRNAS_DATA"] = str(Path(kept).absolute())


def is_stream(name: str) -> bool:
    """Whether a set of this name is read as it is needed."""
    return kind_of_name(name)[0] in STREAMS


def from_anywhere(name: str, folder: str | None) -> tuple[str, str | None]:
    """A set's name and the folder for sets as workers need them, whose current folder is another."""
    kind, rest = kind_of_name(name)
    if rest and not rest.startswith("~") and _names_folder(kind, rest, folder):
        name = name.removesuffix(rest) + str(Path(rest).absolute())  # links stay: each machine may have its own
    return name, None if folder is None else str(Path(folder).absolute())


def _names_folder(kind: str, rest: str, folder: str | None) -> bool:
    """Whether a name ends in a folder, as seen from the current one."""
    if kind == "hfds":  # where there is no such folder, its library takes the name for one of the hub
        return Path(rest).is_dir()
    return kind == "folder" or (kind == "wds" and folder is None)  # tfds/ has names alone


def short_name(name: str) -> str:
    """For the names of files."""
    kind, rest = kind_of_name(name)
    return re.sub(r"[^\w.-]+", "-", f"{kind}-{Path(rest).name}" if kind in STREAMS else name)


def shown_name(name: str) -> str:
    """For people: of a folder its own name, without where it lies."""
    kind, rest = kind_of_name(name)
    if rest and (kind in ("folder", "wds") or (kind == "hfds" and Path(rest).is_dir())):
        name = name.removesuffix(rest) + Path(os.path.normpath(Path(rest).expanduser().absolute())).name
    return name


def kind_of_name(name: str) -> tuple[str, str]:
    mark = ":" if name.startswith("folder") else "/"
    kind, _, rest = name.partition(mark)
    return kind, rest
