"""One copy of a file in the memory of a GPU, for all processes of a user on this machine.

The first process that needs a file starts a holder: this file, run as a script. The holder copies the file to the GPU,
and gives CUDA's handle of the memory to every process that connects to its socket. A process stays connected as long as
it uses the memory. The holder ends some seconds after the last of them has gone, in whatever way it ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LINGER = 5.0
"""Seconds for which a holder waits for the next process."""
PATIENCE = 600.0
"""Seconds that a process waits until the file is copied."""
CHUNK = 1 << 26
"""Bytes that are copied at a time."""
HANDLE = 64
"""Bytes of CUDA's handle of memory."""
LAZY_PEER_ACCESS = 1
REFUSED = b"refused: "
"""Begin of an answer that says why there is no handle."""
ATTEMPTS = 3
BACKLOG = 1024
"""Processes that may wait while the file is copied."""


class CannotShare(Exception):
    """The reason why memory cannot be shared."""


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * HANDLE),)


class SharedMemory:
    """Memory of a GPU that a holder keeps, as an array that PyTorch can use without a copy.

    Args:
        connection: The connection to the holder, which keeps the memory as long as it is open.
        address: Where the memory is.
        size: Number of bytes.
    """

    def __init__(self, connection: socket.socket, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
        weakref.finalize(self, _let_go, connection, address).atexit = False  # when the process ends, CUDA does this


def _let_go(connection: socket.socket, address: int) -> None:
    _cuda().cuIpcCloseMemHandle(ctypes.c_uint64(address))
    connection.close()


def share_file(file: Path, device: torch.device, share: float = 0.5) -> torch.Tensor:
    """Return the bytes of a file in memory of a GPU that processes share. Raises CannotShare.

    Args:
        file: The file. It does not change while it is used.
        device: The GPU.
        share: Largest share of the GPU's free memory that the file may take.
    """
    import torch

    gpu = device.index if device.index is not None else torch.cuda.current_device()
    with torch.cuda.device(gpu):
        torch.empty(1, device=device)  # from now on, this thread has a context of CUDA
        connection, handle = _ask(file, gpu, str(torch.cuda.get_device_properties(gpu).uuid), share)
        address = ctypes.c_uint64()
        try:
            kept = _Handle.from_buffer_copy(handle)
            _check(_cuda().cuIpcOpenMemHandle_v2(ctypes.byref(address), kept, LAZY_PEER_ACCESS))
        except CannotShare:
            connection.close()
            raise
        return torch.as_tensor(SharedMemory(connection, address.value, file.stat().st_size), device=device)


def can_share(device: torch.device) -> bool:
    """Return whether processes can share memory of this device."""
    if device.type == "cpu":
        return False
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
        file.flush()
        try:
            share_file(Path(file.name), device)
        except CannotShare:
            return False
    return True


def _ask(file: Path, gpu: int, uuid: str, share: float = 0.5) -> tuple[socket.socket, bytes]:
    """Return a connection to the holder of a file, and CUDA's handle; the holder is started if there is none."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise CannotShare("memory is shared only on Linux")
    name = _address(file, uuid)
    for _ in range(ATTEMPTS):  # a holder may end in this moment
        connection = socket.socket(socket.AF_UNIX)
        try:
            if handle := _receive(connection, name):
                return connection, handle
        except BaseException:
            connection.close()
            raise
        connection.close()
        _start([sys.executable, "-I", "-S", __file__, os.fspath(file), name, str(gpu), str(share)])
    raise CannotShare("the process that keeps the memory has ended")


def _receive(connection: socket.socket, name: str) -> bytes:
    """Connect to a holder, and wait for its answer. Returns CUDA's handle, or nothing if there is no holder."""
    connection.settimeout(PATIENCE)
    answer = b""
    try:
        connection.connect(_abstract(name))
        if _peer(connection) != os.getuid():
            raise CannotShare("another user keeps memory under the same name")
        while part := connection.recv(4096):
            answer += part
    except TimeoutError:
        raise CannotShare(f"the file was not copied within {PATIENCE:g} s") from None
    except ConnectionError:
        return b""
    if answer.startswith(REFUSED):
        raise CannotShare(answer.removeprefix(REFUSED).decode())
    return answer


def _start(command: list[str]) -> None:
    """Start a holder, and wait until it listens, or has ended because another one does."""
    with subprocess.Popen(
        ["/bin/sh", "-c", '"$@" & :', "sh", *command],  # the holder is nobody's child, and so it leaves no zombie
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal does not reach other sessions
    ) as starter:
        assert starter.stdout is not None
        starter.stdout.read()


def _address(file: Path, uuid: str) -> str:
    """The name of the holder's socket, which depends on the file, its version, the GPU and the user."""
    state = file.stat()
    parts = (file.resolve(), state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, uuid, os.getuid())
    return "lrnas-" + hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _abstract(name: str) -> bytes:
    """A name that needs no file, and that is free again when its process has ended."""
    return b"\0" + name.encode()


def _peer(connection: socket.socket) -> int:
    """The user of the process at the other end."""
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


def _cuda() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CannotShare(str(error)) from None


def _check(error: int) -> None:
    if error:
        name = ctypes.c_char_p()
        _cuda().cuGetErrorName(error, ctypes.byref(name))
        raise CannotShare((name.value or b"unknown error").decode())


def _copy(file: str, gpu: int, share: float) -> bytes:
    """Copy a file to a GPU if it takes at most a share of the free memory; returns CUDA's handle of the memory."""
    cuda, device, context, address, handle = _cuda(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), _Handle()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    size, buffer = Path(file).stat().st_size, bytearray(CHUNK)
    host = (ctypes.c_char * CHUNK).from_buffer(buffer)
    _check(cuda.cuInit(0))
    _check(cuda.cuDeviceGet(ctypes.byref(device), gpu))
    _check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    _check(cuda.cuCtxSetCurrent(context))
    _check(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    if size > share * free.value:
        raise CannotShare(f"it would take more than {100 * share:.0f} % of the memory that is free")
    _check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
    with Path(file).open("rb", buffering=0) as stream:
        done = 0
        while number := stream.readinto(buffer):
            _check(cuda.cuMemcpyHtoD_v2(ctypes.c_uint64(address.value + done), host, ctypes.c_size_t(number)))
            done += number
    _check(cuda.cuIpcGetMemHandle(ctypes.byref(handle), address))
    return bytes(handle)


def _hold(file: str, name: str, gpu: int, share: float) -> None:
    """Keep a file in a GPU's memory for the processes that are connected; the other arguments are those of `_copy`."""
    with socket.socket(socket.AF_UNIX) as server, selectors.DefaultSelector() as selector:
        try:
            server.bind(_abstract(name))
        except OSError:  # another process was faster
            return
        server.listen(BACKLOG)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # this tells that it listens
        try:
            answer = _copy(file, gpu, share)
        except (CannotShare, OSError) as error:
            answer = REFUSED + str(error).encode()
        selector.register(server, selectors.EVENT_READ)
        while ready := selector.select(None if len(selector.get_map()) > 1 else LINGER):
            for key, _ in ready:
                if key.fileobj is server:
                    connection, _ = server.accept()
                    with contextlib.suppress(OSError):
                        if _peer(connection) == os.getuid():
                            connection.sendall(answer)
                            connection.shutdown(socket.SHUT_WR)
                    selector.register(connection, selectors.EVENT_READ)
                else:  # the process has gone
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    _hold(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
