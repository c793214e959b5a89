"""Mean and deviation of test accuracies over seeds."""

from __future__ import annotations

import math
import statistics
from typing import Any


class OverSeeds:
    """Mixin: mean and deviation of the test accuracies of one network over seeds."""

    __slots__ = ()

    accuracies: tuple[float, ...]
    """Test accuracies, one per seed that was tested."""

    @property
    def mean(self) -> float:
        """Mean accuracy; NaN if no seed was tested."""
        return statistics.mean(self.accuracies) if self.accuracies else float("nan")

    @property
    def deviation(self) -> float | None:
        """Standard deviation between seeds; None for a single seed, or if an accuracy is NaN."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 and math.isfinite(self.mean) else None

    def numbers(self) -> dict[str, Any]:
        """Return mean, deviation and number of seeds for JSON, which has no NaN."""
        mean = self.mean if math.isfinite(self.mean) else None
        return {"mean": mean, "sd": self.deviation, "n": len(self.accuracies)}
