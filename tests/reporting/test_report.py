"""Data of a report, also for studies that have little to show."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from filled_studies import fill_study
from optuna.distributions import IntDistribution
from retrainings import some_finals
from small_studies import make_finals, make_search

from lrnas.reporting.html import pack
from lrnas.reporting.report import LIMITS, Report, make_report
from lrnas.study.levels import keep_open
from lrnas.study.manifest import StudyError, keep_unreadable
from lrnas.study.objectives import Limits
from lrnas.study.study import Study
from lrnas.study.verdicts import judge


def fill(folder: Path, trials: int, **more: Any) -> Study:
    return fill_study(folder, trials, storage=f"journal:{folder / 'journal'}", **more)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return fill(tmp_path_factory.mktemp("studies"), 30)


@pytest.fixture(scope="module")
def report(record: Study) -> Report:
    return make_report([record])


def test_a_report_has_the_numbers_of_its_study(record: Study, report: Report) -> None:
    (study,) = report.studies
    summary = record.summary()
    assert [network.trial for network in study.networks] == summary.trials
    assert [network.trial.number for network in study.front] == [trial.number for trial in summary.front]
    references = {network.name for network in study.networks if network.is_reference}
    assert references == record.manifest["space"]["points"].keys()
    for network in study.networks:
        assert sum(layer.macs for layer in network.layers) == network.trial.macs
        assert sum(layer.params for layer in network.layers) == network.trial.params
    assert report.remarks() == [] and report.axis.name == "macs"
    json.dumps(report.to_dict(), allow_nan=False)


def test_named_networks_have_their_macs_as_built_beside_those_as_deployed(tmp_path: Path) -> None:
    networks = make_report([fill(tmp_path, 16, space="vgg11")]).studies[0].networks
    folded = {network.name for network in networks if network.macs_as_built > network.trial.macs}
    # without biases, the halves of a separable layer are one convolution too
    assert folded == {"vgg-gmp-lr-join-wfull", "vgg-gmp-lr-join", "vgg-gmp-lr-lde", "vgg-gmp-sf"}
    for network in networks:
        assert sum(layer.macs for layer in network.layers) == network.trial.macs <= network.macs_as_built
    assert networks[0].to_dict()["macs_as_built"] == networks[0].trial.macs


def test_the_training_time_counts_all_levels() -> None:
    search = make_search()
    (study,) = make_report([search]).studies
    assert study.seconds == {"short": 4.0}
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.91,)})
    (study,) = make_report([search]).studies
    assert study.seconds == {"short": 4.0, "full": 6.0} == study.to_dict()["seconds"]


def test_the_history_of_the_front_ends_with_the_current_front(record: Study, report: Report) -> None:
    history = report.studies[0].history
    assert [moment.trials for moment in history] == list(range(1, 31))
    assert history[-1].volume == pytest.approx(record.hypervolume())
    assert history[-1].seconds == pytest.approx(sum(trial.seconds for trial in record.trials))
    volumes = [moment.volume for moment in history]
    assert volumes == sorted(volumes) and volumes[0] < volumes[-1]


def test_there_are_importances_for_every_objective(tmp_path: Path) -> None:
    importances = make_report([fill(tmp_path, 30, stopped=0.0)]).studies[0].importances
    accuracy, macs = importances["accuracy"], importances["macs"]
    assert list(importances) == ["accuracy", "macs"] and list(accuracy) == list(macs)
    for values in (accuracy, macs):
        assert sum(values.values()) == pytest.approx(1, abs=1e-3)
    highest = [max(accuracy[name], macs[name]) for name in accuracy]
    assert highest == sorted(highest, reverse=True)


def test_importances_need_enough_networks(tmp_path: Path) -> None:
    assert make_report([fill(tmp_path, 19, stopped=0.0)]).studies[0].importances == {}
    some = fill(tmp_path, 20, name="t", stopped=0.0)
    fixed = optuna.create_study(directions=some.optuna_study.directions)
    for row in some.optuna_study.get_trials():
        row.params, row.distributions = {"a": 1, "b": 2}, {"a": IntDistribution(1, 1), "b": IntDistribution(2, 2)}
        fixed.add_trial(row)
    (study,) = make_report([Study("t", fixed, some.objectives, some.manifest)]).studies
    assert len(study.full) == 20 and study.importances == {}  # not one half each


def test_importances_leave_duplicates_out(tmp_path: Path) -> None:
    """A network that is proposed again gets the values of its first trial and is not trained."""
    record = fill(tmp_path, 45, stopped=0.0)
    before = make_report([record]).studies[0].importances
    best = max(record.optuna_study.get_trials(), key=lambda row: row.values[0])
    best.user_attrs = best.user_attrs | {"status": "duplicate"}
    record.optuna_study.add_trials([best] * 25)
    (after,) = make_report([record]).studies
    assert after.summary.counts == {"completed": 45, "duplicate": 25}
    assert before and after.importances == before


def test_a_study_without_a_network(tmp_path: Path) -> None:
    empty = make_report([fill(tmp_path, 0)])
    assert empty.remarks() == ["s has no trained network yet: there is no front to show."]
    assert empty.studies[0].history == () and empty.studies[0].importances == {}


def test_several_objectives_and_their_axes(tmp_path: Path, record: Study) -> None:
    timed = fill(tmp_path, 8, name="t", objectives="accuracy,latency,params")
    assert make_report([timed]).axis.name == "params"
    assert make_report([timed], axis="latency").axis.name == "latency"
    assert [axis.name for axis in make_report([timed, record]).axes] == ["macs", "params", "latency"]
    with pytest.raises(StudyError, match="one of macs, params for these studies; got 'latency'"):
        make_report([timed, record], axis="latency")
    assert make_report([timed, record]).axis.name == "macs"


def test_a_remark_lists_different_conditions_of_studies(tmp_path: Path, record: Study) -> None:
    other = fill(tmp_path, 3, name="t")
    assert make_report([record, other]).remarks() == []
    before = dict(other.manifest)
    lr = before["recipe"]["lr"]
    for change, told in (
        ({"data": "digits"}, "s: data cifar10; t: data digits"),
        ({"data": "ab12+cd34", "data_name": "photos"}, "s: data cifar10; t: data photos (ab12+cd34)"),
        ({"image_size": 31}, "s: image_size 32; t: image_size 31"),
        ({"trainable": "mine:train"}, "s: trained by lrnas; t: trained by mine:train"),
        ({"start_from": "0123456789"}, "s: starts from random weights; t: starts from 01234567"),
        ({"recipe": before["recipe"] | {"lr": 0.05, "epochs": 2}}, f"s: epochs 9, lr {lr}; t: epochs 2, lr 0.05"),
    ):
        other.manifest = before | change
        remark = make_report([record, other]).remarks()[-1]
        assert "different conditions" in remark and told in remark
    recipe = {name: value for name, value in before["recipe"].items() if name != "early_crop"}  # as in older studies
    other.manifest = before | {"recipe": recipe}
    remarks = make_report([record, other]).remarks()
    assert before["recipe"]["early_crop"] == 0 and not any("conditions" in each for each in remarks)
    weights = {"start_from": "0123456789", "settings": {"start_from": "/home/me/tuned.pth"}}
    other.manifest = before | weights
    assert make_report([other]).remarks() == ["t: networks start from the trained weights in tuned.pth (01234567)."]
    keep_open(other.optuna_study, True)
    assert make_report([other]).remarks()[-1] == (
        "t: full trainings are not complete: the command that began the search continues them."
    )
    keep_open(other.optuna_study, False)
    third, identity = fill(tmp_path, 3, name="u"), {"data": "ab12+cd34"}
    other.manifest = before | identity | {"data_name": "photos"}
    third.manifest = before | identity | {"data_name": "pictures"}
    assert make_report([third, other]).remarks() == []  # the same images, in folders of other names


def test_a_remark_says_that_hypervolumes_cannot_be_compared(tmp_path: Path, record: Study) -> None:
    other = fill(tmp_path, 3, name="t")
    other.manifest["reference"] |= {"params": 5}
    assert make_report([record, other]).remarks() == []  # params is not one of their objectives
    other.manifest["reference"] |= {"macs": 2_000_000}
    (remark,) = make_report([record, other]).remarks()
    assert (
        "cannot be compared: their levels of training, or the largest costs of their named networks, differ" in remark
        and "(s: macs 250,000,000; t: macs 2,000,000)" in remark
    )
    timed = fill(tmp_path, 3, name="u", objectives="accuracy,macs,latency")
    (remark,) = make_report([record, timed]).remarks()
    assert "s: latency –; u: latency 3" in remark


def test_the_hypervolume_is_that_of_the_front_shown() -> None:
    search = make_search()
    (short,) = make_report([search]).studies
    make_finals(search, {"dense-x0.25": (0.95, 0.97), "nin-c3-lr": (0.9,)})
    (full,) = make_report([search]).studies
    assert (short.level, full.level) == ("short", "full")
    assert full.best == pytest.approx(0.96) and len(full.front) == 1
    assert full.hypervolume == pytest.approx(0.96 * (1 - full.front[0].trial.macs / 2e7))
    assert full.to_dict()["hypervolume"] == full.hypervolume == search.hypervolume()
    assert short.hypervolume == full.history[-1].volume == search.hypervolume("short") != full.hypervolume
    other = replace(make_search(), name="t")
    (remark,) = make_report([search, other]).remarks()
    assert "(s: level full; t: level short)" in remark


def test_finals_and_verdicts_are_shown(record: Study) -> None:
    report = make_report([record], retrained=[some_finals(record)])
    data = report.to_dict()
    (one,) = data["tested"]
    assert (one["name"], one["study"], one["recipe"], one["left"]) == ("s@paper", "s", "paper", 5)
    head = "s@paper, on cifar10: 3 of 4 networks tested; 5 runs not done; not shown: s@other."
    assert one["head"] == head
    judged = judge(report.tested[0].retrained.finals)
    assert [verdict["sentence"] for verdict in one["verdicts"]] == [str(verdict) for verdict in judged]
    assert data["test"].startswith("Welch's t-test")
    first, second, *others = one["finals"]
    assert first["mean"] == pytest.approx(0.92) and first["deviation"] == pytest.approx(0.02645, abs=1e-4)
    assert second["deviation"] is None and [other["mean"] is None for other in others] == [False, True]
    assert report.remarks() == [] and pack(data)


def test_retrainings_are_kept_apart(record: Study) -> None:
    two = [some_finals(record, "paper"), some_finals(record, "fast", epochs=10)]
    report = make_report([record, record], retrained=two)
    assert [one["name"] for one in report.to_dict()["tested"]] == ["s@paper", "s@fast"]
    (remark,) = report.remarks()
    assert "different recipes or data" in remark and "(s@paper: epochs 160; s@fast: epochs 10)" in remark
    assert make_report([record, record], retrained=[two[0], two[0]]).remarks() == []


def test_a_remark_lists_differences_between_retrainings(record: Study) -> None:
    folder = replace(some_finals(record, "mine", lr=0.1), data="ab12+cd34", data_name="photos")

    def remarks(**other: Any) -> list[str]:
        second = replace(folder, study="t", **other)
        return make_report([record, replace(record, name="t")], retrained=[folder, second]).remarks()

    (remark,) = remarks(fields={"epochs": 160, "lr": 0.05})
    assert "(s@mine: lr 0.1; t@mine: lr 0.05)" in remark
    (remark,) = remarks(data="ef56+cd34")  # folders of one name
    assert "(s@mine: data photos (ab12+cd34); t@mine: data photos (ef56+cd34))" in remark
    assert remarks(data_name="pictures") == []  # the same images, in a folder of another name


def test_networks_are_named_by_trial_and_have_their_share_of_the_dense_networks_macs(report: Report) -> None:
    (study,) = report.to_dict()["studies"]
    dense = study["dense"]
    assert dense["name"] == "nin" and study["dense_widths"]["conv1"] == (192, "nin")
    for network in study["networks"]:
        assert network["name"] == (network["point"] or f"trial {network['number']}")
        assert network["share"] == network["macs"] / dense["macs"]
    assert next(network for network in study["networks"] if network["name"] == "nin")["share"] == 1


def test_the_status_of_a_network_is_told_in_words(report: Report) -> None:
    network = report.studies[0].networks[0]

    def told(status: str, reason: str = "") -> str:
        return replace(network, trial=replace(network.trial, status=status, reason=reason)).status

    assert told("completed") == "trained" and told("stopped", "at rung 3") == "stopped early"
    assert told("limit", "beyond max_macs") == "not trained: more MACs than the limit"
    both = "not trained: fewer MACs than the limit, more parameters than the limit"
    assert told("limit", "beyond max_params, min_macs") == both
    limits = Limits(max_macs=1, min_macs=3, max_params=1, max_latency=1)
    assert set(limits.excess({"macs": 2, "params": 2, "latency": 2})) == set(LIMITS)  # there are words for each limit


def test_the_front_of_a_report_is_that_of_the_finals() -> None:
    search = make_search()
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.97,)})
    report = make_report([search, make_search()])
    assert [network.name for network in report.studies[0].front] == ["lr-x0.25"]
    study, plain = report.to_dict()["studies"]
    assert [network["name"] for network in study["networks"] if network["on_final_front"]] == ["lr-x0.25"]
    assert not any(network["on_final_front"] for network in plain["networks"])
    for networks in (study["networks"], plain["networks"]):  # beside the accuracies of the search is their own front
        short = [network["name"] for network in networks if network["on_front"]]
        assert short == ["lr-x0.25", "dense-x0.25", "nin-c3-lr"]


def test_layers_and_importances_are_computed_only_when_used(record: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("lrnas.reporting.report._find_importances", refuse)
    monkeypatch.setattr("lrnas.reporting.report.lay_out", refuse)
    (study,) = make_report([record]).studies
    assert study.history and study.front
    with pytest.raises(AssertionError):
        _ = study.importances
    with pytest.raises(AssertionError):
        _ = study.front[0].layers


def test_images_that_were_left_out_are_counted() -> None:
    study = make_search()
    assert not any("could not be read" in remark for remark in make_report([study]).remarks())
    keep_unreadable(study.optuna_study, 1_200)
    remark = "s: images that could not be read and were left out: 1,200 (`lrnas data` lists them)."
    assert study.unreadable_images == 1_200 and remark in make_report([study]).remarks()
    keep_unreadable(study.optuna_study, 0)  # they were repaired
    assert study.unreadable_images == 0
