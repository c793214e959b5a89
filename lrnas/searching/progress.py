"""What people see while a search runs: one live line in a terminal, plain lines elsewhere. Both on stderr."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from lrnas.searching.events import SearchEvents
from lrnas.searching.time_left import Work, seconds_left
from lrnas.study.manifest import RETRAINS, data_name

if TYPE_CHECKING:
    from rich.status import Status

    from lrnas.study.ledger import Ledger
    from lrnas.study.record import Summary
    from lrnas.study.trials import Trial

Options = ParamSpec("Options")
Result = TypeVar("Result")

EVERY = 5.0
"""Seconds between lines, at least."""
QUIET = 20.0
"""Seconds between lines that say no more than what is being trained."""
SHOWN = 3
"""Trials that are named in such a line."""


class _Trained(NamedTuple):
    epochs: int
    seconds: float


@contextmanager
def search_view() -> Iterator[SearchEvents]:
    """Gives the events for `search`."""
    if not sys.stderr.isatty():
        yield _View(None)
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    with console.status("starting") as status:
        yield _View(status)


def watched(run: Callable[Options, Result]) -> Callable[Options, Result]:
    """Has what takes `events` tell them on stderr where it is given none, unless it is given `progress=False`."""

    @functools.wraps(run)
    def call(*args: Options.args, **kwargs: Options.kwargs) -> Result:
        if kwargs.get("events") is not None or not kwargs.get("progress", True):
            return run(*args, **kwargs)
        with search_view() as events:
            kwargs["events"] = events
            return run(*args, **kwargs)

    return call


class _View(SearchEvents):
    def __init__(self, status: Status | None) -> None:
        self.status = status
        self.study: Ledger | None = None
        self.budget = 0
        self.last = time.monotonic()
        self.begun = self.last
        self.before: dict[int, _Trained] = {}
        """The trials there were, by number, when this began."""

    def say(self, line: str) -> None:
        if self.status is not None:
            self.status.console.print(line, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def started(self, study: Ledger, budget: int, dense_macs: int | None = None) -> None:
        self.study, self.budget = study, budget
        self.begun = time.monotonic()
        self.last = float("-inf")  # who waits for the first trial is told that it has begun
        self.before = {trial.number: _Trained(trial.epochs, trial.seconds) for trial in study.trials()}
        what = "run" if RETRAINS in study.manifest else "trial"
        recipe = study.manifest["recipe"]
        rungs = study.manifest["rungs"]
        looks = f", looked at after {', '.join(map(str, rungs))}" if rungs else ""
        trainable = study.manifest.get("trainable") or ""
        how = f" with {trainable}" if trainable not in study.manifest["data"] else ""  # "" is in all
        done = study.spent() - study.running()
        size = recipe.get("crop") or study.manifest["image_size"]
        dense = "" if dense_macs is None else f" (the dense network: {dense_macs:,} MACs)"
        parts = study.parts()
        of = f" ({parts})" if parts else ""
        self.say(
            f"{study.name}: {budget} {what}{'s' * (budget != 1)} in all{of}, {done} done; training{how} on "
            f"{data_name(study.manifest)}, images of {size}×{size} pixels{dense}, epochs: {recipe['epochs']}{looks}"
        )

    def changed(self, what: str) -> None:
        if what not in ("started", "ended", "epoch"):
            self.say(what)
            return
        now = time.monotonic()
        wait = EVERY if self.status is not None else QUIET
        if self.study is None or (what != "ended" and now - self.last < wait):
            return
        self.last = now
        summary = self.study.summary()  # read once: a study may have thousands of trials
        text, training = self._standing_of(summary, now), self._training(summary.trials)
        if self.status is not None:
            self.status.update(f"{text}; {training}" if training else text)
        elif what == "ended":
            self.say(text)
        elif training:
            self.say(training)

    def _standing_of(self, summary: Summary, now: float) -> str:
        assert self.study is not None
        counts = summary.counts
        bad = "".join(f", {number} {status}" for status, number in self.study.faults(summary).items() if number)
        running = self.study.running()
        done = self.study.spent() - running
        left = self._left(summary.trials, now) if done < self.budget else None
        told = "" if left is None else f", about {_duration(left)} left"
        full, stopped = counts.get("completed", 0), counts.get("stopped", 0)
        if RETRAINS in self.study.manifest:  # how well they do is told when all are done
            return f"{done}/{self.budget} runs: {running} running{bad}{told}"
        return (
            f"{done}/{self.budget} trials: {full} in full, {stopped} stopped{bad}, {running} running; "
            f"{_standing(summary)}{told}"
        )

    def _training(self, trials: list[Trial]) -> str:
        """What is being trained, in words; of many, some."""
        assert self.study is not None
        epochs = self.study.manifest["recipe"]["epochs"]
        running = [trial for trial in trials if trial.status == "running"]
        named = [
            f"{trial.point or trial.identity}, epoch {min(trial.epochs + 1, epochs)} of {epochs}"
            for trial in running[:SHOWN]
        ]
        more = f"; and {len(running) - SHOWN} more" if len(running) > SHOWN else ""
        return f"training {'; '.join(named)}{more}" if named else ""

    def _left(self, trials: list[Trial], now: float) -> float | None:
        """Seconds until the budget is spent, as far as can be told."""
        assert self.study is not None
        done = {trial.number: self._since(trial) for trial in trials}
        begun = [trial for trial in trials if done[trial.number].epochs]
        ended = [trial for trial in begun if trial.state not in ("RUNNING", "WAITING")]
        full = self.study.manifest["recipe"]["epochs"]
        left = [Work(trial.macs, max(0, full - trial.epochs)) for trial in trials if trial.state == "RUNNING"]
        unbegun = max(0, self.budget - self.study.spent())
        waiting = self.study.waiting_macs()[:unbegun]
        left += [Work(macs, full) for macs in waiting]
        unknown = unbegun - len(waiting)
        if now <= self.begun or (unknown and not ended):
            return None
        if unknown:  # yet to be proposed: like those there are, and trained for as long as those that ended
            macs = [*(trial.macs for trial in ended), *waiting]
            left += [Work(round(sum(macs) / len(macs)), sum(trial.epochs for trial in ended) / len(ended))] * unknown
        works = [(Work(trial.macs, done[trial.number].epochs), done[trial.number].seconds) for trial in begun]
        return seconds_left(works, left, sum(each.seconds for each in done.values()) / (now - self.begun))

    def _since(self, trial: Trial) -> _Trained:
        """How much it was trained since this began."""
        before = self.before.get(trial.number, _Trained(0, 0.0))
        return _Trained(trial.epochs - before.epochs, trial.seconds - before.seconds)


def _standing(summary: Summary) -> str:
    return f"front {len(summary.front)}, {_best(summary.front)}, hypervolume {summary.hypervolume:.4f}"


def _best(front: list[Trial]) -> str:
    if not front:
        return "none in full yet"
    best = max(front, key=lambda trial: trial.accuracy or 0)
    times = [trial.latency for trial in front if trial.latency is not None]
    fast = f" in {best.latency:.2f} ms, fastest {min(times):.2f} ms" if best.latency is not None else ""
    return f"best {100 * (best.accuracy or 0):.2f} %{fast}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return (
        f"{minutes // 60} h {minutes % 60} min"
        if minutes >= 60
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )
