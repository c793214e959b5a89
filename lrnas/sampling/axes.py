"""The parameters of a search as axes with a finite number of values, and random changes of known points.

A point is an array of indices, one per axis.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

Array = npt.NDArray[np.float64]
Point = npt.NDArray[np.int64]
Params = dict[str, Any]

MAX_VALUES = 65
"""Number of values that a parameter with more values, or with a continuous range, is reduced to."""
MAX_KEPT = 4096
"""Number of points whose parameters without effect are kept."""
LOG_RATIO = 4
"""A parameter is measured by its logarithm if its largest value is at least this many times its smallest."""


@dataclass(frozen=True, eq=False)
class Axis:
    """One parameter: its values in order, and their features for a model."""

    name: str
    kind: int
    """Parameters of the same kind share a length scale, and may be changed together."""
    values: tuple[Any, ...]
    ordered: bool
    features: Array
    """(values, features): a number from 0 to 1 for an ordered parameter, one-hot for any other."""

    def index(self, value: Any) -> int:
        """The index of a value; of an ordered parameter, that of the nearest one."""
        if self.ordered and value not in self.values:
            return int(np.argmin([abs(own - value) for own in self.values]))
        return self.values.index(value)

    def shift(self, index: int, steps: int) -> int:
        """The index some steps away, at most the first or last one. With many values, a step is a twelfth of them."""
        size = max(1, len(self.values) // 12)
        return min(max(index + steps * size, 0), len(self.values) - 1)


def last_part(name: str) -> str:
    """The part of a name after its last dot; `width` for `conv1.width`."""
    return name.rpartition(".")[2]


class Axes:
    """All parameters of a search.

    Args:
        distributions: Optuna's distributions by name.
        kind_of: Returns the kind of a parameter, given its name.
        idle_at: Returns the names of the parameters that have no effect at a point; None: all have one everywhere.
    """

    def __init__(
        self,
        distributions: Mapping[str, BaseDistribution],
        kind_of: Callable[[str], str] = last_part,
        idle_at: Callable[[Params], Collection[str]] | None = None,
    ) -> None:
        self._idle_at = idle_at
        self._idle = functools.lru_cache(MAX_KEPT)(self._find_idle)  # known points are encoded again for each proposal
        kinds = list(dict.fromkeys(kind_of(name) for name in distributions))
        self.axes = [_read(name, own, kinds.index(kind_of(name))) for name, own in distributions.items()]
        self._means = [axis.features.mean(axis=0) for axis in self.axes]
        self.kinds = [axis.kind for axis in self.axes for _ in range(axis.features.shape[1])]
        """The kind of parameter that each feature belongs to, as numbers from 0."""
        self._numbers = {axis.name: i for i, axis in enumerate(self.axes)}
        self._varied = [i for i, axis in enumerate(self.axes) if len(axis.values) > 1]
        ordered: dict[int, list[int]] = {}
        for i in self._varied:
            if self.axes[i].ordered:
                ordered.setdefault(self.axes[i].kind, []).append(i)
        self._alike = [indices for indices in ordered.values() if len(indices) > 1]
        """Indices of ordered parameters of the same kind."""

    def params(self, point: Point | Sequence[int]) -> Params:
        """The values of all parameters at a point."""
        return {axis.name: axis.values[i] for axis, i in zip(self.axes, point, strict=True)}

    def point(self, params: Mapping[str, Any]) -> Point:
        """The point with these values, or with the nearest ones of ordered parameters."""
        return np.array([axis.index(params[axis.name]) for axis in self.axes])

    def encode(self, points: Sequence[Point]) -> Array:
        """(points, features): features of points. Those of a parameter without effect do not depend on its value."""
        table = np.array(points, dtype=np.int64).reshape(-1, len(self.axes))
        parts = [axis.features[table[:, i]] for i, axis in enumerate(self.axes)]
        for row, point in enumerate(table.tolist()):
            for i in self._idle(tuple(point)):
                parts[i][row] = self._means[i]
        return np.concatenate(parts, axis=1)

    def _find_idle(self, point: tuple[int, ...]) -> list[int]:
        """The numbers of the parameters without effect at a point."""
        return [] if self._idle_at is None else [self._numbers[name] for name in self._idle_at(self.params(point))]

    def draw(self, random: np.random.Generator) -> Point:
        """A random point. Half of the time, ordered parameters of the same kind are close to each other."""
        point = np.array([random.integers(len(axis.values)) for axis in self.axes])
        for alike in self._alike:
            if random.random() < 0.5:
                middle = random.random()
                for i in alike:
                    place = min(max(middle + 0.2 * (random.random() - 0.5), 0.0), 0.999)
                    point[i] = int(place * len(self.axes[i].values))
        return point

    def mutate(self, parents: Sequence[Point], random: np.random.Generator) -> Point:
        """A new point near one of the parents.

        A few parameters are changed. Before that, with 30 % probability each, the point is mixed with another parent
        and all ordered parameters of one kind are shifted together; for widths, this moves along the front.

        Args:
            parents: Points to start from.
            random: Generator of all random choices.
        """
        point = parents[int(random.integers(len(parents)))].copy()
        if random.random() < 0.3:
            other = parents[int(random.integers(len(parents)))]
            point = np.where(random.random(len(point)) < 0.5, other, point)
        if self._alike and random.random() < 0.3:
            steps = _draw_steps(random)
            for i in self._alike[int(random.integers(len(self._alike)))]:
                point[i] = self.axes[i].shift(int(point[i]), steps)
        for i in random.permutation(self._varied)[: random.poisson(1.5) + 1]:
            axis = self.axes[i]
            if axis.ordered and random.random() < 0.7:
                point[i] = axis.shift(int(point[i]), _draw_steps(random))
            else:
                point[i] = random.integers(len(axis.values))
        return point


def _draw_steps(random: np.random.Generator) -> int:
    return int(random.choice([-2, -1, 1, 2]))


def _read(name: str, distribution: BaseDistribution, kind: int) -> Axis:
    """The axis of a distribution. Choices that are numbers in increasing order are an ordered parameter."""
    values = _values(distribution)
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or numbers != sorted(numbers):
        return Axis(name, kind, values, False, math.sqrt(0.5) * np.eye(len(values)))
    places = np.array(numbers, dtype=np.float64)
    if places[0] > 0 and places[-1] >= LOG_RATIO * places[0]:
        places = np.log(places)
    features = (places - places[0]) / max(places[-1] - places[0], 1e-12)
    return Axis(name, kind, values, True, features[:, None])


def _values(distribution: BaseDistribution) -> tuple[Any, ...]:
    """All values of a distribution, or `MAX_VALUES` of them."""
    if isinstance(distribution, CategoricalDistribution):
        return tuple(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution), distribution
    low, high, step = distribution.low, distribution.high, distribution.step
    if distribution.log:
        values = np.exp(np.linspace(math.log(low), math.log(high), MAX_VALUES)).clip(low, high)
    else:
        number = MAX_VALUES if step is None else min(MAX_VALUES, round((high - low) / step) + 1)
        values = np.linspace(low, high, number)
        if step is not None:
            values = (low + step * np.round((values - low) / step)).clip(low, high)
    kind = int if isinstance(distribution, IntDistribution) else float
    return tuple(dict.fromkeys(kind(round(value) if kind is int else value) for value in values))
