"""Expected gain in hypervolume of networks whose costs are known and whose accuracies are predicted.

Volumes are measured in accuracy times costs, inside the part of the front that counts: a union of boxes. A box contains
all networks that cost at most its edges and are more accurate than its floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

Array = npt.NDArray[np.float64]

MAX_COORDINATES = {2: 24, 3: 10}
"""Largest number of different values of each cost that are told apart, by the number of costs; more are thinned."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """The part of the front that counts: the union of some boxes.

    Args:
        edges: (boxes, costs), the highest costs of each box.
        floors: (boxes,), the accuracy above which each box begins.
        least: (costs,), costs below which nothing counts.
    """

    edges: Array
    floors: Array
    least: Array

    @staticmethod
    def around(costs: Array, accuracies: Array, beat: float | None) -> Boxes:
        """The part of the front that named networks mark.

        Args:
            costs: (networks, costs), their costs.
            accuracies: (networks,), their accuracies.
            beat: One box for each network, with at most this share of its costs and above its accuracy; None: one box,
                from the lowest to the highest costs, above the lowest accuracy.
        """
        if beat is None:
            return Boxes(costs.max(axis=0)[None], accuracies.min()[None], costs.min(axis=0))
        return Boxes(beat * costs, accuracies, np.zeros(costs.shape[1]))

    def excess(self, costs: Array) -> Array:
        """(networks,): how far the costs of networks are outside all boxes, 0 inside; floors do not matter."""
        above = np.maximum(costs[:, None, :] - self.edges[None, :, :], 0.0).max(axis=2).min(axis=1)
        below = np.maximum(self.least - costs, 0.0).min(axis=1)
        return np.asarray(above + below)


def expected_gain(mean: Array, deviation: Array, costs: Array, accuracies: Array, front: Array, boxes: Boxes) -> Array:
    """Expected gain in hypervolume of candidates with normally distributed accuracies and known costs.

    Between two neighbouring accuracies of the front, a candidate gains the volume of costs that it dominates inside the
    boxes, and that no network with a higher accuracy does.

    Args:
        mean: (candidates,), expected accuracies.
        deviation: (candidates,), standard deviations of the accuracies.
        costs: (candidates, costs), their costs.
        accuracies: (networks,), accuracies of the networks on the front.
        front: (networks, costs), their costs.
        boxes: The part of the front that counts.

    Returns:
        (candidates,), expected gains.
    """
    levels = np.unique(np.concatenate([accuracies, boxes.floors]))
    levels = levels[levels >= boxes.floors.min()]
    num_costs = costs.shape[1]
    most = len(front) if num_costs == 1 else MAX_COORDINATES.get(num_costs, min(MAX_COORDINATES.values()))
    lengths, dominated, inside = [], [], []
    for i in range(num_costs):
        rights = _coordinates(
            front[:, i], boxes.edges[:, i], most
        )  # cells of this cost, between neighbouring coordinates
        lefts = np.concatenate([[-math.inf], rights[:-1]])
        lengths.append(np.maximum(0.0, rights - np.maximum(lefts, np.maximum(costs[:, i, None], boxes.least[i]))))
        dominated.append(lefts >= _round_down(front[:, i], rights)[:, None])
        inside.append(rights <= boxes.edges[:, i, None])
    # (levels, cells of the first cost, cells of the second cost, ...): whether a cell counts at a level
    is_rival, is_active = accuracies > levels[:, None], boxes.floors <= levels[:, None]
    counts = _any_of(is_active, _cells(inside)) & ~_any_of(is_rival, _cells(dominated))
    candidate, level, cells = num_costs + 1, 0, range(1, num_costs + 1)  # names of dimensions for einsum
    operands = [part for i, length in zip(cells, lengths, strict=True) for part in (length, [candidate, i])]
    volume = np.einsum(counts.astype(np.float64), [level, *cells], *operands, [candidate, level], optimize="greedy")
    # the volume that is added at each level, times the expected accuracy above it; most candidates gain at few levels
    added = np.diff(volume, axis=1, prepend=0.0)
    rows, columns = np.nonzero(added)
    above = _mean_above(mean[rows], deviation[rows], levels[columns])
    found = np.bincount(rows, added[rows, columns] * above, minlength=len(mean))
    return found.astype(np.float64)  # without rows, they are whole numbers


def _coordinates(values: Array, edges: Array, most: int) -> Array:
    """Boundaries of cells along one cost: the edges, and costs of networks below them, thinned if there are many."""
    below = np.unique(values[values < edges.max()])
    if len(below) > most:
        below = below[np.linspace(0, len(below) - 1, most).astype(np.int64)]
    return np.unique(np.concatenate([below, edges]))


def _round_down(values: Array, coordinates: Array) -> Array:
    """The largest coordinate that is not above each value; minus infinity below all, infinity above all."""
    padded = np.concatenate([[-math.inf], coordinates])
    found = padded[np.searchsorted(coordinates, values, side="right")]
    return np.where(values > coordinates[-1], math.inf, found)


def _cells(sides: list[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
    """(rows, cells of the first cost, cells of the second cost, ...), from (rows, cells) for each cost."""
    whole = sides[0]
    for side in sides[1:]:
        whole = whole[..., None] & side.reshape(len(side), *[1] * (whole.ndim - 1), -1)
    return whole


def _any_of(chosen: npt.NDArray[np.bool_], masks: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """(levels, cells...): whether any of the rows that are chosen at a level has a cell."""
    flat = chosen.astype(np.float32) @ masks.reshape(len(masks), math.prod(masks.shape[1:])).astype(np.float32)
    return np.asarray(flat.reshape(len(chosen), *masks.shape[1:]) > 0)


def _mean_above(mean: Array, deviation: Array, level: Array) -> Array:
    """(values,): expected excesses of normally distributed values over levels, one level for each."""
    z = (mean - level) / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    found = z * ndtr(z) + density
    far = np.flatnonzero(z < -6)  # so far below the level, the two terms would cancel out
    part = 1 / (z[far] * z[far])
    found[far] = density[far] * part * (1 - 3 * part)
    return np.asarray(deviation * found)
