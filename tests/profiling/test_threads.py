"""PyTorch held to a number of threads."""

import subprocess
import sys

import torch

from lrnas.profiling.threads import num_threads

ONE_OF_TWO = """
import os, time
os.environ["OMP_NUM_THREADS"] = "2"
import torch
from lrnas.profiling.threads import num_threads

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


def test_one_thread_is_one_thread() -> None:
    """In a process that started with two: on ARM, PyTorch's own setting leaves convolutions their threads."""
    result = subprocess.run([sys.executable, "-c", ONE_OF_TWO], capture_output=True, text=True, check=True)
    held, free = map(float, result.stdout.split())
    assert held > 0.95 and free < 0.9


def test_afterwards_all_is_as_before() -> None:
    before = torch.get_num_threads()
    for number in (1, before + 1):
        with num_threads(number):
            assert torch.get_num_threads() == number
        assert torch.get_num_threads() == before
