"""Time of several calls, measured side by side: other work on the machine and its clock rate affect all of them alike.

On a GPU, a call is repeated in a CUDA graph until a sample takes some milliseconds. So the time of launches from Python
is not included, and the second-level cache contains the data of the previous kernel, as in a network. On a CPU, calls
are repeated in a loop; on a GPU too, if a call cannot be captured in a graph or if launches should be included. Samples
are taken in rounds, with all calls in each round. The first round is not counted, and each sample of a short call
follows one call that is not counted, so that caches are filled as if nothing else were running.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from lrnas.errors import LrnasError

Call = Callable[[], object]

ROUNDS = 15
FEWEST = 3
"""Number of rounds that are always made, however long they take."""
SAMPLE = 0.004
"""Smallest duration of a sample in seconds, unless this needs more than MOST calls."""
MOST = 200
SHORT = 0.05
"""Calls of at most this many seconds depend on the state of caches."""
LIMIT = 2.0
"""After this many seconds of samples, a call gets no further samples."""


def find_device(name: str | torch.device | None) -> torch.device:
    """The device with a given name; for None, the GPU if there is one, else the CPU."""
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise LrnasError(f"the device must be cpu, cuda or cuda:N; got {name!r}; choose one") from None
    if device.type not in ("cpu", "cuda"):
        raise LrnasError(f"times can be measured on cpu and cuda; got {name!r}; choose one of these")
    if device.type == "cuda" and (device.index or 0) >= (number := torch.cuda.device_count()):
        raise LrnasError(f"this machine has {number} GPUs that PyTorch can use; got {name!r}; choose another device")
    return device


class OtherWork:
    """The work of other programs on this machine's CPU since the object was created."""

    def __init__(self) -> None:
        self._before = _seconds_of_others(), time.perf_counter()

    def cores(self) -> float | None:
        """Number of cores that other programs have used on average; None if the system does not tell."""
        (others, then), now = self._before, _seconds_of_others()
        return None if others is None or now is None else max(0.0, (now - others) / (time.perf_counter() - then))


def _seconds_of_others() -> float | None:
    """CPU seconds of all other processes so far; None if the system does not tell."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text(encoding="utf-8").split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK") - time.process_time()


@contextmanager
def num_threads(number: int | None) -> Iterator[None]:
    """Let PyTorch use a number of CPU threads inside a `with` block.

    `torch.set_num_threads(1)` alone is not enough: on ARM, convolutions and matrix products come from the Arm Compute
    Library, which uses all threads when it is told to use one. Therefore OpenMP, which owns the threads, is told not to
    start any parallel work.

    Args:
        number: Number of threads; None or 0 changes nothing.
    """
    if not number:
        yield
        return
    before, openmp = torch.get_num_threads(), _openmp() if number == 1 else None
    torch.set_num_threads(number)
    levels = openmp.omp_get_max_active_levels() if openmp else 0
    if openmp:
        openmp.omp_set_max_active_levels(0)
    try:
        yield
    finally:
        if openmp:
            openmp.omp_set_max_active_levels(levels)
        torch.set_num_threads(before)


def pick_threads(calls: Sequence[Call], device: torch.device) -> int:
    """The number of CPU threads with which calls are fastest: PyTorch's number, or one.

    Several threads wait for each other. While other programs use a core, this can take many times as long as the work.

    Args:
        calls: The calls that will be measured.
        device: Where they run; on a GPU, the number is PyTorch's.
    """
    most = torch.get_num_threads()
    if device.type != "cpu" or most == 1:
        return most
    shortest: dict[int, float] = {}
    for number in (1, most, 1, most):
        with num_threads(number):  # not through `measure`, whose clock differs with one thread
            seconds = sum(measure(calls, device, rounds=5, limit=0.3, quantile=0.0))
        shortest[number] = min(seconds, shortest.get(number, seconds))
    return min(shortest, key=shortest.__getitem__)


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that PyTorch is linked with; None if there is none or if it cannot be found."""
    library = ctypes.CDLL(torch._C.__file__)
    return library if hasattr(library, "omp_set_max_active_levels") else None


def measure(
    calls: Sequence[Call],
    device: torch.device | str = "cpu",
    *,
    rounds: int = ROUNDS,
    sample: float = SAMPLE,
    limit: float = LIMIT,
    quantile: float = 0.5,
    threads: int | None = None,
    capture: bool = True,
) -> list[float]:
    """Measure the time of calls side by side.

    Args:
        calls: Functions to run again and again.
        device: Where they run: cpu or cuda.
        rounds: Number of samples of each call.
        sample: Smallest duration of a sample in seconds; short calls are repeated.
        limit: Seconds of samples after which a call gets no further samples.
        quantile: Quantile of the samples that is returned: 0.5 is the median; use less if the machine has other work.
        threads: Number of CPU threads; None to leave it unchanged. With one thread on a CPU, the CPU time of this
            thread is measured, which does not grow while other programs use the core.
        capture: On a GPU, use CUDA graphs. If False, times include launches and copies.

    Returns:
        Seconds of each call.
    """
    device = torch.device(device)
    with num_threads(threads):
        if device.type == "cuda" and capture:
            with torch.cuda.device(device):
                try:
                    return _measure([_gpu_sampler(call, sample) for call in calls], rounds, limit, quantile)
                finally:
                    torch.cuda.empty_cache()  # otherwise graphs keep memory that other processes may need
        clock = time.thread_time if threads == 1 and device.type == "cpu" else time.perf_counter
        return _measure([_cpu_sampler(call, sample, clock, device) for call in calls], rounds, limit, quantile)


def _measure(samplers: Sequence[Callable[[], float]], rounds: int, limit: float, quantile: float) -> list[float]:
    samples: list[list[float]] = [[] for _ in samplers]
    spent = [0.0] * len(samplers)
    for number in range(-1, rounds):
        order = range(len(samplers))
        for i in order if number % 2 else reversed(order):  # so that no call always follows the same other one
            if number >= FEWEST and spent[i] > limit:
                continue
            started = time.perf_counter()
            seconds = samplers[i]()
            if number >= 0:
                samples[i].append(seconds)
                spent[i] += time.perf_counter() - started
    return [float(np.quantile(taken, quantile)) for taken in samples]


def _repetitions(seconds: float, sample: float) -> int:
    return max(1, min(MOST, math.ceil(sample / max(seconds, 1e-9))))


def _cpu_sampler(call: Call, sample: float, clock: Callable[[], float], device: torch.device) -> Callable[[], float]:
    def run(number: int) -> float:
        started = clock()
        for _ in range(number):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (clock() - started) / number

    run(1)  # libraries choose their algorithms
    seconds = run(1)
    number = _repetitions(seconds, sample)

    def take() -> float:
        if seconds < SHORT:
            run(1)
        return run(number)

    return take


def _gpu_sampler(call: Call, sample: float) -> Callable[[], float]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # libraries choose their algorithms, Triton compiles
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    once = _capture(call, 1)
    for _ in range(2):
        seconds = _replay(once)
    number = _repetitions(seconds, sample)
    many = once if number == 1 else _capture(call, number)

    def take() -> float:
        if seconds < SHORT:
            once()
        return _replay(many) / number

    return take


def _capture(call: Call, number: int) -> Call:
    """A CUDA graph with a number of calls; a plain loop if the call cannot be captured."""

    def repeat() -> None:
        for _ in range(number):
            call()

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            repeat()
    except RuntimeError:  # for example if it waits for the device
        torch.cuda.synchronize()
        return repeat
    return graph.replay


def _replay(run: Call) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
