"""Early stopping of trials that are not worth more epochs, judged by accuracy and cost.

Certain epochs are called rungs. At a rung, a trial continues only if its accuracy is among the best third of the trials
that reached the rung and cost no more. So a network is stopped if cheaper ones are more accurate, never because it is
small.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lrnas.errors import LrnasError
from lrnas.sampling.pareto import costs_no_more

REDUCTION_FACTOR = 3
"""Rungs are 3× apart, and the best third of the trials at a rung continues."""


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


def is_competitive(accuracy: float, costs: Sequence[float], others: Iterable[tuple[float, Sequence[float]]]) -> bool:
    """Whether a trial is among the best third of the trials at its rung that cost no more.

    Args:
        accuracy: Accuracy of the trial at this rung.
        costs: All costs of the trial.
        others: Accuracy and costs of the other trials that reached this rung.

    Returns:
        Whether it is; also True if fewer than two other trials cost no more.
    """
    rivals = [other_accuracy for other_accuracy, other_costs in others if costs_no_more(other_costs, costs)]
    better = sum(rival > accuracy for rival in rivals)
    number = len(rivals) + 1
    return number < REDUCTION_FACTOR or better < number / REDUCTION_FACTOR
