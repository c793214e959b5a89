"""Which images are trained on and which choose between networks: one division, for ever."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SPLIT_SEED = 20160502
"""One division of every set, for ever: results stay comparable."""

Indices = npt.NDArray[np.int64]


def stratified(labels: Indices, fraction: float) -> tuple[Indices, Indices]:
    """Two parts of 0 … n-1, the second with `fraction` of every class; always the same for the same labels."""
    rng = np.random.default_rng(SPLIT_SEED)
    second: list[Indices] = []
    by_class = np.argsort(labels, kind="stable")
    for members in np.split(by_class, np.flatnonzero(np.diff(labels[by_class])) + 1):
        second.append(rng.permutation(members)[: max(1, round(fraction * len(members)))])
    chosen = np.sort(np.concatenate(second))
    mask = np.ones(len(labels), dtype=bool)
    mask[chosen] = False
    return np.flatnonzero(mask), chosen
