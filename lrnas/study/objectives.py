"""Objectives of a search, and limits on what a network may cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from lrnas.errors import LrnasError, UnknownName

Costs = Mapping[str, float]
"""Costs of a network by name, known before training: macs, params and, if it is measured, latency."""


class InvalidObjectives(LrnasError):
    """The objectives of a search are not accuracy and at least one cost."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A value that a search maximises or minimises."""

    name: str
    maximise: bool
    label: str
    """Label of an axis, with the unit."""
    unit: float = 1.0
    """Value of one unit of the label, for example 0.01 for %."""

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "maximize" if self.maximise else "minimize"


OBJECTIVES = {
    objective.name: objective
    for objective in (
        Objective("accuracy", True, "validation accuracy, %", 0.01),
        Objective("macs", False, "multiply-accumulates, millions", 1e6),
        Objective("params", False, "parameters, millions", 1e6),
        Objective("latency", False, "latency, ms"),
    )
}
"""Objectives of a search, by name. None of them is measured on test images."""

RETRAINED = (
    Objective("test_accuracy", True, "test accuracy, %", 0.01),
    OBJECTIVES["macs"],
)
"""Values of the runs of a retraining; no network is chosen by them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the costs of a network; a network beyond them is never trained."""

    max_macs: int | None = None
    min_macs: int | None = None
    max_params: int | None = None
    max_latency: float | None = None
    """Milliseconds."""

    def excess(self, costs: Costs) -> dict[str, float]:
        """By how much costs are beyond each limit, as a share of the limit; empty if they are within all limits.

        A latency that is not known is within its limit.
        """
        broken = {
            "max_macs": costs["macs"] / self.max_macs - 1 if self.max_macs else 0.0,
            "min_macs": 1 - costs["macs"] / self.min_macs if self.min_macs else 0.0,
            "max_params": costs["params"] / self.max_params - 1 if self.max_params else 0.0,
            "max_latency": costs.get("latency", 0.0) / self.max_latency - 1 if self.max_latency else 0.0,
        }
        return {name: value for name, value in broken.items() if value > 0}

    def given(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def cost_objectives(objectives: Sequence[Objective]) -> list[Objective]:
    """The objectives that are costs, which are known before training."""
    return [objective for objective in objectives if not objective.maximise]


def pick_objectives(names: Sequence[str]) -> tuple[Objective, ...]:
    """The objectives with these names: accuracy and at least one cost."""
    for name in names:
        if name not in OBJECTIVES:
            raise UnknownName("objective", name, OBJECTIVES)
    if "accuracy" not in names or len(set(names)) < max(2, len(names)):
        raise InvalidObjectives(
            f"the objectives are accuracy and at least one cost, each once; got {', '.join(names) or 'none'}; write "
            "accuracy,macs"
        )
    return tuple(OBJECTIVES[name] for name in names)
