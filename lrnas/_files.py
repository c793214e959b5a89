"""Atomic writing of files: a reader never sees an incomplete file."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Write a file under a temporary name and rename it to `path` when it is complete.

    The folder is created if it does not exist. If the block raises an error, the temporary file is removed and an
    earlier file at `path` stays as it was. Several processes may write the same file: the last one to finish wins.

    Args:
        path: The file to write or replace.

    Yields:
        The temporary file, in the same folder, which the block must write and close.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        yield part
        with part.open("rb") as stream:
            os.fsync(stream.fileno())  # otherwise a power failure can leave the new name with no content
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
