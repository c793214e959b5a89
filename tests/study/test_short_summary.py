"""The short summary of a study, which reads only the trials that `lrnas front` shows."""

from pathlib import Path

import pytest
from filled_studies import fill_study
from optuna.trial import TrialState, create_trial
from small_studies import make_finals, make_search

from lrnas.study.open import open_study
from lrnas.study.optuna_internals import LAST_ATTRIBUTE
from lrnas.study.study import Study


def add_trials(study: Study) -> None:
    """Add trials in all states, and one that another driver is writing."""
    facts = study.optuna_trials()[-1].user_attrs
    known = {name: value for name, value in facts.items() if name not in ("status", "accuracy")}
    ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    for state in (*ended, TrialState.RUNNING, TrialState.WAITING):
        values = [0.99, 1e5] if state == TrialState.COMPLETE else None
        for status in ({}, {"status": "diverged"}):
            study.optuna_study.add_trial(create_trial(state=state, values=values, user_attrs=known | status))
    incomplete = {name: value for name, value in facts.items() if name != LAST_ATTRIBUTE} | {"status": "completed"}
    study.optuna_study.add_trial(create_trial(values=[0.98, 1e5], user_attrs=incomplete))


@pytest.mark.parametrize("objectives", ["accuracy,macs", "accuracy,macs,params"])
def test_the_short_summary_says_the_same_about_fewer_trials(objectives: str, tmp_path: Path) -> None:
    study = fill_study(tmp_path, 50, objectives=objectives)
    if objectives == "accuracy,macs":
        add_trials(study)
    whole, short = (open_study("s", studies=tmp_path) for _ in range(2))
    expected, found = whole.summary(), short.short_summary()
    assert list(found.counts.items()) == list(expected.counts.items()) and found.hypervolume == expected.hypervolume
    assert found.front == expected.front and all(trial.on_front for trial in found.front)
    assert found.trials == [trial for trial in expected.trials if trial.on_front or trial.point]
    assert found.front[0].study is short and 0 < len(found.trials) < len(expected.trials) / 2
    assert set(short._finished) == {trial.number for trial in found.trials}


def test_trials_that_do_not_come_from_a_database_are_all_read(tmp_path: Path) -> None:
    study = fill_study(tmp_path, 30, storage=f"journal:{tmp_path}/s.log")
    assert study.short_summary() == study.summary()


def test_a_later_level_is_read_whole(tmp_path: Path) -> None:
    finals = make_finals(make_search(tmp_path / "s"), {"nin-c3-lr": (0.91, 0.95), "lr-x0.25": (0.9,)})
    assert finals.short_summary() == finals.summary() and len(finals.short_summary().trials) == 3


def test_a_front_with_more_trials_than_one_query_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrnas.study.optuna_internals.MAX_LISTED", 3)
    study = fill_study(tmp_path, 30)
    short = study.short_summary()
    assert len(short.trials) > 6 and short.front == study.summary().front
