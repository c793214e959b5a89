"""What a search makes large or small, and what a network may cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lrnas.errors import LrnasError, UnknownName

__all__ = ["OBJECTIVES", "InvalidObjectives", "Limits", "Objective", "pick_objectives"]


class InvalidObjectives(LrnasError):
    """Objectives that make no search."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a search makes large or small."""

    name: str
    maximise: bool
    doc: str

    @property
    def direction(self) -> Literal["maximize", "minimize"]:
        return "maximize" if self.maximise else "minimize"


OBJECTIVES = {
    objective.name: objective
    for objective in (
        Objective("accuracy", True, "share of the validation images that are classified right"),
        Objective("macs", False, "multiply-accumulates for one image"),
        Objective("params", False, "number of parameters"),
    )
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a network may cost; one that breaks them is never trained."""

    max_macs: int | None = None
    min_macs: int | None = None
    max_params: int | None = None

    def excess(self, macs: int, params: int) -> dict[str, float]:
        """By how much each limit is broken, as a share of it; nothing where all hold."""
        broken = {
            "max_macs": macs / self.max_macs - 1 if self.max_macs else 0.0,
            "min_macs": 1 - macs / self.min_macs if self.min_macs else 0.0,
            "max_params": params / self.max_params - 1 if self.max_params else 0.0,
        }
        return {name: value for name, value in broken.items() if value > 0}


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
