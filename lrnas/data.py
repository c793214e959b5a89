"""Data sets and their splits: which images are trained on, which are searched on, which are kept for the end.

Every set has three splits. Training and validation are a fixed, stratified division of the training images;
whatever chooses between networks or epochs sees only these. The test images are reached through `ImageSet.test`
alone, once, for a network that is trained and chosen.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lrnas.cifar10 import CLASSES, Progress, load_cifar10
from lrnas.errors import DataError, UnknownName

__all__ = ["SETS", "ImageSet", "Split", "data_folder", "load_set"]

SETS = {
    "digits": "scikit-learn's 1,797 handwritten digits; comes with the package, trains in seconds",
    "cifar10": "60,000 photographs of 32×32 pixels in 10 classes",
}
SPLIT_SEED = 20160502
"""One division of every set, for ever: results stay comparable."""

Images = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Split:
    """Images, uint8 [number, rows, columns, channels], and their classes, int64 [number]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class ImageSet:
    """A data set that fits in memory."""

    name: str
    classes: tuple[str, ...]
    train: Split
    val: Split
    _load_test: Callable[[], Split]
    mirrorable: bool = True
    """Whether an image means the same seen in a mirror; a digit does not."""

    def test(self) -> Split:
        """The images kept for the end. Nothing may be chosen by what is measured on them."""
        return self._load_test()

    def joined(self) -> ImageSet:
        """With the validation images among the training images, for a last training once everything is chosen."""
        parts = (self.train, self.val)
        images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
        return dataclasses.replace(self, train=Split(images, labels))

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def channels(self) -> int:
        return int(self.train.images.shape[3])

    @property
    def image_size(self) -> int:
        return int(self.train.images.shape[1])


def data_folder(folder: str | Path | None = None) -> Path:
    """Where data sets are kept: as given, else $LRNAS_DATA, else ~/.cache/lrnas."""
    return Path(folder or os.environ.get("LRNAS_DATA") or Path.home() / ".cache" / "lrnas")


def load_set(
    name: str, folder: str | Path | None = None, *, min_size: int = 1, progress: Progress | None = None
) -> ImageSet:
    """A data set by name. Images smaller than `min_size` are enlarged by a whole factor."""
    if name == "digits":
        return _digits(min_size)
    if name == "cifar10":
        return _cifar10(data_folder(folder), min_size, progress)
    raise UnknownName("data set", name, SETS)


def _digits(min_size: int) -> ImageSet:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError(
            "the data set digits comes with scikit-learn; got no scikit-learn; pip install lrnas[train]"
        ) from None
    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]  # 0…16 to 0…255
    labels = digits.target.astype(np.int64)
    rest, test = _stratified(labels, 0.2)
    train, val = _stratified(labels[rest], 0.15)
    images = _enlarge(images, min_size)
    return ImageSet(
        "digits",
        tuple(map(str, range(10))),
        _split(images, labels, rest[train]),
        _split(images, labels, rest[val]),
        lambda: _split(images, labels, test),
        mirrorable=False,
    )


def _cifar10(folder: Path, min_size: int, progress: Progress | None) -> ImageSet:
    images, labels = load_cifar10(folder, progress)
    images, classes = _enlarge(images, min_size), labels.astype(np.int64)
    train, val = _stratified(classes[:50_000], 0.1)
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


def _stratified(labels: npt.NDArray[np.int64], fraction: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Two parts of 0 … n-1, the second with `fraction` of every class; always the same for the same labels."""
    rng = np.random.default_rng(SPLIT_SEED)
    second: list[npt.NDArray[np.int64]] = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        second.append(members[: max(1, round(fraction * len(members)))])
    chosen = np.sort(np.concatenate(second))
    mask = np.ones(len(labels), dtype=bool)
    mask[chosen] = False
    return np.flatnonzero(mask), chosen
