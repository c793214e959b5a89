"""Random changes of known points of a space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrnas.spaces.parameters import Parameter


def mutate(
    parameters: Sequence[Parameter], parents: Sequence[Mapping[str, Any]], random: np.random.Generator
) -> dict[str, Any]:
    """A new point near one of the parents.

    A few parameters are changed. Before that, with 30 % probability each, the point is mixed with another parent and
    all its widths are scaled.

    Args:
        parameters: The parameters that may change.
        parents: Points to start from, with a value for every parameter.
        random: Generator of all random choices.

    Returns:
        A value for every parameter.
    """
    params = dict(parents[int(random.integers(len(parents)))])
    if random.random() < 0.3:
        other = parents[int(random.integers(len(parents)))]
        params |= {name: value for name, value in other.items() if random.random() < 0.5}
    if random.random() < 0.3:  # scaling all widths together moves along the front
        steps = _draw_steps(random)
        for parameter in filter(is_width, parameters):
            params[parameter.name] = _shift(parameter, params[parameter.name], steps)
    for i in random.permutation(len(parameters))[: random.poisson(1.5) + 1]:
        parameter = parameters[i]
        if parameter.ordered and random.random() < 0.7:
            params[parameter.name] = _shift(parameter, params[parameter.name], _draw_steps(random))
        else:
            params[parameter.name] = parameter.values[random.integers(len(parameter.values))]
    return params


def is_width(parameter: Parameter) -> bool:
    """Whether a parameter scales a number of channels."""
    return parameter.ordered and parameter.name.endswith("width")


def _draw_steps(random: np.random.Generator) -> int:
    return int(random.choice([-2, -1, 1, 2]))


def _shift(parameter: Parameter, value: object, steps: int) -> Any:
    """The value of an ordered parameter some steps away, at most the first or last one."""
    index = parameter.values.index(parameter.match(value)) + steps
    return parameter.values[min(max(index, 0), len(parameter.values) - 1)]
