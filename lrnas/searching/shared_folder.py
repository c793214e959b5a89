"""Where trials are trained: which machine it was, and whether it sees the folder of the study."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from lrnas.errors import LrnasError
from lrnas.training.checkpoint import CheckpointError
from lrnas.training.provenance import hardware

TRIES, PAUSE = 4, 1.0
"""At a mark that is not there, and the seconds between them: shared disks tell of new files with a delay."""


def this_place() -> dict[str, str]:
    """The hardware, and the node of Ray's: the host, and which one of those that run on it."""
    return {
        "hardware": hardware(),
        "node": f"{socket.gethostname()}:{ray.get_runtime_context().get_node_id()[:8]}",
    }


@contextmanager
def marked(folder: Path) -> Iterator[str]:
    """Leave a file in a folder for the time of a search; its name, for workers to look for."""
    mark = folder / f".search-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise LrnasError(f"cannot write to {folder}: {error.strerror}; give another --studies") from None
    try:
        yield mark.name
    finally:
        mark.unlink(missing_ok=True)


def check_mark(folder: Path, mark: str) -> None:
    """Refuse to train on a machine that sees another folder than the search: its checkpoints would be lost."""
    for attempt in range(TRIES):
        if (folder / mark).exists():
            return
        if attempt < TRIES - 1:
            time.sleep(PAUSE)
    raise CheckpointError(
        f"the machine {socket.gethostname()} does not see {folder} as the search does; give a folder --studies that "
        "all machines share"
    )
