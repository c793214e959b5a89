"""A real search that ends with its finals: killed in the middle, continued, and shown."""

import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from searches import Search, read_front

from lrnas.exporting.sources import find_source
from lrnas.study.levels import compare_with_references, is_open, read_level
from lrnas.study.open import open_study

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_processes_left")]

SPACE = """
[space]
backbone = "nin"
granularity = "network"
divisor = 8
[[space.vary]]
layers = ["conv*"]
square = [0, 1]
width = ["1/4", "1/2"]
[[space.vary]]
name = "cccp"
layers = ["cccp*"]
width = ["1/4", "1/2"]
[points.quarter]
backbone = "nin"
layers."*" = { form = "dense", width = "1/4" }
layers."cccp1" = { form = "dense", width = "1/4" }
layers."cccp2" = { form = "dense", width = "1/4" }
layers."cccp3" = { form = "dense", width = "1/4" }
layers."cccp4" = { form = "dense", width = "1/4" }
layers."cccp5" = { form = "dense", width = "1/4" }
"""
"""A small space with one named point, which stands for the paper's networks."""
OPTIONS = ["--space", "small.toml", "--data", "digits", "--budget", "3", "--epochs", "1", "--max-macs", "1M"]
FINALS = ["--finals", "0.85", "--final-epochs", "3", "--final-seeds", "2", "--concurrency", "1", "--beat", "0.9"]


def runs(folder: Path) -> list[FrozenTrial]:
    return optuna.load_study(study_name="s@finals", storage=f"sqlite:///{folder}/studies/s/study.db").trials


def test_killed_finals_continue(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SPACE)
    first = Search(tmp_path, *OPTIONS, *FINALS)
    first.wait_for("s@finals: level full")
    deadline = time.monotonic() + 300
    while not any(run.state == TrialState.RUNNING and run.user_attrs.get("epochs", 0) for run in runs(tmp_path)):
        assert time.monotonic() < deadline and first.process.poll() is None, first.log.read_text()
        time.sleep(0.05)
    first.kill()
    before = {run.number: run for run in runs(tmp_path)}
    (begun,) = (run for run in before.values() if run.state == TrialState.RUNNING)
    assert is_open(open_study("s", studies=tmp_path / "studies"))

    log = Search(tmp_path, *OPTIONS, *FINALS).end()
    after = {run.number: run for run in runs(tmp_path)}
    assert all(run.state == TrialState.COMPLETE for run in after.values()), log
    curve = begun.user_attrs["curve"]
    assert after[begun.number].user_attrs["curve"][: len(curve)] == curve and len(curve) < 3  # from its checkpoint
    keys = [(run.user_attrs["id"], run.user_attrs["seed"]) for run in after.values()]
    assert len(set(keys)) == len(keys) and {seed for _, seed in keys} == {1000, 1001}

    study = open_study("s", studies=tmp_path / "studies")
    assert not is_open(study)
    finals = {final.name: final for final in read_level(study)}
    assert finals["quarter"].seeds == (1000, 1001) and finals["quarter"].point == "quarter"
    (outcome,) = compare_with_references(list(finals.values()), study.beat)
    assert outcome.rival is None or outcome.rival.promised
    assert study.beat == 0.9 and str(outcome) in log
    assert study.spent() == 3 and all(trial.epochs == 1 for trial in study.trials if trial.status == "completed")
    assert f"s@finals: level full, {sum(run.state == TrialState.COMPLETE for run in before.values())} done" in log
    assert "s: networks trained at level full" in log and (tmp_path / "studies/s/front.png").stat().st_size > 10_000
    assert (tmp_path / "studies/s/front.csv").read_text().startswith("name,trial,point,identity,mean")

    log = Search(tmp_path, *OPTIONS, *FINALS).end()
    assert "s was complete already: nothing was trained; a larger --budget extends it" in log
    assert len(runs(tmp_path)) == len(after)

    data = read_front(tmp_path)
    assert data["level"] == "full" and {row["name"] for row in data["networks"]} == finals.keys()
    best = find_source("s:best", studies=tmp_path / "studies")
    assert best.identity["recipe"]["epochs"] == 3 and best.identity["seed"] in (1000, 1001)
