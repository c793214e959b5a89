"""Arrays cached in files below the data folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lrnas._files import open_regular, write_atomically
from lrnas.errors import DataError, error_line


def read_arrays(file: Path, *names: str) -> list[Any]:
    """Return the named arrays of an `.npz` file. Raises DataError if the file is damaged."""
    try:
        with open_regular(file) as stream, np.load(stream, allow_pickle=False) as data:
            return [data[name] for name in names]
    except Exception as error:  # a damaged archive raises all kinds of errors
        raise DataError(f"{file} cannot be read ({error_line(error)}); delete it and run this again") from None


_writes_nothing: ContextVar[bool] = ContextVar("_writes_nothing", default=False)


@contextmanager
def without_writing() -> Iterator[None]:
    """Context in which `write_cache` does nothing, and CIFAR-10 is not downloaded."""
    token = _writes_nothing.set(True)
    try:
        yield
    finally:
        _writes_nothing.reset(token)


def may_write() -> bool:
    """Whether files may be written: outside of `without_writing`."""
    return not _writes_nothing.get()


def write_cache(file: Path, save: Callable[[BinaryIO], object]) -> None:
    """Let `save` write a file, completely or not at all. Raises DataError if it cannot be written."""
    if not may_write():
        return
    try:
        with write_atomically(file) as part, part.open("wb") as stream:
            save(stream)
    except OSError as error:
        raise DataError(f"cannot write {file}: {error.strerror}; choose another folder with --data-dir") from None
