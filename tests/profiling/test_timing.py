"""Measuring calls side by side."""

import itertools
import subprocess
import sys
import time

import pytest
import torch

from lrnas.profiling.timing import FEWEST, MOST, measure, num_threads


def test_calls_that_sleep_take_their_known_time() -> None:
    short, long = measure([lambda: time.sleep(0.001), lambda: time.sleep(0.004)], rounds=3)
    assert 0.001 <= short < long and long >= 0.004


def test_every_round_measures_all_calls_in_changing_order() -> None:
    order: list[str] = []
    slow = 0.06  # longer than a sample: one call per sample, none before it
    measure([lambda: (order.append("a"), time.sleep(slow)), lambda: (order.append("b"), time.sleep(slow))], rounds=4)
    assert order[:4] == ["a", "a", "b", "b"]  # the first calls find the number of calls per sample
    rounds = ["".join(order[i : i + 2]) for i in range(4, len(order), 2)]
    assert sorted(rounds) == ["ab"] * 3 + ["ba"] * 2 and rounds[0] != rounds[1]


def test_long_calls_get_fewer_rounds_and_short_ones_more_calls() -> None:
    calls = {"long": 0, "short": 0}

    def count(name: str, seconds: float) -> None:
        calls[name] += 1
        time.sleep(seconds)

    measure([lambda: count("long", 0.06), lambda: count("short", 0.0001)], rounds=10, limit=0.1, sample=0.001)
    assert calls["long"] == 2 + 1 + FEWEST
    assert 30 < calls["short"] < 12 * (MOST + 1)


def test_a_low_quantile_ignores_disturbed_samples() -> None:
    times = itertools.cycle([0.0, 0.0, 0.05])
    (least,) = measure([lambda: time.sleep(next(times))], rounds=9, sample=0, quantile=0.1)
    assert least < 0.02


@pytest.mark.gpu
def test_on_a_gpu_launches_do_not_count() -> None:
    """A hundred additions take longer than one, but much less than a hundred launches from Python."""
    x = torch.zeros(1024, device="cuda")

    def many() -> None:
        for _ in range(100):
            x.add_(1)

    one, hundred = measure([lambda: x.add_(1), many], "cuda")
    assert 10 < hundred / one < 300 and one < 1e-5


@pytest.mark.gpu
def test_on_a_gpu_without_a_graph_launches_and_waiting_count() -> None:
    x = torch.zeros(1024, device="cuda")
    y = torch.randn(4096, 4096, device="cuda")
    calls = [lambda: x.add_(1), lambda: y @ y]
    captured, plain = measure(calls, "cuda"), measure(calls, "cuda", capture=False)
    assert plain[0] > captured[0]  # it includes launches from Python
    assert plain[1] > 0.8 * captured[1]  # it includes waiting for the GPU


@pytest.mark.gpu
def test_on_a_gpu_calls_that_cannot_be_captured_are_measured_too() -> None:
    x = torch.randn(512, 512, device="cuda")
    waits, runs = measure([lambda: (x @ x).sum().item(), lambda: (x @ x).sum()], "cuda")
    assert waits > runs > 0


ONE_OF_TWO = """
import os, time
os.environ["OMP_NUM_THREADS"] = "2"
import torch
from lrnas.profiling.timing import num_threads

x, weight = torch.randn(1, 128, 28, 28), torch.randn(128, 128, 3, 3)

def share():
    "Of the work, that this thread does."
    for measured in (False, True):
        own, whole = time.thread_time(), time.process_time()
        for _ in range(20):
            torch.nn.functional.conv2d(x, weight, padding=1)
    return (time.thread_time() - own) / (time.process_time() - whole)

with torch.no_grad(), num_threads(1):
    print(share())
with torch.no_grad():
    print(share())
"""


def test_one_thread_uses_one_core() -> None:
    """The process starts with two threads. On ARM, `torch.set_num_threads(1)` alone does not limit convolutions."""
    result = subprocess.run([sys.executable, "-c", ONE_OF_TWO], capture_output=True, text=True, check=True)
    held, free = map(float, result.stdout.split())
    assert held > 0.95 and free < 0.9


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    for number in (1, before + 1):
        with num_threads(number):
            assert torch.get_num_threads() == number
        assert torch.get_num_threads() == before
