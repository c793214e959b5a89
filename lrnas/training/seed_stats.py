"""Test accuracies of one network over seeds: their mean and how far they lie apart."""

from __future__ import annotations

import math
import statistics
from typing import Any


class OverSeeds:
    """What those have in common that hold such accuracies, whatever else they know of the network."""

    __slots__ = ()

    accuracies: tuple[float, ...]
    """One per seed that was tested."""

    @property
    def mean(self) -> float:
        """Not a number where no seed was tested."""
        return statistics.mean(self.accuracies) if self.accuracies else float("nan")

    @property
    def deviation(self) -> float | None:
        """Between seeds; None for a single one, or where one is not a number."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 and math.isfinite(self.mean) else None

    def numbers(self) -> dict[str, Any]:
        """For JSON, which has no NaN."""
        return {
            "mean": self.mean if math.isfinite(self.mean) else None,
            "sd": self.deviation,
            "n": len(self.accuracies),
        }
