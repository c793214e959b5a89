"""Ray for the time of a search: on this machine alone, or a cluster that is there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypedDict

import ray
import torch
from ray.exceptions import AuthenticationError, RayError

from lrnas.data.names import pin_data_folder
from lrnas.errors import LrnasError


class WorkerOptions(TypedDict, total=False):
    """Who trains, as the command line and callers from Python say it."""

    cpus_per_trial: float
    """1 where nothing is said."""
    gpus_per_trial: float | None
    """Without a number, a quarter of one where there is any."""
    concurrency: int | None
    """Without a number, as many trials as there is room for."""
    address: str | None
    """Of a Ray cluster; None for this machine alone."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Who trains: shares of the machine for one trial, and how many trials at a time."""

    cpus: float = 1
    gpus: float = 0
    concurrency: int | None = None
    address: str | None = None
    files: tuple[str, ...] = ()
    """Modules and packages that are sent to it."""

    def __post_init__(self) -> None:
        if self.cpus <= 0 or self.gpus < 0 or (self.concurrency is not None and self.concurrency < 1):
            raise LrnasError(
                "a trial takes some CPU, no less than no GPU, and at least one is trained at a time; got "
                f"{self.cpus:g}, {self.gpus:g} and {self.concurrency}; change --cpus-per-trial, --gpus-per-trial or "
                "--concurrency"
            )


def pick_workers(
    cpus_per_trial: float = 1,
    gpus_per_trial: float | None = None,
    concurrency: int | None = None,
    address: str | None = None,
    files: tuple[str, ...] = (),
) -> Workers:
    """Workers by their options, with what this machine has where nothing is said."""
    if gpus_per_trial is None:
        gpus_per_trial = 0.25 if torch.cuda.is_available() else 0
    return Workers(cpus_per_trial, gpus_per_trial, concurrency, address, files)


@contextmanager
def running_ray(workers: Workers) -> Iterator[Workers]:
    """Ray for the time of a search; the workers again, no more at a time than there is room for."""
    quiet = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "3600",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
    }
    pin_data_folder()
    for name, value in quiet.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the study has it all
    started = not ray.is_initialized()
    if started:
        try:
            ray.init(
                address=workers.address or "local",
                log_to_driver=False,
                include_dashboard=False if workers.address is None else None,
                logging_level=logging.ERROR,
                runtime_env={"py_modules": list(workers.files)} if workers.address and workers.files else None,
            )
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            token = isinstance(error, AuthenticationError) or "InvalidAuthToken" in repr(error.__cause__)
            advice = "give this machine the cluster's token, as docs/cluster.md has it" if token else "check --address"
            raise LrnasError(f"cannot reach a Ray cluster at {workers.address}: {reason}; {advice}") from None
    try:
        have = ray.cluster_resources()  # type: ignore[no-untyped-call]
        wanted = {"CPU": workers.cpus, "GPU": workers.gpus}
        for kind, share in wanted.items():
            if share > have.get(kind, 0):
                raise LrnasError(
                    f"a trial takes {share:g} {kind}, and there are {have.get(kind, 0):g}; set "
                    f"--{kind.lower()}s-per-trial to less"
                )
        room = min(int(have.get(kind, 0) / share) for kind, share in wanted.items() if share)
        most = room if workers.concurrency is None else min(room, workers.concurrency)
        yield replace(workers, concurrency=max(1, most))
    finally:
        if started:
            ray.shutdown()
