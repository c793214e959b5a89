"""Dry runs: what a search would train, and how long it would take."""

import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.trial import TrialState
from pictures import spoil, write_set

import lrnas
from lrnas.cli.main import main
from lrnas.data.cache import without_writing
from lrnas.data.names import PACKS
from lrnas.errors import DataError, LrnasError
from lrnas.recipes import Recipe
from lrnas.searching import estimate as dry_run
from lrnas.searching.estimate import Estimate, _Machine, _makespan, _named_networks, _plan, _spread, _Trial
from lrnas.searching.finals import Ladder, Promotions, open_levels
from lrnas.searching.proposals import Proposals, Queue
from lrnas.searching.ray_cluster import Workers
from lrnas.searching.search import prepare_search
from lrnas.searching.settings import SearchSettings
from lrnas.searching.trials_per_gpu import FILE, Measurement
from lrnas.spaces.space import load_space
from lrnas.study.folder import create_optuna_study, study_folder
from lrnas.study.ledger import Ledger
from lrnas.study.levels import FULL, LONGER, SHORT, Level
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import keep_limits
from lrnas.study.objectives import Limits, pick_objectives
from lrnas.study.storage import open_storage
from lrnas.study.study import Study
from lrnas.training.measuring import MeasuringProcess
from lrnas.training.speed import Speed

SHORT_RECIPE = Recipe(epochs=1, batch_size=10)
LEVELS = {
    SHORT: Level(SHORT, SHORT_RECIPE, (0,)),
    LONGER: Level(LONGER, Recipe(epochs=3, batch_size=10), (1000,)),
    FULL: Level(FULL, Recipe(epochs=8, batch_size=10), (1000, 1001, 1002)),
}


def machine(**changes: object) -> _Machine:
    """A machine on which a network with 1 MAC trains 100 images in a second, and one with 11 MACs in 11 seconds."""
    speeds = {(10, 8): [Speed(0.0, 0.01, 0.0, 0.0), Speed(0.0, 0.11, 0.0, 0.0)]}
    known = {
        "device": "cpu",
        "gpus": 0,
        "at_a_time": 1,
        "slowdown": 1.0,
        "reason": "",
        "memory": None,
        "image_memory": 0,
        "macs": (1.0, 11.0),
        "speeds": speeds,
        "images": (100, 10),
        "start": 0.0,
        "measuring": 0.0,
        "busy": 0.0,
        "early_stopping": False,
        "image_size": 8,
    }
    return _Machine(**{**known, **changes})


def trial(macs: float, is_reference: bool = False) -> _Trial:
    return _Trial(macs, 1.0, is_reference, not is_reference)


def test_the_time_of_a_training_follows_its_macs_epochs_and_images() -> None:
    here = machine()
    assert here.seconds(trial(6), LEVELS[SHORT]) == pytest.approx(6)
    assert here.seconds(trial(6), LEVELS[FULL]) == pytest.approx(48)
    assert here.seconds(trial(22), LEVELS[SHORT]) == pytest.approx(22)  # beyond what was measured
    assert machine(slowdown=2.0).seconds(trial(6), LEVELS[SHORT]) == pytest.approx(12)
    evaluated = {(10, 8): [Speed(3.0, 0.01, 0.1, 0.0)] * 2}
    assert machine(speeds=evaluated).seconds(trial(6), LEVELS[FULL]) == pytest.approx(3 + 8 * (1 + 1))
    stopping = machine(early_stopping=True)
    assert stopping.seconds(trial(6), LEVELS[SHORT]) == pytest.approx(0.7 * 6)
    assert stopping.seconds(trial(6, True), LEVELS[SHORT]) == stopping.seconds(trial(6), LEVELS[FULL]) / 8
    both = {**evaluated, (10, 4): [Speed(1.0, 0.005, 0.02, 0.0)] * 2}
    early = Level(SHORT, Recipe(epochs=4, batch_size=10, early_crop=4), (0,))
    # evaluation is always on whole images
    assert machine(speeds=both).seconds(trial(6), early) == pytest.approx(3 + (1 + 1) + 1 + 3 * (0.5 + 1))


def test_workers_take_the_next_training_when_they_are_free() -> None:
    assert _makespan([3, 1, 1, 1, 4], 2) == 7
    assert _makespan([3, 1], 5) == 3


def test_more_gpus_share_the_trainings_and_proposals_take_their_time() -> None:
    runs = {SHORT: [trial(1)] * 8}
    here = machine(at_a_time=2, start=10.0)
    fixed = 10 * (dry_run.START + 1 + dry_run.END)
    each = 1 + 10 * dry_run.TRIAL
    assert here.wall_seconds(runs, LEVELS, 0.0, 1) == pytest.approx(fixed + 4 * each)
    assert here.wall_seconds(runs, LEVELS, 0.0, 4) == pytest.approx(fixed + each)
    measuring = dataclasses.replace(here, measuring=30.0)
    assert measuring.wall_seconds(runs, LEVELS, 0.0, 4) == pytest.approx(30 + fixed + each)
    assert here.wall_seconds(runs, LEVELS, 2.0, 4) == pytest.approx(fixed + 8 * 2)  # one proposal after the other


def test_finals_take_their_share_of_the_time_and_compare_with_the_paper() -> None:
    trials = [trial(10, True), trial(8, True), *(trial(1 + i / 10) for i in range(60))]
    here = machine()
    runs = _plan(trials, here, LEVELS, 0.5, Limits())
    seconds = {name: sum(here.seconds(run, LEVELS[name]) for run in some) for name, some in runs.items()}
    later = seconds[LONGER] + seconds[FULL]
    assert 0.8 * seconds[SHORT] < later < 1.2 * seconds[SHORT]
    assert 0.1 * later < seconds[LONGER] < 0.3 * later
    assert all(any(run.macs == macs for run in runs[FULL]) for macs in (10, 8))
    assert any(not run.is_reference for run in runs[FULL])
    # a small budget has no time for this: each of the paper's networks and one that costs no more are trained once
    few = _plan(
        [trial(10, True), trial(8, True), trial(5)], here, {SHORT: LEVELS[SHORT], FULL: LEVELS[FULL]}, 0.2, Limits()
    )
    assert sorted(run.macs for run in few[FULL]) == [5, 8, 10]
    assert list(_plan(trials, here, {SHORT: LEVELS[SHORT]}, 0.0, Limits())) == [SHORT]


def test_networks_beyond_the_limits_count_for_the_time_but_are_not_trained_in_full() -> None:
    trials = [trial(10, True), trial(8, True), *(trial(1 + i / 10) for i in range(60))]
    here = machine()
    limits = Limits(max_macs=7)
    runs = _plan(trials, here, LEVELS, 0.5, limits)
    assert runs[SHORT] == trials
    later = runs[LONGER] + runs[FULL]
    assert runs[LONGER] and runs[FULL] and max(run.macs for run in later) <= 7
    seconds = {name: sum(here.seconds(run, LEVELS[name]) for run in some) for name, some in runs.items()}
    within = sum(here.seconds(each, LEVELS[SHORT]) for each in trials if each.macs <= 7)
    assert within < seconds[LONGER] + seconds[FULL] < 1.2 * seconds[SHORT]
    assert _plan(trials, here, LEVELS, 0.5, Limits(max_params=0.5)) == {SHORT: trials, LONGER: [], FULL: []}  # type: ignore[arg-type]
    imported = [dataclasses.replace(each, is_imported=True) for each in trials]
    few = _plan([*imported, trial(5)], here, LEVELS, 0.5, limits)
    assert few[LONGER] == few[FULL] == []  # those of another search took no time


def test_cheap_and_expensive_networks_are_measured() -> None:
    named = load_space("nin").points
    networks = list(named.values())
    assert _spread(networks, [3.0, 2.0, 1.0]) == networks[::-1]
    assert _spread(networks, [3.0, 3.0, 3.0]) == [networks[0]]


def test_named_networks_beyond_the_budget_are_marked() -> None:
    prepared = prepare_search(SearchSettings(space="nin", budget=4, data="digits", max_macs=8_000_000))
    networks = _named_networks(prepared, None)
    assert [network.beyond for network in networks[:2]] == [("max_macs",)] * 2
    within = [network.beyond for network in networks if network.beyond != ("max_macs",)]
    assert within == [()] * 4 + [("budget",)] * (len(within) - 4) and len(within) > 4


def test_a_kept_measurement_is_read_and_a_new_one_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasuringProcess, "measure", lambda *_, **__: {"rates": [1]})
    training = prepare_search(SearchSettings(space="nin", budget=1, data="digits")).training
    networks = [training.space.uniform["lr-x0.25"]]
    measurement = Measurement(Workers(), networks, training.recipe, training.loaded, tmp_path, "cpu")
    record = measurement.make()
    assert measurement.kept() is None and record["rates"] and not list(tmp_path.iterdir())
    (tmp_path / FILE).write_text(json.dumps([record]))
    assert measurement.kept() == record


def test_what_a_dry_run_cannot_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LrnasError, match="got a function of your own"):
        lrnas.estimate("nin", budget=2, trainable=print, data="digits")
    with pytest.raises(LrnasError, match="got the address of a cluster"):
        lrnas.estimate("nin", budget=2, address="auto", data="digits")
    for storage in ("foo", "foo://host/x"):
        with pytest.raises(LrnasError, match=f"a storage is a database URL, .*; got {storage}"):
            lrnas.estimate("nin", budget=2, data="digits", storage=storage)
    with pytest.raises(DataError, match="a dry run needs CIFAR-10"), without_writing():
        prepare_search(SearchSettings(space="nin", budget=2, data="cifar10", data_dir=str(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_an_estimate_that_is_interrupted_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dry_run, "_estimate", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"^the estimate was interrupted; nothing was written$"):
        lrnas.estimate("nin", budget=2)


def test_an_estimate_is_short_when_it_is_printed() -> None:
    found = SimpleNamespace(study="s", levels=[SimpleNamespace(runs=5), SimpleNamespace(runs=2)], seconds={0: 61.0})
    assert Estimate.__repr__(found) == "<Estimate of s: 7 trainings, about 1 min 1 s>"  # type: ignore[arg-type]
    found.levels = [SimpleNamespace(runs=1)]
    assert Estimate.__repr__(found) == "<Estimate of s: 1 training, about 1 min 1 s>"  # type: ignore[arg-type]
    found.levels = []
    assert "s: complete, nothing to train, " in Estimate.__repr__(found)  # type: ignore[arg-type]
    found.seconds = {1: 61.0, 8: 9.0}
    assert Estimate.__repr__(found).endswith("about 1 min 1 s on 1 GPU or 9 s on 8 GPU>")  # type: ignore[arg-type]


def test_a_dry_run_says_that_nothing_would_be_trained_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_measure", lambda *_: machine())
    settings: dict[str, Any] = {"budget": 2, "data": "digits", "max_macs": "3M", "progress": False}
    remarks = [line for line in lrnas.estimate("nin", **settings).lines if "in full" in line]
    assert remarks == [
        "Note: no network would be trained in full: 50 % of the training time is too little for 3 seeds of 9 epochs; "
        "raise `budget` or `finals`, or lower `final_epochs` or `final_seeds`."
    ]
    for changed in ({"finals": 0}, {"final_seeds": 1, "finals": 0.9}):
        assert not [line for line in lrnas.estimate("nin", **settings, **changed).lines if "in full" in line]


def begin_study(settings: SearchSettings) -> tuple[Proposals, Ladder]:
    """A study as a search begins it, and its levels."""
    name, _, training, limits, _ = prepare_search(settings)
    stored = create_optuna_study(
        name, open_storage(None, study_folder(settings.studies, name)), pick_objectives(settings.objectives)
    )
    study = Study(name, stored, training.objectives, training.pin(stored), Whereabouts(settings.studies))
    proposals = Proposals(Ledger(study), training.space, training.cost, limits)
    proposals.enqueue(training.named())
    return proposals, Ladder(proposals, training.levels, open_levels(study, training.levels), settings.finals)


def train_all(queue: Queue, budget: int | None = None, seconds: float = 1.0) -> int:
    """Train all networks of a queue, with made-up accuracies; returns their number."""
    number = 0
    while not queue.is_over(budget) and (found := queue.ask(budget)) is not None:
        queue.ledger.report_epoch(found.number, [0.5] * 3, seconds)
        queue.ledger.complete(found.number, 0.5)
        number += 1
    return number


def test_a_dry_run_is_about_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dry_run, "_measure", lambda *_: machine())
    common: dict[str, Any] = {
        "data": "digits",
        "studies": str(tmp_path),
        "name": "s",
        "final_seeds": 2,
        "sampler": "random",
    }
    settings = SearchSettings(space="nin", budget=20, **common)

    def estimate(budget: int, **changes: Any) -> tuple[dict[str, int], str]:
        found = lrnas.estimate("nin", budget=budget, progress=False, **{**common, **changes})
        assert found.exists
        (remark,) = (each for each in found.remarks if each.startswith("s exists"))
        return {level.name: level.runs for level in found.levels}, remark

    proposals, ladder = begin_study(settings)
    whole, _ = estimate(20)
    assert whole[SHORT] == 20 and whole[FULL] > 0
    train_all(proposals, 3)
    runs, remark = estimate(20)
    assert runs == whole | {SHORT: 17}
    assert remark == "s exists: the search would continue it, with 17 of 20 trials left; the estimate is for the rest"
    assert estimate(23)[0][SHORT] == 20
    assert estimate(2)[0][SHORT] == 0

    train_all(proposals, 20)
    named = lrnas.estimate(
        "nin", budget=2, max_macs=1e6, progress=False, **common
    ).networks  # both are smaller than before
    assert {(network.is_known, network.beyond) for network in named} == {(True, ())}
    runs, remark = estimate(20)
    assert runs[SHORT] == 0 < runs[FULL] and "with 0 of 20 trials left" in remark
    over = "s exists and is complete: nothing would be trained; a larger --budget extends it"
    assert estimate(20, finals=0) == ({SHORT: 0}, over)
    queue = Promotions(Ledger(ladder.studies[FULL]), choose=functools.partial(ladder.choose, FULL))
    assert train_all(queue, seconds=10.0) < whole[FULL]  # they took longer, so there was time for fewer
    assert estimate(20) == (dict.fromkeys(whole, 0), over)
    run = ladder.studies[FULL].optuna_trials()[-1]  # as if it were being trained, or left by a driver that was killed
    ladder.studies[FULL].optuna_study.enqueue_trial({}, user_attrs={**run.user_attrs, "seed": 7})
    queue.ask()
    runs, remark = estimate(20)
    assert runs == dict.fromkeys(whole, 0) | {FULL: 1} and "with 0 of 20 trials left" in remark
    queue.ledger.complete(ladder.studies[FULL].optuna_trials()[-1].number, 0.5)
    options = [
        "--data",
        "digits",
        "--studies",
        str(tmp_path),
        "--name",
        "s",
        "--final-seeds",
        "2",
        "--sampler",
        "random",
        "--dry-run",
    ]
    for budget, end in {
        "20": "Nothing was written, and nothing is left to train.",
        "21": "Nothing was written. Without --dry-run, the same command continues the search.",
    }.items():
        assert main(["search", "nin", "--budget", budget, *options]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == end


def test_a_dry_run_knows_what_a_limit_has_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the limit, the search would train the paper's networks, in full too."""
    monkeypatch.setattr(dry_run, "_measure", lambda *_: machine())
    common: dict[str, Any] = {"data": "digits", "studies": str(tmp_path), "name": "s", "sampler": "random"}
    proposals, ladder = begin_study(SearchSettings(space="nin", budget=12, max_macs=6e6, **common))
    keep_limits(proposals.study.optuna_study, {"max_macs": 6e6, "beat": None})
    train_all(proposals, 12)
    full = Promotions(Ledger(ladder.studies[FULL]), choose=functools.partial(ladder.choose, FULL))
    assert train_all(full) > 5
    found = lrnas.estimate("nin", budget=16, progress=False, **common)
    assert "s had --max-macs 6M, and continues with no limits" in found.remarks
    assert {level.name: level.runs for level in found.levels}[FULL] >= 3
    again = lrnas.estimate("nin", budget=16, max_macs=6e6, progress=False, **common)
    assert not any("continues with" in remark for remark in again.remarks)


def test_a_dry_run_counts_no_full_trainings_beyond_limits_that_were_set_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "_measure", lambda *_: machine())
    level_of, seen = dry_run._level, dict[str, list[float]]()

    def watched(level: Level, runs: list[_Trial], machine: _Machine) -> Any:
        seen[level.name] = [run.macs for run in runs]
        return level_of(level, runs, machine)

    monkeypatch.setattr(dry_run, "_level", watched)
    common: dict[str, Any] = {"data": "digits", "studies": str(tmp_path), "name": "s", "sampler": "random"}
    train_all(begin_study(SearchSettings(space="nin", budget=10, **common))[0], 10)  # the named networks
    for budget in (10, 14):
        lrnas.estimate("nin", budget=budget, max_macs=6e6, progress=False, **common)
        assert len(seen[SHORT]) == budget - 10 and seen[FULL] and max(seen[FULL]) <= 6e6
    found = lrnas.estimate("nin", budget=14, max_macs=2e6, progress=False, **common)
    only = f"the space has only {len(seen[SHORT])} more network{'s' * (len(seen[SHORT]) != 1)} within the limits"
    assert len(seen[SHORT]) < 4 and f"{only} that the sampler finds" in found.remarks
    assert f"with {len(seen[SHORT])} of {10 + len(seen[SHORT])} trials left" in str(found)
    found = lrnas.estimate("nin", budget=10, min_macs=13_291_008, progress=False, **common)
    assert seen[FULL] == [13_291_008] and "in full" not in str(found)
    found = lrnas.estimate("nin", budget=10, min_macs=8e6, max_macs=9e6, progress=False, **common)
    beyond = "all networks that were trained are beyond the limits; raise `budget`, or change the limits"
    assert not seen[FULL] and f"no network would be trained in full: {beyond}" in str(found)


def test_a_dry_run_counts_trials_that_failed_as_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_measure", lambda *_: machine())
    common: dict[str, Any] = {"data": "digits", "studies": str(tmp_path), "name": "s", "sampler": "random"}
    settings = SearchSettings(space="nin", budget=12, **common)
    proposals, _ = begin_study(settings)
    for _ in range(3):
        found = proposals.ask()
        assert found is not None
        proposals.ledger.prune(found.number, "faulty", "out of memory")
    estimated = lrnas.estimate("nin", budget=12, progress=False, **common)
    assert estimated.levels[0].runs == train_all(begin_study(settings)[0], 12) == 9
    assert "with 9 of 12 trials left" in str(estimated) and "the space has only" not in str(estimated)
    assert lrnas.estimate("nin", budget=3, progress=False, **common).levels[0].runs == 0


@pytest.mark.parametrize(("limit", "budget"), [(2e6, 3), (None, 4), (None, 7), (None, 30)])
def test_a_dry_run_knows_the_networks_that_wait_and_that_a_limit_left_out(
    limit: float | None, budget: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which named networks the search would train next, also if the limit has changed."""
    monkeypatch.setattr(dry_run, "_measure", lambda *_: machine())
    common: dict[str, Any] = {"data": "digits", "studies": str(tmp_path), "name": "s", "sampler": "random", "finals": 0}
    train_all(begin_study(SearchSettings(space="nin", budget=2, max_macs=2e6, **common))[0], 2)
    found = lrnas.estimate("nin", budget=budget, max_macs=limit, progress=False, **common)
    assert found.levels[0].runs == budget - 2
    assert {network.name for network in found.networks if network.is_known} == {"dense-x0.25", "lr-x0.5"}
    assert (found.networks[0].beyond == ("max_macs",)) == (limit is not None)
    expected = {network.name for network in found.networks if not (network.is_known or network.beyond)}
    proposals, _ = begin_study(SearchSettings(space="nin", budget=budget, max_macs=limit, **common))
    train_all(proposals, budget)
    trained = {trial.point for trial in proposals.study.trials if trial.status == "completed" and trial.point}
    assert trained == expected | {"dense-x0.25", "lr-x0.5"}


def test_a_dry_run_knows_the_networks_that_could_not_be_trained_and_those_that_are_another_ones_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search does not try them again, but does try one that was lost."""
    monkeypatch.setattr(dry_run, "_measure", lambda *_: machine())
    common: dict[str, Any] = {"data": "digits", "studies": str(tmp_path), "name": "s", "sampler": "random", "finals": 0}
    proposals, _ = begin_study(SearchSettings(space="nin", budget=4, **common))
    ledger, ended = proposals.ledger, []
    for status in ("completed", "faulty", "duplicate", "lost"):
        found = proposals.ask()
        assert found is not None
        ended.append(found.point)
        state = {"completed": TrialState.COMPLETE, "lost": TrialState.FAIL}.get(status, TrialState.PRUNED)
        values = [0.5, found.macs] if status == "completed" else None
        ledger.end(found.number, state, status, "", values, trained=status != "duplicate")
    estimated = lrnas.estimate("nin", budget=4, progress=False, **common)
    assert [network.name for network in estimated.networks if network.is_known] == ended[:3]
    named, _ = begin_study(SearchSettings(space="nin", budget=4, **common))
    train_all(named, 4)
    next_ones = {each.point for each in named.study.trials if each.status == "completed"} - {ended[0]}
    assert next_ones == {each.name for each in estimated.networks if not (each.is_known or each.beyond)}


def test_a_dry_run_says_that_a_study_would_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "_measure", lambda *_: machine())
    common: dict[str, Any] = {"budget": 2, "data": "digits", "studies": str(tmp_path), "name": "s", "finals": 0}
    begin_study(SearchSettings(space="nin", **common))
    found = lrnas.estimate("nin", epochs=7, progress=False, **common)
    told = "s was begun with other settings (--epochs was 3, now 7), and nothing was trained: it would begin anew"
    assert found.remarks == (told,) and not found.exists and found.levels[0].runs == 2


def test_a_dry_run_counts_images_that_can_be_read_if_they_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_gpu: list[int] = []
    monkeypatch.setattr(dry_run, "_measure", lambda *given: (on_gpu.append(given[2]), machine())[1])
    monkeypatch.chdir(tmp_path)
    write_set(tmp_path / "images", {"train": 101, "val": 3, "test": 3})
    bad = spoil(tmp_path / "images" / "train" / "red" / "000.png")
    options = ["--image-size", "8", "--data-dir", str(tmp_path / "cache")]
    data = f"folder:{tmp_path / 'images'}"
    dry = ["search", "nin", "--data", data, *options, "--budget", "3", "--finals", "0", "--dry-run"]
    assert main(dry) == 0
    shown = capsys.readouterr().out
    assert "303 training and 9 validation images" in shown and "cannot be read" not in shown
    assert main(["data", data, *options]) == 1
    capsys.readouterr()
    assert main(dry) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "302 training and 9 validation images" in shown
    assert f"Note: 1 of 303 training images cannot be read, and is left out: {bad} (" in shown
    found = {}
    for kind in PACKS:
        assert main([*dry, "--pack", kind, "--json"]) == 0
        found[kind] = json.loads(capsys.readouterr().out)
    assert found["jpeg"]["packing_seconds"] > 0 == found["pixels"]["packing_seconds"]
    assert found["jpeg"]["disk"]["pack"] > 0 == found["pixels"]["disk"]["pack"]  # this one exists
    assert on_gpu[1] > 0 and on_gpu[2:] == [on_gpu[1], 0]
    spoil(tmp_path / "images" / "val" / "red" / "000.png")
    assert main(["data", data, *options]) == 1
    capsys.readouterr()
    assert main(dry) == 2  # as the search itself
    assert "1 of 9 validation images cannot be read, and more than 1 % end a run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_dry_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images, here, temp, cache = (tmp_path / name for name in ("images", "here", "temp", "cache"))
    write_set(images, {"train": 40, "val": 10, "test": 10})
    for folder in (here, temp, cache):
        folder.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TMPDIR", str(temp))
    monkeypatch.setattr("tempfile.tempdir", None)
    options = ["--data", f"folder:{images}", "--image-size", "16", "--data-dir", str(cache), "--max-macs", "8M"]
    command = ["search", "--space", "nin", *options, "--budget", "5", "--epochs", "1", "--final-epochs", "2"]
    assert main([*command, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "Space nin: 22 parameters, 2.0e17 points" in shown and "left out: --max-macs" in shown
    assert "Time: about" in shown and "Disk: about" in shown and "pack " in shown
    assert not [*here.iterdir(), *temp.iterdir(), *cache.iterdir()]

    assert main([*command, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    named = {network["name"]: network for network in found["networks"]}
    assert named["nin"]["share"] == 1.0 and named["nin"]["beyond"] == ["max_macs"] and named["nin"]["is_reference"]
    assert named["lr-x0.25"]["beyond"] == [] and not named["lr-x0.25"]["is_reference"]
    assert found["train_images"] == 40 * 3 and found["levels"][0]["runs"] == 5
    assert found["seconds"]["0"] > found["packing_seconds"] > 0 and found["disk"]["pack"] > 0
