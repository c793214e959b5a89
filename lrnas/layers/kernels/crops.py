"""Triton kernel for crops: gathers, interpolates, mirrors and normalises pixels in one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, NUM_WARPS = 1024, 4


@triton.jit
def _neighbours(where, length, SIZE: tl.constexpr):
    """The pixels before and after a point of a row or column of `length` pixels, and the weight of the second one."""
    position = tl.maximum((where + 0.5) * (length.to(tl.float32) / SIZE) - 0.5, 0.0)
    before = position.to(tl.int64)
    return before, tl.minimum(before + 1, length - 1), position - before.to(tl.float32)


@triton.jit
def _crop_kernel(
    pixels_ptr, places_ptr, shift_ptr, scale_ptr, out_ptr, place_stride,
    SIZE: tl.constexpr, CHANNELS: tl.constexpr, RESIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    crop = tl.program_id(0).to(tl.int64)
    first = tl.load(places_ptr + crop)
    stride = tl.load(places_ptr + place_stride + crop)
    mirrored = tl.load(places_ptr + 4 * place_stride + crop)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # of the crop, channels last
    here = element < SIZE * SIZE * CHANNELS
    row, col, channel = element // (SIZE * CHANNELS), element // CHANNELS % SIZE, element % CHANNELS
    col = tl.where(mirrored > 0, SIZE - 1 - col, col)
    pixels_ptr += channel
    if RESIZE:
        upper, lower, down = _neighbours(row, tl.load(places_ptr + 2 * place_stride + crop), SIZE)
        left, right, across = _neighbours(col, tl.load(places_ptr + 3 * place_stride + crop), SIZE)
        upper, lower = first + upper * stride, first + lower * stride
        a = tl.load(pixels_ptr + CHANNELS * (upper + left), mask=here, other=0).to(tl.float32)
        b = tl.load(pixels_ptr + CHANNELS * (upper + right), mask=here, other=0).to(tl.float32)
        c = tl.load(pixels_ptr + CHANNELS * (lower + left), mask=here, other=0).to(tl.float32)
        d = tl.load(pixels_ptr + CHANNELS * (lower + right), mask=here, other=0).to(tl.float32)
        a, c = a + across * (b - a), c + across * (d - c)
        value = a + down * (c - a)
    else:
        value = tl.load(pixels_ptr + CHANNELS * (first + row * stride + col), mask=here, other=0).to(tl.float32)
    value = tl.load(shift_ptr + channel) + value * tl.load(scale_ptr + channel)
    tl.store(out_ptr + crop * (SIZE * SIZE * CHANNELS) + element, value.to(out_ptr.dtype.element_ty), mask=here)


def crop_and_normalise(
    pixels: Tensor, places: Tensor, size: int, resize: bool, shift: Tensor, scale: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return crops as the input of a network, [number, channels, size, size], channels last in memory.

    Args:
        pixels: The pixels that `places` refer to, uint8 [number, channels].
        places: Crops, [6, number of crops], as `lrnas.data.crops.make_places` makes them.
        size: Rows and columns of the result.
        resize: Whether crops have to be resized; otherwise, they all have this size.
        shift: Number that is added to every channel, after the multiplication.
        scale: Number that every channel is multiplied by.
        dtype: Type of the result.
    """
    number, channels = places.shape[1], pixels.shape[1]
    out = torch.empty(number, size, size, channels, dtype=dtype, device=pixels.device)
    grid = (number, triton.cdiv(size * size * channels, BLOCK))
    if number:
        _crop_kernel[grid](
            pixels, places, shift, scale, out, places.stride(0),
            SIZE=size, CHANNELS=channels, RESIZE=resize, BLOCK=BLOCK, num_warps=NUM_WARPS,
        )  # fmt: skip
    return out.permute(0, 3, 1, 2)
