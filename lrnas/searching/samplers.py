"""Samplers, which propose the points of a space: Optuna's, set up for these spaces, and `FrontSampler`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from lrnas.errors import LrnasError, UnknownName
from lrnas.searching.front_sampler import FrontSampler
from lrnas.searching.proposals import Proposals

MANY_TRIALS = 2000
"""Trials beyond which tpe models all parameters together: this finds worse fronts, but takes a fifth of the time."""


def _make_front(proposals: Proposals, seed: int) -> BaseSampler:
    """Changes networks on the front and proposes the one with the largest expected gain."""
    parameters, distributions = proposals.space.parameters, proposals.distributions
    return FrontSampler(parameters, distributions, proposals.study.costs, functools.partial(_costs, proposals), seed)


def _make_tpe(proposals: Proposals, seed: int) -> BaseSampler:
    """Tree-structured Parzen estimators, one parameter at a time."""
    is_large = len(proposals.study.optuna_trials()) > MANY_TRIALS
    return TPESampler(multivariate=is_large, n_startup_trials=10, seed=seed)


SAMPLERS: dict[str, Callable[[Proposals, int], BaseSampler]] = {
    "front": _make_front,
    "tpe": _make_tpe,
    "gp": lambda _, seed: GPSampler(n_startup_trials=10, seed=seed),  # takes seconds for each proposal
    "nsga2": lambda _, seed: NSGAIISampler(population_size=24, seed=seed),  # for thousands of trials
    "random": lambda _, seed: RandomSampler(seed=seed),  # to compare with
}


def check_sampler(name: str) -> None:
    """Raise `UnknownName` if there is no sampler of this name."""
    if name not in SAMPLERS:
        raise UnknownName("sampler", name, SAMPLERS)


def make_sampler(name: str, seed: int, proposals: Proposals) -> BaseSampler:
    """The sampler of a name in `SAMPLERS`, for the proposals of a search."""
    return SAMPLERS[name](proposals, seed)


def _costs(proposals: Proposals, params: dict[str, Any]) -> tuple[float, ...] | None:
    """Values of the cost objectives at a point; None if it is no valid network or breaks a limit."""
    try:
        costs = (proposals.guess_of or proposals.cost_of)(proposals.space.architecture(params))
    except LrnasError:
        return None
    return None if proposals.limits.excess(costs) else tuple(float(costs[name]) for name in proposals.study.costs)
