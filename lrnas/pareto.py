"""Fronts and hypervolumes. Every objective is to be made small; what is to be made large is negated before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["front_indices", "hypervolume"]

Values = npt.NDArray[np.float64]


def front_indices(values: Sequence[Sequence[float]] | Values) -> list[int]:
    """Which rows no other row dominates: is as good in every objective and better in one. Equal rows all stay."""
    points = np.asarray(values, dtype=np.float64)
    if not len(points):
        return []
    order = np.lexsort(points.T[::-1])  # by the first objective, then the next: a dominating row comes before
    if points.shape[1] == 2:
        order = order[_staircase(points[order])]
    front: list[int] = []
    for i in order:
        rivals = points[front]
        no_worse = (rivals <= points[i]).all(axis=1)
        if not (no_worse & (rivals < points[i]).any(axis=1)).any():
            front.append(int(i))
    return sorted(front)


def _staircase(points: Values) -> npt.NDArray[np.bool_]:
    """Which sorted rows with two objectives are no worse in the second one than all before: few, and quickly found."""
    second = points[:, 1]
    return second <= np.minimum.accumulate(second)


def hypervolume(values: Sequence[Sequence[float]] | Values, reference: Sequence[float]) -> float:
    """Volume that rows dominate, up to a reference point; rows beyond it in any objective count nothing."""
    points = np.asarray(values, dtype=np.float64).reshape(-1, len(reference))
    limit = np.asarray(reference, dtype=np.float64)
    return _volume(points[(points < limit).all(axis=1)], limit)


def _volume(points: Values, limit: Values) -> float:
    """In slices along the last objective, each with the volume of what lies at or below it."""
    if not len(points):
        return 0.0
    if len(limit) == 1:
        return float(limit[0] - points.min())
    points = points[np.argsort(points[:, -1], kind="stable")]
    if len(limit) == 2:
        best = np.minimum.accumulate(points[:, 0])
        heights = np.diff(np.append(points[:, 1], limit[1]))
        return float(((limit[0] - best) * heights).sum())
    edges = np.append(points[:, -1], limit[-1])
    total = 0.0
    for i in range(len(points)):
        if edges[i + 1] > edges[i]:
            total += _volume(points[: i + 1, :-1], limit[:-1]) * float(edges[i + 1] - edges[i])
    return total
