"""Final accuracies predicted from curves of trainings that are not over.

For each epoch, the final accuracy is a linear function of the accuracy after that epoch and of the logarithms of the
costs, fitted to the complete trainings. Its coefficients are shrunk towards "the final accuracy is this one plus a
constant". The spread of the complete trainings around it says how much a prediction is worth: little where curves
cross, for example at the peak of the learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

CURVE = "curve"
"""User attribute of a trial: the values of the first objective so far, one per epoch."""
MIN_CURVES = 4
"""Number of complete curves below which nothing is predicted."""


class CurveModel:
    """Predicts final accuracies from the accuracies after the first epochs.

    Args:
        curves: Accuracy after each epoch, of complete trainings.
        log_costs: (trainings, costs), logarithms of their costs.
    """

    def __init__(self, curves: Sequence[Sequence[float]], log_costs: Array) -> None:
        self.curves, self.log_costs = curves, log_costs
        self._fits: dict[int, _Line | None] = {}

    def predict(self, curve: Sequence[float], log_costs: Array) -> tuple[float, float] | None:
        """Expected final accuracy of a training, and the variance of the error of this prediction.

        Args:
            curve: Accuracy after each epoch so far.
            log_costs: (costs,), logarithms of the costs.

        Returns:
            Mean and variance; None if the curve is empty, or if too few complete trainings are longer.
        """
        epoch = len(curve)
        if not epoch:
            return None
        if epoch not in self._fits:
            self._fits[epoch] = self._fit(epoch)
        line = self._fits[epoch]
        return None if line is None else line.predict(curve[-1], log_costs)

    def _fit(self, epoch: int) -> _Line | None:
        longer = [i for i, curve in enumerate(self.curves) if len(curve) > epoch]
        if len(longer) < MIN_CURVES:
            return None
        early, final = (np.array([self.curves[i][at] for i in longer]) for at in (epoch - 1, -1))
        return _Line(early, final, self.log_costs[longer])


class _Line:
    """Bayesian linear regression of the gain from one epoch to the last."""

    def __init__(self, early: Array, final: Array, log_costs: Array) -> None:
        inputs = np.column_stack([early, log_costs])
        self.center, self.scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
        gains = final - early
        self.gain = float(gains.mean())
        terms = (inputs - self.center) / self.scale
        number, spread = len(gains), float(gains.var()) + 1e-8
        variance = spread  # of the gains around the line; the coefficients' prior has the variance of the gains
        for _ in range(10):
            precision = terms.T @ terms / variance + np.eye(terms.shape[1]) / spread
            self.inverse = np.linalg.inv(precision)
            self.slopes = self.inverse @ terms.T @ (gains - self.gain) / variance
            used = 1 + float(np.trace(self.inverse @ terms.T @ terms)) / variance  # degrees of freedom
            squares = float(((gains - self.gain - terms @ self.slopes) ** 2).sum())
            variance = max(squares / max(number - used, 1.0), 1e-8)
        few = 1 + 3 / max(number - used, 1.0)  # the variance itself is not sure
        self.variance, self.inverse = variance * few * (1 + 1 / number), self.inverse * few

    def predict(self, early: float, log_costs: Array) -> tuple[float, float]:
        terms = (np.concatenate([[early], log_costs]) - self.center) / self.scale
        mean = early + self.gain + float(terms @ self.slopes)
        return mean, self.variance + float(terms @ self.inverse @ terms)
