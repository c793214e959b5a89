"""A network within the limits of a search, looked for before anything is trained.

What networks cost is known beforehand. From the named ones and from some at random, one parameter after the other takes
the value that brings the costs nearest to the limits, until none brings them nearer. Limits that are out of reach even
so would have a search propose networks for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from lrnas.arch.architecture import Architecture
from lrnas.errors import LrnasError
from lrnas.models.plan import canonical_id
from lrnas.spaces.space import SearchSpace
from lrnas.study.manifest import StudyError
from lrnas.study.objectives import Costs, Limits

STARTS = 3
"""Of the named networks, the nearest ones, and as many points at random."""
WORDS = {
    "max_macs": ("multiply-accumulates at most", "raise"),
    "min_macs": ("multiply-accumulates at least", "lower"),
    "max_params": ("parameters at most", "raise"),
    "max_latency": ("ms at most", "raise"),
}
"""A limit in words, and what to do with it."""

Params = dict[str, Any]


def find_within(
    space: SearchSpace,
    limits: Limits,
    guess_of: Callable[[Architecture], Costs],
    cost_of: Callable[[Architecture], Costs] | None = None,
) -> Params | None:
    """A point within the limits where no named network is; None where one is. StudyError where none can be found.

    `guess_of` looks at hundreds of networks; where it only guesses, `cost_of` has the last word.
    """

    def far(params: Params) -> float:
        """By how much limits are broken."""
        try:
            return sum(limits.excess(guess_of(space.architecture(params))).values())
        except LrnasError:  # it makes no network, at this input size, say
            return float("inf")

    named = sorted((space.params_of(network) for network in (*space.points.values(), *space.seeds.values())), key=far)
    if limits == Limits() or (named and not far(named[0])):
        return None
    chance = random.Random(0)
    anywhere = [space.draw(chance) for _ in range(STARTS)]
    nearest = min((_approach(space, start, far) for start in (*named[:STARTS], *anywhere)), key=far)
    if not far(nearest):
        return nearest
    network = space.architecture(nearest)
    costs = (cost_of or guess_of)(network)
    if limits.excess(costs):
        raise StudyError(_refusal(space, limits, canonical_id(network), costs))
    return nearest


def _approach(space: SearchSpace, params: Params, far: Callable[[Params], float]) -> Params:
    """From a point to one that no change of a single parameter brings nearer."""
    least = far(params)
    before = None
    while least and least != before:
        before = least
        for parameter in space.parameters:
            for value in parameter.values:
                other = {**params, parameter.name: value}
                if (distance := far(other)) < least:
                    params, least = other, distance
    return params


def _refusal(space: SearchSpace, limits: Limits, name: str, costs: Costs) -> str:
    given = {limit: value for limit in WORDS if (value := getattr(limits, limit)) is not None}
    wanted = " and ".join(f"{value:,} {WORDS[limit][0]}" for limit, value in given.items())
    advice = " or ".join(f"{WORDS[limit][1]} {limit}" for limit in given)
    latency = f", and takes {costs['latency']:.3f} ms" if "latency" in costs else ""
    return (
        f"no network of {space.name} has {wanted}, as far as can be told before training; the nearest one, {name}, has "
        f"{costs['macs']:,.0f} multiply-accumulates and {costs['params']:,.0f} parameters{latency}; {advice}"
    )
