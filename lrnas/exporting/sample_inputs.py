"""Images to try an exported network on, and what a network must be told about images.

They are validation images of the set that the network was trained on, where that is at hand; an export downloads
nothing. Else they are drawn at random, as images look after normalisation: mean 0 and deviation 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from lrnas.arch.backbone_shapes import smallest_input
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet, ImageSet, Preprocessing
from lrnas.data.names import SETS, STREAMS, data_folder, is_stream
from lrnas.data.workers import CROP_SHARE, STREAM_SIZE
from lrnas.errors import DataError, LrnasError
from lrnas.exporting.sources import ExportError, Source
from lrnas.models.plan import resolve_backbone, training_size
from lrnas.recipes import Recipe

IMAGES, LARGE, FEW = 64, 64 * 64, 8
"""Images to try; of those with more pixels, fewer."""


@dataclass(frozen=True)
class Inputs:
    """Images as a network takes them, float [number, channels, rows, columns]."""

    images: Tensor
    what: str
    """They are, in words."""
    mean: tuple[float, ...] | None = None
    """Of every channel, that of a pixel between 0 and 1; None where it is not known, or not all that is done."""
    std: tuple[float, ...] | None = None
    crop_share: float | None = None
    """Of the shorter side of an image, what is cut out of its middle; None where it is not known."""
    classes: tuple[str, ...] = ()

    def batch(self, number: int) -> Tensor:
        """So many of them, from the start again where there are fewer."""
        return self.images.repeat(-(-number // len(self.images)), 1, 1, 1)[:number].contiguous()

    def to_dict(self) -> dict[str, Any]:
        """What to write beside a network."""
        data: dict[str, Any] = {"input_size": list(self.images.shape[1:])}
        if self.mean is not None and self.std is not None:
            data |= {"mean": list(self.mean), "std": list(self.std)}
        if self.crop_share is not None:
            data["crop_pct"] = self.crop_share  # as timm calls it
        return data | ({"classes": list(self.classes)} if self.classes else {})


def find_data(
    source: Source, name: str | None, data_dir: str | Path | None, size: int | None, say: Callable[[str], object]
) -> DataSet | None:
    """The set a network is for: the one asked for, else the one it was trained on where that is at hand."""
    backbone, _ = resolve_backbone(source.architecture)
    smallest = source.identity.get("min_size") or smallest_input(backbone)
    if name is not None:
        # older runs do not say what size it was, where it was this one
        own = STREAM_SIZE if _is_of_files(source) else training_size([backbone])
        image_size = size or source.identity.get("image_size") or own
        in_files = is_stream(name)
        return load_set(name, data_dir, min_size=smallest, image_size=image_size if in_files else None, loaders=0)
    trained_on = source.identity.get("data")
    if trained_on not in SETS:
        if trained_on:
            unknown = "" if source.identity.get("classes") else ", and writing no names of classes"
            name = source.identity.get("data_name") or trained_on
            say(f"images of {name} would need --data: trying random ones{unknown}")
        return None
    if trained_on == "cifar10" and not (data_folder(data_dir) / "cifar10.npz").exists():
        say("cifar10 is not at hand (`lrnas data cifar10` fetches it): trying random images")
        return None
    try:
        return load_set(trained_on, data_dir, min_size=smallest)
    except DataError as error:
        say(f"{error}: trying random images")
        return None


def find_inputs(
    source: Source, data: DataSet | None, shape: tuple[int, int, int], data_dir: str | Path | None, size: int | None
) -> Inputs:
    """Images of a set, or random ones: of `size`, else of the size trained with, else of the `shape` of its kind."""
    if data is None:
        channels, rows, columns = shape
        if told := re.search(r"\b\d+x(\d+)x(\d+)\b", str(source.identity.get("data", ""))):
            rows, columns = int(told[1]), int(told[2])
        elif known := _recipe(source).crop or source.identity.get("image_size"):
            rows = columns = int(known)
        if size is not None:
            rows = columns = size
        number = FEW if rows * columns > LARGE else IMAGES
        drawn = torch.randn(number, channels, rows, columns, generator=torch.Generator().manual_seed(0))
        what = f"{number} random images of {rows}×{columns} pixels"
        if _is_of_files(source):  # all of these are normalised and cropped alike
            classes = tuple(source.identity.get("classes", ()))
            return Inputs(drawn, what, IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, CROP_SHARE, classes)
        return Inputs(drawn, what)
    recipe = _recipe(source)
    if size is not None and not is_stream(data.name) and size != (recipe.crop or data.image_size):
        raise ExportError(f"the images of {data.name} have {data.image_size} pixels a side; got {size}; leave it out")
    if data.channels != shape[0]:
        raise ExportError(
            f"the network takes {shape[0]} channels; the images of {data.name} have {data.channels}; give other --data"
        )
    number = FEW if data.image_size**2 > LARGE else IMAGES
    data = data.joined() if recipe.all_images else data
    batches = data.eval_batches(data.val, recipe, torch.device("cpu"), data_folder(data_dir))
    images = next(iter(batches))[0][:number].float().contiguous()
    mean, std = _pixels(data, recipe)
    what = f"{len(images)} validation images of {data.name}, {images.shape[2]}×{images.shape[3]} pixels"
    share = min(1.0, images.shape[2] / data.image_size) if isinstance(data, ImageSet) else CROP_SHARE
    return Inputs(images, what, mean, std, share, tuple(data.classes))


def _is_of_files(source: Source) -> bool:
    """Whether a network was trained on images that are read as they are needed, whose set is known by its content."""
    return str(source.identity.get("data", "")).partition(":")[0] in STREAMS


def _recipe(source: Source) -> Recipe:
    """How images were prepared in training; as they are where nobody says."""
    try:
        return Recipe(**Recipe.complete(source.identity.get("recipe") or {}))
    except (LrnasError, TypeError):  # of another version
        return Recipe()


def _pixels(data: DataSet, recipe: Recipe) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and deviation that pixels between 0 and 1 are normalised with."""
    if not isinstance(data, ImageSet):
        return IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    if recipe.whiten:
        return None, None
    fitted = Preprocessing(data, False, torch.device("cpu"))
    return tuple((fitted.mean / 255).tolist()), tuple((fitted.std / 255).tolist())
