"""Storages of studies: SQLite in the study's folder, any database that Optuna supports, or a journal file.

If a database cannot be reached, operations wait and retry; messages say when it is away and when it is back. When a
connection breaks during an operation, it is unknown whether the operation was carried out. Reading, and setting
attributes or parameters, is safe to repeat. Before a change of state is repeated, the state is looked up. A trial that
was created twice has no owner and is put back like any other trial without a driver.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import math
import os
import random
import re
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState

from lrnas._messages import hide_passwords, logger
from lrnas.errors import LrnasError
from lrnas.study.location import DATABASE
from lrnas.study.optuna_internals import BulkStorage, QuickCache

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

OPENING = 15.0
"""Seconds to wait for a database that does not answer when it is opened."""
PATIENCE = 300.0
"""Seconds to wait for a database that became unreachable; $LRNAS_PATIENCE overrides it."""
PAUSES = 1.0, 15.0
"""Shortest and longest pause between two attempts, in seconds."""
LOCKED = 60.0
"""Seconds for which SQLite itself waits for a lock."""
BUSY = "starting up", "shutting down", "recovery mode", "too many", "connection slots"
"""Words in the messages of a database server that cannot be connected to for a while."""
SAFE_TO_REPEAT = (
    "create_new_study", "delete_study", "set_study_user_attr", "set_study_system_attr", "get_study_id_from_name",
    "get_study_name_from_id", "get_study_directions", "get_study_user_attrs", "get_study_system_attrs",
    "get_all_studies", "write", "set_trial_user_attr", "set_trial_system_attr", "set_trial_intermediate_value",
    "get_trial_id_from_study_id_trial_number", "get_trial", "read_trials", "read_listed", "read_outlines",
)  # fmt: skip
"""Storage operations that are safe to retry."""

T = TypeVar("T")


class StorageError(LrnasError):
    """A storage cannot be opened, reached or used."""


class NoStudies(StorageError):
    """A storage that is to be read, and does not exist or was never used."""


def open_storage(storage: str | None, folder: Path, *, must_exist: bool = False) -> BaseStorage:
    """Open the storage of a study.

    Args:
        storage: A database URL, or `journal:FILE` for a file on a shared disk; None for SQLite in the folder.
        folder: The study's folder.
        must_exist: Whether a storage without studies is an error. If not, a new file or the tables are created; only
            its owner can read and write a new file.

    Returns:
        The storage, which waits for a database that cannot be reached for a while.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if storage is None and must_exist:
        storage = f"sqlite:///{folder / DATABASE}"
    if storage is None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write to {folder}: {error.strerror}; give another --studies") from None
        storage = f"sqlite:///{folder / DATABASE}"
    if storage.startswith("journal:"):
        return _open_journal(Path(storage.removeprefix("journal:")), must_exist)
    return QuickCache(_connect(storage, must_exist))


def _find_file(file: Path, shown: str, must_exist: bool) -> None:
    """Create the file of a storage, which only its owner can read, if it does not exist and need not."""
    if must_exist and not file.exists():
        raise _no_storage(shown)
    if file.exists() and not (file.is_file() or file.is_dir()):  # a pipe or a device, which may never end
        raise StorageError(f"a storage must be a regular file; got {shown}; give another --storage")
    with suppress(OSError):  # it exists, or an error follows when it is opened
        os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))


def _no_storage(shown: str) -> NoStudies:
    return NoStudies(f"a storage that is read must hold studies; got {shown}, which does not; check --storage")


# --- databases


class _Away(Exception):
    """The database does not answer, or another process holds a lock; a later attempt may work."""


class _Patience:
    """Waits while a database is away, for all threads that use it; `shown` is its URL without the password."""

    def __init__(self, shown: str) -> None:
        self.shown = shown
        self.seconds = OPENING
        self.advice = "check --storage"
        self._lock = threading.Lock()
        self._since: float | None = None
        """When the database went away; None while it answers."""
        self._over = threading.Event()
        """Set when waiting was given up. Later operations, which tidy up, are tried once, without waiting."""

    def wait(self, reason: str) -> None:
        """Wait until the next attempt; raise StorageError when it is time to give up."""
        with self._lock:
            now = time.monotonic()
            if self._since is None:
                self._since = now
                logger.warning(
                    f"the storage {self.shown} cannot be reached ({reason}); trying again for {self.seconds:g} s"
                )
            away = now - self._since
        pause = min(max(away, PAUSES[0]), PAUSES[1], self.seconds - away)
        try:
            given_up = pause <= 0 or self._over.wait(pause)
        except BaseException:  # Ctrl-C
            self._over.set()
            raise
        if given_up:
            self._over.set()
            raise StorageError(
                f"the storage {self.shown} cannot be reached: {reason}; given up after {away:.0f} s; {self.advice}"
            )

    def back(self) -> None:
        """Note that the database answers."""
        if self._since is None:
            return
        with self._lock:
            if self._since is not None:
                logger.info(f"the storage {self.shown} is back after {time.monotonic() - self._since:.0f} s")
                self._since = None


class _PatientStorage(BulkStorage):
    """Database storage whose operations are retried while the database is away."""

    def __init__(self, url: str, patience: _Patience, arguments: dict[str, Any]) -> None:
        from sqlalchemy import event

        self.patience = patience
        super().__init__(url, engine_kwargs=arguments)
        event.listen(self.engine, "handle_error", _report_absence)  # before Optuna wraps the error

    def __reduce__(self) -> tuple[Any, ...]:
        return _connect, (self.url,)

    def patiently(self, operation: Callable[[], T], made: Callable[[], T | None] = lambda: None) -> T:
        """Retry an operation until it works.

        Args:
            operation: The operation.
            made: Called after an attempt whose connection broke. Returns the result of that attempt if it was carried
                out, else None.
        """
        from sqlalchemy.exc import SQLAlchemyError

        broken = False
        while True:
            try:
                found = made() if broken else None
                result = operation() if found is None else found
            except _Away as away:
                broken = True
                self.patience.wait(str(away))
            except (StorageInternalError, SQLAlchemyError) as error:
                raise StorageError(
                    f"the storage {self.patience.shown} cannot be used: {_reason(error)}; repair it, then the same "
                    "command continues"
                ) from None
            else:
                self.patience.back()
                return result

    def create_trial(self, study_id: int, template: FrozenTrial | None) -> FrozenTrial:
        create = functools.partial(super().create_trial, study_id, template)

        def made() -> FrozenTrial | None:
            if template is None:
                return None
            rows = super(_PatientStorage, self).read_trials(study_id)
            return next((row for row in reversed(rows) if _is_made_from(row, template)), None)

        return self.patiently(create, made)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        change = functools.partial(super().set_trial_state_values, trial_id, state, values)
        before = self.get_trial(trial_id) if state == TrialState.WAITING else None

        def made() -> bool | None:
            now = super(_PatientStorage, self).get_trial(trial_id)
            if before is not None:  # put back, and perhaps already taken by another driver
                return now.state != before.state or now.datetime_start != before.datetime_start or None
            # a trial that is RUNNING now may be another driver's: it is treated as one without a driver
            return (state.is_finished() and now.state == state) or None

        return self.patiently(change, made)


def _patient(name: str) -> Callable[..., Any]:
    """A method that retries the operation with this name while the database is away."""
    operation = getattr(BulkStorage, name)

    @functools.wraps(operation)
    def until_it_works(self: _PatientStorage, *arguments: Any, **named: Any) -> Any:
        return self.patiently(lambda: operation(self, *arguments, **named))

    return until_it_works


for _name in SAFE_TO_REPEAT:
    setattr(_PatientStorage, _name, _patient(_name))


def _is_made_from(row: FrozenTrial, template: FrozenTrial) -> bool:
    kept = ("state", "params", "values", "user_attrs", "system_attrs")
    return all(getattr(row, name) == getattr(template, name) for name in kept)


def _report_absence(context: Any) -> _Away | None:
    """Make SQLAlchemy raise `_Away` in place of a temporary error."""
    error = context.sqlalchemy_exception
    return _Away(_reason(error)) if error is not None and not context.is_pre_ping and _is_temporary(error) else None


def _is_temporary(error: Any, is_opening: bool = False) -> bool:
    """Whether a database error is about the connection, or about a lock that another process holds.

    When a database is opened, only an answer that it is busy is temporary: its address or the password may be wrong.
    """
    from sqlalchemy.exc import OperationalError

    if getattr(error, "connection_invalidated", False):
        return True
    if not isinstance(error, OperationalError):
        return False
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    if state is None:
        if error.statement is None:  # there is no connection
            return not is_opening or any(words in str(error.orig) for words in BUSY)
        # error numbers of MySQL: 1205 waited too long for a lock, 1213 deadlock
        return getattr(error.orig, "args", ())[:1] in ((1205,), (1213,))
    return state[:2] in ("08", "40", "57") or state == "53300"  # connection, deadlock, shutdown, too many connections


def _reason(error: BaseException) -> str:
    """The first line of the database's own message."""
    while isinstance(error, StorageInternalError) and error.__cause__ is not None:
        error = error.__cause__
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def check_address(storage: str) -> None:
    """Raise StorageError unless this is a database URL or `journal:FILE`. Nothing is opened."""
    from sqlalchemy.exc import NoSuchModuleError

    if storage.startswith("journal:"):
        return
    parts, shown = _parse_url(storage)
    try:
        parts.get_dialect()
    except NoSuchModuleError:
        raise _not_a_storage(shown) from None


def _parse_url(url: str) -> tuple[URL, str]:
    """A database URL, and its text without the password. Raises StorageError if it is none."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
        if parts.drivername == "postgresql" and not _is_installed("psycopg") and _is_installed("psycopg2"):
            parts = parts.set(drivername="postgresql+psycopg2")
        shown = hide_passwords(parts.render_as_string(hide_password=True))
        if "@" in (parts.host or ""):  # part of a password in which @ must be written as %40
            raise ValueError
    except (ArgumentError, ValueError):
        is_secret = "@" in url or "?" in url
        raise _not_a_storage(re.split("[:/]", url)[0] + ":…" if is_secret else url) from None
    return parts, shown


def _connect(url: str, must_exist: bool = False) -> BulkStorage:
    from sqlalchemy import create_engine, inspect
    from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError

    seconds = _patience_seconds()
    parts, shown = _parse_url(url)
    arguments: dict[str, Any] = {"pool_pre_ping": True}
    is_file = parts.drivername.startswith("sqlite")
    if is_file:
        arguments = {"connect_args": {"timeout": LOCKED}}
        if parts.database and not parts.database.startswith((":memory:", "file:")):
            _find_file(Path(parts.database), shown, must_exist)
    elif parts.drivername in ("postgresql+psycopg", "postgresql+psycopg2"):  # do not wait for a machine that is gone
        known = {"connect_timeout": 10, "keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": 30_000}
        arguments["connect_args"] = {name: value for name, value in known.items() if name not in parts.query}
    text = parts.render_as_string(hide_password=False).replace("{", "{{").replace("}", "}}")  # Optuna formats it
    patience = _Patience(shown)
    for attempt in itertools.count():
        try:
            if must_exist:
                engine = create_engine(parts, **arguments)
                has_tables = inspect(engine).has_table("studies")
                engine.dispose()
                if not has_tables:
                    raise _no_storage(shown)
            storage = _PatientStorage(text, patience, arguments)
            break
        except (ArgumentError, NoSuchModuleError):
            raise _not_a_storage(shown) from None
        except ImportError as error:
            missing = getattr(error.__cause__, "name", None) or error
            raise StorageError(
                f"the storage {shown} needs a package that is not here: {missing}; install it (for PostgreSQL: pip "
                "install 'lrnas[postgres]')"
            ) from None
        except RuntimeError as error:  # Optuna refuses a database of another version of Optuna
            raise StorageError(f"the storage {shown} cannot be used: {error}") from None
        except (StorageInternalError, SQLAlchemyError) as error:
            cause = error.__cause__ if isinstance(error, StorageInternalError) else error
            reason = _reason(error)
            if attempt < 5 and (isinstance(cause, IntegrityError) or "already exists" in reason):
                time.sleep(random.uniform(0.1, 0.5))  # another driver is creating the tables
                continue
            if not _is_temporary(cause, is_opening=True):
                advice = "give another --storage, or move the file away to start anew" if is_file else "check --storage"
                raise StorageError(f"the storage {shown} cannot be opened: {reason}; {advice}") from None
            patience.wait(reason)
    patience.back()
    patience.seconds, patience.advice = seconds, "nothing is lost: when it is back, the same command continues"
    return storage


def _not_a_storage(shown: str) -> StorageError:
    return StorageError(
        f"a storage is a database URL, like postgresql://HOST/NAME, or journal:FILE; got {shown}; see Optuna's "
        "documentation (in a password, write @ as %40 and / as %2F)"
    )


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _patience_seconds() -> float:
    given = os.environ.get("LRNAS_PATIENCE")
    try:
        seconds = PATIENCE if given is None else float(given)
    except ValueError:
        seconds = -1.0
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise StorageError(f"LRNAS_PATIENCE is a number of seconds, at least 0; got {given!r}; set another")
    return seconds


# --- journals


class _JournalFile(JournalFileBackend):
    """Journal file whose errors are StorageErrors of one line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = JournalFileSymlinkLock(str(path))
        super().__init__(str(path), self.lock)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        try:
            yield from super().read_logs(log_number_from)
        except (OSError, ValueError) as error:
            raise self.unusable("read", error) from None

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        try:
            with self._locked():
                self._cut()  # else this line would continue one that its writer could not finish
                with self.path.open("ab") as stream:
                    stream.write(text.encode())
                    stream.flush()
                    os.fsync(stream.fileno())
        except OSError as error:
            raise self.unusable("written", error) from None

    def mend(self) -> None:
        """Remove an incomplete last line, which its writer could not finish, for example on a full disk."""
        if not self._is_whole():
            with self._locked():
                self._cut()  # the line may be complete by now

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    def _is_whole(self) -> bool:
        """Whether the last line is complete."""
        with self.path.open("rb") as stream:
            if not stream.seek(0, os.SEEK_END):
                return True
            stream.seek(-1, os.SEEK_END)
            return stream.read() == b"\n"

    def _cut(self) -> None:
        if not self._is_whole():
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
            logger.warning(f"the last line of {self.path} was incomplete, and is removed")

    def unusable(self, how: str, error: Exception) -> StorageError:
        reason = getattr(error, "strerror", None) or f"it is not a journal of Optuna ({error})"
        return StorageError(
            f"the storage journal:{self.path} cannot be {how}: {reason}; repair it, or give another --storage"
        )


def _open_journal(file: Path, must_exist: bool) -> JournalStorage:
    try:
        if not must_exist:
            file.parent.mkdir(parents=True, exist_ok=True)
        _find_file(file, f"journal:{file}", must_exist)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna warns that journals are experimental
            backend = _JournalFile(file.resolve())  # Optuna's lock is a link to the file
            try:
                storage = JournalStorage(backend)
            except (AssertionError, AttributeError, IndexError, KeyError, TypeError) as error:  # JSON of another kind
                raise backend.unusable("read", error) from None
            if file.stat().st_size and next(backend.read_logs(0), None) is None:
                raise backend.unusable("read", ValueError("its first line is not that of a journal"))
            backend.mend()
            return storage
    except OSError as error:
        raise StorageError(f"cannot use {file}: {error.strerror}; give another --storage") from None
