"""What people see while a search runs: one live line in a terminal, plain lines elsewhere. Both on stderr."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lrnas.driver import SearchEvents
from lrnas.manifest import RETRAINS, data_name

if TYPE_CHECKING:
    from rich.status import Status

    from lrnas.ledger import Ledger
    from lrnas.record import Summary
    from lrnas.trials import Trial

__all__ = ["search_view"]

EVERY = 5.0
"""Seconds between lines, at least."""
RECENT = 30
"""Trials whose pace tells how long the others will take."""


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


class _View(SearchEvents):
    def __init__(self, status: Status | None) -> None:
        self.status = status
        self.study: Ledger | None = None
        self.budget = 0
        self.last = time.monotonic()
        self.ends: deque[tuple[float, int]] = deque(maxlen=RECENT)
        """When trials ended, and how many had by then."""

    def say(self, line: str) -> None:
        if self.status is not None:
            self.status.console.print(line, markup=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def started(self, study: Ledger, budget: int, dense_macs: int | None = None) -> None:
        self.study, self.budget = study, budget
        what = "runs" if RETRAINS in study.manifest else "trials"
        recipe = study.manifest["recipe"]
        rungs = study.manifest["rungs"]
        looks = f", looked at after {', '.join(map(str, rungs))}" if rungs else ""
        trainable = study.manifest.get("trainable") or ""
        how = f" with {trainable}" if trainable not in study.manifest["data"] else ""  # "" is in all
        done = study.spent() - study.running()
        size = recipe.get("crop") or study.manifest["image_size"]
        dense = "" if dense_macs is None else f" (the dense network: {dense_macs:,} MACs)"
        self.say(
            f"{study.name}: {budget} {what} in all, {done} done; training{how} on {data_name(study.manifest)}, "
            f"images of {size}×{size} pixels{dense}, epochs: {recipe['epochs']}{looks}"
        )

    def changed(self, what: str) -> None:
        if what not in ("started", "ended", "epoch"):
            self.say(what)
            return
        now = time.monotonic()
        if self.study is None or (what != "ended" and now - self.last < EVERY):
            return
        self.last = now
        text = self._summary(now)
        if self.status is not None:
            self.status.update(text)
        elif what == "ended":
            self.say(text)

    def _summary(self, now: float) -> str:
        assert self.study is not None
        summary = self.study.summary()
        counts = summary.counts
        bad = "".join(f", {counts[status]} {status}" for status in ("diverged", "faulty", "lost") if counts.get(status))
        running = self.study.running()
        done = self.study.spent() - running
        if not self.ends or self.ends[-1][1] != done:
            self.ends.append((now, done))
        left = ""
        (first, number), (last, _) = self.ends[0], self.ends[-1]
        if done > number:  # from the first end on: before it, workers were starting
            left = f", about {_duration((last - first) / (done - number) * max(0, self.budget - done))} left"
        full, stopped = counts.get("completed", 0), counts.get("stopped", 0)
        if RETRAINS in self.study.manifest:  # how well they do is told when all are done
            return f"{done}/{self.budget} runs: {running} running{bad}{left}"
        return (
            f"{done}/{self.budget} trials: {full} in full, {stopped} stopped{bad}, {running} running; "
            f"{_standing(summary)}{left}"
        )


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
