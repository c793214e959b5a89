"""The model of accuracies: against the textbook, on made-up functions, and on networks that were really trained."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from trained_networks import read_curves, read_levels

from lrnas.sampling.accuracy_model import JITTER, AccuracyModel, Inputs

KINDS = [0, 0, 0, 1, 1]


def draw_inputs(number: int, random: np.random.Generator, levels: tuple[int, ...] = (0,)) -> Inputs:
    level = np.array([levels[i % len(levels)] for i in range(number)])
    return Inputs(random.standard_normal((number, 2)), random.random((number, 5)), level)


def smooth(inputs: Inputs) -> np.ndarray:
    """A made-up accuracy; parameters of the second kind do not matter."""
    cost, points = inputs.log_costs[:, 0], inputs.points
    return 0.7 + 0.05 * cost - 0.01 * cost**2 + 0.04 * np.sin(3 * points[:, 0]) - 0.05 * points[:, 1] * points[:, 2]


@pytest.mark.parametrize("levels", [(0,), (0, 1, 2)])
def test_gradients_are_those_of_the_loss(levels: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    inputs = draw_inputs(30, random, levels)
    model = AccuracyModel(inputs, random.random(30), 0.1 * random.random(30), KINDS)
    loss, at = model._loss_function(), model.hyperparameters + 0.2
    wanted = approx_fprime(at, lambda vector: loss(vector)[0], 1e-6)
    assert loss(at)[1] == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    found = loss(model.hyperparameters)[0]
    assert all(found <= loss(model.hyperparameters + step)[0] + 1e-3 for step in 0.05 * np.eye(len(at)))


def test_predictions_are_those_of_the_textbook() -> None:
    random = np.random.default_rng(0)
    inputs, others, values, variances = (
        draw_inputs(12, random, (0, 1)),
        draw_inputs(4, random, (0, 1)),
        random.random(12),
        random.random(12),
    )
    model = AccuracyModel(inputs, values, variances, KINDS)
    spread = values[inputs.levels == 0].std()
    apart = values - np.where(inputs.levels == 0, values[inputs.levels == 0].mean(), values[inputs.levels == 1].mean())
    centers = [values[inputs.levels == level].mean() for level in others.levels]
    noise = model.noise[inputs.levels] ** 2 + variances + JITTER * spread**2
    whole = spread**2 * model._covariance(inputs, inputs) + np.diag(noise)
    between, own = (spread**2 * model._covariance(others, of) for of in (inputs, others))
    mean, deviation = model.predict(others)
    assert mean == pytest.approx(centers + between @ np.linalg.solve(whole, apart))
    covariance = own - between @ np.linalg.solve(whole, between.T)
    assert model.covariance(others, others) == pytest.approx(covariance, abs=1e-9)
    assert deviation**2 == pytest.approx(np.diag(covariance))


def test_samples_have_the_mean_and_the_covariance_of_the_predictions() -> None:
    random = np.random.default_rng(0)
    inputs, others = draw_inputs(20, random), draw_inputs(3, random)
    model = AccuracyModel(inputs, smooth(inputs), np.zeros(20), KINDS)
    samples = model.sample(others, 20_000, random)
    assert samples.mean(axis=0) == pytest.approx(model.predict(others)[0], abs=3e-4)
    assert np.cov(samples.T) == pytest.approx(model.covariance(others, others), rel=0.1, abs=2e-6)


def test_it_learns_a_function_and_which_kind_matters() -> None:
    random = np.random.default_rng(0)
    inputs, others = draw_inputs(60, random), draw_inputs(40, random)
    model = AccuracyModel(inputs, smooth(inputs) + 0.002 * random.standard_normal(60), np.zeros(60), KINDS)
    assert np.abs(model.predict(others)[0] - smooth(others)).max() < 0.01
    assert 0.001 < model.noise[0] < 0.004
    lengths = model.hyperparameters[1:3]
    assert lengths[1] > lengths[0] + 0.5  # the second kind has a longer length
    far = Inputs(others.log_costs, others.points + 5, others.levels)
    assert model.predict(far)[1].min() > 2 * model.predict(others)[1].max()  # far from the data it is less sure


def test_the_trend_continues_beyond_the_measured_costs() -> None:
    random = np.random.default_rng(0)
    inputs = draw_inputs(40, random)
    model = AccuracyModel(
        inputs, 0.7 + 0.05 * inputs.log_costs[:, 0] - 0.03 * inputs.log_costs[:, 1], np.zeros(40), KINDS
    )
    beyond = Inputs(inputs.log_costs[:5] + np.array([4, 0]), inputs.points[:5], inputs.levels[:5])
    wanted = 0.7 + 0.05 * beyond.log_costs[:, 0] - 0.03 * beyond.log_costs[:, 1]
    assert model.predict(beyond)[0] == pytest.approx(wanted, abs=0.02)


def test_measurements_that_are_less_sure_count_less() -> None:
    random = np.random.default_rng(0)
    inputs, first = draw_inputs(30, random), np.eye(30)[0]
    values = smooth(inputs) + 0.1 * first
    at, rest = inputs.take(np.array([0])), np.arange(1, 30)
    without = AccuracyModel(inputs.take(rest), values[rest], np.zeros(29), KINDS).predict(at)[0][0]
    sure, unsure = (AccuracyModel(inputs, values, v * first, KINDS).predict(at)[0][0] for v in (0.0, 1.0))
    assert unsure == pytest.approx(without, abs=0.003) and sure > without + 0.01


def test_a_start_from_other_hyperparameters_changes_little() -> None:
    """So a new process makes the same proposals as one that has fitted many models before."""
    random = np.random.default_rng(0)
    inputs, others = draw_inputs(50, random), draw_inputs(20, random)
    values = smooth(inputs) + 0.005 * random.standard_normal(50)
    cold = AccuracyModel(inputs, values, np.zeros(50), KINDS)
    for shift in (-0.5, 0.5):
        warm = AccuracyModel(inputs, values, np.zeros(50), KINDS, cold.hyperparameters + shift)
        for one, other in zip(cold.predict(others), warm.predict(others), strict=True):
            assert one == pytest.approx(other, abs=0.1 * cold.predict(others)[1].min())


def coverage(inputs: Inputs, values: np.ndarray, kinds: list[int], folds: int = 8) -> float:
    """Share of held-out values inside their 90 % intervals."""
    inside = []
    order = np.random.default_rng(0).permutation(len(values))
    for fold in range(folds):
        held_out, rest = order[fold::folds], np.setdiff1d(order, order[fold::folds])
        model = AccuracyModel(inputs.take(rest), values[rest], np.zeros(len(rest)), kinds)
        mean, deviation = model.predict(inputs.take(held_out))
        half = 1.645 * np.hypot(deviation, model.noise[inputs.levels[held_out]])
        inside.append(np.abs(values[held_out] - mean) < half)
    return float(np.concatenate(inside).mean())


def test_intervals_cover_made_up_accuracies() -> None:
    random = np.random.default_rng(0)
    found = []
    for _ in range(5):
        inputs = draw_inputs(64, random)
        weights = random.standard_normal(5)
        values = smooth(inputs) + 0.03 * np.sin(inputs.points @ weights) + 0.005 * random.standard_normal(64)
        found.append(coverage(inputs, values, KINDS, folds=4))
    assert 0.85 <= np.mean(found) <= 0.95


def test_intervals_cover_real_accuracies() -> None:
    """Networks of the space nin, trained on CIFAR-10 for 9 epochs."""
    inputs, curves, kinds = read_curves()
    assert 0.85 <= coverage(inputs, np.array([curve[-1] for curve in curves]), kinds) <= 0.95


def test_intervals_cover_real_accuracies_of_two_levels() -> None:
    """Networks trained for 5 epochs, or for 40; each is predicted from all other networks."""
    inside = []
    for space in ("nin", "vgg11"):
        inputs, values, kinds = read_levels(space)
        for i in range(0, len(values), 3):
            rest = np.flatnonzero((inputs.points != inputs.points[i]).any(axis=1))
            model = AccuracyModel(inputs.take(rest), values[rest], np.zeros(len(rest)), kinds)
            mean, deviation = model.predict(inputs.take(np.array([i])))
            half = 1.645 * np.hypot(deviation[0], model.noise[inputs.levels[i]])
            inside.append(abs(values[i] - mean[0]) < half)
    assert 0.85 <= np.mean(inside) <= 0.95


def join(*parts: Inputs) -> Inputs:
    return Inputs(*(np.concatenate([vars(part)[name] for part in parts]) for name in ("log_costs", "points", "levels")))


def test_short_trainings_tell_about_full_ones() -> None:
    """Level 1 is a multiple of level 0, plus an offset, plus a little of its own; few networks have it."""

    def accuracy(inputs: Inputs) -> np.ndarray:
        own = 0.003 * np.sin(5 * inputs.points[:, 0])
        return np.where(inputs.levels == 0, smooth(inputs), 0.25 + 0.8 * smooth(inputs) + own)

    def error(model: AccuracyModel, others: Inputs, wanted: np.ndarray) -> float:
        return float(np.sqrt(((model.predict(others)[0] - wanted) ** 2).mean()))

    random = np.random.default_rng(0)
    with_short, alone, inside = [], [], []
    for _ in range(4):
        short, full, others = draw_inputs(60, random), draw_inputs(10, random, (1,)), draw_inputs(60, random, (1,))
        both, wanted = join(short, full), accuracy(others)
        values = accuracy(both) + np.where(both.levels == 0, 0.004, 0.002) * random.standard_normal(70)
        model = AccuracyModel(both, values, np.zeros(70), KINDS)
        with_short.append(error(model, others, wanted))
        few = AccuracyModel(Inputs(full.log_costs, full.points, 0 * full.levels), values[60:], np.zeros(10), KINDS)
        alone.append(error(few, Inputs(others.log_costs, others.points, 0 * others.levels), wanted))
        mean, deviation = model.predict(others)
        inside.append(np.abs(mean - wanted) < 1.645 * deviation)
    assert np.mean(with_short) < 0.5 * np.mean(alone) and np.mean(with_short) < 0.006
    assert 0.85 <= np.mean(inside) <= 0.97
