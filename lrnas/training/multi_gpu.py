"""One network on several GPUs, or machines: Ray Train's TorchTrainer runs a job on every worker.

Each worker takes its share of every batch, so the global batch, and with it the loss curve, is that of one worker.
Rank 0 writes the checkpoints; the folder must be one that all machines see. What the workers do is read off that
folder, which is also how a run goes on after workers were lost.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lrnas.data.names import pin_data_folder
from lrnas.errors import LrnasError
from lrnas.training.checkpoint import recorded_curve
from lrnas.training.job import Job
from lrnas.training.loop import EpochReport, Status

OUTCOME = "outcome.json"


def run_on_workers(
    job: Job,
    folder: Path,
    workers: int,
    *,
    use_gpu: bool,
    address: str | None = None,
    compile_model: bool = False,
    report: Callable[[EpochReport], None] | None = None,
) -> Status:
    """Train a job on several workers, to the end; its checkpoint is then in `folder`.

    `address` joins a running Ray cluster; without it, one is started on this machine for the time being.
    """
    if workers > job.recipe.batch_size or job.recipe.batch_size % workers:
        raise LrnasError(
            f"the batch is shared out evenly; got {job.recipe.batch_size} images for {workers} workers; change "
            "batch_size or --workers"
        )
    try:
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError:
        raise LrnasError("several workers need Ray; got none; pip install 'lrnas[workers]'") from None
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / OUTCOME).unlink(missing_ok=True)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch, _Watch(folder, report):
        warnings.simplefilter("ignore")  # Ray's own, about its next version
        started = not ray.is_initialized()
        if started:
            pin_data_folder()
            ray.init(
                address=address or "local", log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR
            )
        try:
            trainer = TorchTrainer(
                _work,
                train_loop_config={"job": job, "folder": str(folder), "compile_model": compile_model},
                scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
                # Ray's own state is disposable: it goes with the scratch folder, unless a cluster has to share it
                run_config=RunConfig(
                    storage_path=str(folder.parent) if address else scratch,
                    name=f"{folder.name}-ray",
                    failure_config=FailureConfig(max_failures=3),
                ),
            )
            trainer.fit()
        finally:
            if started:
                ray.shutdown()
    outcome = json.loads((folder / OUTCOME).read_text(encoding="utf-8"))
    if "error" in outcome:
        raise LrnasError(outcome["error"])
    status: Status = outcome["status"]
    return status


def _work(config: dict[str, Any]) -> None:
    """What every worker does."""
    import ray.train
    import ray.train.torch
    import torch.distributed as dist

    job: Job = config["job"]
    folder = Path(config["folder"])
    if (folder / OUTCOME).exists():  # another attempt would meet the same error
        return
    try:
        data = job.load_data()
        device = ray.train.torch.get_device()
        result = job.run(job.create_model(data), data, folder, device, compile_model=config["compile_model"])
    except LrnasError as error:
        (folder / OUTCOME).write_text(json.dumps({"error": str(error)}), encoding="utf-8")
        raise  # so that Ray ends the other workers, which may wait for this one
    if dist.get_rank() == 0:
        (folder / OUTCOME).write_text(json.dumps({"status": result.status}), encoding="utf-8")
    dist.barrier()


class _Watch:
    """Reports the epochs that appear in a folder's checkpoint."""

    def __init__(self, folder: Path, report: Callable[[EpochReport], None] | None) -> None:
        self.folder = folder
        self.report = report
        self.told = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self.told = len(recorded_curve(self.folder))  # what an earlier run told already
        self.thread.start()

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.thread.join()
        self._tell()

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            self._tell()

    def _tell(self) -> None:
        curve = recorded_curve(self.folder)
        for entry in curve[self.told :] if self.report is not None else ():
            self.report(EpochReport(**entry))  # type: ignore[misc]
        self.told = max(self.told, len(curve))
