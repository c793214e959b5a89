"""Data sets that are read from files during training: loader processes decode the images, batch after batch.

Images are resized so that their shorter side is 8/7 of the input size, then cropped (256 to 224, as usual for ILSVRC):
at a random place in training, in the middle otherwise. The order, the crops and the reflections depend on the seed and
the epoch, but not on the number of loader processes.

An unreadable image is logged once and left out: in training the next image takes its place; in evaluation no image
does. A run ends if more than 1 % of the images in a split are unreadable (in a split of less than 100 images: if a
single one is). At the end of every pass over a split, workers exchange their lists of unreadable images, and
checkpoints store these lists, so the limit holds for all workers together and for the whole run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lrnas._distributed import gather_objects, rank, world_size
from lrnas._messages import logger
from lrnas.data.in_memory import DataSet, Unreadable, normalise
from lrnas.data.names import Progress, first_few, parse_name
from lrnas.data.splits import Indices, stratified
from lrnas.data.workers import (
    TRIES,
    Found,
    Order,
    Pictures,
    Problem,
    Source,
    corner,
    evaluation_transform,
    make_loader,
    read_batches,
    training_transform,
)
from lrnas.errors import DataError, UnreadableImages
from lrnas.recipes import InvalidRecipe, Recipe

MOST_UNREADABLE = 0.01
MOST_LOADERS = 16
EVAL_BATCH = 256
VALIDATION_SHARE = 0.1


@dataclass(slots=True)
class Stream:
    """A split: a selection of the images of a source, and a record of unreadable images."""

    title: str
    source: Source
    where: Indices
    """The images of the split, by number in the source."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Why images could not be read, by number in the source. Splits of the same source share this dictionary."""

    def __len__(self) -> int:
        return len(self.where)

    def report(self, problems: Iterable[Problem]) -> None:
        """Record images that could not be read. Raises UnreadableImages if there are too many."""
        if self.note(problems):
            self.check()

    def share(self, device: torch.device) -> None:
        """Exchange lists of unreadable images with the other workers; every worker must call this.

        If there are too many of them, every worker raises UnreadableImages.
        """
        self.note(item for unreadable in gather_objects(self.unreadable, device) for item in unreadable.items())
        self.check()

    def note(self, problems: Iterable[Problem]) -> bool:
        """Record and log unreadable images that were not known before. Returns whether there were any."""
        new = {number: reason for number, reason in problems if number not in self.unreadable}
        self.unreadable.update(new)
        for number in new:
            logger.warning("leaving out an image that cannot be read: %s", self.describe(number))
        return bool(new)

    def check(self) -> None:
        """Raise UnreadableImages if too many images of this split could not be read."""
        if self._unreadable_here().size > MOST_UNREADABLE * len(self):
            raise UnreadableImages(self.complaint())

    def complaint(self) -> str:
        """Return a message about the unreadable images of this split; "" if there are none."""
        own = self._unreadable_here()
        few = "; ".join(self.describe(int(number)) for number in own[:3]) + ("; …" if own.size > 3 else "")
        too_many = own.size > MOST_UNREADABLE * len(self)
        result = f"and more than {MOST_UNREADABLE:.0%} end a run" if too_many else "and are left out"
        unreadable = f"{own.size:,} of {len(self):,} {self.title} images cannot be read"
        return f"{unreadable}, {result}: {few}; repair or remove them" if own.size else ""

    def _unreadable_here(self) -> Indices:
        return np.intersect1d(np.array(list(self.unreadable), dtype=np.int64), self.where)

    def describe(self, number: int) -> str:
        return f"{self.source.name(number)} ({self.unreadable[number]})"


@dataclass(frozen=True)
class StreamSet(DataSet):
    """A data set whose images are read from files during training."""

    name: str
    identity: str
    classes: tuple[str, ...]
    image_size: int
    train: Stream
    val: Stream
    _test: Stream
    loaders: int
    """Number of processes that read images."""
    own_crops: bool = True
    channels: int = 3

    def joined(self) -> StreamSet:
        if self.val.source is not self.train.source:
            raise InvalidRecipe(
                f"all_images needs validation images that were taken from train; those of {self.name} are separate; "
                "set all_images=false"
            )
        where = np.sort(np.concatenate([self.train.where, self.val.where]))
        return replace(self, train=replace(self.train, where=where))

    def remarks(self) -> list[str]:
        found = []
        for stream in (self.val, self._test):
            counts = np.bincount(stream.source.labels[stream.where], minlength=self.num_classes)
            if missing := [self.classes[i] for i in np.flatnonzero(counts == 0)]:
                which = "this class" if len(missing) == 1 else "these classes"
                found.append(
                    f"there are no {stream.title} images of {first_few(missing)}: the {stream.title} accuracy does not "
                    f"cover {which}"
                )
        return found

    def try_all(self, progress: Progress) -> list[str]:
        """Open every image.

        Args:
            progress: Callback that shows how many images were opened.

        Returns:
            One line for each split with images that cannot be read.
        """
        for stream in self._streams().values():
            numbers = np.arange(len(stream.source.labels))
            blocks = torch.from_numpy(numbers).split(EVAL_BATCH)
            pictures = Pictures(stream.source, numbers, corner, replace=False)
            loader = make_loader(pictures, Order(blocks, blocks), self.loaders, torch.device("cpu"))
            for block, batch in zip(blocks, read_batches(loader), strict=True):
                stream.unreadable.update(batch.problems)
                progress("reading images", int(block[-1]) + 1, len(numbers))
        return [line for stream in (self.train, self.val, self._test) if (line := stream.complaint())]

    @property
    def unreadable(self) -> Unreadable:
        return {name: list(stream.unreadable.items()) for name, stream in self._streams().items() if stream.unreadable}

    def restore_unreadable(self, unreadable: Unreadable) -> None:
        for name, problems in unreadable.items():
            self._streams()[name].note((number, reason) for number, reason in problems)

    def _streams(self) -> dict[str, Stream]:
        """Return splits by name, one for every source."""
        own_val = {"val": self.val} if self.val.source is not self.train.source else {}
        return {"train": self.train, **own_val, "test": self._test}

    def batches(self, recipe: Recipe, device: torch.device, cache: Path | None) -> tuple[_TrainStream, _EvalStream]:
        validation = self.eval_batches(self.val, recipe, device, cache)
        return _TrainStream(self.train, self.image_size, self.loaders, recipe, device), validation

    def eval_batches(self, split: Stream, recipe: Recipe, device: torch.device, cache: Path | None) -> _EvalStream:
        if recipe.whiten:
            raise InvalidRecipe(f"whitening needs all images in memory; {self.name} is read in parts; set whiten=false")
        for name in ("crop", "pad"):
            if value := getattr(recipe, name):
                raise InvalidRecipe(
                    f"images of {self.name} are cropped to {self.image_size} pixels when they are read, so {name} must "
                    f"be 0; got {value}; choose the size with --image-size"
                )
        return _EvalStream(split, self.image_size, self.loaders, device)


def make_stream(found: Found, image_size: int, loaders: int | None = None) -> StreamSet:
    """Make a data set from its sources.

    If there are both val and test, val holds the validation images and test the test images. If there is only one of
    them, it holds the test images, and a fixed tenth of every class of train becomes the validation images.

    Args:
        found: Name, classes and sources of the data set.
        image_size: Rows and columns of the images after cropping.
        loaders: Number of processes that read images (default: one per core, at most 16).

    Returns:
        The data set. Its identity is its kind, a hash of the sources' contents and, if there is one, the hash of the
        files' bytes.
    """
    name, classes, sources, bytes_hash = found
    digest = hashlib.sha256("\n".join(classes).encode())
    for title in sorted(sources):
        for part in sources[title].contents():
            digest.update(part + b"\n")
    train = sources["train"]
    counts = np.bincount(train.labels, minlength=len(classes))
    for title, source in sources.items():
        if missing := [classes[i] for i in np.unique(source.labels) if not counts[i]]:
            raise DataError(
                f"every class needs training images; {name} has {first_few(missing)} only in {title}; add training "
                "images"
            )
    training = Stream("training", train, np.arange(len(train.labels)))
    if {"val", "test"} <= sources.keys():
        validation = Stream("validation", sources["val"], np.arange(len(sources["val"].labels)))
    else:
        if few := [classes[i] for i in np.flatnonzero(counts == 1)]:
            raise DataError(
                f"every class needs at least 2 training images, because one is used for validation; got one for "
                f"{first_few(few)} in {name}; add images"
            )
        training.where, chosen = stratified(train.labels, VALIDATION_SHARE)
        validation = replace(training, title="validation", where=chosen)  # shares the record of unreadable images
    tested = sources["test" if "test" in sources else "val"]
    test = Stream("test", tested, np.arange(len(tested.labels)))
    if loaders is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        loaders = min(MOST_LOADERS, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))
    identity = f"{parse_name(name)[0]}:{digest.hexdigest()[:16]}{bytes_hash and '+'}{bytes_hash}"
    return StreamSet(name, identity, classes, image_size, training, validation, test, loaders)


class _TrainStream:
    """Training batches read from files: shuffled, cropped and mirrored. Every worker loads its own share."""

    def __init__(self, stream: Stream, size: int, loaders: int, recipe: Recipe, device: torch.device) -> None:
        self.stream = stream
        self.device = device
        self.batch_size = min(recipe.batch_size, len(stream))
        self.steps = len(stream) // self.batch_size
        share = self.batch_size // world_size()
        self.columns = slice(rank() * share, (rank() + 1) * share)
        # `load` puts the images of every step into the same tensor
        self.places = (torch.arange(self.steps * self.batch_size, device=device) % share)[None]
        self.images = torch.zeros(share, size, size, 3, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(share, dtype=torch.int64, device=device)
        self.shift, self.scale = _shift_and_scale(device)
        self.order = Order()
        pictures = Pictures(stream.source, stream.where, training_transform(size, recipe.mirror), replace=True)
        self.loader = make_loader(pictures, self.order, loaders, device)

    def start_epoch(self, generator: torch.Generator) -> None:
        """Draw the order and, for every image, the seed of its crop and reflection; start reading."""
        number = self.steps * self.batch_size
        order = torch.randperm(len(self.stream), generator=generator)[:number]
        seeds = torch.randint(2**62, (number,), generator=generator)
        self.order.positions, self.order.seeds = (
            part.view(self.steps, self.batch_size)[:, self.columns].unbind() for part in (order, seeds)
        )
        self.batches = read_batches(self.loader)

    def load(self, step: int) -> None:
        """Copy the next batch into the tensors that a step reads, from pinned memory, without waiting for the copy."""
        batch = next(self.batches)
        try:
            self.stream.report(batch.problems)
            if len(batch.labels) < len(self.labels):
                first = self.stream.describe(next(iter(self.stream.unreadable)))
                raise UnreadableImages(
                    f"{TRIES} images in a row cannot be read, for example {first}; repair or remove them"
                )
            if step == self.steps - 1:
                next(self.batches, None)  # ends the pass, but not the processes
                self.stream.share(self.device)
        except DataError:
            self.batches.close()  # the traceback would keep the loader processes alive
            raise
        self.images.copy_(batch.images, non_blocking=True)
        self.labels.copy_(batch.labels, non_blocking=True)

    def take(self, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        which = places[0]
        return normalise(self.images[which], self.shift, self.scale, dtype), self.labels[which]


class _EvalStream:
    """Evaluation batches: readable images in order, cropped in the middle. Every worker loads its own share."""

    def __init__(self, stream: Stream, size: int, loaders: int, device: torch.device) -> None:
        self.stream = stream
        self.loaders = loaders
        self.device = device
        self.pictures = Pictures(stream.source, stream.where, evaluation_transform(size), replace=False)
        self.shift, self.scale = _shift_and_scale(device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        mine = torch.arange(len(self.stream))[rank() :: world_size()].split(EVAL_BATCH)
        order = Order(mine, [torch.zeros_like(part) for part in mine])
        loader = make_loader(self.pictures, order, min(self.loaders, len(order)), self.device)
        with closing(read_batches(loader)) as batches:  # otherwise a traceback would keep loader processes alive
            for batch in batches:
                self.stream.report(batch.problems)
                if len(batch.labels):
                    images = batch.images.to(self.device, non_blocking=True)
                    yield normalise(images, self.shift, self.scale, torch.float32), batch.labels.to(self.device)
        self.stream.share(self.device)


def _shift_and_scale(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the shift and scale per channel that give ILSVRC images mean 0 and deviation 1."""
    from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))
    return (-mean / std).float().to(device), (1 / (255 * std)).float().to(device)
