"""What a search makes large or small, and what a network may cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from lrnas.errors import LrnasError, UnknownName

Costs = Mapping[str, float]
"""What is known of a network before it is trained, by name: macs, params and, where it is asked for, latency."""


class InvalidObjectives(LrnasError):
    """Objectives that make no search."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a search makes large or small."""

    name: str
    maximise: bool
    doc: str
    label: str
    """Of an axis, in the unit that pictures have."""
    unit: float = 1.0
    """How much of the objective one such unit is."""

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "maximize" if self.maximise else "minimize"


OBJECTIVES = {
    objective.name: objective
    for objective in (
        Objective(
            "accuracy",
            True,
            "share of the validation images that are classified right",
            "validation accuracy, %",
            0.01,
        ),
        Objective("macs", False, "multiply-accumulates for one image", "multiply-accumulates, millions", 1e6),
        Objective("params", False, "number of parameters", "parameters, millions", 1e6),
        Objective("latency", False, "milliseconds for a batch on a device, without training", "latency, ms"),
    )
}
"""Of a search. What is measured on test images is none of them."""

RETRAINED = (
    Objective("test_accuracy", True, "share of the test images that are classified right", "test accuracy, %", 0.01),
    OBJECTIVES["macs"],
)
"""What is recorded of networks that were chosen and trained again; nothing is chosen by it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a network may cost; one that breaks them is never trained."""

    max_macs: int | None = None
    min_macs: int | None = None
    max_params: int | None = None
    max_latency: float | None = None
    """Milliseconds."""

    def excess(self, costs: Costs) -> dict[str, float]:
        """By how much each limit is broken, as a share of it; nothing where all hold."""
        broken = {
            "max_macs": costs["macs"] / self.max_macs - 1 if self.max_macs else 0.0,
            "min_macs": 1 - costs["macs"] / self.min_macs if self.min_macs else 0.0,
            "max_params": costs["params"] / self.max_params - 1 if self.max_params else 0.0,
            "max_latency": costs["latency"] / self.max_latency - 1 if self.max_latency else 0.0,
        }
        return {name: value for name, value in broken.items() if value > 0}

    def given(self) -> dict[str, float]:
        """Those there are."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def cost_objectives(objectives: Sequence[Objective]) -> list[Objective]:
    """Those of them that are known before training."""
    return [objective for objective in objectives if not objective.maximise]


def pick_objectives(names: Sequence[str]) -> tuple[Objective, ...]:
    """Objectives by name; accuracy and at least one that costs."""
    for name in names:
        if name not in OBJECTIVES:
            raise UnknownName("objective", name, OBJECTIVES)
    if "accuracy" not in names or len(set(names)) < max(2, len(names)):
        raise InvalidObjectives(
            f"the objectives are accuracy and at least one cost, each once; got {', '.join(names) or 'none'}; write "
            "accuracy,macs"
        )
    return tuple(OBJECTIVES[name] for name in names)
