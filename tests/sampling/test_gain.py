"""Expected gains, compared with simulation."""

import numpy as np
import pytest

from lrnas.sampling.gain import Boxes, expected_gain
from lrnas.sampling.pareto import front_indices, hypervolume


def volume(points: np.ndarray, boxes: Boxes, samples: np.ndarray) -> float:
    """Share of samples, which are rows of an accuracy and costs, that are inside the boxes and dominated by a point."""
    accuracy, costs = samples[:, :1], samples[:, 1:]
    inside = ((costs[:, None] <= boxes.edges) & (costs >= boxes.least)[:, None]).all(axis=2) & (accuracy > boxes.floors)
    dominated = (accuracy < points[:, 0]) & (costs[:, None] >= points[:, 1:]).all(axis=2)
    return float((inside.any(axis=1) & dominated.any(axis=1)).mean())


def draw_front(num_costs: int, random: np.random.Generator) -> np.ndarray:
    points = random.random((12, 1 + num_costs))
    return points[front_indices(points * [-1, *[1] * num_costs])]


@pytest.mark.parametrize("num_costs", [1, 2, 3])
def test_expected_gains_are_those_of_the_hypervolume(num_costs: int) -> None:
    random = np.random.default_rng(0)
    front = draw_front(num_costs, random)
    costs, mean, deviation = random.random((5, num_costs)), random.random(5), np.full(5, 0.2)
    boxes = Boxes(np.full((1, num_costs), 1.1), np.array([-0.1]), np.full(num_costs, -np.inf))
    gains = expected_gain(mean, deviation, costs, front[:, 0], front[:, 1:], boxes)
    signs, reference = [-1, *[1] * num_costs], [0.1, *[1.1] * num_costs]
    before = hypervolume(front * signs, reference)
    for i in range(5):
        drawn = mean[i] + deviation[i] * random.standard_normal(2000 if num_costs < 3 else 200)
        simulated = [hypervolume([*front * signs, [-value, *costs[i]]], reference) - before for value in drawn]
        error = np.std(simulated) / np.sqrt(len(simulated))
        assert gains[i] == pytest.approx(np.mean(simulated), abs=4 * error + 1e-4)


@pytest.mark.parametrize("num_costs", [1, 2])
def test_only_what_is_inside_a_box_counts(num_costs: int) -> None:
    """Two boxes with different floors, and a lower bound on costs."""
    random = np.random.default_rng(1)
    front = draw_front(num_costs, random)
    edges = np.array([[0.5, 0.8], [0.9, 0.6]])[:, :num_costs]
    boxes = Boxes(edges, np.array([0.3, 0.6]), np.full(num_costs, 0.1))
    costs, accuracies = 0.9 * random.random((8, num_costs)), 0.3 + 0.7 * random.random(8)
    gains = expected_gain(accuracies, np.full(8, 1e-9), costs, front[:, 0], front[:, 1:], boxes)
    samples = random.random((100_000, 1 + num_costs))
    for gain, accuracy, own in zip(gains, accuracies, costs, strict=True):
        row = np.concatenate([[accuracy], own])
        wanted = volume(np.vstack([front, row]), boxes, samples) - volume(front, boxes, samples)
        assert gain == pytest.approx(wanted, abs=5e-3)
    assert (gains > 0.01).any()


def test_a_network_outside_all_boxes_gains_nothing() -> None:
    boxes = Boxes(np.array([[1.0, 3.0], [2.0, 2.0]]), np.zeros(2), np.array([0.5, 0.5]))
    costs = np.array([[0.9, 2.9], [1.9, 1.9], [1.5, 2.5], [3.0, 0.6], [0.4, 0.4]])
    assert boxes.excess(costs) == pytest.approx([0, 0, 0.5, 1.0, 0.1])
    front = np.array([[0.9, 0.9]])
    gains = expected_gain(np.full(5, 0.9), np.full(5, 0.1), costs, np.array([0.5]), front, boxes)
    assert (gains > 0).tolist() == [True, True, False, False, True]


def test_gains_far_below_a_floor_are_still_told_apart() -> None:
    boxes = Boxes(np.array([[1.0]]), np.array([0.9]), np.array([-np.inf]))
    means = np.linspace(0.55, 0.85, 7)
    nothing = np.zeros(0), np.zeros((0, 1))
    gains = expected_gain(means, np.full(7, 0.01), np.zeros((7, 1)), *nothing, boxes)
    assert (gains > 0).all() and (np.diff(gains) > 0).all()
