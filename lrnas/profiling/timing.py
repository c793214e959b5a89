"""How long calls take, measured side by side: what else the machine does, and its clock, hits all of them alike.

On a GPU a call is captured in a CUDA graph as often as makes a sample of some milliseconds, so that no launch from
Python is in it; kernels find in the second-level cache what the one before left there, as in a network. On a CPU calls
are repeated as often, and so are calls on a GPU that no graph can hold, or whose launches are to count. Samples are
taken in rounds, all calls in each round; a round that is not counted comes first, and before every sample of a short
call one call, so that caches hold what they hold when nothing else runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

Call = Callable[[], object]

ROUNDS = 15
FEWEST = 3
"""Rounds, however long they take."""
SAMPLE = 0.004
"""Seconds that one sample takes at least, unless this is more calls than MOST."""
MOST = 200
SHORT = 0.05
"""Seconds up to which caches make a difference."""
LIMIT = 2.0
"""Seconds for the samples of one call, from which on it gets no more of them."""


def measure(
    calls: Sequence[Call],
    device: torch.device | str = "cpu",
    *,
    rounds: int = ROUNDS,
    sample: float = SAMPLE,
    limit: float = LIMIT,
    quantile: float = 0.5,
    clock: Callable[[], float] = time.perf_counter,
    capture: bool = True,
) -> list[float]:
    """Seconds of each call: the median of its samples, or another quantile where others use the machine meanwhile.

    On a CPU they are those of a clock: `time.thread_time` for calls that stay in this thread, whoever else runs. On a
    GPU, without `capture`, they are what a caller waits for: launches and copies count.
    """
    device = torch.device(device)
    if device.type == "cuda" and capture:
        with torch.cuda.device(device):
            try:
                return _measure([_gpu_clock(call, sample) for call in calls], rounds, limit, quantile)
            finally:
                torch.cuda.empty_cache()  # graphs keep memory to themselves; others may train here
    return _measure([_cpu_clock(call, sample, clock, device) for call in calls], rounds, limit, quantile)


def _measure(clocks: Sequence[Callable[[], float]], rounds: int, limit: float, quantile: float) -> list[float]:
    samples: list[list[float]] = [[] for _ in clocks]
    spent = [0.0] * len(clocks)
    for number in range(-1, rounds):
        places = range(len(clocks))
        for i in places if number % 2 else reversed(places):  # nobody always comes after the same one
            if number >= FEWEST and spent[i] > limit:
                continue
            started = time.perf_counter()
            seconds = clocks[i]()
            if number >= 0:
                samples[i].append(seconds)
                spent[i] += time.perf_counter() - started
    return [float(np.quantile(taken, quantile)) for taken in samples]


def _repetitions(seconds: float, sample: float) -> int:
    return max(1, min(MOST, math.ceil(sample / max(seconds, 1e-9))))


def _cpu_clock(call: Call, sample: float, clock: Callable[[], float], device: torch.device) -> Callable[[], float]:
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


def _gpu_clock(call: Call, sample: float) -> Callable[[], float]:
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
    """The call as a CUDA graph, `number` times; plain where it cannot be one."""

    def repeat() -> None:
        for _ in range(number):
            call()

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            repeat()
    except RuntimeError:  # it waits for the device, say
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
