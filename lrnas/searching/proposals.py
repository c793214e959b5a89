"""Queues of networks to train: `Queue`, the base of all queues, and `Proposals`, the points that a sampler proposes.

A search is one Optuna study, which is its only record. Trials have their architecture and all measurements as user
attributes, and objectives have names, so that Optuna's own tools (optuna-dashboard, optuna.visualization) can read it.

States of trials. COMPLETE: trained to the end. PRUNED, with reason: stopped early, diverged, faulty or beyond a limit;
tpe and nsga2 learn from these, gp does not see them. FAIL: lost through no fault of the network. WAITING: to be
trained, or trained in part by a driver that is gone; the next driver continues from the checkpoint. A duplicate has the
state of the finished trial with the same network, or FAIL if that trial is not finished.
"""

from __future__ import annotations

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import threadpool_limits

from lrnas._arguments import checked
from lrnas._differences import find_differences, tell_differences
from lrnas.arch.architecture import Architecture
from lrnas.errors import LrnasError, OutsideSpace
from lrnas.sampling.axes import Axes, last_part
from lrnas.sampling.front_sampler import FrontSampler
from lrnas.spaces.space import SearchSpace
from lrnas.study.ledger import Ledger, starting_facts
from lrnas.study.manifest import FREE, StudyError
from lrnas.study.objectives import Costs, Limits
from lrnas.study.optuna_internals import LAST_ATTRIBUTE
from lrnas.study.study import Study, Summary

MOST_REJECTIONS = 300
"""Number of rejected points in a row after which a space counts as exhausted."""
FAULTS = ("diverged", "faulty", "lost")
"""Statuses of trials that failed, as opposed to being stopped."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A network to be trained now."""

    number: int
    """The trial."""
    architecture: Architecture
    point: str | None
    """Its name, if it is a reference network or a uniform network of the space."""
    costs: Costs
    seed: int | None = None
    """Seed of the training; None: the seed of the study."""

    @property
    def macs(self) -> int:
        return int(self.costs["macs"])


@dataclass
class Queue(ABC):
    """Networks to be trained, one after another, and how many of them are done.

    Args:
        ledger: The ledger of the driver that trains them.
        has_finals: Whether the best of them are trained in full afterwards.
    """

    ledger: Ledger
    has_finals: bool = field(default=False, kw_only=True)

    @property
    def study(self) -> Study:
        """The study that the networks belong to."""
        return self.ledger.study

    retries_faulty: ClassVar[bool] = False
    """Whether a network that cannot be trained is tried again, because it could be trained before."""

    may_ask_again: ClassVar[bool] = False
    """Whether there may be more to train, once a trial has ended, after `ask` returned None."""

    @abstractmethod
    def ask(self, budget: int | None = None) -> Proposal | None:
        """The next network to train; None if there is none left, or if it would exceed the budget."""

    def look_ahead(self) -> None:
        """Begin to look for the next network while no worker waits for it, if that takes long."""
        return

    def spent(self) -> int:
        """Number of trials that count towards the budget."""
        return self.study.spent()

    def is_over(self, budget: int | None) -> bool:
        """Whether nothing is left to train within the budget; None: there is no budget."""
        return budget is not None and self.spent() >= budget

    def running(self) -> int:
        """Number of trials that some driver is training."""
        return self.study.running()

    def waiting_macs(self) -> list[int]:
        """Multiply-accumulates of the networks that wait to be trained, in the order of the queue, as far as known."""
        waiting = self.study.optuna_trials((TrialState.WAITING,))
        return [trial.user_attrs["macs"] for trial in waiting if "macs" in trial.user_attrs]

    def faults(self, summary: Summary) -> dict[str, int]:
        """Number of trials that failed, per status."""
        return {status: summary.counts.get(status, 0) for status in FAULTS}

    def training_left(self) -> float | None:
        """Training time that is left, in seconds, all networks together; None if it follows from a budget."""
        return None

    def parts(self) -> str:
        """How the budget is made up, in words, for example `4 networks × 3 seeds`; empty if there is nothing to say."""
        return ""


@dataclass
class Proposals(Queue):
    """The points of a space that the study's sampler proposes.

    Args:
        ledger: The ledger of the driver that trains them.
        space: The space.
        cost_of: Returns the costs of an architecture as deployed, at the input size of the training.
        limits: Limits on the costs of a network.
        guess_of: Fast estimate of `cost_of`; None if `cost_of` is already fast.
        beat: Share of the costs of reference networks below which the sampler `front` looks; None: look at all costs
            between those of the named networks.
    """

    space: SearchSpace
    cost_of: Callable[[Architecture], Costs]
    limits: Limits = field(default_factory=Limits)
    guess_of: Callable[[Architecture], Costs] | None = None
    beat: float | None = None

    def __post_init__(self) -> None:
        self.distributions = distributions_of(self.space)
        self.axes = Axes(self.distributions, kind_of, self.space.idle_parameters)
        self._random = np.random.default_rng()
        self._ahead: Future[None] | None = None
        """The search for the next point, if it has begun."""

    def named(self) -> list[Architecture]:
        """The networks that mark the part of the front that counts: with `beat`, only reference networks."""
        points, uniform = list(self.space.points.values()), list(self.space.uniform.values())
        return points if self.beat is not None and points else [*points, *uniform]

    def enqueue(self, named: Mapping[str, Architecture]) -> None:
        """Put named networks into the queue, except those that the study already has."""
        beyond, known = self._left_out(), {*tried_names(self.study), *waiting_names(self.study)}
        for name, architecture in named.items():
            # limits may have changed since the network was found to be beyond them
            is_still_beyond = name in beyond and self.limits.excess(self.cost_of(architecture))
            if name not in known and not is_still_beyond:
                facts = {"point": name, **self._macs(architecture)}
                self.study.optuna_study.enqueue_trial(self.space.params_of(architecture), user_attrs=facts)

    def _left_out(self) -> set[str]:
        """Names of the named networks that were beyond the limits when they were proposed."""
        rows = (trial.user_attrs for trial in self.study.optuna_trials((TrialState.PRUNED,)))
        return {known["point"] for known in rows if known.get("status") == "limit" and "point" in known}

    def _macs(self, architecture: Architecture) -> dict[str, float]:
        """Attribute with the MACs of a network, to estimate the time left; empty if it will not be trained."""
        try:
            costs = (self.guess_of or self.cost_of)(architecture)
        except LrnasError:  # reported when the network is proposed
            return {}
        return {} if self.limits.excess(costs) else {"macs": costs["macs"]}

    def import_from(self, other: Study) -> int:
        """Import the completed networks of another study that lie in this space; they cost no budget.

        Args:
            other: The other study, which must have the same conditions of training.

        Returns:
            The number of networks that were imported.
        """
        check_conditions(other, self.study.manifest)
        known = {trial.user_attrs.get("id") for trial in self.study.optuna_trials() if trial.values is not None}
        names = {self.study.identify(network): name for name, network in self.space.points.items()}
        number = 0
        for trial in other.optuna_trials((TrialState.COMPLETE,)):
            if trial.user_attrs["status"] != "completed" or trial.user_attrs["id"] in known:
                continue
            try:
                params = self._params_of(trial)
            except OutsideSpace:
                continue
            facts = {key: value for key, value in trial.user_attrs.items() if key not in ("trained", "point", "owner")}
            if name := names.get(trial.user_attrs["id"]):
                facts["point"] = name
            attributes = {**facts, "imported_from": f"{other.name}:{trial.number}"}
            self.study.optuna_study.add_trial(
                optuna.trial.create_trial(
                    params=params, distributions=self.distributions, values=trial.values, user_attrs=attributes
                )
            )
            number += 1
        return number

    def _params_of(self, trial: FrozenTrial) -> dict[str, Any]:
        """The point of this space that a trial of another study has trained; raises OutsideSpace if there is none.

        Its deployed form, which was trained, may lie outside the space that it was proposed in.
        """
        try:
            if self.study.identify(self.space.architecture(trial.params)) == trial.user_attrs["id"]:
                return dict(trial.params)
        except LrnasError:
            pass  # the other space has other parameters
        return self.space.params_of(Architecture.from_json(trial.user_attrs["architecture"]))

    def ask(self, budget: int | None = None) -> Proposal | None:
        """The next network to train; None if it would exceed the budget.

        A proposed network is trained as it will be deployed, a named one as it was built. Points that need no training
        are ended at once and cost no budget. Other drivers may ask at the same time. So a trial is written to the study
        before the study is searched for the same network: if two drivers propose the same network, at least one of them
        sees the other's trial.
        """
        self.ledger.sign()
        if (ahead := self._ahead) is not None:
            self._ahead = None
            ahead.result()
        for _ in range(MOST_REJECTIONS):
            if self.study.interrupted:
                return None
            with self.ledger.together():  # Optuna writes the trial at once; its attributes follow at the end
                with threadpool_limits(1):  # the cores are for the workers, and matrices of samplers are small
                    trial = self.study.optuna_study.ask(self.distributions)
                # at once, because other drivers take a trial without an owner for one whose driver is gone
                trial.set_user_attr("owner", self.ledger.driver)
                facts: dict[str, Any] = {}
                fault, excess = "", {}
                try:
                    architecture = self.space.architecture(trial.params)
                    if "point" not in trial.user_attrs:
                        architecture = self.study.deployed(architecture)
                    identity = self.study.identify(architecture)
                    costs = self.cost_of(architecture)
                except LrnasError as error:  # a point without a network, for example at this input size
                    fault = str(error)
                else:
                    excess = self.limits.excess(costs)
                    point = trial.user_attrs.get("point")
                    if not (excess and point and point in self._left_out()):  # else it would be listed twice
                        facts |= {"architecture": architecture.to_json(), "id": identity, **costs}
                        facts |= {} if excess else starting_facts(trial.user_attrs)
                        facts[LAST_ATTRIBUTE] = facts.pop(LAST_ATTRIBUTE)
                self.ledger.write(trial.number, facts)
            if fault:
                self.ledger.end(trial.number, TrialState.PRUNED, "faulty", fault)
                continue
            if excess:
                for name, value in excess.items():
                    trial.set_constraint(name, value)
                # it was trained in part, perhaps, before there was this limit; then it costs no budget any more
                reason = f"beyond {', '.join(sorted(excess))}"
                self.ledger.end(trial.number, TrialState.PRUNED, "limit", reason, trained=False)
                continue
            if self._is_known(trial.number, identity):
                if "point" not in trial.user_attrs:  # the sampler repeats itself: try a point nearby
                    near = self.axes.mutate([self.axes.point(trial.params)], self._random)
                    self.study.optuna_study.enqueue_trial(self.axes.params(near))
                continue
            if budget is not None and self.spent() > budget:
                self.ledger.put_back(trial.number)  # it waits for a larger budget and costs none meanwhile
                return None
            return Proposal(trial.number, architecture, trial.user_attrs.get("point"), costs)
        raise StudyError(
            f"the last {MOST_REJECTIONS} points that {self.study.name} proposed were known or beyond a limit; the "
            "space has no more to offer; end the search, or widen the space or the limits"
        )

    def look_ahead(self) -> None:
        """Begin to look for the next network in a thread; it then rests on what is known now."""
        study = self.study.optuna_study
        sampler, waiting = study.sampler, self.study.optuna_trials((TrialState.WAITING,))
        if self._ahead is not None or waiting or not isinstance(sampler, FrontSampler):
            return
        if (find := sampler.look_ahead(study, self.distributions)) is None:
            return

        def find_with_one_core() -> None:
            with threadpool_limits(1):
                find()

        thread = ThreadPoolExecutor(1, thread_name_prefix="proposal")
        self._ahead = thread.submit(find_with_one_core)
        thread.shutdown(wait=False)

    def _is_known(self, number: int, identity: str) -> bool:
        """Whether another trial trains or trained this network; if so, this trial is ended as a duplicate."""
        earlier, later = self._same_point(number)
        for other in [*earlier, *self.study.trials_of(identity)]:
            known = other.user_attrs
            if other.number == number or other.number in later:
                continue
            if other not in earlier and not _is_taken(known):
                continue
            if other.state == TrialState.FAIL:
                continue  # it was lost: try again
            state = other.state if other.state.is_finished() else TrialState.FAIL
            values = other.values if state == TrialState.COMPLETE else None
            self.ledger.end(
                number, state, "duplicate", f"the same network as trial {other.number}", values, trained=False
            )
            return True
        return False

    def _same_point(self, number: int) -> tuple[list[FrozenTrial], set[int]]:
        """The open trials of the same named network: those before this one, and the numbers of those after it.

        Drivers that start together may put a named network into the queue twice. The first of the two is trained: the
        second one sees it, even if its network is not written yet, so the first one need not look for the second.
        """
        point = self.study.optuna_trial(number).user_attrs.get("point")
        if point is None:
            return [], set()
        opened = self.study.optuna_trials((TrialState.RUNNING, TrialState.WAITING))
        same = [trial for trial in opened if trial.user_attrs.get("point") == point]
        return [one for one in same if one.number < number], {one.number for one in same if one.number > number}


def is_tried(study: Study, architecture: Architecture) -> bool:
    """Whether a study trains or trained a network, or has taken it over."""
    return any(_is_taken(trial.user_attrs) for trial in study.trials_of(study.identify(study.deployed(architecture))))


def _is_taken(known: Mapping[str, Any]) -> bool:
    """Whether a trial with these attributes is or was trained, here or in another study."""
    return bool(known.get("trained") or "imported_from" in known)


def tried_names(study: Study) -> set[str]:
    """Names of named networks that a study trains or has tried; not of those that it lost or found beyond a limit."""
    tried = (trial for trial in study.optuna_trials() if trial.state not in (TrialState.FAIL, TrialState.WAITING))
    found = (trial.user_attrs for trial in tried)
    return {known["point"] for known in found if "point" in known and known.get("status") != "limit"}


def waiting_names(study: Study) -> list[str]:
    """Names of the named networks that wait in the queue of a study, in this order."""
    found = (trial.user_attrs for trial in study.optuna_trials() if trial.state == TrialState.WAITING)
    return [known["point"] for known in found if "point" in known]


def check_conditions(other: Study, manifest: Mapping[str, Any]) -> None:
    """Refuse to take over networks that were trained under other conditions.

    Args:
        other: The study that has the networks.
        manifest: The manifest of the study that takes them over. What is not measured yet is not compared.
    """
    mine, theirs = (
        {key: value for key, value in each.items() if key not in (*FREE, "space", "reference")}
        for each in (json.loads(json.dumps(manifest)), other.manifest)
    )
    found = [each for each in find_differences(theirs, mine) if each[0] != "latency.factor" or each[2] is not None]
    if found:
        told = tell_differences(found)
        raise StudyError(f"{other.name} was trained under other conditions: {told}; start without it")


@checked
def distributions_of(space: SearchSpace) -> dict[str, BaseDistribution]:
    """The parameters of a space as Optuna's distributions, by name, for `study.ask`.

    Args:
        space: A search space, from `load_space`.

    Returns:
        A float distribution with a step for values in even steps, a categorical one for all others.
    """
    found: dict[str, BaseDistribution] = {}
    for parameter in space.parameters:
        values = parameter.values
        if parameter.ordered and len(values) > 1:
            low, high = float(values[0]), float(values[-1])
            step = (high - low) / (len(values) - 1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna warns if steps do not add up to the range, see below
                steps = FloatDistribution(low, high, step=step)
            places = [(float(value) - low) / step for value in values]
            # Optuna lowers the end of a range that steps do not reach exactly, for example steps of 1/3
            if steps.high == high and all(abs(place - round(place)) < 1e-8 for place in places):
                found[parameter.name] = steps
                continue
        found[parameter.name] = CategoricalDistribution(values)
    return found


def kind_of(name: str) -> str:
    """The kind of a parameter: shape (which filters), the axis itself for other axes of layers, or other."""
    axis = last_part(name)
    if axis in ("square", "vertical", "form"):
        return "shape"
    return axis if axis in ("present", "depth", "kernel", "width", "join") else "other"
