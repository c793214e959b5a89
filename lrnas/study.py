"""The record of a search: one Optuna study, which is the only truth about it.

A `Study` proposes points of a space, takes in what training them came to, and knows the front. It survives anything:
what is not in its storage did not happen. Trials carry their architecture and all that was measured as user attributes,
objectives have their names, so that Optuna's own tools (optuna-dashboard, optuna.visualization) read it as it is.

How trials end. COMPLETE: trained in full, or the same network as one that was. PRUNED, with the reason: stopped early,
diverged, faulty or beyond a limit; tpe and nsga2 learn from these, gp does not see them. FAIL: lost for reasons that
are not the network's. WAITING: to be trained, or trained in part by a driver that is gone; the next driver goes on from
the checkpoint.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

from lrnas.arch import Architecture
from lrnas.bulk import BulkStorage
from lrnas.errors import LrnasError, OutsideSpace
from lrnas.manifest import StudyError, differences, list_differences
from lrnas.objectives import Costs, Limits
from lrnas.plan import canonical_id
from lrnas.record import Record
from lrnas.space import SearchSpace
from lrnas.steps import step_away

__all__ = ["Proposal", "Study", "distributions_of"]

MOST_REJECTIONS = 300
"""In a row, after which a space counts as exhausted."""
MOST_LOSSES = 3
"""Of one trial, before it counts as lost."""
GONE_AFTER = 90.0
"""Seconds without a sign of life that make a driver gone."""
DRIVER = "lrnas:driver:"
_signed_off: set[str] = set()
"""Drivers of this process that are done, also where the storage could not be told."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A network to be trained now."""

    number: int
    architecture: Architecture
    point: str | None
    """The name of the paper's network or seed it is."""
    costs: Costs

    @property
    def macs(self) -> int:
        return int(self.costs["macs"])


@dataclass
class Study(Record):
    """A study that a driver works on. See the module."""

    space: SearchSpace
    cost_of: Callable[[Architecture], Costs]
    """What an architecture costs, as it is trained."""
    limits: Limits = field(default_factory=Limits)
    guess_of: Callable[[Architecture], Costs] | None = None
    """The same in no time, for who looks at hundreds; None where `cost_of` takes none either."""
    driver: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.distributions = distributions_of(self.space)
        self.varied = [parameter for parameter in self.space.parameters if len(parameter.values) > 1]
        self._random = np.random.default_rng()
        self._last_sign = float("-inf")

    # --- asking

    def enqueue(self, named: Mapping[str, Architecture]) -> None:
        """Have named networks trained first; those the study has already are left alone."""
        rows = [trial for trial in self._trials() if trial.state != TrialState.FAIL and "point" in trial.user_attrs]
        beyond = {trial.user_attrs["point"] for trial in rows if trial.user_attrs.get("status") == "limit"}
        known = {trial.user_attrs["point"] for trial in rows if trial.user_attrs.get("status") != "limit"}
        for name, architecture in named.items():
            still_beyond = name in beyond and self.limits.excess(self.cost_of(architecture))  # limits may change
            if name not in known and not still_beyond:
                self.study.enqueue_trial(self.space.params_of(architecture), user_attrs={"point": name})

    def import_from(self, other: Record) -> int:
        """Take over what another study trained in full under the same conditions, as far as it lies in this space.

        It costs no budget. How many networks are new here is returned.
        """
        mine, theirs = (
            {key: value for key, value in study.manifest.items() if key not in ("source", "space", "reference")}
            for study in (self, other)
        )
        if found := list(differences(theirs, mine)):
            raise StudyError(
                f"{other.name} was trained under other conditions: {list_differences(found)}; start without it"
            )
        known = {trial.user_attrs.get("id") for trial in self._trials() if trial.values is not None}
        names = {canonical_id(network): name for name, network in self.space.points.items()}
        number = 0
        for trial in other._trials((TrialState.COMPLETE,)):
            architecture = Architecture.from_json(trial.user_attrs["architecture"])
            if trial.user_attrs["status"] != "completed" or trial.user_attrs["id"] in known:
                continue
            try:
                params = self.space.params_of(architecture)
            except OutsideSpace:
                continue
            facts = {key: value for key, value in trial.user_attrs.items() if key not in ("trained", "point", "owner")}
            if name := names.get(trial.user_attrs["id"]):
                facts["point"] = name
            attributes = {**facts, "imported_from": f"{other.name}:{trial.number}"}
            self.study.add_trial(
                optuna.trial.create_trial(
                    params=params, distributions=self.distributions, values=trial.values, user_attrs=attributes
                )
            )
            number += 1
        return number

    def ask(self, budget: int | None = None) -> Proposal | None:
        """The next network to train; none where that would be one more than the budget.

        Points that need no training are told at once and cost nothing. Other drivers may ask at the same time: a
        network is claimed before it is looked for among theirs, so that at least one of two sees the other.
        """
        self.sign()
        for _ in range(MOST_REJECTIONS):
            with self._together():  # the row is there at once, what belongs to it a moment later
                trial = self.study.ask(self.distributions)
                trial.set_user_attr("owner", self.driver)  # at once: others may think it was left behind
                facts: dict[str, Any] = {}
                fault, excess = "", {}
                try:
                    architecture = self.space.architecture(trial.params)
                    identity = canonical_id(architecture)
                    costs = self.cost_of(architecture)
                except LrnasError as error:  # a corner of the space that makes no network, at this input size, say
                    fault = str(error)
                else:
                    excess = self.limits.excess(costs)
                    facts |= {"architecture": architecture.to_json(), "id": identity, **costs}
                    facts |= {} if excess else {"trained": True}
                    facts["params"] = facts.pop("params")  # last: what has parameters has everything
                self._set(trial.number, facts)
            if fault:
                self._end(trial.number, TrialState.PRUNED, "faulty", fault)
                continue
            if excess:
                for name, value in excess.items():
                    trial.set_constraint(name, value)
                self._end(trial.number, TrialState.PRUNED, "limit", f"beyond {', '.join(sorted(excess))}")
                continue
            if self._is_known(trial.number, identity):
                if "point" not in trial.user_attrs:  # a sampler that is sure of itself: look next to its point
                    self.study.enqueue_trial(step_away(self.varied, [trial.params], self._random))
                continue
            if budget is not None and self.spent() > budget:
                self._put_back(trial.number)  # for a larger budget; what waits costs none
                return None
            return Proposal(trial.number, architecture, trial.user_attrs.get("point"), costs)
        raise StudyError(
            f"the last {MOST_REJECTIONS} points that {self.name} proposed were known or beyond a limit; the space "
            "has no more to offer; end the search, or widen the space or the limits"
        )

    def _is_known(self, number: int, identity: str) -> bool:
        """Whether this network was trained, or is being trained, as another trial; this one is then told."""
        for other in self._trials():
            known = other.user_attrs
            if other.number == number or known.get("id") != identity:
                continue
            if not (known.get("trained") or "imported_from" in known):
                continue
            if other.state == TrialState.FAIL:
                continue  # it was lost: another try
            state = other.state if other.state.is_finished() else TrialState.FAIL
            values = other.values if state == TrialState.COMPLETE else None
            self._end(number, state, "duplicate", f"the same network as trial {other.number}", values, trained=False)
            return True
        return False

    # --- telling

    def record(self, number: int, accuracies: Sequence[float], seconds: float, **facts: Any) -> None:
        """What is known of a trial that is being trained."""
        values = {"curve": list(accuracies), "epochs": len(accuracies), "seconds": round(seconds, 3), **facts}
        if self._is_mine(number):
            self._set(number, values)
        self.sign()

    def note(self, number: int, **facts: Any) -> None:
        """How a trial is trained, and where."""
        if self._is_mine(number):
            self._set(number, facts)

    def complete(self, number: int, accuracy: float) -> None:
        """A trial was trained in full."""
        if not self._is_mine(number):
            return
        known = self._frozen(number).user_attrs
        values = [accuracy if item.name == "accuracy" else float(known[item.name]) for item in self.objectives]
        self._end(number, TrialState.COMPLETE, "completed", "", values, accuracy=accuracy)

    def prune(self, number: int, status: str, reason: str) -> None:
        """A trial ended that says something about its network: stopped, diverged or faulty."""
        if self._is_mine(number):
            self._end(number, TrialState.PRUNED, status, reason)

    def lose(self, number: int, reason: str) -> None:
        """A trial ended for reasons that are not its network's: it is tried again, but not for ever."""
        if not self._is_mine(number):
            return
        losses = self._frozen(number).user_attrs.get("losses", 0) + 1
        self._set(number, {"losses": losses})
        if losses < MOST_LOSSES:
            self.release(number)
        else:
            self._end(number, TrialState.FAIL, "lost", f"{reason}, {losses} times")

    def release(self, number: int) -> None:
        """A trial will not be finished by this driver: whoever asks next goes on with it."""
        if self._is_mine(number):
            self._put_back(number)

    def release_orphans(self) -> int:
        """Give back the trials of drivers that are gone, and how many these are.

        Those of this driver are among them: it must be training none.
        """
        running = self._trials((TrialState.RUNNING,))  # first: whoever has one has left a sign before
        living = self._living_drivers()
        # where others live, one of them may just be asking for a row that does not have its name yet
        before = datetime.now() - timedelta(seconds=GONE_AFTER if living else 0)
        orphans = [
            trial
            for trial in running
            if trial.user_attrs.get("owner") not in living and (trial.datetime_start or before) <= before
        ]
        for trial in orphans:
            self._put_back(trial.number)
        return len(orphans)

    def _put_back(self, number: int) -> None:
        self.study._storage.set_trial_state_values(self._frozen(number)._trial_id, TrialState.WAITING)

    def _is_mine(self, number: int) -> bool:
        """Whether a trial is still this driver's; one that was thought gone may find that it is not."""
        trial = self._frozen(number)
        return trial.state == TrialState.RUNNING and trial.user_attrs.get("owner") == self.driver

    def _end(
        self,
        number: int,
        state: TrialState,
        status: str,
        reason: str,
        values: Sequence[float] | None = None,
        **facts: Any,
    ) -> None:
        facts["status"] = status
        if reason:
            facts["reason"] = reason
        self._set(number, facts)
        self.study.tell(number, values, state=state, skip_if_finished=True)

    def _set(self, number: int, attributes: Mapping[str, Any]) -> None:
        storage = self.study._storage
        trial_id = storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number)
        if (database := self._database()) is not None:
            database.set_trial_user_attrs(trial_id, attributes)
            return
        for key, value in attributes.items():
            storage.set_trial_user_attr(trial_id, key, value)

    def _together(self) -> AbstractContextManager[None]:
        """What is set for a new trial is written in one transaction, where the storage is a database."""
        database = self._database()
        return nullcontext() if database is None else database.together()

    def _database(self) -> BulkStorage | None:
        database = getattr(self.study._storage, "_backend", None)  # behind Optuna's cache, which holds finished trials
        return database if isinstance(database, BulkStorage) else None

    # --- drivers

    def sign(self) -> None:
        """Leave a sign of life, every few seconds at most."""
        now = time.time()
        if now - self._last_sign > GONE_AFTER / 6:
            self._last_sign = now
            self.study.set_user_attr(DRIVER + self.driver, now)

    def sign_off(self) -> None:
        """This driver is done."""
        _signed_off.add(self.driver)
        self.study.set_user_attr(DRIVER + self.driver, 0.0)

    def _living_drivers(self) -> set[str]:
        """The others."""
        living: set[str] = set()
        for key, seen in self.study.user_attrs.items():
            if key.startswith(DRIVER):
                host, process, _ = key.removeprefix(DRIVER).rsplit(":", 2)
                here = host == socket.gethostname()
                if seen and (_is_alive(int(process)) if here else time.time() - seen < GONE_AFTER):
                    living.add(key.removeprefix(DRIVER))
        return living - _signed_off - {self.driver}


def distributions_of(space: SearchSpace) -> dict[str, BaseDistribution]:
    """A space in Optuna's words."""
    found: dict[str, BaseDistribution] = {}
    for parameter in space.parameters:
        values = parameter.values
        if parameter.ordered and len(values) > 1:
            low, high = float(values[0]), float(values[-1])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of steps that do not add up to the range, as below
                steps = FloatDistribution(low, high, step=(high - low) / (len(values) - 1))
            if all(steps._contains(float(value)) for value in values):  # thirds, say, are not
                found[parameter.name] = steps
                continue
        found[parameter.name] = CategoricalDistribution(values)
    return found


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
