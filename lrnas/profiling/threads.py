"""A limit on the CPU threads that PyTorch uses.

`torch.set_num_threads(1)` alone is not enough: on ARM, convolutions and matrix products come from the Arm Compute
Library, which uses all threads when it is told to use one. So OpenMP, which owns the threads, is told to start no
parallel work at all.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def num_threads(number: int | None) -> Iterator[None]:
    """Let PyTorch use a number of CPU threads inside a `with` block; None or 0 changes nothing."""
    if not number:
        yield
        return
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
    """The OpenMP library that PyTorch is linked with; None if there is none or if it cannot be found."""
    library = ctypes.CDLL(torch._C.__file__)
    return library if hasattr(library, "omp_set_max_active_levels") else None
