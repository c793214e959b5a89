"""Samplers by name. They propose the points of a space: `FrontSampler`, and samplers of Optuna."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial

from lrnas.errors import LrnasError
from lrnas.sampling.axes import Point
from lrnas.sampling.belief import Observation
from lrnas.sampling.front_sampler import FrontSampler
from lrnas.searching.proposals import Proposals, kind_of
from lrnas.study.objectives import Costs

MANY_TRIALS = 2000
"""Number of trials above which tpe models all parameters together: worse fronts, but in a fifth of the time."""


class _SearchSampler(FrontSampler):
    """`FrontSampler` that reads the trials of a search."""

    def observe(self, trial: FrozenTrial, point: Point) -> Observation | None:
        attributes = trial.user_attrs
        if not (attributes.get("trained") or "imported_from" in attributes):
            return None
        found = super().observe(trial, point)
        if found is not None and attributes.get("status") in ("diverged", "faulty"):
            return dataclasses.replace(found, has_failed=True)
        return found

    def identify(self, trial: FrozenTrial, point: Point) -> str:
        return str(trial.user_attrs["id"])


def _make_front(proposals: Proposals, seed: int) -> BaseSampler:
    """A sampler that changes networks on the front and proposes the candidate with the largest expected gain."""
    space, costs = proposals.space, proposals.study.costs
    named = proposals.named()
    if proposals.beat is not None and not named:
        raise LrnasError(f"--beat needs a space with named networks; got {space.name}, which has none; leave it out")
    return _SearchSampler(
        functools.partial(_costs, proposals),
        costs,
        proposals.distributions,
        is_allowed=lambda costs: not proposals.limits.excess(costs),
        other_costs=[name for name in ("macs", "params") if name not in costs],
        named=[space.params_of(network) for network in named],
        beat=proposals.beat,
        kind_of=kind_of,
        idle_at=space.idle_parameters,
        identity_of=lambda params: proposals.study.identify(space.architecture(params)),
        seed=seed,
    )


def _make_tpe(proposals: Proposals, seed: int) -> BaseSampler:
    """Optuna's tree-structured Parzen estimators. In small studies, they ignore how parameters depend on each other."""
    is_large = len(proposals.study.optuna_trials()) > MANY_TRIALS
    return TPESampler(multivariate=is_large, n_startup_trials=10, seed=seed)


_MAKERS: dict[str, Callable[[Proposals, int], BaseSampler]] = {
    "front": _make_front,
    "tpe": _make_tpe,
    "gp": lambda _, seed: GPSampler(n_startup_trials=10, seed=seed),  # needs seconds for each proposal
    "nsga2": lambda _, seed: NSGAIISampler(population_size=24, seed=seed),  # for thousands of trials
    "random": lambda _, seed: RandomSampler(seed=seed),  # as a baseline
}
"""Functions that make the samplers, by their names in `lrnas.searching.settings.SAMPLERS`."""


def make_sampler(name: str, seed: int, proposals: Proposals) -> BaseSampler:
    """Create a sampler.

    Args:
        name: One of `SAMPLERS`.
        seed: Seed of the sampler.
        proposals: The proposals of the search that uses it.
    """
    return _MAKERS[name](proposals, seed)


def _costs(proposals: Proposals, params: dict[str, Any]) -> Costs | None:
    """Costs at a point; None if it is no valid network."""
    try:
        return (proposals.guess_of or proposals.cost_of)(proposals.space.architecture(params))
    except LrnasError:
        return None
