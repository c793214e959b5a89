"""What people see while a network trains: a bar in a terminal, plain lines elsewhere. Both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from lrnas.data.names import Progress

if TYPE_CHECKING:
    from rich.progress import TaskID

    from lrnas.training.loop import EpochReport


class _Report(Protocol):
    def __call__(self, report: EpochReport) -> None: ...


@contextmanager
def training_view(label: str) -> Iterator[_Report]:
    """Gives the callback for `train`."""
    if sys.stderr.isatty():
        with _bar(label) as report:
            yield report
    else:
        yield _Lines(label)


class _Lines:
    """A line per epoch, but no more than one every two seconds."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.last = 0.0

    def __call__(self, report: EpochReport) -> None:
        now = time.monotonic()
        if now - self.last < 2 and report.epoch < report.epochs and not report.note:
            return
        self.last = now
        print(f"{self.label}  epoch {report.epoch}/{report.epochs}  {_numbers(report)}", file=sys.stderr, flush=True)
        if report.note:
            print(f"{self.label}  {report.note}", file=sys.stderr, flush=True)


@contextmanager
def _bar(label: str) -> Iterator[_Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(label, total=None, numbers="starting")

        def show(report: EpochReport) -> None:
            progress.update(task, total=report.epochs, completed=report.epoch, numbers=_numbers(report))
            if report.note:
                progress.console.print(f"{label}: {report.note}")

        yield show


def _numbers(report: EpochReport) -> str:
    validation = "" if report.val_accuracy is None else f"validation {100 * report.val_accuracy:.2f} %  "
    return f"loss {report.train_loss:.3f}  {validation}{report.images_per_second:,.0f} images/s"


@contextmanager
def download_view() -> Iterator[Progress]:
    """Gives the callback for `load_set`."""
    if sys.stderr.isatty():
        with _download_bar() as told:
            yield told
    else:
        yield _DownloadLines()


@contextmanager
def reading_view() -> Iterator[Progress]:
    """Gives the callback for who reads many images."""
    if sys.stderr.isatty():
        with _download_bar(of_bytes=False) as told:
            yield told
    else:
        yield _ReadingLines()


class _ReadingLines:
    """Says how far it is, every ten seconds."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last >= 10:
            self.last = now
            print(f"{what}  {done:,} of {total:,}", file=sys.stderr, flush=True)


class _DownloadLines:
    """Says what is being fetched, once a second at most."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.last < 1 and done < total:
            return
        self.last = now
        amount = f"  {done:,} of {total:,}" if total else ""
        print(f"{what}{amount}", file=sys.stderr, flush=True)


@contextmanager
def _download_bar(of_bytes: bool = True) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as RichProgress

    amounts = (DownloadColumn(), TransferSpeedColumn()) if of_bytes else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), *amounts, TimeRemainingColumn())
    with RichProgress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=None)
            progress.update(tasks[what], total=total or None, completed=done)

        yield show
