"""Reading files of users, which can be anything, and writing files so that a reader never sees an incomplete one."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from lrnas._messages import logger

MAX_TEXT = 2**18
"""Largest size of a file that a person writes, in bytes; far above that of any network or search space."""
MAX_RECORD = 64 * 2**20
"""Largest size of a file that a training writes, in bytes: with one entry per epoch, for 100,000 epochs."""

MAX_DEPTH = 64
"""Largest number of tables and lists inside each other in a TOML file."""
_LONG_KEY = re.compile(rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MAX_DEPTH}}}""")
"""A key with too many dots, for which Python's parser would take memory with the square of their number."""


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file to read bytes. A pipe or a device, which might never end, raises OSError."""
    path = Path(path)
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder raises an OSError of its own
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.open("rb")


def acquire_lock(path: Path, waiting: str) -> FileLock:
    """Acquire the lock of a file among processes, and return it; a message is logged if another process has it.

    Args:
        path: The file of the lock.
        waiting: The message.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info(waiting)
        lock.acquire()
    return lock


def read_text(path: str | Path, limit: int = MAX_TEXT) -> str:
    """The text of a regular file.

    Args:
        path: The file.
        limit: Largest size in bytes.

    Raises:
        OSError: The file cannot be opened, is not a regular file, or is too large.
        ValueError: It is not UTF-8.
    """
    with open_regular(path) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit / 2**10:,.0f} KiB", str(path))
    return data.decode("utf-8")


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ValueError: It is not valid, has a whole number of more than 64 bits, or tables or lists more than 64 deep.
    """
    if _LONG_KEY.search(text):
        raise ValueError(f"a key has more than {MAX_DEPTH} parts")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except (ValueError, RecursionError):  # a number of thousands of digits; thousands of brackets
        raise ValueError("a number is too long, or too many brackets are open") from None
    layer: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        layer = [
            part
            for value in layer
            for part in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
        ]
        if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in layer):
            raise ValueError("a whole number has more than 64 bits")
    if layer:
        raise ValueError(f"tables and lists are more than {MAX_DEPTH} deep")
    return data


def read_json(path: str | Path) -> Any:
    """The content of a JSON file. Raises the errors of `read_text`, and ValueError if it is not valid."""
    try:
        return json.loads(read_text(path, MAX_RECORD))
    except RecursionError:
        raise ValueError("too many brackets are open") from None


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
