"""Axes of Optuna's distributions, and changes of known points."""

import numpy as np
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from lrnas.sampling.axes import MAX_VALUES, Axes
from lrnas.searching.proposals import distributions_of, kind_of
from lrnas.spaces.space import load_space

SPACE = load_space("nin", batch_norm=True)
AXES = Axes(distributions_of(SPACE), kind_of)


@pytest.mark.parametrize(
    ("distribution", "number", "ordered"),
    [
        (FloatDistribution(0, 1, step=0.125), 9, True),
        (FloatDistribution(0, 1), MAX_VALUES, True),
        (FloatDistribution(1e-5, 1e-1, log=True), MAX_VALUES, True),
        (IntDistribution(1, 7, step=2), 4, True),
        (IntDistribution(1, 4, log=True), 4, True),
        (IntDistribution(0, 10_000), MAX_VALUES, True),
        (CategoricalDistribution([16, 32, 48]), 3, True),
        (CategoricalDistribution([32, 16, 48]), 3, False),
        (CategoricalDistribution(["none", "1/2"]), 2, False),
        (CategoricalDistribution([False, True]), 2, False),
        (CategoricalDistribution([3]), 1, True),
    ],
)
def test_axes_have_the_values_of_distributions(distribution: BaseDistribution, number: int, ordered: bool) -> None:
    axis = Axes({"x": distribution}).axes[0]
    assert len(axis.values) == number and axis.ordered == ordered
    assert all(distribution._contains(distribution.to_internal_repr(value)) for value in axis.values)
    assert [axis.index(value) for value in axis.values] == list(range(number))
    assert axis.features.shape == (number, 1 if ordered else number)
    assert axis.features.min() >= 0 and axis.features.max() <= 1


def test_widths_are_measured_by_their_logarithms() -> None:
    axis = Axes({"x": FloatDistribution(0.25, 2, step=0.25)}).axes[0]
    at = dict(zip(axis.values, axis.features[:, 0], strict=True))
    assert at[0.5] - at[0.25] == pytest.approx(at[1.0] - at[0.5])


def test_points_and_params_are_the_same() -> None:
    for network in SPACE.points.values():
        params = SPACE.params_of(network)
        assert AXES.params(AXES.point(params)) == params
    nearest = Axes({"x": FloatDistribution(0, 1, step=0.25)})
    assert nearest.params(nearest.point({"x": 0.6})) == {"x": 0.5}


def test_kinds() -> None:
    names = [axis.name for axis in AXES.axes]
    kinds = {name: axis.kind for name, axis in zip(names, AXES.axes, strict=True)}
    assert kinds["conv1.width"] == kinds["cccp1.width"]
    assert kinds["conv1.square"] == kinds["conv2.vertical"] != kinds["conv1.width"]
    assert len({kinds[name] for name in ("conv1.width", "conv1.square", "conv1.join", "backbone")}) == 4
    assert len(AXES.kinds) == AXES.encode([AXES.point(SPACE.params_of(SPACE.points["nin"]))]).shape[1]


def test_mutated_points_are_in_the_space_and_near_the_parent() -> None:
    parent, random = AXES.point(SPACE.params_of(SPACE.points["nin"])), np.random.default_rng(0)
    before = parent.copy()
    points = [AXES.mutate([parent], random) for _ in range(300)]
    assert all(SPACE.architecture(AXES.params(point)) for point in points)
    changed = np.array([(point != parent).sum() for point in points])
    alike = max(sum(axis.kind == kind for axis in AXES.axes if axis.ordered) for kind in range(4))
    assert np.median(changed) <= 4 and np.mean(changed >= alike - 3) > 0.1  # sometimes all widths at once
    assert (parent == before).all()


def test_two_parents_are_mixed() -> None:
    random = np.random.default_rng(0)
    parents = [np.zeros(len(AXES.axes), dtype=np.int64), np.array([len(axis.values) - 1 for axis in AXES.axes])]
    near = [[int((AXES.mutate(parents, random) == parent).sum()) for parent in parents] for _ in range(100)]
    assert 5 < sum(min(pair) > len(AXES.axes) / 4 for pair in near) < 60


def test_random_points_are_small_and_large() -> None:
    random = np.random.default_rng(0)
    widths = [i for i, axis in enumerate(AXES.axes) if axis.name.endswith("width")]
    means = [AXES.draw(random)[widths].mean() for _ in range(200)]
    assert min(means) < 2 and max(means) > 8  # widths drawn one by one would all be near 5 in the mean


def test_values_without_effect_do_not_count() -> None:
    space = load_space("nin-deep")
    axes = Axes(distributions_of(space), kind_of, space.idle_parameters)
    params = space.params_of(space.points["nin"])
    assert params["conv1_2.present"] == "no"
    other = {**params, "conv1_2.width": 0.25, "conv1_3.present": "yes"}
    first, second, third = axes.encode([axes.point(p) for p in (params, other, {**params, "conv1_1.width": 0.25})])
    assert np.array_equal(first, second) and not np.array_equal(first, third)
