"""What people see: plain lines where there is no terminal, bars where there is one."""

import io
import sys

import pytest

from lrnas.training.progress import download_view


def test_downloads_are_lines_in_a_file(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    with download_view() as told:
        for done in range(0, 1001, 100):
            told("downloading CIFAR-10", done, 1000)
        told("reading it", 0, 0)
    assert caplog.messages == ["downloading CIFAR-10  0 of 1,000", "downloading CIFAR-10  1,000 of 1,000", "reading it"]


def test_downloads_are_bars_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with download_view() as told:
        told("downloading CIFAR-10", 500_000, 1_000_000)
        told("downloading CIFAR-10", 1_000_000, 1_000_000)
    assert "downloading CIFAR-10" in terminal.getvalue() and "1.0/1.0 MB" in terminal.getvalue()
