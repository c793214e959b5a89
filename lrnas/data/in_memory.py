"""Data sets in memory and their batches: all images lie on the device, and one gather operation makes a batch.

All random numbers of an epoch are drawn at its start on the CPU, from the seed and the number of the epoch. So every
device sees the same images, and a run that stops between epochs continues exactly as if it had never stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lrnas.data.cache import read_arrays, write_cache
from lrnas.data.crops import channels_first, gather, normalise, take
from lrnas.data.names import Progress
from lrnas.recipes import InvalidRecipe, Recipe


class Batches(Protocol):
    """Training batches. All tensors that a step uses stay in place from step to step, as CUDA graphs require."""

    device: torch.device
    batch_size: int
    """Images per step, over all workers."""
    steps: int
    """Steps per epoch."""
    crop: int
    """Rows and columns of the images that `take` returns; may be changed before an epoch starts."""
    places: Tensor
    """Where each image of the epoch is taken from: one column per image, [rows, steps * batch_size].

    The rows are the six numbers of `lrnas.data.crops`. A step passes its columns to `take`.
    """

    def start_epoch(self, generator: torch.Generator) -> None:
        """Draw all random numbers of the epoch: order, crops and reflections."""

    def load(self, step: int) -> None:
        """Bring the images of a step to the device; called before the step, outside of CUDA graphs."""

    def take(self, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return images [number, channels, rows, columns] and labels for the given columns of `places`."""


Evaluation = Iterable[tuple[Tensor, Tensor]]
"""Batches of images and labels; with several workers, only this worker's share."""


class DataSet(ABC):
    """A data set as training uses it: in memory (`ImageSet`) or in files (`PackedSet`)."""

    name: str
    identity: str
    """Text that differs between data sets. Checkpoints and studies store it to recognise the data set."""
    classes: tuple[str, ...]
    channels: int
    image_size: int
    """Rows and columns of the images."""
    own_crops: bool
    """Whether images are always cropped to the image size; then a recipe must have neither crop nor pad."""
    eval_batch: int
    """Images in a batch of an evaluation."""
    train: Sized
    val: Sized
    _test: Sized

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def test(self) -> Any:
        """Return the test images. Never choose between networks or settings by their accuracy on these images."""
        return self._test

    @property
    def num_images(self) -> tuple[int, int, int]:
        """Numbers of training, validation and test images, including those that cannot be read."""
        return len(self.train), len(self.val), len(self._test)

    @property
    def split(self) -> str:
        """How the validation images were chosen, if the files do not say that; else ""."""
        return ""

    def remarks(self) -> list[str]:
        """Return warnings about the data set, one line each."""
        return []

    def prepare(self, progress: Progress | None = None) -> None:  # noqa: B027  # nothing to do for images in memory
        """Do the work that is needed only once, before the first training: packing images from files.

        Args:
            progress: Callback that shows the progress.
        """

    @property
    def placement(self) -> str:
        """Where images from files are while a GPU trains, in words; "" if that is not decided, or for other images."""
        return ""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Memory for images on a GPU, if they are kept there: all of a pack of pixels, else training and validation."""

    @property
    def num_unreadable(self) -> int:
        """The number of images that cannot be read and are left out."""
        return 0

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of training, validation and test images that can be read; images from files are packed for it."""
        return len(self.train), len(self.val), len(self._test)

    @abstractmethod
    def joined(self) -> DataSet:
        """Return the data set with the validation images added to the training images, for a final training."""

    @abstractmethod
    def batches(self, recipe: Recipe, device: torch.device, cache: Path | None) -> tuple[Batches, Evaluation]:
        """Return the batches of the training images and of the validation images.

        Args:
            recipe: Batch size, crops and preprocessing.
            device: Where the batches go.
            cache: Folder for the results of preprocessing; None to cache nothing.
        """

    @abstractmethod
    def eval_batches(self, split: Any, recipe: Recipe, device: torch.device, cache: Path | None) -> Evaluation:
        """Return the batches of a split of this data set; the other arguments are those of `batches`."""


@dataclass(frozen=True, slots=True)
class Split:
    """Images, uint8 [number, rows, columns, channels], and their classes, int64 [number]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


class ImageSet(DataSet):
    """A data set in memory.

    Args:
        name: Its name, which is also its identity.
        classes: The names of the classes.
        train: The training images.
        val: The validation images.
        test: The test images.
        mirrorable: Whether a mirrored image still belongs to its class; False for digits.
    """

    own_crops = False
    eval_batch = 2000
    train: Split
    val: Split
    _test: Split

    def __init__(
        self, name: str, classes: tuple[str, ...], train: Split, val: Split, test: Split, mirrorable: bool = True
    ) -> None:
        self.name = self.identity = name
        self.classes = classes
        self.train, self.val, self._test = train, val, test
        self.mirrorable = mirrorable
        _, self.image_size, _, self.channels = train.images.shape

    @property
    def num_bytes(self) -> int:
        return self.train.images.nbytes + self.val.images.nbytes

    def joined(self) -> ImageSet:
        images = torch.cat([self.train.images, self.val.images])
        train = Split(images, torch.cat([self.train.labels, self.val.labels]))
        return ImageSet(self.name, self.classes, train, self.val, self._test, self.mirrorable)

    def batches(self, recipe: Recipe, device: torch.device, cache: Path | None) -> tuple[TrainBatches, EvalBatches]:
        preprocessing = Preprocessing(self, recipe.whiten, device, cache)
        validation = EvalBatches(self.val, preprocessing, recipe, self.image_size)
        return TrainBatches(self, preprocessing, recipe), validation

    def eval_batches(self, split: Split, recipe: Recipe, device: torch.device, cache: Path | None) -> EvalBatches:
        return EvalBatches(split, Preprocessing(self, recipe.whiten, device, cache), recipe, self.image_size)


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """Return the generator of an epoch's random numbers; they depend only on the seed and the epoch."""
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)


class Preprocessing:
    """Turns pixels into the input of a network; its constants are computed from the training images.

    By default every channel gets mean 0 and standard deviation 1. With `whiten`, images are prepared as in the paper
    for CIFAR-10: the contrast of each image is normalised, then all pixels are decorrelated (ZCA), with the constants
    of Goodfellow et al.

    Args:
        data: The data set; only its training images are used.
        whiten: Whether to normalise contrast and decorrelate pixels.
        device: Where images are prepared.
        cache: Folder in which the whitening matrix is cached; None to compute it every time.
    """

    CONTRAST_SCALE, CONTRAST_BIAS, ZCA_BIAS = 55.0, 10.0, 0.1

    def __init__(self, data: ImageSet, whiten: bool, device: torch.device, cache: Path | None = None) -> None:
        self.device = device
        self.whiten = whiten
        images = data.train.images
        if whiten:
            file = cache / f"{data.name}-{len(images)}-of-{data.image_size}-zca.npz" if cache is not None else None
            self.mean, self.matrix = (part.to(device) for part in _load_or_fit(images, device, file))
        else:
            pixels = images.to(device).flatten(0, 2)
            # integer sums are exact, and the same on every device
            count, total = len(pixels), pixels.sum(0, dtype=torch.int64)
            parts = [(part.int() ** 2).sum(0, dtype=torch.int64) for part in pixels.split(1 << 22)]
            self.mean = total.double() / count
            self.std = (torch.stack(parts).sum(0).double() / count - self.mean**2).clamp(min=1e-6).sqrt()
            self.scale, self.shift = (1 / self.std).float(), (-self.mean / self.std).float()

    def prepare(self, images: Tensor, pad: int) -> Tensor:
        """Move images to the device and pad them with the mean colour; whitened images become half precision."""
        if self.whiten:
            parts = [self._whitened(part.to(self.device)).half() for part in images.split(10_000)]
            return F.pad(torch.cat(parts), (0, 0, pad, pad, pad, pad))
        images = images.to(self.device)
        if not pad:
            return images
        number, rows, columns, channels = images.shape
        colour = self.mean.round().to(torch.uint8)
        padded = colour.expand(number, rows + 2 * pad, columns + 2 * pad, channels).clone()
        padded[:, pad : pad + rows, pad : pad + columns] = images
        return padded

    def finish(self, batch: Tensor, dtype: torch.dtype) -> Tensor:
        """Turn a prepared batch [batch, rows, columns, channels] into the network's input, channels first."""
        if not self.whiten:
            return normalise(batch, self.shift, self.scale, dtype)
        return channels_first(batch.to(dtype))

    def _whitened(self, images: Tensor) -> Tensor:
        flat = _normalise_contrast(images.flatten(1).float())
        return ((flat - self.mean) @ self.matrix).view(images.shape)


def _normalise_contrast(flat: Tensor) -> Tensor:
    flat = flat - flat.mean(1, keepdim=True)
    norm = (Preprocessing.CONTRAST_BIAS + flat.square().sum(1, keepdim=True)).sqrt()
    return flat * (Preprocessing.CONTRAST_SCALE / norm)


def _load_or_fit(images: Tensor, device: torch.device, file: Path | None) -> tuple[Tensor, Tensor]:
    """Return the mean image and the whitening matrix; they are read from the file if it exists."""
    if file is not None and file.exists():
        mean, matrix = map(torch.from_numpy, read_arrays(file, "mean", "matrix"))
        return mean, matrix
    flat = torch.cat([_normalise_contrast(part.to(device).flatten(1).float()) for part in images.split(10_000)])
    mean = flat.mean(0)
    centred = flat - mean
    covariance = (centred.T @ centred / len(flat)).double()
    values, vectors = torch.linalg.eigh(covariance)
    matrix = ((vectors / (values + Preprocessing.ZCA_BIAS).sqrt()) @ vectors.T).float()
    if file is not None:
        write_cache(file, lambda stream: np.savez(stream, mean=mean.cpu().numpy(), matrix=matrix.cpu().numpy()))
    return mean, matrix


class TrainBatches:
    """Training batches of images in memory: shuffled, cropped and mirrored, all of the same size."""

    def __init__(self, data: ImageSet, preprocessing: Preprocessing, recipe: Recipe) -> None:
        if recipe.min_area:
            raise InvalidRecipe(f"min_area needs images from files; got {recipe.min_area} for {data.name}; set pad")
        self.preprocessing = preprocessing
        self.device = preprocessing.device
        images = preprocessing.prepare(data.train.images, recipe.pad)
        self.size = images.shape[1]
        """Rows and columns of the padded images."""
        self.pixels = images.flatten(0, 2).contiguous()
        self.labels = data.train.labels
        self.crop = recipe.crop or data.image_size
        self.mirror = recipe.mirror and data.mirrorable
        self.batch_size = min(recipe.batch_size, len(data.train))
        self.steps = len(data.train) // self.batch_size
        self.places = torch.zeros(6, self.steps * self.batch_size, dtype=torch.int64, device=self.device)

    def start_epoch(self, generator: torch.Generator) -> None:
        """Draw the epoch's order, crops and reflections."""
        number = self.places.shape[1]
        room = self.size - self.crop + 1  # at least 1: the recipe is checked against the image size
        order = torch.randperm(len(self.labels), generator=generator)[:number]
        top, left = torch.randint(room, (2, number), generator=generator)
        mirrored = torch.randint(2 if self.mirror else 1, (number,), generator=generator)
        first = (order * self.size + top) * self.size + left
        stride, length = (torch.full_like(order, size) for size in (self.size, self.crop))
        self.places.copy_(torch.stack([first, stride, length, length, mirrored, self.labels[order]]))

    def load(self, step: int) -> None:
        """Do nothing: all images are on the device."""

    def take(self, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return images [batch, channels, crop, crop] and labels for the given columns of `places`."""
        if self.preprocessing.whiten:
            images = self.preprocessing.finish(gather(self.pixels, places, self.crop, resize=False), dtype)
        else:
            shift, scale = self.preprocessing.shift, self.preprocessing.scale
            images = take(self.pixels, places, self.crop, False, shift, scale, dtype)
        return images, places[5]


class EvalBatches:
    """The images of a split in order, cropped to the middle."""

    def __init__(self, split: Split, preprocessing: Preprocessing, recipe: Recipe, image_size: int) -> None:
        self.preprocessing = preprocessing
        crop = recipe.crop or image_size
        margin = (image_size + 2 * recipe.pad - crop) // 2
        images = preprocessing.prepare(split.images, recipe.pad)
        self.images = images[:, margin : margin + crop, margin : margin + crop]
        self.labels = split.labels.to(preprocessing.device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        number = ImageSet.eval_batch
        for images, labels in zip(self.images.split(number), self.labels.split(number), strict=True):
            yield self.preprocessing.finish(images, torch.float32), labels
