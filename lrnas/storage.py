"""Where studies are kept: SQLite in a folder of their own, any database Optuna knows, or a journal file."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend

from lrnas.bulk import BulkStorage
from lrnas.errors import LrnasError

__all__ = ["DATABASE", "open_storage"]

DATABASE = "study.db"
TRIES, PAUSE = 4, 2.0
"""At an unreachable database, and the seconds before the second try; twice as many before the next."""


def open_storage(storage: str | None, folder: Path, say: Callable[[str], None]) -> BaseStorage:
    """A study's storage: a database URL, `journal:FILE` for shared disks, or by default SQLite in its folder."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if storage is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LrnasError(f"cannot write to {folder}: {error.strerror}; give another --studies") from None
        storage = f"sqlite:///{folder / DATABASE}"
    if storage.startswith("journal:"):
        file = Path(storage.removeprefix("journal:"))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # experimental, by Optuna's own count
                return JournalStorage(JournalFileBackend(str(file)))
        except OSError as error:
            raise LrnasError(f"cannot write to {file}: {error.strerror}; give another --storage") from None
    return _connect(storage, say)


def _connect(url: str, say: Callable[[str], None]) -> BulkStorage:
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, OperationalError

    arguments: dict[str, Any] = {"pool_pre_ping": True}
    if url.startswith("sqlite"):
        arguments = {"connect_args": {"timeout": 60}}
    shown = _without_password(url)
    for attempt in range(TRIES):
        try:
            return BulkStorage(url, engine_kwargs=arguments)
        except (ArgumentError, NoSuchModuleError):
            raise LrnasError(
                f"a storage is a database URL, like postgresql://HOST/NAME, or journal:FILE; got {shown}; see Optuna's "
                "documentation"
            ) from None
        except ImportError as error:
            raise LrnasError(f"the storage {shown} needs a package that is not here: {error}; install it") from None
        except OperationalError as error:
            reason = str(error.orig).strip().splitlines()[0]
            if attempt == TRIES - 1:
                raise LrnasError(f"the storage {shown} cannot be reached: {reason}; check --storage") from None
            say(f"the storage {shown} cannot be reached ({reason}); trying again in {PAUSE * 2**attempt:g} s")
            time.sleep(PAUSE * 2**attempt)
    raise AssertionError("unreachable")


def _without_password(url: str) -> str:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url
