"""A data set in folders: train/ and val/ or test/, each with one folder per class, each of these with its images.

Looking for the files opens none of them. What is wrong with the layout is told before anything else happens; an image
that cannot be read is met when it is needed (`lrnas.streams`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from lrnas.errors import DataError
from lrnas.splits import Indices

__all__ = ["SUFFIXES", "FolderSplit", "find_folders"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
"""What an image's name ends in, in small or capital letters."""
LAYOUT = "PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg or PATH/test/CLASS/*.jpg"


@dataclass(frozen=True, slots=True)
class FolderSplit:
    """The images of train/, val/ or test/, sorted by class and name."""

    path: Path
    classes: tuple[str, ...]
    labels: Indices
    names: npt.NDArray[np.bytes_]
    """Without their folders, in one block of memory that loader processes share."""

    def name(self, index: int) -> str:
        return str(self.path / self.classes[self.labels[index]] / os.fsdecode(self.names[index]))

    def open(self, index: int) -> BinaryIO:
        return Path(self.name(index)).open("rb")

    def contents(self) -> Iterable[bytes]:
        """What tells this split from another, wherever it lies."""
        yield self.path.name.encode() + self.labels.tobytes()
        yield from self.names


def find_folders(root: Path) -> tuple[tuple[str, ...], dict[str, FolderSplit]]:
    """The classes and the splits that are there: train, and val or test or both."""
    if not root.is_dir():
        raise DataError(f"folder: takes a folder; got {root}, which {_is_not(root)}; give folder:PATH with {LAYOUT}")
    splits = [name for name in ("train", "val", "test") if (root / name).is_dir()]
    if "train" not in splits or len(splits) < 2:
        lacking = "train/" if "train" not in splits else "val/ and test/"
        raise DataError(f"a data set has train/ and val/ or test/; {root} lacks {lacking}; lay it out as {LAYOUT}")
    classes = tuple(_class_folders(root / "train"))
    if len(classes) < 2:
        raise DataError(
            f"{root / 'train'} has a folder for each of 2 or more classes; got {_few(classes) or 'none'}; "
            f"lay it out as {LAYOUT}"
        )
    return classes, {name: _find_images(root / name, classes) for name in splits}


def _find_images(path: Path, classes: tuple[str, ...]) -> FolderSplit:
    own = _class_folders(path)
    if unknown := sorted(set(own) - set(classes)):
        raise DataError(
            f"every class is one of train/; got {_few(unknown)} in {path} alone; add it to train/ or remove it from "
            f"{path.name}/"
        )
    labels: list[int] = []
    names: list[bytes] = []
    empty = []
    for label, name in enumerate(classes):
        if name not in own:  # not every class has to be tested
            continue
        found = _images(path / name)
        if not found:
            empty.append(name)
        names += found
        labels += [label] * len(found)
    if empty:
        deeper = any(_class_folders(path / name) for name in empty)
        raise DataError(
            f"every class has images directly in its folder ({', '.join(SUFFIXES[:3])}, …); got none for "
            f"{_few(empty)} in {path}{', only folders' if deeper else ''}; fill or remove them"
        )
    if not names:
        raise DataError(f"{path} has a folder for each class; got none; lay it out as {LAYOUT}, or remove {path.name}/")
    return FolderSplit(path, classes, np.array(labels, dtype=np.int64), np.array(names, dtype=np.bytes_))


def _class_folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(path) if entry.is_dir())


def _images(path: Path) -> list[bytes]:
    names = [entry.name for entry in _entries(path) if entry.name.lower().endswith(SUFFIXES)]
    return sorted(map(os.fsencode, names))


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; mend it or remove it") from None


def _is_not(path: Path) -> str:
    return "is a file" if path.exists() else "is not there"


def _few(names: Iterable[str], most: int = 5) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
