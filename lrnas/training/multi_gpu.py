"""Training of one network on several GPUs or machines: Ray Train runs the same job on every worker.

Each worker takes its share of every batch, so the global batch and the loss curve are the same as with one worker. Rank
0 writes the checkpoints into a folder that all machines must be able to read and write. Progress is read from that
folder, and a run that has lost its workers continues from it.
"""

from __future__ import annotations

import json
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from lrnas.data.names import pin_data_folder
from lrnas.errors import LrnasError, MissingExtra
from lrnas.training.checkpoint import recorded_curve
from lrnas.training.job import Job
from lrnas.training.loop import EpochReport, Report, Status

OUTCOME = "outcome.json"


def run_on_workers(
    job: Job,
    folder: Path,
    workers: int,
    *,
    use_gpu: bool,
    address: str | None = None,
    report: Report = lambda entry: None,
) -> Status:
    """Train a job completely on several workers. Afterwards, its checkpoint is in `folder`.

    Args:
        job: The job to train.
        folder: The folder of the run, which all workers must be able to read and write.
        workers: Number of workers; the batch size must be a multiple of it.
        use_gpu: Whether each worker gets a GPU.
        address: Address of a running Ray cluster; None to start one on this machine for this training.
        report: Callback for every epoch, when its checkpoint has been written.

    Returns:
        Whether the training was completed or diverged.
    """
    if job.recipe.batch_size % workers:
        raise LrnasError(
            f"the batch size must be a multiple of the number of workers; got {job.recipe.batch_size} images for "
            f"{workers} workers; change batch_size or --workers"
        )
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        from lrnas._ray import started_ray
    except ImportError:
        raise MissingExtra("--workers", "Ray", "workers") from None
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OUTCOME).unlink(missing_ok=True)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch, _watching(folder, report):
        warnings.simplefilter("ignore")  # Ray announces changes of its next version
        pin_data_folder()
        with nullcontext() if ray.is_initialized() else started_ray(address):
            TorchTrainer(
                _work,
                train_loop_config={"job": job, "folder": str(folder)},
                scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
                # Ray's own state is not needed later, but the machines of a cluster must share it meanwhile
                run_config=RunConfig(
                    storage_path=str(folder.parent) if address else scratch,
                    name=f"{folder.name}-ray",
                    failure_config=FailureConfig(max_failures=3),
                ),
            ).fit()
    outcome = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    if "error" in outcome:
        raise LrnasError(outcome["error"])
    status: Status = outcome["status"]
    return status


def _work(config: dict[str, Any]) -> None:
    """Train the job in one worker."""
    import ray.train.torch
    import torch.distributed as dist

    job: Job = config["job"]
    folder = Path(config["folder"])
    if (folder / OUTCOME).exists():  # an earlier attempt has failed, and a new one would fail in the same way
        return
    try:
        data = job.load_data()
        device = ray.train.torch.get_device()
        result = job.run(job.create_model(data), data, folder, device)
    except LrnasError as error:
        (folder / OUTCOME).write_text(json.dumps({"error": error.args[0]}), encoding="utf-8")
        raise  # so that Ray ends the other workers, which may wait for this one
    if dist.get_rank() == 0:
        (folder / OUTCOME).write_text(json.dumps({"status": result.status}), encoding="utf-8")
    dist.barrier()


@contextmanager
def _watching(folder: Path, report: Report) -> Iterator[None]:
    """Report new epochs in the checkpoint of a folder, from a thread, until the block ends."""
    reported = len(recorded_curve(folder))  # epochs of an earlier run
    ended = threading.Event()

    def report_new() -> None:
        nonlocal reported
        for entry in recorded_curve(folder)[reported:]:
            report(EpochReport(**entry))
            reported += 1

    def watch() -> None:
        while not ended.wait(0.5):
            report_new()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        report_new()
