"""Rungs: the epochs after which trials may be stopped early. `FrontPruner` decides which ones are."""

from __future__ import annotations

from lrnas.errors import LrnasError
from lrnas.sampling.front_pruner import REDUCTION_FACTOR


def rung_epochs(min_epochs: int | None, epochs: int) -> tuple[int, ...]:
    """Epochs after which trials may be stopped: `min_epochs`, 3 times as many, 9 times as many, ..., below `epochs`.

    Args:
        min_epochs: Epochs that every network is trained for; None: one ninth of `epochs`.
        epochs: Epochs of a full training.
    """
    rung = max(1, epochs // REDUCTION_FACTOR**2) if min_epochs is None else min_epochs
    if not 1 <= rung <= epochs:
        raise LrnasError(f"--min-epochs must be between 1 and the number of epochs, {epochs}; got {rung}; change it")
    rungs = []
    while rung < epochs:
        rungs.append(rung)
        rung *= REDUCTION_FACTOR
    return tuple(rungs)
