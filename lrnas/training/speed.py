"""How fast networks train on this machine, measured on random images before any of them is trained.

`measure_speeds` starts as many processes as there will be trainings at a time, because on a CPU they slow each other
down. Each process reads a task from its standard input and writes the result to its standard output. Nothing is written
to the disk.
"""

from __future__ import annotations

import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from lrnas.arch.architecture import Architecture
from lrnas.errors import LrnasError, error_line
from lrnas.recipes import Recipe
from lrnas.training.job import Images
from lrnas.training.loop import evaluate
from lrnas.training.side_by_side import for_random_images, make_training, time_steps

NICENESS = 15
"""Niceness of the processes: that of Ray's workers, unless $RAY_worker_niceness says something else."""
STEP_SECONDS = 1.0
"""On a CPU, batches are so small that a step takes no longer than this, about."""
PROBES = (2, 8)
"""Batch sizes with which it is found out how long a step would take."""
MEASURED_SECONDS = 1.5
"""Shortest time in which the steps of a network are measured."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured durations of the training of one network, in seconds."""

    build: float
    """Building the network and, on a GPU, recording its step."""
    step: float
    """Training, per image."""
    evaluation: float
    """Evaluation, per image."""
    busy: float
    """Share of the time in which the process waited for a core, on a CPU."""


def measure_speeds(
    architectures: Sequence[Architecture],
    recipe: Recipe,
    images: Images,
    device: str,
    *,
    eval_batch: int,
    processes: int = 1,
    threads: int = 1,
) -> tuple[list[Speed], float]:
    """Measure how fast networks train in several processes at a time.

    Args:
        architectures: The networks.
        recipe: The settings of their training.
        images: Size, channels and classes of the images; their pixels are random.
        device: Where to train.
        eval_batch: Number of images in a batch of the evaluation.
        processes: Number of processes, which train the same networks at the same time.
        threads: Number of threads of each process, on a CPU.

    Returns:
        The means of all processes, for each network, and the seconds until the last process was ready.
    """
    task = pickle.dumps((list(architectures), recipe, images, device, eval_batch, threads))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", "from lrnas.training.speed import serve; serve()"]
    started = time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            running.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                )
            )
        for process in running:
            _receive(process)
        seconds_to_start = time.perf_counter() - started
        for process in running:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended, which is told when its result is missing
                process.stdin.write(task)
                process.stdin.close()
        results: list[list[Speed]] = [_receive(process) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()
    columns = zip(*results, strict=True)
    return [_mean(column) for column in columns], seconds_to_start


def _receive(process: subprocess.Popen[bytes]) -> Any:
    """Return the next object that a process sends."""
    assert process.stdout is not None
    try:
        received = pickle.load(process.stdout)
    except EOFError:
        raise LrnasError("the speed of training cannot be measured: a process has ended; run this again") from None
    if isinstance(received, str):
        raise LrnasError(f"the speed of training cannot be measured: {received}; choose other settings")
    return received


def _mean(speeds: Sequence[Speed]) -> Speed:
    return Speed(*(statistics.fmean(getattr(speed, name) for speed in speeds) for name in Speed.__slots__))


def measure_speed(architecture: Architecture, recipe: Recipe, images: Images, device: str, *, eval_batch: int) -> Speed:
    """Measure how fast a network trains in this process.

    Args:
        architecture: The network.
        recipe: The settings of its training. On a CPU, batches are smaller if a step takes long.
        images: Size, channels and classes of the images; their pixels are random.
        device: Where to train.
        eval_batch: Number of images in a batch of the evaluation.
    """
    from lrnas.layers.accelerate import fused  # imports timm, which takes seconds

    recipe = for_random_images(recipe)
    whole, once = recipe.batch_size, 0.0
    if torch.device(device).type == "cpu":
        once, per_image = _probe(architecture, recipe, images, device)
        number = min(whole, max(PROBES[-1], int((STEP_SECONDS - once) / per_image)))
        recipe, eval_batch = replace(recipe, batch_size=number), min(eval_batch, 2 * number)
    started = time.perf_counter()
    training = make_training(architecture, recipe, images, device, eval_batch)
    built = time.perf_counter() - started
    training.evaluate()  # the first time, which also compiles kernels
    model, data = training.step.model, training.data
    with fused(model):
        training.advance()
        number, seconds, used = 0, 0.0, time.process_time()
        while seconds < MEASURED_SECONDS or number < 2:
            more = max(1, number)
            seconds += time_steps([training], [more])
            number += more
        waited = (
            max(0.0, 1 - (time.process_time() - used) / seconds / torch.get_num_threads())
            if training.stream is None
            else 0.0
        )
    started = time.perf_counter()
    evaluate(model, data.val, data, recipe, device=device)
    evaluation = time.perf_counter() - started
    step = max(0.0, seconds / number - once) / recipe.batch_size + once / whole
    return Speed(built, step, evaluation / len(data.val), waited)


def _probe(architecture: Architecture, recipe: Recipe, images: Images, device: str) -> tuple[float, float]:
    """Return the seconds of a step that do not depend on the batch size, and those for each image."""
    from lrnas.layers.accelerate import fused

    times = []
    for number in PROBES:
        training = make_training(architecture, replace(recipe, batch_size=number), images, device, 1)
        with fused(training.step.model):
            training.advance()
            times.append(min(time_steps([training], [1]) for _ in range(2)))
    per_image = max((times[1] - times[0]) / (PROBES[1] - PROBES[0]), times[1] / PROBES[1] / 10)
    return max(0.0, times[1] - PROBES[1] * per_image), per_image


def serve() -> None:
    """Measure in a process of `measure_speeds`, which talks to it through pipes."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is not part of the result
    os.nice(int(os.environ.get("RAY_worker_niceness", NICENESS)))  # noqa: SIM112  # Ray's own name
    import timm  # noqa: F401  # workers load it as well, before they train

    def send(what: object) -> None:
        pickle.dump(what, results)
        results.flush()

    send(None)
    architectures, recipe, images, device, eval_batch, threads = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(threads)
    try:
        send([measure_speed(one, recipe, images, device, eval_batch=eval_batch) for one in architectures])
    except Exception as error:  # sent to the process that waits for the result
        send(error_line(error))
