"""How many trials share a GPU of this machine: measured before the first trial, and kept in a file of the data folder.

What is kept are the measurements (`lrnas.training.measuring`). How many trials there is room for is decided anew for
each search, because memory and CPU cores also depend on its settings.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch

from lrnas import __version__
from lrnas._files import read_json, write_atomically
from lrnas._messages import logger
from lrnas.arch.architecture import Architecture
from lrnas.data.in_memory import DataSet, ImageSet
from lrnas.models.plan import built_id
from lrnas.recipes import Recipe
from lrnas.searching.ray_cluster import Workers, limit_to_room
from lrnas.training.job import Images
from lrnas.training.loop import Device
from lrnas.training.measuring import USED_MEMORY, MeasuringProcess, describe
from lrnas.training.side_by_side import Rate, pick_number

FILE = "trials_per_gpu.json"
FORMAT = 3
"""Version of what is measured; measurements of other versions are not used."""
PATIENCE = 240.0
"""Seconds to wait for the measurement."""
CONTEXT_MEMORY = 600_000_000
"""Bytes of GPU memory that CUDA itself and its libraries take in each process, about."""
NUM_NETWORKS = 4
"""Number of networks that are measured. More would take longer, because kernels are compiled for each of them."""


class Measurement:
    """The measurement that decides how many trials share a GPU: one that is kept, or a new one.

    As a context manager, it starts the process that makes a new one, which then gets ready while Ray starts, and ends
    it. Nothing is started if a measurement is kept, or if trials do not share GPUs.

    Args:
        workers: Resources of the workers. Their share of a GPU is used if nothing can be measured.
        networks: Typical networks, which are measured.
        recipe: The recipe of their training.
        data: Their data set. Images in files are packed.
        folder: The data folder, where measurements are kept.
        device: Where trials train; "cpu" is for tests.
    """

    def __init__(
        self,
        workers: Workers,
        networks: Sequence[Architecture],
        recipe: Recipe,
        data: DataSet,
        folder: Path,
        device: Device = "cuda",
    ) -> None:
        self.workers, self.recipe, self.data = workers, recipe, data
        self.networks = _some_of(networks)
        self.device = device
        self.file = folder / FILE
        self.conditions = _conditions(self.networks, recipe, data, device)
        self._process = MeasuringProcess(self.networks, recipe, Images.of(data), device, _eval_batch(data))

    def __enter__(self) -> Measurement:
        if self.workers.concurrency != 1 and self.kept() is None:
            self._process.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, if it runs."""
        self._process.end()

    def kept(self) -> dict[str, Any] | None:
        """The measurement that is kept."""
        return _find(_read_records(self.file), self.conditions)

    def make(self) -> dict[str, Any]:
        """Make a new measurement. Raises RuntimeError if that cannot be done."""
        return self._process.measure(PATIENCE) | self.conditions


def share_gpus(measurement: Measurement, *, image_memory: float, largest_batch: int = 0) -> Workers:
    """Let as many trials share a GPU as train fastest together. Ray must be running on this machine, with CUDA MPS.

    Args:
        measurement: The measurement, which is made unless it is kept.
        image_memory: Largest share of the GPU's memory for images from files.
        largest_batch: Batch size of other trainings that follow, if it is larger than that of the recipe.

    Returns:
        The workers, with their share of a GPU and the number of trials that there is room for.
    """
    workers, recipe, data = measurement.workers, measurement.recipe, measurement.data
    if (most := _most_per_gpu(workers)) == 1:
        return limit_to_room(replace(workers, gpus=1))

    def measure() -> dict[str, Any]:
        logger.info("measuring how many networks a GPU trains best at a time")
        return measurement.make()

    try:
        record = look_up(measurement.file, measurement.conditions, measure)
    except torch.OutOfMemoryError:
        logger.info("1 network at a time on a GPU: there is no memory for more")
        return limit_to_room(replace(workers, gpus=1))
    except RuntimeError as error:
        logger.info(f"{1 / workers.gpus:g} networks at a time on a GPU; how many are best cannot be measured: {error}")
        return limit_to_room(workers)
    sharing = decide(record, recipe, data, image_memory=image_memory, largest_batch=largest_batch, most=most)
    logger.info(f"{sharing}; measured in {record['seconds']:.0f} s, kept in {measurement.file}")
    share = math.floor(10_000 / sharing.number) / 10_000  # Ray rounds to four digits, and 6 times 0.1667 is too much
    return limit_to_room(replace(workers, gpus=share))


@dataclass(frozen=True, slots=True)
class Sharing:
    """How trials share a GPU."""

    number: int
    """Number of trials at a time."""
    speedup: float
    """Images per second of all of them together, relative to one alone."""
    memory: float
    """Bytes of GPU memory that each of them needs."""
    shared: int
    """Bytes of GPU memory that all of them share."""

    def __str__(self) -> str:
        if self.number == 1:
            return "1 network at a time on a GPU: more are no faster, or have no room"
        return f"{self.number} networks at a time on a GPU: {self.speedup:.1f} times the images per second of one alone"


def decide(
    record: Mapping[str, Any],
    recipe: Recipe,
    data: DataSet,
    *,
    image_memory: float,
    largest_batch: int = 0,
    most: int,
    num_bytes: int | None = None,
) -> Sharing:
    """Decide how many trials share a GPU.

    Args:
        record: A measurement.
        recipe: As in `share_gpus`.
        data: As in `share_gpus`.
        image_memory: As in `share_gpus`.
        largest_batch: As in `share_gpus`.
        most: Largest number that CPU cores and the user's own limit allow.
        num_bytes: As in `memory_of_images`.
    """
    rates = [Rate(**rate) for rate in record["rates"]]
    memory, factor = record["memory"], max(1.0, largest_batch / recipe.batch_size)
    training = CONTEXT_MEMORY + factor * rates[-1].memory + rates[-1].eval_memory
    images, shared = memory_of_images(
        data,
        training,
        memory,
        image_memory,
        is_shared=record["shares_memory"],
        whiten=recipe.whiten,
        num_bytes=num_bytes,
    )
    number = pick_number(rates, training + images, USED_MEMORY * memory - shared, most)
    speedup = next(rate.speedup for rate in rates if rate.number == number)
    return Sharing(number, speedup, training + images, shared)


def look_up(file: Path, conditions: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return a measurement: the one in a file that was made under the same conditions, else a new one, which is stored.

    Args:
        file: The file. It is replaced if it cannot be read.
        conditions: Fields that the measurement must have.
        measure: Function that makes a new measurement. It is not stored if it has the entry `is_alone` and this is
            False.
    """
    records = _read_records(file)
    if (kept := _find(records, conditions)) is not None:
        return kept
    record = measure()
    if not record.pop("is_alone", True):
        return record
    with suppress(OSError), write_atomically(file) as part:  # without the file, the next search measures again
        part.write_text(json.dumps([*records, record], indent=1), encoding="utf-8")
    return record


def _read_records(file: Path) -> list[dict[str, Any]]:
    with suppress(OSError, ValueError, TypeError):
        return [record for record in read_json(file) if isinstance(record, dict)]
    return []


def _find(records: Sequence[dict[str, Any]], conditions: Mapping[str, Any]) -> dict[str, Any] | None:
    return next((record for record in records if conditions.items() <= record.items()), None)


def _some_of(networks: Sequence[Architecture]) -> list[Architecture]:
    """The first network, which is usually the largest, and others at equal distances in the list."""
    number = min(NUM_NETWORKS, len(networks))
    return [networks[len(networks) * i // number] for i in range(number)]


def _eval_batch(data: DataSet) -> int:
    return min(data.eval_batch, len(data.val))


def _conditions(networks: Sequence[Architecture], recipe: Recipe, data: DataSet, device: Device) -> dict[str, Any]:
    """Everything that a measurement depends on."""
    images = Images.of(data)
    rest = [
        *map(built_id, networks),
        images.num_classes,
        recipe.crop,
        recipe.early_crop,
        os.environ.get("LRNAS_KERNELS"),
    ]
    return {
        "gpu": describe(device)["gpu"],
        "format": FORMAT,
        "torch": torch.__version__,
        "lrnas": __version__,
        "channels": images.channels,
        "image_size": images.image_size,
        "batch_size": recipe.batch_size,
        "eval_batch": _eval_batch(data),
        "networks": hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:16],
    }


def memory_of_images(
    data: DataSet,
    training: float,
    memory: int,
    image_memory: float,
    *,
    is_shared: bool,
    whiten: bool = False,
    num_bytes: int | None = None,
) -> tuple[float, int]:
    """Bytes of GPU memory for images: in the process of each trial, and once for all of them.

    Args:
        data: The data set.
        training: Bytes that a trial's process needs for the rest.
        memory: Memory of the GPU.
        image_memory: Largest share of it for images from files. If they are larger, they stay on the disk, as JPEGs do.
        is_shared: Whether processes share one copy of images from files. Otherwise, each has a copy, which may take
            this share of its part of the memory.
        whiten: Whether images are whitened; they then take twice as much.
        num_bytes: Memory of the images (default: `data.num_bytes`, for which images from files are packed).
    """
    num_bytes = data.num_bytes if num_bytes is None else num_bytes
    if isinstance(data, ImageSet):
        return num_bytes * (2 if whiten else 1), 0
    if not num_bytes or num_bytes > image_memory * memory:
        return 0, 0
    if is_shared:
        return 0, num_bytes
    return max(num_bytes, USED_MEMORY * num_bytes / image_memory - training), 0


def _most_per_gpu(workers: Workers) -> int:
    """Largest number of trials on a GPU that CPU cores and the user's own limit allow."""
    available: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    most = available["CPU"] / workers.cpus
    return max(1, math.ceil(min(most, workers.concurrency or most) / available["GPU"]))
