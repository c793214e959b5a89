"""Levels of a search: how much training a network gets. What the later levels came to, and what had been promised.

The search's own study is the level `short`. Each later level is an Optuna study of its own in the same storage,
SEARCH@longer and SEARCH@finals, with the objectives of the search and one trial, called a run, per network and seed.
So accuracies of different levels are never compared, not even by Optuna's own figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import optuna

from lrnas._arguments import checked
from lrnas._messages import percent, some_of
from lrnas.errors import UnknownName
from lrnas.recipes import Recipe
from lrnas.sampling.pareto import costs_no_more
from lrnas.study.folder import LEVEL_FOLDERS
from lrnas.study.manifest import LEVEL, StudyError, read_manifest
from lrnas.study.optuna_internals import storage_of
from lrnas.study.retrained import Final, gather_runs, open_searched, tell_shares
from lrnas.study.study import Study, Trial

SHORT, LONGER, FULL = LEVELS = ("short", "longer", "full")
"""Names of the levels, from the shortest training to the longest."""
SUFFIXES = dict(zip((LONGER, FULL), LEVEL_FOLDERS, strict=True))
"""Names after the @ of the studies of the later levels."""
OPEN = "full_trainings_open"
"""Attribute of a search: whether it has full trainings to do, or may have some."""
NOT_DONE = "Full trainings are not complete: the command that began the search continues them."
"""A sentence about such a search."""


@dataclass(frozen=True, slots=True)
class Level:
    """How much training a network gets."""

    name: str
    """One of `LEVELS`."""
    recipe: Recipe
    seeds: tuple[int, ...]
    """Seeds of the runs of a network, in the order in which they are trained."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A reference network, and the best network found that costs no more, or a share of it, at the same level."""

    point: Final
    rival: Final | None
    """The network with the highest mean accuracy among those found that cost so little; None if there is none."""
    beat: float | None = None
    """Largest share of the costs of `point` that `rival` may have, as in --beat; None: all of them."""

    @property
    def is_beaten(self) -> bool:
        """Whether the mean accuracy of the network found is higher."""
        return self.rival is not None and self.rival.mean > self.point.mean

    def __str__(self) -> str:
        own = f"{self.point.name}: {_measured(self.point)}"
        if self.rival is None:
            limit = "no more" if self.beat is None else f"at most {self.beat:g} of its costs"
            return f"{own}; no network found that costs {limit} was trained at this level."
        promised = ""
        if self.rival.promised is not None:
            promised = f"promised {percent(*self.rival.promised)}, "
        shares = tell_shares(self.rival.shares_of(self.point))
        end = "" if self.beat is None else ", higher" if self.is_beaten else ", not higher"
        return f"{own}; {self.rival.title} at {shares}: {promised}measured {_measured(self.rival)}{end}."

    def to_dict(self) -> dict[str, Any]:
        rival = None if self.rival is None else self.rival.to_dict()
        return {"point": self.point.to_dict(), "rival": rival, "beat": self.beat, "is_beaten": self.is_beaten}


def level_study(search: Study, level: str) -> optuna.Study | None:
    """The Optuna study of a later level of a search; None if the search has none.

    Args:
        search: The search, or this level itself.
        level: `longer` or `full`.
    """
    if search.manifest.get(LEVEL) == level:
        return search.optuna_study
    try:
        return optuna.load_study(study_name=f"{search.name}@{SUFFIXES[level]}", storage=storage_of(search.optuna_study))
    except KeyError:
        return None


def pick_level(study: Study, wanted: str | None = None) -> str:
    """The level to show.

    Args:
        study: The search, or a later level of one, which has no others.
        wanted: One of `LEVELS`; None: `full` if there are finals, else `short`.
    """
    own: str | None = study.manifest.get(LEVEL)
    if wanted is None:
        return own or (FULL if any(final.accuracies for final in read_level(study)) else SHORT)
    if wanted not in LEVELS:
        raise UnknownName("level", wanted, LEVELS, " (finals are the level full)" * (wanted == SUFFIXES[FULL]))
    if own not in (None, wanted):
        search = study.name.partition("@")[0]
        raise StudyError(f"{study.name} has only the level {own}; got {wanted}; open {search} for other levels")
    return wanted


def trained_networks(search: Study, level: str) -> list[tuple[float, Trial]]:
    """The mean accuracies of the networks of a later level that have a result, and their first runs, cheapest first.

    Args:
        search: The search.
        level: `longer` or `full`.
    """
    found = level_study(search, level)
    if found is None:
        return []
    study = Study(found.study_name, found, search.objectives, read_manifest(found), search.where)
    runs = {run.number: run for run in study.trials}
    return [(final.mean, runs[final.runs[0]]) for final in read_level(search, level) if math.isfinite(final.mean)]


@checked
def read_level(search: Study, level: str = FULL) -> list[Final]:
    """The networks of a search that were trained at a later level.

    Args:
        search: The search, or this level itself.
        level: `full`, the finals; or `longer`.

    Returns:
        The networks, cheapest first, with the validation accuracies of all runs that are done so far; empty if there
        are none. `final_front` picks the front.
    """
    if level not in SUFFIXES:
        raise UnknownName("later level", level, SUFFIXES)
    found = level_study(search, level)
    searched = open_searched(search, search.name.partition("@")[0])
    return [] if found is None else gather_runs(found, SUFFIXES[level], searched)


def tell_left(search: Study, finals: Sequence[Final]) -> str:
    """How many networks on the front of the short trainings were not trained in full, in words; empty if all were.

    Networks beyond the limits of the search are not counted.

    Args:
        search: The search, or its level `full`, of which nothing is left.
        finals: All networks of the level `full`, from `read_level`.
    """
    front, known = search.short_summary().front, {final.trial for final in finals if final.ended}
    limits = search.limits
    within = [trial for trial in front if not limits.excess(trial.costs)]
    left = sum(trial.trial not in known for trial in within)
    return f"{some_within(left, len(within), len(front))} on the front of the short trainings" if left else ""


def keep_open(search: optuna.Study, is_open: bool) -> None:
    """Write whether a search is open."""
    if search.user_attrs.get(OPEN, False) != is_open:
        search.set_user_attr(OPEN, is_open)


def is_open(search: Study) -> bool:
    """Whether a search goes on, or was ended, before it had done all of its full trainings."""
    return bool(search.optuna_study.user_attrs.get(OPEN, False))


def tell_unfinished(search: Study) -> str:
    """Return a sentence about what a search has still to do; it is empty if the search is complete."""
    done, budget = search.spent() - search.running(), search.budget
    if done < budget:
        what = f"{done} of its {budget} trials are done"
    elif is_open(search):
        what = "some of its full trainings are not done"
    else:
        return ""
    return f"{search.name} is not complete, {what}: the command that began it continues it, and its front may change"


def some_within(some: int, number: int, all_of_them: int) -> str:
    """Some of the networks within the limits in words, which say so if others are beyond them."""
    return some_of(some, number) + " within the limits" * (number < all_of_them)


def tell_below(search: Study) -> str:
    """That full training is less accurate than short training for at least half of the networks; empty if it is not.

    It is also empty if both trainings are the same, since chosen networks had luck in the first one.
    """
    full = level_study(search, FULL)
    if full is None or read_manifest(full)["recipe"] == search.manifest["recipe"]:
        return ""
    short = {trial.number: trial.accuracy or 0.0 for trial in search.trials if trial.status == "completed"}
    done = [final for final in read_level(search) if final.accuracies]
    means = [(final.mean, short[final.trial]) for final in done if final.trial in short]
    below = sum(mean < before for mean, before in means)
    if not below or 2 * below < len(means):
        return ""
    some = f"for {below} of {len(means)} network{'s' * (len(means) != 1)}"
    return f"full training is less accurate than short training {some}; begin a study with more --final-epochs"


def read_short(search: Study) -> list[Final]:
    """The networks that a search itself trained to the end, cheapest first, in the form of later levels."""
    found = [
        Final(
            identity=trial.identity,
            description=trial.description,
            point=trial.point if trial.is_reference else None,
            trial=trial.number,
            macs=trial.macs,
            params=trial.params,
            recipe=SHORT,
            seeds=(search.manifest["seed"],),
            accuracies=(trial.accuracy,),
            costs=tuple(search.costs),
            latency=trial.latency,
            known_as=None if trial.is_reference else trial.point,
        )
        for trial in search.trials
        if trial.status == "completed" and trial.accuracy is not None
    ]
    return sorted(found, key=lambda final: final.cheapest_first)


@checked
def compare_with_references(finals: Sequence[Final], beat: float | None = None) -> list[Outcome]:
    """What the finals say about each reference network: the paper's in the spaces of lrnas, else the unchanged model.

    Args:
        finals: All networks of the level `full`, from `read_level`.
        beat: Largest share of the costs of a reference network that a network compared with it has, for example
            `study.beat`; None: all of its costs.

    Returns:
        One outcome per reference network with a finished run, cheapest first.
    """
    done = [final for final in finals if math.isfinite(final.mean)]
    outcomes = []
    for point in (final for final in done if final.point is not None):
        limits = [(beat or 1.0) * cost for cost in point.known_costs.values()]
        found = [each for each in done if each.point is None and costs_no_more(list(each.known_costs.values()), limits)]
        outcomes.append(Outcome(point, max(found, key=lambda final: final.mean, default=None), beat))
    return outcomes


def _measured(final: Final) -> str:
    number = len(final.accuracies)
    return f"{percent(final.mean, final.deviation)} ({number} seed{'s' * (number != 1)})"
