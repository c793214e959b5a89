"""How long the trials of a study will still take, by what their networks cost and what others took.

A search begins with its dearest networks, and so does a retraining: their pace says little of those that follow. So an
epoch is taken to last so long for any network and so long for each multiply-accumulate, as a fit to what was
trained has it; and how many seconds of training go by in a second is seen from the beginning on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ENOUGH = 3
"""Networks that have been trained for an epoch or more, before anything can be said."""


class Work(NamedTuple):
    """Epochs of a network."""

    macs: int
    epochs: float


def seconds_left(trained: Sequence[tuple[Work, float]], left: Sequence[Work], pace: float) -> float | None:
    """Until all that is left is trained, or None where too little is known.

    `trained` has what was done, and the seconds that each took; `pace` is how many of these go by in a second, all
    workers together.
    """
    known = [(work, seconds) for work, seconds in trained if work.epochs > 0 and seconds > 0]
    if len(known) < ENOUGH or pace <= 0:
        return None
    macs = np.array([work.macs for work, _ in known], dtype=float)
    epochs = np.array([work.epochs for work, _ in known])
    taken = np.array([seconds for _, seconds in known]) / epochs
    center = np.average(macs, weights=epochs)
    mean = np.average(taken, weights=epochs)
    spread = np.average((macs - center) ** 2, weights=epochs)
    slope = np.average((macs - center) * (taken - mean), weights=epochs) / spread if spread else 0.0
    slope = float(np.clip(slope, 0.0, mean / center))  # neither part of an epoch takes less than nothing
    base = mean - slope * center
    return float(sum(work.epochs * (base + slope * work.macs) for work in left) / pace)
