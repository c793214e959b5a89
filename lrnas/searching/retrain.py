"""`lrnas retrain`: networks of a search trained in full, over several seeds, beside the paper's, and tested.

A search chooses by validation images, after short trainings. What its networks are worth is found here: those that were
chosen and the paper's networks of the space are trained alike, on other seeds than the search's, so that luck which
brought one to the front is not counted again; when a training is over, the test images are looked at once. Every run
is a trial of Ray Tune's and of an Optuna study, SEARCH@RECIPE, and survives what a search survives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import smallest_input
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet
from lrnas.data.names import SETS, is_stream, shown_name
from lrnas.errors import LrnasError
from lrnas.models.plan import canonical_id, make_plan
from lrnas.recipes import InvalidRecipe, Recipe, get_recipe
from lrnas.searching.progress import SearchEvents, with_progress
from lrnas.searching.proposals import FAULTS, Proposal, Queue
from lrnas.searching.ray_cluster import pick_workers, running_ray
from lrnas.study.folder import trial_folder, trials_folder
from lrnas.study.ledger import Ledger
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import RETRAINS, StudyError, check_manifest, data_name, names_of
from lrnas.study.objectives import RETRAINED
from lrnas.study.open import name_metrics, open_study
from lrnas.study.optuna_internals import storage_of
from lrnas.study.retrained import best_run, has_failed, is_done, is_duplicate, run_key
from lrnas.study.study import Study, Summary
from lrnas.training.checkpoint import CheckpointError, load_checkpoint
from lrnas.training.job import Job


@dataclass(frozen=True, slots=True)
class Chosen:
    """A network to be trained over all seeds."""

    identity: str
    architecture: Architecture
    point: str | None
    """The name of the paper's network it is."""
    trial: int | None
    """Its number in the search, if it is one of its trials."""


@dataclass
class Retraining(Queue):
    """The record of a retraining: one trial per network and seed, all of them known beforehand."""

    wanted: list[tuple[str, int]] = field(default_factory=list)
    """The networks and seeds that are asked for now; the record may hold others."""

    def enqueue(self, networks: Sequence[Chosen], seeds: Sequence[int], costs: Mapping[str, Mapping[str, int]]) -> None:
        """Have networks trained over seeds, all on the first seed first; runs that are there already are left alone."""
        self.wanted = [(network.identity, seed) for seed in seeds for network in networks]
        runs = self.study.optuna_trials()
        known = {run_key(run) for run in runs if not has_failed(run)}
        failed = {run_key(run): run.number for run in runs if has_failed(run) and not is_duplicate(run)}  # the last one
        for seed in seeds:
            for network in networks:
                if (network.identity, seed) in known:
                    continue
                names = {
                    "point": network.point,
                    "trial": network.trial,
                    "after": failed.get((network.identity, seed)),  # what was given up, and may have a checkpoint
                }
                facts = {
                    "id": network.identity,
                    "seed": seed,
                    "architecture": network.architecture.to_json(),
                    **{key: value for key, value in names.items() if value is not None},
                    **costs[network.identity],
                }
                self.study.optuna_study.enqueue_trial({}, user_attrs=facts)

    def parts(self) -> str:
        networks = len({network for network, _ in self.wanted})
        seeds = len(self.wanted) // max(1, networks)
        return f"{networks} networks × {seeds} seeds" if networks > 1 and seeds > 1 else ""

    def take_over(self, folder: Path) -> None:
        """Have runs in the place of ones that were given up go on from the checkpoints of these, if they can be read.

        `folder` is where the record's checkpoints are.
        """
        for run in self.study.optuna_trials((TrialState.WAITING,)):
            if (before := run.user_attrs.get("after")) is None:
                continue
            old, new = trial_folder(folder, before), trial_folder(folder, run.number)
            with suppress(CheckpointError, OSError):  # another driver may have been quicker
                if not new.exists() and load_checkpoint(old) is not None:
                    old.rename(new)
                    known = self.study.optuna_trial(before).user_attrs
                    self.ledger.write(
                        run.number, {key: known[key] for key in ("curve", "epochs", "seconds") if key in known}
                    )

    def waiting_macs(self) -> list[int]:
        """Of the runs that are asked for."""
        waiting = self.study.optuna_trials((TrialState.WAITING,))
        return [run.user_attrs["macs"] for run in waiting if run_key(run) in self.wanted]

    def faults(self, summary: Summary) -> dict[str, int]:
        """Of the runs that are asked for, those that diverged, and those that came to nothing and wait for no one."""
        runs: dict[tuple[str, int], list[FrozenTrial]] = {}
        for run in self.study.optuna_trials():
            if not is_duplicate(run):
                runs.setdefault(run_key(run), []).append(run)
        last = [best_run(runs[key]) for key in self.wanted if key in runs]
        ended = [run.user_attrs.get("status", "") for run in last if run.state.is_finished()]
        return {status: ended.count(status) for status in FAULTS}

    def spent(self) -> int:
        """Runs that are asked for and done, or being trained."""
        found = {
            run_key(run)
            for run in self.study.optuna_trials()
            if run.state != TrialState.WAITING and not has_failed(run)
        }
        return len(found & set(self.wanted))

    def left(self) -> int:
        """Runs that are asked for and not done; those that diverged are done."""
        return len(set(self.wanted) - self._done())

    def running(self) -> int:
        """Runs that are asked for and being trained, by whomever."""
        found = {run_key(run) for run in self.study.optuna_trials((TrialState.RUNNING,))}
        return len((found & set(self.wanted)) - self._done())

    def _done(self) -> set[tuple[str, int]]:
        return {run_key(run) for run in self.study.optuna_trials() if is_done(run)}

    def ask(self, budget: int | None = None) -> Proposal | None:
        """The next run; none where all that are asked for are done or in other hands."""
        self.ledger.sign()
        wanted = set(self.wanted)
        for run in self.study.optuna_trials((TrialState.WAITING,)):
            if run_key(run) not in wanted or not self.ledger.claim(run):
                continue
            self.ledger.write(run.number, {"owner": self.ledger.driver, "trained": True})
            if self._is_known(run):
                continue
            known = run.user_attrs
            costs = {"macs": known["macs"], "params": known["params"]}
            network = Architecture.from_json(known["architecture"])
            return Proposal(run.number, network, known.get("point"), costs, known["seed"])
        return None

    def end_duplicates(self) -> None:
        """End rows that two drivers which began together wrote, and that nobody asked for once the run was done."""
        done = self._done()
        for run in self.study.optuna_trials((TrialState.WAITING,)):
            if run_key(run) in done and self.ledger.claim(run):
                self.ledger.write(run.number, {"owner": self.ledger.driver})
                self._is_known(run)

    def _is_known(self, run: FrozenTrial) -> bool:
        """Whether two drivers that began together both asked for this run: the first row counts, the other is told."""
        for other in self.study.optuna_trials():
            is_first = is_done(other) or (other.number < run.number and not has_failed(other))
            if is_first and run_key(other) == run_key(run):
                reason = f"the same run as trial {other.number}"
                self.ledger.end(run.number, TrialState.FAIL, "duplicate", reason, trained=False)
                return True
        return False


@with_progress
def retrain(
    name: str,
    *,
    trials: Sequence[int] = (),
    front: bool | None = None,
    points: bool = True,
    seeds: int = 3,
    recipe: str = "paper",
    epochs: int | None = None,
    changes: Mapping[str, Any] | None = None,
    data: str | None = None,
    data_dir: str | Path | None = None,
    storage: str | None = None,
    studies: str | Path = "studies",
    cpus_per_trial: float = 1,
    gpus_per_trial: float | None = None,
    concurrency: int | None = None,
    address: str | None = None,
    events: SearchEvents | None = None,
    progress: bool = True,
) -> Retraining:
    """Train networks of a search in full and test them; `read_finals` has what came of it.

    The arguments are those of the command line, which explains them; `front` is whether the front's networks are among
    them, by default where no trials are named. How it goes is told on stderr, or to `events` of one's own, or with
    `progress=False` to nobody.
    """
    events = events or SearchEvents()
    if seeds < 1:
        raise LrnasError(f"the number of seeds is at least 1; got {seeds}; give 3, say")
    workers = pick_workers(cpus_per_trial, gpus_per_trial, concurrency, address)
    search = open_study(name, storage=storage, studies=studies)
    where = Whereabouts(str(studies), storage)
    networks = _choose(search, trials, not trials if front is None else front, points, where)
    given = dict(changes or {}) | ({} if epochs is None else {"epochs": epochs})
    training = _Training(search.manifest, name, data, data_dir, recipe, given)
    full_name = f"{name}@{training.label}"
    record = optuna.create_study(
        storage=storage_of(search.optuna_study),
        study_name=full_name,
        directions=[goal.direction for goal in RETRAINED],
        load_if_exists=True,
    )
    manifest = check_manifest(record, training.manifest(search), "give them, or another name to the recipe's file")
    name_metrics(record, RETRAINED)
    retraining = Retraining(Ledger(Study(full_name, record, RETRAINED, manifest)))
    first = search.manifest["seed"] + 1
    costs = {network.identity: training.cost(network.architecture) for network in networks}
    retraining.enqueue(networks, range(first, first + seeds), costs)
    retraining.take_over(trials_folder(studies, full_name))
    retraining.ledger.release_orphans()
    budget = len(retraining.wanted)
    events.started(retraining, budget)
    if retraining.spent() < budget:
        from lrnas.searching.ray_tune import run_trials

        with running_ray(workers) as workers:
            run_trials(
                retraining,
                training.job,
                trials_folder(studies, full_name),
                budget=budget,
                rungs=(),
                workers=workers,
                notify=events.changed,
                test=True,
            )
    retraining.end_duplicates()
    return retraining


def _choose(
    search: Study, trials: Sequence[int], front: bool, points: bool, where: Whereabouts | None = None
) -> list[Chosen]:
    """The networks to train, the paper's first, each once under whatever names it has."""
    name, manifest = search.name, search.manifest
    look = (where or Whereabouts()).command("front", name)
    if manifest.get("trainable") is not None:
        raise StudyError(
            f"networks are trained again by lrnas, which knows their test images; got {name}, trained by "
            f"{manifest['trainable']}; take them from `{look} --json` and test them there"
        )
    summary = search.summary()
    by_number = {trial.number: trial for trial in summary.trials}
    if front and not summary.front:
        raise StudyError(f"a front has networks that were trained in full; {name} has none yet; go on with it")
    for number in trials:
        if number not in by_number:
            there = f"networks of {len(by_number)} trials, up to {max(by_number)}" if by_number else "none yet"
            raise StudyError(f"{name} has no network of trial {number}; it has {there}; `{look}` shows the best ones")
    paper = {key: Architecture.from_dict(value, key) for key, value in manifest["space"]["points"].items()}
    names = {canonical_id(network): key for key, network in reversed(paper.items())}
    numbers = {trial.identity: trial.number for trial in reversed(summary.trials) if trial.status == "completed"}
    listed = [by_number[number] for number in trials] + (summary.front if front else [])
    found = {canonical_id(network): network for network in paper.values()} if points else {}
    for trial in listed:
        found.setdefault(trial.identity, trial.architecture)
        numbers.setdefault(trial.identity, trial.number)
    return [Chosen(key, network, names.get(key), numbers.get(key)) for key, network in found.items()]


class _Training:
    """How the networks are trained: on the search's data, as `lrnas reproduce` would train them."""

    def __init__(
        self,
        searched: Mapping[str, Any],
        name: str,
        data: str | None,
        data_dir: str | Path | None,
        recipe: str,
        changes: Mapping[str, Any],
    ) -> None:
        backbones = searched["space"]["choices"]["backbone"]
        self.smallest = max(smallest_input(backbone) for backbone in backbones)
        self.data_dir = None if data_dir is None else str(data_dir)
        if data is None and searched["data"] not in SETS:
            raise StudyError(
                f"{name} knows its images as {data_name(searched)}, not where they are; got no --data; give that of "
                "the search"
            )
        self.named = data = data or searched["data"]
        self.image_size = searched["image_size"] if is_stream(data) else None
        self.data: DataSet = load_set(data, data_dir, min_size=self.smallest, image_size=self.image_size)
        if self.data.identity != searched["data"]:
            raise StudyError(
                f"networks are trained again on the images of their search, {data_name(searched)}; got other ones, "
                f"{shown_name(data)}; give the same --data"
            )
        self.recipe = self._recipe(recipe, backbones[0], changes)
        stem = re.sub(r"[^\w.+-]", "-", Path(recipe).stem)
        self.label = ",".join([stem, *self._changed(recipe, backbones[0], changes)])
        """The recipe's name, and what is changed in it."""

    def _recipe(self, name: str, backbone: str, changes: Mapping[str, Any]) -> Recipe:
        size, number, own_crops = self.data.image_size, len(self.data.train), self.data.own_crops
        return get_recipe(name, backbone, size, number, changes, own_crops=own_crops)

    def _changed(self, name: str, backbone: str, changes: Mapping[str, Any]) -> list[str]:
        """The fields that are not as the recipe has them, for a name."""
        now = self.recipe.to_dict()
        try:
            before = self._recipe(name, backbone, {}).to_dict()
        except InvalidRecipe:  # without the changes it could not be used here at all
            before = {key: value for key, value in now.items() if key not in changes}
        changed = [key for key, value in now.items() if key not in before or value != before[key]]
        return [f"{key}={str(now[key]).lower()}" for key in changed]

    def job(self, proposal: Proposal) -> Job:
        assert proposal.seed is not None
        network, seed = proposal.architecture, proposal.seed
        return Job(network, self.named, self.recipe, seed, self.smallest, self.data_dir, self.image_size)

    def cost(self, architecture: Architecture) -> dict[str, int]:
        """As it is trained, which may be on crops of another size than in the search."""
        size, classes, channels = self.recipe.crop or self.data.image_size, self.data.num_classes, self.data.channels
        cost = make_plan(architecture, size, classes, channels, check_fit=False).cost
        return {"macs": cost.macs, "params": cost.params}

    def manifest(self, search: Study) -> dict[str, Any]:
        """What must stay the same for runs to be comparable."""
        space = search.manifest["space"]
        named = [Architecture.from_dict(each) for part in ("points", "seeds") for each in space[part].values()]
        counts = [self.cost(network) for network in named or map(Architecture, space["choices"]["backbone"])]
        return {
            RETRAINS: search.name,
            "source": search.manifest["source"],
            "space": space,
            "data": self.data.identity,
            **names_of(self.named, self.data.classes),
            "image_size": self.data.image_size,
            "recipe": self.recipe.to_dict(),
            "rungs": [],
            "objectives": [goal.name for goal in RETRAINED],
            "reference": {key: max(count[key] for count in counts) for key in ("macs", "params")},
        }
