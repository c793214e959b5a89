"""Verdicts: whether a search found better networks than the reference networks, given the noise between seeds.

Reference networks are the points of the space: the paper's in the spaces of lrnas, else the unchanged model. Each is
compared with every retrained network of the search that costs no more. Costs are those that were objectives of the
search, as far as they are known; latency is known if it could be measured before the retraining. Other reference
networks are left out, since a search gets no credit for them. Uniform networks of the space, with which every search
begins, are compared, and the verdict says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from lrnas._arguments import checked
from lrnas.sampling.pareto import costs_no_more
from lrnas.study.retrained import Final, tell_shares

LEVEL = 0.05
"""Significance level of a two-sided test; intervals hold with probability 1 - LEVEL."""
SIDE = LEVEL / 2
"""Significance level of a one-sided test: a single comparison is significant if its interval excludes zero."""
TEST = (
    f"Welch's t-test on test accuracies over seeds, one-sided at level {SIDE:g}; for 'dominated', p-values are "
    "Holm-corrected over all networks found that cost no more than the reference network; intervals are Welch's, "
    "two-sided, 95 %, for one comparison; the levels hold only if the number of seeds is fixed beforehand"
)
"""Description of the test, to be shown beside verdicts."""

Kind = Literal["dominated", "no difference shown", "not reached", "unknown"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one reference network, called the point."""

    point: str
    kind: Kind
    """Rivals are the retrained networks that the search found and that cost no more than the point. Dominated: a rival
    is significantly better. No difference shown: the best rival does not differ significantly, which does not prove
    that it is as good. Not reached: the point is significantly better than the best rival. Unknown: the noise is not
    known, because the point or the best rival has fewer than two runs or all runs gave the same accuracy; or no rival
    was retrained, or none is tested yet."""
    rival: Final | None = None
    """If dominated: the cheapest rival that dominates. Otherwise the best rival."""
    share: float | None = None
    """Multiply-accumulates of the rival as a share of the point's."""
    difference: float | None = None
    """Mean accuracy of the rival minus that of the point."""
    interval: tuple[float, float] | None = None
    """Confidence interval of the difference; None if the noise is unknown."""
    p: float | None = None
    """Corrected p-value of the test that the rival is better; if not reached, p-value that the point is better."""
    compared: int = 0
    """Number of rivals with at least two tested runs."""
    runs: int = 0
    """Number of runs of the point or of the rival, whichever has fewer."""
    untested: int = 0
    """Number of rivals without a tested run."""
    single: int = 0
    """Number of rivals with a single tested run, which says nothing about noise."""
    gone: int = 0
    """Number of untested rivals whose runs all diverged."""
    final: Final | None = None
    """The point with its runs."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Each compared cost of the rival, as a share of the point's."""
    not_compared: tuple[str, ...] = ()
    """Objectives of the search that are not known of retrained networks."""

    def __str__(self) -> str:
        remarks = "".join(f"; {remark}" for remark in self.remarks())
        if self.rival is None:
            return f"{self.point}: {self.kind}, {self.why()}{remarks}."
        numbers = [self.tell_difference()]
        if told := self._p_in_words():
            numbers.append(told)
        is_named = self.rival.known_as is not None and self.rival.trial is not None
        number = f", trial {self.rival.trial}," if is_named else ""
        rival = f"{self.rival.title}{number} at {tell_shares(self.shares)}"
        links = {
            "dominated": f"dominated by {rival}",
            "no difference shown": f"no difference shown between it and {rival}, {self.why()}",
            "not reached": f"not reached; {self.why()} is {rival}",
            "unknown": f"no verdict, {self.why()}; {rival}",
        }
        return f"{self.point}: {links[self.kind]}: {', '.join(numbers)}{remarks}."

    def tell_difference(self) -> str:
        """The difference to the rival with its interval, in words."""
        assert self.difference is not None
        numbers = [f"{100 * self.difference:+.2f} points"]
        if self.interval is not None:
            low, high = self.interval
            numbers.append(f"95 % interval {100 * low:+.2f} to {100 * high:+.2f}")
        return ", ".join(numbers)

    def why(self) -> str:
        """The reason for the kind of verdict, in words."""
        if self.rival is not None:
            return {
                "dominated": "the cheapest that is better beyond noise",
                "no difference shown": f"as far as {self.runs} runs tell",
                "not reached": "the best that costs no more",
                "unknown": "the noise between seeds is unknown"
                if self.runs < 2
                else "all runs of each network gave the same accuracy, so the noise is unknown",
            }[self.kind]
        if self.untested:
            diverged = f"; {self.gone} diverged in every run" if self.gone else ""
            return f"none of the {self.untested} that cost no more was tested{diverged}"
        is_tested = self.final is not None and _known(self.final)
        return "no found network that costs no more was retrained" if is_tested else "no run of it was tested"

    def remarks(self) -> list[str]:
        """Remarks on what the numbers do not show: uniform networks, diverged or missing runs, unknown costs."""
        told = []
        if self.final is not None and self.final.diverged:
            told.append(f"{self.final.diverged} of its {self.final.ended} runs diverged")
        if self.rival is not None:
            if self.rival.known_as is not None:
                told.append(f"{self.rival.known_as} is a uniform network, with which every search begins")
            if self.rival.diverged:
                told.append(f"{self.rival.diverged} of the {self.rival.ended} runs of {self.rival.title} diverged")
            waiting = self.untested - self.gone
            others = [f"{waiting} not tested"] if waiting else []
            others += [f"{self.gone} diverged in every run"] if self.gone else []
            others += [f"{self.single} tested by one run"] if self.single else []
            told += [f"of the networks that cost no more, {' and '.join(others)}"] if others else []
        return told + ([f"{' and '.join(self.not_compared)} was not compared"] if self.not_compared else [])

    @property
    def shown_p(self) -> float | None:
        """The p-value to show; None if the interval already says the same."""
        is_known = self.kind == "no difference shown" and (self.interval is None or self.interval[0] <= 0)
        return None if is_known else self.p

    @property
    def corrected_over(self) -> int | None:
        """Number of networks that the shown p-value is corrected over; None if it is that of a single test."""
        is_corrected = self.shown_p is not None and self.compared > 1 and self.kind != "not reached"
        return self.compared if is_corrected else None

    def _p_in_words(self) -> str:
        if self.shown_p is None:
            return ""
        p = "p < 0.001" if self.shown_p < 0.001 else f"p = {self.shown_p:.3f}"
        return p if self.corrected_over is None else f"corrected {p}, of {self.corrected_over} compared"

    def to_dict(self) -> dict[str, Any]:
        rival = self.rival
        return {
            "point": self.point,
            "verdict": self.kind,
            "rival": rival and rival.identity,
            "rival_name": rival and rival.name,
            "rival_trial": rival and rival.trial,
            "share": self.share,
            "shares": dict(self.shares),
            "not_compared": list(self.not_compared),
            "difference": self.difference,
            "interval": self.interval and list(self.interval),
            **{name: getattr(self, name) for name in ("p", "compared", "runs", "untested", "single", "gone")},
            "diverged": self.final and self.final.diverged,
            "rival_diverged": rival and rival.diverged,
        }


@checked
def judge(finals: Sequence[Final]) -> list[Verdict]:
    """Compare the retrained networks of a search with the reference networks.

    Args:
        finals: All networks of one retraining, also those that are not tested yet.

    Returns:
        One verdict per reference network, cheapest first.
    """
    found = [final for final in finals if final.point is None]
    verdicts = []
    for point in sorted((final for final in finals if final.point is not None), key=lambda final: final.cheapest_first):
        assert point.point is not None
        not_compared = tuple(name for name in point.costs if name not in point.known_costs)
        verdict = Verdict(point.point, "unknown", final=point, not_compared=not_compared)
        if _known(point):
            limits = list(point.known_costs.values())
            cheaper = [final for final in found if costs_no_more(list(final.known_costs.values()), limits)]
            tested = [final for final in cheaper if _known(final)]
            verdict = replace(
                verdict,
                untested=len(cheaper) - len(tested),
                single=sum(len(_known(final)) == 1 for final in tested),
                gone=sum(
                    bool(final.diverged) and not (final.accuracies or final.open or final.failed) for final in cheaper
                ),
            )
            if tested:
                verdict = _compare(verdict, point, tested)
        verdicts.append(verdict)
    return verdicts


def _compare(verdict: Verdict, point: Final, cheaper: Sequence[Final]) -> Verdict:
    """The verdict on a point after comparison with tested networks that cost no more."""
    kind, rival, p, compared = _find_rival(point, cheaper)
    return replace(
        verdict,
        kind=kind,
        rival=rival,
        share=rival.macs / point.macs,
        difference=_mean(rival) - _mean(point),
        interval=None if p is None else _interval(rival, point),
        p=p,
        compared=compared,
        runs=min(len(_known(point)), len(_known(rival))),
        shares=rival.shares_of(point),
    )


def _find_rival(point: Final, cheaper: Sequence[Final]) -> tuple[Kind, Final, float | None, int]:
    """Kind, rival, p-value and number of networks compared."""
    able = [rival for rival in cheaper if len(_known(rival)) > 1]
    best = max(cheaper, key=lambda rival: (_mean(rival), len(_known(rival))))
    if len(_known(point)) < 2 or not able:
        return "unknown", best, None, 0
    corrected = _holm([_p_better(rival, point) for rival in able])
    if better := [i for i, p in enumerate(corrected) if p < SIDE]:
        i = min(better, key=lambda i: (able[i].cheapest_first[0], -_mean(able[i])))
        return "dominated", able[i], corrected[i], len(able)
    is_noiseless = not _vary(best, point) and _known(best)[0] != _known(point)[0]
    if best not in able or is_noiseless:  # a single run that is ahead of all others may be luck
        return "unknown", best, None, len(able)
    behind = _p_better(point, best)
    if behind < SIDE:
        return "not reached", best, behind, len(able)
    return "no difference shown", best, corrected[able.index(best)], len(able)


def _known(final: Final) -> list[float]:
    return [accuracy for accuracy in final.accuracies if math.isfinite(accuracy)]


def _mean(final: Final) -> float:
    return float(np.mean(_known(final)))


def _vary(*finals: Final) -> bool:
    """Whether runs of one of these networks differ; otherwise there is no noise to compare with."""
    return any(len(set(_known(final))) > 1 for final in finals)


def _p_better(one: Final, other: Final) -> float:
    """p-value of the test that the first network is more accurate; 1 if there is no noise to compare with."""
    return float(_welch(one, other, "greater").pvalue) if _vary(one, other) else 1.0


def _interval(one: Final, other: Final) -> tuple[float, float] | None:
    """Confidence interval of the difference of mean accuracies; None if there is no noise."""
    if not _vary(one, other):
        return None
    found = _welch(one, other, "two-sided").confidence_interval(1 - LEVEL)
    return float(found.low), float(found.high)


def _welch(one: Final, other: Final, alternative: str) -> Any:
    from scipy import stats  # takes a second to import, and verdicts can be read without it

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy warns if one of the two has no variance
        return stats.ttest_ind(_known(one), _known(other), equal_var=False, alternative=alternative)


def _holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for multiple comparisons by Holm's method."""
    corrected = [0.0] * len(values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[i]))
        corrected[i] = highest
    return corrected
