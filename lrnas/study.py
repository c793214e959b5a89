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

import dataclasses
import os
import random
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from lrnas.arch import Architecture
from lrnas.errors import LrnasError, OutsideSpace
from lrnas.manifest import StudyError, differences, list_differences
from lrnas.objectives import Limits, Objective
from lrnas.pareto import front_indices, hypervolume
from lrnas.plan import canonical_id
from lrnas.space import SearchSpace
from lrnas.trials import Trial, read_trial

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Proposal", "Study", "distributions_of"]

MOST_REJECTIONS = 300
"""In a row, after which a space counts as exhausted."""
PATIENCE = 4
"""Known networks in a row that a sampler may propose."""
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
    macs: int
    params: int


@dataclass
class Study:
    """See the module."""

    name: str
    study: optuna.Study
    objectives: tuple[Objective, ...]
    manifest: dict[str, Any]
    space: SearchSpace | None = None
    """Needed to propose points; not to look at them."""
    cost_of: Callable[[Architecture], tuple[int, int]] | None = None
    """Multiply-accumulates and parameters of an architecture, as it is trained."""
    limits: Limits = field(default_factory=Limits)
    driver: str = field(default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.distributions = {} if self.space is None else distributions_of(self.space)
        self._last_sign = float("-inf")

    # --- asking

    def enqueue(self, named: Mapping[str, Architecture]) -> None:
        """Have named networks trained first; those the study has already are left alone."""
        assert self.space is not None
        assert self.cost_of is not None
        rows = [trial for trial in self._trials() if trial.state != TrialState.FAIL and "point" in trial.user_attrs]
        beyond = {trial.user_attrs["point"] for trial in rows if trial.user_attrs.get("status") == "limit"}
        known = {trial.user_attrs["point"] for trial in rows if trial.user_attrs.get("status") != "limit"}
        for name, architecture in named.items():
            still_beyond = name in beyond and self.limits.excess(*self.cost_of(architecture))  # limits may change
            if name not in known and not still_beyond:
                self.study.enqueue_trial(self.space.params_of(architecture), user_attrs={"point": name})

    def import_from(self, other: Study) -> int:
        """Take over what another study trained in full under the same conditions, as far as it lies in this space.

        It costs no budget. How many networks are new here is returned.
        """
        assert self.space is not None
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

    def ask(self) -> Proposal:
        """The next network to train. Points that need no training are told at once and cost nothing."""
        assert self.space is not None and self.cost_of is not None
        self.sign()
        for rejected in range(MOST_REJECTIONS):
            trial = self.study.ask(self.distributions)
            trial.set_user_attr("owner", self.driver)
            try:
                architecture = self.space.architecture(trial.params)
                identity = canonical_id(architecture)
                macs, params = self.cost_of(architecture)
            except LrnasError as error:  # a corner of the space that makes no network, at this input size, say
                self._end(trial.number, TrialState.PRUNED, "faulty", str(error))
                continue
            self._set(
                trial.number,
                {"architecture": architecture.to_json(), "id": identity, "macs": macs, "params": params},
            )
            if excess := self.limits.excess(macs, params):
                for name, value in excess.items():
                    trial.set_constraint(name, value)
                self._end(trial.number, TrialState.PRUNED, "limit", f"beyond {', '.join(sorted(excess))}")
                continue
            if self._is_known(trial.number, identity):
                if rejected % PATIENCE == PATIENCE - 1:  # a sampler that is sure of itself: look next to its point
                    self.study.enqueue_trial(self._neighbour(trial.params))
                continue
            trial.set_user_attr("trained", True)
            return Proposal(trial.number, architecture, trial.user_attrs.get("point"), macs, params)
        raise StudyError(
            f"the last {MOST_REJECTIONS} points that {self.name} proposed were known or beyond a limit; the space "
            "has no more to offer; end the search, or widen the space or the limits"
        )

    def _neighbour(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A point that differs in two parameters."""
        assert self.space is not None
        varied = [parameter for parameter in self.space.parameters if len(parameter.values) > 1]
        changed = random.sample(varied, min(2, len(varied)))
        return {**params, **{parameter.name: random.choice(parameter.values) for parameter in changed}}

    def _is_known(self, number: int, identity: str) -> bool:
        """Whether this network was trained, or is being trained, as another trial; this one is then told."""
        for other in self._trials():
            known = other.user_attrs
            if other.number == number or known.get("id") != identity:
                continue
            if not (known.get("trained") or "imported_from" in known):
                continue
            reason = f"the same network as trial {other.number}"
            if other.state == TrialState.COMPLETE:
                self._end(number, TrialState.COMPLETE, "duplicate", reason, other.values)
            elif other.state == TrialState.PRUNED:
                self._end(number, TrialState.PRUNED, "duplicate", reason)
            elif other.state in (TrialState.RUNNING, TrialState.WAITING):
                self._end(number, TrialState.FAIL, "duplicate", reason)
            else:
                continue  # it was lost: another try
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
        self._set(number, {"accuracy": accuracy})
        self._end(number, TrialState.COMPLETE, "completed", "", values)

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
        self, number: int, state: TrialState, status: str, reason: str, values: Sequence[float] | None = None
    ) -> None:
        self._set(number, {"status": status, "reason": reason} if reason else {"status": status})
        self.study.tell(number, values, state=state, skip_if_finished=True)

    def _set(self, number: int, attributes: Mapping[str, Any]) -> None:
        trial_id = self._frozen(number)._trial_id
        for key, value in attributes.items():
            self.study._storage.set_trial_user_attr(trial_id, key, value)

    def _frozen(self, number: int) -> FrozenTrial:
        storage = self.study._storage
        return storage.get_trial(storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number))

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

    # --- what there is

    def spent(self) -> int:
        """Trials that cost budget: those whose training began, but for lost ones."""
        return sum(
            1
            for trial in self._trials()
            if trial.user_attrs.get("trained")
            and trial.state != TrialState.FAIL
            and trial.state != TrialState.WAITING  # it will be asked for, and counted, again
        )

    def waiting(self) -> int:
        """Trials whose training began and that nobody trains now."""
        return sum(bool(trial.user_attrs.get("trained")) for trial in self._trials((TrialState.WAITING,)))

    def trials(self) -> list[Trial]:
        """Every trial that has a network, in order; those on the front say so."""
        # "params" comes last: another driver may just be writing a row
        trials = [read_trial(trial) for trial in self._trials() if "params" in trial.user_attrs]
        full = [trial for trial in trials if trial.status == "completed" and trial.values is not None]
        best = {full[i].number for i in front_indices([self._small(trial.values or ()) for trial in full])}
        return [dataclasses.replace(trial, on_front=True) if trial.number in best else trial for trial in trials]

    def front(self) -> list[Trial]:
        """Trials of full fidelity that no other one dominates, cheapest first."""
        return sorted(
            (trial for trial in self.trials() if trial.on_front), key=lambda trial: (trial.macs, trial.number)
        )

    def best(self, *, max_macs: int | None = None, max_params: int | None = None) -> Trial:
        """The most accurate network trained in full within limits."""
        limits = Limits(max_macs=max_macs, max_params=max_params)
        fits = [
            trial
            for trial in self.trials()
            if trial.status == "completed" and not limits.excess(trial.macs, trial.params)
        ]
        if not fits:
            raise StudyError(f"no network of {self.name} that is trained in full is within these limits; raise them")
        return max(fits, key=lambda trial: (trial.accuracy or 0.0, -trial.macs))

    def at_epoch(self, number: int, epoch: int) -> tuple[int, list[tuple[float, int]]]:
        """A trial's cost, and the accuracy and cost of all others after so many epochs."""
        macs, others = 0, []
        for trial in self._trials():
            known = trial.user_attrs
            if trial.number == number:
                macs = known["macs"]
            elif len(known.get("curve", ())) >= epoch:
                others.append((known["curve"][epoch - 1], known["macs"]))
        return macs, others

    def is_protected(self, number: int) -> bool:
        """Whether a trial is one of the paper's networks, which are always trained in full."""
        return self._frozen(number).user_attrs.get("point") in self.manifest["space"]["points"]

    def hypervolume(self) -> float:
        """Of the front, as a share of what lies above accuracy 0 and below the costs of the dearest named network."""
        reference = self.manifest["reference"]
        scaled = [
            [
                1 - value if objective.maximise else value / reference[objective.name]
                for value, objective in zip(trial.values, self.objectives, strict=True)
            ]
            for trial in self.trials()
            if trial.status == "completed" and trial.values is not None
        ]
        return hypervolume(scaled, [1.0] * len(self.objectives))

    def counts(self) -> dict[str, int]:
        """Number of trials by status."""
        counts: dict[str, int] = {}
        for trial in self.trials():
            counts[trial.status] = counts.get(trial.status, 0) + 1
        return counts

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial: what the network is and what it came to."""
        import pandas as pd

        columns = (
            "number",
            "status",
            "point",
            "identity",
            "accuracy",
            "macs",
            "params",
            "epochs",
            "seconds",
            "on_front",
        )
        rows = [
            {**{name: getattr(trial, name) for name in columns}, "architecture": trial.architecture.to_json()}
            for trial in self.trials()
        ]
        return pd.DataFrame(rows, columns=[*columns, "architecture"])

    def _small(self, values: Sequence[float]) -> list[float]:
        return [-v if o.maximise else v for v, o in zip(values, self.objectives, strict=True)]

    def _trials(self, states: tuple[TrialState, ...] | None = None) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)


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
