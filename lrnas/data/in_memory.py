"""A data set in memory and its batches: the whole set lies on the device, and one gather makes a batch.

Crops and mirroring are index arithmetic: which image, which rows, which columns and in which direction. All that is
random about an epoch is drawn at its start on the CPU, from the seed and the number of the epoch, so that every
device sees the same images and a run that stops between epochs goes on as if it had not.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lrnas._files import write_atomically
from lrnas.errors import DataError
from lrnas.recipes import Recipe


class Batches(Protocol):
    """Training batches, as the loop wants them. All that a step touches stays where it is from step to step."""

    device: torch.device
    batch_size: int
    """Of all workers together."""
    steps: int
    """In an epoch."""
    plan: Tensor
    """[anything, steps * batch_size]: a column for every image of the epoch, which `take` understands."""

    def start_epoch(self, generator: torch.Generator) -> None:
        """Draw all that is random about the epoch."""

    def load(self, step: int) -> None:
        """Bring what a step needs to the device; called before it, outside of any graph."""

    def take(self, plan: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The images [number, channels, rows, columns] and labels that some columns of the plan describe."""


Noted = dict[str, list[tuple[int, str]]]
"""By split, the numbers of images that could not be read, and why."""
Evaluation = Iterable[tuple[Tensor, Tensor]]
"""Images and labels, batch by batch; with several workers, this one's share."""


class DataSet(Protocol):
    """What training asks of a data set, whether it lies in memory or is read as it is needed."""

    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str:
        """What a checkpoint keeps of it: another set has another one."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def image_size(self) -> int: ...
    @property
    def own_crops(self) -> bool:
        """Whether images come cropped, so that a recipe has neither crop nor margin."""

    @property
    def train(self) -> Sized: ...
    @property
    def val(self) -> Sized: ...
    @property
    def unreadable(self) -> list[str]:
        """The images that could not be used so far."""

    def remarks(self) -> list[str]:
        """What may surprise whoever uses it, a line each."""

    def noted(self) -> Noted:
        """What a checkpoint keeps of these."""

    def recall(self, noted: Noted) -> None:
        """Of a run that was stopped, or of its workers: what could not be used there is known here."""

    def test(self) -> Sized:
        """The images kept for the end. Nothing may be chosen by what is measured on them."""

    def joined(self) -> DataSet:
        """With the validation images among the training images, for a last training once everything is chosen."""

    def batches(self, recipe: Recipe, device: torch.device, cache: Path | None) -> tuple[Batches, Evaluation]:
        """Of the training and of the validation images; `cache` keeps what preprocessing computes."""

    def eval_batches(self, split: Any, recipe: Recipe, device: torch.device, cache: Path | None) -> Evaluation:
        """Of a split of this set."""


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
    own_crops: bool = False

    def test(self) -> Split:
        """The images kept for the end. Nothing may be chosen by what is measured on them."""
        return self._load_test()

    def joined(self) -> ImageSet:
        parts = (self.train, self.val)
        images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
        return replace(self, train=Split(images, labels))

    @property
    def identity(self) -> str:
        return self.name

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def channels(self) -> int:
        return int(self.train.images.shape[3])

    @property
    def image_size(self) -> int:
        return int(self.train.images.shape[1])

    @property
    def unreadable(self) -> list[str]:
        return []

    def remarks(self) -> list[str]:
        return []

    def noted(self) -> Noted:
        return {}

    def recall(self, noted: Noted) -> None:
        """Everything could be used."""

    def batches(self, recipe: Recipe, device: torch.device, cache: Path | None) -> tuple[TrainBatches, EvalBatches]:
        preprocessing = Preprocessing(self, recipe.whiten, device, cache)
        validation = EvalBatches(self.val, preprocessing, recipe, self.image_size)
        return TrainBatches(self, preprocessing, recipe), validation

    def eval_batches(self, split: Split, recipe: Recipe, device: torch.device, cache: Path | None) -> EvalBatches:
        return EvalBatches(split, Preprocessing(self, recipe.whiten, device, cache), recipe, self.image_size)


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """The source of an epoch's randomness."""
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)


class Preprocessing:
    """How pixels become what the network sees; fitted to the training images.

    By default every channel gets mean 0 and standard deviation 1. With `whiten`, the paper's way with CIFAR-10: each
    image's contrast is normalised, then all pixels are decorrelated (ZCA), in the constants of Goodfellow et al.
    """

    CONTRAST_SCALE, CONTRAST_BIAS, ZCA_BIAS = 55.0, 10.0, 0.1

    def __init__(self, data: ImageSet, whiten: bool, device: torch.device, cache: Path | None = None) -> None:
        self.device = device
        images = data.train.images
        if whiten:
            file = cache / f"{data.name}-{len(images)}-of-{data.image_size}-zca.npz" if cache is not None else None
            mean, matrix = _load_or_fit(images, device, file)
            self.mean, self.matrix = mean.to(device), matrix.to(device)
        else:
            pixels = images.to(device).flatten(0, 2)
            # sums of whole numbers: exact, and the same on every device
            count, total = len(pixels), pixels.sum(0, dtype=torch.int64)
            squares = sum(
                ((part.int() ** 2).sum(0, dtype=torch.int64) for part in pixels.split(1 << 22)), start=0 * total
            )
            self.mean = total.double() / count
            self.std = (squares.double() / count - self.mean**2).clamp(min=1e-6).sqrt()
            self.scale, self.shift = (1 / self.std).float(), (-self.mean / self.std).float()
        self.whiten = whiten

    def prepare(self, images: Tensor, pad: int) -> Tensor:
        """A split on the device, with a margin of the mean colour; whitened ones in half precision."""
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
        """From [batch, rows, columns, channels] as prepared to what the network takes; on a GPU channels stay last."""
        if not self.whiten:
            return normalise(batch, self.shift, self.scale, dtype)
        return _channels_first(batch.to(dtype))

    def _whitened(self, images: Tensor) -> Tensor:
        flat = _normalise_contrast(images.flatten(1).float())
        return ((flat - self.mean) @ self.matrix).view(images.shape)


def normalise(batch: Tensor, shift: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes [batch, rows, columns, channels] as the numbers a network takes; shift and scale are per channel."""
    return _channels_first(torch.addcmul(shift, batch.float(), scale).to(dtype))


def _channels_first(pixels: Tensor) -> Tensor:
    pixels = pixels.permute(0, 3, 1, 2)
    return pixels if pixels.device.type == "cuda" else pixels.contiguous()


def _normalise_contrast(flat: Tensor) -> Tensor:
    flat = flat - flat.mean(1, keepdim=True)
    norm = (Preprocessing.CONTRAST_BIAS + flat.square().sum(1, keepdim=True)).sqrt()
    return flat * (Preprocessing.CONTRAST_SCALE / norm)


def _load_or_fit(images: Tensor, device: torch.device, file: Path | None) -> tuple[Tensor, Tensor]:
    if file is not None and file.exists():
        try:
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as data:
                return torch.from_numpy(data["mean"]), torch.from_numpy(data["matrix"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"{file} cannot be read ({error}); remove it and run this again") from None
    flat = torch.cat([_normalise_contrast(part.to(device).flatten(1).float()) for part in images.split(10_000)])
    mean = flat.mean(0)
    centred = flat - mean
    covariance = (centred.T @ centred / len(flat)).double()
    values, vectors = torch.linalg.eigh(covariance)
    matrix = ((vectors / (values + Preprocessing.ZCA_BIAS).sqrt()) @ vectors.T).float()
    if file is not None:
        with write_atomically(file) as part, part.open("wb") as out:
            np.savez(out, mean=mean.cpu().numpy(), matrix=matrix.cpu().numpy())
    return mean, matrix


class TrainBatches:
    """Shuffled, cropped and mirrored batches of one epoch after another, all of one size."""

    def __init__(self, data: ImageSet, preprocessing: Preprocessing, recipe: Recipe) -> None:
        split = data.train
        self.preprocessing = preprocessing
        self.device = preprocessing.device
        self.images = preprocessing.prepare(split.images, recipe.pad)
        self.labels = split.labels.to(preprocessing.device)
        self.crop = recipe.crop or data.image_size
        self.mirror = recipe.mirror and data.mirrorable
        self.batch_size = min(recipe.batch_size, len(split))
        self.steps = len(split) // self.batch_size
        device, number = preprocessing.device, self.steps * self.batch_size
        # what is random about the epoch: which image, first row, first column, mirrored or not
        self.plan = torch.zeros(4, number, dtype=torch.int64, device=device)
        self.along = torch.arange(self.crop, device=device)

    def start_epoch(self, generator: torch.Generator) -> None:
        """Draw the epoch's order, crops and reflections."""
        number = self.plan.shape[1]
        room = self.images.shape[1] - self.crop + 1  # at least 1: the recipe is checked against the image size
        order = torch.randperm(len(self.labels), generator=generator)[:number]
        offsets = torch.randint(room, (2, number), generator=generator)
        mirrored = torch.randint(2 if self.mirror else 1, (1, number), generator=generator)
        self.plan.copy_(torch.cat([order[None], offsets, mirrored]))

    def load(self, step: int) -> None:
        """Everything is there."""

    def take(self, plan: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The batch that some columns of the epoch's plan describe: images [batch, channels, crop, crop], labels."""
        which, top, left, mirrored = plan
        rows = top[:, None] + self.along
        columns = left[:, None] + torch.where(mirrored[:, None] > 0, self.crop - 1 - self.along, self.along)
        batch = self.images[which[:, None, None], rows[:, :, None], columns[:, None, :]]
        return self.preprocessing.finish(batch, dtype), self.labels[which]


class EvalBatches:
    """A split in order, cropped to the middle."""

    def __init__(
        self, split: Split, preprocessing: Preprocessing, recipe: Recipe, image_size: int, batch_size: int = 2000
    ) -> None:
        self.preprocessing = preprocessing
        crop = recipe.crop or image_size
        margin = (image_size + 2 * recipe.pad - crop) // 2
        images = preprocessing.prepare(split.images, recipe.pad)
        self.images = images[:, margin : margin + crop, margin : margin + crop]
        self.labels = split.labels.to(preprocessing.device)
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in zip(self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True):
            yield self.preprocessing.finish(images, torch.float32), labels
