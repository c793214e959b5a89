"""The fixed division of a data set's images into training and validation images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SPLIT_SEED = 20160502
"""Seed of the division. It must never change, so that results stay comparable."""

Indices = npt.NDArray[np.int64]


def stratified(labels: Indices, fraction: float) -> tuple[Indices, Indices]:
    """Divide the images 0 … n-1 into two parts; the same labels always give the same division.

    Args:
        labels: The class of each image.
        fraction: Share of each class that goes to the second part; at least one image per class does.

    Returns:
        The sorted indices of both parts.
    """
    rng = np.random.default_rng(SPLIT_SEED)
    by_class = np.argsort(labels, kind="stable")
    members = np.split(by_class, np.flatnonzero(np.diff(labels[by_class])) + 1)
    second = np.concatenate([rng.permutation(part)[: max(1, round(fraction * len(part)))] for part in members])
    in_second = np.zeros(len(labels), dtype=bool)
    in_second[second] = True
    return np.flatnonzero(~in_second), np.flatnonzero(in_second)
