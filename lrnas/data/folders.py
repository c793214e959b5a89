"""Data sets in folders: train/ and val/ or test/, each with one folder of images per class; or just such folders.

Mistakes in the layout are reported at once. The bytes of the files are hashed to tell one data set from another (in a
large data set, only the bytes of a sample of files). No image is decoded here: an unreadable image is noticed when the
data set is packed (`lrnas.data.packs`).
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from lrnas._files import open_regular
from lrnas.data.names import Progress, first_few
from lrnas.data.sources import Found
from lrnas.data.splits import Indices, stratified
from lrnas.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
"""File name endings of images, in small or capital letters."""
SPLITS = ("train", "val", "test")
OTHER_SPLITS = {"training": "train", "valid": "val", "validation": "val", "testing": "test"}
"""Other names of splits, and what they should be called."""
WHOLE = 256 * 2**20
"""Data sets of up to this many bytes are hashed completely."""
SAMPLE, SAMPLE_BYTES = 2048, 64 * 2**10
"""Sample that is hashed of larger data sets: files per split (divided equally between the classes), bytes per file."""
THREADS, BLOCK = 16, 256
"""Number of threads that hash files, and number of files per task. The threads mostly wait for the disk."""
TEST_SHARE = 0.2
"""Share of each class that is kept for tests, if the images are not split."""
LAYOUT = "PATH/CLASS/*.jpg, or PATH/train/CLASS/*.jpg and PATH/val/CLASS/*.jpg or PATH/test/CLASS/*.jpg"


@dataclass(frozen=True, slots=True)
class FolderSplit:
    """The images of a split, sorted by class and name."""

    part: str
    """The split: train, val or test."""
    path: Path
    """The folder with the folders of classes."""
    classes: tuple[str, ...]
    labels: Indices
    names: npt.NDArray[np.bytes_]
    """File names without folders, in one block of memory."""
    sizes: Indices
    """File sizes in bytes; -1 for entries that are not regular files or whose size cannot be read."""
    times: Indices
    """Modification times in seconds; empty if the bytes of all files were hashed, which is more reliable."""

    def name(self, index: int) -> str:
        return str(self.path / self.classes[self.labels[index]] / os.fsdecode(self.names[index]))

    def open(self, index: int) -> BinaryIO:
        return open_regular(self.name(index))

    def contents(self) -> Iterable[bytes]:
        """Yield labels and file names, without the folder's path; `Found.bytes_hash` is a hash of the files' bytes."""
        yield self.part.encode() + self.labels.tobytes()
        yield from self.names

    def version(self) -> bytes:
        return self.times.tobytes()

    def only(self, part: str, which: Indices) -> FolderSplit:
        """Some of the images, as a split."""
        labels, sizes, times = (each[which] for each in (self.labels, self.sizes, self.times))
        return FolderSplit(part, self.path, self.classes, labels, self.names[which], sizes, times)


def find_folders(path: str, folder: str | None = None, progress: Progress | None = None) -> Found:
    """Find the classes and splits of a data set in folders.

    Args:
        path: The folder with train/ and val/ or test/. If it has only train/, or one folder per class instead, a fixed
            fifth of every class becomes the test images.
        folder: Where data sets are kept; not used.
        progress: Progress callback; not used.

    Returns:
        The data set.
    """
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        problem = "is a file" if root.exists() else "does not exist"
        raise DataError(f"folder:PATH needs a folder; got {root}, which {problem}; give a folder with {LAYOUT}")
    splits = [name for name in SPLITS if (root / name).is_dir()]
    inside = _class_folders(root)
    right = {name: OTHER_SPLITS.get(name.lower(), name.lower()) for name in inside}
    wrong = [name for name in inside if right[name] in SPLITS and right[name] not in splits]
    if wrong and ("train" in splits or ("train" in right.values() and set(right.values()) <= set(SPLITS))):
        names = " and ".join(f"{name}/ to {right[name]}/" for name in wrong)
        raise DataError(
            f"the folders of splits are called train/, val/ and test/; got others in {root}; rename {names}"
        )
    if splits and "train" not in splits:
        raise DataError(f"a data set needs train/; {root} has only {splits[0]}/; arrange the images as {LAYOUT}")
    if splits == ["train"] and (others := [name for name in inside if name != "train"]):
        raise DataError(
            f"beside train/, a data set has val/ or test/ or nothing; {root} has {first_few(others)}; rename it"
        )
    place = root / "train" if splits else root
    classes = tuple(_class_folders(place))
    if unreadable := [name for name in classes if not _is_utf8(name)]:
        got = os.fsencode(unreadable[0])
        raise DataError(f"folders of classes need names in UTF-8; got {got!r} in {place}; rename it")
    if len(classes) < 2:
        raise DataError(
            f"{place} must have one folder per class, at least 2; got {', '.join(classes) or 'none'}; "
            f"arrange the images as {LAYOUT}"
        )
    note, ignored = "", _Ignored()
    if len(splits) > 1:
        found = {name: _find_images(root / name, classes, ignored) for name in splits}
    else:
        whole = _find_images(place, classes, ignored)
        kept, held_out = stratified(whole.labels, TEST_SHARE)
        found = {"train": whole.only("train", kept), "test": whole.only("test", held_out)}
        note = f"{root} has no {'test/' if splits else 'train/'}: a fixed fifth of every class is kept for tests"
    is_small = sum(int(split.sizes.clip(0).sum()) for split in found.values()) <= WHOLE
    bytes_hash = _hash_files(found, is_small)
    if is_small:
        found = {name: replace(split, times=split.times[:0]) for name, split in found.items()}
    return Found(f"folder:{root}", classes, found, bytes_hash, note, ignored.remarks())


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python shows bytes of another encoding as surrogates
        return False
    return True


@dataclass(slots=True)
class _Ignored:
    """Files in the folders of classes that are not used."""

    deeper: list[str] = field(default_factory=list)
    """Paths of images in folders inside those of classes."""
    others: list[str] = field(default_factory=list)
    """Paths of files without the ending of an image."""

    def remarks(self) -> tuple[str, ...]:
        """What to tell a user."""
        endings = Counter(Path(path).suffix.lower() or "no ending" for path in self.others)
        listed = ", ".join(f"{number:,} {ending}" for ending, number in endings.most_common(3))
        listed += ", …" if len(endings) > 3 else ""
        found = []
        if self.others:
            found.append(
                f"{_files(self.others)} ignored ({listed}), because an image ends in {', '.join(SUFFIXES[:-1])} or "
                f"{SUFFIXES[-1]}"
            )
        if self.deeper:
            found.append(f"{_files(self.deeper)} ignored, because images must be directly in the folder of their class")
        return tuple(found)


def _files(paths: Sequence[str]) -> str:
    """The number of files, and one of them."""
    return f"{paths[0]} is" if len(paths) == 1 else f"{len(paths):,} files, such as {paths[0]}, are"


def _find_images(path: Path, classes: tuple[str, ...], ignored: _Ignored) -> FolderSplit:
    own = _class_folders(path)  # classes of train/ may be missing in val/ and test/
    if unknown := sorted(set(own) - set(classes)):
        raise DataError(
            f"every class needs a folder in train/; got {first_few(unknown)} only in {path}; add it to train/ or "
            f"remove it from {path.name}/"
        )
    with ThreadPoolExecutor(THREADS) as pool:
        listings = list(pool.map(_list_images, [path / name for name in own]))
    files = dict(zip(own, (listing.images for listing in listings), strict=True))
    for name, listing in zip(own, listings, strict=True):
        ignored.others += [f"{path.name}/{name}/{other}" for other in listing.others]
        for folder in listing.folders:
            inner = (Path(place, file) for place, _, names in os.walk(path / name / folder) for file in names)
            ignored.deeper += sorted(str(file.relative_to(path.parent)) for file in inner if _is_image(file.name))
    if empty := [name for name, found in files.items() if not found]:
        deeper = any(_class_folders(path / name) for name in empty)
        raise DataError(
            f"every class needs images directly in its folder ({', '.join(SUFFIXES[:3])}, …); got none for "
            f"{first_few(empty)} in {path}{', only folders' if deeper else ''}; add images or remove the folders"
        )
    if not files:
        raise DataError(f"{path} must have one folder per class; got none; use the layout {LAYOUT}, or remove it")
    rows = [(label, *file) for label, name in enumerate(classes) for file in files.get(name, ())]
    labels, names, sizes, times = zip(*rows, strict=True)
    numbers = [np.array(values, np.int64) for values in (labels, sizes, times)]
    return FolderSplit(path.name, path, classes, numbers[0], np.array(names, np.bytes_), *numbers[1:])


def _hash_files(splits: Mapping[str, FolderSplit], is_small: bool) -> str:
    """Hash the sizes of all files and their bytes; in a large data set, only the bytes of a sample of every class."""
    digest = hashlib.sha256()
    blocks: list[tuple[FolderSplit, Indices, int]] = []
    for _, split in sorted(splits.items()):
        digest.update(split.sizes.astype("<i8").tobytes())
        which = np.arange(len(split.names)) if is_small else _sample(split)
        starts = range(0, len(which), BLOCK)
        blocks += [(split, which[start : start + BLOCK], -1 if is_small else SAMPLE_BYTES) for start in starts]
    with ThreadPoolExecutor(THREADS) as pool:
        for part in pool.map(_hash_block, blocks):
            digest.update(part)
    return digest.hexdigest()[:16]


def _sample(split: FolderSplit) -> Indices:
    """Return the indices of a sample of files: equally spaced within every class, starting with its first file."""
    bounds = np.flatnonzero(np.diff(split.labels, prepend=-1, append=-1))
    most = max(1, SAMPLE // (len(bounds) - 1))
    chosen = []
    for start, number in zip(bounds[:-1], np.diff(bounds), strict=True):
        taken = min(most, number)
        chosen.append(start + np.arange(taken) * number // taken)
    return np.concatenate(chosen)


def _hash_block(block: tuple[FolderSplit, Indices, int]) -> bytes:
    split, which, limit = block
    folders = {label: os.fsencode(split.path / split.classes[label]) for label in np.unique(split.labels[which])}
    digest = hashlib.sha256()
    for label, name in zip(split.labels[which], split.names[which], strict=True):
        try:
            with open_regular(os.fsdecode(os.path.join(folders[label], name))) as file:  # noqa: PTH118  # faster
                digest.update(file.read(limit))
        except OSError:  # an unreadable image is left out when it is needed
            digest.update(b"unreadable")
    return digest.digest()


def _class_folders(path: Path) -> list[str]:
    return sorted(entry.name for entry in _entries(path) if entry.is_dir())


class _Listing(NamedTuple):
    """What is in the folder of a class."""

    images: list[tuple[bytes, int, int]]
    """Names, sizes and modification times of the images, sorted."""
    others: list[str]
    """Names of other files."""
    folders: list[str]


def _list_images(path: Path) -> _Listing:
    entries = _entries(path)
    images = sorted((os.fsencode(entry.name), *_size_and_time(entry)) for entry in entries if _is_image(entry.name))
    rest = sorted((entry for entry in entries if not _is_image(entry.name)), key=lambda entry: entry.name)
    folders = [entry.name for entry in rest if entry.is_dir()]
    return _Listing(images, [entry.name for entry in rest if not entry.is_dir()], folders)


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _size_and_time(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        if entry.is_file():  # the size of a folder depends on the disk
            return entry.stat().st_size, int(entry.stat().st_mtime)
    except OSError:
        pass
    return -1, -1


def _entries(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; change its permissions or remove it") from None
