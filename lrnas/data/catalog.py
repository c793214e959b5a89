"""Loading of data sets by name.

Every data set has three splits: training, validation and test. A data set that comes with all three is used as it is;
otherwise, a fixed, stratified part of its training images becomes the validation images. (`digits` comes without any
splits, and its test images are also a fixed, stratified part.) Code that chooses between networks or epochs sees only
the training and validation images. The test images are available only through `DataSet.test`, which is called once, for
a network that is already chosen and trained.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from lrnas.data.cifar10 import CLASSES, load_cifar10
from lrnas.data.folders import find_folders
from lrnas.data.formats import find_hfds, find_tfds, find_wds
from lrnas.data.in_memory import DataSet, ImageSet, Split
from lrnas.data.names import (
    FILE_KINDS,
    IMAGE_MEMORY,
    PACKS,
    SETS,
    Progress,
    data_folder,
    parse_name,
    unknown_set,
    with_absolute_paths,
)
from lrnas.data.packed import make_packed
from lrnas.data.sources import DEFAULT_SIZE, Found
from lrnas.data.splits import Indices, stratified
from lrnas.errors import DataError, MissingExtra

Finder = Callable[[str, str | None, Progress | None], Found]
"""Function that finds a data set, given its name without the kind, the data folder and a progress callback."""
FINDERS: dict[str, Finder] = {"folder": find_folders, "hfds": find_hfds, "wds": find_wds, "tfds": find_tfds}


def load_set(
    name: str,
    folder: str | Path | None = None,
    *,
    min_size: int = 1,
    image_size: int | None = None,
    image_memory: float = IMAGE_MEMORY,
    pack: str | None = None,
    gpu_share: float = 1.0,
    progress: Progress | None = None,
) -> DataSet:
    """Load a data set by name: `digits`, `cifar10`, `folder:PATH`, `hfds/NAME`, `wds/FOLDER` or `tfds/NAME`.

    Args:
        name: Name of the data set.
        folder: Where data sets are kept (default: $LRNAS_DATA or ~/.cache/lrnas).
        min_size: Smallest image size, in pixels, that the network accepts. `digits` and `cifar10` are enlarged by a
            whole factor if their images are smaller; for other data sets, `image_size` must be at least this large.
        image_size: Rows and columns of images read from files (default: 224); not allowed for `digits` and `cifar10`.
        image_memory: Largest share of a GPU's memory for images from files; if they take more, they stay on the disk.
        pack: How images from files are packed: pixels or jpeg; None: as the pack that exists, else as pixels, or as
            jpeg if the disk has no room for pixels.
        gpu_share: The part of a GPU that this process has; it matters only where processes cannot share memory.
        progress: Callback that shows the progress of downloads and of long searches for files.

    Returns:
        The data set. Images in files are packed when they are needed, or by `DataSet.prepare`.
    """
    if not 0 <= image_memory <= 1:
        raise DataError(f"the share of a GPU's memory for images must be from 0 to 1; got {image_memory:g}; try 0.5")
    if pack is not None and pack not in PACKS:
        raise DataError(f"images are packed as {' or '.join(PACKS)}; got --pack {pack}; choose one, or leave it out")
    name, place = with_absolute_paths(name, folder)
    kind, rest = parse_name(name)
    if kind in FILE_KINDS:
        size = DEFAULT_SIZE if image_size is None else image_size
        if size < min_size:
            rule = "this network needs images of" if min_size > 1 else "images must have"
            raise DataError(f"{rule} at least {min_size}×{min_size} pixels; got {size}; give a larger --image-size")
        if not rest:
            raise DataError(
                f"a {kind} data set must be written as {FILE_KINDS[kind]}; got {name!r}; add the missing part"
            )
        return make_packed(FINDERS[kind](rest, place, progress), size, place, pack, image_memory, gpu_share)
    if name not in SETS:
        raise unknown_set(name)
    if image_size is not None:
        raise DataError(f"the images of {name} have a fixed size; got --image-size {image_size}; leave it out")
    return _load_digits(min_size) if name == "digits" else _load_cifar10(data_folder(place), min_size, progress)


def _load_digits(min_size: int) -> ImageSet:
    table = _read_digits()
    images = np.round(table[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)  # 0…16 to 0…255
    labels = table[:, -1].astype(np.int64)
    rest, test = stratified(labels, 0.2)
    train, val = stratified(labels[rest], 0.15)
    splits = _make_splits(images, labels, (rest[train], rest[val], test), min_size)
    return ImageSet("digits", tuple(map(str, range(10))), *splits, mirrorable=False)


def _read_digits() -> npt.NDArray[np.float64]:
    """Read pixels and labels from scikit-learn's own file: importing scikit-learn takes more than a second."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise MissingExtra("the data set digits", "scikit-learn", "train")
    return np.loadtxt(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")


def _load_cifar10(folder: Path, min_size: int, progress: Progress | None) -> ImageSet:
    images, classes = load_cifar10(folder, progress)
    labels = classes.astype(np.int64)
    parts = (*stratified(labels[:50_000], 0.1), np.arange(50_000, 60_000))
    return ImageSet("cifar10", CLASSES, *_make_splits(images, labels, parts, min_size))


def _make_splits(
    images: npt.NDArray[np.uint8], labels: Indices, parts: tuple[Indices, Indices, Indices], min_size: int
) -> tuple[Split, Split, Split]:
    """Enlarge images by a whole factor to at least `min_size` pixels, and divide them into three splits."""
    if (factor := -(-min_size // images.shape[1])) > 1:
        images = images.repeat(factor, axis=1).repeat(factor, axis=2)
    train, val, test = (Split(torch.from_numpy(images[part]), torch.from_numpy(labels[part])) for part in parts)
    return train, val, test
