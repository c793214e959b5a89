"""A process of its own that measures trainings side by side. It can be started early: it first imports torch and timm.

The process gets its task through its standard input. It compiles the kernels of all networks at once, in one process
for each network and size of images: Triton compiles one kernel after another, and keeps them on the disk, where all
processes find them. When it is told to, it measures, and returns the result through its standard output.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import torch

from lrnas.arch.architecture import Architecture
from lrnas.data.shared_copy import can_share
from lrnas.errors import error_line
from lrnas.recipes import Recipe
from lrnas.training.gpu_sharing import PIPES
from lrnas.training.job import Images
from lrnas.training.loop import Device
from lrnas.training.side_by_side import for_random_images, make_training, measure_rates

USED_MEMORY = 0.9
"""Share of a GPU's memory that trials may use."""
COMPILE_SECONDS = 120.0
"""Processes that compile kernels are ended after this time."""


class MeasuringProcess:
    """A process that measures trainings side by side.

    Args:
        networks: As in `measure_rates`.
        recipe: As in `measure_rates`. Speeds are measured with the crops of most epochs, and memory is that of the
            largest crops.
        images: As in `measure_rates`.
        device: As in `measure_rates`.
        eval_batch: As in `measure_rates`.
    """

    def __init__(
        self, networks: Sequence[Architecture], recipe: Recipe, images: Images, device: Device, eval_batch: int
    ) -> None:
        self._task = (list(networks), recipe, images, device, eval_batch)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, which imports what it needs and compiles kernels."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from lrnas.training.measuring import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # one thread, as in Ray's workers
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C in a terminal does not reach other sessions
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which is told when its result is missing
            self._process.stdin.write(pickle.dumps(self._task))
            self._process.stdin.flush()

    def measure(self, timeout: float) -> dict[str, Any]:
        """Measure, and end the process. It is started if it does not run yet.

        Args:
            timeout: Seconds to wait for the result.

        Returns:
            The measurement, with the entry `is_alone`: whether no other program used the GPU.

        Raises:
            torch.OutOfMemoryError: There is no memory for a single training.
            RuntimeError: Nothing can be measured for another reason.
        """
        if self._process is None:
            self.start()
        assert self._process is not None
        try:
            # CUDA MPS may have started after the process
            written, _ = self._process.communicate(pickle.dumps(os.environ.get(PIPES)), timeout)
            result = pickle.loads(written)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"it takes more than {timeout:g} s") from None
        except (EOFError, pickle.UnpicklingError):
            raise RuntimeError("the process that measures has ended") from None
        finally:
            self.end()
        if isinstance(result, RuntimeError):
            raise result
        found: dict[str, Any] = result
        return found

    def end(self) -> None:
        """End the process, with those that it has started."""
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # closes the pipes and waits
            self._process = None


def serve() -> None:
    """Measure in the process of `MeasuringProcess`, which talks to it through pipes."""
    _end_with_parent()
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is not part of the result
    import lrnas.models.build  # imports timm

    with suppress(ImportError):  # without Triton, PyTorch's operations are used
        import lrnas.layers.gpu  # noqa: F401
    with suppress(ImportError):
        from triton.runtime.cache import triton_key

        triton_key()  # a hash of all of Triton, which takes a second; forked processes have it, too
    networks, recipe, images, device, eval_batch = pickle.load(sys.stdin.buffer)
    started = time.perf_counter()
    if len(networks) > 1:
        recipes = [recipe.with_size(size) for size in recipe.num_epochs(images.image_size)]
        compile_kernels(networks, recipes, images, device, eval_batch)
    seconds = time.perf_counter() - started
    if (pipes := pickle.load(sys.stdin.buffer)) is not None:
        os.environ[PIPES] = pipes
    try:
        measured = measure(networks, recipe, images, device, eval_batch)
        result: object = measured | {"seconds": seconds + measured["seconds"], "compile_seconds": seconds}
    except torch.OutOfMemoryError as error:
        result = torch.OutOfMemoryError(str(error))
    except Exception as error:  # sent to the process that waits for the result
        result = RuntimeError(error_line(error))
    pickle.dump(result, results)
    results.flush()
    os._exit(0)  # at once: whoever waits for the result waits for the end


def measure(
    networks: Sequence[Architecture], recipe: Recipe, images: Images, device: Device, eval_batch: int
) -> dict[str, Any]:
    """Measure in a process that has a whole GPU, and has not used it before.

    Args:
        networks: As in `MeasuringProcess`.
        recipe: As in `MeasuringProcess`.
        images: As in `MeasuringProcess`.
        device: As in `MeasuringProcess`.
        eval_batch: As in `MeasuringProcess`.

    Returns:
        A measurement, with the entry `is_alone`: whether no other program used the GPU.
    """
    started = time.perf_counter()
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"  # by default, streams share 8 queues of the GPU
    sizes = recipe.num_epochs(images.image_size)
    usual, largest = max(sizes, key=lambda size: sizes[size]), max(sizes)
    is_alone = True
    if torch.device(device).type == "cuda":
        free, total = torch.cuda.mem_get_info()
        is_alone = free > USED_MEMORY * total
    rates = measure_rates(networks, recipe.with_size(usual), images, device, eval_batch=eval_batch)
    area = (largest / usual) ** 2
    rates = [replace(one, memory=round(area * one.memory), eval_memory=round(area * one.eval_memory)) for one in rates]
    return {
        **describe(device),
        "rates": [asdict(rate) for rate in rates],
        "shares_memory": can_share(torch.device(device)),
        "seconds": time.perf_counter() - started,
        "is_alone": is_alone,
    }


def compile_kernels(
    networks: Sequence[Architecture], recipes: Sequence[Recipe], images: Images, device: Device, eval_batch: int
) -> None:
    """Compile the kernels of networks at the same time, in forked processes; this process must not have used CUDA.

    Each process trains its network for a few steps and evaluates it. If one fails, for lack of memory for example, its
    kernels are compiled when they are first used.

    Args:
        networks: As in `measure_rates`.
        recipes: Recipes to train each network with.
        images: As in `measure_rates`.
        device: As in `measure_rates`.
        eval_batch: As in `measure_rates`.
    """
    fork = multiprocessing.get_context("fork")
    jobs = [(network, recipe, images, device, eval_batch) for recipe in recipes for network in networks]
    processes = [fork.Process(target=_compile, args=job) for job in jobs]
    for process in processes:
        process.start()
    deadline = time.monotonic() + COMPILE_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


def _compile(network: Architecture, recipe: Recipe, images: Images, device: Device, eval_batch: int) -> None:
    _end_with_parent()
    make_training(network, for_random_images(recipe), images, device, eval_batch).evaluate()


def describe(device: Device) -> dict[str, Any]:
    """Name and memory of the device of this process."""
    if torch.device(device).type == "cpu":
        return {"gpu": "none", "memory": sys.maxsize}
    return {"gpu": torch.cuda.get_device_name(), "memory": torch.cuda.get_device_properties(0).total_memory}


def _end_with_parent() -> None:
    """Let the kernel end this process when its parent ends, even if that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
