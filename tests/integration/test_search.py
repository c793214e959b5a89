"""A real search: Ray Tune, Optuna, real training on the digits; what happens when it is stopped in every way."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

pytestmark = [pytest.mark.slow]
COMMAND = [sys.executable, "-m", "lrnas", "search", "--space", "nin", "--name", "s"]
SMALL = ["--max-macs", "1.3M", "--epochs", "3"]
"""Networks that train in seconds; the paper's are beyond the limit."""


class Search:
    """The command in a process of its own, with what it says."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log = folder / "log.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*COMMAND, *options], cwd=folder, stdout=log, stderr=log)

    def wait_for(self, text: str, number: int = 1) -> None:
        deadline = time.monotonic() + 180
        while self.log.read_text().count(text) < number:
            assert time.monotonic() < deadline and self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)

    def end(self) -> str:
        self.process.wait(timeout=300)
        return self.log.read_text()


@pytest.fixture
def no_processes_left() -> Iterator[None]:
    """Ray's processes that a killed driver leaves end by themselves, but not at once."""
    before = ray_processes()
    yield
    for process in ray_processes() - before:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def ray_processes() -> set[int]:
    listed = subprocess.run(["pgrep", "-f", "ray::|raylet|gcs_server"], capture_output=True, text=True, check=False)
    return {int(line) for line in listed.stdout.split()}


def trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    """Those that were trained."""
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{folder}/studies/s/study.db")
    return [trial for trial in study.trials if trial.user_attrs.get("trained")]


@pytest.mark.ci
def test_a_killed_search_goes_on(tmp_path: Path, no_processes_left: None) -> None:
    """No finished trial is trained again, no row stays RUNNING, the unfinished go on from their checkpoints."""
    first = Search(tmp_path, "--budget", "4", *SMALL)
    first.wait_for("trials: ", 1)
    deadline = time.monotonic() + 120
    while not any(t.state == TrialState.RUNNING and t.user_attrs.get("epochs", 0) for t in trials(tmp_path)):
        assert time.monotonic() < deadline and first.process.poll() is None, "too quick to be killed in mid-trial"
        time.sleep(0.05)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    before = {trial.number: trial for trial in trials(tmp_path)}
    done = {number: trial for number, trial in before.items() if trial.state.is_finished()}
    begun = next(t for t in before.values() if t.state == TrialState.RUNNING and t.user_attrs.get("epochs", 0))

    log = Search(tmp_path, "--budget", "4", *SMALL).end()
    after = {trial.number: trial for trial in trials(tmp_path)}
    assert len(after) == 4 and all(trial.state.is_finished() for trial in after.values()), log
    for number, trial in done.items():
        assert after[number].datetime_complete == trial.datetime_complete
    assert after[begun.number].user_attrs["curve"][: begun.user_attrs["epochs"]] == begun.user_attrs["curve"]
    everything = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path}/studies/s/study.db").trials
    names = Counter(trial.user_attrs["point"] for trial in everything if "point" in trial.user_attrs)
    assert set(names.values()) == {1}
    assert (tmp_path / "studies/s/front.png").stat().st_size > 10_000
    assert (tmp_path / "studies/s/front.csv").read_text().startswith("number,status,point")

    finished = subprocess.run(
        [sys.executable, "-m", "lrnas", "front", "s", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    front = json.loads(finished.stdout)["front"]
    assert front and all(entry["epochs"] == 3 for entry in front)
    refused = subprocess.run(
        [*COMMAND, "--budget", "4", *SMALL, "--set", "lr=0.5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2 and "recipe.lr was 0.03, now 0.5" in refused.stderr


@pytest.mark.ci
def test_a_machine_that_cannot_train_ends_the_search(tmp_path: Path) -> None:
    """One line, exit code 2; no network is blamed for it."""
    (tmp_path / "studies" / "s").mkdir(parents=True)
    (tmp_path / "studies" / "s" / "trials").write_text("in the way")
    search = Search(tmp_path, "--budget", "3", *SMALL)
    log = search.end()
    assert search.process.returncode == 2, log
    assert "trials in a row were lost, the last one: CheckpointError" in log and "Traceback" not in log
    assert {trial.state for trial in trials(tmp_path)} <= {TrialState.FAIL, TrialState.WAITING}


def test_an_interrupted_search_ends_cleanly(tmp_path: Path) -> None:
    search = Search(tmp_path, "--budget", "9", *SMALL)
    search.wait_for("trials: ", 1)
    search.process.send_signal(signal.SIGINT)
    log = search.end()
    assert search.process.returncode == 0
    assert "the front" in log and "Traceback" not in log
    states = Counter(trial.state for trial in trials(tmp_path))
    assert states[TrialState.RUNNING] == 0 and sum(states.values()) < 9


def test_a_lost_worker_is_replaced(tmp_path: Path) -> None:
    search = Search(tmp_path, "--budget", "3", *SMALL, "--concurrency", "1")
    search.wait_for("trials: ", 1)
    found: list[int] = []
    deadline = time.monotonic() + 60
    while not found and time.monotonic() < deadline:
        listed = subprocess.run(["pgrep", "-f", "ray::ImplicitFunc"], capture_output=True, text=True, check=False)
        found = [int(line) for line in listed.stdout.split()]
    assert found, subprocess.run(["ps", "ax"], capture_output=True, text=True, check=False).stdout
    os.kill(found[0], signal.SIGKILL)
    log = search.end()
    states = Counter(trial.state for trial in trials(tmp_path))
    assert search.process.returncode == 0 and states[TrialState.FAIL] == 0, log
    assert sum(states.values()) == 3
