"""The result of a study in one sentence, and its best few networks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lrnas._messages import percent
from lrnas.reporting.report import Report, StudyReport
from lrnas.reporting.retrained_report import Tested
from lrnas.study.retrained import COST_WORDS, Final

LIMITS = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
"""Shares of the dense network's cost; the most accurate network within each of them is one of the best few."""
NOISE = {
    "dominated": " The difference is larger than the noise between seeds.",
    "not reached": " The difference is larger than the noise between seeds.",
    "unknown": " The noise between seeds is not known.",
}
"""What a verdict says about the difference between two networks, if it shows one or if the noise is not known."""

CHOICE = " Chosen by validation accuracy."
"""How networks were chosen whose test accuracies are shown."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The result of a study in one sentence: `claim` (`network`)`rest`."""

    claim: str
    """Accuracy and cost of a network."""
    network: str
    trial: int | None
    """Its number in the search."""
    rest: str
    """The dense network beside it, and the images and seeds."""

    def __str__(self) -> str:
        return f"{self.claim} ({self.network}){self.rest}"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A network with its accuracy after one kind of training."""

    title: str
    trial: int | None
    is_reference: bool
    accuracy: float
    deviation: float | None
    seeds: int
    costs: Mapping[str, float | None]

    @property
    def percent(self) -> str:
        return percent(self.accuracy, self.deviation)


def make_headlines(report: Report) -> list[Headline | None]:
    """The result of each study of a report, see `make_headline`.

    Args:
        report: The report.
    """
    tested = {each.retrained.study: each for each in report.tested}
    return [make_headline(study, report.axis.name, tested.get(study.name)) for study in report.studies]


def make_headline(study: StudyReport, cost: str, tested: Tested | None = None) -> Headline | None:
    """The result of a study in one sentence; None if no network is trained.

    It names the cheapest network found that is at least as accurate as the dense network; if there is none, the most
    accurate one that costs less. If the dense network was not trained, the best reference network takes its place.
    After tests, the sentence has test accuracies. It names the network of the verdict on the dense network; without a
    verdict, networks are chosen among those tested by their validation accuracies, since no network is chosen by test
    images. These are accuracies of the finals only if all of these networks were in the finals.

    Args:
        study: The study.
        cost: Name of the cost to compare; if it is not known for both networks, MACs are compared.
        tested: Networks of this study that were trained again and tested.
    """
    dense = study.study.baseline
    tests = {} if tested is None else {final.title: _from_final(final) for final in tested.finals}
    verdict = None if tested is None else next((each for each in tested.verdicts if each.point == dense), None)
    rival = None if verdict is None or verdict.rival is None else _from_final(verdict.rival)
    known = {network.name for network in study.full if network.name != dense} & tests.keys()
    if rival is None and not known:
        tests = {}  # their validation accuracies are not known
    entries = _entries(study, known)
    if tests:
        entries = [entry for entry in entries if entry.title in tests]
    own = next((entry for entry in entries if entry.title == dense), None)
    references = [entry for entry in entries if entry.is_reference and entry is not own]
    found = [entry for entry in entries if not entry.is_reference and entry is not own]
    others = found or references
    if rival is None and not others:
        return None
    beside = own
    if own is None and found and dense is not None and dense not in tests:
        beside = max(references, key=lambda entry: entry.accuracy, default=None)
    own = tests.get(dense or "", own)
    dense_costs = _dense_costs(study, tested if tests else None)
    compared = [rival] if rival is not None else [tests.get(entry.title, entry) for entry in others]
    if dense_costs.get(cost) is None or any(entry.costs[cost] is None for entry in compared):
        cost = "macs"
    limit = dense_costs.get(cost)
    best = rival
    if best is None:
        picked = _pick(others, beside, cost)
        best = tests.get(picked.title, picked)
    beside = own if own is not None or beside is None else tests.get(beside.title, beside)
    validation = "Validation images" if study.finals else f"Validation images after {study.training}"
    images, done = ("Test images", "tested in this retraining") if tests else (validation, "trained")
    after = f", after {tested.epochs} of training" if tests and tested else ""
    number, by = len(tests.keys() - {dense}) or len(references + found), " on validation images" if tests else ""
    only = "the only one in this retraining" if tests else f"the only one trained{' in full' * bool(study.finals)}"
    among = only if number == 1 else f"the most accurate of {number} networks{by}"
    if len(others) < number:
        among = f"chosen by validation accuracy among {len(others)} of {number} networks {done}"
    value = best.costs[cost]
    if limit is None or value is None:
        size = "" if value is None else f" with {value:,.0f} {COST_WORDS[cost]}"
        return Headline(f"{best.percent}{size}", best.title, best.trial, f", {among}. {images}, {_seeds(best)}{after}.")
    claim = f"{best.percent} at {_share(best, cost, limit)} of {dense}'s {COST_WORDS.get(cost, cost)}"
    if beside is None:
        rest = f", {among}; {dense} itself was not {done}. {images}, {_seeds(best)}{after}."
    elif beside is not own:
        share = _share(beside, cost, limit)
        rest = f"; {beside.title} has {beside.percent} at {share}, {dense} itself was not {done}. "
        rest += f"{images}, {_seeds(best, beside)}{after}.{CHOICE if tests else ''}"
    else:
        rest = f"; {dense} has {beside.percent}. {images}, {_seeds(best, beside)}{after}."
        if verdict is not None and rival is not None:
            rest += NOISE.get(verdict.kind) or f" No difference is shown: {verdict.tell_difference()}."
        elif tests:
            rest += CHOICE
    return Headline(claim, best.title, best.trial, rest)


def best_few(study: StudyReport, cost: str) -> list[int]:
    """The trials of a small front, or of the most accurate networks within `LIMITS` of the dense network's cost.

    Args:
        study: The study.
        cost: Name of the cost.

    Returns:
        Numbers of different trials. Without a dense network, shares are those of the most expensive network.
    """
    if len(study.front) <= len(LIMITS):
        return [network.trial.number for network in study.front]
    entries = [(value, entry) for entry in _entries(study) if (value := entry.costs[cost]) is not None]
    whole = _dense_costs(study).get(cost) or max((value for value, _ in entries), default=0.0)
    found: dict[int, None] = {}
    for share in LIMITS:
        within = [(entry.accuracy, -value, entry.trial) for value, entry in entries if value <= share * whole]
        if within and (trial := max(within)[2]) is not None:
            found[trial] = None
    return list(found)


def _entries(study: StudyReport, wanted: Iterable[str] = ()) -> list[_Entry]:
    """The finals of a study if all wanted networks are among them, else its networks after short training."""
    finals = {final.title: _from_final(final) for final in study.finals}
    if finals and finals.keys() >= set(wanted):
        return list(finals.values())
    return [
        _Entry(network.name, network.trial.number, network.is_reference, network.trial.accuracy or 0.0, None, 1, costs)
        for network in study.full
        for costs in [{name: network.cost(name) for name in ("macs", "params", "latency")}]
    ]


def _from_final(final: Final) -> _Entry:
    costs = {"macs": final.macs, "params": final.params, "latency": final.latency}
    is_reference = final.point is not None
    return _Entry(final.title, final.trial, is_reference, final.mean, final.deviation, len(final.accuracies), costs)


def _dense_costs(study: StudyReport, tested: Tested | None = None) -> dict[str, float | None]:
    """Costs of the dense network, measured or counted as those of the tests if they are given."""
    dense = study.study.dense_cost if tested is None else tested.dense_cost
    baseline = study.study.baseline
    if tested is None:
        latencies = [network.cost("latency") for network in study.networks if network.name == baseline]
    else:
        latencies = [final.latency for final in tested.finals if final.name == baseline]
    known = {"latency": latencies[0] if latencies else None}
    return {} if dense is None else {"macs": dense.macs, "params": dense.params, **known}


def _share(entry: _Entry, cost: str, limit: float) -> str:
    return f"{(entry.costs[cost] or 0.0) / limit:.3f}"


def _pick(entries: Sequence[_Entry], beside: _Entry | None, cost: str) -> _Entry:
    """The cheapest network that is as accurate as another one; if there is none, the most accurate that costs less."""

    def price(entry: _Entry) -> float:
        return entry.costs[cost] or 0.0

    if beside is None:
        return max(entries, key=lambda entry: (entry.accuracy, -price(entry)))
    cheaper = [entry for entry in entries if price(entry) < price(beside)] or entries
    as_good = [entry for entry in cheaper if entry.accuracy >= beside.accuracy]
    if as_good:
        return min(as_good, key=lambda entry: (price(entry), -entry.accuracy))
    return max(cheaper, key=lambda entry: (entry.accuracy, -price(entry)))


def _seeds(*entries: _Entry) -> str:
    """Numbers of seeds in words."""
    numbers = sorted({entry.seeds for entry in entries})
    if numbers == [1]:
        return "one seed"
    each = " each" if len(entries) > 1 and len(numbers) == 1 else ""
    return f"{' and '.join(map(str, numbers))} seeds{each}"
