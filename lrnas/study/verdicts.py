"""Whether a search did better than the networks of the paper: a verdict per network, with the noise between seeds.

A network of the paper is compared with every network the search found that was trained again and costs no more, in any
of the search's objectives that are known here, multiply-accumulates and parameters. The paper's own are not among
these: that one of them beats another is no success of a search. Seeds of the space are, which every search trains, and
are called so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from lrnas.study.pareto import costs_no_more
from lrnas.study.retrained import Final

LEVEL = 0.05
"""Of both sides together; intervals hold with the rest of the probability."""
SIDE = LEVEL / 2
"""Below which the p-value of one side means something: for one comparison, just where the interval excludes zero."""
TEST = (
    f"Welch's t-test on test accuracies over seeds, either side at level {SIDE:g}, Holm-corrected for `dominated` over "
    "the networks found that cost no more, within each of the paper's networks; intervals are Welch's, two-sided, "
    "95 %, for one comparison; all this holds for a number of seeds that is fixed beforehand"
)
"""In words, to stand beside verdicts."""

WORDS = {"macs": "MACs", "params": "parameters"}

Kind = Literal["dominated", "matched", "not reached", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one network of the paper."""

    point: str
    kind: Kind
    """Dominated: some network found that costs no more is better beyond noise. Matched: between the best of them and
    the point there is no difference beyond noise. Not reached: the point is better than the best of them, beyond noise,
    or there is none. Unknown: too few runs of the point or the best to know the noise, or runs that show none."""
    rival: Final | None = None
    """Where dominated: the cheapest of those that do so. Otherwise the best of those that cost no more."""
    share: float | None = None
    """Of the point's multiply-accumulates that the rival has, whatever is compared."""
    difference: float | None = None
    """Of mean accuracies, rival less point."""
    interval: tuple[float, float] | None = None
    """Of the difference; None where the noise is unknown."""
    p: float | None = None
    """Of the one-sided test that the rival is better, corrected; where not reached, of the one that the point is."""
    compared: int = 0
    """Networks found that cost no more and have runs enough."""
    runs: int = 0
    """Of the point or the rival, whichever has fewer."""
    untested: int = 0
    """Networks found that cost no more of which no run was tested, or none yet."""
    single: int = 0
    """Networks found that cost no more of which one run was tested, which shows no noise."""
    gone: int = 0
    """Those of the untested whose runs all diverged."""
    final: Final | None = None
    """The point's own runs."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of each of the point's costs that are compared, what the rival has."""
    not_compared: tuple[str, ...] = ()
    """Objectives of the search that are not known of networks trained again."""

    def __str__(self) -> str:
        remarks = "".join(f"; {remark}" for remark in self.remarks())
        if self.rival is None:
            return f"{self.point}: {self.kind}, {self.why()}{remarks}."
        assert self.difference is not None
        numbers = [f"{100 * self.difference:+.2f} points"]
        if self.interval is not None:
            low, high = self.interval
            numbers.append(f"95 % interval {100 * low:+.2f} to {100 * high:+.2f}")
        if told := self._p_in_words():
            numbers.append(told)
        number = "" if self.rival.trial is None else f", trial {self.rival.trial},"
        shares = " and ".join(f"{share:.3f} of its {WORDS[name]}" for name, share in self.shares.items())
        rival = f"{self.rival.name}{number} at {shares}"
        links = {
            "dominated": f"dominated by {rival}",
            "matched": f"matched by {rival}, {self.why()}",
            "not reached": f"not reached; {self.why()} is {rival}",
            "unknown": f"no verdict, {self.why()}; {rival}",
        }
        return f"{self.point}: {links[self.kind]}: {', '.join(numbers)}{remarks}."

    def why(self) -> str:
        """What the kind comes from, beside the numbers."""
        if self.rival is not None:
            return {
                "dominated": "the cheapest that is better beyond noise",
                "matched": f"as far as {self.runs} runs tell",
                "not reached": "the best that costs no more",
                "unknown": "the noise between seeds is unknown"
                if self.runs < 2
                else "no noise to see, as all runs of either came out the same",
            }[self.kind]
        if self.untested:
            diverged = f"; {self.gone} diverged in every run" if self.gone else ""
            return f"none of the {self.untested} that cost no more was tested{diverged}"
        return "no run of it was tested" if self.kind == "unknown" else "no network found costs no more"

    def remarks(self) -> list[str]:
        """What the numbers leave out: that no search was needed, runs that diverged or are too few, unknown costs."""
        told = []
        if self.final is not None and self.final.diverged:
            told.append(f"{self.final.diverged} of its {self.final.ended} runs diverged")
        if self.rival is not None:
            if self.rival.known_as is not None:
                told.append(f"{self.rival.known_as} is a seed of the space, which every search begins with")
            if self.rival.diverged:
                told.append(f"{self.rival.diverged} of the {self.rival.ended} runs of {self.rival.name} diverged")
            waiting = self.untested - self.gone
            others = [f"{waiting} not tested"] if waiting else []
            others += [f"{self.gone} diverged in every run"] if self.gone else []
            others += [f"{self.single} tested by one run"] if self.single else []
            told += [f"of those that cost no more, {' and '.join(others)}"] if others else []
        return told + ([f"{' and '.join(self.not_compared)} was not compared"] if self.not_compared else [])

    @property
    def told_p(self) -> float | None:
        """The p-value, but for where it would say what the interval says."""
        is_known = self.kind == "matched" and (self.interval is None or self.interval[0] <= 0)
        return None if is_known else self.p

    @property
    def corrected_over(self) -> int | None:
        """Networks that the p-value that is told is corrected over; None where it is that of one test."""
        is_corrected = self.told_p is not None and self.compared > 1 and self.kind != "not reached"
        return self.compared if is_corrected else None

    def _p_in_words(self) -> str:
        if self.told_p is None:
            return ""
        p = "p < 0.001" if self.told_p < 0.001 else f"p = {self.told_p:.3f}"
        return p if self.corrected_over is None else f"corrected {p}, of {self.corrected_over} compared"

    def to_dict(self) -> dict[str, Any]:
        return {
            "point": self.point,
            "verdict": self.kind,
            "rival": None if self.rival is None else self.rival.identity,
            "rival_name": None if self.rival is None else self.rival.name,
            "rival_trial": None if self.rival is None else self.rival.trial,
            "share": self.share,
            "shares": dict(self.shares),
            "not_compared": list(self.not_compared),
            "difference": self.difference,
            "interval": None if self.interval is None else list(self.interval),
            "p": self.p,
            "compared": self.compared,
            "runs": self.runs,
            "untested": self.untested,
            "single": self.single,
            "gone": self.gone,
            "diverged": None if self.final is None else self.final.diverged,
            "rival_diverged": None if self.rival is None else self.rival.diverged,
        }


def judge(finals: Sequence[Final]) -> list[Verdict]:
    """On every network of the paper among networks trained under one recipe, cheapest first.

    Networks that were not tested yet belong here too: without them, a point might seem beyond reach.
    """
    found = [final for final in finals if final.point is None]
    points = sorted((final for final in finals if final.point is not None), key=lambda final: final.cheapest_first)
    verdicts = []
    for point in points:
        limits = list(point.known_costs.values())
        cheaper = [final for final in found if costs_no_more(list(final.known_costs.values()), limits)]
        tested = [final for final in cheaper if _known(final)]
        unknown = tuple(name for name in point.costs if name not in point.known_costs)
        verdict = replace(_judge(point, tested), final=point, not_compared=unknown)
        if _known(point):
            kind: Kind = verdict.kind if tested or not cheaper else "unknown"
            single = sum(len(_known(final)) == 1 for final in tested)
            gone = sum(final.diverged > 0 and not (final.accuracies or final.open or final.failed) for final in cheaper)
            untested = len(cheaper) - len(tested)
            verdict = replace(verdict, kind=kind, untested=untested, single=single, gone=gone)
        verdicts.append(verdict)
    return verdicts


def _judge(point: Final, cheaper: Sequence[Final]) -> Verdict:
    assert point.point is not None
    if not _known(point):
        return Verdict(point.point, "unknown")
    if not cheaper:
        return Verdict(point.point, "not reached")
    able = [rival for rival in cheaper if len(_known(rival)) > 1]
    best = max(cheaper, key=lambda rival: (_mean(rival), len(_known(rival))))
    if len(_known(point)) < 2 or not able:
        return _verdict(point, "unknown", best, None, 0)
    corrected = _holm([_p_better(rival, point) for rival in able])
    better = [i for i, p in enumerate(corrected) if p < SIDE]
    if better:
        i = min(better, key=lambda i: (able[i].cheapest_first[0], -_mean(able[i])))
        return _verdict(point, "dominated", able[i], corrected[i], len(able))
    is_still = not _vary(best, point) and _known(best)[0] != _known(point)[0]
    if best not in able or is_still:  # one run that is ahead of all others may be luck, or not
        return _verdict(point, "unknown", best, None, len(able))
    behind = _p_better(point, best)
    if behind < SIDE:
        return _verdict(point, "not reached", best, behind, len(able))
    return _verdict(point, "matched", best, corrected[able.index(best)], len(able))


def _verdict(point: Final, kind: Kind, rival: Final, p: float | None, compared: int) -> Verdict:
    assert point.point is not None
    interval = None if p is None else _interval(rival, point)
    difference = _mean(rival) - _mean(point)
    runs = min(len(_known(point)), len(_known(rival)))
    share = rival.macs / point.macs
    shares = {name: cost / point.known_costs[name] for name, cost in rival.known_costs.items()}
    return Verdict(point.point, kind, rival, share, difference, interval, p, compared, runs, shares=shares)


def _known(final: Final) -> list[float]:
    return [accuracy for accuracy in final.accuracies if math.isfinite(accuracy)]


def _mean(final: Final) -> float:
    return float(np.mean(_known(final)))


def _vary(*finals: Final) -> bool:
    """Whether there is any noise to compare with: runs that all came out the same tell nothing of it."""
    return any(len(set(_known(final))) > 1 for final in finals)


def _p_better(one: Final, other: Final) -> float:
    """Of the test that the first one's accuracies are the higher ones; 1 where no noise is seen to compare with."""
    if not _vary(one, other):
        return 1.0
    return float(_welch(one, other, "greater").pvalue)


def _interval(one: Final, other: Final) -> tuple[float, float] | None:
    """In which the difference of means lies."""
    if not _vary(one, other):
        return None
    found = _welch(one, other, "two-sided").confidence_interval(1 - LEVEL)
    return float(found.low), float(found.high)


def _welch(one: Final, other: Final, alternative: str) -> Any:
    from scipy import stats  # a second that who only reads verdicts need not wait

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about one of the two that does not vary
        return stats.ttest_ind(_known(one), _known(other), equal_var=False, alternative=alternative)


def _holm(values: Sequence[float]) -> list[float]:
    """P-values corrected for how many there are, by Holm's method."""
    corrected = [0.0] * len(values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[i]))
        corrected[i] = highest
    return corrected
