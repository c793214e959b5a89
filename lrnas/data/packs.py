"""Packs: all images of a data set, resized once into a file that trainings map into memory.

Images keep their aspect ratio and are resized so that their shorter side is 8/7 of the input size (256 for 224). So
every crop of a resized image stays possible. They are kept as pixels or, if the disk has no room for pixels, as JPEGs,
which are decoded again for every batch. A pack is made when a data set is first used, with all cores:

1. The sizes of all images are read from their headers. Then the size of a pack of pixels and the place of every image
   in it are known. The size of JPEGs is estimated from a sample. A disk that is too small for both is refused.
2. Processes decode blocks of images. They write pixels to their places in a file with the ending `.part`; JPEGs are
   appended to it in their order. A journal lists the blocks that are on the disk, so an interrupted packing goes on
   where it stopped.
3. The file gets its final name, and then its index (`.npz`) is written. Only a pack with an index is used.

The name of a pack contains a hash of what it was made from. So images that have changed get another pack, and the
earlier one is removed.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from lrnas._files import acquire_lock
from lrnas._messages import duration, file_size, logger
from lrnas.data.cache import read_arrays, write_cache
from lrnas.data.names import Progress, data_folder, short_name, shown_name
from lrnas.data.sources import CROP_SHARE, Found, Problem, Source, read_pixels, read_pixels_quickly, read_size, reason
from lrnas.data.splits import Indices
from lrnas.errors import DataError

FORMAT = 1
"""Version of the format and of the resizing. Packs of other versions are not used."""
BLOCK = 32
"""Number of images that a process decodes at a time."""
TOGETHER = 8
"""Number of images that a process writes at a time."""
SAVE_SECONDS = 1.0
"""Seconds between entries in the journal. Before each, the images are written to the disk, while others are decoded."""
LONGEST = 4
"""If the sides of an image differ by more than this factor, only its middle is kept."""
MAX_SIDE = 2**20
"""Largest number of rows or columns of an image in a pack."""
TOO_LONG = 100
"""If the sides of an image differ by more than this factor, it counts as unreadable."""
TRIED_AGAIN = 20
"""Number of unreadable images that are tried again when a pack is opened."""
SAMPLED = 64
"""Number of images from which the size of a pack is estimated."""
QUALITY = 95
"""Quality of JPEGs in packs."""
MARGIN = 1.2
"""Room that JPEGs need on the disk, as a multiple of their estimated size."""

Size = tuple[int, int]
"""Rows and columns."""
Read = Callable[[BinaryIO], npt.NDArray[np.uint8]]
"""A function that decodes an image."""
Encoded = bytes | memoryview
"""An image as it is in a pack."""
Task = tuple[int, Indices]
"""A block of images: the number of the first one, and their part of the table."""
Lengths = dict[int, list[int]]
"""Bytes of the JPEGs of blocks, by the number of the first image; empty lists for pixels."""
Entry = tuple[int, list[Problem], list[int]]
"""A block in the journal: the number of its first image, its unreadable images, and the bytes of its JPEGs."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Pack:
    """The resized images of all splits of a data set, one after another. Splits are in alphabetical order."""

    kind: str
    """pixels or jpeg."""
    file: Path
    table: Indices
    """First pixel, rows and columns of every image, [3, number of images]. The pixels of all images are counted from 0,
    also if the file has JPEGs."""
    bounds: Indices
    """First byte of every image in the file, and the end of the last one, [number of images + 1]."""
    counts: Mapping[str, int]
    """Number of images of every split."""
    unreadable: Mapping[int, str]
    """Why images could not be read, by number. Their pixels have no meaning."""

    def first(self, split: str) -> int:
        """Return the number of a split's first image."""
        return sum(count for title, count in self.counts.items() if title < split)

    @cached_property
    def data(self) -> npt.NDArray[np.uint8]:
        """All bytes of the file as a memory map."""
        return np.memmap(self.file, np.uint8, "r")

    @property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """All pixels as a memory map, [number of pixels, 3]; only of a pack of pixels."""
        assert self.kind == "pixels"
        return self.data.reshape(-1, 3)

    @property
    def gpu_bytes(self) -> int:
        """Memory that the pack takes on a GPU, if it is kept there. JPEGs are not."""
        return len(self.data) if self.kind == "pixels" else 0


class ExpectedPack(NamedTuple):
    """A pack before it is made."""

    kind: str
    num_bytes: int
    seconds: float
    """Time to make it; 0 if it exists."""

    @property
    def gpu_bytes(self) -> int:
        """As in `Pack`."""
        return self.num_bytes if self.kind == "pixels" else 0


def open_pack(
    found: Found,
    identity: str,
    image_size: int,
    folder: str | Path | None,
    progress: Progress | None = None,
    kind: str | None = None,
) -> Pack:
    """Return the pack of a data set; it is made if there is none, or if the images have changed.

    Args:
        found: The data set.
        identity: Text that differs between data sets.
        image_size: Rows and columns of the network's input.
        folder: Where data sets are kept (default: $LRNAS_DATA or ~/.cache/lrnas). Packs are in its folder `packs`.
        progress: Callback that shows the progress of packing.
        kind: pixels or jpeg; None: the pack that exists, else the first of them that the disk has room for.

    Returns:
        The pack.
    """
    packing = _Packing(found, identity, image_size, data_folder(folder) / "packs", kind)
    if (pack := packing.read()) is None:
        with packing.locked():
            pack = packing.read() or packing.write(progress or (lambda what, done, total: None))
    return pack


def estimate_pack(
    found: Found, identity: str, image_size: int, folder: str | Path | None, kind: str | None = None
) -> ExpectedPack:
    """Estimate the size of a pack and the time to make it, from a sample of its images; nothing is written.

    Args:
        found: As in `open_pack`.
        identity: As in `open_pack`.
        image_size: As in `open_pack`.
        folder: As in `open_pack`.
        kind: As in `open_pack`.

    Returns:
        The pack that `open_pack` would return. If it exists, its size is exact.
    """
    packing = _Packing(found, identity, image_size, data_folder(folder) / "packs", kind)
    if (pack := packing.read()) is not None:
        return ExpectedPack(pack.kind, int(pack.bounds[-1]), 0.0)
    with _processes(packing.images) as pool:
        free = packing.free()
        for files in packing.in_order():
            size, seconds = packing.sample(pool, files)
            if files.margin * size <= free:
                break
    return ExpectedPack(files.kind, size, seconds)


def resized(size: Size, image_size: int) -> Size:
    """Return the size of an image whose shorter side is 8/7 of the input size, as `torchvision.transforms.Resize` does.

    Args:
        size: Rows and columns of the image.
        image_size: Rows and columns of the network's input.
    """
    rows, columns = size
    short = int(image_size / CROP_SHARE)
    return (short, int(short * columns / rows)) if rows <= columns else (int(short * rows / columns), short)


def middle(length: int, crop: int) -> int:
    """Return the first row or column of a crop in the middle, as in `torchvision.transforms.CenterCrop`."""
    return round((length - crop) / 2)


class Images:
    """The images of all splits, numbered as in their pack."""

    def __init__(self, sources: Mapping[str, Source], image_size: int) -> None:
        self.sources = dict(sorted(sources.items()))
        self.counts = {title: len(source.labels) for title, source in self.sources.items()}
        self.image_size = image_size

    def __len__(self) -> int:
        return sum(self.counts.values())

    def measure(self, number: int) -> Size:
        """Return the size of an image in the pack, from the header of its file."""
        source, own = self._find(number)
        with source.open(own) as file:
            rows, columns = read_size(file)
        if max(rows, columns) > TOO_LONG * min(rows, columns):
            raise ValueError(f"{rows}×{columns} pixels, a side is more than {TOO_LONG} times the other")
        return self._cut(resized((rows, columns), self.image_size))

    def decode(self, number: int, size: Size, read: Read = read_pixels) -> npt.NDArray[np.uint8]:
        """Return the pixels of an image in the pack.

        Args:
            number: The number of the image.
            size: Its size in the pack, from `measure`.
            read: The function that decodes it.
        """
        source, own = self._find(number)
        with source.open(own) as file:
            pixels = read(file)
        rows, columns = resized((pixels.shape[0], pixels.shape[1]), self.image_size)
        if self._cut((rows, columns)) != size:
            raise ValueError("its header has another size")
        # as PIL resizes, up to 1 of 255 from rounding, in a quarter of the time
        images = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
        images = functional.interpolate(images, (rows, columns), mode="bilinear", antialias=True)
        # the middle of a long image, placed so that its centre crop is that of the whole image
        top = middle(rows, self.image_size) - middle(size[0], self.image_size)
        left = middle(columns, self.image_size) - middle(size[1], self.image_size)
        return images[0].permute(1, 2, 0)[top : top + size[0], left : left + size[1]].contiguous().numpy()

    def is_readable(self, number: int) -> bool:
        """Return whether an image can be decoded."""
        try:
            self.decode(number, self.measure(number))
        except Exception:  # decoders raise all kinds of errors
            return False
        return True

    def name(self, number: int) -> str:
        """Return a description of where an image is stored."""
        source, own = self._find(number)
        return source.name(own)

    def _cut(self, size: Size) -> Size:
        longest = LONGEST * int(self.image_size / CROP_SHARE)
        return min(size[0], longest), min(size[1], longest)

    def _find(self, number: int) -> tuple[Source, int]:
        """Return the source of an image and its number there."""
        for source in self.sources.values():
            if number < len(source.labels):
                return source, number
            number -= len(source.labels)
        raise IndexError(number)


class _PackFiles(ABC):
    """The files of a pack of one kind. They have the same name, with different endings."""

    kind: str
    shown: str
    """The kind in messages."""
    margin: float
    """Room that the pack needs on the disk, as a multiple of its estimated size."""
    arrays: tuple[str, ...]
    """Arrays that only an index of this kind has."""

    def __init__(self, stem: str) -> None:
        self.index, self.file, self.part, self.journal = (
            Path(f"{stem}{ending}") for ending in (".npz", ".pack", ".part", ".journal")
        )

    @abstractmethod
    def encode(self, pixels: npt.NDArray[np.uint8]) -> Encoded:
        """Return an image as it is in the pack."""

    @abstractmethod
    def keep(self, table: Indices, images: list[Encoded]) -> list[Encoded]:
        """Write the images of a block to their places, if these are known. Returns those that have to be appended."""

    @abstractmethod
    def bounds(self, table: Indices, lengths: Lengths) -> Indices:
        """Return the bounds of the images in the file, as in `Pack`, after all or some of the blocks were packed."""


class _PixelFiles(_PackFiles):
    kind, shown, margin, arrays = "pixels", "pixels", 1.0, ()

    def encode(self, pixels: npt.NDArray[np.uint8]) -> Encoded:
        return pixels.reshape(-1).data

    def keep(self, table: Indices, images: list[Encoded]) -> list[Encoded]:
        left = [
            memoryview(image or bytes(3 * rows * columns))
            for image, (_, rows, columns) in zip(images, table.T.tolist(), strict=True)
            if rows
        ]
        first, length = 3 * int(table[0, 0]), sum(map(len, left))
        with open(self.part, "r+b", buffering=0) as stream:  # noqa: PTH123  # a process does this thousands of times
            stream.seek(first)
            while left:  # a disk may take less than it is given
                written = _write_together(stream.fileno(), left[:TOGETHER])
                while left and written >= len(left[0]):
                    written -= len(left.pop(0))
                if written:
                    left[0] = left[0][written:]
            if length and _start_writing is not None:
                _start_writing(stream.fileno(), first, length, 2)  # SYNC_FILE_RANGE_WRITE
        return []

    def bounds(self, table: Indices, lengths: Lengths) -> Indices:
        return 3 * np.append(table[0], (table[1] * table[2]).sum())


class _JpegFiles(_PackFiles):
    kind, shown, margin, arrays = "jpeg", "JPEGs", MARGIN, ("bounds",)

    def __init__(self, stem: str) -> None:
        super().__init__(f"{stem}-jpeg{QUALITY}")

    def encode(self, pixels: npt.NDArray[np.uint8]) -> Encoded:
        from torchvision.io import encode_jpeg  # takes a second

        encoded: torch.Tensor = encode_jpeg(torch.from_numpy(pixels).permute(2, 0, 1), QUALITY)
        return encoded.numpy().tobytes()

    def keep(self, table: Indices, images: list[Encoded]) -> list[Encoded]:
        return images

    def bounds(self, table: Indices, lengths: Lengths) -> Indices:
        in_order = chain.from_iterable(lengths[first] for first in sorted(lengths))
        return np.cumsum([0, *in_order], dtype=np.int64)


class _Packing:
    """The packs of a version of a data set: those that exist, and how one is made.

    Args:
        found: As in `open_pack`.
        identity: As in `open_pack`.
        image_size: As in `open_pack`.
        folder: The folder of packs.
        kind: As in `open_pack`.
    """

    def __init__(self, found: Found, identity: str, image_size: int, folder: Path, kind: str | None = None) -> None:
        self.name, self.shown, self.folder = found.name, shown_name(found.name), folder
        self.images = Images(found.sources, image_size)
        digest = hashlib.sha256(json.dumps([FORMAT, identity, image_size, LONGEST]).encode())
        for source in self.images.sources.values():
            digest.update(source.version())
        self.title = f"{short_name(found.name)}-{image_size}"
        self.stem = str(folder / f"{self.title}-{digest.hexdigest()[:16]}")
        self.kinds: list[_PackFiles] = [_PixelFiles(self.stem), _JpegFiles(self.stem)]
        self.wanted = [files for files in self.kinds if kind in (None, files.kind)]

    def read(self) -> Pack | None:
        """Return the first pack that can be used, of the kinds that are wanted."""
        return next(filter(None, map(self._read, self.wanted)), None)

    def _read(self, files: _PackFiles) -> Pack | None:
        """Return a pack. None if it is missing or damaged, or if an unreadable image can be read by now."""
        number = len(self.images)
        try:
            table, about, *arrays = read_arrays(files.index, "table", "about", *files.arrays)
            unreadable = {int(image): str(why) for image, why in json.loads(str(about))["unreadable"].items()}
            if not _is_table(table, number):
                return None
            bounds = arrays[0] if arrays else files.bounds(table, {})
            is_whole = _are_bounds(bounds, number) and files.file.stat().st_size == bounds[-1]
        except (DataError, OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if not is_whole or not all(0 <= image < number for image in unreadable):
            return None
        if any(self.images.is_readable(image) for image in islice(unreadable, TRIED_AGAIN)):
            return None
        return Pack(files.kind, files.file, table, bounds, self.images.counts, unreadable)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context in which no other process makes a pack of this data set in this size."""
        with self._explained():
            self.folder.mkdir(parents=True, exist_ok=True)
            waiting = f"waiting for another process, which is packing the images of {self.shown}"
            lock = acquire_lock(self.folder / f"{self.title}.lock", waiting)
        try:
            yield
        finally:
            lock.release()

    def in_order(self) -> list[_PackFiles]:
        """The kinds that are wanted: first one whose packing was interrupted, then those that are preferred."""
        return sorted(self.wanted, key=lambda files: not files.journal.exists())

    def free(self) -> int:
        """Return the room for a pack on the disk. Incomplete packs count as room: one goes on, others are removed."""
        existing = next(folder for folder in (self.folder, *self.folder.parents) if folder.exists())
        parts = [files.part for files in self.kinds if files.part.exists()]
        return shutil.disk_usage(existing).free + sum(part.stat().st_blocks * 512 for part in parts)

    def sample(self, pool: ProcessPoolExecutor, files: _PackFiles) -> tuple[int, float]:
        """Estimate the bytes of a pack and the seconds to make it, from some of its images."""
        number = len(self.images)
        some = np.linspace(0, number - 1, min(SAMPLED, number), dtype=int).tolist()
        sizes, seconds = zip(*pool.map(partial(_time_image, files), some, chunksize=8), strict=True)
        read = [size for size in sizes if size]  # an image that cannot be read takes no room
        return round(number * statistics.fmean(read or [0])), number * statistics.fmean(seconds) / _num_cores()

    def write(self, progress: Progress) -> Pack:
        """Make the pack, or continue an interrupted packing."""
        started = time.monotonic()
        logger.info("packing the %s images of %s, once, in %s", f"{len(self.images):,}", self.shown, self.folder)
        with self._explained():
            self._remove_outdated()
            with _processes(self.images) as pool:
                table, unreadable = self._measure(pool, progress)
                files = self._choose(pool, table)
                bounds = self._decode(pool, files, table, unreadable, progress)
            for number, why in sorted(unreadable.items()):
                logger.warning("an image cannot be read: %s (%s)", self.images.name(number), why)
            files.part.replace(files.file)
            about = np.array(json.dumps({"name": self.name, "unreadable": unreadable}))
            arrays: dict[str, Any] = {"table": table, "about": about, **dict.fromkeys(files.arrays, bounds)}
            write_cache(files.index, lambda stream: np.savez(stream, **arrays))
            files.journal.unlink()
        size = f"{file_size(int(bounds[-1]))} of {files.shown}"
        logger.info(f"packed: {size} in {duration(time.monotonic() - started)}")
        return Pack(files.kind, files.file, table, bounds, self.images.counts, unreadable)

    def _remove_outdated(self) -> None:
        """Remove packs of other versions of this data set, in this size. Damaged packs of this version are parts."""
        for files in self.wanted:
            files.index.unlink(missing_ok=True)  # first, because nothing is used without it
            if files.file.exists():
                files.file.replace(files.part)
        own = {files.index.stem for files in self.kinds}
        for file in [*self.folder.glob(f"{self.title}-*.npz"), *self.folder.glob(f"{self.title}-*.journal")]:
            if file.stem not in own and _packed_set(file) == self.name:
                logger.info("the images of %s have changed: removing their earlier pack", self.shown)
                for suffix in (".npz", ".pack", ".part", ".journal"):  # in this order, for the same reason
                    file.with_suffix(suffix).unlink(missing_ok=True)

    def _measure(self, pool: ProcessPoolExecutor, progress: Progress) -> tuple[Indices, dict[int, str]]:
        """Return the table of the pack, and the images that cannot be opened."""
        sizes = np.zeros((2, len(self.images)), dtype=np.int64)
        unreadable: dict[int, str] = {}
        blocks = [(first, sizes[:, first : first + BLOCK]) for first in range(0, len(self.images), BLOCK)]
        done = 0
        for (first, block), (found, problems) in _run(pool, _measure_block, blocks):
            sizes[:, first : first + block.shape[1]] = found
            unreadable.update(problems)
            progress("reading the sizes of images", done := done + block.shape[1], len(self.images))
        pixels = sizes.prod(0)
        return np.stack([pixels.cumsum() - pixels, *sizes]), unreadable

    def _choose(self, pool: ProcessPoolExecutor, table: Indices) -> _PackFiles:
        """Return the first kind that the disk has room for, and remove incomplete packs of others."""
        free, too_large = self.free(), []
        for files in self.in_order():
            is_exact = files.kind == "pixels"
            needed = files.bounds(table, {})[-1] if is_exact else files.margin * self.sample(pool, files)[0]
            size = f"{'' if is_exact else 'up to '}{needed / 1e9:,.1f} GB as {files.shown}"
            if needed <= free:
                break
            too_large.append(size)
        else:
            raise DataError(
                f"the images of {self.shown} take {' or '.join(too_large)} when packed; {self.folder} has room for "
                f"{free / 1e9:,.1f} GB; make room, or choose another folder with --data-dir or a smaller --image-size"
            )
        if too_large:
            room = f"the disk has room for {free / 1e9:,.1f} GB"
            logger.info(f"packing {size}, not {' or '.join(too_large)}: {room}")
        for other in self.kinds:
            if other is not files:
                other.journal.unlink(missing_ok=True)
                other.part.unlink(missing_ok=True)
        return files

    def _decode(
        self,
        pool: ProcessPoolExecutor,
        files: _PackFiles,
        table: Indices,
        unreadable: dict[int, str],
        progress: Progress,
    ) -> Indices:
        """Pack all images, except those that are on the disk already; add to the unreadable ones. Returns bounds."""
        lengths = self._read_journal(files, table, unreadable)
        total = len(self.images)
        blocks = [(i, table[:, i : i + BLOCK]) for i in range(0, total, BLOCK) if i not in lengths]
        number = total - sum(block.shape[1] for _, block in blocks)
        if lengths:
            logger.info("continuing after %s images that are packed already", f"{number:,}")
        with files.part.open("ab") as stream, _Journal(files.journal, stream) as journal:
            stream.truncate(int(files.bounds(table, lengths)[-1]))
            for (first, block), (problems, images) in _run(pool, partial(_pack_block, files), blocks):
                stream.writelines(images)
                stream.flush()
                lengths[first] = [len(image) for image in images]
                unreadable.update(problems)
                journal.add((first, problems, lengths[first]))
                progress("packing images", number := number + block.shape[1], total)
        return files.bounds(table, lengths)

    def _read_journal(self, files: _PackFiles, table: Indices, unreadable: dict[int, str]) -> Lengths:
        """Return the blocks that are on the disk, and note their unreadable images.

        If there is no journal of a pack with this table, a new one is begun.
        """
        header = json.dumps({"name": self.name, "table": hashlib.sha256(table.tobytes()).hexdigest()})
        try:
            first, *lines, _ = files.journal.read_text(encoding="utf-8").split("\n")  # the last one may be incomplete
            if first != header or not files.part.exists():
                raise ValueError("the journal of another pack")
            blocks = [json.loads(line) for line in lines]
        except (FileNotFoundError, ValueError):
            lines, blocks = [], []
            files.part.unlink(missing_ok=True)
        files.journal.write_text("".join(f"{line}\n" for line in (header, *lines)), encoding="utf-8")
        unreadable.update((image, why) for _, problems, *_ in blocks for image, why in problems)
        return {number: [*chain.from_iterable(lengths)] for number, _, *lengths in blocks}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Context in which errors of the file system become errors for the user."""
        try:
            yield
        except OSError as error:
            raise DataError(
                f"cannot write {self.stem}: {error.strerror}; make room, after which the same command continues, or "
                "choose another folder with --data-dir"
            ) from None


def _is_table(table: npt.NDArray[Any], number: int) -> bool:
    """Return whether an array is the table of a pack with this number of images, one after another."""
    if table.dtype != np.int64 or table.shape != (3, number) or table.min() < 0 or table[1:].max() > MAX_SIDE:
        return False
    pixels = table[1] * table[2]
    return np.array_equal(table[0], pixels.cumsum() - pixels)


def _are_bounds(bounds: npt.NDArray[Any], number: int) -> bool:
    """Return whether an array has the bounds of images, one after another."""
    is_array = bounds.dtype == np.int64 and bounds.shape == (number + 1,)
    return is_array and bounds[0] == 0 and bool((np.diff(bounds) >= 0).all())


def _packed_set(file: Path) -> str:
    """Return the name of the data set of a pack, from its index or journal; "" if it is damaged."""
    try:
        if file.suffix == ".npz":
            text = str(read_arrays(file, "about")[0])
        else:
            text = file.read_text(encoding="utf-8").split("\n")[0]
        return str(json.loads(text)["name"])
    except (DataError, OSError, ValueError, KeyError, TypeError):
        return ""


class _Journal:
    """Context that enters blocks in the journal of a pack, from a thread, after their images are on the disk.

    Args:
        file: The journal.
        images: The file of images.
    """

    def __init__(self, file: Path, images: BinaryIO) -> None:
        self.images, self.stream = images, file.open("a", encoding="utf-8")
        self.blocks: list[Entry] = []
        self.thread = ThreadPoolExecutor(1)
        self.saving: Future[None] = self.thread.submit(self._save, [])
        self.saved = time.monotonic()

    def __enter__(self) -> _Journal:
        return self

    def add(self, block: Entry) -> None:
        """Note that a block was written."""
        self.blocks.append(block)
        if self.saving.done() and time.monotonic() - self.saved >= SAVE_SECONDS:
            self._start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.stream, self.thread, suppress(*([OSError] if kind else [])):  # the first error is the one to show
            self._start()
            self.saving.result()

    def _start(self) -> None:
        self.saving.result()  # raises an error of the disk
        self.saving = self.thread.submit(self._save, self.blocks)
        self.blocks, self.saved = [], time.monotonic()

    def _save(self, blocks: list[Entry]) -> None:
        os.fsync(self.images.fileno())
        self.stream.writelines(f"{json.dumps(block)}\n" for block in blocks)
        self.stream.flush()
        os.fsync(self.stream.fileno())


_in_process: Images
"""The images that a process of the pool decodes."""
_write_together: Callable[[int, list[memoryview]], int] = getattr(
    os, "writev", lambda file, pieces: os.write(file, pieces[0])
)
"""A function that writes several pieces of memory at once, and returns the number of bytes that were written.

Processes that write to the same file wait for each other. On Windows, which does not have it, one piece is written.
"""
_start_writing: Any = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
"""Linux's function that lets the disk begin to write a part of a file. So every process writes its own images.

Otherwise the system writes the file from one thread, which may be slower than the disk.
"""
if _start_writing is not None:
    _start_writing.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


@contextmanager
def _processes(images: Images) -> Iterator[ProcessPoolExecutor]:
    """Context with one process per core, or fewer if there are few images; they end with the context."""
    import torchvision.io  # noqa: F401  # here, not in every process

    number = min(_num_cores(), -(-len(images) // BLOCK))
    # forked processes need no `if __name__ == "__main__"` in the user's script; other systems cannot fork safely
    method = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    pool = ProcessPoolExecutor(number, method, _begin, (images,))
    try:
        yield pool
    except BrokenProcessPool:
        raise DataError(
            "the images cannot be packed, because a process that decodes them died, perhaps for lack of memory; run "
            "this again, which continues it"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(images: Images) -> None:
    """Set up a process of the pool."""
    global _in_process
    _in_process = images
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libjpeg's remarks about files, which nobody can act on
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that waits for the blocks
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(
    pool: ProcessPoolExecutor, function: Callable[[Task], Result], tasks: Iterable[Task]
) -> Iterator[tuple[Task, Result]]:
    """Yield tasks and their results in order. Few tasks wait in the pool, so that it can be stopped quickly."""
    waiting = iter(tasks)
    running: deque[tuple[Task, Future[Result]]] = deque()
    while True:
        for task in islice(waiting, 3 * _num_cores() - len(running)):
            running.append((task, pool.submit(function, task)))
        if not running:
            return
        task, future = running.popleft()
        yield task, future.result()


def _time_image(files: _PackFiles, number: int) -> tuple[int, float]:
    """Return the bytes of an image in the pack, 0 if it cannot be read, and the seconds that it takes."""
    started, size = time.perf_counter(), 0
    with suppress(Exception):  # decoders raise all kinds of errors
        pixels = _in_process.decode(number, _in_process.measure(number), read_pixels_quickly)
        size = len(files.encode(pixels))
    return size, time.perf_counter() - started


def _measure_block(task: Task) -> tuple[Indices, list[Problem]]:
    """Return the sizes of the images of a block, 0 if they cannot be opened, and these images."""
    first, block = task
    sizes, problems = np.zeros_like(block), []
    for i in range(block.shape[1]):
        try:
            sizes[:, i] = _in_process.measure(first + i)
        except Exception as error:  # decoders raise all kinds of errors
            problems.append((first + i, reason(error)))
    return sizes, problems


def _pack_block(files: _PackFiles, task: Task) -> tuple[list[Problem], list[Encoded]]:
    """Decode the images of a block. Returns those that cannot be decoded, and what has to be appended to the file."""
    first, block = task
    problems: list[Problem] = []
    images: list[Encoded] = [b""] * block.shape[1]
    for i, (_, rows, columns) in enumerate(block.T.tolist()):
        if not rows:  # known from its header
            continue
        try:
            images[i] = files.encode(_in_process.decode(first + i, (rows, columns), read_pixels_quickly))
        except Exception as error:  # as above
            problems.append((first + i, reason(error)))
    return problems, files.keep(block, images)
