"""Searches that get a signal, and checks that a search has lost nothing and left nothing after a fault."""

import os
import re
import signal
import sys
import time
from pathlib import Path

import torch
from searches import MARK, SMALL, Search, check_rows, marked, trials

from lrnas.arch.architecture import Architecture
from lrnas.data.catalog import load_set
from lrnas.recipes import Recipe
from lrnas.study.open import open_study
from lrnas.study.study import Study
from lrnas.training.job import Job


def signalled(point: str, number: int, which: signal.Signals, times: int = 1) -> list[str]:
    """Program of a search that gets a signal when it reaches a point of its work for the `number`th time."""
    script = Path(__file__).with_name("signalled.py")
    return [sys.executable, str(script), point, str(number), str(int(which)), str(times)]


def run_until(
    folder: Path, point: str, number: int, which: signal.Signals, budget: int, *options: str, times: int = 1
) -> tuple[int, str]:
    """Run a search that gets a signal at a point; returns its exit code and its output."""
    program = signalled(point, number, which, times)
    search = Search(folder, "--budget", str(budget), *SMALL, *options, program=program)
    log = search.end()
    return search.process.returncode, log


def finish(folder: Path, scratch: Path, budget: int, *options: str, storage: str | None = None) -> str:
    """Run the search to its end without a fault, and check that nothing was lost.

    Args:
        folder: Folder in which the search was run before.
        scratch: Folder for Ray's files.
        budget: Number of networks to train, those of earlier runs included.
        *options: More options of the command.
        storage: URL of the study's storage; None for the SQLite file in its folder.

    Returns:
        The output of the command.
    """
    where = ("--storage", storage) if storage else ()
    search = Search(folder, "--budget", str(budget), *SMALL, *where, *options)
    log = search.end()
    assert search.process.returncode == 0, log
    check_log(log)
    check_nothing_lost(folder, scratch, budget, storage)
    return log


def check_nothing_lost(folder: Path, scratch: Path, budget: int, storage: str | None = None) -> None:
    """Check that every network of the budget was trained once, with the right result, and that nothing is left.

    Args:
        folder: Folder in which the search was run.
        scratch: Folder for Ray's files.
        budget: Number of networks to train.
        storage: URL of the study's storage; None for the SQLite file in its folder.
    """
    check_rows(storage or folder, budget)
    check_values(open_study("s", storage=storage, studies=folder / "studies"), storage or folder)
    check_nothing_left(folder, scratch)


def check_values(study: Study, storage: str | Path) -> None:
    """Check that the accuracies of all trials that were trained completely are those that training them gives."""
    torch.set_num_threads(1)
    data = load_set(study.manifest["data"], min_size=study.manifest["image_size"])
    recipe = Recipe(**study.manifest["recipe"])
    for trial in trials(storage):
        if trial.user_attrs.get("status") == "completed":
            network = Architecture.from_json(trial.user_attrs["architecture"])
            job = Job(network, data.name, recipe, study.manifest["seed"])
            curve = job.run(job.create_model(data), data, None, "cpu").curve
            assert [entry.val_accuracy for entry in curve] == trial.user_attrs["curve"], trial.number
            assert trial.values[0] == curve[-1].val_accuracy


def check_nothing_left(folder: Path, scratch: Path) -> None:
    """Check that no process, no temporary file and no file of Ray's is left."""
    deadline = time.monotonic() + 30  # Ray's processes end soon after their driver
    while left := marked(f"{MARK}={os.environ[MARK]}".encode()):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert not list(scratch.iterdir())
    files = [file.name for file in (folder / "studies").rglob("*")]
    assert not [name for name in files if name.startswith(".search-") or name.endswith(".part")]


def check_log(log: str) -> None:
    """Check that a log has no traceback, no C++ stack and no message of Ray's."""
    assert not re.search(r"Traceback|\*\*\*|^\[\d{4}-|\(raylet|worker died", log, re.MULTILINE), log
