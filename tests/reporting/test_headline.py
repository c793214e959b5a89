"""The result of a study in one sentence, and the best few networks."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from filled_studies import fill_study
from retrainings import FOUND, retrain_by_hand
from small_studies import SPACE, cost, make_finals, make_proposals, make_search, train_some

from lrnas.models.plan import make_plan
from lrnas.reporting.headline import LIMITS, best_few, make_headline, make_headlines
from lrnas.reporting.report import StudyReport, make_report
from lrnas.study.retrained import Final, Retrained
from lrnas.study.study import Study

EPOCH = {"epochs": 1}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder: Path = tmp_path_factory.mktemp("studies")
    return fill_study(folder, 30, storage=f"journal:{folder / 'journal'}", stopped=0.0)


@pytest.fixture(scope="module")
def study(record: Study) -> StudyReport:
    return make_report([record]).studies[0]


def with_accuracies(study: StudyReport, accuracies: dict[str, float], others: float) -> StudyReport:
    """The study with made-up accuracies of networks, by name."""
    networks = tuple(
        replace(one, trial=replace(one.trial, accuracy=accuracies.get(one.name, others))) for one in study.networks
    )
    return replace(study, networks=networks)


def test_the_cheapest_network_that_is_as_accurate_as_the_dense_one(study: StudyReport) -> None:
    found = {one.name: one for one in study.networks if not one.is_reference}
    cheap, dear, *_ = sorted(found, key=lambda name: found[name].trial.macs)
    changed = with_accuracies(study, {"nin": 0.9815, cheap: 0.9861, dear: 0.99}, others=0.5)
    headline = make_headline(changed, "macs")
    share = found[cheap].trial.share
    assert headline is not None and share is not None and share < 0.1
    told = f"98.61 % at {share:.3f} of nin's MACs ({cheap}); nin has 98.15 %. "
    told += "Validation images after 9 epochs of training, one seed."
    assert str(headline) == told and headline.trial == found[cheap].trial.number


def test_the_most_accurate_cheaper_network_if_none_is_as_accurate(study: StudyReport) -> None:
    dense = study.study.dense_macs
    assert dense is not None
    found = {one.name: one for one in study.networks if not one.is_reference}
    dear = max(found, key=lambda name: found[name].trial.macs)
    half = min(found, key=lambda name: abs(found[name].trial.macs - dense / 2))
    changed = with_accuracies(study, {"nin": 0.98, half: 0.97, "nin-c3": 0.975, dear: 0.979}, others=0.5)
    networks = tuple(
        replace(one, trial=replace(one.trial, macs=2 * dense)) if one.name == dear else one for one in changed.networks
    )
    changed = replace(changed, networks=networks)
    headline = make_headline(changed, "macs")  # not the paper's nin-c3, and not a more expensive one
    assert headline is not None and headline.network == half and headline.rest.startswith("; nin has 98.00 %.")
    assert "of nin's parameters (trial" in str(make_headline(changed, "params"))
    assert str(make_headline(changed, "latency")) == str(headline)  # latencies are not known


def test_a_dense_network_that_was_not_trained() -> None:
    (study,) = make_report([make_search()]).studies
    dense = cost(SPACE.points["nin"])["macs"]
    told = (
        f"80.00 % at {study.networks[1].trial.macs / dense:.3f} of nin's MACs (dense-x0.25); "
        f"nin-c3-lr has 90.00 % at {study.networks[2].trial.macs / dense:.3f}, nin itself was not trained. "
    )
    told += "Validation images after 20 epochs of training, one seed."
    assert str(make_headline(study, "macs")) == told  # none is as accurate
    better = with_accuracies(study, {"lr-x0.25": 0.9, "nin-c3-lr": 0.89}, others=0.95)
    assert "90.00 %" in str(make_headline(better, "macs"))  # the cheapest
    (empty,) = make_report([make_proposals().study]).studies
    assert make_headline(empty, "macs") is None and best_few(empty, "macs") == []


def test_a_space_without_a_dense_network() -> None:
    search = train_some(make_proposals()).study
    space = search.manifest["space"] | {"baseline": None, "seeds": {}}
    search.manifest["space"] = space
    (study,) = make_report([search]).studies
    study = with_accuracies(study, {"dense-x0.25": 0.8, "lr-x0.25": 0.7, "nin-c3-lr": 0.6}, others=0.5)
    macs = study.networks[1].trial.macs
    told = f"80.00 % with {macs:,} MACs (dense-x0.25), chosen by validation accuracy among 3 of 4 networks trained. "
    told += "Validation images after 20 epochs of training, one seed."
    assert str(make_headline(study, "macs")) == told
    assert study.networks[1].to_dict()["share"] is None and study.to_dict()["dense"] is None


def test_finals_count_instead_of_short_trainings() -> None:
    search = make_search()
    make_finals(search, {"dense-x0.25": (0.95, 0.96), "dense-x0.5": (0.97,)})
    (study,) = make_report([search]).studies
    share = study.networks[3].trial.macs / cost(SPACE.points["nin"])["macs"]
    told = f"97.00 % at {share:.3f} of nin's MACs (dense-x0.5), the most accurate of 2 networks; "
    assert str(make_headline(study, "macs")) == f"{told}nin itself was not trained. Validation images, one seed."
    assert best_few(study, "macs") == [1, 3]  # all of a small front, cheapest first


def test_tests_count_most_and_say_whether_the_difference_is_noise(record: Study) -> None:
    retrained = retrain_by_hand(record)
    report = make_report([record], retrained=[retrained])
    (headline,) = make_headlines(report)
    assert headline is not None and headline.trial == FOUND
    told = "94.70 ± 0.10 % at 0.031 of nin's MACs (trial 7); nin has 90.50 ± 0.50 %. Test images, 3 seeds each, "
    told += "after 160 epochs of training."
    assert str(headline) == f"{told} The difference is larger than the noise between seeds."
    near = tuple(
        replace(final, accuracies=(0.90, 0.91)) if final.trial == FOUND and final.accuracies else final
        for final in retrained.finals
    )
    (headline,) = make_headlines(make_report([record], retrained=[replace(retrained, finals=near)]))
    told = (
        "Test images, 2 and 3 seeds, after 160 epochs of training. No difference is shown: +0.00 points, 95 % interval "
    )
    assert re.search(re.escape(told) + r"-\d\.\d\d to \+\d\.\d\d\.$", str(headline))


@pytest.mark.parametrize("with_paper", [False, True])
def test_no_network_is_chosen_by_test_images(record: Study, with_paper: bool) -> None:
    """Without a verdict on the dense network, validation accuracies choose, and test accuracies are only shown."""
    report = make_report([record])
    trials = {one.name: one.trial for one in report.studies[0].networks}
    random = [trial for trial in trials.values() if trial.point is None]
    cheap, dear, *_ = sorted(random, key=lambda trial: trial.macs)  # both cost less than nin-c3-lr
    validation = {cheap.title: 0.8, dear.title: 0.9, "nin-c3": 0.85, "nin-c3-lr": 0.95}
    test = {cheap.title: 0.92, dear.title: 0.91} | ({"nin-c3": 0.9, "nin-c3-lr": 0.7} if with_paper else {})
    finals = tuple(
        Final(trial.identity, "", trial.point, trial.number, trial.macs, trial.params, "paper", (0, 1), 2 * (accuracy,))
        for name, accuracy in test.items()
        for trial in [trials[name]]
    )
    (tested,) = make_report([record], retrained=[Retrained(record.name, "paper", EPOCH, "cifar10", finals)]).tested
    study = with_accuracies(report.studies[0], validation, others=0.99)
    headline = make_headline(study, "macs", tested)
    assert headline is not None and headline.trial == dear.number and headline.claim.startswith("91.00 ± 0.00 %")
    if with_paper:  # the paper's network is also the better one on validation images
        assert headline.rest.startswith("; nin-c3-lr has 70.00 ± 0.00 % at")
        told = "nin itself was not tested in this retraining. Test images, 2 seeds each, after 1 epoch of training. "
        told += "Chosen by validation accuracy."
    else:
        told = ", the most accurate of 2 networks on validation images; nin itself was not tested in this retraining. "
        told += "Test images, 2 seeds, after 1 epoch of training."
    assert headline.rest.endswith(told)


def retrained(search: Study, results: dict[str, float], recipe: dict[str, int] | None = None) -> Retrained:
    """Made-up test accuracies of networks of a search, over two seeds, by name."""
    trials = {trial.title: trial for trial in search.trials}
    finals = tuple(
        Final(
            trial.identity,
            "",
            None,
            trial.number,
            trial.macs,
            trial.params,
            "fast",
            (0, 1),
            2 * (accuracy,),
            known_as=name,
        )
        for name, accuracy in results.items()
        for trial in [trials[name]]
    )
    return Retrained(search.name, "fast", EPOCH | (recipe or {}), "digits", finals)


def test_all_tested_networks_count_also_those_without_finals() -> None:
    """The networks are compared by the short training, in which all of them were."""
    search = make_search()
    make_finals(search, {"lr-x0.25": (0.95, 0.96)})
    (alone,) = make_headlines(make_report([search]))
    assert "(lr-x0.25), the only one trained in full; nin itself was not" in str(alone)

    def told(**results: float) -> str:
        return str(make_headlines(make_report([search], retrained=[retrained(search, results)]))[0])

    both = told(**{"lr-x0.25": 0.91, "dense-x0.25": 0.89})
    assert both.startswith("89.00 ± 0.00 % at 0.067 of nin's MACs (dense-x0.25), the most accurate of 2 networks on ")
    one = told(**{"lr-x0.25": 0.91})
    assert one.startswith("91.00 ± 0.00 % at 0.030 of nin's MACs (lr-x0.25), the only one in this retraining; nin ")
    make_finals(search, {"dense-x0.25": (0.94, 0.94)})
    assert "(lr-x0.25), the most accurate of 2 networks" in told(**{"lr-x0.25": 0.91, "dense-x0.25": 0.89})


def test_tested_networks_without_a_validation_accuracy_count(record: Study) -> None:
    (study,) = make_report([record]).studies
    ended = replace(study.networks[-1], trial=replace(study.networks[-1].trial, status="stopped"))
    study = replace(study, networks=(*study.networks[:-1], ended))
    results = {study.networks[-2].name: 0.9, ended.name: 0.95}
    (tested,) = make_report([record], retrained=[retrained(record, results)]).tested
    headline = make_headline(study, "macs", tested)
    assert headline is not None and headline.claim.startswith("90.00")
    assert headline.rest.startswith(
        ", chosen by validation accuracy among 1 of 2 networks tested in this retraining; nin"
    )


def test_shares_after_tests_are_for_the_images_of_the_tests(record: Study) -> None:
    name = next(trial.title for trial in record.trials if trial.point is None)
    report = make_report([record], retrained=[retrained(record, {name: 0.9}, {"crop": 16})])
    dense = make_plan(SPACE.points["nin"], 16, 10, deployed=True).cost.macs
    share = report.tested[0].finals[0].macs / dense
    assert str(make_headlines(report)[0]).startswith(f"90.00 ± 0.00 % at {share:.3f} of nin's MACs")
    assert report.to_dict()["tested"][0]["finals"][0]["share"] == pytest.approx(share)


def test_tests_of_networks_that_the_search_did_not_train_choose_nothing(record: Study) -> None:
    (study,) = make_report([record]).studies
    final = Final("other", "", None, None, 1, 1, "paper", (0, 1), (0.99, 0.98))
    (tested,) = make_report([record], retrained=[Retrained(record.name, "paper", EPOCH, "cifar10", (final,))]).tested
    assert make_headline(study, "macs", tested) == make_headline(study, "macs")


def test_the_best_few_are_the_most_accurate_within_shares_of_the_dense_network(study: StudyReport) -> None:
    assert len(study.front) > len(LIMITS)
    dense = study.study.dense_macs
    assert dense is not None
    best = []
    for share in LIMITS:
        within = [one.trial for one in study.networks if one.trial.macs <= share * dense]
        best += [max(within, key=lambda trial: trial.accuracy or 0.0).number] if within else []
    assert best_few(study, "macs") == list(dict.fromkeys(best)) and 2 < len(set(best)) <= len(LIMITS)
    front = {network.trial.number for network in study.front}
    assert set(best) <= front
