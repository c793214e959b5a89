"""Real retrainings of networks of a search: tested, killed in the middle, continued and extended."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState
from small_studies import make_search

import lrnas
from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.data.catalog import load_set
from lrnas.exporting.sources import find_source
from lrnas.recipes import Recipe
from lrnas.training.loop import evaluate

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_processes_left")]

OPTIONS = ["s", "--trials", "0,1", "--no-points", "--recipe", "fast"]


def runs(storage: BaseStorage) -> list[FrozenTrial]:
    found = [study for study in storage.get_all_studies() if "@" in study.study_name]
    return storage.get_all_trials(found[0]._study_id) if found else []


def start(folder: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lrnas", "retrain", *OPTIONS, *options]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_recorded_accuracies_are_those_of_the_weights(tmp_path: Path) -> None:
    storage = make_search(tmp_path / "studies" / "s").optuna_study._storage
    process = start(tmp_path, "--epochs", "1", "--seeds", "1", "--json")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "s@fast,epochs=1: 2 runs in all, 0 done" in err and "2/2 runs" in err, err
    shown = json.loads(out)
    assert [network["n"] for network in shown["networks"]] == [1, 1] and shown["verdicts"] == []
    run, (accuracy,) = shown["networks"][1]["runs"][0], shown["networks"][1]["accuracies"]
    recorded = runs(storage)[run]
    assert recorded.user_attrs["test_accuracy"] == recorded.values[0] == accuracy > 0.3
    source = find_source(f"s@fast,epochs=1:{run}", studies=tmp_path / "studies")
    assert source.architecture == Architecture.from_json(recorded.user_attrs["architecture"])
    data = load_set("digits", min_size=8)
    model, _ = source.create_model()
    loss, right = evaluate(model, data.test(), data, Recipe(**source.identity["recipe"]))
    assert right == accuracy and loss == pytest.approx(recorded.user_attrs["test_loss"], rel=1e-4)


def test_a_killed_retraining_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is trained twice, and more seeds extend the retraining."""
    storage = make_search(tmp_path / "studies" / "s").optuna_study._storage
    options = ["--epochs", "4", "--concurrency", "1"]
    first = start(tmp_path, *options, "--seeds", "1")
    deadline = time.monotonic() + 300
    while True:
        before = runs(storage)
        done = [run for run in before if run.state == TrialState.COMPLETE]
        begun = [run for run in before if run.state == TrialState.RUNNING and run.user_attrs.get("epochs", 0)]
        if done and begun:
            break
        assert time.monotonic() < deadline and first.poll() is None, "too fast or too slow to be killed during a run"
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()

    second = start(tmp_path, *options, "--seeds", "2")
    out, err = second.communicate(timeout=300)
    assert second.returncode == 0 and "4 runs in all (2 networks × 2 seeds), 1 done" in err and "4/4 runs" in err, err
    assert " ± " in out and "lrnas export s@fast,epochs=4:NETWORK" in out, out
    after = runs(storage)
    assert [run.state for run in after] == [TrialState.COMPLETE] * 4
    assert [run.user_attrs["seed"] for run in after] == [1, 1, 2, 2]  # the search had 0
    assert after[0].datetime_complete == done[0].datetime_complete
    assert after[0].user_attrs["test_accuracy"] == done[0].user_attrs["test_accuracy"]
    known = begun[0].user_attrs
    assert after[1].user_attrs["curve"][: known["epochs"]] == known["curve"] and after[1].user_attrs["epochs"] == 4

    where = ["--studies", str(tmp_path / "studies"), "--json"]
    assert main(["retrain", *OPTIONS, *options, "--seeds", "2", *where]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["left"] == 0 and [network["n"] for network in shown["networks"]] == [2, 2]
    assert [run.datetime_complete for run in runs(storage)] == [run.datetime_complete for run in after]
    assert main(["retrain", *OPTIONS, "--trials", "0", *options, "--seeds", "2", *where]) == 0
    assert "2 runs that are asked for, all done" in " ".join(capsys.readouterr().err.split())


def test_a_run_that_fails_each_time_is_tried_three_times_and_says_why(tmp_path: Path) -> None:
    """There is only this run, so Tune ends after every attempt."""
    storage = make_search(tmp_path / "studies" / "s").optuna_study._storage
    folder = tmp_path / "studies" / "s" / "retrained" / "fast,epochs=1"
    folder.mkdir(parents=True)
    (folder / "00000").write_text("where the run would have its folder")
    process = start(tmp_path, "--trials", "0", "--epochs", "1", "--seeds", "1")
    out, err = process.communicate(timeout=300)
    (run,) = runs(storage)
    assert (run.state, run.user_attrs["losses"]) == (TrialState.FAIL, 3), err
    assert run.user_attrs["reason"].endswith(", 3 times") and "00000" in run.user_attrs["reason"]
    assert err.count("it is tried again, 3 times in all") == 1
    assert "runs that failed: 1, the last one: " in out, out


def test_a_search_and_its_retraining_start_from_weights(tmp_path: Path) -> None:
    """The weights of a dense model that one search has trained, in another search and its retraining."""
    options: dict[str, Any] = {"data": "digits", "finals": 0, "granularity": "network", "studies": tmp_path / "studies"}
    dense = lrnas.search("timm:test_resnet", budget=1, epochs=3, name="dense", **options)
    assert dense.trials[0].accuracy > 0.9
    dense.trials[0].export(out=tmp_path / "dense")
    weights = tmp_path / "dense" / "model.safetensors"
    study = lrnas.search("timm:test_resnet", budget=3, epochs=1, name="near", start_from=weights, **options)
    assert min(trial.accuracy for trial in study.trials if trial.status == "completed") > 0.9
    retrained = lrnas.retrain(study, trials=[1], points=False, recipe="fast", epochs=1, seeds=1)
    assert retrained.trials[0].test_accuracy > 0.9
    weights.write_bytes(b"other weights")
    with pytest.raises(lrnas.LrnasError, match="contains no weights"):
        lrnas.retrain(study, trials=[0], points=False, recipe="fast", epochs=1, seeds=1)
