"""Impossible limits are refused before training; for other limits, a network within them is found."""

import dataclasses
import random
from pathlib import Path

import pytest
from small_studies import SPACE, cost

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.errors import LrnasError
from lrnas.searching.feasible import find_feasible
from lrnas.study.manifest import StudyError
from lrnas.study.objectives import Costs, Limits

BARE = dataclasses.replace(SPACE, points={}, uniform={})
"""The same space without named networks."""


def random_costs(number: int) -> list[Costs]:
    generator = random.Random(1)
    costs = []
    for _ in range(number):
        try:
            costs.append(cost(SPACE.architecture(SPACE.draw(generator))))
        except LrnasError:
            continue
    return costs


def test_a_named_network_within_the_limits_is_enough() -> None:
    assert find_feasible(SPACE, Limits(), cost) is None
    assert find_feasible(SPACE, Limits(max_macs=int(cost(SPACE.points["nin-c3-lr"])["macs"])), cost) is None


@pytest.mark.parametrize(
    ("name", "tight"), [("max_macs", min), ("min_macs", max), ("max_params", min)], ids=["macs", "least", "params"]
)
def test_the_last_network_that_keeps_a_limit_is_found(name: str, tight: object) -> None:
    with pytest.raises(
        StudyError, match=f"no network of nin was found within .*; the closest one, nin.*; (raise|lower) `{name}`$"
    ) as refusal:
        find_feasible(BARE, Limits(**{name: 10 if tight is min else 10**12}), cost)
    kind = name.partition("_")[2]
    words = {"macs": "multiply-accumulates and", "params": "parameters;"}[kind]
    edge = int(str(refusal.value).partition(f" {words}")[0].split()[-1].replace(",", ""))
    others = [costs[kind] for costs in random_costs(300)]
    assert edge <= min(others) if tight is min else edge >= max(others)
    params = find_feasible(BARE, Limits(**{name: edge}), cost)
    assert params is not None and cost(BARE.architecture(params))[kind] == edge
    with pytest.raises(StudyError):
        find_feasible(BARE, Limits(**{name: edge - 1 if tight is min else edge + 1}), cost)


def test_the_closest_network_has_the_name_that_tables_show() -> None:
    with pytest.raises(StudyError, match=r"; the closest one, lr-x0\.25, has "):
        find_feasible(SPACE, Limits(max_macs=1), cost)
    with pytest.raises(StudyError, match=r"; the closest one, nin-[0-9a-f]{12}, has "):
        find_feasible(BARE, Limits(max_macs=1), cost)


def test_limits_that_contradict_each_other_are_all_named() -> None:
    with pytest.raises(StudyError, match=r"and `min_macs` 2,000,000; .*raise `max_macs` or lower `min_macs`"):
        find_feasible(SPACE, Limits(max_macs=1_000_000, min_macs=2_000_000), cost)


def test_exact_costs_decide_where_estimates_break_a_limit() -> None:
    def timed(factor: float) -> object:
        def of(architecture: Architecture) -> Costs:
            costs = cost(architecture)
            return {**costs, "latency": factor * costs["macs"] / 1e6}

        return of

    cheapest = min(cost(network)["macs"] for network in SPACE.uniform.values()) / 1e6
    limits = Limits(max_latency=1.5 * cheapest)
    params = find_feasible(SPACE, limits, timed(2.0), timed(1.0))
    assert params is not None and cost(SPACE.architecture(params))["macs"] / 1e6 == cheapest
    with pytest.raises(StudyError, match=r"`max_latency` [\d.]+; .*and takes \d\.\d{3} ms; raise `max_latency`"):
        find_feasible(SPACE, limits, timed(2.0), timed(2.0))


def test_a_search_with_impossible_limits_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(["search", "--space", "nin", "--data", "digits", "--budget", "2", "--max-macs", "1k"])
    assert code == 2 and "no network of nin was found within --max-macs 1,000;" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
