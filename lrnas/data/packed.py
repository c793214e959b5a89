"""Data sets in files, which are packed when they are first used (`lrnas.data.packs`).

Packed images are resized so that their shorter side is 8/7 of the input size (256 for 224, as usual for ILSVRC). In
training they are cropped at random, otherwise in the middle. The order, the crops and the reflections depend only on
the seed and the epoch.

An image that cannot be read is left out. A run ends if this concerns more than 1 % of the images in a split (in a split
of less than 100 images: a single one).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lrnas._distributed import rank, world_size
from lrnas._messages import logger
from lrnas.data.crops import (
    DecodedBatches,
    NextBatches,
    Pixels,
    WholePack,
    copy_pack,
    decode_jpegs,
    make_places,
    middle_boxes,
    normalise,
    random_boxes,
    random_resized_boxes,
    take,
)
from lrnas.data.in_memory import DataSet
from lrnas.data.names import IMAGE_MEMORY, Progress, first_few, parse_name, shown_name
from lrnas.data.packs import ExpectedPack, Images, Pack, estimate_pack, middle, open_pack
from lrnas.data.shared_copy import CannotShare, share_file
from lrnas.data.sources import Found, Source
from lrnas.data.splits import Indices, stratified
from lrnas.errors import DataError, UnreadableImages, error_line
from lrnas.recipes import InvalidRecipe, Recipe

MOST_UNREADABLE = 0.01
EVAL_BATCH = 256
VALIDATION_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class PackedSplit:
    """A split: some or all images of a source."""

    title: str
    """training, validation or test."""
    source: Source
    part: str
    """Name of the source in the data set: train, val or test."""
    where: Indices
    """The images of the split, by number in the source."""

    def __len__(self) -> int:
        return len(self.where)

    def describe(self, pack: Pack) -> str:
        """Return a message about unreadable images of this split; "" if there are none."""
        first = pack.first(self.part)
        bad = [int(number) for number in self.where if first + int(number) in pack.unreadable]
        if not bad:
            return ""
        few = "; ".join(f"{self.source.name(number)} ({pack.unreadable[first + number]})" for number in bad[:3])
        are, them = ("is", "it") if len(bad) == 1 else ("are", "them")
        result, condition = f"{are} left out", ", unless a study has begun with these images"
        if self._too_many(len(bad)):
            result, condition = f"more than {100 * MOST_UNREADABLE:g} % end a run", ""
        number = f"{len(bad):,} of {len(self):,} {self.title} images cannot be read"
        more = "; …" if len(bad) > 3 else ""
        return f"{number}, and {result}: {few}{more}; repair or remove {them}{condition}"

    def readable(self, pack: Pack) -> tuple[Indices, Indices]:
        """Return the readable images, as columns of the pack's table, and their classes.

        Raises UnreadableImages if too many images cannot be read.
        """
        kept = self._kept(pack)
        if self._too_many(len(self) - len(kept)):
            raise UnreadableImages(self.describe(pack))
        return pack.table[:, pack.first(self.part) + kept], self.source.labels[kept]

    def num_readable(self, pack: Pack) -> int:
        """Return the number of readable images."""
        return len(self._kept(pack))

    def _kept(self, pack: Pack) -> Indices:
        """Return the readable images, by number in the source."""
        return self.where[~np.isin(pack.first(self.part) + self.where, list(pack.unreadable))]

    def _too_many(self, number: int) -> bool:
        return number > MOST_UNREADABLE * len(self)


class PackOnDevices:
    """The pack of a data set, opened when it is first needed, and its pixels on the devices that train.

    Args:
        found: The data set.
        identity: Its identity.
        image_size: Rows and columns of the network's input.
        folder: Where data sets are kept.
        kind: Kind of the pack, as in `open_pack`.
        image_memory: Largest share of a GPU's memory for the pack. A larger pack stays in files.
        gpu_share: The part of a GPU that this process has, where processes cannot share a copy of the pack.
    """

    def __init__(
        self,
        found: Found,
        identity: str,
        image_size: int,
        folder: str | Path | None,
        kind: str | None,
        image_memory: float,
        gpu_share: float,
    ) -> None:
        self.found, self.identity, self.image_size, self.folder = found, identity, image_size, folder
        self.kind, self.image_memory, self.gpu_share = kind, image_memory, gpu_share
        self.placement = ""
        """Where the pixels are while a GPU trains, in words; "" if this is not decided yet."""
        self._pack: Pack | None = None
        self._copies: dict[torch.device, Tensor | None] = {}
        self._decoders: dict[torch.device, torch.device] = {}

    def open(self, progress: Progress | None = None) -> Pack:
        """Return the pack; images are packed if there is none."""
        if self._pack is None:
            self._pack = open_pack(self.found, self.identity, self.image_size, self.folder, progress, self.kind)
        return self._pack

    def expected(self) -> ExpectedPack:
        """Return what `open` would return, without packing."""
        return estimate_pack(self.found, self.identity, self.image_size, self.folder, self.kind)

    def pixels(self, device: torch.device, crops: int, images: int) -> Pixels:
        """Return the pixels for a training or an evaluation.

        Args:
            device: Where batches are needed.
            crops: Largest number of pixels of the crops of a batch.
            images: Largest number of pixels of the images that the crops of a batch are taken from.
        """
        pack = self.open()
        if pack.kind == "jpeg":
            if device not in self._decoders:
                self._decoders[device] = device if device.type == "cpu" else self._decoder(pack, device)
            return DecodedBatches(pack.data, pack.table, pack.bounds, images, device, self._decoders[device])
        if device not in self._copies:
            on_cpu = device.type == "cpu"
            self._copies[device] = copy_pack(pack.pixels, device) if on_cpu else self._on_gpu(pack, device)
        copied = self._copies[device]
        return NextBatches(pack.pixels, crops, device) if copied is None else WholePack(copied)

    def _on_gpu(self, pack: Pack, device: torch.device) -> Tensor | None:
        """Return the pixels in a GPU's memory: those that all processes share, or a copy; None if there is no room."""
        free, total = torch.cuda.mem_get_info(device)
        size, most = pack.pixels.nbytes, self.image_memory * total
        copied, reason = None, f"there, images may take {most / 1e9:.1f} GB"
        if size <= most:
            try:
                copied, reason = share_file(pack.file, device, self.image_memory).view(-1, 3), "once for all trainings"
            except CannotShare as error:
                reason = f"one copy for all trainings is not possible: {error}"
                if size <= min(self.gpu_share * most, self.image_memory * free):
                    copied = copy_pack(pack.pixels, device)
        place = f"read from {pack.file.parent} batch by batch" if copied is None else "in the memory of the GPU"
        name = shown_name(self.found.name)
        self.placement = f"{name}: {size / 1e9:.1f} GB of packed images are {place} ({reason})"
        logger.info(self.placement)
        return copied

    def _decoder(self, pack: Pack, device: torch.device) -> torch.device:
        """Return where JPEGs are decoded for a GPU: there, or on the CPU if nvJPEG does not decode an image."""
        decoder, place = device, "the GPU"
        first, end = next((first, end) for first, end in pairwise(pack.bounds) if end > first)
        torch.cuda.synchronize(device)  # nvJPEG does not wait for other work of the GPU
        try:
            decode_jpegs([torch.from_numpy(pack.data[first:end].copy())], device)
        except RuntimeError as error:
            decoder, place = torch.device("cpu"), f"the CPU, because the GPU cannot: {error_line(error)}"
        name = shown_name(self.found.name)
        self.placement = (
            f"{name}: {pack.bounds[-1] / 1e9:.1f} GB of packed JPEGs are decoded batch by batch, on {place}"
        )
        logger.info(self.placement)
        return decoder


@dataclass(frozen=True)
class PackedSet(DataSet):
    """A data set in files."""

    name: str
    identity: str
    classes: tuple[str, ...]
    image_size: int
    train: PackedSplit
    val: PackedSplit
    _test: PackedSplit
    pack: PackOnDevices
    own_crops: bool = True
    channels: int = 3
    eval_batch: int = EVAL_BATCH

    @property
    def num_bytes(self) -> int:
        return self.pack.open().gpu_bytes

    def joined(self) -> PackedSet:
        if self.val.part != self.train.part:
            raise InvalidRecipe(
                f"all_images needs validation images that were taken from train; those of {self.name} are separate; "
                "set all_images=false"
            )
        where = np.sort(np.concatenate([self.train.where, self.val.where]))
        return replace(self, train=replace(self.train, where=where))

    @property
    def split(self) -> str:
        if self.val.part != self.train.part:
            return ""
        if self.pack.found.note:
            return "a tenth of the other images"
        return f"a tenth of train/, because {self._test.part}/ holds the test images"

    def remarks(self) -> list[str]:
        note = self.pack.found.note
        found = [*self.pack.found.remarks, *([f"{note}, and a tenth of the others for validation"] if note else [])]
        for split in (self.val, self._test):
            counts = np.bincount(split.source.labels[split.where], minlength=self.num_classes)
            if missing := [self.classes[i] for i in np.flatnonzero(counts == 0)]:
                which = "this class" if len(missing) == 1 else "these classes"
                found.append(
                    f"there are no {split.title} images of {first_few(missing)}: the {split.title} accuracy does not "
                    f"cover {which}"
                )
        return found

    def prepare(self, progress: Progress | None = None) -> None:
        self.check_readable(progress)
        for line in self.unreadable():
            logger.warning(line)

    def check_readable(self, progress: Progress | None = None) -> None:
        """Raise UnreadableImages if too many images of a split cannot be read, also of the test images.

        Args:
            progress: As in `unreadable`.
        """
        pack = self.pack.open(progress)
        for split in (self.train, self.val, self._test):
            split.readable(pack)

    def unreadable(self, progress: Progress | None = None) -> list[str]:
        """Return one line for each split with images that cannot be read.

        Args:
            progress: Callback that shows the progress of packing, if it is necessary.
        """
        pack = self.pack.open(progress)
        return [line for split in (self.train, self.val, self._test) if (line := split.describe(pack))]

    @property
    def placement(self) -> str:
        return self.pack.placement

    @property
    def num_unreadable(self) -> int:
        return len(self.pack.open().unreadable)

    @property
    def counts(self) -> tuple[int, int, int]:
        pack = self.pack.open()
        train, val, test = (split.num_readable(pack) for split in (self.train, self.val, self._test))
        return train, val, test

    def first_images(self, number: int) -> Tensor:
        """Return some validation images, prepared as for evaluation. The data set is not packed for them.

        Args:
            number: Number of images; fewer are returned if there are not so many.
        """
        images, size = Images({self.val.part: self.val.source}, self.image_size), self.image_size
        crops = []
        for image in islice(filter(images.is_readable, self.val.where.tolist()), number):
            pixels = images.decode(image, images.measure(image))
            top, left = (middle(length, size) for length in pixels.shape[:2])
            crops.append(torch.from_numpy(pixels[top : top + size, left : left + size].copy()))
        if not crops:
            raise UnreadableImages(f"no validation image of {self.name} can be read; repair them, or give other --data")
        return normalise(torch.stack(crops), *_shift_and_scale(torch.device("cpu")), torch.float32)

    def batches(self, recipe: Recipe, device: torch.device, cache: Path | None) -> tuple[_TrainCrops, _EvalCrops]:
        validation = self.eval_batches(self.val, recipe, device, cache)
        return _TrainCrops(self.train, self.pack, recipe, device), validation

    def eval_batches(self, split: PackedSplit, recipe: Recipe, device: torch.device, cache: Path | None) -> _EvalCrops:
        if recipe.whiten:
            raise InvalidRecipe(f"whitening needs all images in memory; {self.name} is read in parts; set whiten=false")
        for name in ("crop", "pad"):
            if value := getattr(recipe, name):
                raise InvalidRecipe(
                    f"images of {self.name} are always cropped to {self.image_size} pixels, so {name} must be 0; got "
                    f"{value}; choose the size with --image-size"
                )
        return _EvalCrops(split, self.pack, device)


def make_packed(
    found: Found,
    image_size: int,
    folder: str | Path | None = None,
    kind: str | None = None,
    image_memory: float = IMAGE_MEMORY,
    gpu_share: float = 1.0,
) -> PackedSet:
    """Make a data set from its sources. Its images are packed when they are first needed.

    If there are both val and test, val holds the validation images and test the test images. If there is only one of
    them, it holds the test images, and a fixed tenth of every class of train becomes the validation images.

    Args:
        found: Name, classes and sources of the data set.
        image_size: Rows and columns of the images after cropping.
        folder: Where data sets are kept, and packs too.
        kind: Kind of the pack: pixels or jpeg; None: as in `open_pack`.
        image_memory: Largest share of a GPU's memory for packed images.
        gpu_share: The part of a GPU that this process has.

    Returns:
        The data set. Its identity is its kind, a hash of the sources' contents and, if there is one, the hash of the
        files' bytes.
    """
    name, classes, sources, bytes_hash = found[:4]
    digest = hashlib.sha256("\n".join(classes).encode())
    for title in sorted(sources):
        for part in sources[title].contents():
            digest.update(part + b"\n")
    train = sources["train"]
    counts = np.bincount(train.labels, minlength=len(classes))
    if found.note:  # lrnas has split them
        whole = np.sum([np.bincount(source.labels, minlength=len(classes)) for source in sources.values()], axis=0)
        if few := [f"{classes[i]} ({whole[i]})" for i in np.flatnonzero(whole < 3)]:
            raise DataError(
                "every class needs at least 3 images, one each for training, validation and tests; got fewer for "
                f"{first_few(few)} in {name}; add images"
            )
    for title, source in sources.items():
        if missing := [classes[i] for i in np.unique(source.labels) if not counts[i]]:
            raise DataError(
                f"every class needs training images; {name} has {first_few(missing)} only in {title}/; add training "
                "images"
            )
    if {"val", "test"} <= sources.keys():
        training, validation = (
            _whole(title, sources, part) for title, part in (("training", "train"), ("validation", "val"))
        )
    else:
        if few := [classes[i] for i in np.flatnonzero(counts == 1)]:
            raise DataError(
                f"every class needs at least 2 training images, because one is used for validation; got one for "
                f"{first_few(few)} in {name}; add images"
            )
        kept, chosen = stratified(train.labels, VALIDATION_SHARE)
        training, validation = (
            PackedSplit("training", train, "train", kept),
            PackedSplit("validation", train, "train", chosen),
        )
    test = _whole("test", sources, "test" if "test" in sources else "val")
    identity = f"{parse_name(name)[0]}:{digest.hexdigest()[:16]}{bytes_hash and '+'}{bytes_hash}"
    pack = PackOnDevices(found, identity, image_size, folder, kind, image_memory, gpu_share)
    return PackedSet(name, identity, classes, image_size, training, validation, test, pack)


def _whole(title: str, sources: Mapping[str, Source], part: str) -> PackedSplit:
    return PackedSplit(title, sources[part], part, np.arange(len(sources[part].labels)))


class _TrainCrops:
    """Training batches of a pack: shuffled, cropped and mirrored. Every worker takes its own share of a batch."""

    def __init__(self, split: PackedSplit, pack: PackOnDevices, recipe: Recipe, device: torch.device) -> None:
        self.device, self.crop = device, pack.image_size
        self.mirror, self.min_area = recipe.mirror, recipe.min_area
        self.images, self.labels = split.readable(pack.open())
        self.batch_size = min(recipe.batch_size, len(self.labels))
        self.steps = len(self.labels) // self.batch_size
        share = self.batch_size // world_size()
        own = range(rank() * share, self.steps * self.batch_size, self.batch_size)
        self.own = [slice(first, first + share) for first in own]
        """The crops of this worker, step by step."""
        whole = _most_pixels(self.images, share)
        self.pixels = pack.pixels(device, whole if self.min_area else share * self.crop**2, whole)
        self.places = torch.zeros(6, self.steps * self.batch_size, dtype=torch.int64, device=device)
        self.shift, self.scale = _shift_and_scale(device)

    def start_epoch(self, generator: torch.Generator) -> None:
        """Draw the epoch's order, crops and reflections."""
        number = self.places.shape[1]
        order = torch.randperm(len(self.labels), generator=generator)[:number].numpy()
        images = self.images[:, order]
        _, rows, columns = torch.from_numpy(images)
        if self.min_area:
            boxes = random_resized_boxes(rows, columns, self.min_area, generator)
        else:
            boxes = random_boxes(rows, columns, self.crop, generator)
        mirrored = torch.randint(2 if self.mirror else 1, (number,), generator=generator)
        self.places.copy_(self.pixels.begin(make_places(images, self.labels[order], boxes, mirrored), self.own))

    def load(self, step: int) -> None:
        """Bring the pixels of a step to the device, unless all pixels are there."""
        self.pixels.load(step)

    def take(self, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        resize = bool(self.min_area)
        return take(self.pixels.pixels, places, self.crop, resize, self.shift, self.scale, dtype), places[5]


class _EvalCrops:
    """Evaluation batches of a pack: readable images in order, cropped in the middle. Every worker takes its share."""

    def __init__(self, split: PackedSplit, pack: PackOnDevices, device: torch.device) -> None:
        self.pack, self.device = pack, device
        images, labels = split.readable(pack.open())
        images, labels = images[:, rank() :: world_size()], labels[rank() :: world_size()]
        _, rows, columns = torch.from_numpy(images)
        self.most_pixels = _most_pixels(images, EVAL_BATCH)
        boxes = middle_boxes(rows, columns, pack.image_size)
        self.places = make_places(images, labels, boxes, torch.zeros(len(labels), dtype=torch.int64))
        self.shift, self.scale = _shift_and_scale(device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        batches = [slice(i, i + EVAL_BATCH) for i in range(0, self.places.shape[1], EVAL_BATCH)]
        size = self.pack.image_size
        pixels = self.pack.pixels(self.device, EVAL_BATCH * size**2, self.most_pixels)
        places = pixels.begin(self.places, batches).to(self.device)
        for number, batch in enumerate(batches):
            pixels.load(number)
            crops = take(pixels.pixels, places[:, batch], size, False, self.shift, self.scale, torch.float32)
            yield crops, places[5, batch]


def _most_pixels(images: Indices, number: int) -> int:
    """Return the largest number of pixels that so many images have together."""
    return int(np.sort(images[1] * images[2])[-number:].sum())


def _shift_and_scale(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the shift and scale per channel that give ILSVRC images mean 0 and deviation 1."""
    from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))
    return (-mean / std).float().to(device), (1 / (255 * std)).float().to(device)
