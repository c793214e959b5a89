"""Fused kernels for training on GPUs, in Triton: what PyTorch computes in several passes over memory, in one.

`lrnas.kernels.ops` has them as PyTorch operators; this file only says whether they can be used. Without a GPU, without
Triton or with LRNAS_KERNELS=off everything runs in plain PyTorch, with the same results within rounding.
"""

from __future__ import annotations

import functools
import importlib.util
import os

from torch import Tensor

__all__ = ["usable"]


def usable(x: object) -> bool:
    """Whether this is a map that the kernels can take."""
    return isinstance(x, Tensor) and x.is_cuda and x.ndim == 4 and x.numel() > 0 and _available()


@functools.cache
def _available() -> bool:
    return os.environ.get("LRNAS_KERNELS", "on") != "off" and importlib.util.find_spec("triton") is not None
