"""Batches of images where they are needed: the whole set lies on the device, and one gather makes a batch.

Crops and mirroring are index arithmetic: which image, which rows, which columns and in which direction. All that is
random about an epoch is drawn at its start on the CPU, from the seed and the number of the epoch, so that every
device sees the same images and a run that stops between epochs goes on as if it had not.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lrnas.data import ImageSet, Split
from lrnas.errors import DataError
from lrnas.recipes import Recipe

__all__ = ["EvalBatches", "Preprocessing", "TrainBatches", "epoch_generator"]


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
            file = cache / f"{data.name}-{data.image_size}-zca.npz" if cache is not None else None
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
        pixels = batch if self.whiten else torch.addcmul(self.shift, batch.float(), self.scale)
        pixels = pixels.to(dtype).permute(0, 3, 1, 2)
        return pixels if self.device.type == "cuda" else pixels.contiguous()

    def _whitened(self, images: Tensor) -> Tensor:
        flat = _normalise_contrast(images.flatten(1).float())
        return ((flat - self.mean) @ self.matrix).view(images.shape)


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
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
            np.savez(part, mean=mean.cpu().numpy(), matrix=matrix.cpu().numpy())
        Path(part.name).replace(file)
    return mean, matrix


class TrainBatches:
    """Shuffled, cropped and mirrored batches of one epoch after another, all of one size."""

    def __init__(self, data: ImageSet, preprocessing: Preprocessing, recipe: Recipe) -> None:
        split = data.train
        self.preprocessing = preprocessing
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
