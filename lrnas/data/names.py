"""Names of data sets, and the folder where data sets are kept. Does not import torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from lrnas.errors import UnknownName

Progress = Callable[[str, int, int], None]
"""Progress callback: what is being done, how many bytes or images are done, and how many there are (0: unknown)."""

PACKS = ("pixels", "jpeg")
"""Kinds of packs of images from files, in the order in which they are preferred."""

IMAGE_MEMORY = 0.5
"""Default of the largest share of a GPU's memory for images from files."""

SETS = ("digits", "cifar10")
"""Data sets that are loaded into memory."""

FILE_KINDS = {"folder": "folder:PATH", "hfds": "hfds/NAME", "wds": "wds/FOLDER", "tfds": "tfds/NAME"}
"""Kinds of data sets whose images are in files, and how their names are written."""


def unknown_set(name: str) -> UnknownName:
    """The error about a data set that does not exist."""
    if Path(name).is_dir():
        return UnknownName("data set", name, (), f"; did you mean folder:{Path(name)}?")
    return UnknownName("data set", name, [*SETS, *FILE_KINDS.values()])


def data_folder(folder: str | Path | None = None) -> Path:
    """Return the folder where data sets are kept: the one given, else $LRNAS_DATA, else ~/.cache/lrnas."""
    return Path(folder or os.environ.get("LRNAS_DATA") or Path.home() / ".cache" / "lrnas")


def pin_data_folder() -> None:
    """Make $LRNAS_DATA an absolute path, because workers inherit it but run in another folder."""
    if folder := os.environ.get("LRNAS_DATA"):
        os.environ["LRNAS_DATA"] = str(Path(folder).absolute())


def parse_name(name: str) -> tuple[str, str]:
    """Split the name of a data set into its kind and the rest: `folder:/a/b` is `folder` and `/a/b`."""
    kind, _, rest = name.partition(":" if name.startswith("folder") else "/")
    return kind, rest


def is_in_files(name: str) -> bool:
    """Return whether the images of this data set are in files."""
    return parse_name(name)[0] in FILE_KINDS


def with_absolute_paths(name: str, folder: str | Path | None) -> tuple[str, str | None]:
    """Make the paths in a data set's name and in `--data-dir` absolute, so that workers find the same files.

    Args:
        name: Name of the data set.
        folder: Where data sets are kept; None for the default.

    Returns:
        The name and the folder with absolute paths. Symbolic links are not resolved, as they may differ on other
        machines.
    """
    kind, rest = parse_name(name)
    is_path = kind == "folder" or (kind == "wds" and folder is None) or (kind == "hfds" and Path(rest).is_dir())
    if is_path and rest and not rest.startswith("~"):
        name = name.removesuffix(rest) + str(Path(rest).absolute())
    return name, None if folder is None else str(Path(folder).absolute())


def short_name(name: str) -> str:
    """Return the name of a data set as part of a file name: `folder:/data/photos` is `folder-photos`."""
    kind, rest = parse_name(name)
    return re.sub(r"[^\w.-]+", "-", f"{kind}-{Path(rest).name}" if kind in FILE_KINDS else name)


def shown_name(name: str) -> str:
    """Return the name of a data set for display: of a path, only the last folder is shown."""
    kind, rest = parse_name(name)
    if rest and (kind in ("folder", "wds") or (kind == "hfds" and Path(rest).is_dir())):
        name = name.removesuffix(rest) + Path(os.path.normpath(Path(rest).expanduser().absolute())).name
    return name


def first_few(names: Sequence[str], most: int = 5) -> str:
    """Return the first names as text, followed by the number of other names."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
