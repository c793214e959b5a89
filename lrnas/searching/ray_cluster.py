"""Starts Ray for a search, on this machine or a cluster, and checks what its workers need: folder and function.

On this machine, trials on the same GPU share it by CUDA MPS, where that is possible.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray import cloudpickle

from lrnas._messages import logger
from lrnas._ray import started_ray
from lrnas.data.names import first_few, pin_data_folder
from lrnas.errors import LrnasError, error_line
from lrnas.study.ledger import Ledger, living_drivers
from lrnas.training.custom import TrainableError
from lrnas.training.gpu_sharing import shared_gpus

RAY_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "ONEDNN_JIT_PROFILE": "0",
}
"""Environment variables that keep Ray Tune and PyTorch from writing files, printing and handling signals."""
HEAD_PATIENCE = 40.0
"""Seconds for which the head of a cluster may be away, to be started again. Ray ends its drivers after 60."""
MARK = ".search-"
"""Prefix of the files of `marked_folder`; the driver's name follows."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Resources of the training processes.

    Args:
        cpus: CPUs per trial.
        gpus: GPUs per trial; may be a fraction.
        concurrency: Number of trials at a time; None: as many as there is room for.
        address: Address of a Ray cluster; None: this machine alone.
        files: Paths of Python modules and packages that are sent to the cluster.
        has_mps: Whether trials on the same GPU run at the same time, by CUDA MPS; else, or if it is not known, they
            take turns.
        timeout: Seconds without a report after which a trial counts as lost; None: it may take any time.
        most: `concurrency` as it was given, while `concurrency` is what Ray has room for.
    """

    cpus: float = 1
    gpus: float = 0
    concurrency: int | None = None
    address: str | None = None
    files: tuple[str, ...] = ()
    has_mps: bool = False
    timeout: float | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        if self.cpus <= 0:
            raise LrnasError(f"--cpus-per-trial must be above 0; got {self.cpus:g}; give a larger number")
        if self.gpus < 0:
            raise LrnasError(f"--gpus-per-trial must be at least 0; got {self.gpus:g}; give a larger number")
        if self.concurrency is not None and self.concurrency < 1:
            raise LrnasError(f"--concurrency must be at least 1; got {self.concurrency}; give a larger number")


def pick_workers(
    cpus_per_trial: float = 1,
    gpus_per_trial: float | None = None,
    concurrency: int | None = None,
    address: str | None = None,
    files: tuple[str, ...] = (),
    timeout: float | None = None,
) -> Workers:
    """Workers with the given resources.

    Args:
        cpus_per_trial: As `cpus` of `Workers`.
        gpus_per_trial: As `gpus` of `Workers`; None: a quarter of a GPU if this machine has one, else 0
            (`lrnas.searching.trials_per_gpu.share_gpus` then measures what is better).
        concurrency: As in `Workers`.
        address: As in `Workers`.
        files: As in `Workers`.
        timeout: As in `Workers`.

    Raises:
        LrnasError: A number is not possible, or this machine has fewer CPUs or GPUs.
    """
    if gpus_per_trial is None:
        gpus_per_trial = 0.25 if torch.cuda.is_available() else 0
    workers = Workers(cpus_per_trial, gpus_per_trial, concurrency, address, files, timeout=timeout)
    if address is None and not ray.is_initialized():
        _check_room("GPU", workers.gpus, torch.cuda.device_count())
        _check_room("CPU", workers.cpus, os.cpu_count() or 1)  # Ray may count fewer, in a container
    return workers


def _check_room(kind: str, share: float, most: float) -> None:
    """Raise an error if a trial needs more CPUs or GPUs than there are."""
    if share > most:
        option = f"--{kind.lower()}s-per-trial"
        raise LrnasError(f"{option} must be at most the number of {kind}s, {most:g}; got {share:g}; give less")


class _WorkerUnpickler(pickle.Unpickler):
    """An unpickler that finds nothing in `__main__`, like that of a worker, whose `__main__` is another module."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            raise TrainableError(
                "a trainable in a script may use only what can be copied to workers, which excludes functions with "
                f"lru_cache; got {name}; put both into a module, and import the trainable from there"
            )
        return super().find_class(module, name)


def check_sendable(function: Callable[..., object]) -> None:
    """Refuse a training function that workers could not load.

    Args:
        function: A function that is sent to workers as a copy, because they cannot import it.

    Raises:
        TrainableError: The function, or something that it uses, cannot be copied.
    """
    try:
        copied = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:  # objects raise errors of any type
        raise TrainableError(
            "a trainable that is not in a module is copied to workers, with all that it uses; this failed with "
            f"{error_line(error)}; put it into a module, and import it from there"
        ) from None
    _WorkerUnpickler(io.BytesIO(copied)).load()


def tries_mps(workers: Workers) -> bool:
    """Whether `running_ray` tries to let trials share GPUs by CUDA MPS: if it starts Ray, on this machine.

    Args:
        workers: The resources of the workers.
    """
    return workers.address is None and 0 < workers.gpus < 1 and not ray.is_initialized()


@contextmanager
def running_ray(workers: Workers) -> Iterator[Workers]:
    """Context in which Ray runs.

    Args:
        workers: The resources of the workers.

    Yields:
        The same, as `limit_to_room` returns them, and with `has_mps`.
    """
    pin_data_folder()
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        reason, has_mps = "", False
        if not ray.is_initialized():
            if tries_mps(workers):
                torch.cuda.is_available()  # starts CUDA here, before MPS: only workers should use the service
                reason = stack.enter_context(shared_gpus())  # before Ray, so that workers inherit its variable
                has_mps = not reason
            stack.enter_context(started_ray(workers.address, workers.files))
        running = limit_to_room(workers)
        if reason:
            logger.info(f"trials on the same GPU take turns, which is slower: {reason}")
        yield replace(running, has_mps=has_mps)


def limit_to_room(workers: Workers) -> Workers:
    """The same workers, with `concurrency` set to the number of trials that Ray has room for, or less if it was less.

    Args:
        workers: The resources of the workers.

    Raises:
        LrnasError: There is no room for a single trial.
    """
    machines = _machines()
    if not _room(workers, machines):
        if workers.address is None:
            for kind, share in {"CPU": workers.cpus, "GPU": workers.gpus}.items():
                _check_room(kind, share, max(machine.get(kind, 0) for machine in machines))
        have = sorted({f"{machine.get('CPU', 0):g} and {machine.get('GPU', 0):g}" for machine in machines})
        raise LrnasError(
            f"a trial must fit on one machine of the cluster; got {workers.cpus:g} CPUs and {workers.gpus:g} GPUs for "
            f"each trial, and machines with {first_few(have, 3)}; give less to a trial (--cpus-per-trial, "
            "--gpus-per-trial), or start larger machines"
        )
    idle = 0 if workers.gpus or workers.address is None else sum(machine.get("GPU", 0) for machine in machines)
    if idle:
        logger.info(f"the cluster has {idle:g} GPUs, which are not used; --gpus-per-trial 0.25 uses them")
    return follow_room(replace(workers, most=workers.concurrency))


def follow_room(workers: Workers) -> Workers:
    """The same workers, with `concurrency` for the nodes that Ray has now: some may have joined, others have gone.

    Args:
        workers: The resources of the workers, as `limit_to_room` returns them.
    """
    room = _room(workers, _machines())
    return replace(workers, concurrency=max(1, min(room, workers.most or room)))


def _machines() -> list[dict[str, float]]:
    """The CPUs, GPUs and other resources of the machines on which Ray runs."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _room(workers: Workers, machines: Sequence[Mapping[str, float]]) -> int:
    """Number of trials that machines have room for. A trial runs on one machine."""
    wanted = {kind: share for kind, share in {"CPU": workers.cpus, "GPU": workers.gpus}.items() if share}
    return sum(min(int(machine.get(kind, 0) / share) for kind, share in wanted.items()) for machine in machines)


class RayEnded(LrnasError):
    """A process of Ray has ended that the driver cannot work without."""


@dataclass
class RayLife:
    """Tells whether the processes of Ray live that a driver cannot work without.

    Args:
        node: Address of the process of the driver's own node.
        head: Address of the process of the cluster's head.
        is_alone: Whether the driver has started Ray itself. Nobody starts it again then.
    """

    node: tuple[str, int]
    head: tuple[str, int]
    is_alone: bool
    _head_seen: float = field(default_factory=time.monotonic, init=False, repr=False)

    @classmethod
    def of_this_driver(cls, is_alone: bool) -> RayLife:
        context = ray.get_runtime_context()
        (own,) = (node for node in ray.nodes() if node["NodeID"] == context.get_node_id())  # type: ignore[no-untyped-call]
        head, _, port = context.gcs_address.rpartition(":")
        return cls((own["NodeManagerAddress"], own["NodeManagerPort"]), (head, int(port)), is_alone)

    def check(self) -> None:
        """Raise an error if one of them has ended. Ray itself would wait, or end this program without a word of ours.

        Raises:
            RayEnded: Ray has ended.
        """
        now = time.monotonic()
        if _listens(self.head):
            self._head_seen = now
        has_head = self._head_seen == now or not (self.is_alone or now - self._head_seen > HEAD_PATIENCE)
        if has_head and _listens(self.node):
            return
        ended = "{}:{}".format(*(self.node if has_head else self.head))
        advice = "" if self.is_alone else "start the cluster again, and "
        raise RayEnded(
            f"Ray must run as long as the search; its process at {ended} has ended; nothing is lost: {advice}the same "
            "command continues"
        )


def _listens(address: tuple[str, int]) -> bool:
    """Whether a process listens at an address. It may be slow to answer; only a refusal shows that it has ended."""
    try:
        socket.create_connection(address, timeout=1).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        pass
    return True


@contextmanager
def marked_folder(folder: Path, ledger: Ledger) -> Iterator[str]:
    """Context in which a folder holds a file that workers look for; files of drivers that were killed are removed.

    Args:
        folder: The folder of the trials.
        ledger: The ledger of the driver.

    Yields:
        The name of the file.
    """
    mark = folder / f"{MARK}{ledger.driver}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
        others = [other for other in folder.glob(f"{MARK}*") if other != mark]
        living = living_drivers(
            ledger.study.optuna_study, watch=True
        )  # second: a driver signs before it leaves its file
        for other in others:
            if other.name.removeprefix(MARK) not in living:
                other.unlink(missing_ok=True)
    except OSError as error:
        raise LrnasError(f"cannot write to {folder}: {error.strerror}; give another --studies") from None
    try:
        yield mark.name
    finally:
        mark.unlink(missing_ok=True)
