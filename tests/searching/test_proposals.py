"""Proposals and the ledger of drivers: asking, ending trials, drivers that are gone, the front."""

import dataclasses
import json
import os
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from small_studies import SPACE, cost, make_proposals, train_some
from sqlalchemy import event
from threadpoolctl import threadpool_info, threadpool_limits

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.errors import InvalidArchitecture, OutsideSpace
from lrnas.models.plan import canonical_id
from lrnas.sampling.front_sampler import FrontSampler
from lrnas.searching.proposals import Proposals, distributions_of, is_tried
from lrnas.searching.search import _enqueue_first
from lrnas.spaces.parameters import Parameter
from lrnas.spaces.space import SearchSpace, load_space
from lrnas.study import ledger
from lrnas.study.ledger import DRIVER, GONE_AFTER, WATCH, _signed, living_drivers
from lrnas.study.manifest import LIMITS, MANIFEST, StudyError, check_manifest, keep_limits
from lrnas.study.objectives import InvalidObjectives, Limits, pick_objectives
from lrnas.study.optuna_internals import BulkStorage

optuna.logging.set_verbosity(optuna.logging.ERROR)


def finish(proposals: Proposals, accuracy: float) -> int:
    proposal = proposals.ask()
    proposals.ledger.report_epoch(proposal.number, [accuracy / 2, accuracy], 1.0)
    proposals.ledger.complete(proposal.number, accuracy)
    return proposal.number


def test_the_paper_s_networks_come_first_and_once(tmp_path: Path) -> None:
    proposals = make_proposals(tmp_path)
    for _ in range(2):
        proposals.enqueue(SPACE.points)
    asked = [proposals.ask() for _ in range(3)]
    assert [proposal.point for proposal in asked] == list(SPACE.points)
    for proposal, point in zip(asked, SPACE.points.values(), strict=True):
        assert canonical_id(proposal.architecture) == canonical_id(point)
        assert proposals.study.is_protected(proposal.number)
    again = make_proposals(tmp_path)
    again.enqueue(SPACE.points)
    assert not again.study.is_protected(again.ask().number)


def test_the_next_network_is_found_in_a_thread_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    proposals = train_some(make_proposals(sampler="front"))
    threads: list[str] = []
    propose = FrontSampler._propose

    def spied(sampler: FrontSampler, seen: Any) -> Any:
        threads.append(threading.current_thread().name.partition("_")[0])
        return propose(sampler, seen)

    monkeypatch.setattr(FrontSampler, "_propose", spied)
    proposals.look_ahead()
    proposals.look_ahead()  # it has begun already
    before = {trial.number for trial in proposals.study.optuna_trials()}
    assert threads.count("proposal") <= 1 and len(before) == 4  # nothing is written before a worker is free
    assert proposals.ask() is not None
    assert threads == ["proposal"]
    assert proposals.ask() is not None
    assert threads == ["proposal", "MainThread"]
    proposals.enqueue({"nin": SPACE.points["nin"]})
    proposals.look_ahead()  # a network waits: no other is needed
    assert proposals.ask().point == "nin" and len(threads) == 2


def test_trials_have_all_attributes() -> None:
    proposals = make_proposals()
    number = finish(proposals, 0.9)
    attributes = proposals.study.optuna_trials()[number].user_attrs
    assert json.loads(attributes["architecture"])["backbone"].startswith("nin")
    assert {"id", "macs", "params", "curve", "epochs", "seconds", "status", "owner"} <= attributes.keys()
    assert proposals.study.optuna_trials()[number].values == [0.9, attributes["macs"]]
    frame = proposals.study.to_pandas()
    assert frame.loc[0, "accuracy"] == 0.9 and frame.loc[0, "on_front"]


def test_only_networks_trained_in_full_are_on_the_front() -> None:
    proposals = make_proposals()
    best = finish(proposals, 0.9)
    stopped = proposals.ask()
    proposals.ledger.report_epoch(stopped.number, [0.99], 1.0)
    proposals.ledger.prune(stopped.number, "stopped", "not competitive")
    assert [trial.number for trial in proposals.study.front()] == [best]
    assert proposals.study.trials[stopped.number].curve == (0.99,)
    assert proposals.study.counts() == {"completed": 1, "stopped": 1}
    assert proposals.spent() == 2


def test_the_same_network_is_not_trained_twice() -> None:
    proposals = make_proposals()
    first = proposals.ask()
    params = proposals.study.optuna_trials()[first.number].params
    for wanted in (TrialState.FAIL, TrialState.COMPLETE):  # while it is being trained, and afterwards
        proposals.study.optuna_study.enqueue_trial(params)
        number = len(proposals.study.optuna_trials()) - 1
        assert proposals.ask().number > number
        copied = proposals.study.optuna_trials()[number]
        assert copied.state == wanted and copied.user_attrs["status"] == "duplicate"
        if first.number in [trial.number for trial in proposals.study.optuna_trials((TrialState.RUNNING,))]:
            proposals.ledger.complete(first.number, 0.8)
    assert copied.values == proposals.study.optuna_trials()[first.number].values
    assert [trial.number for trial in proposals.study.front()] == [first.number]
    assert proposals.spent() == 3  # the first and two that are being trained


def test_of_two_drivers_that_ask_for_a_named_network_at_once_one_trains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have put it into the queue."""
    drivers = [make_proposals(tmp_path) for _ in range(2)]
    drivers[0].enqueue({"nin": SPACE.points["nin"]})
    params = SPACE.params_of(SPACE.points["nin"])
    drivers[1].study.optuna_study.enqueue_trial(params, user_attrs={"point": "nin", "macs": 1})
    is_known, barrier = Proposals._is_known, threading.Barrier(2)

    def at_once(self: Proposals, number: int, identity: str) -> bool:
        if number > 1:
            return is_known(self, number, identity)
        barrier.wait()  # both are written
        found = is_known(self, number, identity)
        barrier.wait()  # both have looked
        return found

    monkeypatch.setattr(Proposals, "_is_known", at_once)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda driver: driver.ask(), drivers))
    assert sorted(proposal.point or "" for proposal in found) == ["", "nin"]
    states = [(trial.state, trial.user_attrs.get("status")) for trial in drivers[0].study.optuna_trials()]
    assert states[:2] == [(TrialState.RUNNING, None), (TrialState.FAIL, "duplicate")]


def test_limits_cost_no_budget() -> None:
    proposals = make_proposals(limits=Limits(max_macs=4_000_000))
    proposal = proposals.ask()
    assert proposal.macs <= 4_000_000 and proposals.spent() == 1
    rejected = proposals.study.optuna_trials((TrialState.PRUNED,))
    assert rejected and all("beyond max_macs" in trial.user_attrs["reason"] for trial in rejected)


def test_a_network_trained_in_part_that_a_later_limit_leaves_out_costs_no_budget(tmp_path: Path) -> None:
    proposals = make_proposals(tmp_path)
    proposals.enqueue({"nin": SPACE.points["nin"]})
    begun = proposals.ask()
    proposals.ledger.report_epoch(begun.number, [0.5], 1.0)
    proposals.ledger.release(begun.number)
    limited = make_proposals(tmp_path, Limits(max_macs=4_000_000))
    limited.ask()
    assert limited.spent() == limited.running() == 1
    again = make_proposals(tmp_path)
    again.enqueue({"nin": SPACE.points["nin"]})
    assert again.ask().point == "nin"


def test_the_point_within_limits_is_tried_in_a_study_that_has_trials() -> None:
    """Limits may have been set since. In a study that has trained it, it is not tried again."""
    proposals = train_some(make_proposals())
    point = SPACE.params_of(SPACE.uniform["lr-x0.5"])
    for number in (1, 0):
        assert is_tried(proposals.study, SPACE.uniform["lr-x0.5"]) == (number == 0)
        _enqueue_first(proposals, point)
        waiting = proposals.study.optuna_trials((TrialState.WAITING,))
        own = [trial.system_attrs["fixed_params"] for trial in waiting if "point" not in trial.user_attrs]
        assert own == number * [point]
        while proposals.study.optuna_trials((TrialState.WAITING,)):
            proposals.ledger.complete(proposals.ask().number, 0.5)


def test_a_named_network_beyond_the_limits_is_listed_once(tmp_path: Path) -> None:
    large = SPACE.points["nin"]
    tight = Limits(max_macs=4_000_000)
    for limits in (tight, Limits(), tight, Limits()):  # without limits, its training is not begun
        proposals = make_proposals(tmp_path, limits)
        proposals.enqueue({"nin": large})
        if limits == tight:
            proposals.ask()
            listed = [trial.status for trial in proposals.study.trials if trial.point == "nin"]
            assert listed == ["limit"] == list(proposals.study.to_pandas().query("point == 'nin'")["status"])
            assert [trial.point for trial in proposals.study.short_summary().trials].count("nin") == 1
    assert proposals.ask().point == "nin"


def test_a_repeated_proposal_is_replaced_by_a_point_nearby() -> None:
    fixed = SPACE.params_of(SPACE.points["nin"])

    class Stubborn(optuna.samplers.RandomSampler):
        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return fixed[name]

    proposals = make_proposals()
    proposals.study.optuna_study.sampler = Stubborn()
    assert len({canonical_id(proposals.ask().architecture) for _ in range(3)}) == 3
    asked = len(proposals.study.optuna_trials())
    proposals.enqueue({"nin": SPACE.points["nin"]})  # known too, but by somebody's wish: no reason to look beside it
    proposals.study.optuna_study.sampler = optuna.samplers.RandomSampler(seed=1)
    proposals.ask()
    assert (
        len(proposals.study.optuna_trials()) == asked + 2
        and "fixed_params" not in proposals.study.optuna_trials()[-1].system_attrs
    )


def test_samplers_use_one_thread() -> None:
    """Two threads are set before, because a test may run with one."""

    class Watched(optuna.samplers.TPESampler):
        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            seen.append(num_threads())
            return super().sample_relative(study, trial, search_space)

    def num_threads() -> dict[str, int]:
        return {library["filepath"]: library["num_threads"] for library in threadpool_info()}

    seen: list[dict[str, int]] = []
    proposals = make_proposals()
    proposals.study.optuna_study.sampler = Watched(n_startup_trials=1)
    finish(proposals, 0.9)
    with threadpool_limits(2):
        before = num_threads()
        proposals.ask()
        assert num_threads() == before
    assert before and set(before.values()) == {2}
    assert seen[-1] == dict.fromkeys(before, 1)


def test_points_without_a_valid_network_are_recorded_as_faulty() -> None:
    proposals = make_proposals()

    def picky(architecture: Architecture) -> dict[str, float]:
        if architecture.backbone == "nin":
            raise InvalidArchitecture("a pool needs a larger map")
        return cost(architecture)

    proposals.cost_of = picky
    assert {proposals.ask().architecture.backbone for _ in range(6)} == {"nin_3x3"}
    told = proposals.study.optuna_trials((TrialState.PRUNED,))
    assert told and all(trial.user_attrs["reason"] == "a pool needs a larger map" for trial in told)
    assert proposals.spent() == 6


def test_a_trial_that_another_driver_is_asking_for_is_not_taken(tmp_path: Path) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    one.ledger.sign()
    one.study.optuna_study.ask()  # it runs, and has no owner yet
    assert two.ledger.release_orphans() == 0
    one.ledger.sign_off()
    assert two.ledger.release_orphans() == 1


def test_a_trial_that_another_driver_is_writing_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrnas.study.optuna_internals.BulkStorage", type(None))  # as in a journal
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    finish(one, 0.9)
    seen: list[dict[str, int]] = []
    write = one.study.optuna_study._storage.set_trial_user_attr

    def look(trial_id: int, key: str, value: Any) -> None:
        write(trial_id, key, value)
        seen.append(two.study.counts())

    monkeypatch.setattr(one.study.optuna_study._storage, "set_trial_user_attr", look)
    one.ask()
    assert seen[0] == {"completed": 1} and seen[-1] == {"completed": 1, "running": 1}


def test_a_driver_that_lost_its_trial_writes_nothing(tmp_path: Path) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    number = one.ask().number
    one.ledger.sign_off()
    assert two.ledger.release_orphans() == 1 and two.ask().number == number
    one.ledger.report_epoch(number, [0.1], 1.0)
    one.ledger.complete(number, 0.1)
    one.ledger.release(number)
    two.ledger.complete(number, 0.9)
    one.ledger.prune(number, "stopped", "late")
    assert [trial.accuracy for trial in two.study.trials] == [0.9]


def test_steps_that_floats_cannot_represent_become_choices() -> None:
    space = dataclasses.replace(SPACE, parameters=(Parameter("width", (1 / 3, 2 / 3, 1.0), ordered=True),))
    assert distributions_of(space)["width"].to_external_repr(2.0) == 1.0


def test_an_exhausted_space_ends_the_search() -> None:
    with pytest.raises(StudyError, match="the space has no more to offer"):
        make_proposals(limits=Limits(max_macs=1)).ask()


def test_a_lost_trial_may_be_tried_again_and_costs_nothing() -> None:
    proposals = make_proposals()
    first = proposals.ask()
    for _ in range(2):
        proposals.ledger.lose(first.number, "its worker was lost")
        assert proposals.spent() == 0
        assert proposals.ask().number == first.number
    proposals.ledger.lose(first.number, "its worker was lost")
    assert (
        proposals.study.counts() == {"lost": 1} and proposals.study.trials[0].reason == "its worker was lost, 3 times"
    )
    proposals.study.optuna_study.enqueue_trial(proposals.study.optuna_trials()[first.number].params)
    assert canonical_id(proposals.ask().architecture) == canonical_id(first.architecture)


def test_trials_of_a_dead_driver_are_continued(tmp_path: Path) -> None:
    dead = make_proposals(tmp_path)
    dead.ledger.driver = renumbered(dead.ledger.driver, 999999999)
    begun = dead.ask()
    dead.ledger.report_epoch(begun.number, [0.5], 2.0)
    finished = finish(dead, 0.7)
    proposals = make_proposals(tmp_path)
    assert proposals.ledger.release_orphans() == 1 and proposals.spent() == 1
    again = proposals.ask()
    assert (again.number, canonical_id(again.architecture)) == (begun.number, canonical_id(begun.architecture))
    assert proposals.study.trials[again.number].curve == (0.5,)
    assert proposals.spent() == 2 and proposals.study.trials[finished].status == "completed"


def test_the_trials_of_a_living_driver_are_left_alone(tmp_path: Path) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    proposal = one.ask()
    assert two.ledger.release_orphans() == 0
    one.study.optuna_study.set_user_attr(DRIVER + one.ledger.driver, 0.0)  # it signed off
    assert two.ledger.release_orphans() == 1 and two.ask().number == proposal.number


def renumbered(driver: str, process: int) -> str:
    """The name of a driver as another process would have it."""
    host, _, own = driver.rsplit(":", 2)
    return f"{host}:{process}:{own}"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has containers")
def test_a_driver_in_another_container_with_the_same_host_name_is_not_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process number means nothing here. Only its signs of life count, as those of other machines."""
    living = make_proposals(tmp_path)
    monkeypatch.setattr(ledger, "_numbering", lambda: "of another")
    other = ledger.Ledger(living.study).driver
    assert other.rsplit(":", 2)[0] == living.ledger.driver.rsplit(":", 2)[0] == socket.gethostname()
    living.ledger.driver = renumbered(other, 999999999)
    living.ledger.sign()
    number = living.ask().number
    monkeypatch.undo()
    here = make_proposals(tmp_path)
    assert living_drivers(here.study.optuna_study) >= {living.ledger.driver}
    assert here.ledger.release_orphans() == 0 and here.ask().number != number


def test_another_process_with_the_number_of_a_dead_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the machine, any process may have its number, even the one that asks."""
    for process, age in ((os.getppid(), 100.0), (os.getpid(), 1.0)):
        dead = make_proposals(tmp_path / str(process))
        dead.ledger.driver = renumbered(dead.ledger.driver, process)
        number = dead.ask().number
        proposals = make_proposals(tmp_path / str(process))
        if process != os.getpid():
            assert proposals.ledger.release_orphans() == 0  # its last sign is recent, and its process number exists
        _signed.discard(dead.ledger.driver)  # as if the driver had been another process
        dead.study.optuna_study.set_user_attr(DRIVER + dead.ledger.driver, time.time() - age)
        if process != os.getpid():
            assert proposals.ledger.release_orphans() == 0  # something has changed: it was alive a moment ago
            monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + GONE_AFTER)
        assert proposals.ledger.release_orphans() == 1 and proposals.ask().number == number


@pytest.mark.parametrize("ahead", [86_400.0, -86_400.0])
def test_a_clock_that_was_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """Trials of a driver that vanished are continued, even if its signs of life are from tomorrow."""
    dead, living = make_proposals(tmp_path), make_proposals(tmp_path)
    dead.ledger.driver = f"elsewhere:1:dead{ahead}"
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda now=time.time: now() + ahead)
        other = SimpleNamespace(now=lambda: datetime.now() + timedelta(seconds=ahead))
        clock.setattr(optuna.storages._rdb.storage, "datetime", other)
        number = dead.ask().number
    living.ledger.sign()
    proposals = make_proposals(tmp_path)
    assert proposals.ledger.release_orphans() == 0  # it may be alive
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + WATCH)
    assert proposals.ledger.release_orphans() == 1 and proposals.ask().number == number


@pytest.mark.parametrize("ahead", [86_400.0, -86_400.0])
def test_a_living_driver_whose_clock_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """Its trials are left alone as long as its signs of life change."""
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    one.ledger.driver = f"elsewhere:1:alive{ahead}"
    one.ask()
    passed, now, clock = 0.0, time.monotonic, time.time

    def wrong() -> float:
        return clock() + ahead + passed

    monkeypatch.setattr(time, "monotonic", lambda: now() + passed)
    for _ in range(4):
        with monkeypatch.context() as other:
            other.setattr(time, "time", wrong)
            one.ledger.sign()
        assert two.ledger.release_orphans() == 0
        passed += WATCH
    passed += GONE_AFTER
    assert two.ledger.release_orphans() == 1


def test_a_trial_that_another_driver_has_put_back_is_not_ended(tmp_path: Path) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    number = one.ask().number
    two.ledger.put_back(number)
    one.ledger.end(number, TrialState.PRUNED, "limit", "beyond max_macs")
    assert two.ask().number == number


def test_a_driver_whose_clock_is_set_back_still_gives_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    one.ledger.driver = "elsewhere:1:alive"
    with monkeypatch.context() as clock:
        clock.setattr(time, "time", lambda now=time.time: now() + 86_400)
        one.ask()
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + GONE_AFTER)
    one.ledger.sign()
    assert two.ledger.release_orphans() == 0


def test_a_driver_that_is_done_waits_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on with a trial if another driver stops or vanishes."""
    caplog.set_level("INFO", "lrnas")
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    first, second, third = (one.ask().number for _ in range(3))
    steps = iter(
        [
            lambda: one.ledger.complete(first, 0.9),
            lambda: one.ledger.release(second),
            lambda: one.ledger.sign_off(),
            lambda: pytest.fail("nobody trains any more"),
        ]
    )
    monkeypatch.setattr(time, "sleep", lambda _: next(steps)())
    assert two.ledger.wait_for_others()
    assert [two.study.optuna_trial(number).state for number in (first, second, third)] == [
        TrialState.COMPLETE,
        TrialState.WAITING,
        TrialState.RUNNING,
    ]
    assert two.ledger.wait_for_others() and two.study.waiting() == 2
    assert not two.ledger.wait_for_others()
    assert caplog.messages == [f"s: waiting for {number} trials that other drivers train" for number in (3, 1)]


def test_a_driver_that_is_done_waits_only_for_what_others_have_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    first = one.ask().number

    def go_on(seconds: float) -> None:
        one.ledger.complete(first, 0.9)
        one.ask()

    monkeypatch.setattr(time, "sleep", go_on)
    assert not two.ledger.wait_for_others() and one.study.running() == 1


def test_a_driver_puts_back_its_own_trials_if_it_trains_none(tmp_path: Path) -> None:
    """If a connection breaks while a driver takes a trial, its name may be on a trial that it does not train."""
    proposals = make_proposals(tmp_path)
    number = proposals.ask().number
    assert proposals.ledger.release_orphans() == 1 and proposals.study.waiting() == 1
    assert proposals.ask().number == number and proposals.spent() == 1


def test_a_driver_of_this_process_that_could_not_sign_off_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    number = one.ask().number
    with monkeypatch.context() as away:
        away.setattr(one.study.optuna_study, "set_user_attr", lambda *_: pytest.fail("the storage is away"))
        with pytest.raises(pytest.fail.Exception):
            one.ledger.sign_off()
    assert two.ledger.release_orphans() == 1 and two.ask().number == number


def test_two_drivers_never_get_the_same_trial(tmp_path: Path) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    one.enqueue(SPACE.points)
    numbers = [proposals.ask().number for proposals in (one, two, one, two)]
    assert len(set(numbers)) == 4


def test_continuing_with_other_settings_is_refused(tmp_path: Path) -> None:
    proposals = make_proposals(tmp_path)
    changed = {**proposals.study.manifest, "reference": {"macs": 1, "params": 2e6}}
    told = "the highest number of MACs of a named network was 20000000.0, now 1"
    with pytest.raises(StudyError, match=f"begun with other settings: {re.escape(told)}; give the earlier"):
        check_manifest(proposals.study.optuna_study, changed)
    with pytest.raises(StudyError, match="begun with other settings: `seed` was 0, now 3; give the earlier"):
        check_manifest(proposals.study.optuna_study, {**changed, "seed": 3, "rungs": [1]})


def test_objectives() -> None:
    proposals = make_proposals(objectives="accuracy,macs,params")
    number = finish(proposals, 0.5)
    assert len(proposals.study.optuna_trials()[number].values) == 3 and 0 <= proposals.study.hypervolume() <= 1
    for wrong in (["accuracy"], ["macs", "params"], ["accuracy", "accuracy"]):
        with pytest.raises(InvalidObjectives, match="accuracy and at least one cost"):
            pick_objectives(wrong)


def test_best_within_limits() -> None:
    proposals = make_proposals()
    numbers = [finish(proposals, accuracy) for accuracy in (0.7, 0.9, 0.8)]
    trials = {trial.number: trial for trial in proposals.study.trials}
    assert proposals.study.best().number == numbers[1]
    below = proposals.study.best(max_macs=min(trial.macs for trial in trials.values()))
    assert below.macs == min(trial.macs for trial in trials.values())
    told = f"the closest one, {below.title}, has {below.macs:,} multiply-accumulates and {below.params:,} parameters; "
    with pytest.raises(StudyError, match=re.escape(told)):
        proposals.study.best(max_macs=1)


def test_a_space_as_optuna_distributions() -> None:
    distributions = distributions_of(SPACE)
    assert distributions.keys() == {parameter.name for parameter in SPACE.parameters}
    for point in (*SPACE.points.values(), *SPACE.uniform.values()):
        for name, value in SPACE.params_of(point).items():
            assert distributions[name]._contains(distributions[name].to_internal_repr(value))


def test_networks_of_another_study_are_imported(tmp_path: Path) -> None:
    other = make_proposals(tmp_path / "other")
    other.enqueue(SPACE.points)
    finish(other, 0.9)
    stopped = other.ask()
    other.ledger.prune(stopped.number, "stopped", "not competitive")
    proposals = make_proposals(tmp_path / "own")
    assert proposals.import_from(other.study) == 1 and proposals.import_from(other.study) == 0
    assert proposals.spent() == 0 and [trial.accuracy for trial in proposals.study.front()] == [0.9]
    proposals.enqueue(SPACE.points)
    assert proposals.ask().point == "nin-c3"  # nin is known
    other.study.manifest = {**other.study.manifest, "objectives": ["accuracy", "params"]}
    with pytest.raises(StudyError, match="s was trained under other conditions: objectives was"):
        proposals.import_from(other.study)


def joined_space(folder: Path) -> SearchSpace:
    """A space in which conv1 may have a join that is no width of conv1: its deployed form lies outside."""
    file = folder / "joined.toml"
    varied = '[[space.vary]]\nlayers = ["conv1"]\nwidth = [0.75, 1]\njoin = ["none", "1/2"]\n'
    file.write_text(f'[space]\nbackbone = ["nin"]\nbatch_norm = true\n{varied}', encoding="utf-8")
    return load_space(str(file))


def test_a_proposed_network_is_trained_as_deployed(tmp_path: Path) -> None:
    proposals = dataclasses.replace(make_proposals(), space=joined_space(tmp_path))
    joined = {"conv1.width": 0.75, "conv1.join": "1/2"}
    proposals.study.optuna_study.enqueue_trial(joined)
    proposal = proposals.ask()
    plain = Architecture("nin", {"conv1": Allocation(width=0.5)}, batch_norm=True)
    assert proposal.architecture == plain and proposal.costs == cost(plain)
    assert proposals.study.trials[0].identity == canonical_id(plain, 8, 1)
    proposals.study.optuna_study.enqueue_trial(joined | {"conv1.width": 1.0})
    again = proposals.ask()
    assert proposals.study.optuna_trials()[1].user_attrs["status"] == "duplicate"
    assert proposals.study.identify(again.architecture) != canonical_id(plain, 8, 1)


def test_a_named_network_is_trained_as_built_and_costs_what_it_costs_deployed(tmp_path: Path) -> None:
    proposals = dataclasses.replace(make_proposals(), space=joined_space(tmp_path))
    named = proposals.space.architecture({"conv1.width": 0.75, "conv1.join": "1/2"})
    proposals.enqueue({"joined": named})
    proposal = proposals.ask()
    plain = Architecture("nin", {"conv1": Allocation(width=0.5)}, batch_norm=True)
    assert (proposal.point, proposal.architecture) == ("joined", named) and proposal.costs == cost(plain)
    assert proposals.study.trials[0].identity == canonical_id(plain, 8, 1)


def test_a_deployed_form_outside_the_space_is_taken_over(tmp_path: Path) -> None:
    space = joined_space(tmp_path)
    other, own = (dataclasses.replace(make_proposals(tmp_path / name), space=space) for name in ("other", "own"))
    joined = {"conv1.width": 0.75, "conv1.join": "1/2"}
    other.study.optuna_study.enqueue_trial(joined)
    finish(other, 0.9)
    with pytest.raises(OutsideSpace):
        space.params_of(other.study.trials[0].architecture)
    assert own.import_from(other.study) == 1
    assert own.study.optuna_trials()[0].params == joined
    own.study.optuna_study.enqueue_trial(joined)
    own.ask()
    assert own.study.optuna_trials()[1].user_attrs["status"] == "duplicate"
    elsewhere = make_proposals(tmp_path / "nin")  # its parameters have other names, but its widths include 1/2
    assert elsewhere.import_from(other.study) == 1
    assert elsewhere.study.optuna_trials()[0].params["conv1.width"] == 0.5


def test_networks_that_the_images_are_too_small_for_have_an_id() -> None:
    proposals = make_proposals()
    proposals.study.manifest["image_size"] = 1
    network = Architecture("googlenet", stem_stride=4)
    with pytest.raises(InvalidArchitecture, match="needs a map"):
        proposals.study.deployed(network)
    assert proposals.study.identify(network) == canonical_id(network)


def test_two_drivers_keep_to_the_budget(tmp_path: Path) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    one.enqueue(SPACE.points)
    assert [one.ask(2).point, two.ask(2).point] == ["nin", "nin-c3"]
    assert one.ask(2) is None and one.spent() == 2
    assert two.ask(3).point == "nin-c3-lr"  # it was put back for a larger budget
    assert not one.study.optuna_trials((TrialState.WAITING,))


def test_a_message_says_that_limits_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    proposals = make_proposals(tmp_path)
    caplog.set_level("INFO", "lrnas")
    keep_limits(proposals.study.optuna_study, Limits(max_macs=223_000_000).given())
    keep_limits(proposals.study.optuna_study, {})
    assert not caplog.messages  # nothing was trained yet
    finish(proposals, 0.9)
    keep_limits(proposals.study.optuna_study, {})
    keep_limits(proposals.study.optuna_study, Limits(2_500_000, 1_000_001, max_latency=1.5).given())
    keep_limits(proposals.study.optuna_study, {})
    assert caplog.messages == [
        "s had no limits, and continues with `max_macs` 2.5M `min_macs` 1000001 `max_latency` 1.5",
        "s had `max_macs` 2.5M `min_macs` 1000001 `max_latency` 1.5, and continues with no limits",
    ]


def test_a_share_to_beat_that_was_kept_among_the_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Older searches have it there alone: continued with the same share, nothing has changed."""
    proposals = make_proposals(tmp_path)
    finish(proposals, 0.9)
    study = proposals.study.optuna_study
    caplog.set_level("INFO", "lrnas")
    study.set_user_attr(MANIFEST, {**study.user_attrs[MANIFEST], "settings": {"beat": 0.6}})
    study.set_user_attr(LIMITS, {})
    assert proposals.study.beat == 0.6
    keep_limits(study, {"beat": 0.6})
    assert not caplog.messages and study.user_attrs[LIMITS] == {"beat": 0.6}
    study.set_user_attr(LIMITS, {"max_macs": 1000})
    keep_limits(study, {"max_macs": 1000, "beat": 0.5})
    keep_limits(study, {"max_macs": 1000, "beat": None})
    assert proposals.study.beat is None
    keep_limits(study, {"beat": 0.6})
    assert caplog.messages == [
        "s had `max_macs` 1000 `beat` 0.6, and continues with `max_macs` 1000 `beat` 0.5",
        "s had `max_macs` 1000 `beat` 0.5, and continues with `max_macs` 1000",
        "s had `max_macs` 1000, and continues with `beat` 0.6",
    ]


def test_a_database_is_read_in_bulk_as_optuna_reads_it(tmp_path: Path) -> None:
    proposals = make_proposals(tmp_path, Limits(max_macs=6_000_000))
    proposals.enqueue(SPACE.points)
    for accuracy in (0.9, 0.8, float("inf")):
        finish(proposals, accuracy)
    proposals.ledger.prune(proposals.ask().number, "stopped", "not competitive")
    proposals.ask()
    url = f"sqlite:///{tmp_path}/study.db"
    bulk, plain = BulkStorage(url), RDBStorage(url)
    number = plain.get_study_id_from_name("s")
    assert len(plain.get_all_trials(number)) > 5
    assert bulk.get_all_trials(number) == plain.get_all_trials(number)
    running = (TrialState.RUNNING,)
    assert bulk.get_all_trials(number, states=running) == plain.get_all_trials(number, states=running)
    for trial in plain.get_all_trials(number):
        assert bulk.get_trial(trial._trial_id) == trial
    for some in ({1, 3}, set(range(1, 1000))):
        assert bulk._get_trials(number, None, some, 4) == plain._get_trials(number, None, some, 4)
    with pytest.raises(KeyError):
        bulk.get_trial(1000)


def test_a_new_trial_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proposals = make_proposals(tmp_path)
    finish(proposals, 0.9)
    attributes = {"owner", "architecture", "id", "macs", "params", "trained"}
    commits: list[set[str]] = []
    plain = RDBStorage(f"sqlite:///{tmp_path}/study.db")

    def look(session: Any) -> None:
        """Record what other drivers can read of the trial after each commit."""
        row = plain.get_all_trials(proposals.study.optuna_study._study_id)[-1]
        assert row.params.keys() in (set(), proposals.distributions.keys())
        commits.append(set(row.user_attrs))

    database: Any = proposals.study.optuna_study._storage._backend  # type: ignore[attr-defined]
    event.listen(database.scoped_session.session_factory, "after_commit", look)
    second = proposals.ask().number
    assert [seen for i, seen in enumerate(commits) if i and seen != commits[i - 1]][-3:] == [
        set(),
        {"owner"},
        attributes,
    ]
    row = plain.get_all_trials(proposals.study.optuna_study._study_id)[second]
    assert row.params.keys() == proposals.distributions.keys() and row.distributions == proposals.distributions

    monkeypatch.setattr(type(database), "write", lambda self, writes: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # as if killed between creating the trial and its attributes
        proposals.ask()
    row = plain.get_all_trials(proposals.study.optuna_study._study_id)[-1]
    assert row.number == second + 1 and row.state == TrialState.RUNNING
    assert not row.params and row.user_attrs.keys() == {"owner"}
    monkeypatch.undo()
    proposals.ledger.sign_off()
    other = make_proposals(tmp_path)
    assert other.ledger.release_orphans() == 2  # one that was trained, and the empty row
    other.ask(), other.ask()
    for row in plain.get_all_trials(proposals.study.optuna_study._study_id)[second:]:
        assert row.state != TrialState.WAITING and row.params.keys() == proposals.distributions.keys()


def make_timed(objectives: str, limits: Limits | None = None) -> Proposals:
    proposals = make_proposals(limits=limits, objectives=objectives)
    proposals.cost_of = lambda network: cost(network) | {"latency": cost(network)["macs"] / 1e6}
    proposals.study.manifest["reference"]["latency"] = 10.0
    return proposals


def test_latency_is_an_objective_like_others() -> None:
    proposals = make_timed("accuracy,latency", Limits(max_latency=4.0))
    for accuracy in (0.7, 0.9, 0.8):
        number = finish(proposals, accuracy)
        trial = proposals.study.optuna_trials()[number]
        assert trial.values == [accuracy, trial.user_attrs["latency"]] and trial.values[1] <= 4.0
    rejected = proposals.study.optuna_trials((TrialState.PRUNED,))
    assert all("beyond max_latency" in trial.user_attrs["reason"] for trial in rejected)
    assert "latency" in proposals.study.to_pandas() and "latency" not in make_proposals().study.to_pandas()
    fastest = min(trial.latency for trial in proposals.study.trials if trial.status == "completed")
    assert proposals.study.best(max_latency=fastest).latency == fastest


def test_the_best_network_within_a_latency() -> None:
    proposals = make_proposals()
    finish(proposals, 0.9)
    with pytest.raises(StudyError, match="has no latencies"):
        proposals.study.best(max_latency=1.0)
    limited = make_timed("accuracy,macs", Limits(max_latency=4.0))  # a limit, not an objective
    numbers = {finish(limited, accuracy): accuracy for accuracy in (0.7, 0.9, 0.8)}
    latencies = {trial.number: trial.latency for trial in limited.study.trials if trial.number in numbers}
    fastest = min(latencies, key=lambda number: latencies[number])
    assert limited.study.best(max_latency=latencies[fastest]).number == fastest
    assert numbers[limited.study.best(max_latency=4.0).number] == 0.9


def test_a_study_keeps_the_values_measured_at_its_start(tmp_path: Path) -> None:
    proposals = make_proposals(tmp_path)
    conditions = {"device": "cpu", "batch": 1, "factor": 1.1}
    timed = {
        **proposals.study.manifest,
        "reference": {**proposals.study.manifest["reference"], "latency": 5.0},
        "latency": conditions,
    }
    proposals.study.optuna_study.set_user_attr("lrnas:manifest", timed)
    again = {
        **timed,
        "reference": {**timed["reference"], "latency": 6.0},
        "latency": {**conditions, "factor": 1.2},
    }
    assert check_manifest(proposals.study.optuna_study, again) == timed
    with pytest.raises(StudyError, match=r"latency.batch was 1, now 8"):
        check_manifest(proposals.study.optuna_study, {**again, "latency": {**conditions, "batch": 8}})


def test_a_driver_that_begins_again_is_alive(tmp_path: Path) -> None:
    one, two = make_proposals(tmp_path), make_proposals(tmp_path)
    for _ in range(2):
        with one.ledger.alive():
            one.ask()
            assert two.ledger.release_orphans() == 0
        assert two.ledger.release_orphans() == 1
