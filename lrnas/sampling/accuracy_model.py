"""Gaussian process that predicts accuracies, with their uncertainty, from costs and parameters.

The accuracy of a network is a polynomial in the logarithms of its costs, plus a smooth function of its parameters, plus
the noise of one training. Parameters of one kind, for example all widths, share a length scale. Measurements may have
several levels, for example short and full trainings: each level is a multiple of the one below, plus an offset and a
smaller function of its own, so that cheap measurements inform predictions at dear levels.

Hyperparameters maximise the likelihood times a weak prior, with gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, lapack, solve_triangular
from scipy.optimize import minimize

Array = npt.NDArray[np.float64]

MAX_FITTED = 200
"""Hyperparameters are fitted to at most this many measurements; predictions use all."""
MAX_STEPS = 60
"""Number of steps of the optimiser."""
TREND_VARIANCES = (4.0, 4.0, 1.0)
"""Prior variances of the intercept, the linear and the quadratic coefficients, in units of the standardised values."""
OFFSET_VARIANCE = 4.0
"""Prior variance of the offset of a level."""
JITTER = 1e-8


@dataclass(frozen=True, eq=False)
class Inputs:
    """Networks, as the model sees them.

    Args:
        log_costs: (networks, costs), logarithms of all known costs; the trend is quadratic in the first.
        points: (networks, features), encoded parameters, scaled to about 1.
        levels: (networks,), the level of each measurement, 0 for the lowest.
    """

    log_costs: Array
    points: Array
    levels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.points)

    def take(self, rows: npt.NDArray[np.int64]) -> Inputs:
        """Some of the networks, by their indices."""
        return Inputs(self.log_costs[rows], self.points[rows], self.levels[rows])


class _Prior(NamedTuple):
    """Normal prior of a hyperparameter, and its bounds."""

    mean: float
    deviation: float
    low: float
    high: float


def _log_prior(middle: float, deviation: float, low: float, high: float) -> _Prior:
    return _Prior(math.log(middle), deviation, math.log(low), math.log(high))


# Scales and noise are in units of the standard deviation of the values, lengths in units of the range of a parameter.
_SCALE = _log_prior(1.0, 0.5, 0.02, 5.0)
_LENGTH = _log_prior(1.0, 0.5, 0.1, 20.0)
_NOISE = _log_prior(0.15, 0.5, 0.01, 2.0)
_SLOPE = _Prior(0.5, 0.2, 0.05, 3.0)  # longer trainings tell networks apart less: by half in results/table
# With levels between: a lead that lasts until the first of them lasts to the end, in two studies in results/studies.
_FIRST_STEP, _LATER_STEP = _Prior(0.6, 0.3, 0.05, 3.0), _Prior(1.0, 0.1, 0.05, 3.0)
_OWN_SCALE = _log_prior(0.2, 0.5, 0.01, 5.0)


class _Hyperparameters:
    """Hyperparameters by name.

    Args:
        vector: (1 + kinds + levels + 2 × (levels - 1),), logarithms of the scale, the lengths and the noise, then the
            step and the logarithm of the scale of each level above 0.
        num_kinds: Number of kinds of parameters.
        num_levels: Number of levels.
    """

    def __init__(self, vector: Array, num_kinds: int, num_levels: int) -> None:
        parts = np.split(vector, [1, 1 + num_kinds, 1 + num_kinds + num_levels])
        self.variance = float(np.exp(2 * parts[0][0]))
        """Variance of the smooth function."""
        self.lengths = np.exp(2 * parts[1])
        """(kinds,), squared length scales."""
        self.noise = np.exp(2 * parts[2])
        """(levels,), variances between trainings of the same network."""
        self.steps = np.concatenate([[1.0], parts[3][::2]])
        """(levels,), factors of the level below."""
        self.own = np.concatenate([[0.0], np.exp(2 * parts[3][1::2])])
        """(levels,), variances of each level's own function."""
        self.shares = np.tril(np.cumprod(self.steps)[:, None] / np.cumprod(self.steps))
        """(levels, levels), the share of each level's function, in columns, that is in a level, in rows."""

    @staticmethod
    def priors(num_kinds: int, num_levels: int) -> list[_Prior]:
        """Priors of the entries of a vector."""
        steps = {1: [], 2: [_SLOPE]}.get(num_levels, [_FIRST_STEP, *[_LATER_STEP] * (num_levels - 2)])
        each_level = [prior for step in steps for prior in (step, _OWN_SCALE)]
        return [_SCALE, *[_LENGTH] * num_kinds, *[_NOISE] * num_levels, *each_level]


class AccuracyModel:
    """Gaussian process conditioned on measured networks.

    Args:
        inputs: The measured networks.
        values: (networks,), the measurements.
        variances: (networks,), variance of each measurement beyond the noise of one training, in squared units of the
            values.
        kinds: (features,), the kind of parameter that each feature belongs to, as numbers from 0.
        start: `hyperparameters` of an earlier model of similar measurements, from which the fit starts.
    """

    def __init__(
        self, inputs: Inputs, values: Array, variances: Array, kinds: Sequence[int], start: Array | None = None
    ) -> None:
        self.inputs, self.kinds = inputs, np.asarray(kinds)
        self.num_kinds, self.num_levels = int(self.kinds.max()) + 1, int(inputs.levels.max()) + 1
        members = [values[inputs.levels == level] for level in range(self.num_levels)]
        self._centers = np.array([own.mean() if len(own) else values.mean() for own in members])
        lowest = next(own for own in members if len(own))
        self._spread = max(float(lowest.std()), 1e-6)
        self._cost_center, self._cost_spread = inputs.log_costs.mean(axis=0), inputs.log_costs.std(axis=0) + 1e-6
        self._targets, self._variances = (
            (values - self._centers[inputs.levels]) / self._spread,
            variances / self._spread**2,
        )
        self.hyperparameters: Array = self._fit(start)
        self._settings = _Hyperparameters(self.hyperparameters, self.num_kinds, self.num_levels)
        self.noise: Array = self._spread * np.sqrt(self._settings.noise)
        """(levels,), standard deviation between trainings of the same network."""
        whole = self._covariance(inputs, inputs)
        whole[np.diag_indices_from(whole)] += self._settings.noise[inputs.levels] + self._variances + JITTER
        self._factor = cholesky(whole, lower=True)
        self._solved = solve_triangular(self._factor, self._targets, lower=True)

    def predict(self, inputs: Inputs) -> tuple[Array, Array]:
        """Mean and standard deviation of the true accuracies of networks, that is, without the noise of a training."""
        explained = self._explain(inputs)
        variance = self._variance(inputs) - (explained**2).sum(axis=0)
        mean = self._centers[inputs.levels] + self._spread * (self._solved @ explained)
        return np.asarray(mean), self._spread * np.sqrt(np.maximum(variance, 1e-10))

    def covariance(self, left: Inputs, right: Inputs) -> Array:
        """(left, right), covariances of the true accuracies of networks, given the measurements."""
        found = self._covariance(left, right) - self._explain(left).T @ self._explain(right)
        return np.asarray(self._spread**2 * found)

    def sample(self, inputs: Inputs, number: int, random: np.random.Generator) -> Array:
        """(number, networks), joint samples of the true accuracies of networks, given the measurements."""
        covariance = self.covariance(inputs, inputs) + 1e-6 * self._spread**2 * np.eye(len(inputs))
        normal = random.standard_normal((number, len(inputs)))
        return np.asarray(self.predict(inputs)[0] + normal @ cholesky(covariance, lower=True).T)

    def _explain(self, inputs: Inputs) -> Array:
        return np.asarray(solve_triangular(self._factor, self._covariance(self.inputs, inputs), lower=True))

    # --- covariances before any measurement

    def _trend(self, inputs: Inputs) -> Array:
        """(networks, terms), terms of the polynomial in the costs, such that all coefficients have variance 1."""
        scaled = (inputs.log_costs - self._cost_center) / self._cost_spread
        terms = [np.ones((len(scaled), 1)), scaled, scaled[:, :1] ** 2]
        return np.concatenate([math.sqrt(v) * term for v, term in zip(TREND_VARIANCES, terms, strict=True)], axis=1)

    def _squares(self, left: Inputs, right: Inputs) -> Array:
        """(kinds, left, right), mean squared differences of the features of each kind."""
        found = np.empty((self.num_kinds, len(left), len(right)))
        for kind in range(self.num_kinds):
            one, other = left.points[:, self.kinds == kind], right.points[:, self.kinds == kind]
            squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None, :] - 2 * one @ other.T
            found[kind] = np.maximum(squares, 0.0) / one.shape[1]
        return found

    def _covariance(self, left: Inputs, right: Inputs) -> Array:
        settings = self._settings
        root = np.sqrt(5 * np.tensordot(1 / settings.lengths, self._squares(left, right), 1))
        smooth = (1 + root + root**2 / 3) * np.exp(-root)  # Matérn kernel with smoothness 5/2
        base = self._trend(left) @ self._trend(right).T + settings.variance * smooth
        if self.num_levels == 1:
            return np.asarray(base)
        one, other = settings.shares[left.levels], settings.shares[right.levels]
        whole = np.outer(one[:, 0], other[:, 0]) * base
        for level in range(1, self.num_levels):
            whole += np.outer(one[:, level], other[:, level]) * (OFFSET_VARIANCE + settings.own[level] * smooth)
        return np.asarray(whole)

    def _variance(self, inputs: Inputs) -> Array:
        """(networks,), the diagonal of `_covariance`."""
        settings = self._settings
        base = (self._trend(inputs) ** 2).sum(axis=1) + settings.variance
        squares = settings.shares[inputs.levels] ** 2
        return np.asarray(squares[:, 0] * base + squares[:, 1:] @ (OFFSET_VARIANCE + settings.own[1:]))

    # --- the fit

    def _fit(self, start: Array | None) -> Array:
        """Hyperparameters with the highest likelihood times prior."""
        priors = _Hyperparameters.priors(self.num_kinds, self.num_levels)
        first = np.array([prior.mean for prior in priors])
        found = minimize(
            self._loss_function(),
            start if start is not None and len(start) == len(first) else first,
            jac=True,
            method="L-BFGS-B",
            bounds=[(prior.low, prior.high) for prior in priors],
            options={"maxiter": MAX_STEPS},
        )
        return np.asarray(found.x)

    def _loss_function(self) -> Callable[[Array], tuple[float, Array]]:
        """The negative logarithm of likelihood times prior, up to a constant, and its gradient, as a function."""
        rows = np.unique(np.linspace(0, len(self._targets) - 1, MAX_FITTED).astype(np.int64))
        inputs, targets, variances = self.inputs.take(rows), self._targets[rows], self._variances[rows]
        levels, squares, terms = inputs.levels, self._squares(inputs, inputs), self._trend(inputs)
        trend, above = terms @ terms.T, range(1, self.num_levels)
        priors = _Hyperparameters.priors(self.num_kinds, self.num_levels)
        means, deviations = np.array([p.mean for p in priors]), np.array([p.deviation for p in priors])
        diagonal = np.diag_indices(len(rows))

        def loss(vector: Array) -> tuple[float, Array]:
            settings = _Hyperparameters(vector, self.num_kinds, self.num_levels)
            root = np.sqrt(5 * np.tensordot(1 / settings.lengths, squares, 1))
            decay = np.exp(-root)
            smooth = (1 + root + root**2 / 3) * decay
            shares = settings.shares[levels]
            products = shares.T[:, :, None] * shares.T[:, None, :]  # (levels, networks, networks)
            parts = [products[0] * (trend + settings.variance * smooth)]
            parts += [products[level] * (OFFSET_VARIANCE + settings.own[level] * smooth) for level in above]
            whole = np.sum(parts, axis=0)
            whole[diagonal] += settings.noise[levels] + variances + JITTER
            factor = cholesky(whole, lower=True, check_finite=False)
            solved = cho_solve((factor, True), targets, check_finite=False)
            inverse = lapack.dpotri(factor, lower=True)[0]
            inverse = np.tril(inverse) + np.tril(inverse, -1).T
            apart = (vector - means) / deviations
            value = 0.5 * targets @ solved + np.log(np.diag(factor)).sum() + 0.5 * apart @ apart

            weights = inverse - np.outer(solved, solved)  # twice the derivative with respect to `whole`
            variances_of = np.array([settings.variance, *settings.own[1:]])
            smooths = (weights * smooth * products).sum(axis=(1, 2)) * variances_of
            slopes_of_smooth = np.tensordot(variances_of, products, 1) * weights * ((1 + root) * decay)
            of_lengths = (5 / 6) * np.tensordot(squares, slopes_of_smooth, 2) / settings.lengths
            of_noise = settings.noise * np.bincount(levels, weights[diagonal], self.num_levels)
            below = np.cumsum(parts, axis=0)  # what levels below each one contribute to its covariances
            of_steps = [(weights * below[k - 1])[levels >= k].sum() / settings.steps[k] for k in above]
            of_levels = [value for k in above for value in (of_steps[k - 1], smooths[k])]
            gradient = np.concatenate([[smooths[0]], of_lengths, of_noise, of_levels])
            return float(value), gradient + apart / deviations

        return loss
