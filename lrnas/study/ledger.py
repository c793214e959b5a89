"""What drivers write in a record: which of them has which trial, and what became of it.

Several may work on one record at a time, and any of them may be gone at any time: what is not in the storage did not
happen, and what a driver leaves behind is given to whoever asks next.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import optuna
from optuna.trial import TrialState

from lrnas.arch.architecture import Architecture
from lrnas.study.fast_storage import BulkStorage
from lrnas.study.objectives import Costs
from lrnas.study.record import Record

MOST_LOSSES = 3
"""Of one trial, before it counts as lost."""
GONE_AFTER = 90.0
"""Seconds without a sign of life that make a driver gone."""
DRIVER = "lrnas:driver:"
_signed: set[str] = set()
"""Drivers of this process: another one with its number is of a process that was there before."""
_signed_off: set[str] = set()
"""Those of them that are done, also where the storage could not be told."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A network to be trained now."""

    number: int
    architecture: Architecture
    point: str | None
    """The name of the paper's network or seed it is."""
    costs: Costs
    seed: int | None = None
    """Of its training; None for the study's own."""

    @property
    def macs(self) -> int:
        return int(self.costs["macs"])


@dataclass
class Ledger(Record, ABC):
    """A record that a driver works on. See the module; whoever inherits says what is trained next."""

    driver: str = field(
        default_factory=lambda: f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}", kw_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last_sign = float("-inf")
        self.interrupted = False
        """Whether somebody stopped this driver before it was done."""

    @abstractmethod
    def ask(self, budget: int | None = None) -> Proposal | None:
        """The next network to train; none where that would be one more than the budget, or there is none."""

    def parts(self) -> str:
        """What the trials in all are made up of, in words; nothing where that is not known beforehand."""
        return ""

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
        """A trial was trained in full. The accuracy is that of the objectives, which say on which images."""
        if not self._is_mine(number):
            return
        known = self._frozen(number).user_attrs
        values = [accuracy if item.maximise else float(known[item.name]) for item in self.objectives]
        facts = {item.name: accuracy for item in self.objectives if item.maximise}
        self._end(number, TrialState.COMPLETE, "completed", "", values, **facts)

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

    def losses(self) -> int:
        """How often trials were lost, all of them together."""
        return sum(trial.user_attrs.get("losses", 0) for trial in self._trials())

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
        _signed.add(self.driver)
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
        return living_drivers(self.study) - {self.driver}


def living_drivers(study: optuna.Study) -> set[str]:
    """Those that work on a study, as far as their signs tell."""
    living: set[str] = set()
    for key, seen in study.user_attrs.items():
        if key.startswith(DRIVER) and time.time() - seen < GONE_AFTER:
            driver = key.removeprefix(DRIVER)
            host, process, _ = driver.rsplit(":", 2)
            if host != socket.gethostname() or _is_alive(driver, int(process)):
                living.add(driver)
    return living - _signed_off


def _is_alive(driver: str, process: int) -> bool:
    """Whether a driver of this host may live: after a start of the machine its number may be another process's."""
    if process == os.getpid():
        return driver in _signed
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
