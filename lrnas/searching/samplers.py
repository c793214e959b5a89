"""Samplers by name. They propose the points of a space: `FrontSampler`, and samplers of Optuna."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from lrnas.errors import LrnasError, UnknownName
from lrnas.searching.front_sampler import FrontSampler
from lrnas.searching.proposals import Proposals

MANY_TRIALS = 2000
"""Number of trials above which tpe models all parameters together: worse fronts, but in a fifth of the time."""


def _make_front(proposals: Proposals, seed: int) -> BaseSampler:
    """A sampler that changes networks on the front and proposes the candidate with the largest expected gain."""
    parameters, distributions = proposals.space.parameters, proposals.distributions
    return FrontSampler(parameters, distributions, proposals.study.costs, functools.partial(_costs, proposals), seed)


def _make_tpe(proposals: Proposals, seed: int) -> BaseSampler:
    """Optuna's tree-structured Parzen estimators. In small studies, they ignore how parameters depend on each other."""
    is_large = len(proposals.study.optuna_trials()) > MANY_TRIALS
    return TPESampler(multivariate=is_large, n_startup_trials=10, seed=seed)


SAMPLERS: dict[str, Callable[[Proposals, int], BaseSampler]] = {
    "front": _make_front,
    "tpe": _make_tpe,
    "gp": lambda _, seed: GPSampler(n_startup_trials=10, seed=seed),  # needs seconds for each proposal
    "nsga2": lambda _, seed: NSGAIISampler(population_size=24, seed=seed),  # for thousands of trials
    "random": lambda _, seed: RandomSampler(seed=seed),  # as a baseline
}


def check_sampler(name: str) -> None:
    """Raise `UnknownName` if there is no sampler of this name."""
    if name not in SAMPLERS:
        raise UnknownName("sampler", name, SAMPLERS)


def make_sampler(name: str, seed: int, proposals: Proposals) -> BaseSampler:
    """Create a sampler.

    Args:
        name: One of `SAMPLERS`.
        seed: Seed of the sampler.
        proposals: The proposals of the search that uses it.
    """
    return SAMPLERS[name](proposals, seed)


def _costs(proposals: Proposals, params: dict[str, Any]) -> tuple[float, ...] | None:
    """Values of the cost objectives at a point; None if it is no valid network or is beyond a limit."""
    try:
        costs = (proposals.guess_of or proposals.cost_of)(proposals.space.architecture(params))
    except LrnasError:
        return None
    return None if proposals.limits.excess(costs) else tuple(float(costs[name]) for name in proposals.study.costs)
