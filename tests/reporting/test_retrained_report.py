"""Data of tested networks in a report: all numbers that the terminal shows, and verdicts in parts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filled_studies import fill_study
from retrainings import FOUND, retrain_by_hand

from lrnas.reporting import retrained_report as tested
from lrnas.study.retrained import Final
from lrnas.study.verdicts import judge


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> tested.Tested:
    folder: Path = tmp_path_factory.mktemp("studies")
    study = fill_study(folder, 12, storage=f"journal:{folder / 'journal'}")
    retrained = retrain_by_hand(study)
    return tested.Tested(retrained, tuple(judge(retrained.finals)), study.dense_cost)


def test_every_network_has_the_numbers_that_the_terminal_shows(again: tested.Tested) -> None:
    finals = {final["name"]: final for final in again.to_dict()["finals"]}
    assert len(finals) == len(again.retrained.finals) == len(again.finals) + 1
    last = finals["nin-c3-lr"]
    assert [last[name] for name in ("diverged", "failed", "open", "reason")] == [1, 2, 3, "out of memory"]
    assert (last["mean"], last["deviation"], last["is_reference"]) == (0.93, None, True)
    assert finals["nin"]["share"] == 1 and 0 < last["share"] < 1
    assert {final["trial"]: final["mark"] for final in finals.values() if final["mark"]} == {FOUND: "front"}
    assert [finals[name]["runs"] for name in ("nin", "nin-c3-lr", "other")] == [[0, 1, 2], [20], []]
    assert finals["other"]["mean"] is None and finals["other"]["trial"] is None
    without = replace(again, dense_cost=None).to_dict()["finals"]
    assert {final["share"] for final in without} == {None}


def test_verdicts_come_as_sentences_and_in_parts(again: tested.Tested) -> None:
    data = again.to_dict()
    assert data["headline"] == "Of 3 reference networks: 1 dominated, 1 no difference shown, 1 unknown."
    verdicts = {verdict["point"]: verdict for verdict in data["verdicts"]}
    nin = verdicts["nin"]
    assert (nin["kind"], nin["rival"], nin["trial"]) == ("dominated", f"trial {FOUND}", FOUND)
    assert nin["difference"] == pytest.approx(0.042) and nin["shares"] == pytest.approx({"macs": 0.031}, abs=5e-4)
    assert nin["interval"][0] < 0.042 < nin["interval"][1] and 0 < nin["p"] < 0.05
    matched = verdicts["nin-c3"]
    assert matched["p"] is None and matched["note"].startswith("as far as 2 runs tell; of the networks that cost no")
    for verdict in verdicts.values():
        assert verdict["sentence"].startswith(verdict["point"]) and verdict["point"] not in verdict["note"]


def test_a_network_on_the_front_by_fewer_runs_is_marked(again: tested.Tested) -> None:
    finals = list(again.retrained.finals)
    (at,) = (i for i, final in enumerate(finals) if final.trial == FOUND and final.accuracies)
    finals[at] = replace(finals[at], accuracies=finals[at].accuracies[:2])
    one = replace(again, retrained=replace(again.retrained, finals=tuple(finals)))
    assert [final["mark"] for final in one.to_dict()["finals"] if final["mark"]] == ["front by fewer runs"]


def test_table_and_sentence_show_the_same_p_value(again: tested.Tested) -> None:
    """The interval of the best of ten is above zero, but the corrected p-value shows no difference."""
    first = again.retrained.finals[0]
    accuracies = {"rival": (0.925, 0.935, 0.945)} | {f"o{i}": (0.88, 0.90, 0.92 + i / 1000) for i in range(9)}
    found = [replace(first, identity=name, point=None, accuracies=values) for name, values in accuracies.items()]
    point = replace(first, identity="p", point="nin", macs=2 * first.macs, accuracies=(0.90, 0.91, 0.92))

    def told(*finals: Final) -> dict[str, Any]:
        (data,) = tested.Tested(again.retrained, tuple(judge([point, *finals]))).to_dict()["verdicts"]
        return data

    among, alone, near = told(*found), told(found[0]), told(*found[1:])
    assert among["kind"] == "no difference shown" and among["interval"][0] > 0
    assert f"corrected p = {among['p']:.3f}, of 10 compared" in among["sentence"]
    assert among["note"] == "as far as 3 runs tell; p is corrected over the 10 compared"
    assert alone["kind"] == "dominated" and alone["p"] == pytest.approx(among["p"] / 10)
    assert "corrected" not in alone["note"]
    assert near["kind"] == "no difference shown" and near["interval"][0] < 0
    assert near["p"] is None and near["note"] == "as far as 3 runs tell"  # the interval alone decides


def test_a_verdict_without_a_rival_says_why(again: tested.Tested) -> None:
    points = tuple(final for final in again.retrained.finals if final.point is not None)
    (first, *_) = tested.Tested(again.retrained, tuple(judge(points))).to_dict()["verdicts"]
    assert (first["kind"], first["rival"]) == ("unknown", None)
    assert first["note"] == "no found network that costs no more was retrained; 1 of its 2 runs diverged"


def test_a_headline_counts_a_single_network(again: tested.Tested) -> None:
    headline = tested.Tested(again.retrained, again.verdicts[:1]).headline
    assert headline == f"Of 1 reference network: 1 {again.verdicts[0].kind}."


def test_a_headline_says_that_there_is_nothing_to_compare_with(again: tested.Tested) -> None:
    told = "No reference network was trained in this retraining: there is nothing to compare with."
    assert tested.Tested(again.retrained, ()).headline == told
    told = "No reference network is in the space: there is nothing to compare with."
    assert tested.Tested(replace(again.retrained, has_points=False), ()).headline == told
