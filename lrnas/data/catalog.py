"""Data sets and their splits: which images are trained on, which are searched on, which are kept for the end.

Every set has three splits. Training and validation are a fixed, stratified division of the training images (or what a
folder itself sets apart for validation beside its test images); whatever chooses between networks or epochs sees only
these. The test images are reached through `DataSet.test` alone, once, for a network that is trained and chosen.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from lrnas.data.cifar10 import CLASSES, load_cifar10
from lrnas.data.folders import find_folders, hash_files
from lrnas.data.formats import find_hfds, find_tfds, find_wds
from lrnas.data.in_memory import DataSet, ImageSet, Split
from lrnas.data.names import SETS, STREAMS, Progress, data_folder, from_anywhere, kind_of_name
from lrnas.data.splits import stratified
from lrnas.data.streamed import StreamSet, make_stream
from lrnas.data.workers import STREAM_SIZE
from lrnas.errors import DataError, UnknownName

Images = npt.NDArray[np.uint8]


def load_set(
    name: str,
    folder: str | Path | None = None,
    *,
    min_size: int = 1,
    image_size: int | None = None,
    loaders: int | None = None,
    progress: Progress | None = None,
) -> DataSet:
    """A data set by name, in memory, or by where it lies, read as it is needed.

    Images in memory that are smaller than `min_size` are enlarged by a whole factor. All others are brought to
    `image_size`, by so many `loaders`, which are processes (default: one per core, 16 at most; 0 for none).
    """
    if loaders is not None and loaders < 0:
        raise DataError(f"the number of loaders is at least 0; got {loaders}; leave it out for one per core")
    # said in full, a set is the same one to whoever loads it from wherever
    name, place = from_anywhere(name, None if folder is None else str(folder))
    kind, rest = kind_of_name(name)
    if kind in STREAMS:
        size = STREAM_SIZE if image_size is None else image_size
        if size < min_size:
            raise DataError(f"images have at least {min_size} pixels here; got {size}; give a larger --image-size")
        return _stream(kind, rest, data_folder(place), place, size, loaders, progress)
    if name not in SETS:
        if Path(name).is_dir():
            raise UnknownName("data set", name, (), f"; did you mean folder:{Path(name)}?")
        raise UnknownName("data set", name, [*SETS, *STREAMS.values()])
    if image_size is not None:
        raise DataError(f"the images of {name} have a size; got --image-size {image_size}; leave it out")
    if name == "digits":
        return _digits(min_size)
    return _cifar10(data_folder(place), min_size, progress)


def _stream(
    kind: str,
    rest: str,
    cache: Path,
    folder: str | None,
    image_size: int,
    loaders: int | None,
    progress: Progress | None,
) -> StreamSet:
    if not rest:
        raise DataError(f"{kind} says where its set is; got nothing; write {STREAMS[kind]}")
    given = None if folder is None else Path(folder)
    if kind == "hfds":
        return make_stream(f"hfds/{rest}", kind, *find_hfds(rest, given), image_size, loaders)
    if kind == "tfds":
        return make_stream(f"tfds/{rest}", kind, *find_tfds(rest, given, cache, progress), image_size, loaders)
    if kind == "wds":
        root = ((given or Path()) / Path(rest).expanduser()).resolve()
        return make_stream(f"wds/{root}", kind, *find_wds(root, cache, progress), image_size, loaders)
    root = Path(rest).expanduser().resolve()
    classes, splits = find_folders(root)
    return make_stream(f"folder:{root}", kind, classes, splits, image_size, loaders, bytes_hash=hash_files(splits))


def _digits(min_size: int) -> ImageSet:
    table = _read_digits()
    images = np.round(table[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)  # 0…16 to 0…255
    labels = table[:, -1].astype(np.int64)
    rest, test = stratified(labels, 0.2)
    train, val = stratified(labels[rest], 0.15)
    images = _enlarge(images, min_size)
    return ImageSet(
        "digits",
        tuple(map(str, range(10))),
        _split(images, labels, rest[train]),
        _split(images, labels, rest[val]),
        lambda: _split(images, labels, test),
        mirrorable=False,
    )


def _read_digits() -> npt.NDArray[np.float64]:
    """Pixels and labels, from scikit-learn's own file: to import scikit-learn takes more than a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("the data set digits comes with scikit-learn; got no scikit-learn; pip install lrnas[train]")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not file.exists():  # in another version of it
        from sklearn.datasets import load_digits

        return np.column_stack(load_digits(return_X_y=True))
    return np.loadtxt(file, delimiter=",")


def _cifar10(folder: Path, min_size: int, progress: Progress | None) -> ImageSet:
    images, labels = load_cifar10(folder, progress)
    images, classes = _enlarge(images, min_size), labels.astype(np.int64)
    train, val = stratified(classes[:50_000], 0.1)
    return ImageSet(
        "cifar10",
        CLASSES,
        _split(images, classes, train),
        _split(images, classes, val),
        lambda: _split(images, classes, np.arange(50_000, 60_000)),
    )


def _split(images: Images, labels: npt.NDArray[np.int64], where: npt.NDArray[np.int64]) -> Split:
    return Split(torch.from_numpy(images[where]), torch.from_numpy(labels[where]))


def _enlarge(images: Images, min_size: int) -> Images:
    factor = -(-min_size // images.shape[1])
    return images if factor <= 1 else images.repeat(factor, axis=1).repeat(factor, axis=2)
