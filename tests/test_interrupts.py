"""Ctrl-C while modules are imported."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from lrnas._interrupts import later_interrupts


def test_an_interrupt_waits_for_the_end_of_the_context() -> None:
    done = []

    def work() -> None:
        with later_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("all")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == ["all"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_handlers_of_others_and_other_threads_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with later_interrupts():
            signal.raise_signal(signal.SIGINT)
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)

    def enter() -> None:
        with later_interrupts():  # only the main thread may change handlers
            seen.append(0)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [signal.SIGINT, 0]


SCRIPT = """
import os, signal, sys, threading
import lrnas
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupting:
    def find_spec(self, name, path, target=None):
        if name == "torch._C":  # in the middle of torch
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
try:
    lrnas.create_model
except KeyboardInterrupt:
    print("interrupted")
print(lrnas.create_model(lrnas.Architecture("nin"), 10).num_classes)
"""


def test_a_name_can_be_used_after_its_import_was_interrupted() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout == "interrupted\n10\n", done.stderr
