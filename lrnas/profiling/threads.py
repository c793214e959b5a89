"""So many threads of the CPU for PyTorch, and no more.

`torch.set_num_threads(1)` does not reach all of it: on ARM, convolutions and products of matrices are those of the Arm
Compute Library, which takes all threads there are when it is told to take one. OpenMP, which has the threads, can be
told to begin no parallel work, whoever asks for it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def num_threads(number: int) -> Iterator[None]:
    """Have what this thread computes meanwhile done by so many."""
    before, openmp = torch.get_num_threads(), _openmp() if number == 1 else None
    torch.set_num_threads(number)
    levels = openmp.omp_get_max_active_levels() if openmp else 0
    if openmp:
        openmp.omp_set_max_active_levels(0)
    try:
        yield
    finally:
        if openmp:
            openmp.omp_set_max_active_levels(levels)
        torch.set_num_threads(before)


@functools.cache
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP that PyTorch is linked with; None where it has none, or where it cannot be found."""
    library = ctypes.CDLL(torch._C.__file__)
    return library if hasattr(library, "omp_set_max_active_levels") else None
