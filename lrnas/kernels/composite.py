"""Convolution by groups of filters of different shapes side by side, with its gradients, by whichever kernels fit."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from lrnas.kernels import FEW_CHANNELS, gathered, tiled
from lrnas.kernels.layer import Layer
from lrnas.kernels.rows import as_rows, bias_backward

__all__ = ["Layer", "backward", "forward"]

ALIGNMENT = 8
"""Channels are loaded so many at a time; a map with another number of them is filled up with zeros first."""


def _aligned(channels: int) -> int:
    return channels if channels <= FEW_CHANNELS else channels + -channels % ALIGNMENT


def _pixels(x: Tensor) -> Tensor:
    """[N, H, W, C] in one piece, with zeros up to a multiple of eight channels."""
    x = x.permute(0, 2, 3, 1)
    missing = _aligned(x.shape[3]) - x.shape[3]
    return (F.pad(x, (0, missing)) if missing else x).contiguous()


def _as_map(pixels: Tensor, channels: int) -> Tensor:
    """The inverse: a map without what was filled up, channels last in memory."""
    out = pixels[..., :channels].permute(0, 3, 1, 2)
    return out.contiguous(memory_format=torch.channels_last)


def _pack(weights: Sequence[Tensor], layer: Layer, dtype: torch.dtype) -> Tensor:
    """Rows of channels: group after group, tap after tap, filter after filter, zeros up to whole blocks."""
    channels = _aligned(weights[0].shape[1])
    heights = [num + -num % layer.filter_block for num in layer.filters]
    sizes = [height * area for height, area in zip(heights, layer.areas, strict=True)]
    full = channels == weights[0].shape[1] and heights == list(layer.filters)
    make = torch.empty if full else torch.zeros
    packed = make(sum(sizes), channels, dtype=dtype, device=weights[0].device)
    places = [
        part.view(area, height, channels)[:, :num, : weight.shape[1]]
        for part, area, height, num, weight in zip(
            packed.split(sizes), layer.areas, heights, layer.filters, weights, strict=True
        )
    ]
    torch._foreach_copy_(places, [weight.permute(2, 3, 0, 1).flatten(0, 1) for weight in weights])
    return packed


@functools.cache
def _copies_boxes(device: torch.device) -> bool:
    return device.type == "cpu" or torch.cuda.get_device_capability(device)[0] >= 9  # on a CPU it is an interpreter


def _kernels(layer: Layer, channels: int, like: Tensor) -> ModuleType:
    """Boxes where the GPU can copy them and PyTorch's numbers fit its rules."""
    fits = layer.stride == (1, 1) and channels % ALIGNMENT == 0 and like.element_size() == 2
    return tiled if fits and _copies_boxes(like.device) else gathered


def forward(
    x: Tensor,
    weights: Sequence[Tensor],
    bias: Tensor | None,
    scale: Tensor | None,
    layer: Layer,
    relu: bool,
    pool: int,
) -> Tensor:
    if x.dtype == torch.float64:
        return _plain(x, weights, bias, scale, layer, relu, pool)
    pixels = _pixels(x)
    packed = _pack(weights, layer, x.dtype)
    kernels = _kernels(layer, pixels.shape[3], pixels)
    out = kernels.forward(pixels, packed, layer, scale, bias, relu, pool)
    return _as_map(out, layer.num_filters)


def backward(
    grad: Tensor,
    out: Tensor | None,
    x: Tensor,
    weights: Sequence[Tensor],
    layer: Layer,
    needs_input: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input, of all weights one after another, [filters, rows, columns, channels] each, and of the
    bias; empty where not needed. `out` is the output of a ReLU."""
    if x.dtype == torch.float64:
        return _plain_backward(grad, out, x, weights, layer, needs_input)
    grad_rows, grad_bias = as_rows(grad), grad.new_empty(0, dtype=torch.float32)
    if out is not None or needs_bias:
        grad_rows, grad_bias = bias_backward(grad_rows, None if out is None else as_rows(out))
    grad_pixels = grad_rows.view(len(grad), *grad.shape[2:], grad.shape[1])
    grad_x = x.new_empty(0)
    if needs_input:
        packed = _pack(weights, layer, x.dtype)
        kernels = _kernels(layer, packed.shape[1], x) if layer.num_filters % ALIGNMENT == 0 else gathered
        grad_x = _as_map(kernels.input_gradient(grad_pixels, packed, layer, *x.shape[2:]), x.shape[1])
    pixels = _pixels(x)
    kernels = _kernels(layer, pixels.shape[3], pixels)
    partial = kernels.weight_gradient(grad_pixels, pixels, layer, _num_processors(x.device))
    total = partial[0] if len(partial) == 1 else partial.sum(0)
    if pixels.shape[3] > x.shape[1]:
        total = total.view(-1, pixels.shape[3])[:, : x.shape[1]].flatten()
    return grad_x, total, grad_bias


@functools.cache
def _num_processors(device: torch.device) -> int:
    return 4 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def _margin(x: Tensor, weight: Tensor, before: tuple[int, int], layer: Layer) -> list[int]:
    """What `F.pad` adds to the input for one group, or crops."""
    after = []
    for axis in (0, 1):
        seen = (layer.size[axis] - 1) * layer.stride[axis] + layer.dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        after.append(seen - x.shape[2 + axis] - before[axis])
    return [before[1], after[1], before[0], after[0]]


def _plain(
    x: Tensor,
    weights: Sequence[Tensor],
    bias: Tensor | None,
    scale: Tensor | None,
    layer: Layer,
    relu: bool,
    pool: int,
) -> Tensor:
    """In PyTorch's own operations: what the kernels are held against."""
    parts = []
    for weight, before in zip(weights, layer.margins, strict=True):
        padded = F.pad(x, _margin(x, weight, before, layer))
        parts.append(F.conv2d(padded, weight.to(x.dtype), None, layer.stride, 0, layer.dilation))
    out = torch.cat(parts, 1)
    out = out if scale is None else out * scale[:, None, None]
    out = out if bias is None else out + bias[:, None, None]
    out = F.max_pool2d(out, pool) if pool > 1 else out
    return (out.relu() if relu else out).contiguous(memory_format=torch.channels_last)


def _plain_backward(
    grad: Tensor, out: Tensor | None, x: Tensor, weights: Sequence[Tensor], layer: Layer, needs_input: bool
) -> tuple[Tensor, Tensor, Tensor]:
    grad = grad if out is None else grad * (out > 0)
    grad_x, grad_weights = torch.zeros_like(x, memory_format=torch.channels_last), []
    for part, weight, before in zip(grad.split(list(layer.filters), 1), weights, layer.margins, strict=True):
        margin = _margin(x, weight, before, layer)
        geometry = (layer.stride, (0, 0), layer.dilation, False, (0, 0), 1, (True, True, False))
        grad_padded, grad_weight, _ = torch.ops.aten.convolution_backward(
            part.contiguous(), F.pad(x, margin), weight.to(x.dtype), None, *geometry
        )
        grad_x += F.pad(grad_padded, [-side for side in margin])
        grad_weights.append(grad_weight.permute(0, 2, 3, 1).flatten())
    return grad_x if needs_input else x.new_empty(0), torch.cat(grad_weights), grad.sum((0, 2, 3))
