"""Fronts and hypervolumes. All objectives are minimised; negate those that are to be maximised."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
MOST_IN_GRID = 2000
"""Largest number of rows whose volume is computed at once, with memory that grows with its square."""


def front_indices(values: Sequence[Sequence[float]] | Values) -> list[int]:
    """Indices of the rows that no other row dominates, that is, no other is as good everywhere and better somewhere."""
    points = np.asarray(values, dtype=np.float64)
    if not len(points):
        return []
    order = np.lexsort(points.T[::-1])  # by the first objective, then the next: a dominating row comes before
    if points.shape[1] == 2:
        return sorted(order[_staircase(points[order])].tolist())
    front: list[int] = []
    for i in order:
        rivals = points[front]
        no_worse = (rivals <= points[i]).all(axis=1)
        if not (no_worse & (rivals < points[i]).any(axis=1)).any():
            front.append(int(i))
    return sorted(front)


def closest_to_front(accuracies: Sequence[float] | Values, costs: Sequence[float] | Values, number: int) -> list[int]:
    """Indices of the networks that are least behind the most accurate one that costs no more, in their order.

    Args:
        accuracies: (networks,), larger is better.
        costs: (networks,), one cost of each.
        number: How many to choose.
    """
    order = np.argsort(costs, kind="stable")
    found = np.asarray(accuracies, dtype=np.float64)
    behind = np.empty(len(found))
    behind[order] = np.maximum.accumulate(found[order]) - found[order]
    return sorted(np.argsort(behind, kind="stable")[:number].tolist())


def add_to_front(front: Values, row: Sequence[float]) -> Values | None:
    """A front with one more row, without the rows that it dominates; None if the new row is dominated."""
    new = np.asarray(row, dtype=np.float64)
    if ((front <= new).all(axis=1) & (front < new).any(axis=1)).any():
        return None
    beaten = (new <= front).all(axis=1) & (new < front).any(axis=1)
    return np.vstack([front[~beaten], new])


def _staircase(points: Values) -> npt.NDArray[np.bool_]:
    """Which rows, sorted by the first of two objectives and then by the second, no other row dominates."""
    first, second = points.T
    lowest = np.minimum.accumulate(second)
    is_step = np.concatenate([[True], lowest[1:] < lowest[:-1]])
    step = np.maximum.accumulate(np.where(is_step, np.arange(len(points)), 0))  # the first row with the lowest second
    return np.asarray((second == lowest) & (first == first[step]))


def hypervolume(values: Sequence[Sequence[float]] | Values, reference: Sequence[float]) -> float:
    """Volume that rows dominate, up to a reference point; rows beyond it in any objective are ignored."""
    points = np.asarray(values, dtype=np.float64).reshape(-1, len(reference))
    limit = np.asarray(reference, dtype=np.float64)
    return _volume(points[(points < limit).all(axis=1)], limit)


def _volume(points: Values, limit: Values) -> float:
    """Hypervolume, summed over slices along the last objective."""
    if not len(points):
        return 0.0
    if len(limit) == 1:
        return float(limit[0] - points.min())
    points = points[np.argsort(points[:, -1], kind="stable")]
    if len(limit) == 2:
        best = np.minimum.accumulate(points[:, 0])
        heights = np.diff(np.append(points[:, 1], limit[1]))
        return float(((limit[0] - best) * heights).sum())
    if len(limit) == 3 and len(points) <= MOST_IN_GRID:
        return _grid_volume(points, limit)
    edges = np.append(points[:, -1], limit[-1])
    total = 0.0
    for i in range(len(points)):
        if edges[i + 1] > edges[i]:
            total += _volume(points[: i + 1, :-1], limit[:-1]) * float(edges[i + 1] - edges[i])
    return total


def _grid_volume(points: Values, limit: Values) -> float:
    """Hypervolume of three objectives: areas of a grid over the first two, times the depth in the third."""
    points = points[np.argsort(points[:, 0], kind="stable")]
    order = np.argsort(points[:, 1], kind="stable")
    depths = np.zeros((len(points), len(points)))
    depths[order, np.arange(len(points))] = limit[2] - points[order, 2]
    depths = np.maximum.accumulate(np.maximum.accumulate(depths, axis=0), axis=1)
    widths = np.diff(np.append(points[:, 0], limit[0]))
    heights = np.diff(np.append(points[order, 1], limit[1]))
    return float(widths @ depths @ heights)


def costs_no_more(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether each of the first costs is at most the second."""
    return all(a <= b for a, b in zip(one, other, strict=True))
