"""What loader processes do: open, decode, resize, crop and mirror images, and put them into batches of bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lrnas.data.decode import read_rgb
from lrnas.data.splits import Indices
from lrnas.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

CROP_SHARE = 224 / 256
"""Of the resized image's shorter side."""
STREAM_SIZE = 224
"""Default rows and columns of images that are read from files."""
TRIES = 100
"""Images that cannot be read one after another before a batch goes without."""

Transform = Callable[["Image.Image"], "Image.Image"]


class Source(Protocol):
    """Encoded images by number, and their classes."""

    @property
    def labels(self) -> Indices: ...

    def open(self, index: int) -> BinaryIO: ...

    def name(self, index: int) -> str:
        """For people."""

    def contents(self) -> Iterable[bytes]:
        """What tells this source from another."""


class Order:
    """For every batch the positions of its images, each with the seed of its crop and reflection."""

    def __init__(self, which: Sequence[Tensor] = (), seeds: Sequence[Tensor] = ()) -> None:
        self.set(which, seeds)

    def set(self, which: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
        """For the next pass."""
        self.which, self.seeds = which, seeds

    def __len__(self) -> int:
        return len(self.which)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for which, seeds in zip(self.which, self.seeds, strict=True):
            yield list(zip(which.tolist(), seeds.tolist(), strict=True))


class Batch(NamedTuple):
    images: Tensor
    """uint8 [number, rows, columns, 3]."""
    labels: Tensor
    problems: list[tuple[int, str]]
    """Positions of images that could not be read, and why."""


class _Sample(NamedTuple):
    pixels: Any
    """uint8 [rows, columns, 3], or None."""
    label: int
    problems: list[tuple[int, str]]


class Pictures(Dataset[_Sample]):
    """What loader processes do. Never raises: what went wrong travels with the batch, to be told in one place."""

    def __init__(self, source: Source, where: Indices, transform: Transform, replace: bool) -> None:
        self.source, self.where = source, where
        self.transform = transform
        self.tries = min(TRIES, len(where)) if replace else 1

    def __getitem__(self, key: tuple[int, int]) -> _Sample:
        index, seed = key
        problems: list[tuple[int, str]] = []
        for _ in range(self.tries):
            position = int(self.where[index])
            try:
                with self.source.open(position) as file:
                    image = read_rgb(file)
                with _seeded(seed):
                    return _Sample(np.asarray(self.transform(image)), int(self.source.labels[position]), problems)
            except Exception as error:  # decoders raise whatever they like
                problems.append((index, _reason(error)))
            index = (index + 1) % len(self.where)
        return _Sample(None, 0, problems)


def unreadable(source: Source, numbers: Iterable[int]) -> dict[int, str]:
    """Images that cannot be read, and why."""
    found = {}
    for number in numbers:
        try:
            with source.open(number) as file:
                read_rgb(file)
        except Exception as error:  # decoders raise whatever they like
            found[number] = _reason(error)
    return found


def _reason(error: Exception) -> str:
    """In a line, without the name of the file, which is told anyway."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.sub(r"(: '.*'| <_io\..*>)$", "", str(text).splitlines()[0])


def _collate(samples: list[_Sample]) -> Batch:
    good = [sample for sample in samples if sample.pixels is not None]
    images = torch.from_numpy(np.stack([sample.pixels for sample in good])) if good else torch.empty(0)
    labels = torch.tensor([sample.label for sample in good], dtype=torch.int64)
    return Batch(images, labels, [problem for sample in samples for problem in sample.problems])


def make_loader(pictures: Pictures, order: Order, loaders: int, device: torch.device, keep: bool) -> DataLoader[Any]:
    return DataLoader(
        pictures,
        batch_sampler=order,  # pairs of a position and a seed
        num_workers=loaders,
        collate_fn=_collate,
        pin_memory=device.type == "cuda",
        persistent_workers=keep and loaders > 0,
        generator=torch.Generator(),  # its own: the one of dropout stays untouched
    )


class Loaded:
    """The batches of one pass."""

    def __init__(self, loader: DataLoader[Any] | None = None) -> None:
        self.loader = loader
        self.batches: Iterator[Batch] = iter(loader if loader is not None else ())

    def next(self) -> Batch | None:
        try:
            return next(self.batches, None)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            reason = str(error).splitlines()[0]
            raise DataError(f"a process that reads images died ({reason}); use fewer, --loaders 1, say") from None

    @contextmanager
    def closing(self) -> Iterator[None]:
        """An error ends the processes too: it keeps alive all that it went through, and they would wait."""
        try:
            yield
        except DataError:
            self.batches = iter(())
            if self.loader is not None:
                self.loader._iterator = None
            raise


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Both sources of randomness that transforms draw from; afterwards they are as before."""
    python, generator = random.getstate(), torch.default_generator.get_state()
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        torch.default_generator.set_state(generator)


def training_transform(size: int, mirror: bool) -> Transform:
    from timm.data.transforms import RandomCropOrPad, ResizeKeepRatio
    from torchvision import transforms

    resize = ResizeKeepRatio(int(size / CROP_SHARE), longest=0.0, interpolation="bilinear")
    steps = [resize, RandomCropOrPad(size), *([transforms.RandomHorizontalFlip()] if mirror else [])]
    return transforms.Compose(steps)  # type: ignore[no-any-return]


def evaluation_transform(size: int) -> Transform:
    from timm.data import create_transform
    from torchvision import transforms

    composed = create_transform(size, is_training=False, crop_pct=CROP_SHARE, interpolation="bilinear", normalize=False)
    return transforms.Compose(composed.transforms[:-1])  # type: ignore[no-any-return]  # all but the tensor
