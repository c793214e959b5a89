"""Triton kernels for pooling over small windows and over whole maps, channels last.

In the backward pass every input position reads the windows that contain it. Therefore no atomic additions are needed,
and sums have a fixed order. A max pool stores the position of each maximum in its window as one byte.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrnas.layers.kernels.epilogue import first_largest
from lrnas.layers.kernels.layer import unit
from lrnas.layers.kernels.rows import empty_map

BLOCK_POSITIONS, BLOCK_COLS, NUM_WARPS = 32, 32, 4
_SIZES = ["number", "channel_units", "height", "width", "out_height", "out_width"]
"""Arguments for which Triton does not specialise a kernel, so that new values need no compilation."""


class Window(NamedTuple):
    """A square pooling window, its stride and its padding."""

    size: int
    stride: int
    padding: int

    def output_size(self, length: int, ceil_mode: bool) -> int:
        reach = length + 2 * self.padding - self.size + (self.stride - 1 if ceil_mode else 0)
        output = reach // self.stride + 1
        # the last window must start inside the input or its left padding
        return output - 1 if ceil_mode and (output - 1) * self.stride >= length + self.padding else output


def _grid(x: Tensor) -> tuple[int]:
    number, channels, height, width = x.shape
    return (triton.cdiv(channels, BLOCK_COLS) * triton.cdiv(number * height * width, BLOCK_POSITIONS),)


@triton.jit
def _block(number, channels, height, width, BLOCK: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """The block of a program: image, row and column of its positions, its channels, and a mask of valid elements."""
    across = tl.cdiv(channels, BLOCK_COLS)
    position = tl.program_id(0) // across * BLOCK + tl.arange(0, BLOCK)
    area = height * width
    channel = tl.program_id(0) % across * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    here = (position < number * area)[:, None] & (channel < channels)[None, :]
    return position // area, position % area // width, position % width, channel, here


@triton.jit
def _offsets(image, row, col, height, width, channel, channels):
    """Memory offsets of some channels at some positions."""
    return ((image.to(tl.int64) * height + row) * width + col)[:, None] * channels + channel[None, :]


@triton.jit
def _window_area(row, col, height, width, SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
                 COUNT_PADDING: tl.constexpr):  # fmt: skip
    """The number of positions that a window averages over, as PyTorch counts them."""
    top, left = row * STRIDE - PADDING, col * STRIDE - PADDING
    bottom, right = tl.minimum(top + SIZE, height + PADDING), tl.minimum(left + SIZE, width + PADDING)
    if not COUNT_PADDING:
        top, left = tl.maximum(top, 0), tl.maximum(left, 0)
        bottom, right = tl.minimum(bottom, height), tl.minimum(right, width)
    return ((bottom - top) * (right - left)).to(tl.float32)


@triton.jit(do_not_specialize=_SIZES)
def _forward_kernel(
    x_ptr, out_ptr, winner_ptr, number, channel_units, height, width, out_height, out_width,
    UNIT: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, MAX: tl.constexpr,
    COUNT_PADDING: tl.constexpr, BLOCK: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    channels = channel_units * UNIT
    image, row, col, channel, here = _block(number, channels, out_height, out_width, BLOCK, BLOCK_COLS)
    if MAX:
        result = tl.full((BLOCK, BLOCK_COLS), float("-inf"), tl.float32)
    else:
        result = tl.zeros((BLOCK, BLOCK_COLS), tl.float32)
    winner = tl.full((BLOCK, BLOCK_COLS), -1, tl.int32)
    for i in tl.static_range(SIZE):
        for j in tl.static_range(SIZE):
            in_row, in_col = row * STRIDE - PADDING + i, col * STRIDE - PADDING + j
            inside = (in_row >= 0) & (in_row < height) & (in_col >= 0) & (in_col < width)
            at = _offsets(image, in_row, in_col, height, width, channel, channels)
            if MAX:
                value = tl.load(x_ptr + at, mask=here & inside[:, None], other=float("-inf")).to(tl.float32)
                better = (value > result) | (value != value) | ((winner < 0) & inside[:, None])
                result = tl.where(better, value, result)
                winner = tl.where(better, i * SIZE + j, winner)
            else:
                result += tl.load(x_ptr + at, mask=here & inside[:, None], other=0.0).to(tl.float32)
    at = _offsets(image, row, col, out_height, out_width, channel, channels)
    if MAX:
        tl.store(winner_ptr + at, winner.to(tl.uint8), mask=here)
    else:
        result /= _window_area(row, col, height, width, SIZE, STRIDE, PADDING, COUNT_PADDING)[:, None]
    tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=here)


@triton.jit(do_not_specialize=_SIZES)
def _backward_kernel(
    grad_ptr, winner_ptr, out_ptr, number, channel_units, height, width, out_height, out_width,
    UNIT: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, MAX: tl.constexpr,
    COUNT_PADDING: tl.constexpr, BLOCK: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    channels = channel_units * UNIT
    image, row, col, channel, here = _block(number, channels, height, width, BLOCK, BLOCK_COLS)
    result = tl.zeros((BLOCK, BLOCK_COLS), tl.float32)
    for i in tl.static_range((SIZE + STRIDE - 1) // STRIDE):
        for j in tl.static_range((SIZE + STRIDE - 1) // STRIDE):
            out_row, out_col = (row + PADDING) // STRIDE - i, (col + PADDING) // STRIDE - j
            in_row, in_col = row + PADDING - out_row * STRIDE, col + PADDING - out_col * STRIDE
            inside = (out_row >= 0) & (out_row < out_height) & (out_col >= 0) & (out_col < out_width)
            inside &= (in_row < SIZE) & (in_col < SIZE)
            at = _offsets(image, out_row, out_col, out_height, out_width, channel, channels)
            mask = here & inside[:, None]
            grad = tl.load(grad_ptr + at, mask=mask, other=0.0).to(tl.float32)
            if MAX:
                winner = tl.load(winner_ptr + at, mask=mask, other=255).to(tl.int32)
                result += tl.where(winner == (in_row * SIZE + in_col)[:, None], grad, 0.0)
            else:
                area = _window_area(out_row, out_col, height, width, SIZE, STRIDE, PADDING, COUNT_PADDING)
                result += tl.where(inside[:, None], grad / area[:, None], 0.0)
    at = _offsets(image, row, col, height, width, channel, channels)
    tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=here)


def _forward(x: Tensor, window: Window, ceil_mode: bool, is_max: bool, count_padding: bool) -> tuple[Tensor, Tensor]:
    x = x.contiguous(memory_format=torch.channels_last)
    number, channels, height, width = x.shape
    out_height, out_width = window.output_size(height, ceil_mode), window.output_size(width, ceil_mode)
    out = empty_map(x, channels, out_height, out_width)
    winner = empty_map(x, channels, out_height, out_width, torch.uint8) if is_max else out
    _forward_kernel[_grid(out)](
        x, out, winner, number, channels // unit(channels), height, width, out_height, out_width,
        unit(channels), *window, is_max, count_padding, BLOCK_POSITIONS, BLOCK_COLS, num_warps=NUM_WARPS,
    )  # fmt: skip
    return out, winner


def _backward(
    grad: Tensor, winner: Tensor | None, height: int, width: int, window: Window, count_padding: bool
) -> Tensor:
    grad = grad.contiguous(memory_format=torch.channels_last)
    number, channels, out_height, out_width = grad.shape
    out = empty_map(grad, channels, height, width)
    _backward_kernel[_grid(out)](
        grad, grad if winner is None else winner, out, number, channels // unit(channels), height, width,
        out_height, out_width, unit(channels), *window, winner is not None, count_padding,
        BLOCK_POSITIONS, BLOCK_COLS, num_warps=NUM_WARPS,
    )  # fmt: skip
    return out


def max_forward(x: Tensor, window: Window, ceil_mode: bool) -> tuple[Tensor, Tensor]:
    """The pooled map, and the position of the maximum in each window."""
    return _forward(x, window, ceil_mode, True, False)


def max_backward(grad: Tensor, winner: Tensor, height: int, width: int, window: Window) -> Tensor:
    return _backward(grad, winner, height, width, window, False)


def average_forward(x: Tensor, window: Window, ceil_mode: bool, count_padding: bool) -> Tensor:
    return _forward(x, window, ceil_mode, False, count_padding)[0]


def average_backward(grad: Tensor, height: int, width: int, window: Window, count_padding: bool) -> Tensor:
    return _backward(grad, None, height, width, window, count_padding)


@triton.jit
def _whole_max_kernel(
    x_ptr, out_ptr, winner_ptr, num_positions, channels,
    BLOCK: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    """Maximum over a whole map; a program computes some channels of one image."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    exists = channel < channels
    best = tl.full((BLOCK, BLOCK_COLS), float("-inf"), tl.float32)
    winner = tl.full((BLOCK, BLOCK_COLS), 2147483647, tl.int32)
    for start in range(0, num_positions, BLOCK):
        position = start + tl.arange(0, BLOCK)
        at = (image * num_positions + position)[:, None] * channels + channel[None, :]
        here = (position < num_positions)[:, None] & exists[None, :]
        value = tl.load(x_ptr + at, mask=here, other=float("-inf")).to(tl.float32)
        order = tl.where(here, tl.broadcast_to(position[:, None], winner.shape), 2147483647)
        best, winner = first_largest(best, winner, value, order)
    best, winner = tl.reduce((best, winner), 0, first_largest)
    tl.store(out_ptr + image * channels + channel, best.to(out_ptr.dtype.element_ty), mask=exists)
    tl.store(winner_ptr + image * channels + channel, winner, mask=exists)


@triton.jit
def _whole_max_backward_kernel(
    grad_ptr, winner_ptr, out_ptr, num_positions, channels,
    BLOCK: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    exists = channel < channels
    grad = tl.load(grad_ptr + image * channels + channel, mask=exists, other=0.0)
    winner = tl.load(winner_ptr + image * channels + channel, mask=exists, other=0)
    for start in range(0, num_positions, BLOCK):
        position = start + tl.arange(0, BLOCK)
        at = (image * num_positions + position)[:, None] * channels + channel[None, :]
        result = tl.where(position[:, None] == winner[None, :], grad[None, :], tl.zeros_like(grad)[None, :])
        tl.store(out_ptr + at, result, mask=(position < num_positions)[:, None] & exists[None, :])


def whole_max_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """The maximum of every channel, [N, C, 1, 1], and the position where it first occurs."""
    x = x.contiguous(memory_format=torch.channels_last)
    number, channels, height, width = x.shape
    out, winner = (x.new_empty(number, channels, 1, 1, dtype=dtype) for dtype in (x.dtype, torch.int32))
    _whole_max_kernel[(number, triton.cdiv(channels, BLOCK_COLS))](
        x, out, winner, height * width, channels, BLOCK_POSITIONS, BLOCK_COLS, num_warps=NUM_WARPS
    )
    return out, winner


def whole_max_backward(grad: Tensor, winner: Tensor, height: int, width: int) -> Tensor:
    number, channels = grad.shape[:2]
    out = empty_map(grad, channels, height, width)
    _whole_max_backward_kernel[(number, triton.cdiv(channels, BLOCK_COLS))](
        grad.contiguous(), winner, out, height * width, channels, BLOCK_POSITIONS, BLOCK_COLS, num_warps=NUM_WARPS
    )
    return out
