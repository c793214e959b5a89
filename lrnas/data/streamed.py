"""A data set that is read as it is needed: images are decoded by loader processes, batch after batch.

Images are resized so that their shorter side is 8/7 of the input, then cropped (256 to 224, as ILSVRC is used):
anywhere in training, in the middle otherwise. Which image, which crop and whether it is mirrored follow from the seed
and the epoch alone, not from the number of loader processes. An image that cannot be read is named once and left out:
in training the next one takes its place, in evaluation none does. More than 1 % of them in a split end the run, so in
a split of less than 100 images a single one does. Workers tell each other at the end of every pass what they could not
read, and a checkpoint keeps it: the rule holds for all of them together, and the count for all of a run.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lrnas._distributed import gather_objects, rank, world_size
from lrnas.data.in_memory import Noted, normalise
from lrnas.data.names import Progress
from lrnas.data.splits import Indices, stratified
from lrnas.data.workers import (
    TRIES,
    Loaded,
    Order,
    Pictures,
    Source,
    evaluation_transform,
    make_loader,
    training_transform,
    unreadable,
)
from lrnas.errors import DataError, UnreadableImages
from lrnas.recipes import InvalidRecipe, Recipe

MOST_UNREADABLE = 0.01
MOST_LOADERS = 16
EVAL_BATCH = 256
VALIDATION_SHARE = 0.1
BLOCK = 64
"""Images that a thread tries at a time."""


@dataclass(slots=True)
class Stream:
    """A split: some images of a source. Remembers which could not be read."""

    title: str
    source: Source
    where: Indices
    say: Callable[[str], None]
    unreadable: dict[int, str] = field(default_factory=dict)
    """By number in the source: the reason. Splits of one source share it."""

    def __len__(self) -> int:
        return len(self.where)

    def report(self, problems: Iterable[tuple[int, str]]) -> None:
        """Take note of images, by position in `where`, that could not be read; too many are an error."""
        if self.note((int(self.where[index]), reason) for index, reason in problems):
            self.check()

    def share(self, device: torch.device) -> None:
        """Take note of what the other workers could not read; all of them do so together, and come to the same."""
        found = gather_objects(self.unreadable, device)
        self.note(item for unreadable in found for item in unreadable.items())
        self.check()  # also where nothing is new: if one worker ends here, all do

    def note(self, found: Iterable[tuple[int, str]]) -> bool:
        """Name images, by number in the source, that were not known to be unreadable; whether there were any."""
        new = {number: reason for number, reason in found if number not in self.unreadable}
        self.unreadable.update(new)
        for number in new:
            self.say(f"left out, cannot be read: {self.describe(number)}")
        return bool(new)

    def check(self) -> None:
        own = self._unreadable_here()
        if len(own) > MOST_UNREADABLE * len(self):
            raise UnreadableImages(
                f"at most {MOST_UNREADABLE:.0%} of the {len(self):,} {self.title} images may be unreadable; got "
                f"{len(own):,} so far: {self._few(own)}; repair or remove them"
            )

    def complaint(self) -> str:
        """The images of this split that are known to be unreadable, in a line; "" where none is."""
        own = self._unreadable_here()
        too_many = len(own) > MOST_UNREADABLE * len(self)
        comes_of_it = f"more than {MOST_UNREADABLE:.0%} end a run" if too_many else "a run leaves them out"
        what = f"{len(own):,} of {len(self):,} {self.title} images cannot be read, {comes_of_it}"
        return f"{what}: {self._few(own)}; repair or remove them" if len(own) else ""

    def _unreadable_here(self) -> Indices:
        return np.intersect1d(np.array(list(self.unreadable), dtype=np.int64), self.where)

    def _few(self, numbers: Indices) -> str:
        return "; ".join(self.describe(int(number)) for number in numbers[:3]) + ("; …" if len(numbers) > 3 else "")

    def describe(self, number: int) -> str:
        return f"{self.source.name(number)} ({self.unreadable[number]})"


@dataclass(frozen=True, slots=True)
class StreamSet:
    """A data set that is too large for memory, or simply in files."""

    name: str
    identity: str
    classes: tuple[str, ...]
    image_size: int
    train: Stream
    val: Stream
    _test: Stream
    loaders: int
    own_crops: bool = True
    channels: int = 3

    def test(self) -> Stream:
        """The images kept for the end. Nothing may be chosen by what is measured on them."""
        return self._test

    def joined(self) -> StreamSet:
        if self.val.source is not self.train.source:
            raise InvalidRecipe(
                f"all images are those of train; {self.name} has validation images of its own; set all_images=false"
            )
        where = np.sort(np.concatenate([self.train.where, self.val.where]))
        return replace(self, train=replace(self.train, where=where))

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def unreadable(self) -> list[str]:
        return [stream.describe(number) for stream in self._streams().values() for number in stream.unreadable]

    def remarks(self) -> list[str]:
        found = []
        for stream in (self.val, self._test):
            counts = np.bincount(stream.source.labels[stream.where], minlength=self.num_classes)
            if lacking := [self.classes[i] for i in np.flatnonzero(counts == 0)]:
                few = ", ".join(lacking[:5]) + (f" and {len(lacking) - 5} more" if len(lacking) > 5 else "")
                which = "this class" if len(lacking) == 1 else "these classes"
                found.append(
                    f"there are no {stream.title} images of {few}: {stream.title} accuracy says nothing of {which}"
                )
        return found

    def try_all(self, progress: Progress) -> list[str]:
        """Open every image, and say in a line for each split which cannot be read."""
        for stream in self._streams().values():
            stream.unreadable.update(_try_source(stream.source, progress))
        return [line for stream in (self.train, self.val, self._test) if (line := stream.complaint())]

    def noted(self) -> Noted:
        return {name: list(stream.unreadable.items()) for name, stream in self._streams().items() if stream.unreadable}

    def recall(self, noted: Noted) -> None:
        streams = self._streams()
        for name, found in noted.items():
            streams[name].note((number, reason) for number, reason in found)

    def _streams(self) -> dict[str, Stream]:
        """One for every source."""
        own_val = {"val": self.val} if self.val.source is not self.train.source else {}
        return {"train": self.train, **own_val, "test": self._test}

    def batches(self, recipe: Recipe, device: torch.device, cache: Path | None) -> tuple[_TrainStream, _EvalStream]:
        self._check(recipe)
        validation = _EvalStream(self.val, self.image_size, self.loaders, device)
        return _TrainStream(self.train, self.image_size, self.loaders, recipe, device), validation

    def eval_batches(self, split: Stream, recipe: Recipe, device: torch.device, cache: Path | None) -> _EvalStream:
        self._check(recipe)
        return _EvalStream(split, self.image_size, self.loaders, device)

    def _check(self, recipe: Recipe) -> None:
        if recipe.whiten:
            raise InvalidRecipe(f"whitening needs all images in memory; {self.name} is read in parts; set whiten=false")
        for name in ("crop", "pad"):
            if value := getattr(recipe, name):
                raise InvalidRecipe(
                    f"{self.name} is cropped to {self.image_size} pixels as it is read, so {name} is 0; got {value}; "
                    "choose the size with --image-size"
                )


def make_stream(
    name: str,
    kind: str,
    classes: tuple[str, ...],
    sources: Mapping[str, Source],
    image_size: int,
    loaders: int | None = None,
    say: Callable[[str], None] | None = None,
    bytes_hash: str = "",
) -> StreamSet:
    """A set from its sources: train, and val or test or both.

    With both, val chooses and test is kept for the end. The only one of them is kept for the end, and a fixed tenth of
    every class of train chooses. The set is known by what its sources say of their contents and, where these are names
    alone, by a hash of bytes.
    """
    digest = hashlib.sha256("\n".join(classes).encode())
    for title in sorted(sources):
        for part in sources[title].contents():
            digest.update(part + b"\n")
    train = sources["train"]
    everything = np.arange(len(train.labels))
    counts = np.bincount(train.labels, minlength=len(classes))
    for title, source in sources.items():
        if lacking := [classes[i] for i in np.unique(source.labels) if not counts[i]]:
            raise DataError(f"every class has training images; {name} has {', '.join(lacking[:5])} in {title} alone")
    if {"val", "test"} <= sources.keys():
        rest, val, test = everything, sources["val"], sources["test"]
        chosen = np.arange(len(val.labels))
    else:
        if (counts == 1).any():
            few = ", ".join(classes[i] for i in np.flatnonzero(counts == 1)[:5])
            raise DataError(
                f"every class has 2 training images, one of them for validation; got one for {few} in {name}; add some"
            )
        rest, chosen = stratified(train.labels, VALIDATION_SHARE)
        val, test = train, sources["test" if "test" in sources else "val"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    training = Stream("training", train, rest, say or _say)
    validation = replace(training, title="validation", where=chosen)  # what cannot be read is known to both
    return StreamSet(
        name,
        f"{kind}:{digest.hexdigest()[:16]}{bytes_hash and '+'}{bytes_hash}",
        classes,
        image_size,
        training,
        validation if val is train else Stream("validation", val, chosen, training.say),
        Stream("test", test, np.arange(len(test.labels)), training.say),
        min(MOST_LOADERS, max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))) if loaders is None else loaders,
    )


def _try_source(source: Source, progress: Progress) -> dict[int, str]:
    """Which images cannot be read, and why."""
    total = len(source.labels)
    found: dict[int, str] = {}
    blocks = [range(start, min(start + BLOCK, total)) for start in range(0, total, BLOCK)]
    with warnings.catch_warnings(), ThreadPoolExecutor(2 * MOST_LOADERS) as pool:
        warnings.simplefilter("ignore")  # for all: what each image quiets for its own time, threads mix up
        for block, problems in zip(blocks, pool.map(lambda numbers: unreadable(source, numbers), blocks), strict=True):
            found.update(problems)
            progress("reading images", block.stop, total)
    return found


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _TrainStream:
    """Shuffled, cropped and mirrored batches; of several workers each loads its own share."""

    def __init__(self, stream: Stream, size: int, loaders: int, recipe: Recipe, device: torch.device) -> None:
        self.stream = stream
        self.device = device
        self.batch_size = min(recipe.batch_size, len(stream))
        self.steps = len(stream) // self.batch_size
        share = self.batch_size // world_size()
        self.columns = slice(rank() * share, (rank() + 1) * share)
        # every step finds its images in the same place
        self.plan = (torch.arange(self.steps * self.batch_size, device=device) % share)[None]
        self.images = torch.zeros(share, size, size, 3, dtype=torch.uint8, device=device)
        self.labels = torch.zeros(share, dtype=torch.int64, device=device)
        self.shift, self.scale = _shift_and_scale(device)
        self.order = Order()
        pictures = Pictures(stream.source, stream.where, training_transform(size, recipe.mirror), replace=True)
        self.loader = make_loader(pictures, self.order, loaders, device, keep=True)
        self.loaded = Loaded()

    def start_epoch(self, generator: torch.Generator) -> None:
        """Draw the order and, for every image, the seed of its crop and reflection; start to read."""
        number = self.steps * self.batch_size
        order = torch.randperm(len(self.stream), generator=generator)[:number]
        seeds = torch.randint(2**62, (number,), generator=generator)
        which, crops = (part.view(self.steps, self.batch_size)[:, self.columns] for part in (order, seeds))
        self.order.set(which.unbind(), crops.unbind())
        self.loaded = Loaded(self.loader)

    def load(self, step: int) -> None:
        """Copy the next batch to where the step looks for it; from pinned memory, so nobody waits for the copy."""
        batch = self.loaded.next()
        assert batch is not None
        with self.loaded.closing():
            self.stream.report(batch.problems)
            if len(batch.labels) < len(self.labels):
                first = self.stream.describe(next(iter(self.stream.unreadable)))
                raise UnreadableImages(f"{TRIES} images in a row cannot be read, from {first}; repair or remove them")
            if step == self.steps - 1:
                self.stream.share(self.device)
        self.images.copy_(batch.images, non_blocking=True)
        self.labels.copy_(batch.labels, non_blocking=True)

    def take(self, plan: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        which = plan[0]
        return normalise(self.images[which], self.shift, self.scale, dtype), self.labels[which]


class _EvalStream:
    """A split in order, cropped in the middle, without what cannot be read; of several workers each has a share."""

    def __init__(self, stream: Stream, size: int, loaders: int, device: torch.device) -> None:
        self.stream = stream
        self.loaders = loaders
        self.device = device
        self.pictures = Pictures(stream.source, stream.where, evaluation_transform(size), replace=False)
        self.shift, self.scale = _shift_and_scale(device)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        mine = torch.arange(len(self.stream))[rank() :: world_size()].split(EVAL_BATCH)
        order = Order(mine, [torch.zeros_like(part) for part in mine])
        loaded = Loaded(make_loader(self.pictures, order, min(self.loaders, len(order)), self.device, keep=False))
        while (batch := loaded.next()) is not None:
            with loaded.closing():
                self.stream.report(batch.problems)
            if len(batch.labels):
                images = batch.images.to(self.device, non_blocking=True)
                yield normalise(images, self.shift, self.scale, torch.float32), batch.labels.to(self.device)
        self.stream.share(self.device)


def _shift_and_scale(device: torch.device) -> tuple[Tensor, Tensor]:
    """Per channel, from bytes to mean 0 and deviation 1 over ILSVRC."""
    from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))
    return (-mean / std).float().to(device), (1 / (255 * std)).float().to(device)
