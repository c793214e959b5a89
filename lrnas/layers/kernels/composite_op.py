"""The composite convolution as a PyTorch operator that supports tracing and autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from lrnas.layers.kernels import composite, compute_dtype
from lrnas.layers.kernels.layer import Layer
from lrnas.layers.kernels.rows import empty_map

Ints = Sequence[int]


def _layer(
    weights: Sequence[Tensor], margins: Ints, stride: Ints, dilation: Ints, size: Ints, taps: Ints | None
) -> Layer:
    return Layer(
        tuple(len(weight) for weight in weights),
        tuple((weight.shape[2], weight.shape[3]) for weight in weights),
        tuple(zip(margins[::2], margins[1::2], strict=True)),
        (stride[0], stride[1]),
        (dilation[0], dilation[1]),
        (size[0], size[1]),
        tuple(taps or ()),
    )


@custom_op("lrnas::composite", mutates_args=())
def _composite(
    x: Tensor,
    weights: Sequence[Tensor],
    bias: Tensor | None,
    scale: Tensor | None,
    margins: Ints,
    stride: Ints,
    dilation: Ints,
    size: Ints,
    taps: Ints | None,
    relu: bool,
    pool: int,
    keep_winner: bool,
) -> tuple[Tensor, Tensor]:
    layer = _layer(weights, margins, stride, dilation, size, taps)
    with torch.cuda.device_of(x):
        return composite.forward(x, weights, bias, scale, layer, relu, pool, keep_winner)


@_composite.register_fake
def _(
    x: Tensor,
    weights: Sequence[Tensor],
    bias: Tensor | None,
    scale: Tensor | None,
    margins: Ints,
    stride: Ints,
    dilation: Ints,
    size: Ints,
    taps: Ints | None,
    relu: bool,
    pool: int,
    keep_winner: bool,
) -> tuple[Tensor, Tensor]:
    shape = (sum(len(weight) for weight in weights), size[0] // pool, size[1] // pool)
    winner = empty_map(x, *shape, torch.uint8) if keep_winner else x.new_empty(0, dtype=torch.uint8)
    return empty_map(x, *shape), winner


@custom_op("lrnas::composite_backward", mutates_args=())
def _composite_backward(
    grad: Tensor,
    out: Tensor | None,
    winner: Tensor | None,
    x: Tensor,
    weights: Sequence[Tensor],
    margins: Ints,
    stride: Ints,
    dilation: Ints,
    size: Ints,
    taps: Ints | None,
    pool: int,
    needs_input: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    layer = _layer(weights, margins, stride, dilation, size, taps)
    with torch.cuda.device_of(x):
        return composite.backward(grad, out, winner, x, weights, layer, pool, needs_input, needs_bias)


@_composite_backward.register_fake
def _(
    grad: Tensor,
    out: Tensor | None,
    winner: Tensor | None,
    x: Tensor,
    weights: Sequence[Tensor],
    margins: Ints,
    stride: Ints,
    dilation: Ints,
    size: Ints,
    taps: Ints | None,
    pool: int,
    needs_input: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    exact = x.dtype if x.dtype == torch.float64 else torch.float32
    has_sums = exact == torch.float64 or needs_bias or out is not None or winner is not None
    return (
        empty_map(x, *x.shape[1:]) if needs_input else x.new_empty(0),
        x.new_empty(sum(weight.numel() for weight in weights), dtype=exact),
        x.new_empty(grad.shape[1] if has_sums else 0, dtype=exact),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weights, bias, scale, *ctx.geometry, ctx.relu, ctx.pool, keep_winner = inputs
    if scale is not None or (ctx.pool > 1 and not keep_winner):
        raise RuntimeError("a composite convolution with a scale, or a pool without winners, is only for inference")
    out, winner = output
    ctx.mark_non_differentiable(winner)
    ctx.set_materialize_grads(False)  # winners have no gradients, so no zeros are needed for them
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, *weights, *((out,) if ctx.relu else ()), *((winner,) if keep_winner else ()))


def _autograd(ctx: Any, grad: Tensor | None, _: None) -> tuple[Any, ...]:
    x, *weights = ctx.saved_tensors
    winner = weights.pop() if ctx.pool > 1 else None
    out = weights.pop() if ctx.relu else None
    if grad is None:
        return None, [None] * len(weights), *(None,) * 10
    needs_input = ctx.needs_input_grad[0]
    grad_x, packed, grad_bias = _composite_backward(
        grad, out, winner, x, weights, *ctx.geometry, ctx.pool, needs_input, ctx.has_bias
    )
    grad_weights = []
    for part, weight in zip(packed.split([weight.numel() for weight in weights]), weights, strict=True):
        number, channels, height, width = weight.shape
        grad_weights.append(part.view(number, height, width, channels).permute(0, 3, 1, 2).to(weight.dtype))
    return (
        grad_x if needs_input else None,
        grad_weights,
        grad_bias if ctx.has_bias else None,
        *(None,) * 9,
    )


_composite.register_autograd(_autograd, setup_context=_setup)


def composite_conv(
    x: Tensor,
    weights: Sequence[Tensor],
    bias: Tensor | None,
    layer: Layer,
    *,
    relu: bool = False,
    scale: Tensor | None = None,
    pool: int = 1,
) -> Tensor:
    """Convolve with groups of filters side by side and, in the same pass, compute an epilogue.

    Args:
        x: The map, [number, channels, rows, columns].
        weights: The filters of each group; they may have a higher precision than the map.
        bias: The bias of every filter, or None.
        layer: The geometry of the groups.
        relu: Apply a ReLU, as the last step.
        scale: A factor for every filter, applied before the bias; only for inference.
        pool: Max-pool windows of pool × pool, before the ReLU; 1 for no pool.

    Returns:
        The outputs of all groups, concatenated.
    """
    if min(layer.size) < pool or pool & (pool - 1):
        raise RuntimeError(
            f"a pool must have 1, 2, 4, ... rows and columns and fit into the map; got "
            f"{pool}x{pool} of {layer.size[0]}x{layer.size[1]}"
        )
    x = x.to(compute_dtype(x))
    exact = x.dtype if x.dtype == torch.float64 else torch.float32
    bias, scale = (None if tensor is None else tensor.to(exact) for tensor in (bias, scale))
    margins = [number for margin in layer.margins for number in margin]
    keep_winner = pool > 1 and torch.is_grad_enabled()
    geometry = (margins, layer.stride, layer.dilation, layer.size, layer.taps or None)
    out: Tensor = _composite(x, list(weights), bias, scale, *geometry, relu, pool, keep_winner)[0]
    return out
