"""`Throughput`: how many images a study trained per second, all trials together, and how busy its GPUs were."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from optuna.trial import FrozenTrial


@dataclass(frozen=True, slots=True)
class Throughput:
    """Images per second of all trials together."""

    images: int
    """Number of images that were trained; each counts as often as it was trained."""
    seconds: float
    """Time in which at least one trial was in training."""
    gpu_busy: float | None
    """Share of the time in which the GPUs of the trials computed anything; None without a GPU."""

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds

    def __str__(self) -> str:
        busy = "" if self.gpu_busy is None else f", GPU {100 * self.gpu_busy:.0f} % busy"
        return f"{self.images_per_second:,.0f} images/s{busy}"


def measure_throughput(
    trials: Iterable[FrozenTrial], since: datetime | None = None, now: datetime | None = None
) -> Throughput | None:
    """The throughput of trials.

    Args:
        trials: Trials of one or more studies.
        since: Trials that were started before this time do not count; None: all count.
        now: The time; None: that of the clock.

    Returns:
        The throughput; None if no epoch was trained, or if trials do not say how many images they trained.
    """
    now = datetime.now() if now is None else now
    spans, images, busy = [], 0, []
    for trial in trials:
        started, trained = trial.datetime_start, trial.user_attrs.get("images", 0)
        if "imported_from" in trial.user_attrs:  # another study trained it
            continue
        if trained and started is not None and (since is None or started >= since):
            # of a trial that was stopped or is in training, what is known ends with the last epoch of its last worker
            own = trial.user_attrs.get("seconds", 0.0) - trial.user_attrs.get("seconds_before", 0.0)
            last = started + timedelta(seconds=own)
            spans.append((started, trial.datetime_complete or min(now, last)))
            images += trained
            if "gpu_busy" in trial.user_attrs:
                busy.append((trial.user_attrs["gpu_busy"], trained))
    seconds, end = 0.0, datetime.min
    for start, stop in sorted(spans):
        seconds += max(0.0, (stop - max(start, end)).total_seconds())
        end = max(end, stop)
    if not seconds:
        return None
    weight = sum(trained for _, trained in busy)
    return Throughput(images, seconds, sum(share * trained for share, trained in busy) / weight if busy else None)
