"""Progress of trainings, downloads and checks: a bar in a terminal, log messages elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lrnas._messages import logger
from lrnas.data.names import Progress

if TYPE_CHECKING:
    from lrnas.training.loop import EpochReport, Report


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
def reading_view() -> Iterator[Progress]:
    """Yield the `progress` callback for `StreamSet.try_all`, which shows a number of images.

    Without a terminal, it logs nothing in the first 10 seconds.
    """
    with _view(pause=10, quiet=True) as show:
        yield show


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
    name, text = rich.TextColumn("{task.description}"), rich.TextColumn("{task.fields[text]}")
    columns = (name, rich.BarColumn(bar_width=24), *amounts, text, rich.TimeRemainingColumn())
    with rich.Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {first: bars.add_task(first, total=None, text="starting")} if first else {}

        def draw(what: str, done: int, total: int, text: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=None, text="")
            bars.update(tasks[what], total=total or None, completed=done, text=text)

        yield draw
