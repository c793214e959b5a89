"""What networks of a study came to when they were trained in full, over several seeds, and tested.

`lrnas retrain` trains them. Its record is an Optuna study of its own beside the search's, SEARCH@RECIPE, with one trial
per network and seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from lrnas.arch import Architecture
from lrnas.errors import UnknownName
from lrnas.manifest import MANIFEST, RETRAINS
from lrnas.pareto import front_indices
from lrnas.record import Record

__all__ = ["Final", "final_front", "read_finals", "retrained_recipes", "run_key"]


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
    runs: tuple[int, ...] = ()
    """The trials of SEARCH@RECIPE, one per seed, by which `lrnas export` finds their weights."""
    diverged: int = 0
    """Further runs, whose loss became infinite."""

    @property
    def architecture(self) -> Architecture:
        return Architecture.from_json(self.description)

    @property
    def name(self) -> str:
        """For tables and sentences."""
        return self.point or self.identity

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies) if self.accuracies else float("nan")

    @property
    def deviation(self) -> float | None:
        """Between seeds; None for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        own = {key: value for key, value in asdict(self).items() if key != "description"}
        mean = self.mean if self.accuracies else None  # JSON has no NaN
        numbers = {"mean": mean, "sd": self.deviation, "n": len(self.accuracies)}
        return {**own, **numbers, "architecture": self.architecture.to_dict()}


def read_finals(study: Record, recipe: str | None = None) -> list[Final]:
    """The networks of a search that were trained again with a recipe, cheapest first; without a name, the last one.

    The study may be the record of a retraining itself. A network has what its finished runs came to, be they all that
    were asked for or not; one with none is left out.
    """
    record = study.study
    if RETRAINS in study.manifest:
        recipe = study.name.partition("@")[2]
    else:
        known = retrained_recipes(study)
        if recipe is not None and recipe not in known:
            raise UnknownName(f"retraining of {study.name} with recipe", recipe, known)
        if not known:
            return []
        recipe = recipe or known[-1]
        record = optuna.load_study(study_name=f"{study.name}@{recipe}", storage=record._storage)
    runs: dict[str, list[FrozenTrial]] = {}
    for run in record.get_trials(deepcopy=False):
        if run.user_attrs.get("status") in ("completed", "diverged"):
            runs.setdefault(run.user_attrs["id"], []).append(run)
    return sorted((_final(recipe, some) for some in runs.values()), key=lambda final: (final.macs, final.identity))


def retrained_recipes(study: Record) -> list[str]:
    """The recipes that networks of a search were trained again with; the one in use last comes last."""
    found = []
    for other in study.study._storage.get_all_studies():
        manifest = other.user_attrs.get(MANIFEST, {})
        if manifest.get(RETRAINS) == study.name:
            record = optuna.load_study(study_name=other.study_name, storage=study.study._storage)
            trials = record.get_trials(deepcopy=False)
            last = max((trial.datetime_start for trial in trials if trial.datetime_start), default=datetime.min)
            found.append((last, other.study_name.partition("@")[2]))
    return [recipe for _, recipe in sorted(found)]


def run_key(run: FrozenTrial) -> tuple[str, int]:
    """What a run is one of: a network, by its canonical id, and a seed."""
    return run.user_attrs["id"], run.user_attrs["seed"]


def final_front(finals: Iterable[Final]) -> list[Final]:
    """Those that no other one dominates by its mean accuracy and its multiply-accumulates, cheapest first."""
    tested = [final for final in finals if final.accuracies and math.isfinite(final.mean)]
    best = [tested[i] for i in front_indices([[final.macs, -final.mean] for final in tested])]
    return sorted(best, key=lambda final: (final.macs, final.identity))


def _final(recipe: str, runs: Sequence[FrozenTrial]) -> Final:
    """Of one network's runs."""
    first = runs[0].user_attrs
    runs = sorted(runs, key=lambda run: run.user_attrs["seed"])
    tested = [run for run in runs if run.user_attrs["status"] == "completed"]
    return Final(
        identity=first["id"],
        description=first["architecture"],
        point=first.get("point"),
        trial=first.get("trial"),
        macs=first["macs"],
        params=first["params"],
        recipe=recipe,
        seeds=tuple(run.user_attrs["seed"] for run in tested),
        accuracies=tuple(run.user_attrs["test_accuracy"] for run in tested),
        runs=tuple(run.number for run in tested),
        diverged=len(runs) - len(tested),
    )
