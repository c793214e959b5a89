"""One training of a search in a worker process of Ray Tune: what is sent to it, and what it reports.

Workers load neither Optuna nor a study, because every worker would need a second and more memory for them.
"""

from __future__ import annotations

import functools
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune

from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet
from lrnas.errors import DataError, LrnasError, UnfitMachine, UnreadableImages, error_line
from lrnas.training.checkpoint import (
    CheckpointError,
    DamagedCheckpoint,
    UnwritableCheckpoint,
    recorded_curve,
    remove_checkpoint,
)
from lrnas.training.job import Job
from lrnas.training.loop import EpochReport, evaluate
from lrnas.training.provenance import gpu_busy, hardware

MARK_ATTEMPTS, MARK_PAUSE = 4, 1.0
"""Number of attempts to see the file of `marked_folder`, and seconds between them: shared disks may show it late."""


@dataclass(frozen=True, slots=True)
class Task:
    """A training that is sent to a worker."""

    job: Job
    folder: Path
    """Folder of the trial's checkpoint."""
    cpus: float
    """CPUs of the worker."""
    gpus: float
    """GPUs of the worker; may be a fraction."""
    mark: str
    """Name of a file beside the folder that shows whether the worker shares the search's disk."""
    test: bool
    """Whether to test the network at the end."""

    # Tune makes several copies of every trial's configuration, and has its text in a name

    def __deepcopy__(self, memo: object) -> Task:
        return self

    def __repr__(self) -> str:
        return f"Task({self.folder.name})"


@functools.lru_cache(maxsize=2)
def _load_data(
    data: str,
    min_size: int,
    data_dir: str | None,
    image_size: int | None,
    image_memory: float,
    pack: str | None,
    gpu_share: float,
) -> DataSet:
    return load_set(
        data,
        data_dir,
        min_size=min_size,
        image_size=image_size,
        image_memory=image_memory,
        pack=pack,
        gpu_share=gpu_share,
    )


def train_task(config: dict[str, Task]) -> None:
    """Train one network in a worker. Reports where it trains, then every epoch, and finally the outcome."""
    task = config["task"]
    folder, device = task.folder, "cuda" if task.gpus else "cpu"
    torch.set_num_threads(max(1, int(task.cpus)))
    tune.report(worker_location())
    try:
        check_mark(folder.parent, task.mark)
        try:
            outcome = _run(task, device)
        except DamagedCheckpoint as error:
            tune.report(worker_location() | {"remark": f"{error.problem}: it starts again from epoch 0"})
            remove_checkpoint(folder)
            outcome = _run(task, device)
    except UnreadableImages as error:  # the same would happen in every other trial
        outcome = {"status": "unreadable", "reason": error.args[0]}
    except UnwritableCheckpoint as error:  # it may happen in every trial, as long as the disk is full
        outcome = {"status": "unwritable", "reason": error_line(error)}
    except UnfitMachine as error:  # this process ends, because the next trial would get it again
        tune.report({"status": "unfit", "reason": error_line(error)})
        raise
    except (CheckpointError, DataError, OSError) as error:  # the fault of the machine, not of the network
        outcome = {"status": "lost", "reason": error_line(error)}
    except (LrnasError, RuntimeError, ValueError) as error:
        if "[CUDA]" in str(error) or "CUDA error" in str(error):  # CUDA no longer works in this process: end it
            tune.report({"status": "lost", "reason": error_line(error)})
            raise
        outcome = {"status": "faulty", "reason": error_line(error)}
    finally:
        if device == "cuda":
            with suppress(RuntimeError):  # the GPU may have failed
                torch.cuda.empty_cache()
    tune.report(outcome)


def _run(task: Task, device: str) -> dict[str, Any]:
    """Train a network, or continue from its checkpoint, and report every epoch; returns the outcome."""
    job, folder = task.job, task.folder
    past = recorded_curve(folder)  # epochs that an earlier worker trained
    curve, seconds = [entry["val_accuracy"] for entry in past], sum(entry["seconds"] for entry in past)
    images = (job.data, job.min_size, job.data_dir, job.image_size, job.image_memory, job.pack)

    def load_data() -> DataSet:
        return job.check_images(_load_data(*images, min(1.0, task.gpus)))

    busy: list[float] = []

    def report(entry: EpochReport) -> None:
        nonlocal seconds
        curve.append(entry.val_accuracy)
        seconds += entry.seconds
        data = load_data()
        if device == "cuda" and (share := gpu_busy()) is not None:
            busy.append(share)
        facts = {"images_per_second": entry.images_per_second, "images": (len(curve) - len(past)) * len(data.train)}
        facts |= {"gpu_busy": sum(busy) / len(busy)} if busy else {}
        tune.report({"curve": curve, "seconds": seconds, "placement": data.placement, **facts})

    if job.trainable is not None:
        return job.run_trainable(folder, device, load_data, tune.report)
    data = load_data()
    model = job.create_model(data)
    result = job.run(model, data, folder, device, report=report)
    rate = result.images_per_second
    outcome = {"status": result.status, "curve": curve, "seconds": seconds, "images_per_second": rate}
    if task.test and result.status == "completed":  # the only use of the test images
        loss, accuracy = evaluate(model, data.test(), data, job.recipe, device=device, cache=job.cache)
        outcome |= {"test_loss": loss, "test_accuracy": accuracy}
    return outcome


def worker_location() -> dict[str, str]:
    """Hardware and Ray node, as HOST:NODE, of the worker that calls this."""
    return {"hardware": hardware(), "node": f"{socket.gethostname()}:{ray.get_runtime_context().get_node_id()[:8]}"}


def check_mark(folder: Path, mark: str) -> None:
    """Refuse to train on a machine that does not share the search's folder: its checkpoints would be lost.

    Args:
        folder: The folder of the search, as this machine sees it.
        mark: Name of the file that `marked_folder` left there.

    Raises:
        UnfitMachine: The file is not there.
    """
    for attempt in range(MARK_ATTEMPTS):
        if attempt:
            time.sleep(MARK_PAUSE)
        if (folder / mark).exists():
            return
    raise UnfitMachine(
        f"all machines must share the folder of the search; {socket.gethostname()} does not see the same {folder}; "
        "give a shared folder as --studies"
    )
