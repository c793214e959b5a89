"""Gaussian process that predicts accuracies, with their uncertainty, from costs and parameters. Needs only numpy."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

FIRST_ATTEMPTS, LATER_ATTEMPTS = 40, 8
"""Number of hyperparameters tried in a first fit, and in a fit that starts from earlier hyperparameters."""


@dataclass(frozen=True)
class Hyperparameters:
    """Scales and lengths of the kernel: a smooth function of the costs plus one of all parameters, plus noise.

    Scales and noise are in units of the standard deviation of the values.
    """

    cost_scale: float = 1.0
    cost_length: float = 1.5
    point_scale: float = 0.5
    point_length: float = 1.0
    noise: float = 0.2

    def perturbed(self, random: np.random.Generator, by: float) -> Hyperparameters:
        """Hyperparameters near these: each times a log-normal factor with standard deviation `by`, within bounds."""
        changed = np.exp(np.log(astuple(self)) + by * random.standard_normal(5))
        low, high = np.array([0.05, 0.3, 0.05, 0.2, 0.02]), np.array([5.0, 10.0, 3.0, 5.0, 1.0])
        return Hyperparameters(*map(float, np.clip(changed, low, high)))


@dataclass
class GaussianProcess:
    """Gaussian process conditioned on measured networks.

    Args:
        costs: (networks, costs), scaled to about 1.
        points: (networks, features), the encoded parameters, scaled to about 1.
        values: (networks,), the measurements.
        variances: (networks,), variance of each measurement beyond the common noise, in squared units of the values.
        settings: Hyperparameters of the kernel.
        squares: Squared distances between the rows of `costs` and of `points`, if they are known already.
    """

    costs: Array
    points: Array
    values: Array
    variances: Array
    settings: Hyperparameters
    squares: tuple[Array, Array] | None = None

    def __post_init__(self) -> None:
        self.mean = float(self.values.mean())
        self.spread = max(float(self.values.std()), 1e-6)
        targets = (self.values - self.mean) / self.spread
        variances = self.settings.noise**2 + self.variances / self.spread**2 + 1e-8
        number = len(targets)
        # with the targets as one more row, that row of the factor is the solution for the targets
        whole = np.empty((number + 1, number + 1))
        whole[:number, :number] = self._kernel(self.costs, self.points, self.squares)
        whole[range(number), range(number)] += variances
        whole[number, :number] = whole[:number, number] = targets
        whole[number, number] = targets @ targets / variances.min() + 1  # large enough to be positive definite
        factor = np.linalg.cholesky(whole)
        self.factor, self.solved = factor[:number, :number], factor[number, :number]

    def _kernel(self, costs: Array, points: Array, squares: tuple[Array, Array] | None = None) -> Array:
        """Covariances between the given rows and the measured ones."""
        s = self.settings
        cost_squares, point_squares = squares or (_squares(costs, self.costs), _squares(points, self.points))
        of_costs = np.exp(cost_squares * (-0.5 / s.cost_length**2))
        of_points = np.exp(point_squares * (-0.5 / (s.point_length**2 * points.shape[1])))
        return np.asarray(s.cost_scale**2 * of_costs + s.point_scale**2 * of_points)

    def log_likelihood(self) -> float:
        return float(-0.5 * self.solved @ self.solved - np.log(np.diag(self.factor)).sum())

    def predict(self, costs: Array, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at other networks, without the noise of a measurement."""
        explained = np.linalg.solve(self.factor, self._kernel(costs, points).T)
        s = self.settings
        variance = s.cost_scale**2 + s.point_scale**2 - (explained**2).sum(axis=0)
        mean = np.asarray(self.mean + self.spread * (self.solved @ explained))
        return mean, self.spread * np.sqrt(np.maximum(variance, 1e-10))

    def with_expected(self, costs: Array, points: Array) -> GaussianProcess:
        """The process as if more networks had been measured, each with the value that is predicted for it."""
        known = self.costs, self.points, self.values, self.variances
        new = costs, points, self.predict(costs, points)[0], np.zeros(len(costs))
        all_costs, all_points, values, variances = map(np.concatenate, zip(known, new, strict=True))
        return GaussianProcess(all_costs, all_points, values, variances, self.settings)


def fit(
    costs: Array,
    points: Array,
    values: Array,
    variances: Array,
    random: np.random.Generator,
    start: Hyperparameters | None = None,
) -> GaussianProcess:
    """Fit the hyperparameters by random search for the highest likelihood.

    Args:
        costs: As in `GaussianProcess`.
        points: As in `GaussianProcess`.
        values: As in `GaussianProcess`.
        variances: As in `GaussianProcess`.
        random: Random generator for the hyperparameters that are tried.
        start: Hyperparameters of an earlier fit to similar data; None: try more hyperparameters, farther from the
            default.
    """
    settings = start or Hyperparameters()
    squares = _squares(costs, costs), _squares(points, points)
    best = GaussianProcess(costs, points, values, variances, settings, squares)
    for i in range(1, LATER_ATTEMPTS if start else FIRST_ATTEMPTS):
        is_far = start is None and i < FIRST_ATTEMPTS // 2
        settings = best.settings.perturbed(random, 0.8 if is_far else 0.25)
        process = GaussianProcess(costs, points, values, variances, settings, squares)
        best = max(best, process, key=GaussianProcess.log_likelihood)
    return best


def _squares(left: Array, right: Array) -> Array:
    """Squared distances between rows."""
    products = left @ right.T
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * products
    return np.asarray(np.maximum(squares, 0.0))
