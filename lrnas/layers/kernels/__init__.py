"""Fused kernels for GPUs, in Triton: what PyTorch computes in several passes over memory, in one.

`ops` has them as PyTorch operators, and `composite_op` the convolution by filters of
different shapes, which `gathered` and `tiled` compute in two ways; this file only says whether they can be used.
Without a GPU, where Triton does not work or with LRNAS_KERNELS=off everything runs in plain PyTorch, with the same
results within rounding.
"""

from __future__ import annotations

import os
import warnings

import torch
from torch import Tensor

FEW_CHANNELS = 4
"""Up to this many input channels a convolution's patches are written out: tensor cores want longer rows than that."""
LONGEST_PATCH = 128
"""Positions of a window, at most, for its patches to be written out."""

_works: dict[torch.device, bool] = {}


@torch.compiler.assume_constant_result
def available(device: torch.device) -> bool:
    """Whether the kernels run on a device; tried once."""
    if device.type != "cuda" or torch.version.hip is not None or os.environ.get("LRNAS_KERNELS") == "off":
        return False
    if device not in _works:
        try:
            from lrnas.layers.kernels import rows

            with torch.cuda.device(device):
                rows.bias_backward(torch.ones(2, 2, device=device), None)[1].sum().item()
            _works[device] = True
        except Exception as error:  # no Triton, no compiler for it, a GPU it does not know
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            warnings.warn(f"training without the fused kernels, which do not run here: {reason}", stacklevel=2)
            _works[device] = False
    return _works[device]


def usable(x: object) -> bool:
    """Whether this is a map that the kernels can take."""
    return isinstance(x, Tensor) and x.is_cuda and x.ndim == 4 and x.numel() > 0 and x.dtype in _DTYPES


def is_faster(x: object) -> bool:
    """Whether the composite convolution is the faster way for a map: in half precision, on a GPU.

    What is traced to be taken elsewhere has PyTorch's own operations in it.
    """
    # is_exporting() is true inside torch.compile in some versions
    exporting = getattr(torch.compiler, "_is_exporting_flag", False)
    if exporting or torch.jit.is_tracing() or not usable(x):  # type: ignore[attr-defined]
        return False
    assert isinstance(x, Tensor)
    autocast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
    return dtype in (torch.bfloat16, torch.float16) and available(x.device) and _multiplies_bfloat16(x.device)


@torch.compiler.assume_constant_result
def _multiplies_bfloat16(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 8


_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
