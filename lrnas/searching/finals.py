"""Later levels of a search: promising networks are trained longer, and those on the front in full, over several seeds.

Everything that is decided here follows from the studies of the three levels alone. So a search that was killed goes on
with the same decisions, and several drivers can work on it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import threadpool_limits

from lrnas.arch.architecture import Architecture
from lrnas.errors import is_command
from lrnas.sampling.gain import Boxes
from lrnas.sampling.pareto import closest_to_front
from lrnas.sampling.promotion import (
    MAX_MEASURED,
    Contender,
    Measured,
    believe,
    mark_counting,
    pick_first,
    pick_full,
    pick_longer,
)
from lrnas.searching.progress import SearchEvents
from lrnas.searching.proposals import Proposal, Proposals
from lrnas.searching.runs import Chosen, Runs
from lrnas.searching.setup import SearchTraining
from lrnas.study.folder import begin_anew, check_untrained, create_optuna_study, is_trained, trials_folder
from lrnas.study.ledger import Ledger, living_drivers
from lrnas.study.levels import FULL, LONGER, SHORT, SUFFIXES, Level, level_study, read_level, some_within, tell_left
from lrnas.study.manifest import (
    LEVEL,
    SETTINGS,
    OtherSettings,
    check_manifest,
    keep_images,
    read_manifest,
)
from lrnas.study.objectives import Costs
from lrnas.study.open import name_metrics
from lrnas.study.optuna_internals import storage_of
from lrnas.study.retrained import final_front, has_failed, is_done, is_duplicate, run_key
from lrnas.study.study import Study

if TYPE_CHECKING:
    from lrnas.searching.ray_cluster import Workers

LONGER_SHARE = 0.25
"""Share of the time of the later levels that goes to level `longer`."""
SLACK = 0.2
"""Share of the time of the later levels by which seeds of networks on the front may exceed it."""


def open_levels(search: Study, levels: Mapping[str, Level], driver: str | None = None) -> dict[str, Study]:
    """Open the studies of the later levels of a search, or create them.

    Args:
        search: The search.
        levels: The levels by name; the first is the search's own.
        driver: Name of the driver that opens them. While others work on the search, no level begins anew.

    Returns:
        The studies by the name of their level, the search's own included.
    """
    found = {SHORT: search}
    for level, manifest in _level_manifests(search.manifest, levels):
        name = f"{search.name}@{SUFFIXES[level]}"
        stored = create_optuna_study(name, storage_of(search.optuna_study), search.objectives)
        try:
            pinned = check_manifest(stored, manifest)
        except OtherSettings as error:
            if driver is not None and living_drivers(search.optuna_study) - {driver}:
                raise
            stored = begin_anew(stored, error, search.where, search.objectives)
            pinned = check_manifest(stored, manifest)
        name_metrics(stored, search.objectives)
        keep_images(stored, search.images or "")
        found[level] = Study(name, stored, search.objectives, pinned, search.where)
    return found


def why_none(level: Level, share: float, is_any_within: bool) -> str:
    """Why no network is trained in full, and what to do.

    Args:
        level: The level `full`.
        share: Share of the training time that goes to the later levels.
        is_any_within: Whether any network of the search is within its limits.
    """
    if not is_any_within:
        return "all networks that were trained are beyond the limits; raise --budget, or change the limits"
    number = len(level.seeds)
    return (
        f"{100 * share:.0f} % of the training time is too little for {number} seed{'s' * (number != 1)} of "
        f"{level.recipe.epochs} epochs; raise --budget or --finals, or lower --final-epochs or --final-seeds"
    )


def tell_end(search: Study, level: Level, share: float) -> str:
    """What the finals did not train, in words; empty if they trained all that was asked for.

    Args:
        search: The search, at its end.
        level: The level `full`.
        share: As for `why_none`.
    """
    finals, limits = read_level(search), search.limits
    if not finals:
        trained = [trial for trial in search.trials if trial.status == "completed"]
        is_any_within = not trained or any(not limits.excess(trial.costs) for trial in trained)
        return f"no network was trained in full: {why_none(level, share, is_any_within)}"
    front = final_front(finals)
    within = [final for final in front if not limits.excess(final.all_costs)]
    few = sum(final.ended < len(level.seeds) for final in within)
    told = []
    if not is_command() and (left := tell_left(search, finals)):  # the command prints it below the front
        told.append(f"not trained in full: {left}")
    if few:
        told.append(f"fewer than {len(level.seeds)} seeds: {some_within(few, len(within), len(front))} on the front")
    return "; ".join([*told, "a larger --finals trains more"]) if told else ""


def with_finals(error: OtherSettings, search: Study, training: SearchTraining) -> OtherSettings:
    """An error about other settings of a search that also names --final-epochs, if these differ too.

    Args:
        error: The error.
        search: The search.
        training: The training with which it would continue.
    """
    full, wanted = level_study(search, FULL), training.levels.get(FULL)
    if full is None or wanted is None or not is_trained(full, search.where.studies):
        return error
    manifest = read_manifest(full)
    before, now = manifest["recipe"]["epochs"], wanted.recipe.epochs
    if before == now or manifest.get(SETTINGS, {}).get("final_epochs") == training.settings.final_epochs:
        return error
    return OtherSettings(error.name, f"{error.found}; --final-epochs was {before}, now {now}", error.advice)


def check_levels(search: Study, manifest: Mapping[str, Any], levels: Mapping[str, Level]) -> None:
    """Raise OtherSettings if a search cannot continue with these levels. Nothing is written.

    Args:
        search: The search.
        manifest: The manifest with which it would continue.
        levels: As in `open_levels`.
    """
    for level, wanted in _level_manifests(manifest, levels):
        if (study := level_study(search, level)) is not None:
            try:
                check_manifest(study, wanted)
            except OtherSettings as error:
                check_untrained(study, error, search.where)


def _level_manifests(manifest: Mapping[str, Any], levels: Mapping[str, Level]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and manifests of the later levels of a search."""
    for name, level in levels.items():
        if name != SHORT:
            yield name, {**manifest, LEVEL: name, "recipe": level.recipe.to_dict(), "rungs": []}


@dataclass(frozen=True, slots=True, eq=False)
class Promotion:
    """A run that is to be trained next."""

    network: Chosen
    seed: int
    costs: Costs
    promised: tuple[float, float] | None
    """Accuracy after full training, as predicted when the network was first chosen, and its standard deviation; None if
    no network had been trained in full."""


@dataclass
class Ladder:
    """The levels of a search, and the choice of what is trained next at each of them.

    Args:
        proposals: The search.
        levels: The levels by name, from the shortest to the longest.
        studies: Their studies, by the same names.
        share: Share of the training time that goes to the later levels.
    """

    proposals: Proposals
    levels: Mapping[str, Level]
    studies: Mapping[str, Study]
    share: float
    _runs: dict[str, dict[str, list[FrozenTrial]]] = field(default_factory=dict, init=False, repr=False)
    _latencies: dict[str, Costs] = field(default_factory=dict, init=False, repr=False)

    def queue(self, level: str, num_workers: int | None = None) -> Promotions:
        """The runs at a level that are trained now; the arguments are those of `choose`."""
        return Promotions(
            Ledger(self.studies[level]),
            choose=functools.partial(self.choose, level, num_workers=num_workers),
            is_put_off=self._is_put_off,
            expect=self.training_left,
        )

    def choose(self, level: str, is_patient: bool = False, *, num_workers: int | None = None) -> Promotion | None:
        """The next run at a level; None if there is nothing more to train there, for now.

        Args:
            level: Name of the level.
            is_patient: Whether to promote no network before the first one is trained in full, because nothing can be
                promised until then.
            num_workers: Choose only runs that are trained before accuracies are promised: the first run of each
                reference network, then those of `pick_first`, and other seeds of reference networks while there are
                fewer runs than this; None: choose any runs.
        """
        self._read_runs()
        first = self._first_trials()
        if not first:
            return None
        is_reference = {identity: self._point_of(trial) is not None for identity, trial in first.items()}
        references = [first[each] for each in first if is_reference[each] and self._is_within(first[each])]
        if num_workers is None and not (is_patient and self._is_first_in_training()):
            return self._choose_any(level, first, is_reference)
        if new := [trial for trial in references if trial.user_attrs["id"] not in self._runs[FULL]]:
            return self._promote(new[0], FULL, None)
        if num_workers is not None:
            left = self.seconds_left(FULL) - max(0.0, self.seconds_left(LONGER))
            contenders, _ = self._contenders(FULL, first, is_reference)
            if (picked := pick_first(contenders, left)) is not None:
                return self._promote(first[picked.identity], FULL, None)
        return self._next_seed(references, num_workers)

    def _choose_any(
        self, level: str, first: Mapping[str, FrozenTrial], is_reference: Mapping[str, bool]
    ) -> Promotion | None:
        """The next run at a level, of whatever network."""
        contenders, is_full = self._contenders(level, first, is_reference)
        left, slack = self.seconds_left(level), SLACK * self._later_seconds()
        if level == FULL:
            picked = pick_full(contenders, left, len(self.levels[FULL].seeds), slack)
        else:
            picked = pick_longer(contenders, left)
        if picked is None:
            return None
        return self._promote(first[picked.identity], level, (picked.mean, picked.deviation) if is_full else None)

    def _contenders(
        self, level: str, first: Mapping[str, FrozenTrial], is_reference: Mapping[str, bool]
    ) -> tuple[list[Contender], bool]:
        """The networks that may be trained at a level, and whether their accuracies are those after full training."""
        shown = self._near_front(first, is_reference)
        measured = [self._measured(first[each]) for each in shown]
        with threadpool_limits(1):  # the cores are for the workers
            mean, deviation, is_full = believe(measured, self.proposals.axes.kinds)
        runs = {each: self._runs[level].get(each, []) for each in shown}
        if level == LONGER:  # what was trained in full need not be trained longer; reference networks are compared
            runs = {each: runs[each] + ([] if is_reference[each] else self._runs[FULL].get(each, [])) for each in shown}
        contenders = [
            Contender(
                each,
                is_reference[each],
                self._costs_to_beat(first[each], is_reference[each]),
                float(mean[i]),
                float(deviation[i]),
                self._expected_seconds(first[each], level),
                len(runs[each]),
                any(has_failed(run) or run.user_attrs.get("status") == "diverged" for run in runs[each]),
                is_first=bool(runs[each]) and "promised" not in runs[each][0].user_attrs,
            )
            for i, each in enumerate(shown)
        ]
        marked = self._mark_counting(contenders)  # also by networks beyond the limits, if their accuracies are known
        return [each for each in marked if self._is_within(first[each.identity])], is_full

    def _costs_to_beat(self, trial: FrozenTrial, is_reference: bool) -> tuple[float, ...]:
        """The costs of a network. With `beat`, a reference network counts as if it had this share of its costs."""
        share = (self.proposals.beat or 1.0) if is_reference else 1.0
        return tuple(share * trial.user_attrs[name] for name in self.proposals.study.costs)

    def _mark_counting(self, contenders: list[Contender]) -> list[Contender]:
        """Mark the networks that are in the part of the front that the named networks mark, as the sampler does."""
        named = list(self.proposals.named())
        if not named:
            return contenders
        believed = {each.identity: each.mean for each in contenders}
        cost_of = self.proposals.guess_of or self.proposals.cost_of
        costs = [[cost_of(network)[name] for name in self.proposals.study.costs] for network in named]
        means = [believed.get(self.proposals.study.identify(network), -math.inf) for network in named]
        return mark_counting(contenders, Boxes.around(np.array(costs), np.array(means), self.proposals.beat))

    def seconds(self, level: str) -> float:
        """Training time of a level so far; runs that are not over count with what they are expected to take."""
        first = self._first_trials()
        total = 0.0
        for identity, runs in self._runs[level].items():
            for run in runs:
                if "imported_from" in run.user_attrs:
                    continue
                seconds = float(run.user_attrs.get("seconds", 0.0))
                if self._is_open(run) and identity in first and level != SHORT:
                    seconds = max(seconds, self._expected_seconds(first[identity], level))
                total += seconds
        return total

    def seconds_left(self, level: str) -> float:
        """Training time that is left for a level; negative if more was used."""
        later = self._later_seconds()
        if level == LONGER:
            return LONGER_SHARE * later - self.seconds(LONGER)
        return later - sum(self.seconds(name) for name in self.levels if name != SHORT)

    def training_left(self) -> float:
        """Training time until the search is over, at all later levels together, if all that is allowed is used."""
        self._read_runs()
        first = self._first_trials()
        rest, begun = 0.0, set[str]()
        for level in (name for name in self.levels if name != SHORT):
            for identity, runs in self._runs[level].items():
                begun |= {identity} if level == FULL else set()
                if identity in first:
                    expected = self._expected_seconds(first[identity], level)
                    spent = [run.user_attrs.get("seconds", 0.0) for run in runs if self._is_open(run)]
                    rest += sum(max(0.0, expected - seconds) for seconds in spent)
        references = (
            self._expected_seconds(trial, FULL)
            for identity, trial in first.items()
            if identity not in begun and self._point_of(trial) is not None and self._is_within(trial)
        )
        is_any_within = any(map(self._is_within, first.values()))
        return rest + max(self.seconds_left(FULL) if is_any_within else 0.0, sum(references), 0.0)

    def _read_runs(self) -> None:
        self._runs = {name: _by_network(study.optuna_trials()) for name, study in self.studies.items()}

    def _later_seconds(self) -> float:
        """Training time of all later levels together."""
        return self.share / (1 - self.share) * self.seconds(SHORT)

    def _next_seed(self, references: Sequence[FrozenTrial], num_workers: int | None) -> Promotion | None:
        """The next seed of a reference network at level `full`, if it is needed and there is time for it.

        Args:
            references: The trials of the reference networks; each has a run at level `full`.
            num_workers: Choose none if there are so many runs at this level; None: do not count them.
        """
        begun = {trial.number: len(self._runs[FULL][trial.user_attrs["id"]]) for trial in references}
        seconds = {trial.number: self._expected_seconds(trial, FULL) for trial in references}
        left = self.seconds_left(FULL)
        if num_workers is not None:  # level `longer` and the networks to compare with need time as well
            if sum(map(len, self._runs[FULL].values())) >= num_workers:
                return None
            left -= max(0.0, self.seconds_left(LONGER)) + sum(seconds.values())
        num_seeds = len(self.levels[FULL].seeds)
        due = [trial for trial in references if begun[trial.number] < num_seeds and seconds[trial.number] <= left]
        return self._promote(min(due, key=lambda trial: begun[trial.number]), FULL, None) if due else None

    def _is_first_in_training(self) -> bool:
        """Whether networks are being trained in full, and none of them is done."""
        runs = [run for some in self._runs[FULL].values() for run in some]
        return any(map(self._is_open, runs)) and not any(map(is_done, runs))

    # --- networks of the search

    def _first_trials(self) -> dict[str, FrozenTrial]:
        """The first complete trial of each network of the search, by identity."""
        runs = self._runs[SHORT]
        return {
            identity: complete[0]
            for identity, trials in runs.items()
            if (complete := [trial for trial in trials if trial.user_attrs.get("status") == "completed"])
        }

    def _near_front(self, first: Mapping[str, FrozenTrial], is_reference: Mapping[str, bool]) -> list[str]:
        """Identities of the networks that accuracies are predicted for; all but those far behind in large studies."""
        cost = self.proposals.study.costs[0]
        accuracies = [trial.user_attrs["accuracy"] for trial in first.values()]
        near = closest_to_front(accuracies, [trial.user_attrs[cost] for trial in first.values()], MAX_MEASURED)
        known = list(first)
        later = {identity for name in self.levels if name != SHORT for identity in self._runs[name]}
        kept = {known[i] for i in near} | later | {identity for identity in known if is_reference[identity]}
        return [identity for identity in known if identity in kept]

    def _measured(self, trial: FrozenTrial) -> Measured:
        axes, identity = self.proposals.axes, trial.user_attrs["id"]
        names = list(dict.fromkeys([*self.proposals.study.costs, "macs", "params"]))
        done = (
            tuple(
                run.user_attrs["accuracy"]
                for run in self._runs[level].get(identity, [])
                if run.user_attrs.get("status") == "completed"
            )
            for level in self.levels
        )
        features = axes.encode([axes.point(trial.params)])[0]
        return Measured(features, tuple(float(trial.user_attrs[name]) for name in names), tuple(done))

    def _expected_seconds(self, trial: FrozenTrial, level: str) -> float:
        """Expected time of a run, from the time of the short training and the numbers of epochs."""
        seconds, epochs = trial.user_attrs.get("seconds", 0.0), trial.user_attrs.get("epochs", 1)
        return float(seconds / max(1, epochs) * self.levels[level].recipe.epochs)

    def _is_within(self, trial: FrozenTrial) -> bool:
        """Whether a network is within the limits, which may have changed since it was trained."""
        return not self.proposals.limits.excess({**self._known_latency(trial), **trial.user_attrs})

    def _known_latency(self, trial: FrozenTrial) -> Costs:
        """The latency of a network that was trained before there was a limit on it, by name; else empty."""
        known = trial.user_attrs
        if self.proposals.limits.max_latency is None or "latency" in known:
            return {}
        if known["id"] not in self._latencies:
            costs = self.proposals.cost_of(Architecture.from_json(known["architecture"]))
            self._latencies[known["id"]] = {name: costs[name] for name in ("latency",) if name in costs}
        return self._latencies[known["id"]]

    def _is_put_off(self, run: FrozenTrial) -> bool:
        """Whether a run that was begun or chosen waits until the limits allow its network again."""
        return run.state == TrialState.WAITING and not self._is_within(run)

    def _is_open(self, run: FrozenTrial) -> bool:
        """Whether a run is being trained, or will be."""
        return not (run.state.is_finished() or self._is_put_off(run))

    def _point_of(self, trial: FrozenTrial) -> str | None:
        """Name of a trial's network, if it is a reference network."""
        name = trial.user_attrs.get("point")
        return name if name in self.proposals.study.manifest["space"]["points"] else None

    def _promote(self, trial: FrozenTrial, level: str, promised: tuple[float, float] | None) -> Promotion:
        known, identity = trial.user_attrs, trial.user_attrs["id"]
        runs = self._runs[level].get(identity, [])
        if runs:  # what was promised first counts
            promised = runs[0].user_attrs.get("promised")
        used = {run.user_attrs["seed"] for run in runs}
        seed = next(seed for seed in self.levels[level].seeds if seed not in used)
        network = Chosen(identity, Architecture.from_json(known["architecture"]), self._point_of(trial), trial.number)
        costs: Costs = {name: known[name] for name in ("macs", "latency", "params") if name in known}
        return Promotion(network, seed, costs, promised)


def _by_network(trials: list[FrozenTrial]) -> dict[str, list[FrozenTrial]]:
    """Trials that were or will be trained, by the identity of their network."""
    found: dict[str, list[FrozenTrial]] = {}
    for trial in trials:
        if "params" in trial.user_attrs and not is_duplicate(trial):
            found.setdefault(trial.user_attrs["id"], []).append(trial)
    return found


@dataclass
class Promotions(Runs):
    """Runs at a later level, chosen one by one as workers get free.

    Args:
        ledger: The ledger of the driver that trains them.
        wanted: All runs of the study, as pairs of a network's identity and a seed.
        choose: Returns the next run; None if there is none. Its argument says whether other runs are being trained, so
            that it may wait for their results.
        is_put_off: Whether a run that waits is not to be trained now.
        expect: Returns the training time that is left, in seconds; None if it is not known.
    """

    may_ask_again: ClassVar[bool] = True
    choose: Callable[[bool], Promotion | None] = lambda is_patient: None
    is_put_off: Callable[[FrozenTrial], bool] = lambda run: False
    expect: Callable[[], float] | None = None
    _ended: int | None = field(default=None, init=False, repr=False)
    """Number of runs that had ended when there was nothing to choose."""

    def __post_init__(self) -> None:
        self._find_wanted()

    def _find_wanted(self) -> None:
        runs = self.study.optuna_trials()
        self.wanted = [run_key(run) for run in runs if not (is_duplicate(run) or self.is_put_off(run))]

    def ask(self, budget: int | None = None) -> Proposal | None:
        """The next run; None if there is nothing more to train at this level, for now."""
        while True:
            self._find_wanted()
            if (waiting := super().ask()) is not None:
                return waiting
            runs = self.study.optuna_trials()
            ended = sum(run.state.is_finished() for run in runs)
            if ended == self._ended:
                return None
            mine = (
                run.state == TrialState.RUNNING and run.user_attrs.get("owner") == self.ledger.driver for run in runs
            )
            if (chosen := self.choose(any(mine))) is None:
                self._ended = ended
                return None
            # another driver may choose the same at the same time; then one of the two runs ends as a duplicate
            self._enqueue_run(chosen.network, chosen.seed, chosen.costs, promised=chosen.promised)

    def training_left(self) -> float | None:
        return None if self.expect is None else self.expect()

    def is_over(self, budget: int | None) -> bool:
        waiting = self.study.optuna_trials((TrialState.WAITING,))
        return all(map(self.is_put_off, waiting)) and self.choose(False) is None


def train_levels(
    proposals: Proposals,
    training: SearchTraining,
    studies: Mapping[str, Study],
    folder: str | Path,
    *,
    share: float,
    workers: Workers,
    events: SearchEvents,
) -> None:
    """Train networks of a search at its later levels. Ray must be running.

    Args:
        proposals: The search, whose short trainings are over.
        training: Training of the networks.
        studies: Studies of all levels, by their names.
        folder: Folder of all studies.
        share: Share of the training time that goes to the later levels.
        workers: Resources of the workers.
        events: Receiver of what happens.
    """
    from lrnas.searching.ray_tune import run_trials

    ladder = Ladder(proposals, training.levels, studies, share)
    phases: list[tuple[str, int | None]] = [(FULL, None)]
    if LONGER in studies:
        # reference networks first: without any full training, accuracies after it cannot be predicted
        phases = [(FULL, workers.concurrency or 1), (LONGER, None), *phases]
    for level, num_workers in phases:
        if proposals.study.interrupted:
            return
        study, queue = studies[level], ladder.queue(level, num_workers)
        queue.ledger.release_orphans()
        if queue.is_over(None):
            continue
        events.started(queue, None)
        run_trials(
            queue,
            functools.partial(training.job_at, level),
            trials_folder(folder, study.name),
            budget=None,
            workers=workers,
            notify=events.changed,
        )
        proposals.study.interrupted = study.interrupted
