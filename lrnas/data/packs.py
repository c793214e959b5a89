"""Packs: all images of a data set, decoded once into a file of pixels that trainings map into memory.

Images keep their aspect ratio and are resized so that their shorter side is 8/7 of the input size (256 for 224). So
every crop of a resized image stays possible. A pack is made when a data set is first used, with all cores:

1. The sizes of all images are read from their headers. Then the size of the pack and the place of every image in it are
   known, and a disk that is too small is refused before anything is decoded.
2. Processes decode blocks of images and write every image to its place, in a file with the ending `.part`. A journal
   lists the blocks that are on the disk, so an interrupted packing goes on where it stopped.
3. The file gets its final name, and then its index (`.npz`) is written. Only a pack with an index is used.

The name of a pack contains a hash of what it was made from. So images that have changed get another pack, and the
earlier one is removed.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from filelock import FileLock, Timeout
from torch.nn import functional

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
SAVE_SECONDS = 10.0
"""Seconds between entries in the journal. Before each, the pixels are written to the disk."""
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

Size = tuple[int, int]
"""Rows and columns."""
Read = Callable[[BinaryIO], npt.NDArray[np.uint8]]
"""A function that decodes an image."""
Task = tuple[int, Indices]
"""A block of images: the number of the first one, and their part of the table."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Pack:
    """The decoded images of all splits of a data set, one after another. Splits are in alphabetical order."""

    file: Path
    table: Indices
    """First pixel, rows and columns of every image, [3, number of images]. Pixels are counted from 0 in the file."""
    counts: Mapping[str, int]
    """Number of images of every split."""
    unreadable: Mapping[int, str]
    """Why images could not be read, by number. Their pixels have no meaning."""

    def first(self, split: str) -> int:
        """Return the number of a split's first image."""
        return sum(count for title, count in self.counts.items() if title < split)

    @cached_property
    def pixels(self) -> npt.NDArray[np.uint8]:
        """All pixels as a memory map, [number of pixels, 3]."""
        return np.memmap(self.file, np.uint8, "r").reshape(-1, 3)


def open_pack(
    found: Found, identity: str, image_size: int, folder: str | Path | None, progress: Progress | None = None
) -> Pack:
    """Return the pack of a data set; it is made if there is none, or if the images have changed.

    Args:
        found: The data set.
        identity: Text that differs between data sets.
        image_size: Rows and columns of the network's input.
        folder: Where data sets are kept (default: $LRNAS_DATA or ~/.cache/lrnas). Packs are in its folder `packs`.
        progress: Callback that shows the progress of packing.

    Returns:
        The pack.
    """
    files = _PackFiles(found, identity, image_size, data_folder(folder) / "packs")
    if (pack := files.read()) is None:
        with files.locked():
            pack = files.read() or files.write(progress or (lambda what, done, total: None))
    return pack


def estimate_pack(found: Found, identity: str, image_size: int, folder: str | Path | None) -> tuple[int, float]:
    """Estimate the size of a pack and the time to make it, from a sample of its images; nothing is written.

    Args:
        found: As in `open_pack`.
        identity: As in `open_pack`.
        image_size: As in `open_pack`.
        folder: As in `open_pack`.

    Returns:
        Bytes, and seconds; 0 seconds if there is a pack, whose size is then exact.
    """
    files = _PackFiles(found, identity, image_size, data_folder(folder) / "packs")
    if (pack := files.read()) is not None:
        return _num_bytes(pack.table), 0.0
    number = len(files.images)
    sample = np.linspace(0, number - 1, min(SAMPLED, number), dtype=int).tolist()
    with _processes(files.images) as pool:
        sizes, seconds = zip(*pool.map(_time_image, sample, chunksize=8), strict=True)
    read = [size for size in sizes if size]  # an image that cannot be read takes no room
    return round(number * statistics.fmean(read or [0])), number * statistics.fmean(seconds) / _num_cores()


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


class _PackFiles:
    """The files of a pack. They have the same name, with different endings."""

    def __init__(self, found: Found, identity: str, image_size: int, folder: Path) -> None:
        self.name, self.shown, self.folder = found.name, shown_name(found.name), folder
        self.images = Images(found.sources, image_size)
        digest = hashlib.sha256(json.dumps([FORMAT, identity, image_size, LONGEST]).encode())
        for source in self.images.sources.values():
            digest.update(source.version())
        self.title = f"{short_name(found.name)}-{image_size}"
        self.index = folder / f"{self.title}-{digest.hexdigest()[:16]}.npz"
        self.file, self.part, self.journal = map(self.index.with_suffix, (".pack", ".part", ".journal"))

    def read(self) -> Pack | None:
        """Return the pack. None if it is missing or damaged, or if an unreadable image can be read by now."""
        try:
            table, about = read_arrays(self.index, "table", "about")
            unreadable = {int(number): str(why) for number, why in json.loads(str(about))["unreadable"].items()}
            is_whole = _is_table(table, len(self.images)) and self.file.stat().st_size == _num_bytes(table)
        except (DataError, OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        if not is_whole or not all(0 <= number < len(self.images) for number in unreadable):
            return None
        if any(self.images.is_readable(number) for number in islice(unreadable, TRIED_AGAIN)):
            return None
        return Pack(self.file, table, self.images.counts, unreadable)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Context in which no other process makes a pack of this data set in this size."""
        with self._explained():
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.folder / f"{self.title}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                logger.info("waiting for another process, which is packing the images of %s", self.shown)
                lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def write(self, progress: Progress) -> Pack:
        """Make the pack, or continue an interrupted packing."""
        started = time.monotonic()
        logger.info("packing the %s images of %s, once, in %s", f"{len(self.images):,}", self.shown, self.folder)
        with self._explained():
            self._remove_outdated()
            with _processes(self.images) as pool:
                table, unreadable = self._measure(pool, progress)
                self._decode(pool, table, unreadable, progress)
            for number, why in sorted(unreadable.items()):
                logger.warning("an image cannot be read: %s (%s)", self.images.name(number), why)
            self.part.replace(self.file)
            about = json.dumps({"name": self.name, "unreadable": unreadable})
            write_cache(self.index, lambda stream: np.savez(stream, table=table, about=np.array(about)))
            self.journal.unlink()
        logger.info(f"packed: {file_size(_num_bytes(table))} in {duration(time.monotonic() - started)}")
        return Pack(self.file, table, self.images.counts, unreadable)

    def _remove_outdated(self) -> None:
        """Remove packs of other versions of this data set, in this size, and a damaged pack of this version."""
        self.index.unlink(missing_ok=True)  # first, because nothing is used without it
        for file in [*self.folder.glob(f"{self.title}-*.npz"), *self.folder.glob(f"{self.title}-*.journal")]:
            if file.stem != self.index.stem and _packed_set(file) == self.name:
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

    def _decode(
        self, pool: ProcessPoolExecutor, table: Indices, unreadable: dict[int, str], progress: Progress
    ) -> None:
        """Write all pixels, except those that are on the disk already; add to the unreadable images."""
        done = self._read_journal(table, unreadable)
        own = self.part.stat().st_blocks * 512 if self.part.exists() else 0
        needed, free = _num_bytes(table), shutil.disk_usage(self.folder).free + own
        if needed > free:
            raise DataError(
                f"the images of {self.shown} take {needed / 1e9:,.1f} GB when packed; {self.folder} has room for "
                f"{free / 1e9:,.1f} GB; make room, or choose another folder with --data-dir or a smaller --image-size"
            )
        total = len(self.images)
        blocks = [(i, table[:, i : i + BLOCK]) for i in range(0, total, BLOCK) if i not in done]
        number = total - sum(block.shape[1] for _, block in blocks)
        if done:
            logger.info("continuing after %s images that are packed already", f"{number:,}")
        with self.part.open("ab") as stream, _Journal(self.journal, stream) as journal:
            stream.truncate(needed)
            for (first, block), problems in _run(pool, partial(_write_block, str(self.part)), blocks):
                unreadable.update(problems)
                journal.add(first, problems)
                progress("packing images", number := number + block.shape[1], total)

    def _read_journal(self, table: Indices, unreadable: dict[int, str]) -> set[int]:
        """Return the first images of blocks that are on the disk, and note their unreadable images.

        If there is no journal of a pack with this table, a new one is begun.
        """
        header = json.dumps({"name": self.name, "table": hashlib.sha256(table.tobytes()).hexdigest()})
        if self.file.exists():  # a pack without an index
            self.file.replace(self.part)
        try:
            first, *lines, _ = self.journal.read_text(encoding="utf-8").split("\n")  # the last one may be incomplete
            if first != header or not self.part.exists():
                raise ValueError("the journal of another pack")
            blocks = [json.loads(line) for line in lines]
        except (FileNotFoundError, ValueError):
            lines, blocks = [], []
            self.part.unlink(missing_ok=True)
        self.journal.write_text("".join(f"{line}\n" for line in (header, *lines)), encoding="utf-8")
        unreadable.update((image, why) for _, problems in blocks for image, why in problems)
        return {number for number, _ in blocks}

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Context in which errors of the file system become errors for the user."""
        try:
            yield
        except OSError as error:
            raise DataError(
                f"cannot write {self.part}: {error.strerror}; make room, after which the same command continues, or "
                "choose another folder with --data-dir"
            ) from None


def _is_table(table: npt.NDArray[Any], number: int) -> bool:
    """Return whether an array is the table of a pack with this number of images, one after another."""
    if table.dtype != np.int64 or table.shape != (3, number) or table.min() < 0 or table[1:].max() > MAX_SIDE:
        return False
    pixels = table[1] * table[2]
    return np.array_equal(table[0], pixels.cumsum() - pixels)


def _num_bytes(table: Indices) -> int:
    return 3 * int((table[1] * table[2]).sum())


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
    """Context that enters blocks in the journal of a pack, from a thread, after their pixels are on the disk.

    Args:
        file: The journal.
        pixels: The file of pixels.
    """

    def __init__(self, file: Path, pixels: BinaryIO) -> None:
        self.pixels, self.stream = pixels, file.open("a", encoding="utf-8")
        self.blocks: list[tuple[int, list[Problem]]] = []
        self.thread = ThreadPoolExecutor(1)
        self.saving: Future[None] = self.thread.submit(self._save, [])
        self.saved = time.monotonic()

    def __enter__(self) -> _Journal:
        return self

    def add(self, first: int, problems: list[Problem]) -> None:
        """Note that a block was written, with these unreadable images."""
        self.blocks.append((first, problems))
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

    def _save(self, blocks: list[tuple[int, list[Problem]]]) -> None:
        os.fsync(self.pixels.fileno())
        self.stream.writelines(f"{json.dumps(block)}\n" for block in blocks)
        self.stream.flush()
        os.fsync(self.stream.fileno())


_in_process: Images
"""The images that a process of the pool decodes."""


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
    """Yield tasks and their results in any order. Few tasks wait in the pool, so that it can be stopped quickly."""
    waiting = iter(tasks)
    running: dict[Future[Result], Task] = {}
    while True:
        for task in islice(waiting, 3 * _num_cores() - len(running)):
            running[pool.submit(function, task)] = task
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            yield running.pop(future), future.result()


def _time_image(number: int) -> tuple[int, float]:
    """Return the bytes of an image in the pack, 0 if it cannot be read, and the seconds that it takes."""
    started, size = time.perf_counter(), 0
    with suppress(Exception):  # decoders raise all kinds of errors
        size = _in_process.decode(number, _in_process.measure(number), read_pixels_quickly).nbytes
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


def _write_block(file: str, task: Task) -> list[Problem]:
    """Decode the images of a block and write them to their places. Returns the images that cannot be decoded."""
    first, block = task
    problems: list[Problem] = []
    with open(file, "r+b", buffering=0) as stream:  # noqa: PTH123  # a process does this thousands of times
        for number, (start, rows, columns) in enumerate(block.T.tolist(), first):
            if not rows:  # known from its header
                continue
            try:
                pixels = _in_process.decode(number, (rows, columns), read_pixels_quickly)
            except Exception as error:  # as above
                problems.append((number, reason(error)))
                continue
            stream.seek(3 * start)
            data = pixels.data.cast("B")
            while data:  # a disk may take less than it is given
                data = data[stream.write(data) :]
    return problems
