"""Who proposes points: Optuna's samplers, set up for these spaces, and one of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from lrnas.errors import LrnasError, UnknownName
from lrnas.searching.front_sampler import FrontSampler
from lrnas.searching.proposals import Proposals

SAMPLERS = {
    "front": "changes of the front's networks, by their expected gain; costs are known, accuracy is predicted",
    "tpe": "tree-structured Parzen estimators, one parameter at a time",
    "gp": "Gaussian processes for all objectives; seconds for each proposal",
    "nsga2": "an evolutionary algorithm; for thousands of trials",
    "random": "points drawn at random, to compare with",
}

MANY = 2000
"""Trials beyond which tpe models all parameters together: that is a worse guide, but takes a fifth of the time."""


def check_sampler(name: str) -> None:
    if name not in SAMPLERS:
        raise UnknownName("sampler", name, SAMPLERS)


def make_sampler(name: str, seed: int, proposals: Proposals) -> BaseSampler:
    """By name, for the proposals of a search."""
    number = len(proposals.study.optuna_trials())
    makers: dict[str, Callable[[], BaseSampler]] = {
        "front": lambda: FrontSampler(
            proposals.space.parameters,
            proposals.distributions,
            proposals.study.costs,
            _known_costs(proposals),
            seed,
        ),
        "tpe": lambda: TPESampler(multivariate=number > MANY, n_startup_trials=10, seed=seed),
        "gp": lambda: GPSampler(n_startup_trials=10, seed=seed),
        "nsga2": lambda: NSGAIISampler(population_size=24, seed=seed),
        "random": lambda: RandomSampler(seed=seed),
    }
    return makers[name]()


def _known_costs(proposals: Proposals) -> Callable[[dict[str, Any]], tuple[float, ...] | None]:
    """What is known of a point before it is trained: the objectives that cost, in their order."""
    known_of = proposals.guess_of or proposals.cost_of

    def costs_of(params: dict[str, Any]) -> tuple[float, ...] | None:
        try:
            known = known_of(proposals.space.architecture(params))
        except LrnasError:
            return None
        if proposals.limits.excess(known):
            return None
        return tuple(float(known[name]) for name in proposals.study.costs)

    return costs_of
