"""Fronts and hypervolumes against their definitions."""

import itertools

import numpy as np
import pytest
from hypothesis import given, strategies as st

from lrnas.sampling.pareto import add_to_front, closest_to_front, front_indices, hypervolume

rows = st.integers(2, 4).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 6), min_size=width, max_size=width), min_size=1, max_size=12)
)


@given(rows)
def test_front_is_what_nothing_dominates(values: list[list[int]]) -> None:
    def dominates(one: list[int], other: list[int]) -> bool:
        return all(a <= b for a, b in zip(one, other, strict=True)) and one != other

    wanted = [i for i, row in enumerate(values) if not any(dominates(other, row) for other in values)]
    assert front_indices(values) == wanted


@given(rows)
def test_a_front_that_grows_row_by_row_is_the_same(values: list[list[int]]) -> None:
    front = np.empty((0, len(values[0])))
    for i, row in enumerate(values):
        grown = add_to_front(front, row)
        assert (grown is not None) == (i in front_indices(values[: i + 1]))
        front = front if grown is None else grown
    assert front.tolist() == [values[i] for i in front_indices(values)]


@given(rows)
def test_hypervolume_is_the_number_of_dominated_cells(values: list[list[int]]) -> None:
    limit = 5
    cells = itertools.product(range(limit), repeat=len(values[0]))
    wanted = sum(any(all(v <= c for v, c in zip(row, cell, strict=True)) for row in values) for cell in cells)
    assert hypervolume(values, [limit] * len(values[0])) == pytest.approx(wanted)


def test_the_front_of_no_rows_is_empty() -> None:
    assert front_indices([]) == [] and hypervolume(np.zeros((0, 2)), [1, 1]) == 0


def test_large_studies_are_reduced_to_networks_near_the_front() -> None:
    assert closest_to_front([0.5, 0.9, 0.6, 0.89], [1, 2, 3, 4], 3) == [0, 1, 3]
    assert closest_to_front([0.5, 0.9], [2, 1], 5) == [0, 1]
