"""Fused GPU kernels, in Triton: one pass over memory for operations that need several passes in PyTorch.

In the text of this package, a kernel is a GPU kernel: a function that many programs execute, each for one block of the
result. The argument names `kernel` and `kernels` are rows and columns of filters, as in `nn.Conv2d`. A group is all
filters of a layer that have the same shape.
`ops` contains the PyTorch operators. `composite_op` contains the operator for convolutions with filters of different
shapes; `gathered` and `tiled` are its two implementations. This file only decides whether the kernels can be used.
Without a GPU, without a working Triton, or with LRNAS_KERNELS=off, everything runs in plain PyTorch, with the same
results up to rounding.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

FEW_CHANNELS = 4
"""Layers with at most this number of input channels get special treatment, because tensor cores need longer rows.

For example, the pixels that a filter sees (a patch) are first copied into one row of a matrix.
"""
LONGEST_PATCH = 128
"""Largest number of positions of a window for which patches are copied."""

_works: dict[torch.device, bool] = {}

Function = TypeVar("Function", bound=Callable[..., object])


def _is_constant(function: Function) -> Function:
    """The same as `torch.compiler.assume_constant_result`, which takes seconds: it imports the whole compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_is_constant
def available(device: torch.device) -> bool:
    """Whether the kernels run on a device. The first call for a device tries it."""
    if device.type != "cuda" or torch.version.hip is not None or os.environ.get("LRNAS_KERNELS") == "off":
        return False
    if device not in _works:
        try:
            from lrnas.layers.kernels import rows

            with torch.cuda.device(device):
                rows.bias_backward(torch.ones(2, 2, device=device), None)[1].sum().item()
            _works[device] = True
        except Exception as error:  # Triton or its compiler is missing, or it does not support the GPU
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            warnings.warn(
                f"fused kernels do not run on {device}; PyTorch's operations are used: {reason}", stacklevel=2
            )
            _works[device] = False
    return _works[device]


def is_exporting() -> bool:
    """Whether torch.export traces a model."""
    # not torch.compiler.is_exporting(), which is also true inside torch.compile in some versions
    return bool(getattr(torch.compiler, "_is_exporting_flag", False))


def usable(x: object) -> bool:
    """Whether an object is a map that the kernels support.

    It is False while a model is traced, because exported models should contain only PyTorch's operations.
    """
    is_map = isinstance(x, Tensor) and x.is_cuda and x.ndim == 4 and x.numel() > 0 and x.dtype in _DTYPES
    return is_map and not is_exporting() and not torch.jit.is_tracing()  # type: ignore[attr-defined]


def compute_dtype(x: Tensor) -> torch.dtype:
    """The type in which a convolution computes with a tensor: that of autocast, or the tensor's own."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def is_faster(x: object) -> bool:
    """Whether the composite convolution is faster than PyTorch's operations for a map: in half precision, on a GPU."""
    if not usable(x):
        return False
    assert isinstance(x, Tensor)
    return (
        compute_dtype(x) in (torch.bfloat16, torch.float16) and available(x.device) and _multiplies_bfloat16(x.device)
    )


@_is_constant
def _multiplies_bfloat16(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 8


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
