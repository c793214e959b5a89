"""Batch norms in inference, as a part of the convolution before them.

A norm then only multiplies every channel by a scale and adds a shift. PyTorch's operations compute these few numbers
with about ten kernels, and each takes as long as a small layer. Here it is one. They are computed in every pass, not
kept, so that a model whose weights change stays right, also in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

CHANNELS = 128
"""Number of channels per program."""
WEIGHTS = 1024
"""Number of weights per program."""


@triton.jit
def _load_factors(
    mean_ptr, variance_ptr, scale_ptr, shift_ptr, bias_ptr, channels, exist, eps, HAS_BIAS: tl.constexpr
):  # fmt: skip
    """The scale and the shift of some channels. The shift includes a bias before the norm."""
    mean = tl.load(mean_ptr + channels, mask=exist, other=0.0).to(tl.float32)
    variance = tl.load(variance_ptr + channels, mask=exist, other=1.0).to(tl.float32)
    scale = tl.load(scale_ptr + channels, mask=exist, other=0.0).to(tl.float32) / tl.sqrt(variance + eps)
    if HAS_BIAS:
        mean -= tl.load(bias_ptr + channels, mask=exist, other=0.0).to(tl.float32)
    return scale, tl.load(shift_ptr + channels, mask=exist, other=0.0).to(tl.float32) - mean * scale


@triton.jit(do_not_specialize=["num_channels"])
def _factors_kernel(
    mean_ptr, variance_ptr, scale_ptr, shift_ptr, bias_ptr, out_ptr, num_channels, eps,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    channels = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exist = channels < num_channels
    scale, shift = _load_factors(
        mean_ptr, variance_ptr, scale_ptr, shift_ptr, bias_ptr, channels, exist, eps, HAS_BIAS
    )  # fmt: skip
    tl.store(out_ptr + channels, scale, mask=exist)
    tl.store(out_ptr + num_channels + channels, shift, mask=exist)


@triton.jit(do_not_specialize=["length"])
def _fold_kernel(
    weight_ptr, mean_ptr, variance_ptr, scale_ptr, shift_ptr, bias_ptr, out_ptr, out_shift_ptr, length, eps,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Multiply some weights of one filter by the scale of its channel."""
    channel = tl.program_id(0)
    scale, shift = _load_factors(
        mean_ptr, variance_ptr, scale_ptr, shift_ptr, bias_ptr, channel, channel >= 0, eps, HAS_BIAS
    )  # fmt: skip
    part = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = channel.to(tl.int64) * length + part
    weight = tl.load(weight_ptr + at, mask=part < length, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (weight * scale).to(out_ptr.dtype.element_ty), mask=part < length)
    if tl.program_id(1) == 0:
        tl.store(out_shift_ptr + channel, shift.to(out_shift_ptr.dtype.element_ty))


def norm_factors(bias: Tensor | None, norm: Sequence[Tensor], eps: float) -> Tensor:
    """The scale and the shift of a norm after a bias (if any), [2, channels], in float32.

    `norm` is its mean, variance, scale and shift.
    """
    norm = [tensor.contiguous() for tensor in norm]
    number = len(norm[0])
    out = torch.empty(2, number, dtype=torch.float32, device=norm[0].device)
    _factors_kernel[(triton.cdiv(number, CHANNELS),)](
        *norm, norm[0] if bias is None else bias.contiguous(), out, number, eps, bias is not None, CHANNELS
    )
    return out


def fold_norm(
    weight: Tensor, bias: Tensor | None, norm: Sequence[Tensor], eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The weights (channels last) and the bias of a convolution that includes the norm after it, in `dtype`."""
    norm = [tensor.contiguous() for tensor in norm]
    weight = weight.contiguous(memory_format=torch.channels_last)
    out = torch.empty_like(weight, dtype=dtype)
    shift = torch.empty(len(weight), dtype=dtype, device=weight.device)
    length = weight[0].numel()
    _fold_kernel[(len(weight), triton.cdiv(length, WEIGHTS))](
        weight,
        *norm,
        norm[0] if bias is None else bias.contiguous(),
        out,
        shift,
        length,
        eps,
        bias is not None,
        WEIGHTS,
    )
    return out, shift
