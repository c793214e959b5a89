"""One network of a study, as it is read back from Optuna."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from optuna.trial import FrozenTrial

from lrnas.arch.architecture import Architecture
from lrnas.study.objectives import Costs

METRIC = "metric."
"""Begins the names of attributes that hold what people's own training code reports beside the accuracy."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One network of a study and what is known about it."""

    number: int
    state: str
    status: str
    """running, waiting, completed, stopped, diverged, faulty, limit, duplicate or lost."""
    description: str
    """The architecture as JSON."""
    identity: str
    point: str | None
    macs: int
    params: int
    latency: float | None
    """Milliseconds for a batch, where the study knows it."""
    accuracy: float | None
    """Validation accuracy: final where completed, else the last one seen."""
    epochs: int
    """Trained."""
    curve: tuple[float, ...]
    """Validation accuracy after every epoch."""
    seconds: float
    reason: str
    values: tuple[float, ...] | None
    on_front: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What people's own training code reported last, beside the accuracy."""

    @property
    def costs(self) -> Costs:
        latency = {} if self.latency is None else {"latency": self.latency}
        return {"macs": self.macs, "params": self.params, **latency}

    @property
    def architecture(self) -> Architecture:
        return Architecture.from_json(self.description)


def read_trial(trial: FrozenTrial) -> Trial:
    """From the attributes that a study gives its trials."""
    attributes = trial.user_attrs
    curve = tuple(attributes.get("curve", ()))
    accuracy = attributes.get("accuracy", curve[-1] if curve else None)
    return Trial(
        number=trial.number,
        state=trial.state.name,
        status=trial.state.name.lower() if not trial.state.is_finished() else attributes.get("status", "lost"),
        description=attributes["architecture"],
        identity=attributes["id"],
        point=attributes.get("point"),
        macs=attributes["macs"],
        params=attributes["params"],
        latency=attributes.get("latency"),
        accuracy=accuracy,
        epochs=attributes.get("epochs", 0),
        curve=curve,
        seconds=attributes.get("seconds", 0.0),
        reason=attributes.get("reason", ""),
        values=tuple(trial.values) if trial.values is not None else None,
        metrics={key.removeprefix(METRIC): value for key, value in attributes.items() if key.startswith(METRIC)},
    )
