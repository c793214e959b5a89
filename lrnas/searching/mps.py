"""CUDA's multi-process service (MPS), with which processes use a GPU at the same time instead of in turn."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
FOLDERS = (PIPES, "CUDA_MPS_LOG_DIRECTORY")
"""Environment variables with the folders of the service. CUDA looks for the service in the first."""
USUAL = Path("/tmp/nvidia-mps")
"""Where CUDA looks for the service if the variable is not set."""
SECONDS = 30
"""The service counts as broken if a command takes longer."""
USE_GPU = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
raise SystemExit(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
"""
"""Program that uses the first GPU, and ends with CUDA's error code; much faster than with torch."""


@contextmanager
def gpu_sharing() -> Iterator[str]:
    """Context in which new processes use the GPUs of this machine at the same time, if that is possible.

    The service is started, and stopped at the end, unless somebody else has started it. Processes find it by
    environment variables.

    Yields:
        Why processes have to take turns; "" if they need not.
    """
    if PIPES in os.environ or (USUAL / "control").exists():
        yield ""
        return
    folder = tempfile.mkdtemp(prefix="mps-")  # short: the path of a socket has at most 107 characters
    before = {name: os.environ.get(name) for name in FOLDERS}
    os.environ.update(dict.fromkeys(FOLDERS, folder))
    reason = _start()
    if reason:
        _stop(folder, before)
    try:
        yield reason
    finally:
        if not reason:
            _stop(folder, before)


def _start() -> str:
    """Start the service; returns why it does not work, "" if it does."""
    try:
        for command in ([CONTROL, "-d"], [sys.executable, "-c", USE_GPU]):
            # no pipes to the daemon, which would keep them open
            nothing = subprocess.DEVNULL
            subprocess.run(command, check=True, timeout=SECONDS, stdin=nothing, stdout=nothing, stderr=nothing)
    except FileNotFoundError:
        return f"{CONTROL} is not installed"
    except subprocess.TimeoutExpired as error:
        return f"{Path(error.cmd[0]).name} did not end within {SECONDS} s"
    except (subprocess.CalledProcessError, OSError) as error:
        code = error.returncode if isinstance(error, subprocess.CalledProcessError) else error.strerror
        return f"CUDA MPS cannot be used here ({code})"
    return ""


def _stop(folder: str, before: dict[str, str | None]) -> None:
    """Stop the service, and restore the environment variables."""
    with suppress(subprocess.SubprocessError, OSError):
        subprocess.run([CONTROL], input="quit\n", text=True, timeout=SECONDS, check=False, capture_output=True)
    shutil.rmtree(folder, ignore_errors=True)
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
