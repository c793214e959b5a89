"""Steps from known points of a space to others near them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrnas.spaces.parameters import Parameter


def step_away(
    parameters: Sequence[Parameter], parents: Sequence[Mapping[str, Any]], random: np.random.Generator
) -> dict[str, Any]:
    """A point near one of the parents: mixed with another, with all widths scaled, at times; and a few changes."""
    params = dict(parents[int(random.integers(len(parents)))])
    if random.random() < 0.3:
        other = parents[int(random.integers(len(parents)))]
        params |= {name: value for name, value in other.items() if random.random() < 0.5}
    if random.random() < 0.3:  # all widths by a step or two: along the front
        by = int(random.choice([-2, -1, 1, 2]))
        for parameter in parameters:
            if is_width(parameter):
                params[parameter.name] = _moved(parameter, params[parameter.name], by)
    for i in random.permutation(len(parameters))[: random.poisson(1.5) + 1]:
        parameter = parameters[i]
        if parameter.ordered and random.random() < 0.7:
            by = int(random.choice([-2, -1, 1, 2]))
            params[parameter.name] = _moved(parameter, params[parameter.name], by)
        else:
            params[parameter.name] = parameter.values[random.integers(len(parameter.values))]
    return params


def is_width(parameter: Parameter) -> bool:
    """Whether it scales a number of channels."""
    return parameter.ordered and parameter.name.endswith("width")


def _moved(parameter: Parameter, value: object, by: int) -> Any:
    """The value some steps away, or the last one there is."""
    index = parameter.values.index(parameter.match(value)) + by
    return parameter.values[min(max(index, 0), len(parameter.values) - 1)]
