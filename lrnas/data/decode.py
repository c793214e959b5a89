"""One image file as RGB, whatever it was: what can be converted sensibly is, the rest is refused with a reason."""

from __future__ import annotations

import warnings
from typing import BinaryIO

import numpy as np
from PIL import Image


def read_rgb(file: BinaryIO) -> Image.Image:
    """The picture, decoded in full. Raises whatever its decoder raises, or ValueError for what has no RGB form."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on metadata, one per file
        with Image.open(file) as image:
            image.load()
            return _to_rgb(image)


def _to_rgb(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        picture = image.convert("RGBA")
        paper = Image.new("RGBA", image.size, "white")  # what shines through, as on a page
        return Image.alpha_composite(paper, picture).convert("RGB")
    if mode.startswith("I"):  # greyscale of 16 bits, which PIL would cut off at 255
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError(f"mode {mode} with values from {values.min()} to {values.max()}")
        return Image.fromarray((values // 257).astype(np.uint8)).convert("RGB")
    if mode == "F":
        raise ValueError("mode F, numbers without a known range")
    return image if mode == "RGB" else image.convert("RGB")  # L, 1, P, CMYK, YCbCr, HSV; LAB is refused by PIL
