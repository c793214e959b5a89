"""A data set in folders: train/ and val/ or test/, each with one folder per class, each of these with its images.

What is wrong with the layout is told before anything else happens. Looking for the files opens none of them; to tell
one set from another, their bytes are read, or in a large set those of some, but nothing is decoded: an image that
cannot be read is met when it is needed (`lrnas.data.streamed`).
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from lrnas.data.splits import Indices
from lrnas.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
"""What an image's name ends in, in small or capital letters."""
WHOLE = 256 * 2**20
"""Bytes up to which a set is known by all that is in its files."""
SAMPLE, SAMPLE_BYTES = 2048, 64 * 2**10
"""Of larger ones: files of a split, as many of every class and at least one, and the bytes of each, from the first."""
THREADS, BLOCK = 16, 256
"""Files are looked at by so many, so many files at a time: what takes long is waiting for disks."""
LAYOUT = "PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg or PATH/test/CLASS/*.jpg"


@dataclass(frozen=True, slots=True)
class FolderSplit:
    """The images of train/, val/ or test/, sorted by class and name."""

    path: Path
    classes: tuple[str, ...]
    labels: Indices
    names: npt.NDArray[np.bytes_]
    """Without their folders, in one block of memory that loader processes share."""
    sizes: Indices
    """In bytes; -1 for what is no file, or cannot be looked at."""

    def name(self, index: int) -> str:
        return str(self.path / self.classes[self.labels[index]] / os.fsdecode(self.names[index]))

    def open(self, index: int) -> BinaryIO:
        return Path(self.name(index)).open("rb")

    def contents(self) -> Iterable[bytes]:
        """The names, wherever they lie; `hash_files` has the rest of what tells this split from another."""
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
    sizes: list[int] = []
    empty = []
    there = [(label, name) for label, name in enumerate(classes) if name in own]  # not every class has to be tested
    with ThreadPoolExecutor(THREADS) as pool:
        for (label, name), found in zip(there, pool.map(_images, [path / name for _, name in there]), strict=True):
            if not found:
                empty.append(name)
            names += [file for file, _ in found]
            sizes += [size for _, size in found]
            labels += [label] * len(found)
    if empty:
        deeper = any(_class_folders(path / name) for name in empty)
        raise DataError(
            f"every class has images directly in its folder ({', '.join(SUFFIXES[:3])}, …); got none for "
            f"{_few(empty)} in {path}{', only folders' if deeper else ''}; fill or remove them"
        )
    if not names:
        raise DataError(f"{path} has a folder for each class; got none; lay it out as {LAYOUT}, or remove {path.name}/")
    return FolderSplit(
        path,
        classes,
        np.array(labels, dtype=np.int64),
        np.array(names, dtype=np.bytes_),
        np.array(sizes, dtype=np.int64),
    )


def hash_files(splits: Mapping[str, FolderSplit]) -> str:
    """A few digits for the sizes of all files and for their bytes: of all, or in a large set of some of every class."""
    digest = hashlib.sha256()
    is_small = sum(int(split.sizes.clip(0).sum()) for split in splits.values()) <= WHOLE
    blocks: list[tuple[FolderSplit, Indices, int]] = []
    for title in sorted(splits):
        split = splits[title]
        digest.update(split.sizes.astype("<i8").tobytes())
        which = np.arange(len(split.names)) if is_small else _sample(split)
        starts = range(0, len(which), BLOCK)
        blocks += [(split, which[start : start + BLOCK], -1 if is_small else SAMPLE_BYTES) for start in starts]
    with ThreadPoolExecutor(THREADS) as pool:
        for part in pool.map(_hash_block, blocks):
            digest.update(part)
    return digest.hexdigest()[:16]


def _sample(split: FolderSplit) -> Indices:
    """The same files of every class wherever it is asked: from the first on, at equal distances."""
    starts = np.flatnonzero(np.diff(split.labels, prepend=-1))
    number = max(1, SAMPLE // len(starts))
    found = []
    for start, end in zip(starts, [*starts[1:], len(split.labels)], strict=True):
        taken = min(number, end - start)
        found.append(start + np.arange(taken) * (end - start) // taken)
    return np.concatenate(found)


def _hash_block(block: tuple[FolderSplit, Indices, int]) -> bytes:
    split, which, limit = block
    folders = {label: os.fsencode(split.path / split.classes[label]) for label in np.unique(split.labels[which])}
    digest = hashlib.sha256()
    for label, name in zip(split.labels[which], split.names[which], strict=True):
        try:
            with open(os.path.join(folders[label], name), "rb", buffering=0) as file:  # noqa: PTH118, PTH123  # is quick
                digest.update(file.read(limit))
        except OSError:  # one that cannot be read is left out when it is needed
            digest.update(b"unreadable")
    return digest.digest()


def _class_folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(path) if entry.is_dir())


def _images(path: Path) -> list[tuple[bytes, int]]:
    """Names and sizes."""
    entries = [entry for entry in _entries(path) if entry.name.lower().endswith(SUFFIXES)]
    return sorted((os.fsencode(entry.name), _size(entry)) for entry in entries)


def _size(entry: os.DirEntry[str]) -> int:
    try:
        found = entry.stat()
    except OSError:  # a link to nowhere, say
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1  # a folder has another size on every disk


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
