"""What networks of a study came to when they were trained in full, over several seeds, and tested.

`lrnas retrain` trains them. Its record is an Optuna study of its own beside the search's, SEARCH@RECIPE, with one trial
per network and seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from lrnas.arch.architecture import Architecture
from lrnas.errors import UnknownName
from lrnas.study.manifest import MANIFEST, RETRAINS, data_name
from lrnas.study.objectives import cost_objectives, pick_objectives
from lrnas.study.optuna_internals import get_trial, storage_of
from lrnas.study.pareto import front_indices
from lrnas.study.study import Study
from lrnas.training.seed_stats import OverSeeds


@dataclass(frozen=True, slots=True)
class Final(OverSeeds):
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
    open: int = 0
    """Further runs, which wait or are being trained."""
    failed: int = 0
    """Further runs, which ended in an error; the command that began them tries them again."""
    reason: str = ""
    """Of the last one that failed."""
    costs: tuple[str, ...] = ("macs",)
    """The search's objectives that cost, by name, which are what networks are compared by."""
    known_as: str | None = None
    """The search's name for it, where it is none of the paper's: that of a seed of the space."""

    @property
    def known_costs(self) -> dict[str, int]:
        """Of these costs, those that are known here; MACs, if none is."""
        known = {"macs": self.macs, "params": self.params}
        return {name: known[name] for name in self.costs if name in known} or {"macs": self.macs}

    @property
    def cheapest_first(self) -> tuple[tuple[int, ...], str]:
        """To sort by."""
        return tuple(self.known_costs.values()), self.identity

    @property
    def architecture(self) -> Architecture:
        return Architecture.from_json(self.description)

    @property
    def name(self) -> str:
        """For tables and sentences."""
        return self.point or self.known_as or self.identity

    @property
    def ended(self) -> int:
        """Runs that came to their end, by a test or by an infinite loss."""
        return len(self.accuracies) + self.diverged

    def to_dict(self) -> dict[str, Any]:
        own = {key: value for key, value in asdict(self).items() if key != "description"}
        return {"name": self.name, **own, **self.numbers(), "architecture": self.architecture.to_dict()}


@dataclass(frozen=True, slots=True)
class Retrained:
    """The networks of one search under one recipe, as far as they are trained."""

    study: str
    """The search."""
    recipe: str
    """Its name, with what is changed in it."""
    fields: Mapping[str, Any]
    """All of the recipe."""
    data: str
    finals: tuple[Final, ...]
    """Cheapest first."""
    has_points: bool = True
    """Whether the space has networks of the paper."""
    others: tuple[str, ...] = ()
    """The names of further retrainings of the search."""
    data_name: str = ""
    """What people call the data, where that is another name."""

    @property
    def name(self) -> str:
        return f"{self.study}@{self.recipe}"

    @property
    def left(self) -> int:
        """Runs that were asked for and are not done."""
        return sum(final.open + final.failed for final in self.finals)

    def __str__(self) -> str:
        tested = sum(bool(final.accuracies) for final in self.finals)
        failed = sum(final.failed for final in self.finals)
        parts = [f"{self.name}, on {self.data_name or self.data}: {tested} of {len(self.finals)} networks tested"]
        if self.left:
            parts.append(f"{self.left} runs not done" + (f", {failed} of them after errors" if failed else ""))
        if not self.has_points:
            parts.append("the space has no networks of the paper to compare with")
        if self.others:
            parts.append(f"not shown: {', '.join(self.others)}")
        return "; ".join(parts) + "."


def read_finals(study: Study, recipe: str | None = None) -> list[Final]:
    """The networks of a search that are trained again with a recipe, cheapest first; without a name, the last one.

    The study may be the record of a retraining itself. A network has what its finished runs came to, be they all that
    were asked for, some or none.
    """
    found = read_retrained(study, recipe)
    return [] if found is None else list(found.finals)


def read_retrained(study: Study, recipe: str | None = None) -> Retrained | None:
    """A retraining as `read_finals` finds it, and what there is to know about it; None where there is none."""
    record, search = study.optuna_study, study.manifest.get(RETRAINS)
    if search is not None:
        recipe, known = study.name.partition("@")[2], []
    else:
        search, known = study.name, retrained_recipes(study)
        if recipe is not None and recipe not in known:
            raise UnknownName(f"retraining of {study.name} with recipe", recipe, known)
        if not known:
            return None
        recipe = recipe or known[-1]
        record = optuna.load_study(study_name=f"{study.name}@{recipe}", storage=storage_of(record))
    runs: dict[str, dict[int, list[FrozenTrial]]] = {}
    for run in record.get_trials(deepcopy=False):
        # "params" comes last: another driver may just be writing a row
        if "params" in run.user_attrs and not is_duplicate(run):
            network, seed = run_key(run)
            runs.setdefault(network, {}).setdefault(seed, []).append(run)
    searched = _open_search(study, search)
    finals = sorted((_final(recipe, searched, some) for some in runs.values()), key=lambda final: final.cheapest_first)
    manifest = record.user_attrs[MANIFEST]
    others = tuple(f"{search}@{other}" for other in known if other != recipe)
    has_points = bool(manifest["space"]["points"])
    return Retrained(
        search, recipe, manifest["recipe"], manifest["data"], tuple(finals), has_points, others, data_name(manifest)
    )


def _open_search(study: Study, search: str) -> optuna.Study | None:
    """What was searched, of which the record of a retraining may be all that is left."""
    if study.name == search:
        return study.optuna_study
    if search not in optuna.get_all_study_names(storage_of(study.optuna_study)):
        return None
    return optuna.load_study(study_name=search, storage=storage_of(study.optuna_study))


def retrained_recipes(study: Study) -> list[str]:
    """The recipes that networks of a search were trained again with; the one in use last comes last."""
    found = []
    for other in storage_of(study.optuna_study).get_all_studies():
        manifest = other.user_attrs.get(MANIFEST, {})
        if manifest.get(RETRAINS) == study.name:
            record = optuna.load_study(study_name=other.study_name, storage=storage_of(study.optuna_study))
            trials = record.get_trials(deepcopy=False)
            last = max((trial.datetime_start for trial in trials if trial.datetime_start), default=datetime.min)
            found.append((last, other.study_name.partition("@")[2]))
    return [recipe for _, recipe in sorted(found)]


def run_key(run: FrozenTrial) -> tuple[str, int]:
    """What a run is one of: a network, by its canonical id, and a seed."""
    return run.user_attrs["id"], run.user_attrs["seed"]


def is_done(run: FrozenTrial) -> bool:
    """Whether a run came to its end: the network was tested, or its loss became infinite."""
    return run.state.is_finished() and run.user_attrs.get("status") in ("completed", "diverged")


def has_failed(run: FrozenTrial) -> bool:
    """Whether a run ended and came to nothing: what was asked for is still to be done."""
    return run.state.is_finished() and not is_done(run)


def is_duplicate(run: FrozenTrial) -> bool:
    """Whether it is a row that two drivers wrote which began together, and another one counts."""
    return run.user_attrs.get("status") == "duplicate"


def best_run(runs: Iterable[FrozenTrial]) -> FrozenTrial:
    """Of those of one network and seed, the one that counts: what is done, then what is open, then the last."""
    return min(runs, key=lambda run: (not is_done(run), has_failed(run), -run.number))


def final_front(finals: Iterable[Final]) -> list[Final]:
    """Those that no other one dominates by its mean accuracy and its known costs, cheapest first."""
    tested = [final for final in finals if final.accuracies and math.isfinite(final.mean)]
    best = [tested[i] for i in front_indices([[*final.known_costs.values(), -final.mean] for final in tested])]
    return sorted(best, key=lambda final: final.cheapest_first)


def front_marks(finals: Sequence[Final]) -> dict[str, str]:
    """What tables say of those on the front, by identity: one that has fewer runs than others may be there by luck."""
    most = max((len(final.accuracies) for final in finals), default=0)
    return {
        final.identity: "front" if len(final.accuracies) == most else "front by fewer runs"
        for final in final_front(finals)
    }


def _costs(searched: optuna.Study) -> tuple[str, ...]:
    objectives = pick_objectives(searched.user_attrs[MANIFEST]["objectives"])
    return tuple(objective.name for objective in cost_objectives(objectives))


def _name_in(searched: optuna.Study, number: int, identity: str) -> str | None:
    """A network's name as a trial of its search, if it has one; another search may have taken that one's place."""
    try:
        trial = get_trial(searched, number)
    except KeyError:
        return None
    name: str | None = trial.user_attrs.get("point")
    return name if trial.user_attrs.get("id") == identity else None


def _final(recipe: str, searched: optuna.Study | None, runs: Mapping[int, Sequence[FrozenTrial]]) -> Final:
    """Of one network's runs by seed; of a seed, what is done counts, then what is open."""
    best = [best_run(runs[seed]) for seed in sorted(runs)]
    first = best[0].user_attrs
    done = [run for run in best if is_done(run)]
    tested = [run for run in done if run.user_attrs["status"] == "completed"]
    failed = [run for run in best if has_failed(run)]
    point, trial = first.get("point"), first.get("trial")
    return Final(
        identity=first["id"],
        description=first["architecture"],
        point=point,
        trial=trial,
        macs=first["macs"],
        params=first["params"],
        recipe=recipe,
        seeds=tuple(run.user_attrs["seed"] for run in tested),
        accuracies=tuple(run.user_attrs["test_accuracy"] for run in tested),
        runs=tuple(run.number for run in tested),
        diverged=len(done) - len(tested),
        open=len(best) - len(done) - len(failed),
        failed=len(failed),
        reason=max(failed, key=lambda run: run.number).user_attrs.get("reason", "") if failed else "",
        costs=("macs",) if searched is None else _costs(searched),
        known_as=None if point or trial is None or searched is None else _name_in(searched, trial, first["id"]),
    )
