"""CUDA's multi-process service (MPS), with which processes use a GPU at the same time instead of in turn.

The service is a daemon, which would outlive a program that is killed. So another process, the keeper, starts and stops
it: this file, run as a script. Its standard input is a pipe from the program. When the program closes the pipe, or ends
in any way, even by SIGKILL, the keeper reads the end of its input and stops the service.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
"""Environment variables with the folders of the service. CUDA looks for it in the first, or in /tmp/nvidia-mps."""
SECONDS = 30
"""Commands that take longer count as failed."""
USE_GPU = """
import ctypes
cuda, context, name = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_char_p()
if error := cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
    cuda.cuGetErrorName(error, ctypes.byref(name))
    raise SystemExit((name.value or b"unknown error").decode())
"""
"""Program that uses the first GPU, and fails with the name of CUDA's error; much faster than with torch."""


@contextmanager
def shared_gpus() -> Iterator[str]:
    """Context in which new processes use the GPUs of this machine at the same time, if that is possible.

    If a service is running where CUDA looks for it, processes use that one. If $CUDA_MPS_PIPE_DIRECTORY is set and no
    service answers there, nothing is started. Otherwise, a service is started, and stopped at the end.

    Yields:
        Why processes have to take turns; "" if they need not.
    """
    unanswered = _run([CONTROL], "get_server_list")
    if not unanswered:
        yield ""
        return
    if PIPES in os.environ:
        yield f"no service answers at {PIPES}={os.environ[PIPES]} ({unanswered})"
        return
    with subprocess.Popen(  # at the end, this closes the pipes and waits
        [sys.executable, "-I", __file__, USE_GPU],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C in a terminal does not reach other sessions
    ) as keeper:
        assert keeper.stdout is not None
        folder, reason = (keeper.stdout.readline().rstrip("\n") for _ in range(2))
        if reason or not folder:
            yield reason or "the process that starts CUDA MPS has ended"
            return
        os.environ[PIPES] = folder
        try:
            yield ""
        finally:
            os.environ.pop(PIPES, None)


def _keep(probe: str) -> None:
    """Start the service, print its folder and why it does not work, and stop it at the end of the standard input.

    Args:
        probe: Python code that uses a GPU, and fails if the service does not work.
    """
    # Slurm sends SIGTERM to all processes of a job; the program still needs the service until it ends
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        os.environ |= {PIPES: folder, LOGS: folder}
        # with this variable the service would count GPUs in another way than its clients
        environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        try:
            reason = (
                _run([CONTROL, "-d"], environment=environment)
                or _run([sys.executable, "-c", probe])
                or _run([CONTROL], "get_server_list")
            )
            print(folder, reason, sep="\n", flush=True)
            if not reason:
                sys.stdin.read()
        finally:
            _run([CONTROL], "quit")


def _run(command: list[str], text: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Run a program with a text as its input; returns why it failed, "" if it did not."""
    name = Path(command[0]).name
    with tempfile.TemporaryFile("w+", errors="replace") as output:  # no pipe: a daemon would keep it open
        try:
            done = subprocess.run(
                command,
                input=text,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except FileNotFoundError:
            return f"{name} is not installed"
        except subprocess.TimeoutExpired:
            return f"{name} did not end within {SECONDS} s"
        except OSError as error:
            return f"{name}: {error.strerror}"
        output.seek(0)
        lines = output.read().strip().splitlines() or [f"{name} ended with code {done.returncode}"]
    return lines[-1] if done.returncode else ""


if __name__ == "__main__":
    _keep(sys.argv[1])
