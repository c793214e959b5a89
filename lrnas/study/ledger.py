"""`Ledger`: records in a study which trials a driver trains, and how they end.

A driver is a process that trains trials of a study. Several drivers may work on one study at a time, and any of them
may vanish at any time. Only what is in the storage counts. The next driver that asks for a trial gets one that a
vanished driver left.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from lrnas._messages import logger
from lrnas.errors import LrnasError
from lrnas.study.optuna_internals import database_of, set_trial_attributes, set_trial_state
from lrnas.study.study import Study

MOST_LOSSES = 3
"""Number of times a trial may be lost before it is given up."""
GONE_AFTER = 90.0
"""Seconds without a sign of life after which a driver counts as gone."""
EVERY = 5.0
"""Seconds between checks whether the next sign of life is due."""
WATCH = 40.0
"""Seconds for which a driver is watched before its trials are put back, if its last sign of life seems old: it may be
alive, and its clock wrong. A living driver writes two signs in this time."""
DRIVER = "lrnas:driver:"
"""Prefix of the study attributes that hold the drivers' last signs of life."""
_signs: dict[str, _Sign] = {}
"""What this process has seen of other drivers."""
_signed: set[str] = set()
"""Drivers of this process; a driver with the same process number that is not here belonged to an earlier process."""
_signed_off: set[str] = set()
"""Drivers of this process that are done, even if the storage could not be told."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """The last sign of life of a driver, as another process sees it."""

    written: float
    """When it was written, by the driver's clock."""
    seen: float
    """When it was first seen, by this process's monotonic clock."""
    is_new: bool
    """Whether an earlier one was seen before, so that the driver was alive when this one was written."""


@cache
def _numbering() -> str:
    """Text that is the same where process numbers mean the same: in one container, or on one machine since it started.

    Several containers, or machines, may have the same host name.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        return hashlib.sha256(f"{boot}{Path('/proc/self/ns/pid').stat().st_ino}".encode()).hexdigest()[:8]
    except OSError:  # not Linux, which has no such containers
        return "0" * 8


def _new_driver() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{_numbering()}{uuid.uuid4().hex[:8]}"


@dataclass
class Ledger:
    """Writes what one driver does into a study.

    Methods that change a trial do nothing if the trial no longer belongs to this driver: another driver may have
    taken it because this driver seemed to be gone.

    Args:
        study: The study to write to.
        driver: The driver's name, HOST:PROCESS:ID; by default a new one for this process.
    """

    study: Study
    driver: str = field(default_factory=_new_driver)
    _last_sign: float = field(default=float("-inf"), init=False, repr=False)

    # --- progress and end of a trial

    def report_epoch(self, number: int, accuracies: Sequence[float], seconds: float, **facts: Any) -> None:
        """Write the progress of a trial that is being trained.

        Args:
            number: The trial.
            accuracies: Validation accuracy after each epoch so far.
            seconds: Training time so far.
            **facts: Further attributes of the trial.
        """
        self.note(number, **training_facts(accuracies, seconds), **facts)
        self.sign()

    def note(self, number: int, **facts: Any) -> None:
        """Write attributes of a trial."""
        if facts and self._is_mine(number):
            self.write(number, facts)

    def complete(self, number: int, accuracy: float, **facts: Any) -> None:
        """End a trial whose training was completed.

        Args:
            number: The trial.
            accuracy: Its validation accuracy in a search, its test accuracy in a retraining.
            **facts: Further attributes of the trial.
        """
        if not self._is_mine(number):
            return
        known = self.study.optuna_trial(number).user_attrs
        values = [accuracy if item.maximise else float(known[item.name]) for item in self.study.objectives]
        facts |= {item.name: accuracy for item in self.study.objectives if item.maximise}
        self.end(number, TrialState.COMPLETE, "completed", "", values, **facts)

    def prune(self, number: int, status: str, reason: str, **facts: Any) -> None:
        """End a trial because of its network.

        Args:
            number: The trial.
            status: One of stopped, diverged and faulty.
            reason: Why, in words.
            **facts: Further attributes of the trial.
        """
        if self._is_mine(number):
            self.end(number, TrialState.PRUNED, status, reason, **facts)

    def lose(self, number: int, reason: str) -> None:
        """Put back a trial that failed through no fault of its network; end it if that happened `MOST_LOSSES` times."""
        if not self._is_mine(number):
            return
        losses = self.study.optuna_trial(number).user_attrs.get("losses", 0) + 1
        self.write(number, {"losses": losses})
        if losses < MOST_LOSSES:
            self.release(number)
        else:
            self.end(number, TrialState.FAIL, "lost", f"{reason}, {losses} times")

    def release(self, number: int) -> None:
        """Put back a trial that this driver will not finish: the next driver that asks continues it."""
        if self._is_mine(number):
            self.put_back(number)

    def release_orphans(self) -> int:
        """Put back the trials of drivers that are gone, and of this driver, which must not be training any.

        Returns:
            The number of trials put back.
        """
        running = self.study.optuna_trials((TrialState.RUNNING,))  # first: a driver signs before it takes a trial
        living = living_drivers(self.study.optuna_study, watch=True) - {self.driver}
        orphans = [trial for trial in running if trial.user_attrs.get("owner") not in living]
        if living:  # one of these drivers may have just taken a trial without having written its name yet
            orphans = [
                trial
                for trial in orphans
                if not (trial.datetime_start and _is_recent(trial.datetime_start.timestamp()))
            ]
        for trial in orphans:
            self.put_back(trial.number)
        return len(orphans)

    def wait_for_others(self) -> bool:
        """Wait for the trials that other drivers are training now. This driver must not be training any.

        Returns:
            Whether another driver stopped or vanished, and left a trial that can be continued.
        """
        before, told = self.study.waiting(), False
        begun = {trial.number for trial in self.study.optuna_trials((TrialState.RUNNING,))}
        while running := [t for t in self.study.optuna_trials((TrialState.RUNNING,)) if t.number in begun]:
            if self.release_orphans() >= len(running) or self.study.waiting() > before:
                break
            if not told:
                told = True
                logger.info(f"{self.study.name}: waiting for {len(running)} trials that other drivers train")
            time.sleep(EVERY)
        return self.study.waiting() > before

    def _is_mine(self, number: int) -> bool:
        trial = self.study.optuna_trial(number)
        return trial.state == TrialState.RUNNING and trial.user_attrs.get("owner") == self.driver

    # --- writing, without checking that the trial belongs to this driver

    def claim(self, trial: FrozenTrial) -> bool:
        """Take a waiting trial; False if another driver took it first."""
        try:
            return set_trial_state(self.study.optuna_study, trial.number, TrialState.RUNNING)
        except UpdateFinishedTrialError:
            return False

    def put_back(self, number: int) -> None:
        """Let a trial wait for the next driver that asks."""
        set_trial_state(self.study.optuna_study, number, TrialState.WAITING)

    def end(
        self,
        number: int,
        state: TrialState,
        status: str,
        reason: str,
        values: Sequence[float] | None = None,
        **facts: Any,
    ) -> None:
        """Write how a trial ended.

        Args:
            number: The trial.
            state: Its state for Optuna.
            status: Its state for lrnas, see `Trial.status`.
            reason: Why it ended in this way; empty if there is nothing to say.
            values: Values of the objectives, if it is complete.
            **facts: Further attributes.
        """
        self.write(number, facts | {"status": status} | ({"reason": reason} if reason else {}))
        try:
            self.study.optuna_study.tell(number, values, state=state, skip_if_finished=True)
        except ValueError:
            if self.study.optuna_trial(number).state != TrialState.WAITING:  # another driver has put it back
                raise

    def write(self, number: int, attributes: Mapping[str, Any]) -> None:
        """Set attributes of a trial; in a database in one transaction."""
        set_trial_attributes(self.study.optuna_study, number, attributes)

    def together(self) -> AbstractContextManager[None]:
        """Context that writes all parameters and attributes of a new trial in one transaction, in a database."""
        database = database_of(self.study.optuna_study)
        return nullcontext() if database is None else database.together()

    # --- signs of life

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Context in which a thread writes signs of life; at its end the driver signs off."""
        self.sign()
        over = threading.Event()

        def beat() -> None:
            while not over.wait(EVERY):
                with suppress(LrnasError):  # a storage that is gone ends the search where results are written
                    self.sign()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            with suppress(LrnasError):
                self.sign_off()

    def sign(self) -> None:
        """Write a sign of life, unless the last one is only seconds old."""
        _signed.add(self.driver)
        _signed_off.discard(self.driver)
        now = time.monotonic()  # the clock may be set back
        if now - self._last_sign > GONE_AFTER / 6:
            self._last_sign = now
            self.study.optuna_study.set_user_attr(DRIVER + self.driver, time.time())

    def sign_off(self) -> None:
        """Write that this driver is done."""
        _signed_off.add(self.driver)
        self._last_sign = float("-inf")
        self.study.optuna_study.set_user_attr(DRIVER + self.driver, 0.0)


def starting_facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a trial that a worker is about to train or to continue: the images of earlier workers do not count.

    Args:
        known: The attributes that the trial has.
    """
    return {"trained": True} | ({"images": 0, "seconds_before": known["seconds"]} if "seconds" in known else {})


def training_facts(accuracies: Sequence[float], seconds: float) -> dict[str, Any]:
    """Attributes of a trial for the epochs that it was trained.

    Args:
        accuracies: Validation accuracy after each epoch so far.
        seconds: Training time so far.
    """
    return {"curve": list(accuracies), "epochs": len(accuracies), "seconds": round(seconds, 3)}


def living_drivers(optuna_study: optuna.Study, watch: bool = False) -> set[str]:
    """Names of the drivers that work on a study, judging by their signs of life.

    Args:
        optuna_study: The study.
        watch: Whether to count drivers with an old sign of life, too, until they have been watched for a while.
    """
    signs = {key.removeprefix(DRIVER): time for key, time in optuna_study.user_attrs.items() if key.startswith(DRIVER)}
    return {driver for driver, written in signs.items() if written and _may_live(driver, written, watch)} - _signed_off


def _may_live(driver: str, written: float, watch: bool) -> bool:
    """Whether a driver with this last sign of life may be alive."""
    host, process, own = driver.rsplit(":", 2)
    is_here = host == socket.gethostname() and own.startswith(_numbering())
    if is_here and not _is_alive(driver, int(process)):
        return False
    sign, now = _signs.get(driver), time.monotonic()
    if sign is None or sign.written != written:
        sign = _signs[driver] = _Sign(written, now, is_new=sign is not None)
    age = now - sign.seen
    return _is_recent(written) or (sign.is_new and age < GONE_AFTER) or (watch and age < WATCH)


def _is_recent(seen: float) -> bool:
    """Whether a time is close to now. One that is far ahead is not: the clock was wrong when it was written."""
    return abs(time.time() - seen) < GONE_AFTER


def _is_alive(driver: str, process: int) -> bool:
    """Whether a driver whose process number means something here may be alive; another process may have it now."""
    if process == os.getpid():
        return driver in _signed
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
