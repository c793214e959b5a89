"""Names of networks in studies, such as STUDY:TRIAL."""

from dataclasses import replace
from pathlib import Path

import pytest
from retrainings import enqueue, finish, retraining
from small_studies import LEVELS, SPACE, make_finals, make_proposals, make_search

from lrnas.errors import LrnasError, UnknownName
from lrnas.searching.finals import open_levels
from lrnas.searching.retrain import _choose
from lrnas.study.references import check_no_study, find_network
from lrnas.study.study import ImageShape


def test_trials_by_number_and_by_name(tmp_path: Path) -> None:
    make_search(tmp_path / "s")
    names = {"s:1": 1, "s:best": 2, "s:nin-c3-lr": 2, "s:dense-x0.5": 3}
    for source, number in names.items():
        found = find_network(source, tmp_path)
        assert found is not None and found.trial.number == number and found.name == f"s:{number}"
        assert found.study.image_shape == ImageShape(8, 1, 10)
        again = find_network(f"s:{found.trial.identity}", tmp_path)
        assert again is not None and again.trial == found.trial
    with pytest.raises(UnknownName, match="unknown network of s 'my net/2'"):  # a name that a space file may contain
        find_network("s:my net/2", tmp_path)
    for other in ("nin", "timm:resnet18", "a/b:1", "s:"):
        assert find_network(other, tmp_path) is None
    check_no_study("nin", tmp_path)


def test_the_best_network_is_the_papers_only_if_none_found_is_as_accurate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = make_search(tmp_path / "s")

    def best() -> tuple[str | None, str]:
        caplog.clear()
        with caplog.at_level("INFO", "lrnas"):
            found = find_network("s:best", tmp_path)
        assert found is not None
        return found.trial.point or search.trials[found.trial.number].point, caplog.text

    name, told = best()
    assert name == "nin-c3-lr"
    assert "s:best is nin-c3-lr, a reference network: the best that the search found, s:1, has 80.00 %" in told
    finals = make_finals(search, {"nin-c3-lr": (0.95, 0.97), "dense-x0.25": (0.94, 0.95)})
    name, told = best()
    assert name == "nin-c3-lr" and "the best that the search found, s@finals:dense-x0.25, has 94.50 %" in told
    make_finals(search, {"lr-x0.25": (0.96, 0.96)})
    found = find_network("s:best", tmp_path)
    assert found is not None and finals.optuna_trial(found.trial.number).user_attrs["trial"] == 0  # as accurate
    number = found.trial.number
    assert (found.name, found.label) == (f"s@finals:{number} (lr-x0.25)", f"s-lr-x0.25-finals-{number}")
    for name in ("0", "lr-x0.25"):  # the full training, as `lrnas front` shows it, not the short one
        assert find_network(f"s:{name}", tmp_path).name == found.name  # type: ignore[union-attr]
    assert find_network("s:3", tmp_path).study.name == "s"  # type: ignore[union-attr]  # not trained in full
    odd = replace(found, trial=replace(found.trial, point="my net/2"))
    assert odd.label == f"s-my-net-2-finals-{number}"  # a name that a space file may contain
    unnamed = replace(found, trial=replace(found.trial, point=None, trial=74))
    assert unnamed.name == f"s@finals:{number} (trial 74)" and unnamed.label == f"s-trial-74-finals-{number}"


def test_of_equally_accurate_networks_the_best_is_not_the_papers() -> None:
    proposals = make_proposals()
    proposals.enqueue({name: SPACE.points[name] for name in ("nin-c3-lr", "nin")})
    space = proposals.study.manifest["space"]
    space["points"] = {"nin-c3-lr": space["points"]["nin-c3-lr"]}
    for _ in range(2):
        proposal = proposals.ask()
        assert proposal is not None
        proposals.ledger.report_epoch(proposal.number, [0.9], 1.0)
        proposals.ledger.complete(proposal.number, 0.9)
    assert proposals.study.best().point == "nin"  # although it costs more


def test_a_retrained_network_means_the_run_of_its_first_seed(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    runs = retraining(study)
    enqueue(runs, _choose(study, (0,), False, True), range(1, 3))
    for _ in range(6):  # four networks: all with the first seed, two with the second
        finish(runs, 0.9)
    numbers = {name: find_network(f"s@fast:{name}", tmp_path).trial.number for name in ("nin", "nin-c3-lr")}  # type: ignore[union-attr]
    for name, number in numbers.items():
        attributes = runs.study.optuna_trial(number).user_attrs
        assert attributes["point"] == name and attributes["seed"] == 1
    assert find_network("s@fast:5", tmp_path).trial.number == 5  # type: ignore[union-attr]
    with pytest.raises(UnknownName, match="unknown network of s@fast 'nim'; did you mean nin"):
        find_network("s@fast:nim", tmp_path)
    with pytest.raises(LrnasError, match="nothing is chosen by test accuracy"):
        find_network("s@fast:best", tmp_path)


def test_the_number_of_a_trial_is_not_that_of_a_run(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    runs = retraining(study)
    enqueue(runs, _choose(study, (3,), False, False), range(1, 2))
    finish(runs, 0.9)
    with pytest.raises(LrnasError, match=r"^s@fast has no run 3; its last run is 0; trial 3 is s@fast:dense-x0.5; `"):
        find_network("s@fast:3", tmp_path)


def test_levels_without_a_run_are_not_suggested(tmp_path: Path) -> None:
    open_levels(make_search(tmp_path / "s"), LEVELS)
    with pytest.raises(LrnasError, match=r"the storage has no study 's@fast'; known: s$"):
        find_network("s@fast:0", tmp_path)


def test_a_network_without_a_finished_run(tmp_path: Path) -> None:
    study = make_search(tmp_path / "s")
    runs = retraining(study)
    enqueue(runs, _choose(study, (0,), False, True), range(1, 2))
    with pytest.raises(LrnasError, match="s@fast has no finished run of nin-c3; name another network"):
        find_network("s@fast:nin-c3", tmp_path)
