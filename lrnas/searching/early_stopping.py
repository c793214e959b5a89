"""Early stopping for accuracy against cost: which trials are worth more epochs.

At certain epochs, the rungs, a trial goes on only if its accuracy is competitive among the trials that were there and
cost no more: a network is stopped for being less accurate than cheaper ones, never for being cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lrnas.errors import LrnasError
from lrnas.study.pareto import costs_no_more


def rung_epochs(min_epochs: int, epochs: int, factor: int = 3) -> tuple[int, ...]:
    """The epochs after which it is decided: `min_epochs`, `factor` times as many, and so on below `epochs`."""
    if not 1 <= min_epochs <= epochs or factor < 2:
        raise LrnasError(
            f"the first rung lies between 1 and the {epochs} epochs, and the factor is at least 2; got {min_epochs} "
            f"and {factor}; change --min-epochs"
        )
    rungs = []
    while min_epochs < epochs:
        rungs.append(min_epochs)
        min_epochs *= factor
    return tuple(rungs)


def is_competitive(
    accuracy: float, costs: Sequence[float], others: Iterable[tuple[float, Sequence[float]]], factor: int = 3
) -> bool:
    """Whether a trial is among the best 1/`factor` of those at its rung that cost no more.

    `others` are the accuracies and costs of the other trials there. As long as these and itself are fewer than
    `factor`, it goes on.
    """
    rivals = [rival for rival, theirs in others if costs_no_more(theirs, costs)]
    better = sum(rival > accuracy for rival in rivals)
    number = len(rivals) + 1
    return number < factor or better < number / factor
