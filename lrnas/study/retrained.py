"""Results of a retraining: networks of a search that were trained in full, over several seeds, and tested.

`lrnas retrain` trains them. A retraining is an Optuna study of its own, SEARCH@RECIPE, in the storage of the search. It
has one trial, called a run, per network and seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from lrnas._arguments import checked
from lrnas._messages import logger, percent
from lrnas.arch.architecture import Architecture
from lrnas.errors import UnknownName
from lrnas.sampling.pareto import front_indices
from lrnas.study.folder import LEVEL_FOLDERS
from lrnas.study.manifest import LEVEL, MANIFEST, RETRAINS, USED, StudyError, data_name, read_manifest
from lrnas.study.objectives import cost_objectives, pick_objectives
from lrnas.study.optuna_internals import get_trial, storage_of
from lrnas.study.study import Study
from lrnas.training.seed_stats import OverSeeds

COST_WORDS = {"macs": "MACs", "params": "parameters", "latency": "latency"}
"""Words for the costs of networks."""


def tell_shares(shares: Mapping[str, float]) -> str:
    """Costs of a network as shares of another one's, in words."""
    return " and ".join(f"{share:.3f} of its {COST_WORDS[name]}" for name, share in shares.items())


@dataclass(frozen=True, slots=True)
class Final(OverSeeds):
    """One network trained with one recipe, over its seeds."""

    identity: str
    """The canonical id of the architecture."""
    description: str
    """The architecture as JSON."""
    point: str | None
    """Its name, if it is a reference network."""
    trial: int | None
    """Its number in the search, if it is one of its trials."""
    macs: int
    params: int
    recipe: str
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    """Accuracy per seed after training: on test images in a retraining, on validation images at a level of a search."""
    runs: tuple[int, ...] = ()
    """Numbers of its runs in SEARCH@RECIPE, one per seed; `lrnas export` finds weights by them."""
    diverged: int = 0
    """Number of runs that are not in `runs` because their loss became infinite."""
    open: int = 0
    """Number of runs that wait or are being trained."""
    failed: int = 0
    """Number of runs that ended in an error; the same command tries them again."""
    reason: str = ""
    """Reason of the last failure."""
    costs: tuple[str, ...] = ("macs",)
    """Names of the search's cost objectives, by which networks are compared."""
    latency: float | None = None
    """Milliseconds for a batch: at a level of a search from its table of layers, in a retraining measured as a whole;
    None if it is not known of all networks."""
    promised: tuple[float, float] | None = None
    """Accuracy that was predicted when a search chose the network for this level, and its standard deviation."""
    known_as: str | None = None
    """Its name, if it is a uniform network of the space."""

    @property
    def all_costs(self) -> dict[str, float]:
        """All costs that are known, by name."""
        timed = {} if self.latency is None else {"latency": self.latency}
        return {"macs": self.macs, "params": self.params, **timed}

    @property
    def known_costs(self) -> dict[str, float]:
        """The costs by which this network is compared: the search's, as far as they are known, else MACs."""
        known = self.all_costs
        return {name: known[name] for name in self.costs if name in known} or {"macs": self.macs}

    def shares_of(self, other: Final) -> dict[str, float]:
        """Each of these costs as a share of another network's."""
        return {name: cost / other.known_costs[name] for name, cost in self.known_costs.items()}

    @property
    def cheapest_first(self) -> tuple[tuple[float, ...], str]:
        """Sort key: the known costs, then the identity."""
        return tuple(self.known_costs.values()), self.identity

    @property
    def architecture(self) -> Architecture:
        return Architecture.from_json(self.description)

    @property
    def name(self) -> str:
        """Name for tables and messages."""
        return self.point or self.known_as or self.identity

    @property
    def title(self) -> str:
        """Name in sentences and pictures: its own, else `trial 74`; of a network without a trial, the identity."""
        return self.point or self.known_as or (self.identity if self.trial is None else f"trial {self.trial}")

    def __repr__(self) -> str:
        known = f"{percent(self.mean, self.deviation)}, n {len(self.accuracies)}"
        accuracy = known if self.accuracies else "no run done"
        return f"<Final {self.name}: {accuracy}, {self.macs:,} MACs>"

    @property
    def ended(self) -> int:
        """Number of runs that were tested or diverged."""
        return len(self.accuracies) + self.diverged

    def to_dict(self) -> dict[str, Any]:
        own = {key: value for key, value in asdict(self).items() if key != "description"}
        return {"name": self.name, **own, **self.numbers(), "architecture": self.architecture.to_dict()}


@dataclass(frozen=True, slots=True)
class Retrained:
    """A retraining: networks of one search, trained again with one recipe, finished or not."""

    study: str
    """Name of the search."""
    recipe: str
    """Name of the recipe, with the changed fields."""
    fields: Mapping[str, Any]
    """All fields of the recipe."""
    data: str
    finals: tuple[Final, ...]
    """Cheapest first."""
    has_points: bool = True
    """Whether the space has reference networks."""
    others: tuple[str, ...] = ()
    """Names of the other retrainings of the search."""
    data_name: str = ""
    """Name of the data to show, if it differs from `data`."""

    @property
    def name(self) -> str:
        return f"{self.study}@{self.recipe}"

    @property
    def left(self) -> int:
        """Number of runs that are not done."""
        return sum(final.open + final.failed for final in self.finals)

    @property
    def num_references(self) -> int:
        """Number of reference networks that were tested."""
        return sum(final.point is not None and bool(final.accuracies) for final in self.finals)

    def __str__(self) -> str:
        tested = sum(bool(final.accuracies) for final in self.finals)
        failed = sum(final.failed for final in self.finals)
        parts = [f"{self.name}, on {self.data_name or self.data}: {tested} of {len(self.finals)} networks tested"]
        if self.left:
            parts.append(f"{self.left} runs not done" + (f", {failed} of them after errors" if failed else ""))
        if not self.has_points:
            parts.append("the space has no reference networks to compare with")
        if self.others:
            parts.append(f"not shown: {', '.join(self.others)}")
        return "; ".join(parts) + "."


@checked
def read_retraining(study: Study, recipe: str | None = None) -> list[Final]:
    """Read the networks of a search that `retrain` trained again. The finals of the search itself are in `read_level`.

    Args:
        study: The search, or the retraining itself.
        recipe: The name of the recipe, as in SEARCH@RECIPE; by default the one used last.

    Returns:
        The networks, cheapest first, with the test results of all runs that are done so far; empty if the search was
        not retrained.
    """
    found = read_retrained(study, recipe)
    if found is None:
        logger.warning(f"{study.name} was not trained again and tested yet: lrnas.retrain does that")
        return []
    return list(found.finals)


def read_retrained(study: Study, recipe: str | None = None) -> Retrained | None:
    """Read a whole retraining. The arguments are those of `read_retraining`.

    Returns:
        The retraining; None if the search has none.
    """
    if LEVEL in study.manifest:
        how = "`lrnas front` shows it, in Python lrnas.read_level"
        raise StudyError(f"a retraining is needed; got {study.name}, a level of a search; {how}")
    retraining, search = study.optuna_study, study.manifest.get(RETRAINS)
    if search is not None:
        recipe, known = study.name.partition("@")[2], []
    else:
        search, known = study.name, retrained_recipes(study)
        if recipe is not None and recipe not in known:
            raise UnknownName(f"retraining of {study.name} with recipe", recipe, known)
        if not known:
            return None
        recipe = recipe or known[-1]
        retraining = optuna.load_study(study_name=f"{study.name}@{recipe}", storage=storage_of(retraining))
    finals = gather_runs(retraining, recipe, open_searched(study, search))
    manifest = read_manifest(retraining)
    others = tuple(f"{search}@{other}" for other in known if other != recipe)
    has_points = bool(manifest["space"]["points"])
    return Retrained(
        search, recipe, manifest["recipe"], manifest["data"], tuple(finals), has_points, others, data_name(manifest)
    )


def find_shown(study: Study) -> Retrained | None:
    """The retraining of a search that its report shows; None if it has none.

    It is the one with the most tested reference networks; of several such ones, the one used last.
    """
    found = [read_retrained(study, recipe) for recipe in reversed(retrained_recipes(study))]
    return max(filter(None, found), key=lambda each: each.num_references, default=None)


def gather_runs(study: optuna.Study, recipe: str, searched: optuna.Study | None) -> list[Final]:
    """The networks of a study of runs, cheapest first, with the results of all runs that are done so far.

    Args:
        study: A retraining, or a later level of a search.
        recipe: Its name after the @.
        searched: The search; None if it was deleted.
    """
    # "params" is written last: another driver may be in the middle of writing a run
    written = [run for run in study.get_trials(deepcopy=False) if "params" in run.user_attrs]
    runs: dict[str, list[FrozenTrial]] = {}
    for (network, _), run in sorted(counting_runs(written).items()):
        runs.setdefault(network, []).append(run)
    costs = ("macs",) if searched is None else _costs(searched)
    finals = [_final(recipe, searched, costs, some) for some in runs.values()]
    if any(final.latency is None for final in finals):  # some were measured on another machine, or before
        finals = [replace(final, latency=None) for final in finals]
    return sorted(finals, key=lambda final: final.cheapest_first)


def open_searched(study: Study, search: str) -> optuna.Study | None:
    """The search of a retraining; None if it was deleted."""
    if study.name == search:
        return study.optuna_study
    if search not in optuna.get_all_study_names(storage_of(study.optuna_study)):
        return None
    return optuna.load_study(study_name=search, storage=storage_of(study.optuna_study))


def retrained_recipes(study: Study) -> list[str]:
    """Recipes of the retrainings of a search, the one used last at the end."""
    found = []
    for other in storage_of(study.optuna_study).get_all_studies():
        manifest = other.user_attrs.get(MANIFEST)
        if isinstance(manifest, dict) and manifest.get(RETRAINS) == study.name:
            retraining = optuna.load_study(study_name=other.study_name, storage=storage_of(study.optuna_study))
            starts = (trial.datetime_start for trial in retraining.get_trials(deepcopy=False))
            times = [str(other.user_attrs.get(USED, "")), *(start.isoformat() for start in starts if start)]
            found.append((max(times), other.study_name.partition("@")[2]))
    return [recipe for _, recipe in sorted(found)]


def run_key(run: FrozenTrial) -> tuple[str, int]:
    """Canonical id of a run's network, and its seed."""
    return run.user_attrs["id"], run.user_attrs["seed"]


def is_done(run: FrozenTrial) -> bool:
    """Whether a run is done: tested, or diverged."""
    return run.state.is_finished() and run.user_attrs.get("status") in ("completed", "diverged")


def has_failed(run: FrozenTrial) -> bool:
    """Whether a run ended without a result and has to be repeated."""
    return run.state.is_finished() and not is_done(run)


def is_duplicate(run: FrozenTrial) -> bool:
    """Whether a run does not count because drivers that started together created it twice."""
    return run.user_attrs.get("status") == "duplicate"


def counting_runs(runs: Iterable[FrozenTrial]) -> dict[tuple[str, int], FrozenTrial]:
    """The run that counts for each network and seed: one that is done, else one that is open, else the last one."""
    ranked = sorted(runs, key=lambda run: (is_done(run), not has_failed(run), run.number))
    return {run_key(run): run for run in ranked if not is_duplicate(run)}


@checked
def final_front(finals: Iterable[Final]) -> list[Final]:
    """The networks that no other one dominates, by mean accuracy and known costs.

    Args:
        finals: Networks trained with one recipe, from `read_retraining` or `read_level`.

    Returns:
        The front, cheapest first.
    """
    tested = [final for final in finals if final.accuracies and math.isfinite(final.mean)]
    best = [tested[i] for i in front_indices([[*final.known_costs.values(), -final.mean] for final in tested])]
    return sorted(best, key=lambda final: final.cheapest_first)


def front_marks(finals: Sequence[Final]) -> dict[str, str]:
    """Marks of the networks on the front in tables, by identity: `front`, or `front by fewer runs`.

    A network with fewer runs than others may be on the front by luck.
    """
    most = max((len(final.accuracies) for final in finals), default=0)
    return {
        final.identity: "front" if len(final.accuracies) == most else "front by fewer runs"
        for final in final_front(finals)
    }


def _costs(searched: optuna.Study) -> tuple[str, ...]:
    objectives = pick_objectives(read_manifest(searched)["objectives"])
    return tuple(objective.name for objective in cost_objectives(objectives))


def _name_in(searched: optuna.Study, number: int, identity: str) -> str | None:
    """Name of a network as a trial of its search; None if it has none, or if the search was begun anew since."""
    try:
        trial = get_trial(searched, number)
    except KeyError:
        return None
    name: str | None = trial.user_attrs.get("point")
    return name if trial.user_attrs.get("id") == identity else None


def _final(recipe: str, searched: optuna.Study | None, costs: tuple[str, ...], runs: Sequence[FrozenTrial]) -> Final:
    """A network's results from its runs, one per seed."""
    first = runs[0].user_attrs
    done = [run for run in runs if is_done(run)]
    tested = [run for run in done if run.user_attrs["status"] == "completed"]
    failed = [run for run in runs if has_failed(run)]
    is_tested = recipe not in LEVEL_FOLDERS
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
        accuracies=tuple(run.user_attrs["test_accuracy" if is_tested else "accuracy"] for run in tested),
        runs=tuple(run.number for run in tested),
        diverged=len(done) - len(tested),
        open=len(runs) - len(done) - len(failed),
        failed=len(failed),
        reason=max(failed, key=lambda run: run.number).user_attrs.get("reason", "") if failed else "",
        costs=costs,
        latency=first.get("latency"),
        promised=tuple(first["promised"]) if "promised" in first else None,
        known_as=None if point or trial is None or searched is None else _name_in(searched, trial, first["id"]),
    )
