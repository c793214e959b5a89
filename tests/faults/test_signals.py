"""Searches that get signals at every stage of their work; `make faults` runs them."""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from searches import MARK, SMALL, Search, check_rows, marked, trials
from servers import running_postgres
from signalled import CHECKPOINT, POINTS, WORKER

from lrnas.arch.architecture import Architecture
from lrnas.data.catalog import load_set
from lrnas.recipes import Recipe
from lrnas.study.open import open_study
from lrnas.study.study import Study
from lrnas.training.job import Job

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("no_processes_left")]

BUDGET = 6
END = "Ray is not stopped"
STAGES = [*((point, 1) for point in POINTS if point != END), (CHECKPOINT, 1)]
"""Points of a search, in the order in which they are reached, and how often each is reached before the signal."""
KILLS = [
    *STAGES,
    *(("a network is being proposed", 2), ("a network is proposed", 3), ("an epoch is recorded", 2), (CHECKPOINT, 2)),
]


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder for Ray's files; its name is short because names of sockets have at most 107 letters."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)


def run_until(folder: Path, point: str, number: int, which: signal.Signals, *options: str) -> tuple[int, str]:
    """Run a search that gets a signal at a point; returns its exit code and its output."""
    program = [sys.executable, str(Path(__file__).with_name("signalled.py")), point, str(number), str(int(which))]
    search = Search(folder, "--budget", str(BUDGET), *SMALL, *options, program=program)
    log = search.end()
    return search.process.returncode, log


def check_nothing_lost(study: Study, storage: str | Path, scratch: Path) -> None:
    """Check that every network of the budget was trained once, with the right result, and that nothing is left.

    Args:
        study: The study.
        storage: Its storage, for `trials`.
        scratch: Folder for Ray's files.
    """
    check_rows(storage, BUDGET)
    torch.set_num_threads(1)
    data = load_set(study.manifest["data"], min_size=study.manifest["image_size"])
    recipe = Recipe(**study.manifest["recipe"])
    for trial in trials(storage):
        if trial.user_attrs.get("status") == "completed":
            job = Job(
                Architecture.from_json(trial.user_attrs["architecture"]), data.name, recipe, study.manifest["seed"]
            )
            curve = job.run(job.create_model(data), data, None, "cpu").curve
            assert [entry.val_accuracy for entry in curve] == trial.user_attrs["curve"], trial.number
            assert trial.values[0] == curve[-1].val_accuracy
    deadline = time.monotonic() + 30  # Ray's processes end soon after their driver
    while left := marked(f"{MARK}={os.environ[MARK]}".encode()):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert not list(scratch.iterdir())


def finish(folder: Path, scratch: Path, *options: str) -> None:
    """Run the same command without a signal, and check that nothing was lost."""
    search = Search(folder, "--budget", str(BUDGET), *SMALL, *options)
    log = search.end()
    assert search.process.returncode == 0 and "Traceback" not in log, log
    storage = options[1] if options else None
    study = open_study("s", storage=storage, studies=folder / "studies")
    check_nothing_lost(study, storage or folder, scratch)
    files = [file.name for file in (folder / "studies").rglob("*")]
    assert not [name for name in files if name.startswith(".search-") or name.endswith(".part")]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_driver_is_killed_again_and_again(kind: str, tmp_path: Path, scratch: Path) -> None:
    with running_postgres() as server:
        options = ("--storage", server.create("killed")) if kind == "postgresql" else ()
        for point, number in KILLS:
            code, log = run_until(tmp_path, point, number, signal.SIGKILL, *options)
            assert code == -signal.SIGKILL, f"{point}: {log}"
        finish(tmp_path, scratch, *options)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_is_stopped_at_every_stage(which: signal.Signals, tmp_path: Path, scratch: Path) -> None:
    for point, number in [*STAGES, (END, 1)]:
        code, log = run_until(tmp_path, point, number, which)
        assert code == 128 + which, f"{point}: {log}"
        assert "Traceback" not in log and "***" not in log, f"{point}: {log}"
    finish(tmp_path, scratch)


def test_a_worker_is_killed_while_it_writes_a_checkpoint(tmp_path: Path, scratch: Path) -> None:
    code, log = run_until(tmp_path, WORKER, 3, signal.SIGKILL)
    assert code == 0 and log.count("a trial was lost (its worker was lost)") == 1, log
    finish(tmp_path, scratch)
