"""How many trials share a GPU of this machine: measured before the first trial, and kept in a file of the data folder.

What is kept are the measurements (`lrnas.training.side_by_side`). How many trials there is room for is decided anew for
each search, because memory and CPU cores also depend on its settings.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from lrnas import __version__
from lrnas._files import read_json, write_atomically
from lrnas._messages import logger
from lrnas.arch.architecture import Architecture
from lrnas.data.in_memory import DataSet, ImageSet
from lrnas.data.shared_copy import can_share
from lrnas.errors import error_line
from lrnas.models.plan import built_id
from lrnas.recipes import Recipe
from lrnas.searching.ray_cluster import Workers, limit_to_room
from lrnas.training.job import Images
from lrnas.training.loop import Device
from lrnas.training.side_by_side import Rate, measure_rates, pick_number

FILE = "trials_per_gpu.json"
FORMAT = 2
"""Version of what is measured; measurements of other versions are not used."""
PATIENCE = 240.0
"""Seconds to wait for the measurement, which needs a whole GPU."""
CONTEXT_MEMORY = 600_000_000
"""Bytes of GPU memory that CUDA itself and its libraries take in each process, about."""
NUM_NETWORKS = 4
"""Number of networks that are measured. More would take longer, because kernels are compiled for each of them."""
USED_MEMORY = 0.9
"""Share of a GPU's memory that trials may use."""


def share_gpus(
    workers: Workers,
    networks: Sequence[Architecture],
    recipe: Recipe,
    data: DataSet,
    *,
    image_memory: float,
    folder: Path,
    largest_batch: int = 0,
    device: Device = "cuda",
) -> Workers:
    """Let as many trials share a GPU as train fastest together. Ray must be running on this machine, with CUDA MPS.

    Args:
        workers: Resources of the workers. Their share of a GPU is used if nothing can be measured.
        networks: Typical networks, which are measured.
        recipe: The recipe of their training.
        data: Their data set. Images in files are packed.
        image_memory: Largest share of the GPU's memory for images from files.
        folder: The data folder, where measurements are kept.
        largest_batch: Batch size of other trainings that follow, if it is larger than that of the recipe.
        device: Where trials train; "cpu" is for tests.

    Returns:
        The workers, with their share of a GPU and the number of trials that there is room for.
    """
    if (most := _most_per_gpu(workers)) == 1:
        return limit_to_room(replace(workers, gpus=1))
    networks = _some_of(networks)
    conditions = _conditions(networks, recipe, data, device)

    def measure() -> dict[str, Any]:
        logger.info("measuring how many networks a GPU trains best at a time")
        # an actor and not a task: if a task is cancelled while it ends, Ray 2.60 ends the driver
        process: Any = ray.remote(num_gpus=1)(_Process).remote()
        try:
            task = process.run.remote(_measure, networks, recipe, Images.of(data), _eval_batch(data), device)
            measured: dict[str, Any] = ray.get(task, timeout=PATIENCE)
        finally:
            ray.kill(process)  # it may still wait for a GPU, and it would keep memory of the GPU
        return measured | conditions

    try:
        record = look_up(folder / FILE, conditions, measure)
    except (RayError, RuntimeError) as error:
        cause = getattr(error, "cause", None) or error
        if isinstance(cause, torch.OutOfMemoryError):
            logger.info("1 network at a time on a GPU: there is no memory for more")
            return limit_to_room(replace(workers, gpus=1))
        reason = error_line(cause)
        logger.info(f"{1 / workers.gpus:g} networks at a time on a GPU; how many are best cannot be measured: {reason}")
        return limit_to_room(workers)
    sharing = decide(record, recipe, data, image_memory=image_memory, largest_batch=largest_batch, most=most)
    logger.info(f"{sharing}; measured in {record['seconds']:.0f} s, kept in {folder / FILE}")
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


def measure_or_read(
    networks: Sequence[Architecture], recipe: Recipe, data: DataSet, folder: Path, device: Device = "cuda"
) -> tuple[dict[str, Any], bool]:
    """Return a measurement without Ray: the one that is kept, or a new one, which is made here and not kept.

    Args:
        networks: As in `share_gpus`.
        recipe: As in `share_gpus`.
        data: As in `share_gpus`.
        folder: As in `share_gpus`.
        device: As in `share_gpus`.

    Returns:
        The measurement, and whether it was kept.
    """
    networks = _some_of(networks)
    kept = _find(_read_records(folder / FILE), _conditions(networks, recipe, data, device))
    if kept is not None:
        return kept, True
    return _measure(networks, recipe, Images.of(data), _eval_batch(data), device), False


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
    rest = [*map(built_id, networks), images.num_classes, recipe.crop, os.environ.get("LRNAS_KERNELS")]
    return {
        "gpu": _describe(device)["gpu"],
        "format": FORMAT,
        "torch": torch.__version__,
        "lrnas": __version__,
        "channels": images.channels,
        "image_size": images.image_size,
        "batch_size": recipe.batch_size,
        "eval_batch": _eval_batch(data),
        "networks": hashlib.sha256(json.dumps(rest).encode()).hexdigest()[:16],
    }


def _describe(device: Device) -> dict[str, Any]:
    """Name and memory of the device of this process."""
    if torch.device(device).type == "cpu":
        return {"gpu": "none", "memory": sys.maxsize}
    return {"gpu": torch.cuda.get_device_name(), "memory": torch.cuda.get_device_properties(0).total_memory}


class _Process:
    """A process that runs functions, as an actor of Ray."""

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def _measure(
    networks: Sequence[Architecture], recipe: Recipe, images: Images, eval_batch: int, device: Device
) -> dict[str, Any]:
    """Measure in a process that has a whole GPU."""
    started = time.perf_counter()
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"  # by default, streams share 8 queues of the GPU
    is_alone = True
    if torch.device(device).type == "cuda":
        free, total = torch.cuda.mem_get_info()
        is_alone = free > USED_MEMORY * total
    rates = measure_rates(networks, recipe, images, device, eval_batch=eval_batch)
    found = {
        "rates": [asdict(rate) for rate in rates],
        "shares_memory": can_share(torch.device(device)),
        "seconds": time.perf_counter() - started,
    }
    return {**_describe(device), **found, "is_alone": is_alone}


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
