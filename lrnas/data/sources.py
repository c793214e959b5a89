"""Encoded images in files, and how one of them is decoded."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import BytesIO
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from lrnas.data.splits import Indices

CROP_SHARE = 224 / 256
"""Size of a crop as a share of the resized image's shorter side."""
DEFAULT_SIZE = 224
"""Default rows and columns of images in files."""

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
    note: str = ""
    """How the images were split, if they are not split in the files."""
    remarks: tuple[str, ...] = ()
    """What else a user should know, such as files that are ignored."""


def read_rgb(file: BinaryIO) -> Image.Image:
    """Decode an image as RGB. Raises ValueError if it cannot be converted, and any error of the decoder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks about metadata, one per file
        with Image.open(file) as image:
            image.load()
            return _to_rgb(image)


def read_pixels(file: BinaryIO) -> npt.NDArray[np.uint8]:
    """Decode an image as RGB, [rows, columns, 3]. Raises the same errors as `read_rgb`."""
    return np.array(read_rgb(file))


def read_pixels_quickly(file: BinaryIO) -> npt.NDArray[np.uint8]:
    """`read_pixels` with torchvision's decoder for JPEGs, which may write remarks to the standard error of the process.

    It saves the time in which PIL's pixels of four bytes are copied. Whatever it does not decode, PIL decodes.
    """
    from torchvision.io import decode_jpeg  # takes a second

    data = bytearray(file.read())
    if data.startswith(b"\xff\xd8\xff"):
        with suppress(RuntimeError):
            decoded: torch.Tensor = decode_jpeg(torch.frombuffer(data, dtype=torch.uint8))
            if len(decoded) == 3:  # neither grey nor CMYK
                return decoded.permute(1, 2, 0).numpy()
    return read_pixels(BytesIO(data))


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


def reason(error: Exception) -> str:
    """Return an error's message as one line, without the name of the file, which is shown beside it."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.sub(r"(: '.*'| <_io\..*>)$", "", str(text).splitlines()[0])
