"""What networks of a study came to when they were trained in full, over several seeds, and tested."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from lrnas.arch import Architecture

__all__ = ["Final"]


@dataclass(frozen=True, slots=True)
class Final:
    """One network under one recipe, over its seeds."""

    identity: str
    """The canonical id of the architecture."""
    description: str
    """The architecture as JSON."""
    point: str | None
    """The name of the paper's network it is."""
    trial: int | None
    """Its number in the study, if it is one of its trials."""
    macs: int
    params: int
    recipe: str
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    """On the test images, one per seed, looked at once, after training."""

    @property
    def architecture(self) -> Architecture:
        return Architecture.from_json(self.description)

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies) if self.accuracies else float("nan")

    @property
    def deviation(self) -> float | None:
        """Between seeds; None for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None
