"""A small Gaussian process for accuracies: what to expect of a network, and how sure that is. numpy only."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

SETTINGS, AGAIN = 40, 8
"""Hyperparameters that are tried in a first fit, and in one that starts from those of another."""


@dataclass(frozen=True)
class Hyperparameters:
    """Of a sum of two smooth functions, one of the costs, one of all parameters, in units of the data's spread."""

    cost_scale: float = 1.0
    cost_length: float = 1.5
    point_scale: float = 0.5
    point_length: float = 1.0
    noise: float = 0.2

    def perturbed(self, random: np.random.Generator, by: float) -> Hyperparameters:
        values = (self.cost_scale, self.cost_length, self.point_scale, self.point_length, self.noise)
        changed = np.exp(np.log(values) + by * random.standard_normal(5))
        low, high = np.array([0.05, 0.3, 0.05, 0.2, 0.02]), np.array([5.0, 10.0, 3.0, 5.0, 1.0])
        return Hyperparameters(*map(float, np.clip(changed, low, high)))


@dataclass
class GaussianProcess:
    """Fitted to some networks; predicts others. Costs and points are rows of numbers of about the size of 1."""

    costs: Array
    points: Array
    values: Array
    """What was measured."""
    variances: Array
    """Of each measurement, beyond the noise that all of them have; in units of the values."""
    settings: Hyperparameters
    squares: tuple[Array, Array] | None = None
    """Distances between the rows, of costs and of points, where they are known: they do not depend on the settings."""

    def __post_init__(self) -> None:
        self.mean = float(self.values.mean())
        self.spread = max(float(self.values.std()), 1e-6)
        targets = (self.values - self.mean) / self.spread
        variances = self.settings.noise**2 + self.variances / self.spread**2 + 1e-8
        number = len(targets)
        # the targets as one more row: that of the factor then solves for them, which saves doing so again
        whole = np.empty((number + 1, number + 1))
        whole[:number, :number] = self._kernel(self.costs, self.points, self.squares)
        whole[range(number), range(number)] += variances
        whole[number, :number] = whole[:number, number] = targets
        whole[number, number] = targets @ targets / variances.min() + 1  # enough for it to have a factor
        factor = np.linalg.cholesky(whole)
        self.factor, self.solved = factor[:number, :number], factor[number, :number]

    def _kernel(self, costs: Array, points: Array, squares: tuple[Array, Array] | None = None) -> Array:
        """Of rows with the fitted ones."""
        s = self.settings
        of_costs, of_points = squares or (_squares(costs, self.costs), _squares(points, self.points))
        near_in_cost = np.exp(of_costs * (-0.5 / s.cost_length**2))
        near = np.exp(of_points * (-0.5 / (s.point_length**2 * points.shape[1])))
        return np.asarray(s.cost_scale**2 * near_in_cost + s.point_scale**2 * near)

    def log_likelihood(self) -> float:
        return float(-0.5 * self.solved @ self.solved - np.log(np.diag(self.factor)).sum())

    def predict(self, costs: Array, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation, without the noise."""
        explained = np.linalg.solve(self.factor, self._kernel(costs, points).T)
        s = self.settings
        variance = s.cost_scale**2 + s.point_scale**2 - (explained**2).sum(axis=0)
        mean = np.asarray(self.mean + self.spread * (self.solved @ explained))
        return mean, self.spread * np.sqrt(np.maximum(variance, 1e-10))

    def with_believed(self, costs: Array, points: Array) -> GaussianProcess:
        """As if some more had been measured and came out as expected."""
        if not len(costs):
            return self
        expected, _ = self.predict(costs, points)
        return GaussianProcess(
            np.concatenate([self.costs, costs]),
            np.concatenate([self.points, points]),
            np.concatenate([self.values, expected]),
            np.concatenate([self.variances, np.zeros(len(costs))]),
            self.settings,
        )


def fit(
    costs: Array,
    points: Array,
    values: Array,
    variances: Array,
    random: np.random.Generator,
    start: Hyperparameters | None = None,
) -> GaussianProcess:
    """The most likely of some settings: `start`, or else ones that were found far and wide, and others near them."""
    best, likelihood = None, -math.inf
    settings = start or Hyperparameters()
    squares = _squares(costs, costs), _squares(points, points)
    for i in range(AGAIN if start else SETTINGS):
        far = start is None and i < SETTINGS // 2
        tried = settings if i == 0 else settings.perturbed(random, 0.8 if far else 0.25)
        process = GaussianProcess(costs, points, values, variances, tried, squares)
        found = process.log_likelihood()
        if best is None or found > likelihood:
            best, likelihood, settings = process, found, tried
    assert best is not None
    return best


def _squares(left: Array, right: Array) -> Array:
    """Squared distances between rows."""
    products = left @ right.T
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * products
    return np.asarray(np.maximum(squares, 0.0))
