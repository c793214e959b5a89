"""The epilogue of both forward kernels: operations on a block of results before it is written."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_and_shift(total, scale_ptr, bias_ptr, filters, exist, HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Scale and shift [positions, filters], with one scale and one shift per filter."""
    if HAS_SCALE:
        total *= tl.load(scale_ptr + filters, mask=exist, other=0.0)[None, :]
    if HAS_BIAS:
        total += tl.load(bias_ptr + filters, mask=exist, other=0.0)[None, :]
    return total


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def first_largest(a, at, b, other):
    """The larger of two values and its position. Of two equal values it is the first; NaN is larger than any number."""
    taken = (b > a) | ((b == a) & (other < at)) | ((b != b) & ((a == a) | (other < at)))
    return tl.where(taken, b, a), tl.where(taken, other, at)


@triton.jit
def pool_and_clip(
    windows, winner_ptr, at, here,
    RELU: tl.constexpr, POOL: tl.constexpr, WINNER: tl.constexpr,
):  # fmt: skip
    """Pool [positions, POOL * POOL, filters] to [positions, filters], then apply the ReLU, if there is one.

    If POOL is 1, the input is already [positions, filters]. With WINNER, the positions of the maxima are written to
    `winner_ptr` at the offsets `at`.
    """
    if WINNER:
        order = tl.broadcast_to(tl.arange(0, POOL * POOL)[None, :, None], windows.shape)
        total, winner = tl.reduce((windows, order), 1, first_largest)
        tl.store(winner_ptr + at, winner.to(tl.uint8), mask=here)
    elif POOL > 1:
        total = tl.reduce(windows, 1, _larger)
    else:
        total = windows
    if RELU:
        total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return total
