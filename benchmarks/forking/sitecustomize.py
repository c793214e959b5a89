"""Workers of Ray as copies of one process that has imported everything, so that 64 of them fit into a small machine.

A worker that has imported torch, timm and Ray takes 0.5 GB of its own; as a copy, it shares most of this with the
others. Python imports this module when it starts, in all processes with its folder in PYTHONPATH. Where Python is
about to run a worker of Ray, it asks the server at $LOAD_FORKS for a copy instead, and ends when the copy ends.

`python sitecustomize.py SOCKET` is the server.
"""

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

WORKER = "default_worker.py"
LIMIT = 2**20
"""Largest number of bytes of a request."""


def delegate(address: str, arguments: list[str]) -> None:
    """Let the server run a worker, and end as it ends."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        request = {"arguments": arguments, "environment": dict(os.environ), "folder": str(Path.cwd())}
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        os._exit(int(server.makefile().readline() or 1))


def serve(address: str) -> None:
    """Import what workers need, then make a copy of this process for every request."""
    import gc
    import select
    import signal

    import lrnas.models.build
    import lrnas.searching.ray_tune  # noqa: F401

    gc.collect()
    gc.freeze()  # copies would otherwise write to the memory of all objects
    clients: dict[int, socket.socket] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(256)
        while True:
            ready = select.select([server, woken], [], [])[0]
            if woken in ready:
                os.read(woken, 4096)
                with contextlib.suppress(ChildProcessError):
                    while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                        with contextlib.suppress(OSError), clients.pop(ended[0]) as client:
                            client.sendall(f"{os.waitstatus_to_exitcode(ended[1]) & 255}\n".encode())
            if server in ready:
                client = server.accept()[0]
                text, files, *_ = socket.recv_fds(client, LIMIT, 3)
                while not text.endswith(b"\n"):
                    text += client.recv(LIMIT)
                if not (child := os.fork()):
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    run(json.loads(text), files)
                for file in files:
                    os.close(file)
                clients[child] = client


def run(request: dict[str, object], files: list[int]) -> None:
    """Run a worker in this process, which is a copy."""
    import runpy

    for place, file in enumerate(files):
        os.dup2(file, place)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
elif "LOAD_FORKS" in os.environ:
    words = Path("/proc/self/cmdline").read_text().split("\0")[1:-1]
    if words and words[0].endswith(WORKER):
        delegate(os.environ["LOAD_FORKS"], words)
