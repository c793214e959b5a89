"""Progress of trainings, downloads and checks: a bar in a terminal, log messages elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from lrnas._messages import duration, logger, printable
from lrnas.data.names import Progress
from lrnas.errors import Terminated, is_command

if TYPE_CHECKING:
    from lrnas.training.loop import EpochReport, Report


@contextmanager
def telling_interrupts(what: str, then: str | None = None) -> Iterator[None]:
    """Context of long work: an interrupt that ends it at once says what was interrupted, and what follows.

    Args:
        what: What is interrupted, for the message, such as search.
        then: The end of the message; None: that the same command continues it.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        ended = "terminated" if isinstance(error, Terminated) else "interrupted"
        error.args = (f"the {what} was {ended}; {then or how_to_continue()}",)
        raise


def how_to_continue() -> str:
    """The end of a message about trainings that were interrupted."""
    return f"the same {'command' if is_command() else 'call'} continues it"


class TimeLeft:
    """Speed of work on images, and the time that it will take."""

    def __init__(self) -> None:
        self.starts: dict[str, tuple[float, int]] = {}
        """Time and number of images when a kind of work was first reported."""

    def describe(self, what: str, done: int, total: int) -> str:
        """Return the speed and the time left, as text; "" if they are not known yet.

        Args:
            what: What is being done.
            done: Number of images that are done.
            total: Number of all images.
        """
        now = time.monotonic()
        start, before = self.starts.setdefault(what, (now, done))
        if done == before or now == start:
            return ""
        rate = (done - before) / (now - start)
        return f"{rate:,.0f} images/s, {timedelta(seconds=round((total - done) / rate))} left"


@contextmanager
def training_view(label: str) -> Iterator[Report]:
    """Yield the `report` callback for `train`, which shows the epochs of one network.

    Args:
        label: Text that identifies the training, for example the name of the network and the seed.
    """
    with _view(pause=2, unit="epoch ", first=label) as show:

        def report(entry: EpochReport) -> None:
            validation = "" if entry.val_accuracy is None else f"validation {100 * entry.val_accuracy:.2f} %  "
            numbers = f"loss {entry.train_loss:.3f}  {validation}{entry.images_per_second:,.0f} images/s"
            if (seconds := entry.seconds * (entry.epochs - entry.epoch)) and not sys.stderr.isatty():
                numbers += f"  about {duration(seconds)} left"  # a terminal shows it beside the bar
            show(label, entry.epoch, entry.epochs, numbers)
            if entry.note:
                logger.warning("%s: %s", label, entry.note)

        yield report


@contextmanager
def download_view() -> Iterator[Progress]:
    """Yield the `progress` callback for `load_set`, which shows a number of bytes."""
    with _view(pause=1, in_bytes=True) as show:
        yield show


@contextmanager
def packing_view() -> Iterator[Progress]:
    """Yield the `progress` callback for `DataSet.prepare`, which shows a number of images and the time left.

    Without a terminal, it logs nothing in the first 10 seconds.
    """
    with _view(pause=10, quiet=True) as show:
        time_left = TimeLeft()
        yield lambda what, done, total: show(what, done, total, time_left.describe(what, done, total))


@contextmanager
def _view(
    pause: float, *, in_bytes: bool = False, unit: str = "", first: str = "", quiet: bool = False
) -> Iterator[Callable[..., None]]:
    """Yield a function that shows progress: name of the work, amount done, total (0: unknown) and more text.

    Args:
        pause: Seconds between log messages. The message that all is done does not wait, unless `quiet` is set.
        in_bytes: Whether amounts are bytes.
        unit: Word before amounts in log messages.
        first: Name of the first work; a terminal shows its bar before there is any progress.
        quiet: Whether the first and the last log message also wait for the pause.
    """
    if not sys.stderr.isatty():
        last = time.monotonic() if quiet else -math.inf

        def log(what: str, done: int, total: int, text: str = "") -> None:
            nonlocal last
            if time.monotonic() - last >= pause or (done >= total and not quiet):
                last = time.monotonic()
                amount = f"{unit}{done:,} of {total:,}" if total else ""
                logger.info("  ".join(part for part in (what, amount, text) if part))

        yield log
        return
    from rich import progress as rich
    from rich.console import Console

    amounts = (rich.DownloadColumn(), rich.TransferSpeedColumn()) if in_bytes else (rich.MofNCompleteColumn(),)
    name, text = (rich.TextColumn(what, markup=False) for what in ("{task.description}", "{task.fields[text]}"))
    columns = (name, rich.BarColumn(bar_width=24), *amounts, text, rich.TimeRemainingColumn())
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {first: bars.add_task(first, total=None, text="starting")} if first else {}

        def draw(what: str, done: int, total: int, text: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(printable(what), total=None, text="")
            bars.update(tasks[what], total=total or None, completed=done, text=text)

        yield draw
