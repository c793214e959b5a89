"""Real searches on digits with Ray Tune and Optuna, stopped in every way."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from optuna.trial import TrialState
from pictures import spoil, write_set
from searches import COMMAND, SMALL, Search, all_trials, commands, descendants, read_front, trials

from lrnas.reporting.report import make_report
from lrnas.study.levels import tell_unfinished
from lrnas.study.open import open_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_processes_left")]


def test_a_killed_search_continues(tmp_path: Path) -> None:
    """No finished trial is trained again, none stays RUNNING, unfinished ones continue from their checkpoints."""
    first = Search(tmp_path, "--budget", "3", *SMALL)
    first.wait_for("trials: ", 1)
    deadline = time.monotonic() + 120
    while not any(t.state == TrialState.RUNNING and t.user_attrs.get("epochs") == 1 for t in trials(tmp_path)):
        assert time.monotonic() < deadline and first.process.poll() is None, "too quick to be killed in mid-trial"
        time.sleep(0.05)
    first.kill()
    before = {trial.number: trial for trial in trials(tmp_path)}
    done = {number: trial for number, trial in before.items() if trial.state.is_finished()}
    begun = next(t for t in before.values() if t.state == TrialState.RUNNING and t.user_attrs.get("epochs", 0))

    log = Search(tmp_path, "--budget", "3", *SMALL).end()
    after = {trial.number: trial for trial in trials(tmp_path)}
    assert len(after) == 3 and all(trial.state.is_finished() for trial in after.values()), log
    for number, trial in done.items():
        assert after[number].datetime_complete == trial.datetime_complete
    assert after[begun.number].user_attrs["curve"][: begun.user_attrs["epochs"]] == begun.user_attrs["curve"]
    names = Counter(trial.user_attrs["point"] for trial in all_trials(tmp_path) if "point" in trial.user_attrs)
    assert set(names.values()) == {1}
    assert (tmp_path / "studies/s/front.png").stat().st_size > 10_000
    assert (tmp_path / "studies/s/front.csv").read_text().startswith("number,status,point")

    front = read_front(tmp_path)["front"]
    assert front and all(entry["epochs"] == 3 for entry in front)
    refused = subprocess.run(
        [*COMMAND, "--budget", "3", *SMALL, "--set", "lr=0.5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2 and "--set lr was 0.05, now 0.5" in refused.stderr


def test_a_search_for_latency(tmp_path: Path) -> None:
    """Layers are measured once, and the front is that of accuracy and latency, for one device and batch size."""
    options = ["--objectives", "accuracy,latency", "--max-latency", "500", "--epochs", "1"]
    small = ["--max-macs", "0.7M", "--data-dir", str(tmp_path)]
    log = Search(tmp_path, "--budget", "3", *options, *small).end()
    assert "latency: measuring layers on" in log and "fastest" in log and " ms " in log, log
    values = [trial.values for trial in trials(tmp_path)]
    assert len(values) == 3 and all(0 < latency < 500 for _, latency in values)
    assert (tmp_path / "latency.db").exists() and (tmp_path / "studies/s/front.png").stat().st_size > 10_000
    assert "latency" in (tmp_path / "studies/s/front.csv").read_text().splitlines()[0]
    log = Search(tmp_path, "--budget", "2", *options, *small).end()
    assert "s: 3 trials in all, all done; a larger --budget extends it" in log and len(trials(tmp_path)) == 3, log
    log = Search(tmp_path, "--budget", "3", *options, *small, "--latency-batch", "2").end()
    assert "--latency-batch was 1, now 2" in log


def test_a_search_of_a_space_with_fewer_networks_is_complete(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(
        '[space]\nbackbone = "nin"\ngranularity = "network"\n[[space.vary]]\nlayers = ["*"]\nwidth = ["1/4", "1/8"]\n'
    )
    options = ["--space", "tiny.toml", "--epochs", "1", "--budget", "9"]
    log = Search(tmp_path, *options).end()
    assert "the space has no more to offer" in log and "Test:       lrnas retrain s" in log, log
    study = open_study("s", studies=tmp_path / "studies")
    assert (study.budget, study.spent()) == (2, 2) and tell_unfinished(study) == ""


def test_a_machine_that_cannot_train_ends_the_search(tmp_path: Path) -> None:
    """One error line, exit code 2; no network counts as faulty."""
    (tmp_path / "studies" / "s" / "trials").mkdir(parents=True)
    for number in range(100):
        (tmp_path / "studies" / "s" / "trials" / f"{number:05d}").write_text("in the way")
    search = Search(tmp_path, "--budget", "3", *SMALL)
    log = search.end()
    assert search.process.returncode == 2, log
    assert "trials in a row were lost, the last one: CheckpointError" in log and "Traceback" not in log
    assert "a trial was lost (CheckpointError: " in log
    assert {trial.state for trial in trials(tmp_path)} <= {TrialState.FAIL, TrialState.WAITING}


def test_unreadable_images_end_a_search_which_continues_without_them(tmp_path: Path) -> None:
    """No trial is tried again; after the image is removed, as the message says, the same command continues."""
    write_set(tmp_path / "colours", {"train": 40, "val": 4, "test": 4})
    few = spoil(tmp_path / "colours" / "train" / "red" / "007.png")  # less than 1% of the training images
    bad = spoil(tmp_path / "colours" / "val" / "red" / "002.png")
    options = ["--budget", "1", *SMALL, "--data", "folder:colours", "--image-size", "8", "--concurrency", "1"]
    search = Search(tmp_path, *options)
    log = search.end()
    assert search.process.returncode == 2 and "Traceback" not in log, log
    assert f"1 of 12 validation images cannot be read, and more than 1 % end a run: {bad} (" in log.splitlines()[-1]
    assert "a trial was lost" not in log and not (tmp_path / "studies" / "s").exists()  # refused before it began
    bad.unlink()
    log = Search(tmp_path, *options).end()
    assert "the images of folder:colours have changed: removing their earlier pack" in log
    assert [trial.state for trial in trials(tmp_path)] == [TrialState.COMPLETE], log
    assert log.count(f"1 of 120 training images cannot be read, and is left out: {few} (") == 1
    study = open_study("s", studies=tmp_path / "studies")
    remark = "s: images that could not be read and were left out: 1 (`lrnas data` lists them)."
    assert study.unreadable_images == 1 and remark in make_report([study]).remarks()


@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [
        (signal.SIGINT, False, 130),
        (signal.SIGTERM, False, 143),
        pytest.param(signal.SIGTERM, True, 143, marks=pytest.mark.ci),  # to the whole process group, as by `timeout`
    ],
)
def test_an_interrupted_search_ends_cleanly(number: signal.Signals, to_all: bool, code: int, tmp_path: Path) -> None:
    search = Search(tmp_path, "--budget", "9", *SMALL)
    search.wait_for("trials: ", 1)
    os.killpg(search.process.pid, number) if to_all else search.process.send_signal(number)
    log = search.end()
    assert search.process.returncode == code  # commands after && do not run
    assert (
        "stopping after the current epochs; " in log
        and "interrupted: s is not complete; the same command continues it" in log
    )
    assert "the front" in log and "Traceback" not in log and "***" not in log  # the latter is a stack of C++
    states = Counter(trial.state for trial in trials(tmp_path))
    assert states[TrialState.RUNNING] == 0 and sum(states.values()) < 9


def test_a_lost_worker_is_replaced(tmp_path: Path) -> None:
    search = Search(tmp_path, "--budget", "3", *SMALL, "--concurrency", "1")
    search.wait_for("trials: ", 1)
    found: list[int] = []
    deadline = time.monotonic() + 60
    while not found and time.monotonic() < deadline:
        running = commands(descendants(search.process.pid))
        found = [process for process, command in running.items() if "ray::ImplicitFunc" in command]
    assert found, running
    os.kill(found[0], signal.SIGKILL)
    log = search.end()
    states = Counter(trial.state for trial in trials(tmp_path))
    assert search.process.returncode == 0 and states[TrialState.FAIL] == 0, log
    assert sum(states.values()) == 3
    assert "a trial was lost (its worker was lost)" in log and "worker died" not in log  # Ray's own text


def test_an_interrupted_search_in_python_says_so(tmp_path: Path) -> None:
    code = """
import os, signal, lrnas
from lrnas.searching.progress import SearchEvents

class Interrupt(SearchEvents):
    def changed(self, change):
        if change == "epoch":
            os.kill(os.getpid(), signal.SIGINT)

study = lrnas.search("nin", budget=2, data="digits", epochs=60, finals=0, name="s", events=Interrupt())
print("returned", study, study.interrupted)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout.startswith("returned <Study s: ") and ran.stdout.endswith(", interrupted> 2\n"), ran.stderr
    assert ran.stderr.splitlines()[-1] == "interrupted: s is not complete; the same call continues it"
