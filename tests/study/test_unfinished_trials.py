"""Trials in training, which are read again only if they may have changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState
from sqlalchemy import event

from lrnas.study import optuna_internals
from lrnas.study.optuna_internals import (
    LAST_ATTRIBUTE,
    BulkStorage,
    database_of,
    get_trial,
    set_trial_attributes,
    set_trial_state,
)


@pytest.fixture
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[optuna.Study, optuna.Study]:
    """Two drivers of one study; the first one has 20 trials in training."""
    monkeypatch.setattr(optuna_internals, "MAX_AGE", 600.0)
    one, two = (
        optuna.create_study(study_name="s", storage=BulkStorage(f"sqlite:///{tmp_path}/s.db"), load_if_exists=True)
        for _ in range(2)
    )
    for number in range(20):
        with database_of(one).together():
            one.ask({name: FloatDistribution(0, 1) for name in "abc"})
            set_trial_attributes(one, number, {"owner": "one", LAST_ATTRIBUTE: 1})
    return one, two


@contextmanager
def queries(study: optuna.Study) -> Iterator[list[str]]:
    """Context with a list of the tables that are read."""
    found: list[str] = []

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT"):
            found.append(statement.partition("FROM ")[2].split()[0])

    engine = database_of(study).engine
    event.listen(engine, "before_cursor_execute", note)
    yield found
    event.remove(engine, "before_cursor_execute", note)


def owners(study: optuna.Study) -> list[str]:
    return [trial.user_attrs["owner"] for trial in study.get_trials(deepcopy=False)]


def test_only_what_has_changed_is_read(drivers: tuple[optuna.Study, optuna.Study]) -> None:
    one, two = drivers
    assert owners(one) == owners(two) == ["one"] * 20
    with queries(one) as found:
        set_trial_attributes(one, 3, {"curve": (0.1, 0.2)})
        assert one.get_trials(deepcopy=False)[3].user_attrs["curve"] == [0.1, 0.2]
        assert get_trial(one, 3).user_attrs["curve"] == [0.1, 0.2] and len(get_trial(one, 3).params) == 3
    assert set(found) == {"trials"}
    one.tell(3, 0.5)
    ended = two.get_trials(deepcopy=False)[3]
    assert ended.state == TrialState.COMPLETE and ended.user_attrs["curve"] == [0.1, 0.2] and ended.values == [0.5]
    assert len(two.get_trials(deepcopy=False)) == 20


def test_what_another_driver_wrote_is_read_after_a_while(
    drivers: tuple[optuna.Study, optuna.Study], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = drivers
    owners(two)
    set_trial_attributes(one, 3, {"curve": [0.1]})
    monkeypatch.setattr(optuna_internals, "MAX_AGE", 0.0)
    assert two.get_trials(deepcopy=False)[3].user_attrs["curve"] == [0.1]


def test_a_trial_that_is_being_written_is_read_every_time(drivers: tuple[optuna.Study, optuna.Study]) -> None:
    """Else two drivers could propose the same network, and neither would see the other's trial."""
    one, two = drivers
    with database_of(one).together():
        number = one.ask({name: FloatDistribution(0, 1) for name in "abc"}).number
        assert two.get_trials(deepcopy=False)[number].params == {}
        set_trial_attributes(one, number, {"owner": "one", "id": "x", LAST_ATTRIBUTE: 1})
    seen = two.get_trials(deepcopy=False)[number]
    assert seen.user_attrs["id"] == "x" and len(seen.params) == 3


def test_a_trial_that_another_driver_takes_is_read_every_time(drivers: tuple[optuna.Study, optuna.Study]) -> None:
    one, two = drivers
    owners(one)
    set_trial_state(two, 3, TrialState.WAITING)
    assert get_trial(one, 3).state == TrialState.WAITING
    set_trial_state(two, 3, TrialState.RUNNING)
    assert get_trial(one, 3).user_attrs["owner"] == "one"  # its new driver has not written its name yet
    set_trial_attributes(two, 3, {"owner": "two"})
    assert get_trial(one, 3).user_attrs["owner"] == "two" and owners(one)[3] == "two"
