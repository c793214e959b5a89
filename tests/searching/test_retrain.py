"""Retraining of networks of a search: which are chosen, what is recorded, and how results are read."""

import json
import lzma
import re
import signal
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from filled_studies import fill_study
from optuna.trial import TrialState
from PIL import Image
from retrainings import ask, enqueue, finish, retraining
from small_studies import SPACE, cost, make_finals, make_proposals, make_search

import lrnas
from lrnas.cli.main import main
from lrnas.cli.retrain import _print_finals
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet
from lrnas.models.plan import canonical_id
from lrnas.profiling.latency_table import Conditions
from lrnas.reporting.write import _make_report as make_chosen
from lrnas.searching.progress import ProgressView
from lrnas.searching.proposals import Queue
from lrnas.searching.ray_cluster import Workers
from lrnas.searching.ray_tune import MAX_LOSSES_IN_A_ROW, _Stopper, _StudySearcher, run_trials
from lrnas.searching.retrain import _choose, _open, _Training, plan_retraining, retrain
from lrnas.searching.runs import Runs
from lrnas.searching.search import search
from lrnas.searching.setup import tell_few_images
from lrnas.spaces.space import load_space
from lrnas.study.folder import delete_study, trial_folder, trials_folder
from lrnas.study.ledger import MOST_LOSSES
from lrnas.study.levels import keep_open
from lrnas.study.manifest import BUDGET, StudyError, keep_images, keep_limits
from lrnas.study.objectives import InvalidObjectives, UnknownName, pick_objectives
from lrnas.study.open import open_search, open_study
from lrnas.study.retrained import read_retrained, read_retraining, retrained_recipes
from lrnas.study.study import Study
from lrnas.study.verdicts import judge
from lrnas.training.checkpoint import load_checkpoint, save_checkpoint

optuna.logging.set_verbosity(optuna.logging.ERROR)


def training(study: Study, recipe: str = "fast", **changes: object) -> _Training:
    return _Training(study, None, None, recipe, changes)


def test_the_front_and_the_paper_s_networks_are_chosen_once_each() -> None:
    study = make_search()
    found = _choose(study, (), True, True)
    assert [(network.point, network.trial) for network in found] == [
        ("nin", None),
        ("nin-c3", None),
        ("nin-c3-lr", 2),  # on the front and one of the paper's networks
        (None, 0),
        (None, 1),
    ]
    assert [(network.point, network.trial) for network in _choose(study, (3, 2), False, False)] == [
        (None, 3),
        ("nin-c3-lr", 2),
    ]
    assert len(_choose(study, (3,), True, True)) == 6


def test_trials_are_given_by_number_or_as_they_are() -> None:
    study = make_search()
    assert _choose(study, study.front(), False, False) == _choose(study, (0, 1, 2), False, False)
    assert _choose(study, [study.best(), 0], False, False) == _choose(study, (2, 0), False, False)
    make_finals(study, {"nin-c3-lr": (0.95,), "lr-x0.25": (0.91,)})
    front = study.front()
    assert [(trial.study.name, trial.number) for trial in front] == [("s@finals", 1), ("s@finals", 0)]
    assert _choose(study, front, False, False) == _choose(study, (0, 2), False, False)
    other = replace(study, name="t")
    with pytest.raises(
        StudyError, match=r"trials must be of s; got <Trial 0: .* MACs, completed, on the front>, one of t; give"
    ):
        _choose(study, [replace(study.trials[0], study=other)], False, False)


def test_after_a_search_with_beat_the_best_below_that_share_of_each_of_the_paper_s_networks_are_chosen(
    tmp_path: Path,
) -> None:
    kept = Path(__file__).parents[2] / "results" / "studies" / "nin-deep-cifar10" / "study.db.xz"
    (tmp_path / "nin-deep-cifar10").mkdir()
    (tmp_path / "nin-deep-cifar10" / "study.db").write_bytes(lzma.decompress(kept.read_bytes()))
    study = open_study("nin-deep-cifar10", studies=tmp_path)

    def found(front: bool | None) -> set[int | None]:
        return {network.trial for network in _choose(study, (), front, False)}

    assert study.beat == 0.6 and found(None) == {147, 145, 140}  # for nin-c3-lr, nin-c3 and nin
    assert found(None) < found(True)
    keep_limits(study.optuna_study, {"beat": None})
    assert found(None) == found(True)


def test_networks_that_cannot_be_retrained() -> None:
    study = make_search()
    with pytest.raises(
        StudyError, match=r"s has no network of trial 9; its last trial is 3; `lrnas.open_study.*` shows"
    ):
        _choose(study, (1, 9), False, True)
    study.manifest["trainable"] = "mine:train"
    with pytest.raises(StudyError, match=r"s was trained by mine:train; .* lists its networks; test"):
        _choose(study, (), True, True)
    with pytest.raises(StudyError, match="s has none yet; continue it"):
        _choose(make_proposals().study, (), True, True)
    with pytest.raises(StudyError, match="s has no network of trial 0; it has none yet"):
        _choose(make_proposals().study, (0,), False, True)
    study.manifest["data"] = "folder:0123456789abcdef"
    with pytest.raises(StudyError, match="does not know where its images, folder:0123456789abcdef, are"):
        training(study)
    with pytest.raises(
        StudyError, match="on digits: the images were those of folder:0123456789abcdef, now others; give"
    ):
        _Training(study, "digits", None, "fast", {})


def test_images_are_found_where_the_search_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, count in (("train", 4), ("val", 2), ("test", 2)):
        for kind, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
            for number in range(count):
                file = tmp_path / "photos" / part / kind / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (32, 32), colour).save(file)
    monkeypatch.setenv("LRNAS_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    study = make_search()
    study.manifest |= {"image_size": 32, "data": load_set("folder:photos", image_size=32).identity}
    keep_images(study.optuna_study, "folder:photos")
    monkeypatch.chdir("/")
    assert study.images == f"folder:{tmp_path / 'photos'}"
    assert training(study, batch_size=2).data.identity == study.manifest["data"]
    (tmp_path / "photos").rename(tmp_path / "moved")
    with pytest.raises(
        StudyError, match=r"^s cannot read its images from folder:.*photos any more; if .* with `data` where"
    ):
        training(study)
    assert _Training(study, f"folder:{tmp_path / 'moved'}", None, "fast", {"batch_size": 2}).named.endswith("moved")


@pytest.mark.parametrize("storage", [None, "journal:studies/j"])
def test_an_open_study_keeps_its_folder_if_the_current_one_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str | None
) -> None:
    folders: list[Path] = []

    def stop(_: Runs, folder: Path) -> None:
        folders.append(folder)
        raise StudyError("stop")

    monkeypatch.setattr(Runs, "take_over", stop)
    monkeypatch.chdir(tmp_path)
    study = fill_study(Path("studies"), 4, storage=storage)
    study.manifest |= {"data": "digits", "image_size": 8, "channels": 1}
    assert study.where.options() == ("" if storage is None else f" --storage {storage}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert lrnas.report(study).page == tmp_path / "studies" / "s" / "report" / "report.html"
    with pytest.raises(StudyError, match="stop"):
        retrain(study, trials=[0], recipe="fast", data="digits")
    assert folders == [tmp_path / "studies" / "s" / "retrained" / "fast"]
    assert list(Path.cwd().iterdir()) == []
    assert study.where.options().startswith(f" --studies {tmp_path / 'studies'}")


def test_a_recipe_s_changes_are_in_the_name(tmp_path: Path) -> None:
    """Equal recipes have equal names, however they are given, so that nothing is trained twice."""
    study = make_proposals().study
    assert training(study).label == "fast"
    recipe = training(study).recipe
    assert training(study, epochs=recipe.epochs, lr=f"{recipe.lr}0").label == "fast"
    assert training(study, epochs=7, mirror="false").label == "fast,epochs=7,mirror=false"
    file = tmp_path / "my recipe@1.toml"
    file.write_text("epochs = 2\nbatch_size = 100000\n")
    assert training(study, str(file), batch_size=32).label == "my-recipe-1,batch_size=32"
    paper = training(study, "paper")
    assert paper.recipe.epochs == 320 and paper.manifest(study)["reference"]["macs"] == 13_291_008
    assert (paper.manifest(study)["channels"], paper.manifest(study)["num_classes"]) == (1, 10)


def test_costs_are_those_of_the_images_it_is_trained_on() -> None:
    """The recipe of a retraining may crop images, although the search did not."""
    study = make_proposals().study
    network = SPACE.points["nin"]
    assert training(study, crop=6).cost(network)["macs"] < training(study).cost(network)["macs"] == 13_291_008


def test_few_images_are_told() -> None:
    study = make_proposals().study
    assert training(study, epochs=1).remarks == [
        "images per step: 32 instead of the recipe's 128, learning rate 0.05 instead of 0.1, because there are only "
        "1,222 training images; --set batch_size=… changes that"
    ]
    assert training(study, batch_size=64).remarks == []
    assert tell_few_images(107, "test images") == [
        "networks are compared by only 107 test images: each is 0.9 points of accuracy"
    ]
    assert tell_few_images(200, "test images") == []


def test_latency_is_measured_before_runs_if_the_search_has_it_as_an_objective(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_search(objectives="accuracy,latency")
    networks = _choose(study, (0, 1), False, True)
    measure = partial(_Training(study, None, tmp_path, "fast", {}).measure_latency, study, networks)
    assert measure() == {}
    here = Conditions.here(torch.device("cpu"), 2, threads=1)
    study.manifest["latency"] = {**here.to_dict(), "factor": 1.3}
    found = measure()
    assert list(found) == [network.identity for network in networks] and all(0 < time < 1000 for time in found.values())
    times = {network.point or network.trial: found[network.identity] for network in networks}
    assert times["nin"] > times[0]  # lr-x0.25

    runs = retraining(study)
    some = {identity: {"macs": 5, "params": 5, "latency": time} for identity, time in found.items()}
    runs.enqueue(networks, [1, 2], some)
    for i in range(2 * len(networks)):
        finish(runs, 0.9 + i / 1000)
    retrained = read_retrained(study)
    assert retrained is not None
    assert {final.identity: final.latency for final in retrained.finals} == found
    verdicts = judge(retrained.finals)
    assert "of its latency" in str(verdicts[-1]) and verdicts[-1].not_compared == ()
    _print_finals(study, retrained, verdicts)
    assert f" {times['nin']:.3f} ms " in capsys.readouterr().out

    study.manifest["latency"]["hardware"] = "another"
    assert measure() == {} and "s measured it on another; this is" in caplog.text
    other = _choose(study, (3,), False, False)
    runs.enqueue(other, [1], {other[0].identity: {"macs": 5, "params": 5}})
    mixed = read_retrained(study)
    assert mixed is not None and all(final.latency is None for final in mixed.finals)
    assert judge(mixed.finals)[-1].not_compared == ("latency",)


def test_runs_are_done_once_and_more_seeds_extend() -> None:
    study = make_search()
    networks = _choose(study, (0, 1), False, False)
    runs = retraining(study)
    enqueue(runs, networks, range(1, 2))
    first = finish(runs, 0.91)
    assert (first.seed, canonical_id(first.architecture)) == (1, networks[0].identity)
    second = ask(runs)
    runs.ledger.prune(second.number, "diverged", "the loss became infinite")
    assert runs.ask() is None and runs.spent() == 2 and runs.left() == 0

    again = retraining(study)
    enqueue(again, networks, range(1, 4))
    assert again.left() == 4 and len(again.study.optuna_trials()) == 6
    assert [finish(again, accuracy).seed for accuracy in (0.92, 0.93, 0.94)] == [2, 2, 3]
    finals = {final.trial: final for final in read_retraining(study)}
    assert (finals[0].accuracies, finals[0].seeds, finals[0].runs) == ((0.91, 0.92, 0.94), (1, 2, 3), (0, 2, 4))
    assert (finals[1].accuracies, finals[1].diverged, finals[1].open) == ((0.93,), 1, 1)
    assert (finals[0].diverged, finals[0].open, finals[0].failed) == (0, 0, 0)
    assert finals[0].to_dict()["n"] == 3 and finals[0].recipe == "fast"
    assert again.study.optuna_trials()[0].values == [0.91, 5.0]
    assert "accuracy" not in again.study.optuna_trials()[0].user_attrs  # a search would choose by it

    fewer = retraining(study)
    enqueue(fewer, networks[:1], range(1, 4))
    assert fewer.ask() is None and fewer.left() == 0  # the remaining run is of a network that is not asked for


def test_runs_of_a_dead_driver_are_continued(tmp_path: Path) -> None:
    study = make_search(tmp_path)
    networks = _choose(study, (0,), False, False)
    one, two = retraining(study), retraining(study)
    enqueue(one, networks, range(1, 3))
    enqueue(two, networks, range(1, 3))
    left = ask(one).number
    assert two.ledger.release_orphans() == 0 and ask(two).number != left and two.ask() is None
    one.ledger.sign_off()
    assert two.ledger.release_orphans() == 1 + 1  # its own run, too: a driver calls it while training none
    assert ask(two).number == left


def test_drivers_that_begin_together_train_each_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_search()
    networks = _choose(study, (0,), False, False)
    one, two = retraining(study), retraining(study)
    with monkeypatch.context() as blind:
        blind.setattr(two.study, "optuna_trials", lambda states=None: [])  # neither sees the runs of the other
        enqueue(one, networks, range(1, 3))
        enqueue(two, networks, range(1, 3))
    assert len(one.study.optuna_trials()) == 4
    asked = [ask(one), ask(two)]
    assert [proposal.number for proposal in asked] == [0, 1] and one.ask() is None and two.ask() is None
    told = one.study.optuna_trials((TrialState.FAIL,))
    assert [trial.user_attrs["reason"] for trial in told] == ["the same run as trial 0", "the same run as trial 1"]
    one.ledger.complete(0, 0.5)
    two.ledger.complete(1, 0.6)
    assert [final.accuracies for final in read_retraining(study)] == [(0.5, 0.6)]


def test_duplicate_runs_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_search()
    networks = _choose(study, (0,), False, False)
    one, two = retraining(study), retraining(study)
    with monkeypatch.context() as blind:
        blind.setattr(two.study, "optuna_trials", lambda states=None: [])
        enqueue(one, networks, range(1, 3))
        enqueue(two, networks, range(1, 3))
    finish(one, 0.5)
    one.end_duplicates()
    assert one.study.counts() == {
        "completed": 1,
        "waiting": 2,
        "duplicate": 1,
    }  # the second seed is still to be trained
    finish(one, 0.6)  # a driver that has spent its budget does not ask again
    before = read_retrained(study)
    one.end_duplicates()
    after = read_retrained(study)
    assert before is not None and after is not None and before.left == after.left == one.left() == 0
    assert one.study.counts() == {"completed": 2, "duplicate": 2} and after.finals[0].accuracies == (0.5, 0.6)


def test_a_lost_run_is_tried_again_by_the_next_command() -> None:
    study = make_search()
    networks = _choose(study, (0,), False, False)
    runs = retraining(study)
    enqueue(runs, networks, range(1, 2))
    for _ in range(3):
        runs.ledger.lose(ask(runs).number, "its worker was lost")
    assert runs.ask() is None and runs.left() == 1
    enqueue(runs, networks, range(1, 2))
    assert ask(runs).number == 1


def test_the_replacement_of_a_lost_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    """Three lost workers are no reason to train 90 of 160 epochs again."""
    study = make_search()
    networks = _choose(study, (0, 1), False, False)
    runs = retraining(study)
    enqueue(runs, networks, range(1, 2))
    for _ in range(2 * MOST_LOSSES):
        number = ask(runs).number
        runs.ledger.report_epoch(number, [0.5] * 90, 45.0)
        runs.ledger.lose(number, "its worker was lost")
    record = {"state": {"curve": []}}
    for number in (0, 1):
        save_checkpoint(trial_folder(tmp_path, number), 90, {"model.a": torch.ones(2)}, record)
    (trial_folder(tmp_path, 1) / "checkpoint.json").write_text("{")  # unreadable: this run starts again
    enqueue(runs, networks, range(1, 2))
    for _ in range(2):  # the second time, as if another driver had been faster
        runs.take_over(tmp_path)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["00001", "00002"]
    view = ProgressView()
    view.started(runs, 2)
    # earlier training does not count for the pace of this driver
    assert view.work_before[2][1:] == (90, 45.0) and view.work_before[3][1:] == (0, 0.0)
    assert ask(runs).number == 2
    found = load_checkpoint(trial_folder(tmp_path, 2))
    assert found is not None and found[1]["epoch"] == 90


def test_a_network_that_was_stopped_early_can_be_trained_again() -> None:
    """Even if no network was trained in full yet."""
    proposals = make_proposals()
    proposals.enqueue({"nin": SPACE.points["nin"]})
    proposals.ledger.prune(ask(proposals).number, "stopped", "not competitive")
    assert [network.point for network in _choose(proposals.study, (0,), False, False)] == ["nin"]


def test_a_run_that_ends_in_an_error_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """These networks could be trained before, so an error is more likely the fault of the machine."""
    study = make_search()
    networks = _choose(study, (0,), False, True)
    runs = retraining(study)
    enqueue(runs, networks, range(1, 2))
    searcher = _StudySearcher(
        runs, lambda proposal: training(study).job(proposal), tmp_path, "", 9, Workers(), lambda change: None, True
    )
    finish(runs, 0.9)
    failed = canonical_id(SPACE.points["nin-c3"])
    for _ in range(MOST_LOSSES):
        proposal = ask(runs)
        assert canonical_id(proposal.architecture) == failed
        searcher.running["one"] = proposal.number
        searcher.on_trial_complete("one", {"status": "faulty", "reason": "out of memory"})
    assert not searcher.end_reason
    assert caplog.messages == ["a trial was lost (out of memory); it is tried again, 3 times in all"]
    assert canonical_id(ask(runs).architecture) != failed and runs.left() == 3
    found = next(final for final in read_retraining(study) if final.failed)
    assert (found.point, found.failed, found.reason) == ("nin-c3", 1, "out of memory, 3 times")
    assert found.to_dict()["reason"] == found.reason
    enqueue(runs, networks, range(1, 2))  # the same command
    assert len(runs.study.optuna_trials()) == len(networks) + 1
    assert [(final.open, final.failed) for final in read_retraining(study) if final.point == "nin-c3"] == [(1, 0)]


@pytest.mark.parametrize("another_trains", [True, False])
def test_a_machine_that_cannot_train_ends_the_search_only_if_it_is_the_only_one(
    another_trains: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run does not count as lost if a machine has other images, or not the shared folder."""
    study = make_search()
    runs = retraining(study)
    enqueue(runs, _choose(study, (0,), False, True), range(1, 2))
    searcher = _StudySearcher(
        runs, lambda proposal: training(study).job(proposal), tmp_path, "", 9, Workers(), lambda change: None, True
    )
    if another_trains:
        searcher.running["there"] = ask(runs).number
        searcher.on_trial_result("there", {"curve": [0.5], "seconds": 1.0})
    for number in range(MAX_LOSSES_IN_A_ROW):
        searcher.running[f"{number}"] = ask(runs).number
        searcher.on_trial_result(f"{number}", {"status": "unfit", "reason": "other images"})
        searcher.on_trial_complete(f"{number}", error=True)
        assert searcher.broken is (number == MAX_LOSSES_IN_A_ROW - 1 and not another_trains)
    assert caplog.messages == ["a trial was lost (other images); it is tried again"]
    assert not any("losses" in run.user_attrs or run.state == TrialState.FAIL for run in runs.study.optuna_trials())


def test_a_stopped_search_does_not_wait_for_workers_that_never_came(tmp_path: Path) -> None:
    """A trial may wait for a worker for any time, for example on a full cluster."""
    study = make_search()
    runs = retraining(study)
    searcher = _StudySearcher(
        runs, lambda proposal: training(study).job(proposal), tmp_path, "", 9, Workers(), lambda change: None, True
    )
    stopper = _Stopper(searcher)
    searcher.running.update({"in training": 0, "waiting": 1})
    searcher.last_reports["in training"] = 1.0
    assert not stopper.stop_all()
    study.interrupted = runs.study.interrupted = signal.SIGTERM
    assert not stopper.stop_all()
    del searcher.running["in training"]
    assert stopper.stop_all()


def test_a_retraining_that_prepares_is_known_to_be_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its search could be deleted meanwhile."""
    study = make_search(tmp_path / "s")

    def prepare(self: Any, *_: object) -> None:
        with pytest.raises(StudyError, match="a study that is running cannot be deleted; got s@full, which process"):
            delete_study("s", studies=tmp_path)
        raise KeyboardInterrupt

    monkeypatch.setattr(DataSet, "prepare", prepare)
    with pytest.raises(KeyboardInterrupt):
        retrain(study, trials=[0], seeds=1, studies=tmp_path, gpus_per_trial=0)
    assert delete_study("s", studies=tmp_path).trials["s@full"] > 0


def fails_always(searcher: _StudySearcher, *_: object) -> None:
    """Behave like Tune when nothing works: ask for all runs, lose them, and end."""
    asked = []
    while searcher.suggest(f"{len(asked)}") != "FINISHED":
        asked.append(f"{len(asked)}")
    for name in asked:
        searcher.on_trial_complete(name, {"status": "lost", "reason": "no room"})


def test_rounds_continue_while_runs_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is lost again changes nothing but its losses; losses in a row are counted over rounds."""
    monkeypatch.setattr("lrnas.searching.ray_tune._fit", fails_always)
    study = make_search()
    networks = _choose(study, (0, 1), False, False)

    def train(queue: Queue, budget: int) -> None:
        run_trials(
            queue,
            lambda proposal: training(study).job(replace(proposal, seed=1)),
            tmp_path,
            budget=budget,
            rungs=(),
            workers=Workers(),
            notify=lambda change: None,
            test=True,
        )

    runs = retraining(study)
    enqueue(runs, networks[:1], range(1, 2))
    train(runs, 1)
    (run,) = runs.study.optuna_trials()
    assert (run.state, run.user_attrs["reason"]) == (TrialState.FAIL, "no room, 3 times")
    assert caplog.messages == ["a trial was lost (no room); it is tried again, 3 times in all"]
    with pytest.raises(StudyError, match="6 trials in a row were lost, the last one: no room"):
        train(make_proposals(), 1)  # a search can always propose one more network


def test_runs_that_failed_before_are_tried_again() -> None:
    study = make_search()
    networks = _choose(study, (0,), False, False)
    runs = retraining(study)
    enqueue(runs, networks, range(1, 2))
    runs.ledger.prune(ask(runs).number, "faulty", "out of memory")
    assert (runs.left(), runs.spent()) == (1, 0)
    enqueue(runs, networks, range(1, 2))
    assert finish(runs, 0.5).number == 1 and runs.left() == 0


def test_progress_counts_the_runs_that_are_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    study = make_search()
    both = _choose(study, (0, 1), False, False)
    other, mine = retraining(study), retraining(study)
    enqueue(other, both[1:], range(1, 4))
    enqueue(mine, both[:1], range(1, 3))
    for _ in range(3):
        ask(other)
    view = ProgressView()
    view.started(mine, 2)

    def shown() -> str:
        view.changed("ended")
        view.show_rest()
        return caplog.messages[-1]

    assert shown() == "0/2 runs: 0 running"
    ask(mine)
    assert shown() == "0/2 runs: 1 running"
    finish(mine, 0.5)
    assert shown().startswith("1/2 runs: 1 running")


def test_time_left_is_shown_before_the_first_run_ends() -> None:
    """All runs are known from the start, so three running networks show how long an epoch takes."""
    study = make_search()
    study.manifest["recipe"]["epochs"] = 10
    networks = _choose(study, (0, 1, 3), False, False)
    mine = retraining(study)
    mine.enqueue(networks, range(1, 3), {network.identity: {"macs": 10, "params": 2} for network in networks})
    view = ProgressView()
    view.started(mine, 6)
    for _ in range(3):
        assert view._seconds_left(mine.study.trials, view.start + 8.0) is None
        mine.ledger.report_epoch(ask(mine).number, [0.5] * 4, 8.0)  # three at a time, 2 s per epoch
    assert view._seconds_left(mine.study.trials, view.start + 8.0) == pytest.approx((3 * 6 + 3 * 10) * 2 / 3)


def test_failures_and_time_left_count_the_runs_that_are_asked_for() -> None:
    study = make_search()
    both = _choose(study, (0, 1), False, False)
    other, mine = retraining(study), retraining(study)
    costs = {network.identity: {"macs": 10 + i, "params": 2} for i, network in enumerate(both)}
    other.enqueue(both[1:], range(1, 3), costs)
    mine.enqueue(both[:1], range(1, 4), costs)
    for _ in range(MOST_LOSSES):
        other.ledger.lose(ask(other).number, "its worker was lost")
        mine.ledger.lose(ask(mine).number, "its worker was lost")
    mine.ledger.prune(ask(mine).number, "diverged", "the loss became infinite")
    assert mine.waiting_macs() == [10] and other.waiting_macs() == [11]
    assert mine.faults(mine.study.summary()) == {"diverged": 1, "faulty": 0, "lost": 1}
    assert other.faults(other.study.summary()) == {"diverged": 0, "faulty": 0, "lost": 1}
    mine.enqueue(both[:1], range(1, 4), costs)  # lost runs are tried again
    assert mine.waiting_macs() == [10, 10] and mine.faults(mine.study.summary())["lost"] == 0


def test_networks_have_the_objectives_and_names_of_their_search(tmp_path: Path) -> None:
    """Whether they are read from the search, from the retraining, or after the search was deleted."""
    study = make_search(tmp_path / "s", "accuracy,params")
    runs = retraining(study)
    enqueue(runs, _choose(study, (0,), False, False), range(1, 2))
    finish(runs, 0.9)
    record = open_study("s@fast", studies=tmp_path)
    for source in (study, record):
        (found,) = read_retraining(source)
        assert (found.costs, found.name, found.point) == (("params",), "lr-x0.25", None)  # its name in the search
        assert found.to_dict()["name"] == found.to_dict()["known_as"] == "lr-x0.25"
    optuna.delete_study(study_name="s", storage=record.optuna_study._storage)
    for again in ("", "another search"):  # a new search of the same name, without this trial
        if again:
            make_proposals(tmp_path / "s")
        (found,) = read_retraining(record)
        assert (found.costs, found.name) == (("macs",), found.identity)


def test_the_last_retraining_is_read_unless_one_is_named(caplog: pytest.LogCaptureFixture) -> None:
    study = make_search()
    assert read_retraining(study) == [] and retrained_recipes(study) == []
    assert caplog.messages == ["s was not trained again and tested yet: lrnas.retrain does that"]
    networks = _choose(study, (0,), False, False)
    for label, accuracy in (("paper", 0.9), ("fast", 0.8)):
        runs = retraining(study, label)
        enqueue(runs, networks, range(1, 2))
        finish(runs, accuracy)
    assert retrained_recipes(study) == ["paper", "fast"]
    assert [final.mean for final in read_retraining(study)] == [0.8]
    assert [final.mean for final in read_retraining(study, "paper")] == [0.9]
    last = read_retrained(study)
    assert last is not None and (last.name, last.others, last.left) == ("s@fast", ("s@paper",), 0)
    assert str(last) == "s@fast, on digits: 1 of 1 networks tested; not shown: s@paper."
    with pytest.raises(UnknownName, match="unknown retraining of s with recipe 'papr'; did you mean paper"):
        read_retraining(study, "papr")


def test_a_report_shows_the_retraining_with_most_of_the_paper_s_networks(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    for label, trials, points in (("full", (), True), ("paper", (), True), ("fast", (0,), False)):
        runs, networks = retraining(study, label), _choose(study, trials, None, points)
        enqueue(runs, networks, range(1, 2))
        for _ in networks:
            finish(runs, 0.9)
    assert retrained_recipes(study) == ["full", "paper", "fast"]

    def shown(name: str | None = None) -> str:
        return make_chosen([study], None, name).tested[0].retrained.name

    assert shown() == "s@paper" and shown("s@fast") == "s@fast"
    with pytest.raises(UnknownName, match="unknown retraining 's@fst'; did you mean s@fast"):
        shown("s@fst")


def test_retrainings_are_listed_and_suggested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_search(tmp_path / "s")
    make_finals(study, {"nin-c3-lr": (0.95,)})
    enqueue(retraining(study, "fast,epochs=2"), _choose(study, (0,), False, False), range(1, 2))
    assert main(["studies", "--studies", str(tmp_path)]) == 0
    where = f"--studies {tmp_path}"
    assert f"Retrainings, which `lrnas retrain NAME {where}` shows: s@fast,epochs=2\n" in capsys.readouterr().out
    assert main(["studies", "--studies", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["retrainings"] == ["s@fast,epochs=2"]
    for name, told in (("s@fast", "did you mean s@fast,epochs=2?"), ("s@paper", "s has s@finals, s@fast,epochs=2")):
        assert main(["retrain", name, "--studies", str(tmp_path)]) == 2
        assert f"has no study '{name}'; {told}" in capsys.readouterr().err


def test_a_complete_retraining_that_is_continued_is_used(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    networks = _choose(study, (0,), False, False)
    for changes in ({"epochs": 2}, {"epochs": 3}):
        runs = _open(study, training(study, "fast", **changes))
        enqueue(runs, networks, range(1, 2))
        finish(runs, 0.9)
    assert retrained_recipes(study) == ["fast,epochs=2", "fast,epochs=3"]
    _open(study, training(study, "fast", epochs=2))
    assert retrained_recipes(study) == ["fast,epochs=3", "fast,epochs=2"]


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a search in it."""
    folder = tmp_path_factory.mktemp("studies")
    make_search(folder / "s")
    return folder


def test_the_export_command_is_quoted_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    runs = retraining(make_search())
    enqueue(runs, _choose(make_search(), (0,), False, False), range(1, 2))
    finish(runs, 0.9)
    retrained = read_retrained(runs.study)
    assert retrained is not None
    lines = {"my nets@fast": "lrnas export 'my nets@fast:NETWORK' (", "a[b]@fast": "lrnas export 'a[b]@fast:NETWORK'"}
    for name, line in lines.items():
        _print_finals(replace(runs.study, name=name), retrained, [])
        assert line in capsys.readouterr().out
    _print_finals(replace(runs.study, name="a:b@fast"), retrained, [])
    assert "lrnas export" not in capsys.readouterr().out


def test_shares_and_marks_are_shown_in_a_narrow_terminal_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_search(tmp_path / "s")
    networks = _choose(study, (0, 1), False, False)
    runs = retraining(study)
    runs.enqueue(networks, range(1, 3), {one.identity: cost(one.architecture) for one in networks})
    for accuracy in (0.8, 0.9, 0.81, 0.92):
        finish(runs, accuracy)
    assert main(["retrain", "s@fast", "--studies", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("lr-x0.25"))
    assert "runs: their numbers" in out
    dense = cost(SPACE.points["nin"])["macs"]  # it is not tested
    assert row[3] == f"{cost(SPACE.uniform['lr-x0.25'])['macs'] / dense:.3f}"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["retrain", "s@fast", "--studies", str(tmp_path)]) == 0
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "recipe of 20 epochs at most" in " ".join(out.split())
    rows = [line.rstrip() for line in out.splitlines() if " ± " in line and " % " in line]
    assert [(row.split()[0], row.split()[-1]) for row in rows] == [("lr-x0.25", "front"), ("dense-x0.25", "front")]
    assert max(map(len, rows)) <= 60
    retrained = read_retrained(runs.study)
    assert retrained is not None
    fewer = {"accuracies": (0.9,), "open": 1, "failed": 1, "diverged": 1}  # what is not done has columns of its own
    finals = [
        replace(final, point="vgg-gmp-lr-join-wfull", macs=146_513_920, params=33_125_450, runs=tuple(range(8)), **more)
        for final, more in zip(retrained.finals, ({}, fewer), strict=True)
    ]
    _print_finals(runs.study, replace(retrained, finals=tuple(finals)), [])
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    rows = [line.rstrip() for line in out.splitlines() if line.startswith(("network ", "vgg-gmp-lr-join-wfull "))]
    assert [row.split()[:2] for row in rows] == [["network", "trial"], *(["vgg-gmp-lr-join-wfull", n] for n in "01")]
    assert max(map(len, rows)) <= 60
    assert "runs: their numbers" not in out and "number of its run" not in out
    assert "Not shown for lack of room: parameters, runs, open, failed, diverged, MACs, share;" in " ".join(out.split())


def test_a_retraining_is_not_accepted_as_a_search(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_proposals(studies / "s").study
    runs = retraining(study)
    enqueue(runs, _choose(study, (0, 1), False, True), range(1, 3))
    for _ in range(6):
        finish(runs, 0.9)
    with pytest.raises(StudyError, match=r"a retraining of s; `lrnas retrain s@fast --studies /"):
        open_search("s@fast", studies=studies)
    for function in (lrnas.report, lrnas.plot):
        with pytest.raises(StudyError, match=r'Python lrnas.report\("s", retraining="s@fast"\)'):
            function("s@fast", studies=studies)
    assert open_study("s@fast", studies=studies).counts() == {"completed": 6, "waiting": 4}
    for name in ("s@fast", "s:1"):
        with pytest.raises(StudyError, match=f"a study's name must not contain {name[1]}, which marks "):
            search("nin", budget=1, name=name, data="digits", studies=studies)
    with pytest.raises(StudyError, match="must be the name of a folder; got 'a/b'"):  # before the data are found
        search("nin", budget=1, name="a/b", data=f"folder:{studies}/none", studies=studies)
    with pytest.raises((InvalidObjectives, UnknownName)):
        pick_objectives(["test_accuracy", "macs"])
    assert trials_folder(studies, "s@fast") == studies / "s" / "retrained" / "fast"

    assert main(["studies", "--studies", str(studies), "--json"]) == 0
    assert [row["study"] for row in json.loads(capsys.readouterr().out)] == ["s"]
    assert main(["retrain", "s@fast", "--studies", str(studies), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["left"] == 4 and len(shown["networks"]) == 5 and len(shown["verdicts"]) == 3
    assert main(["retrain", "s@fast", "--studies", str(studies)]) == 0
    out = capsys.readouterr().out
    again = f"lrnas retrain s --studies {studies}"
    assert f"Runs that are not done: 4; `{again}` with its options continues them." in out
    assert f"Weights: lrnas export s@fast:NETWORK --studies {studies} (" in out
    assert "Test: Welch's t-test" in out and "front, reference" in out
    (row,) = (line for line in out.splitlines() if line.startswith("nin  "))
    assert "%  2  0, 5 " in row  # n, and the runs over both seeds
    assert "nothing to compare" not in out
    assert "lr-x0.25 " in out  # its name in the search, as in verdicts
    assert re.search(r"nin-c3: .*unknown; (lr|dense)-x0.25, trial [01], at", " ".join(out.split()))
    assert main(["export", "s@fast:best", "--studies", str(studies)]) == 2
    assert "nothing is chosen by test accuracy; got s@fast:best" in capsys.readouterr().err
    assert main(["export", "s@fast", "--studies", str(studies)]) == 2
    assert "did you mean s@fast:NETWORK, as in `lrnas retrain s@fast --studies" in capsys.readouterr().err


def test_the_front_is_by_means_and_shows_numbers_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_search(tmp_path / "s")
    runs = retraining(study)
    enqueue(runs, _choose(study, (0, 1), False, False), range(1, 2))
    finish(runs, 0.8)
    finish(runs, 0.9)
    shown = ["retrain", "s@fast", "--studies", str(tmp_path)]
    assert main(shown) == 0
    out = capsys.readouterr().out
    assert "The front compares these means" in out and "fewer runs" not in out  # all have as many runs
    enqueue(runs, _choose(study, (0,), False, False), range(1, 4))
    finish(runs, 0.7)
    finish(runs, 0.6)
    assert main(shown) == 0
    out = capsys.readouterr().out
    marks = {line.split()[1]: line for line in out.splitlines() if " " in line.strip()}
    assert marks["1"].rstrip().endswith("1  front by fewer runs") and "front" not in marks["0"]
    assert "A network with fewer runs may be on the front by luck" in out


def test_a_space_without_reference_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No network is the baseline, not even the first one without a name."""
    study = make_search(tmp_path / "s")
    study.manifest["space"] |= {"points": {}, "baseline": None}
    runs = retraining(study)
    enqueue(runs, _choose(study, (0, 1), False, False), range(1, 2))
    finish(runs, 0.9)
    assert main(["retrain", "s@fast", "--studies", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "1.000" not in out and "has no reference networks: there is nothing to compare these with" in out


OWN = """\
[space]
backbone = "nin"
batch_norm = true

[[space.vary]]
layers = ["conv*"]
square = [0, 1]
width = ["1/4", 1]
"""
"""A space without points."""


def test_the_unchanged_backbone_of_a_space_without_points_gets_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.toml").write_text(OWN)
    space = load_space(str(tmp_path / "own.toml"))
    proposals = make_proposals(tmp_path / "s", space=space)
    networks = {**space.points, **space.uniform}
    proposals.enqueue({name: networks[name] for name in ("nin", "lr-x0.25")})
    for accuracy in (0.9, 0.8):
        proposal = ask(proposals)
        proposals.ledger.report_epoch(proposal.number, [accuracy], 1.0)
        proposals.ledger.complete(proposal.number, accuracy)
    study = proposals.study
    chosen = _choose(study, (1,), False, True)
    assert [(network.point, network.trial) for network in chosen] == [("nin", 0), (None, 1)]
    runs = retraining(study)
    runs.enqueue(chosen, range(1, 4), {network.identity: cost(network.architecture) for network in chosen})
    accuracies = {"nin": iter((0.90, 0.91, 0.92)), None: iter((0.95, 0.96, 0.97))}
    for _ in range(6):
        run = ask(runs)
        runs.ledger.report_epoch(run.number, [0.9], 1.0)
        runs.ledger.complete(run.number, next(accuracies[run.point]))
    (verdict,) = judge(read_retraining(study))
    assert (verdict.point, verdict.kind) == ("nin", "dominated") and verdict.rival.trial == 1
    (tested,) = make_chosen([study], None, None).tested
    assert tested.headline == "Of 1 reference network: 1 dominated."
    assert main(["retrain", "s@fast", "--studies", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line for line in lines if line.startswith("nin "))
    assert " 1.000 " in row and row.rstrip().endswith("  reference")
    assert any(line.startswith("nin: dominated by lr-x0.25, trial 1, at ") for line in lines)


def test_a_dry_run_says_what_would_be_trained_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LRNAS_DATA", str(tmp_path / "cache"))
    study = make_search(tmp_path / "s")
    command = ["retrain", "s", "--recipe", "fast", "--seeds", "2", "--studies", str(tmp_path)]

    def plan() -> dict[str, Any]:
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        assert main([*command, "--dry-run", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
        return found

    new = plan()
    names = ["nin", "nin-c3", "nin-c3-lr", "lr-x0.25", "dense-x0.25"]
    assert [network["name"] for network in new["networks"]] == names and new["seeds"] == [1, 2]
    assert (new["retraining"], new["done"], new["left"], new["seconds"]) == ("s@fast", 0, 10, None)
    assert new["larger"] == 2  # nin-c3-lr was trained by the search

    runs = _open(study, fast := training(study))
    networks = _choose(study, (), True, True)
    runs.enqueue(networks, range(1, 3), {each.identity: fast.cost(each.architecture) for each in networks})
    for _ in range(6):  # all networks with the first seed, and one with the second
        run = ask(runs)
        curve = [0.5] * fast.recipe.epochs
        runs.ledger.report_epoch(run.number, curve, run.macs * 1e-5 * len(curve), images=1000)
        runs.ledger.complete(run.number, 0.9, test_accuracy=0.9)
    runs.ledger.sign_off()
    begun = plan()
    assert [network["done"] for network in begun["networks"]] == [2, 1, 1, 1, 1] and begun["left"] == 4
    assert begun["larger"] == 0
    # the seconds of an epoch are proportional to MACs; many runs were trained at a time, so all that are left can be
    macs = [network["macs"] for network in begun["networks"]]
    assert begun["seconds"] == pytest.approx(sum(macs[1:]) * 1e-5 * fast.recipe.epochs / 4, rel=1e-3)
    assert main([*command, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "s@fast: 5 networks × 2 seeds" in out and " of training, at the speed of the study's trainings" in out
    assert "Nothing was written." in out
    shown = lrnas.plan_retraining(study, recipe="fast", seeds=2)
    assert json.loads(json.dumps(shown.to_dict())) == plan()
    assert repr(shown).startswith("<RetrainingPlan s@fast: 5 networks × 2 seeds, ") and "Time: about" in repr(shown)
    assert "<td>nin-c3-lr</td>" in shown._repr_html_() and escape(shown.time) in shown._repr_html_()
    study.manifest["space"] = {**study.manifest["space"], "batch_norm": None}
    with pytest.raises(StudyError, match="s@fast was begun with other settings"):
        plan_retraining(study, recipe="fast")


def test_a_search_that_is_not_complete_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its front may change, so long trainings of it may be for nothing."""
    study = make_search(tmp_path / "s")
    assert plan_retraining(study).unfinished == ""
    keep_open(study.optuna_study, is_open=True)
    assert plan_retraining(study).unfinished.startswith("s is not complete, some of its full trainings are not done: ")
    study.optuna_study.set_user_attr(BUDGET, 9)
    told = "s is not complete, 4 of its 9 trials are done: the command that began it continues it, and its front may"
    assert plan_retraining(study).unfinished.startswith(told)
    assert plan_retraining(study, trials=[1]).unfinished == ""  # chosen by the user
    assert main(["retrain", "s", "--dry-run", "--studies", str(tmp_path)]) == 0
    plan = plan_retraining(study)
    assert told in capsys.readouterr().out and told in plan._repr_html_() and told in str(plan)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t"], "unknown study 't'; known: s (`lrnas studies --studies /"),
        (["s@paper"], "the storage has no study 's@paper'; "),
        (
            ["s", "--trials", "1,7"],
            "s has no network of trial 7; its last trial is 3; `lrnas front s --studies /",
        ),
        (["s", "--seeds", "0"], "the number of seeds must be at least 1; got 0"),
        (["s", "--recipe", "papr"], "unknown recipe 'papr'; did you mean paper?"),
        (["s", "--set", "lr"], "--set takes FIELD=VALUE"),
        (
            ["s@fast", "--trials", "7", "--dry-run"],
            "only shows results; got --trials, --dry-run; leave that out, or extend",
        ),
        (["--seeds=3", "s@fast,epochs=2,lr=0.1"], "got --seeds; leave that out, or extend the "),
        (["s@my,epochs=2,lr=0.1", "--no-points"], " --recipe my.toml --epochs 2 --set lr=0.1 --seeds N`"),
    ],
)
def test_bad_input(capsys: pytest.CaptureFixture[str], studies: Path, arguments: list[str], message: str) -> None:
    assert main(["retrain", *arguments, "--studies", str(studies)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and message in err
