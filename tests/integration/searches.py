"""Helpers that run searches as processes, read their studies, and find the processes that they start."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

PROGRAM = [sys.executable, "-m", "lrnas"]
OPTIONS = ["search", "--space", "nin", "--name", "s", "--finals", "0"]
COMMAND = [*PROGRAM, *OPTIONS]
SMALL = ["--max-macs", "1.3M", "--epochs", "3"]
"""Options for networks that train in seconds; the paper's networks break the limit."""
MARK = "LRNAS_TEST"
"""Environment variable of all processes that a test starts."""


class Search:
    """The command in a process, with its output in a log file."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        log: str = "log.txt",
        program: Sequence[str] = PROGRAM,
        **environment: str,
    ) -> None:
        self.log = folder / log
        with self.log.open("w") as stream:
            self.process = subprocess.Popen(
                [*program, *OPTIONS, *options],
                cwd=folder,
                stdout=stream,
                stderr=stream,
                env=os.environ | environment,
                process_group=0,  # so that a signal can be sent to all its processes
            )

    def wait_for(self, text: str, number: int = 1) -> None:
        deadline = time.monotonic() + 300
        while self.log.read_text().count(text) < number:
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> str:
        self.process.wait(timeout=300)
        return self.log.read_text()


def read_front(folder: Path) -> dict[str, Any]:
    """What `lrnas front s --json` prints in a folder."""
    command = [sys.executable, "-m", "lrnas", "front", "s", "--json"]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)


def trials(storage: str | Path) -> list[FrozenTrial]:
    """The trials that were trained, from a storage, or from the SQLite file in a folder."""
    return [trial for trial in all_trials(storage) if trial.user_attrs.get("trained")]


def all_trials(storage: str | Path) -> list[FrozenTrial]:
    """All trials of the study, from a storage, or from the SQLite file in a folder."""
    url = f"sqlite:///{storage}/studies/s/study.db" if isinstance(storage, Path) else storage
    if url.startswith("journal:"):
        journal = JournalStorage(JournalFileBackend(url.removeprefix("journal:")))
        return optuna.load_study(study_name="s", storage=journal).trials
    database = RDBStorage(url)
    try:
        return optuna.load_study(study_name="s", storage=database).trials
    finally:
        database.engine.dispose()  # the number of connections to a server is limited


def check_rows(storage: str | Path, budget: int) -> None:
    """Check that everything is recorded, nothing was trained twice and no trial is left running."""
    rows = all_trials(storage)
    # a network that was proposed when the budget was used up waits for a larger one
    trained = [row for row in trials(storage) if row.state != TrialState.WAITING]
    assert not [row.number for row in rows if row.state == TrialState.RUNNING]
    assert {row.state for row in trained} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert budget <= len(trained) <= budget + 1
    for key in ("id", "point"):
        counts = Counter(row.user_attrs[key] for row in trained if key in row.user_attrs)
        assert counts and set(counts.values()) == {1}
    for row in trained:
        full = row.user_attrs["status"] == "completed"
        assert len(row.user_attrs["curve"]) == (3 if full else row.user_attrs["epochs"])
        assert {"hardware", "node", "commit", "seconds"} <= row.user_attrs.keys()


def wait_for(url: str | Path, found: Callable[[list[FrozenTrial]], list[FrozenTrial]], search: Search) -> FrozenTrial:
    """Wait until `found` returns trials; returns the first of them."""
    search.wait_for("trials in all")
    deadline = time.monotonic() + 300
    while not (those := found(trials(url))):
        assert time.monotonic() < deadline and search.process.poll() is None, search.log.read_text()
        time.sleep(0.1)
    return those[0]


def in_training(rows: list[FrozenTrial]) -> list[FrozenTrial]:
    """Running trials that have a checkpoint."""
    return [row for row in rows if row.state == TrialState.RUNNING and row.user_attrs.get("epochs")]


def descendants(process: int) -> set[int]:
    """All processes that a process started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found, left = set(), [process]
    while left:
        found.update(new := children.get(left.pop(), []))
        left += new
    return found


def commands(processes: set[int]) -> dict[int, str]:
    """Command lines of processes."""
    found = {}
    for process in processes:
        with contextlib.suppress(OSError):
            found[process] = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Context at whose end all processes that were started in it are killed, such as Ray's after a killed search."""
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    try:
        yield
    finally:
        del os.environ[MARK]
        while left := marked(f"{MARK}={mark}".encode()):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.1)


def marked(mark: bytes) -> set[int]:
    """Processes with this variable, as NAME=VALUE, in their environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # not a process, or gone
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found
