"""Progress of a search or a retraining: events, lines on stderr, and the estimate of the time left.

In a terminal, one live line shows the state, and messages scroll above it. In a notebook, the state is a progress bar,
and messages are lines. Elsewhere both go to the logger.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from lrnas._messages import duration, logger, printable, show_messages
from lrnas._notebook import LiveBar, in_notebook
from lrnas.errors import Interrupted
from lrnas.study.levels import read_level
from lrnas.study.manifest import LEVEL, RETRAINS, data_name
from lrnas.study.retrained import final_front
from lrnas.study.throughput import measure_throughput
from lrnas.training.progress import TimeLeft, how_to_continue

if TYPE_CHECKING:
    from rich.status import Status

    from lrnas.searching.proposals import Queue
    from lrnas.study.study import Study, Summary, Trial

Change = Literal["started", "epoch", "ended"]
"""What happened to a trial."""

LIVE_INTERVAL = 5.0
"""Minimum seconds between updates of the live line."""
LINE_INTERVAL = 20.0
"""Minimum seconds between lines about running trials, outside a terminal."""
VIEW_SHARE = 0.05
"""Largest share of the time that is spent on the view; if trials end too fast for that, not every end is shown."""
MAX_NAMED_TRIALS = 3
"""Largest number of running trials that are named; the others are only counted."""
MIN_NETWORKS = 3
"""Number of networks that must have been trained for an epoch or more before the time left is estimated."""


class SearchEvents:
    """Base class for receivers of the events of a search or a retraining: override the methods you need."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Called while images from files are packed, which happens once.

        Args:
            what: What is being done.
            done: Number of images that are done.
            total: Number of all images.
        """

    def started(self, queue: Queue, budget: int | None, dense_macs: int | None = None) -> None:
        """Called before the first trial, and in a search again before the first run of each later level.

        Args:
            queue: Networks to train; `queue.study` is the study that was opened.
            budget: Number of trials that the study has when it is done; None at a later level, where it is not known.
            dense_macs: Multiply-accumulates of the space's backbone with dense filters; None in a retraining.
        """

    def changed(self, change: Change) -> None:
        """Called when a trial was started, was trained for one more epoch, or has ended."""


@contextmanager
def progress_view(events: SearchEvents | None = None, progress: bool = True) -> Iterator[SearchEvents]:
    """Context in which progress and messages are shown on stderr, as `search` and `retrain` do by default.

    Args:
        events: Receiver of the events. If it is given, nothing is shown here; messages go to the logger as usual.
        progress: Whether to show anything; if not, messages of the logger are suppressed, too.

    Yields:
        The receiver of the events.
    """
    if events is not None:
        yield events
    elif not progress:
        before, logger.disabled = logger.disabled, True
        try:
            yield SearchEvents()
        finally:
            logger.disabled = before
    elif in_notebook():
        show_messages()
        bar = LiveBar("starting")
        view = ProgressView(bar)
        try:
            yield view
            view.show_rest()
        except KeyboardInterrupt:
            raise Interrupted from None
        finally:
            bar.end()
    elif not sys.stderr.isatty():
        show_messages()
        view = ProgressView()
        yield view
        view.show_rest()
    else:
        from rich.console import Console

        show_messages()  # rich puts what is written to stderr above the live line
        with Console(stderr=True, highlight=False).status("starting") as status:
            view = ProgressView(status)
            yield view
            view.show_rest()


def tell_interrupted(study: Study, *, is_complete: bool) -> None:
    """Warn that a search or retraining is not complete if the user has stopped it, also if no progress is shown.

    Args:
        study: The study.
        is_complete: Whether the last trials ended nevertheless, because they were in their last epochs.
    """
    if study.interrupted:
        rest = "complete nevertheless" if is_complete else f"not complete; {how_to_continue()}"
        logger.warning(f"interrupted: {study.name} is {rest}")


class ProgressView(SearchEvents):
    """Shows events in the live line of a terminal or a notebook, or as messages of the logger where there is none."""

    queue: Queue
    budget: int | None = None

    def __init__(self, status: Status | LiveBar | None = None) -> None:
        self.status = status
        self.start = self.last_update = time.monotonic()
        self.next_end = float("-inf")
        """When the end of a trial may be shown again."""
        self.has_rest = False
        """Whether a trial has ended since the last time that an end was shown; for a live line, or has started."""
        self.began = datetime.now()
        self.work_before: dict[int, Work] = {}
        """Training that each trial, by number, had before this search started."""
        self.time_left = TimeLeft()
        self.trials = ""
        """Number of trials, in words, while networks are trained at later levels."""

    def preparing(self, what: str, done: int, total: int) -> None:
        text = f"{what}: {done:,} of {total:,}  {self.time_left.describe(what, done, total)}"
        if self.status is not None:
            self._show(text, done, total)
        elif time.monotonic() - self.last_update > LINE_INTERVAL:
            self.last_update = time.monotonic()
            logger.info(text)

    def started(self, queue: Queue, budget: int | None, dense_macs: int | None = None) -> None:
        self.show_rest()
        if budget is None and self.budget is not None:
            self.trials = f"{self.queue.spent()}/{self.budget} trials, "
        self.queue, self.budget = queue, budget
        study = queue.study
        self.start, self.began = time.monotonic(), datetime.now()
        self.last_update = float("-inf")  # the first trial is shown at once
        trials = study.trials
        self.work_before = {trial.number: Work(trial.macs, trial.epochs, trial.seconds) for trial in trials}
        manifest = study.manifest
        unit = "run" if RETRAINS in manifest else "trial"
        is_part = study.spent() > queue.spent()  # the other runs of a retraining are those of other networks
        wanted = "that are asked for" if is_part else "in all"
        number = f"level {manifest.get(LEVEL)}" if budget is None else f"{budget} {unit}{'s' * (budget != 1)} {wanted}"
        recipe, rungs = manifest["recipe"], manifest["rungs"]
        stops = f", early stopping after {', '.join(map(str, rungs))}" if rungs else ""
        trainable = manifest.get("trainable") or ""
        # the name of a user's own data includes the function
        trainer = f" with {trainable}" if trainable not in manifest["data"] else ""
        done = queue.spent() - queue.running()
        begun = sum(trial.status == "waiting" and trial.epochs > 0 for trial in trials)
        more = f", {begun} trained in part" * (begun > 0)
        size = recipe.get("crop") or manifest["image_size"]
        dense = "" if dense_macs is None else f" (the dense network: {dense_macs:,} MACs)"
        parts = f" ({queue.parts()})" if queue.parts() else ""
        if done == budget and not queue.has_finals:
            more = "more --seeds or other networks extend it" if unit == "run" else "a larger --budget extends it"
            logger.info(f"{study.name}: {number}{parts}, all done; {more}")
            return
        logger.info(
            f"{study.name}: {number}{parts}, {done} done{more}; training{trainer} on "
            f"{data_name(manifest)}, images of {size}×{size} pixels{dense}, epochs: {recipe['epochs']}{stops}"
        )

    def show_rest(self) -> None:
        """Show the last state, unless it is shown."""
        if self.has_rest:
            self.next_end = float("-inf")
            self.changed("ended")

    def changed(self, change: Change) -> None:
        now = time.monotonic()
        interval = LINE_INTERVAL if self.status is None else LIVE_INTERVAL
        is_end = change == "ended" or self.has_rest or (change == "started" and self.status is not None)
        self.has_rest = is_end and now < self.next_end
        if self.has_rest or (not is_end and now - self.last_update < interval):
            return
        self.last_update = now
        self._show_state(is_end, now)
        if is_end:
            self.next_end = time.monotonic() + (time.monotonic() - now) / VIEW_SHARE

    def _show_state(self, is_end: bool, now: float) -> None:
        summary = self.queue.study.summary()  # read once: a study may have thousands of trials
        state, training = self._state(summary, now), self._training(summary.trials)
        if self.status is not None:
            done = self.queue.spent() - self.queue.running()
            self._show(f"{state}; {training}" if training else state, done, self.budget)
        elif line := state if is_end else training:
            logger.info(line)

    def _show(self, text: str, done: int, total: int | None) -> None:
        """Show a text in the live line, with the share that is done if there is a bar."""
        if isinstance(self.status, LiveBar):
            self.status.update(printable(text), done, total)
        elif self.status is not None:
            from rich.text import Text

            self.status.update(Text(printable(text)))  # a string could contain markup, such as :b:

    def _state(self, summary: Summary, now: float) -> str:
        """Number of trials by outcome, the front so far, images per second, and the time left."""
        queue, counts = self.queue, summary.counts
        failed = "".join(f", {number} {status}" for status, number in queue.faults(summary).items() if number)
        running = queue.running()
        done = queue.spent() - running
        throughput = measure_throughput(queue.study.optuna_trials(), since=self.began)
        rate = "" if throughput is None else f"; {throughput}"
        goes_on = not queue.study.interrupted
        if self.budget is None:
            level = queue.study.manifest[LEVEL]
            means = [final.mean for final in final_front(read_level(queue.study, level))]
            best = f"best {100 * max(means):.2f} %" if means else "none completed yet"
            left = _left(
                self._seconds_left_of_levels(summary.trials, now) if goes_on and running else None, "at most about"
            )
            runs = f"{done} run{'s' * (done != 1)} at level {level} done, {running} running{failed}"
            return f"{self.trials}{runs}; front {len(means)}, {best}{rate}{left}"
        left = _left(self._seconds_left(summary.trials, now) if goes_on and done < self.budget else None)
        until = " until the finals" * (queue.has_finals and bool(left))
        if RETRAINS in queue.study.manifest:  # test accuracies are shown when all runs are done
            return f"{done}/{self.budget} runs: {running} running{failed}{rate}{left}"
        return (
            f"{done}/{self.budget} trials: {counts.get('completed', 0)} completed, {counts.get('stopped', 0)} stopped"
            f"{failed}, {running} running; front {len(summary.front)}, {_best(summary.front)}, "
            f"hypervolume {summary.hypervolume:.4f}{rate}{left}{until}"
        )

    def _training(self, trials: list[Trial]) -> str:
        """The running trials and their epochs, in words; empty if no trial is running."""
        epochs = self.queue.study.manifest["recipe"]["epochs"]
        running = [trial for trial in trials if trial.status == "running"]
        seen = Counter(trial.identity for trial in running)
        names = []
        for trial in running[:MAX_NAMED_TRIALS]:
            seed = trial.study.optuna_trial(trial.number).user_attrs.get("seed") if seen[trial.identity] > 1 else None
            name = f"{trial.point or trial.identity}{'' if seed is None else f' seed {seed}'}"
            names.append(f"{name}, epoch {min(trial.epochs + 1, epochs)} of {epochs}")
        more = f"; and {len(running) - MAX_NAMED_TRIALS} more" if len(running) > MAX_NAMED_TRIALS else ""
        return f"training {'; '.join(names)}{more}" if names else ""

    def _seconds_left(self, trials: list[Trial], now: float) -> float | None:
        """Estimated seconds until the budget is spent; None if too little is known."""
        epochs = self.queue.study.manifest["recipe"]["epochs"]
        trained = {trial.number: self._work_since_start(trial) for trial in trials}
        ended = [t for t in trials if trained[t.number].epochs and t.state not in ("RUNNING", "WAITING")]
        left = [Work(trial.macs, max(0, epochs - trial.epochs)) for trial in trials if trial.state == "RUNNING"]
        to_start = max(0, (self.budget or 0) - self.queue.spent())
        waiting = self.queue.waiting_macs()[:to_start]
        left += [Work(macs, epochs) for macs in waiting]
        to_propose = to_start - len(waiting)
        if now <= self.start or (to_propose and not ended):
            return None
        # networks that are not proposed yet: the mean MACs of known ones, the mean epochs of those that ended
        if to_propose:
            macs = [*(trial.macs for trial in ended), *waiting]
            mean_epochs = sum(trial.epochs for trial in ended) / len(ended)
            left += [Work(round(sum(macs) / len(macs)), mean_epochs)] * to_propose
        pace = sum(work.seconds for work in trained.values()) / (now - self.start)
        return seconds_left(list(trained.values()), left, pace)

    def _seconds_left_of_levels(self, trials: list[Trial], now: float) -> float | None:
        """Estimated seconds until all later levels of a search are done, at most; None if nothing was trained yet."""
        trained = sum(self._work_since_start(trial).seconds for trial in trials)
        left = self.queue.training_left()
        return left / trained * (now - self.start) if left and trained > 0 else None

    def _work_since_start(self, trial: Trial) -> Work:
        before = self.work_before.get(trial.number, Work(trial.macs, 0))
        return Work(trial.macs, trial.epochs - before.epochs, trial.seconds - before.seconds)


class Work(NamedTuple):
    """Epochs of training of one network, and the seconds that they took; 0 if they are still to be done."""

    macs: int
    epochs: float
    seconds: float = 0.0


def seconds_left(trained: Sequence[Work], left: Sequence[Work], pace: float) -> float | None:
    """Estimate the time until all remaining work is done.

    A search starts with its most expensive networks, so their mean time would be far too high for the others.
    Instead, the seconds of an epoch are fitted as a constant plus a part proportional to the multiply-accumulates.

    Args:
        trained: Work that is done.
        left: Work that is left.
        pace: Seconds of training that all workers together do in one second.

    Returns:
        Seconds, or None if too little is known.
    """
    trained = [work for work in trained if work.epochs > 0 and work.seconds > 0]
    if len(trained) < MIN_NETWORKS or pace <= 0:
        return None
    macs, epochs, seconds = np.array(trained, dtype=float).T
    per_epoch = seconds / epochs
    mean_macs, mean = np.average(macs, weights=epochs), np.average(per_epoch, weights=epochs)
    variance = np.average((macs - mean_macs) ** 2, weights=epochs)
    covariance = np.average((macs - mean_macs) * (per_epoch - mean), weights=epochs)
    slope = np.clip(covariance / variance if variance else 0.0, 0.0, mean / mean_macs)  # neither part is negative
    constant = mean - slope * mean_macs
    return float(sum(work.epochs * (constant + slope * work.macs) for work in left) / pace)


def _left(seconds: float | None, about: str = "about") -> str:
    return "" if seconds is None or seconds < 1 else f", {about} {duration(seconds)} left"


def _best(front: list[Trial]) -> str:
    if not front:
        return "none completed yet"
    best = max(front, key=lambda trial: trial.accuracy or 0)
    latencies = [trial.latency for trial in front if trial.latency is not None]
    latency = f" in {best.latency:.2f} ms, fastest {min(latencies):.2f} ms" if best.latency is not None else ""
    return f"best {100 * (best.accuracy or 0):.2f} %{latency}"
