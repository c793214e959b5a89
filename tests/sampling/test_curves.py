"""Final accuracies predicted from curves that are not over."""

import numpy as np
import pytest
from trained_networks import read_curves

from lrnas.sampling.curves import MIN_CURVES, CurveModel


def test_real_curves_are_continued_within_the_intervals() -> None:
    inputs, curves, _ = read_curves()
    order = np.random.default_rng(0).permutation(len(curves))
    known, others = order[:60], order[60:]
    model = CurveModel([curves[i] for i in known], inputs.log_costs[known])
    for epoch in range(1, 9):
        inside, errors, naive = [], [], []
        gain = np.mean([curves[i][-1] - curves[i][epoch - 1] for i in known])
        for i in others:
            mean, variance = model.predict(curves[i][:epoch], inputs.log_costs[i])
            inside.append(abs(curves[i][-1] - mean) < 1.645 * np.sqrt(variance))
            errors.append(curves[i][-1] - mean)
            naive.append(curves[i][-1] - curves[i][epoch - 1] - gain)
        assert 0.83 <= np.mean(inside) <= 0.97
        assert np.std(errors) < np.std(naive)  # better than to add the mean gain


def test_an_epoch_that_says_nothing_has_a_large_variance() -> None:
    random = np.random.default_rng(0)
    final = 0.8 + 0.05 * random.standard_normal(40)
    curves = [[0.3 + 0.05 * random.standard_normal(), value - 0.1, value] for value in final]
    model = CurveModel(curves, np.zeros((40, 1)))
    (first, first_variance), (second, second_variance) = (
        model.predict(curve, np.zeros(1)) for curve in ([0.4], [0.4, 0.85])
    )
    assert first == pytest.approx(0.8, abs=0.03) and np.sqrt(first_variance) == pytest.approx(0.05, rel=0.3)
    assert second == pytest.approx(0.95, abs=0.01) and np.sqrt(second_variance) < 0.01


def test_few_curves_say_that_the_gain_is_about_the_same() -> None:
    curves = [[0.50, 0.80], [0.52, 0.83], [0.54, 0.83], [0.51, 0.80]]
    mean, variance = CurveModel(curves, np.arange(4.0)[:, None]).predict([0.60], np.array([2.0]))
    assert 0.86 < mean < 0.93 and 0.005 < np.sqrt(variance) < 0.1


def test_nothing_is_predicted_without_longer_curves() -> None:
    curves = [[0.5, 0.8]] * MIN_CURVES
    assert CurveModel(curves, np.zeros((MIN_CURVES, 1))).predict([0.5, 0.8], np.zeros(1)) is None
    assert CurveModel(curves[1:], np.zeros((MIN_CURVES - 1, 1))).predict([0.5], np.zeros(1)) is None
    assert CurveModel(curves, np.zeros((MIN_CURVES, 1))).predict([0.5], np.zeros(1)) is not None
