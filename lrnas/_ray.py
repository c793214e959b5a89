"""Start of Ray, which only this machine can reach unless it is a cluster, and temporary folders for its files."""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._common.utils import get_default_system_temp_dir
from ray._private import (
    node as ray_node,
    ray_constants,
    services as ray_services,
    utils as ray_utils,
    worker as ray_worker,
)
from ray.exceptions import AuthenticationError

from lrnas._messages import hide_passwords, logger
from lrnas.errors import LrnasError, Terminated

SCRATCH = "lrnas_"
"""Prefix of temporary folders."""
SIGN = ".lrnas-scratch"
"""Name of a file in them with the name of the host. Other programs remove no folder without it."""
LONGEST_PLACE = 26
"""Largest number of letters of the path that they are in: names of Ray's sockets, which have at most 107, follow."""


class _OwnGroup(ray_services.ConsolePopen):
    """A process of Ray in a process group of its own.

    A signal to all processes of the program's group, as `timeout` sends it, would end Ray before the search stops.
    If the program dies, Ray's processes end nevertheless: they ask the kernel for it.

    Args:
        started: List that the process adds itself to.
    """

    def __init__(self, started: list[_OwnGroup], *args: Any, **named: Any) -> None:
        started.append(self)
        super().__init__(*args, process_group=0, **named)


class SlowStart(LrnasError):
    """Ray was not ready in time."""


@contextmanager
def started_ray(address: str | None = None, files: Sequence[str] = ()) -> Iterator[None]:
    """Context in which Ray runs, and at whose end it has left nothing.

    Args:
        address: Address of a Ray cluster, which must ask for a token; None: this machine alone.
        files: Paths of Python modules and packages that are sent to the cluster.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(_started_once(address, files))
        except SlowStart:  # if other programs use all cores, processes of Ray are not ready after 15 s, and it gives up
            logger.info("Ray did not start in time, perhaps because other programs use all cores; trying once more")
            stack.enter_context(_started_once(address, files))
        yield


@contextmanager
def _started_once(address: str | None, files: Sequence[str]) -> Iterator[None]:
    started: list[_OwnGroup] = []
    # without the change, Ray prints a long text when a worker is lost
    with _changed(ray_worker, "_worker_logs_enabled", False), scratch_folder() as folder:
        try:
            _start(address, files, folder, started)
            if address is not None:
                _check_token(address)
            yield
        finally:
            try:
                ray.shutdown()
            except KeyboardInterrupt:  # Ray must end all the same: it would go on writing to its folder
                ray.shutdown()
                raise
            finally:
                for process in started:  # those of a start that failed, which Ray does not know, with their children
                    if process.pid:
                        with suppress(ProcessLookupError):
                            os.killpg(process.pid, signal.SIGKILL)
                        process.wait()


def _start(address: str | None, files: Sequence[str], folder: Path, started: list[_OwnGroup]) -> None:
    """Connect to a cluster, or start Ray on this machine, with its files in a folder, which it opens to everyone.

    Args:
        address: As in `started_ray`.
        files: As in `started_ray`.
        folder: The folder.
        started: List to which the processes that are started are added.
    """
    options: dict[str, Any] = {"address": "local", "include_dashboard": False, "_temp_dir": str(folder / "r")}
    if address is not None:
        options = {"address": address, "runtime_env": {"py_modules": list(files)} if files else None}
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    # Ray keeps the command for everyone who can see the cluster
    command = hide_passwords(ray_utils.get_entrypoint_name())  # type: ignore[no-untyped-call]
    try:
        with (
            _changed(ray_utils, "get_entrypoint_name", lambda: command),
            _changed(ray_services, "ConsolePopen", functools.partial(_OwnGroup, started)),
            _changed(ray_constants, "ENABLE_RAY_CLUSTER", False),  # only this machine can reach it, as on macOS
            # a search has no use for these three processes, which take half of the time of the start
            _changed(ray_services, "start_api_server", lambda *_, **__: (None, None)),
            _changed(ray_node.Node, "start_monitor", lambda node: None),
            _changed(ray_node.Node, "start_log_monitor", lambda node: None),
        ):
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except SystemExit:  # raised by Ray's own handler of SIGTERM
        raise Terminated from None
    except Exception as error:  # Ray raises errors of any type
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        if address is None:
            kind = SlowStart if "timed out" in reason else LrnasError
            raise kind(f"Ray cannot start on this machine: {reason}; the same command tries again") from None
        is_refused = isinstance(error, AuthenticationError) or "InvalidAuthToken" in repr(error.__cause__)
        advice = "set the cluster's token on this machine, see docs/cluster.md" if is_refused else "check --address"
        raise LrnasError(f"cannot reach a Ray cluster at {address}: {reason}; {advice}") from None
    finally:
        if is_main:  # Ray's handlers would end the program with a stack of C++
            signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)


@contextmanager
def _changed(module: object, name: str, value: object) -> Iterator[None]:
    """Context in which a variable of Ray has another value: a setting for which Ray has no option."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _check_token(address: str) -> None:
    """Refuse a cluster on which everyone can run code who can reach it."""
    ask = ray.remote(os.getenv).options(num_cpus=0)
    mode = ray.get(ask.remote("RAY_AUTH_MODE"))
    if mode != "token":
        raise LrnasError(
            f"a Ray cluster must ask for a token; got {address} with RAY_AUTH_MODE={mode}; set RAY_AUTH_MODE=token and "
            "the token on all machines, and start Ray again, see docs/cluster.md"
        )


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Context with a temporary folder that only this user can read.

    It is removed at the end. If this program is killed, the next one that makes such a folder removes it: the folder
    is locked as long as its program lives.
    """
    place = Path(get_default_system_temp_dir())  # type: ignore[no-untyped-call]
    if len(str(place)) > LONGEST_PLACE:
        place = Path("/tmp")
    for sign in place.glob(f"{SCRATCH}*/{SIGN}"):  # not every folder with such a name is ours
        # where a folder is shared by several machines, locks are seen only by the one that has made them
        if _text(sign) == socket.gethostname() and (lock := _lock(sign.parent)) is not None:
            _discard(sign.parent)
            os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=place))
    lock = _lock(folder)
    try:
        if lock is not None:  # else nobody can know later whether this program lives
            (folder / SIGN).write_text(socket.gethostname())
        yield folder
    finally:
        _discard(folder)
        if lock is not None:
            os.close(lock)


def _text(file: Path) -> str:
    with suppress(OSError, ValueError):
        return file.read_text()
    return ""


def _discard(folder: Path) -> None:
    """Remove a temporary folder; its sign last, so that another program can remove what is left."""
    for part in folder.iterdir():
        if part.name != SIGN:
            shutil.rmtree(part, ignore_errors=True)
    if {part.name for part in folder.iterdir()} <= {SIGN}:
        shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the returned descriptor is closed.

    None if another program has locked or removed it, or if it is no folder of this user: nobody else's is removed.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            raise PermissionError
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
