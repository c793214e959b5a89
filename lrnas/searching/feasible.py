"""Check, before anything is trained, that some network of the space is within the limits of a search.

Costs are known before training. Starting from the named networks and from random points, one parameter after the other
is set to the value that brings the costs closest to the limits, until no single change helps. Without this check, a
search would propose networks forever if none is within the limits.
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

NUM_STARTS = 3
"""Number of named networks, those closest to the limits, and of random points to start from."""

Params = dict[str, Any]


def find_feasible(
    space: SearchSpace,
    limits: Limits,
    estimate_of: Callable[[Architecture], Costs],
    cost_of: Callable[[Architecture], Costs] | None = None,
) -> Params | None:
    """Find a point within the limits, if no named network is within them.

    Args:
        space: The search space.
        limits: Limits on the costs.
        estimate_of: Fast estimate of a network's costs; called for hundreds of networks.
        cost_of: Exact costs, which decide if the estimate is beyond the limits; None: `estimate_of` is exact.

    Returns:
        The point, or None if a named network is within the limits.

    Raises:
        StudyError: No network within the limits was found.
    """

    def excess(params: Params) -> float:
        """How far a point is beyond the limits."""
        try:
            return sum(limits.excess(estimate_of(space.architecture(params))).values())
        except LrnasError:  # this point makes no valid network, for example at this input size
            return float("inf")

    networks = (*space.points.values(), *space.uniform.values())
    named = sorted((space.params_of(network) for network in networks), key=excess)
    if limits == Limits() or (named and not excess(named[0])):
        return None
    generator = random.Random(0)
    starts = [*named[:NUM_STARTS], *(space.draw(generator) for _ in range(NUM_STARTS))]
    closest = min((_reduce(space, start, excess) for start in starts), key=excess)
    if excess(closest):
        network = space.architecture(closest)
        costs = (cost_of or estimate_of)(network)
        if limits.excess(costs):
            identity = canonical_id(network)
            names = {canonical_id(each): name for name, each in {**space.points, **space.uniform}.items()}
            raise StudyError(_refusal(space, limits, names.get(identity, identity), costs))
    return closest


def _reduce(space: SearchSpace, params: Params, excess: Callable[[Params], float]) -> Params:
    """Change single parameters until no change reduces the excess any more."""
    least, before = excess(params), None
    while least and least != before:
        before = least
        for parameter in space.parameters:
            for value in parameter.values:
                other = {**params, parameter.name: value}
                if (distance := excess(other)) < least:
                    params, least = other, distance
    return params


def _refusal(space: SearchSpace, limits: Limits, name: str, costs: Costs) -> str:
    given = {f"--{limit.replace('_', '-')}": value for limit, value in limits.given().items()}
    wanted = " and ".join(f"{limit} {value:,}" for limit, value in given.items())
    advice = " or ".join(f"{'lower' if limit == '--min-macs' else 'raise'} {limit}" for limit in given)
    latency = f" and takes {costs['latency']:.3f} ms" if "latency" in costs else ""
    return (
        f"no network of {space.name} was found within {wanted}; the closest one, {name}, has "
        f"{costs['macs']:,.0f} multiply-accumulates and {costs['params']:,.0f} parameters{latency}; {advice}"
    )
