"""Progress: log messages outside a terminal, bars in a terminal."""

import io
import sys

import pytest

from lrnas.training.loop import EpochReport
from lrnas.training.progress import download_view, packing_view, training_view


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    return terminal


def report(epoch: int, note: str = "") -> EpochReport:
    return EpochReport(epoch, 3, 0.1, 1.5, 0.5, 1.4, 0.625, 2000.0, 1.0, note)


def test_downloads_are_messages_outside_a_terminal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    with download_view() as progress:
        for done in range(0, 1001, 100):
            progress("downloading CIFAR-10", done, 1000)
        progress("reading it", 0, 0)
    assert caplog.messages == ["downloading CIFAR-10  0 of 1,000", "downloading CIFAR-10  1,000 of 1,000", "reading it"]


def test_downloads_are_bars_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with download_view() as progress:
        progress("downloading CIFAR-10", 500_000, 1_000_000)
        progress("downloading CIFAR-10", 1_000_000, 1_000_000)
    assert "downloading CIFAR-10" in terminal.getvalue() and "1.0/1.0 MB" in terminal.getvalue()


def test_a_training_shows_its_first_and_last_epoch_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    with training_view("nin") as show:
        for epoch in (1, 2, 3):
            show(report(epoch, "out of memory" if epoch == 2 else ""))
    numbers = "loss 1.500  validation 62.50 %  2,000 images/s"
    first = f"nin  epoch 1 of 3  {numbers}  about 2 s left"
    assert caplog.messages == [first, "nin: out of memory", f"nin  epoch 3 of 3  {numbers}"]


def test_a_training_is_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = open_terminal(monkeypatch)
    with training_view("nin[b]:b:") as show:
        show(report(3))
    assert "nin[b]:b:" in terminal.getvalue()
    assert "starting" in terminal.getvalue() and "3/3" in terminal.getvalue() and "62.50 %" in terminal.getvalue()


def test_short_checks_are_silent(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("INFO", "lrnas")
    now = 100.0
    monkeypatch.setattr("lrnas.training.progress.time.monotonic", lambda: now)
    with packing_view() as progress:
        progress("packing images", 64, 128)
        assert caplog.messages == []
        now = 118.0
        progress("packing images", 100, 128)
        progress("packing images", 128, 128)
    assert caplog.messages == ["packing images  100 of 128  2 images/s, 0:00:14 left"]
