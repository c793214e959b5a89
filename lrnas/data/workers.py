"""The work of loader processes: opening, decoding, resizing, cropping and mirroring images, and making batches."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lrnas.data.splits import Indices
from lrnas.errors import DataError

CROP_SHARE = 224 / 256
"""Size of a crop as a share of the resized image's shorter side."""
STREAM_SIZE = 224
"""Default rows and columns of images that are read from files."""
TRIES = 100
"""After this many unreadable images in a row, a batch stays incomplete."""

Transform = Callable[[Image.Image], Image.Image]
Problem = tuple[int, str]
"""The number of an image in its source, and the reason why it cannot be read."""


class Source(Protocol):
    """Encoded images by number, and their classes."""

    @property
    def labels(self) -> Indices: ...

    def open(self, index: int) -> BinaryIO: ...

    def name(self, index: int) -> str:
        """Return a description of where the image is stored, for messages."""

    def contents(self) -> Iterable[bytes]:
        """Yield bytes that differ between sources, to be hashed."""

    def version(self) -> bytes:
        """Return bytes that change when the files change, as far as `contents` and `Found.bytes_hash` may miss it."""


class Found(NamedTuple):
    """A data set found in files."""

    name: str
    """Its name, with absolute paths."""
    classes: tuple[str, ...]
    sources: Mapping[str, Source]
    """The splits: train, and val or test or both."""
    bytes_hash: str = ""
    """Hash of the files' bytes, for sources whose `contents` are only names."""


def read_rgb(file: BinaryIO) -> Image.Image:
    """Decode an image as RGB. Raises ValueError if it cannot be converted, and any error of the decoder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks about metadata, one per file
        with Image.open(file) as image:
            image.load()
            return _to_rgb(image)


def read_size(file: BinaryIO) -> tuple[int, int]:
    """Return the rows and columns of an image, from its header. Raises any error of the decoder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(file) as image:
            return image.height, image.width


def _to_rgb(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        background = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(background, image.convert("RGBA")).convert("RGB")
    if mode.startswith("I"):  # 16-bit greyscale, which PIL would clip at 255
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError(f"mode {mode} with values from {values.min()} to {values.max()}")
        return Image.fromarray((values // 257).astype(np.uint8)).convert("RGB")
    if mode == "F":
        raise ValueError("mode F, numbers without a known range")
    return image if mode == "RGB" else image.convert("RGB")  # L, 1, P, CMYK, YCbCr, HSV; PIL refuses LAB


class Order(Sampler[list[tuple[int, int]]]):
    """Sampler of batches: the positions of images in the split, each with the seed of its crop and reflection."""

    def __init__(self, positions: Sequence[Tensor] = (), seeds: Sequence[Tensor] = ()) -> None:
        self.positions, self.seeds = positions, seeds

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for positions, seeds in zip(self.positions, self.seeds, strict=True):
            yield list(zip(positions.tolist(), seeds.tolist(), strict=True))


class Batch(NamedTuple):
    """A batch made by a loader process."""

    images: Tensor
    """uint8 [number, rows, columns, 3]."""
    labels: Tensor
    problems: list[Problem]
    """Images that could not be read."""


class Pictures(Dataset[Batch]):
    """Reads, crops and mirrors the images of a split, a batch at a time. Errors are stored in the batch, not raised.

    Args:
        source: The encoded images.
        where: The images of the split, by number in the source.
        transform: Makes images of equal size.
        replace: Whether an image that cannot be read is replaced by the next image.
    """

    def __init__(self, source: Source, where: Indices, transform: Transform, replace: bool) -> None:
        self.source, self.where = source, where
        self.transform = transform
        self.tries = min(TRIES, len(where)) if replace else 1

    def __getitem__(self, keys: list[tuple[int, int]]) -> Batch:
        pixels: list[npt.NDArray[np.uint8]] = []
        labels: list[int] = []
        problems: list[Problem] = []
        for index, seed in keys:
            for number in (self.where[(index + i) % len(self.where)] for i in range(self.tries)):
                try:
                    with self.source.open(int(number)) as file:
                        image = read_rgb(file)
                    with _seeded(seed):
                        pixels.append(np.asarray(self.transform(image)))
                    labels.append(int(self.source.labels[number]))
                    break
                except Exception as error:  # decoders raise all kinds of errors
                    problems.append((int(number), reason(error)))
        images = torch.from_numpy(np.stack(pixels)) if pixels else torch.empty(0)
        return Batch(images, torch.tensor(labels, dtype=torch.int64), problems)


def reason(error: Exception) -> str:
    """Return an error's message as one line, without the name of the file, which is shown beside it."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.sub(r"(: '.*'| <_io\..*>)$", "", str(text).splitlines()[0])


def make_loader(pictures: Pictures, order: Order, loaders: int, device: torch.device) -> DataLoader[Batch]:
    """Make the DataLoader of a split; its processes keep running between passes."""
    return DataLoader(
        pictures,
        batch_size=None,  # `order` yields whole batches
        sampler=order,
        num_workers=loaders,
        pin_memory=device.type == "cuda",
        persistent_workers=loaders > 0,
        generator=torch.Generator(),  # its own, so that dropout's random numbers do not change
    )


def read_batches(loader: DataLoader[Batch]) -> Generator[Batch]:
    """Yield the batches of one pass over a split. Closing the generator early ends the loader processes."""
    try:
        yield from loader
    except GeneratorExit:
        loader._iterator = None
        raise
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise DataError(f"a process that reads images died ({reason}); try --loaders 1") from None


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the random generators of Python and torch, which transforms use, and restore them afterwards."""
    python, generator = random.getstate(), torch.default_generator.get_state()
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        torch.default_generator.set_state(generator)


def training_transform(size: int, mirror: bool) -> Transform:
    """Return the transform for training: resize, crop at random, mirror half of the images if `mirror` is set."""
    from timm.data.transforms import RandomCropOrPad, ResizeKeepRatio
    from torchvision import transforms

    resize = ResizeKeepRatio(int(size / CROP_SHARE), longest=0.0, interpolation="bilinear")
    steps = [resize, RandomCropOrPad(size), *([transforms.RandomHorizontalFlip()] if mirror else [])]
    return transforms.Compose(steps)  # type: ignore[no-any-return]


def evaluation_transform(size: int) -> Transform:
    """Return the transform for evaluation: resize, crop the middle."""
    from timm.data import create_transform
    from torchvision import transforms

    composed = create_transform(size, is_training=False, crop_pct=CROP_SHARE, interpolation="bilinear", normalize=False)
    return transforms.Compose(composed.transforms[:-1])  # type: ignore[no-any-return]  # without the conversion to a tensor


def corner(image: Image.Image) -> Image.Image:
    """Crop an image to one pixel: the transform for checking whether images can be read."""
    return image.crop((0, 0, 1, 1))
