"""Verdicts on the paper's networks, from constructed accuracies."""

import math
from dataclasses import replace

import pytest

from lrnas.study.retrained import Final, final_front, front_marks
from lrnas.study.verdicts import TEST, Verdict, judge


def final(identity: str, macs: int, *accuracies: float, point: str | None = None, trial: int | None = None) -> Final:
    return Final(identity, '{"backbone": "nin"}', point, trial, macs, 1, "paper", (1,) * len(accuracies), accuracies)


def verdict(*finals: Final) -> Verdict:
    (found,) = judge(finals)
    return found


POINT = final("p", 100, 0.90, 0.91, 0.92, point="paper-net")


def test_dominated_by_the_cheapest_that_is_better_beyond_noise() -> None:
    cheap = final("cheap", 20, 0.95, 0.96, 0.97, trial=7)
    best = final("best", 80, 0.98, 0.985, 0.99)
    dear = final("dear", 101, 0.999, 0.998, 0.997)
    found = verdict(POINT, best, cheap, dear)
    assert (found.kind, found.rival, found.share, found.compared) == ("dominated", cheap, 0.2, 2)
    assert found.difference == pytest.approx(0.05)
    # t = 0.05 / sqrt(2 * 0.01² / 3) = 6.124, 4 degrees of freedom: p = 0.0018, the larger of two, so corrected by 1
    assert found.p == pytest.approx(0.00180, abs=2e-5)
    # 2.776 * sqrt(2 * 0.01² / 3) on either side
    assert found.interval == pytest.approx((0.05 - 0.02267, 0.05 + 0.02267), abs=2e-5)
    assert str(found) == (
        "paper-net: dominated by trial 7 at 0.200 of its MACs: +5.00 points, 95 % interval +2.73 to +7.27, "
        "corrected p = 0.002, of 2 compared."
    )


def test_a_rival_with_equal_macs_costs_no_more() -> None:
    assert verdict(POINT, final("same", 100, 0.95, 0.96, 0.97)).kind == "dominated"


def test_rivals_cost_no_more_in_any_objective_of_the_search() -> None:
    large = replace(final("large", 20, 0.95, 0.96, 0.97), params=300)
    small = replace(final("small", 150, 0.95, 0.96, 0.97), params=50)
    both = replace(final("both", 60, 0.95, 0.96, 0.97), params=80)
    point = replace(POINT, params=100)

    def judged(*costs: str) -> Verdict:
        return verdict(*(replace(final, costs=costs) for final in (point, large, small, both)))

    found = judged("macs")
    assert found.rival is not None and (found.rival.identity, found.shares) == ("large", {"macs": 0.2})
    found = judged("params")
    assert found.rival is not None and (found.rival.identity, found.share, found.compared) == ("small", 1.5, 2)
    assert "dominated by small at 0.500 of its parameters: +5.00 points" in str(found)
    found = judged("params", "macs")
    assert found.rival is not None and (found.rival.identity, found.compared) == ("both", 1)
    assert "dominated by both at 0.800 of its parameters and 0.600 of its MACs: " in str(found)
    assert found.to_dict()["shares"] == {"params": 0.8, "macs": 0.6} and found.to_dict()["share"] == 0.6
    found = judged("latency")
    assert "dominated by large at 0.200 of its MACs: " in str(found)
    assert str(found).endswith("; latency was not compared.") and found.not_compared == ("latency",)
    alone = verdict(replace(point, costs=("params", "latency")))
    assert str(alone) == (
        "paper-net: unknown, no found network that costs no more was retrained; latency was not compared."
    )


def test_many_candidates_must_be_better_by_more() -> None:
    """By Holm's method, a difference that is significant in one comparison may not be significant among many."""
    rival = final("rival", 50, 0.925, 0.935, 0.945)
    alone = verdict(POINT, rival)
    assert alone.kind == "dominated" and alone.p is not None and 0.01 < alone.p < 0.025
    assert str(alone).endswith(f", p = {alone.p:.3f}.")
    others = [final(f"o{i}", 40, 0.88, 0.90, 0.92 + i / 1000) for i in range(9)]
    among = verdict(POINT, rival, *others)
    assert (among.kind, among.rival, among.compared) == ("no difference shown", rival, 10)
    assert among.p == pytest.approx(10 * alone.p)
    assert (
        among.interval is not None and among.interval[0] > 0
    )  # alone it would be better; the verdict says why this is not enough
    assert str(among).endswith(f"+4.77, corrected p = {among.p:.3f}, of 10 compared.")


@pytest.mark.parametrize("shift", [step / 1000 for step in range(-40, 41)])
def test_one_comparison_and_its_interval_say_the_same(shift: float) -> None:
    found = verdict(POINT, final("rival", 50, *(accuracy + shift for accuracy in POINT.accuracies)))
    assert found.interval is not None
    low, high = found.interval
    assert found.kind == ("dominated" if low > 0 else "not reached" if high < 0 else "no difference shown")


def test_no_difference_shown_and_not_reached() -> None:
    near = final("near", 50, 0.895, 0.905, 0.93)
    found = verdict(POINT, near, final("far", 40, 0.5, 0.51, 0.52))
    assert (found.kind, found.rival) == ("no difference shown", near)
    assert found.interval is not None and found.interval[0] < 0 < found.interval[1]
    assert "no difference shown between it and near at 0.500 of its MACs, as far as 3 runs tell: " in str(
        found
    ) and "p =" not in str(found)
    behind = verdict(POINT, final("far", 40, 0.5, 0.51, 0.52))
    assert behind.kind == "not reached" and behind.p is not None and behind.p < 0.001
    assert "not reached; the best that costs no more is far at 0.400 of its MACs: -40.00 points" in str(behind)
    nothing = verdict(POINT, final("dear", 101, 0.99, 0.99))
    assert (nothing.kind, nothing.rival) == ("unknown", None)
    assert str(nothing) == "paper-net: unknown, no found network that costs no more was retrained."


def test_one_seed_gives_no_verdict() -> None:
    for point, rival in ((final("p", 100, 0.9, point="n"), final("r", 50, 0.95, 0.96)), (POINT, final("r", 50, 0.96))):
        found = verdict(point, rival)
        assert (found.kind, found.p, found.interval) == ("unknown", None, None)
        assert found.difference == pytest.approx(rival.mean - point.mean)
        assert "no verdict, the noise between seeds is unknown; r at 0.500" in str(found)


def test_a_better_rival_with_a_single_run_leaves_the_verdict_open() -> None:
    """Its noise is unknown, but it may be the best network that costs no more."""
    behind = final("behind", 40, 0.80, 0.81, 0.82)
    beaten, ahead = final("beaten", 20, 0.79), final("ahead", 30, 0.95)
    told = verdict(POINT, behind, beaten)
    assert (told.kind, told.rival, told.single, told.compared) == ("not reached", behind, 1, 1)
    assert str(told).endswith("networks that cost no more, 1 tested by one run.") and told.to_dict()["single"] == 1
    for best in (
        behind,
        final("near", 40, 0.895, 0.905, 0.93),
    ):  # without the single run: not reached, then no difference
        found = verdict(POINT, best, beaten, ahead, final("waits", 10))
        assert (found.kind, found.rival, found.p, found.interval) == ("unknown", ahead, None, None)
        assert (found.compared, found.runs, found.single, found.untested) == (1, 1, 2, 1)
        assert "no verdict, the noise between seeds is unknown; ahead at 0.300 of its MACs: +4.00 points" in str(found)
        assert str(found).endswith("; of the networks that cost no more, 1 not tested and 2 tested by one run.")
    better = final("better", 50, 0.94, 0.945, 0.95)
    assert (verdict(POINT, better, ahead).kind, verdict(POINT, better, ahead).rival) == ("dominated", better)
    tie = final("tie", 30, better.mean)
    assert verdict(final("p", 100, 0.945, 0.95, point="n"), better, tie).rival == better


def test_ties_and_runs_with_equal_accuracies() -> None:
    """Equal accuracies do not mean that there is no noise: a test set has a finite number of images."""
    tie = verdict(POINT, final("tie", 50, 0.90, 0.91, 0.92))
    assert tie.kind == "no difference shown" and tie.difference == pytest.approx(0)
    still = verdict(final("p", 100, 0.9, 0.9, point="n"), final("r", 50, 0.95, 0.95))
    assert (still.kind, still.p, still.interval) == ("unknown", None, None)
    assert still.difference == pytest.approx(0.05)
    assert "all runs of each network gave the same accuracy, so the noise is unknown; r" in str(still)
    same = verdict(final("p", 100, 0.9, 0.9, 0.9, point="n"), final("r", 50, 0.9, 0.9))
    assert (same.kind, same.p, same.interval) == ("no difference shown", 1.0, None)
    far = final("far", 40, 0.5, 0.51)  # its runs differ, but it is not the best
    assert verdict(final("p", 100, 0.9, 0.9, point="n"), final("r", 50, 0.95, 0.95), far).kind == "unknown"
    half = verdict(final("p", 100, 0.9, 0.9, 0.9, point="n"), final("r", 50, 0.95, 0.951, 0.952))  # no warnings either
    assert half.kind == "dominated"


def test_other_networks_of_the_paper_are_no_rivals() -> None:
    other = final("q", 10, 0.99, 0.991, 0.992, point="better-paper-net", trial=3)  # even if it is also a trial
    found = judge([POINT, other])
    assert [(verdict.point, verdict.kind) for verdict in found] == [
        ("better-paper-net", "unknown"),
        ("paper-net", "unknown"),
    ]


def test_diverged_runs_are_ignored() -> None:
    lost = final("lost", 10)
    broken = final("broken", 50, 0.95, math.nan, 0.96, 0.97)
    found = verdict(POINT, lost, broken)
    assert (found.kind, found.rival, found.compared, found.runs) == ("dominated", broken, 1, 3)
    gone = verdict(final("p", 100, math.nan, point="n"), broken)
    assert (gone.kind, gone.rival) == ("unknown", None)
    assert str(gone) == "n: unknown, no run of it was tested."
    assert [final.identity for final in final_front([lost, POINT, broken])] == ["p"]
    assert broken.deviation is None and broken.numbers() == {"mean": None, "sd": None, "n": 4}


def test_a_verdict_says_if_its_rival_is_a_uniform_network() -> None:
    """Every search begins with it, so it is not a success of the search."""
    better = (0.96, 0.97, 0.98)
    remark = "lr-x0.25 is a uniform network, with which every search begins"
    found = verdict(POINT, replace(final("s", 50, *better, trial=3), known_as="lr-x0.25"))
    assert found.kind == "dominated" and found.remarks() == [remark] and str(found).endswith(f"; {remark}.")
    assert not verdict(POINT, final("t", 50, *better, trial=9)).remarks()


def test_verdicts_mention_diverged_runs() -> None:
    """The mean of the other runs alone would hide them."""
    lucky = replace(final("lucky", 50, 0.95, 0.96), diverged=8)
    shaky = replace(POINT, diverged=1)
    found = verdict(shaky, lucky)
    assert str(found).endswith("; 1 of its 4 runs diverged; 8 of the 10 runs of lucky diverged.")
    assert found.final == shaky and (found.to_dict()["diverged"], found.to_dict()["rival_diverged"]) == (1, 8)
    assert "diverged" not in str(verdict(POINT, final("sound", 50, 0.95, 0.96)))
    gone = replace(final("gone", 10), diverged=3)
    none = verdict(POINT, gone, replace(gone, identity="waits", open=1))
    assert (none.kind, none.untested, none.gone) == ("unknown", 2, 1)
    assert str(none) == "paper-net: unknown, none of the 2 that cost no more was tested; 1 diverged in every run."
    some = verdict(POINT, gone, final("waits", 10), final("far", 40, 0.5, 0.51, 0.52))
    assert str(some).endswith("; of the networks that cost no more, 1 not tested and 1 diverged in every run.")
    lost = verdict(replace(final("p", 100, point="n"), diverged=3), lucky)
    assert str(lost) == "n: unknown, no run of it was tested; 3 of its 3 runs diverged."


def test_untested_rivals_give_no_verdict() -> None:
    """The paper's networks are trained first, so at first no rival is tested."""
    waiting = verdict(POINT, final("a", 10), final("b", 20, math.nan), final("dear", 101))
    assert (waiting.kind, waiting.rival, waiting.untested) == ("unknown", None, 2)
    assert str(waiting) == "paper-net: unknown, none of the 2 that cost no more was tested."
    some = verdict(POINT, final("a", 10), final("far", 40, 0.5, 0.51, 0.52))
    assert (some.kind, some.untested, some.to_dict()["untested"]) == ("not reached", 1, 1)
    assert str(some).endswith("; of the networks that cost no more, 1 not tested.")
    assert str(verdict(final("p", 100, point="n"), final("a", 10))) == "n: unknown, no run of it was tested."


def test_the_front_by_means() -> None:
    cheap, beaten, good = final("a", 10, 0.5, 0.7), final("b", 20, 0.55), final("c", 30, 0.9)
    assert final_front([good, beaten, cheap]) == [cheap, good]
    assert front_marks([good, beaten, cheap]) == {"a": "front", "c": "front by fewer runs"}
    assert final_front([]) == [] and judge([]) == [] and front_marks([]) == {}
    small = [replace(one, params=params, costs=("macs", "params")) for one, params in ((cheap, 9), (beaten, 5))]
    assert final_front(small) == small
    assert final_front([replace(one, costs=("params", "latency")) for one in small])[0].identity == "b"


def test_the_test_is_stated() -> None:
    assert "Welch" in TEST and "one-sided at level 0.025; for 'dominated', p-values are Holm-corrected over" in TEST
    assert TEST.endswith("only if the number of seeds is fixed beforehand")
    data = verdict(POINT, final("cheap", 20, 0.95, 0.96, 0.97, trial=7)).to_dict()
    assert (data["verdict"], data["rival"], data["rival_trial"], data["share"]) == ("dominated", "cheap", 7, 0.2)
