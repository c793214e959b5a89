"""Ray for the time of a search: on this machine alone, or a cluster that is there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import ray
from ray.exceptions import AuthenticationError, RayError

from lrnas.errors import LrnasError

__all__ = ["Workers", "running_ray"]


@dataclass(frozen=True, slots=True)
class Workers:
    """Who trains: shares of the machine for one trial, and how many trials at a time."""

    cpus: float = 1
    gpus: float = 0
    concurrency: int | None = None
    address: str | None = None
    """Of a Ray cluster; None for this machine alone."""
    files: tuple[str, ...] = ()
    """Modules and packages that are sent to it."""

    def __post_init__(self) -> None:
        if self.cpus <= 0 or self.gpus < 0 or (self.concurrency is not None and self.concurrency < 1):
            raise LrnasError(
                "a trial takes some CPU, no less than no GPU, and at least one is trained at a time; got "
                f"{self.cpus:g}, {self.gpus:g} and {self.concurrency}; change --cpus-per-trial, --gpus-per-trial or "
                "--concurrency"
            )


@contextmanager
def running_ray(workers: Workers) -> Iterator[int]:
    """Ray for the time of a search, and how many trials it can train at a time."""
    quiet = {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
        "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
        "RAY_AIR_NEW_OUTPUT": "0",
        "TUNE_GLOBAL_CHECKPOINT_S": "3600",
        "TUNE_DISABLE_SIGINT_HANDLER": "1",
    }
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
        yield max(1, room if workers.concurrency is None else min(room, workers.concurrency))
    finally:
        if started:
            ray.shutdown()
