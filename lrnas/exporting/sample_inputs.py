"""Images for checking an exported network, and how users of the network must prepare images.

The images are validation images of the data set that the network was trained on, if it is on this machine; an export
never downloads anything. Otherwise they are random, with mean 0 and standard deviation 1 like normalised images.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor

from lrnas._messages import logger
from lrnas.arch.backbone_shapes import smallest_input
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet, ImageSet, Preprocessing
from lrnas.data.names import FILE_KINDS, SETS, data_folder, is_in_files
from lrnas.data.packed import PackedSet
from lrnas.data.sources import CROP_SHARE
from lrnas.errors import DataError
from lrnas.exporting.sources import ExportError, Source
from lrnas.models.plan import resolve_backbone, training_size
from lrnas.recipes import Recipe

FROM_FILES = (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, CROP_SHARE)
"""Mean, standard deviation and share that is cut out, of all images from files."""


@dataclass(frozen=True)
class Inputs:
    """Images that are prepared for a network, and the numbers needed to prepare other images in the same way."""

    images: Tensor
    """Float [number, channels, rows, columns]."""
    what: str
    """Description of the images for messages."""
    mean: tuple[float, ...] | None = None
    """Mean of every channel, for pixels between 0 and 1; None if it is unknown or if images are also whitened."""
    std: tuple[float, ...] | None = None
    """Standard deviation of every channel, under the same conditions as `mean`."""
    crop_share: float | None = None
    """Share of the shorter side of an image that is cut out of its middle; None if it is unknown."""
    classes: tuple[str, ...] = ()
    """Names of the classes; empty if they are unknown."""
    interpolation: str | None = None
    """How images were resized; None if they were not, or if it is unknown."""

    def batch(self, number: int) -> Tensor:
        """A batch with a number of images; they are repeated if there are too few."""
        return self.images.repeat(-(-number // len(self.images)), 1, 1, 1)[:number].contiguous()

    def to_dict(self) -> dict[str, Any]:
        """The values that are stored with an exported network."""
        data: dict[str, Any] = {"input_size": list(self.images.shape[1:])}
        if self.mean is not None and self.std is not None:
            data |= {"mean": list(self.mean), "std": list(self.std)}
        if self.crop_share is not None:
            data["crop_pct"] = self.crop_share  # timm's name
        if self.interpolation is not None:
            data["interpolation"] = self.interpolation
        return data | ({"classes": list(self.classes)} if self.classes else {})


def find_data(
    source: Source, name: str | None, data_dir: str | Path | None, size: int | None
) -> tuple[DataSet | None, str]:
    """Find the data set for checking a network.

    Args:
        source: The network.
        name: Name of a data set; None for the one that the network was trained on.
        data_dir: Folder of the data sets.
        size: Rows and columns of images from files; None for the size in training.

    Returns:
        The data set, or None for random images; and a message if the images of the training cannot be used.
    """
    backbone, _ = resolve_backbone(source.architecture)
    identity = source.identity
    smallest = identity.get("min_size") or smallest_input(backbone)
    trained_on = identity.get("data")
    kind = str(trained_on).partition(":")[0]
    shown = identity.get("data_name") or FILE_KINDS.get(kind, trained_on)  # not the hash of files
    if name is not None:
        image_size = size or identity.get("image_size") or training_size([backbone]) if is_in_files(name) else None
        given = load_set(name, data_dir, min_size=smallest, image_size=image_size)
        is_known = trained_on in SETS or kind in FILE_KINDS
        if source.weights is not None and is_known and given.identity != trained_on:  # its classes would be written
            raise ExportError(
                f"{source.name} was trained on {shown}; got --data {given.name}, which has other images; give those "
                "of the training, or leave it out"
            )
        return given, ""
    if not trained_on:
        return None, ""
    why = f"images of {shown} need --data"
    if (there := identity.get("images") or "").startswith("folder:"):  # others may be downloaded
        with suppress(DataError):  # they were moved, or are on another machine
            found = load_set(there, data_dir, min_size=smallest, image_size=size or identity["image_size"])
            if found.identity == trained_on:
                return found, ""
            why = f"the images of {shown} have changed since the training"
    if trained_on not in SETS:
        unknown = "" if identity.get("classes") else ", and the names of the classes are not written"
        return None, f"checking with random images, because {why}{unknown}"
    if trained_on == "cifar10" and not (data_folder(data_dir) / "cifar10.npz").exists():
        return None, "checking with random images, because cifar10 is not on this machine (see `lrnas data cifar10`)"
    try:
        return load_set(trained_on, data_dir, min_size=smallest), ""
    except DataError as error:
        return None, f"checking with random images: {error}"


def find_inputs(
    source: Source, data: DataSet | None, shape: tuple[int, int, int], data_dir: str | Path | None, size: int | None
) -> Inputs:
    """Take images from a data set, or draw random ones.

    Args:
        source: The network.
        data: The data set; None for random images.
        shape: Channels of the network's images, and the usual rows and columns for the backbone.
        data_dir: Folder of the data sets.
        size: Rows and columns of the images; None for the size in training or, if that is unknown, the size in `shape`.

    Returns:
        The images, at most 64, or 8 if they have more than 64×64 pixels.
    """
    recipe = Recipe(**(source.identity.get("recipe") or {}))
    before = recipe.crop or source.identity.get("image_size")
    if size is not None and source.weights is not None and before not in (None, size):
        unknown = f"its accuracy at {size}×{size} is unknown"
        logger.info(f"{source.name} was trained on images of {before}×{before} pixels; {unknown}")
    if data is None:
        return _random_inputs(source, recipe, shape, size)
    if size is not None and not is_in_files(data.name) and size != (recipe.crop or data.image_size):
        raise ExportError(
            f"--input must be the size of the images of {data.name}, {data.image_size}; got {size}; leave it out"
        )
    if data.channels != shape[0]:
        raise ExportError(
            f"the network takes {shape[0]} channels; the images of {data.name} have {data.channels}; give other --data"
        )
    data = data.joined() if recipe.all_images else data
    number = _number(data.image_size**2)
    if isinstance(data, PackedSet):
        images = data.first_images(number)
    else:
        batches = data.eval_batches(data.val, recipe, torch.device("cpu"), data_folder(data_dir))
        images = next(iter(batches))[0][:number].float().contiguous()
    what = f"{len(images)} validation images of {data.name}, {images.shape[2]}×{images.shape[3]} pixels"
    classes = tuple(data.classes)
    if not isinstance(data, ImageSet):
        return Inputs(images, what, *FROM_FILES, classes, "bilinear")
    share = min(1.0, images.shape[2] / data.image_size)
    if recipe.whiten:
        return Inputs(images, what, None, None, share, classes)
    fitted = Preprocessing(data, False, torch.device("cpu"))
    mean, std = (tuple((values / 255).tolist()) for values in (fitted.mean, fitted.std))
    return Inputs(images, what, mean, std, share, classes)


def image_config(source: Source, shape: tuple[int, int, int]) -> dict[str, Any]:
    """How images must be prepared for a trained network, and names of classes, under timm's names, as far as known.

    Args:
        source: The network.
        shape: As in `find_inputs`.
    """
    data = find_data(source, None, None, None)[0] if source.identity.get("data") in SETS else None
    config = find_inputs(source, data, shape, None, None).to_dict()
    classes = config.pop("classes", ())
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
    return lists | ({"label_names": tuple(classes)} if classes else {})


def _random_inputs(source: Source, recipe: Recipe, shape: tuple[int, int, int], size: int | None) -> Inputs:
    channels, rows, columns = shape
    trained_on = str(source.identity.get("data", ""))
    if own_shape := re.search(r"\b\d+x(\d+)x(\d+)\b", trained_on):  # the training function loaded its own data
        rows, columns = int(own_shape[1]), int(own_shape[2])
    elif known := recipe.crop or source.identity.get("image_size"):
        rows = columns = int(known)
    elif config := source.identity.get("pretrained_cfg"):  # of a network that is part of lrnas
        rows, columns = config["input_size"][1:]
    if size is not None:
        rows = columns = size
    number = _number(rows * columns)
    images = torch.randn(number, channels, rows, columns, generator=torch.Generator().manual_seed(0))
    what = f"{number} random images of {rows}×{columns} pixels"
    if config := source.identity.get("pretrained_cfg"):
        mean, std = (tuple(config[key]) if key in config else None for key in ("mean", "std"))
        return Inputs(images, what, mean, std, config.get("crop_pct"), tuple(config.get("label_names", ())))
    if trained_on.partition(":")[0] not in FILE_KINDS:
        return Inputs(images, what)
    # images from files are all normalised and cropped in the same way
    classes = tuple(source.identity.get("classes", ()))
    return Inputs(images, what, *FROM_FILES, classes, "bilinear")


def _number(pixels: int) -> int:
    """The number of images to check with: fewer if they are large."""
    return 8 if pixels > 64 * 64 else 64
