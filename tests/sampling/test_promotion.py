"""Which network is trained next at a later level, for networks that are made up."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lrnas.sampling.gain import Boxes
from lrnas.sampling.promotion import Contender, Measured, believe, mark_counting, pick_first, pick_full, pick_longer


def contender(name: str, macs: float, mean: float, *, paper: bool = False, begun: int = 0) -> Contender:
    return Contender(name, paper, (macs,), mean, 0.005, seconds=10.0, begun=begun)


PAPER = [contender("large", 100.0, 0.90, paper=True), contender("small", 50.0, 0.88, paper=True)]
FOUND = [contender("good", 40.0, 0.91), contender("cheap", 10.0, 0.85), contender("bad", 60.0, 0.80)]


def train_all(contenders: list[Contender], seconds: float, num_seeds: int) -> list[str]:
    """Names of the networks in the order in which they are trained; what is believed does not change."""
    order = []
    while (picked := pick_full(contenders, seconds, num_seeds)) is not None:
        order.append(picked.identity)
        seconds -= picked.seconds
        contenders = [replace(each, begun=each.begun + (each is picked)) for each in contenders]
        assert len(order) < 100
    return order


def test_the_papers_networks_come_first_and_a_rival_for_each_even_without_time() -> None:
    assert train_all(PAPER + FOUND, 0.0, 3) == ["large", "small", "good"]
    dear = [contender("dear", 90.0, 0.95), contender("cheap", 10.0, 0.85)]
    assert train_all(PAPER + dear, 0.0, 3) == ["large", "small", "dear", "cheap"]


def test_the_first_networks_are_rivals_of_the_most_expensive_and_the_cheapest_of_the_papers() -> None:
    middle = contender("middle", 70.0, 0.89, paper=True)
    dear, good, cheap = contender("dear", 90.0, 0.95), *FOUND[:2]
    everyone = [*PAPER, middle, dear, good, cheap]
    assert pick_first(everyone, 40.0) is dear and pick_first(everyone, 39.0) is None
    dear = replace(dear, begun=1, is_first=True)
    everyone = [*PAPER, middle, dear, good, cheap]
    assert pick_first(everyone, 40.0) is good
    everyone = [*PAPER, middle, dear, replace(good, begun=1, is_first=True, has_failed=True), cheap]
    assert pick_first(everyone, 40.0) is None  # no other network takes the place of one that failed
    assert pick_first(FOUND, 40.0) is None and pick_first(PAPER, 40.0) is None
    assert pick_first([PAPER[0], replace(good, begun=1)], 40.0) is None


def test_a_better_rival_than_the_first_networks_is_trained_and_then_no_other() -> None:
    paper = [replace(each, begun=3) for each in PAPER]
    first = replace(FOUND[0], begun=1, is_first=True)
    better, other = contender("better", 45.0, 0.92), contender("other", 46.0, 0.93)
    assert pick_full([*paper, first, FOUND[1]], 0.0, 3) is None
    assert pick_full([*paper, first, better], 0.0, 3) is better
    assert pick_full([*paper, first, replace(better, begun=1), other], 0.0, 3) is None


def test_all_seeds_of_the_paper_and_of_the_believed_front_are_trained_before_the_time_is_over() -> None:
    """No network is promoted if the time for the seeds of the front would be gone."""
    order = train_all(PAPER + FOUND, 120.0, 3)
    assert order == [*["large", "small", "good"], *["large", "small"] * 2, "cheap", *["good", "cheap"] * 2]
    assert train_all(PAPER + FOUND, 110.0, 3)[7:] == ["good", "good"]  # the seeds of "cheap" would not fit
    late = [replace(each, begun=3) for each in PAPER] + [replace(FOUND[0], begun=2)]  # runs took longer than expected
    assert pick_full(late, 0.0, 3) is None and pick_full(late, 0.0, 3, slack=9.0) is None
    assert pick_full(late, 0.0, 3, slack=10.0) is late[2]
    assert "bad" not in train_all(PAPER + FOUND, 1000.0, 3)  # it has no chance
    maybe = contender("maybe", 60.0, 0.905)
    assert train_all([*PAPER, *FOUND, maybe], 1000.0, 3).count("maybe") == 1  # a chance, but no more seeds


def test_networks_outside_the_part_that_is_searched_are_trained_only_as_rivals() -> None:
    outside = [replace(each, counts=False) for each in FOUND]
    assert train_all(PAPER + outside, 1000.0, 3).count("cheap") == 0
    assert set(train_all(PAPER + outside, 0.0, 3)) == {"large", "small", "good"}
    assert pick_longer([replace(each, begun=1) for each in PAPER] + outside, 1000.0) is None


def test_which_networks_are_in_the_part_that_is_searched() -> None:
    costs, means = np.array([each.costs for each in PAPER]), np.array([each.mean for each in PAPER])
    maybe, dear = contender("maybe", 30.0, 0.875), contender("dear", 101.0, 0.95)  # maybe has 0.885 at best
    some = [*FOUND, maybe, dear]
    marked = mark_counting(some, Boxes.around(costs, means, beat=None))
    assert [each.identity for each in marked if each.counts] == []  # all are cheaper or dearer than the paper's, or bad
    least = np.array([[10.0], [100.0]])
    marked = mark_counting(some, Boxes.around(least, np.array([0.8, 0.9]), beat=None))
    assert [each.identity for each in marked if each.counts] == ["good", "cheap", "bad", "maybe"]
    marked = mark_counting(some, Boxes.around(costs, means, beat=0.6))
    assert [each.identity for each in marked if each.counts] == ["good", "maybe"]
    # with two costs, a network is too cheap only if both are lower
    two = [replace(FOUND[0], costs=(30.0, 1.5)), replace(FOUND[0], costs=(5.0, 1.5))]
    boxes = Boxes.around(np.array([[20.0, 2.0], [100.0, 10.0]]), np.array([0.8, 0.9]), beat=None)
    assert [each.counts for each in mark_counting(two, boxes)] == [True, False]


def test_a_network_that_failed_gets_no_more_runs_and_another_one_takes_its_place() -> None:
    begun = [replace(each, begun=3) for each in PAPER]
    failed = replace(FOUND[0], begun=1, has_failed=True)
    picked = pick_full([*begun, failed, *FOUND[1:]], 0.0, 3)
    assert picked is not None and picked.identity == "cheap"
    diverged = replace(PAPER[0], begun=1, has_failed=True)
    picked = pick_full([diverged, begun[1], failed, replace(FOUND[1], begun=3)], 30.0, 3)
    assert picked is diverged  # the paper's networks get all their seeds


def test_without_networks_of_the_paper_the_most_accurate_one_is_first() -> None:
    assert train_all(FOUND, 90.0, 3) == ["good", "cheap", "good", "cheap", "good", "cheap"]
    assert pick_full([], 100.0, 3) is None and pick_longer([], 100.0) is None


def test_the_largest_gain_is_trained_longer_while_there_is_time() -> None:
    everyone = PAPER + FOUND
    picked = pick_longer(everyone, 10.0)
    assert picked is not None and picked.identity == "good"
    again = pick_longer([replace(each, begun=1) if each is picked else each for each in everyone], 10.0)
    assert again is not None and again.identity == "cheap"
    assert pick_longer(everyone, 9.0) is None


def test_three_of_the_papers_networks_are_trained_longer_first_if_they_do_not_take_most_of_the_time() -> None:
    paper = [replace(contender(f"paper {s}", 100.0, 0.9, paper=True), seconds=s) for s in (40.0, 10.0, 30.0, 20.0)]

    def order(seconds: float, number: int) -> list[str]:
        everyone, found = paper + FOUND, []
        while len(found) < number and (picked := pick_longer(everyone, seconds)) is not None:
            found.append(picked.identity)
            seconds -= picked.seconds
            everyone = [replace(each, begun=each.begun + (each is picked)) for each in everyone]
        return found

    assert order(1000.0, 9) == ["paper 10.0", "paper 20.0", "paper 30.0", "good", "cheap"]
    assert order(50.0, 9) == ["paper 10.0", "good", "cheap"]
    assert order(39.0, 9) == ["good", "cheap"]


def networks(random: np.random.Generator, number: int = 40) -> tuple[list[Measured], np.ndarray]:
    """Networks with short accuracies, and what full training would bring; cost and one parameter decide."""
    features = random.random((number, 2))
    macs = np.exp(random.uniform(0, 3, number))
    true = 0.80 + 0.02 * np.log(macs) + 0.03 * features[:, 0]
    short = 0.6 + 2 * (true - 0.8) + 0.004 * random.standard_normal(number)
    return [Measured(f, (c, c), ((a,), ())) for f, c, a in zip(features, macs, short, strict=True)], true


def test_what_is_believed_about_full_training_comes_from_all_levels() -> None:
    found, true = networks(np.random.default_rng(0))
    *_, is_full = believe(found, [0, 0])
    assert not is_full  # nothing was trained in full
    trained = [replace(each, accuracies=(each.accuracies[0], (float(true[i]),))) for i, each in enumerate(found[:8])]
    mean, deviation, is_full = believe(trained + found[8:], [0, 0])
    assert is_full
    errors = np.abs(mean - true)[8:]
    assert errors.max() < 0.01, "short accuracies, 0.2 lower, must not be taken for full ones"
    assert (errors < 3 * deviation[8:]).all() and deviation[8:].mean() < 0.02


def test_a_lucky_short_training_is_not_believed() -> None:
    """A network measured 2 points above what its parameters and costs suggest is believed less than a better one."""
    found, true = networks(np.random.default_rng(1))
    trained = [replace(each, accuracies=(each.accuracies[0], (float(true[i]),))) for i, each in enumerate(found[:8])]
    middle = np.array([0.5, 0.5])
    honest = Measured(np.array([0.9, 0.5]), (5.0, 5.0), ((0.6 + 2 * (0.02 * math.log(5) + 0.03 * 0.9),), ()))
    lucky = Measured(middle, (5.0, 5.0), ((honest.accuracies[0][0] + 0.001,), ()))  # 0.024 more than expected
    mean, *_ = believe([*trained, *found[8:], honest, lucky], [0, 0])
    assert mean[-2] > mean[-1]


@pytest.mark.parametrize("slope", [0.5, 0.9])
def test_a_lead_that_lasts_until_the_middle_level_is_believed_to_last(slope: float) -> None:
    """Only bad networks were trained in full; those at the middle level tell how much of a lead good ones keep."""
    random = np.random.default_rng(4)
    features, costs = random.random((60, 2)), np.exp(random.uniform(0, 1, 60))
    short = 0.80 + 0.04 * features[:, 0] + 0.01 * np.log(costs)
    longer, full = (base + slope * (short - 0.80) for base in (0.86, 0.90))
    order = np.argsort(features[:, 0])
    bad, good = set(order[:6]), set(order[-12:])

    def measure(level: np.ndarray, i: int) -> float:
        return float(level[i] + 0.001 * random.standard_normal())

    found = [
        Measured(
            features[i],
            (costs[i], costs[i]),
            (
                (measure(short, i),),
                (measure(longer, i),) if i in bad | good else (),
                (measure(full, i),) if i in bad else (),
            ),
        )
        for i in range(60)
    ]
    mean, *_ = believe(found, [0, 0])
    best = list(good)
    assert abs(float((mean - full)[best].mean())) < 0.003


def test_no_more_than_100_percent_are_promised() -> None:
    """Networks on the ceiling at the full level: a line through short accuracies would go beyond it."""
    found, _ = networks(np.random.default_rng(3))
    worst = int(np.argmin([each.accuracies[0][0] for each in found]))
    trained = [
        replace(each, accuracies=(each.accuracies[0], (0.99,))) if i == worst else each for i, each in enumerate(found)
    ]
    mean, *_ = believe(trained, [0, 0])
    assert mean.max() == 1.0


@pytest.mark.parametrize("number", [1, 2, 3])
def test_few_networks_are_enough(number: int) -> None:
    found, true = networks(np.random.default_rng(2), number)
    trained = [replace(each, accuracies=(each.accuracies[0], (float(true[i]),))) for i, each in enumerate(found)]
    mean, deviation, is_full = believe(trained, [0, 0])
    assert is_full and np.isfinite(mean).all() and (deviation > 0).all()
