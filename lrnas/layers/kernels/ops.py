"""The kernels as PyTorch operators that support tracing and autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.library import custom_op

from lrnas.layers.kernels import compute_dtype, convs, folding, pools, rows
from lrnas.layers.kernels.pools import Window

Ints = Sequence[int]


# --- convolution, bias, ReLU


@custom_op("lrnas::conv", mutates_args=())
def _conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Ints, dilation: Ints, relu: bool
) -> Tensor:
    return convs.conv_forward(x, weight, bias, stride, padding, dilation, relu)


@_conv.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Ints, dilation: Ints, relu: bool
) -> Tensor:
    return rows.empty_map(x, len(weight), *convs.output_size(x, weight.shape[2:], stride, padding, dilation))


@custom_op("lrnas::conv_backward", mutates_args=())
def _conv_backward(
    grad: Tensor,
    out: Tensor | None,
    x: Tensor,
    weight: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    needs_input: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return convs.conv_backward(grad, out, x, weight, stride, padding, dilation, needs_input, needs_bias)


@_conv_backward.register_fake
def _(
    grad: Tensor,
    out: Tensor | None,
    x: Tensor,
    weight: Tensor,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    needs_input: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    number, channels, height, width = weight.shape
    grad_weight = weight.new_empty(number, height, width, channels).permute(0, 3, 1, 2)
    grad_x = rows.empty_map(x, *x.shape[1:]) if needs_input else x.new_empty(0)
    has_sums = needs_bias or out is not None
    return grad_x, grad_weight, x.new_empty(number if has_sums else 0, dtype=torch.float32)


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, *ctx.geometry, ctx.relu = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(*(x, weight), *((output,) if ctx.relu else ()))


def _conv_autograd(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, *output = ctx.saved_tensors
    out = output[0] if ctx.relu else None
    needs_input = ctx.needs_input_grad[0]
    grad_x, grad_weight, grad_bias = _conv_backward(grad, out, x, weight, *ctx.geometry, needs_input, ctx.has_bias)
    return (
        grad_x if needs_input else None,
        grad_weight,
        grad_bias.to(weight.dtype) if ctx.has_bias else None,
        *(None, None, None, None),
    )


_conv.register_autograd(_conv_autograd, setup_context=_conv_setup)


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Ints, padding: Ints, dilation: Ints, relu: bool
) -> Tensor:
    """Convolution with an optional ReLU."""
    x, weight = x.to(compute_dtype(x)), weight.to(compute_dtype(weight))
    bias = bias if bias is None else bias.to(compute_dtype(bias))
    result: Tensor = _conv(x, weight, bias, stride, padding, dilation, relu)
    return result


# --- batch norm, ReLU


@custom_op("lrnas::statistics", mutates_args=("mean", "variance", "number"))
def _statistics(x: Tensor, mean: Tensor, variance: Tensor, number: Tensor, momentum: float, eps: float) -> Tensor:
    return rows.statistics(rows.as_rows(x), mean, variance, number, momentum, eps)


@_statistics.register_fake
def _(x: Tensor, mean: Tensor, variance: Tensor, number: Tensor, momentum: float, eps: float) -> Tensor:
    return x.new_empty(2, x.shape[1], dtype=torch.float32)


@custom_op("lrnas::batch_norm", mutates_args=())
def _batch_norm(x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    out = rows.norm_forward(rows.as_rows(x), statistics, weight, bias, relu)
    return rows.as_map(out, len(x), x.shape[2], x.shape[3])


@_batch_norm.register_fake
def _(x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    return rows.empty_map(x, *x.shape[1:])


@custom_op("lrnas::batch_norm_backward", mutates_args=())
def _batch_norm_backward(
    grad: Tensor, x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, relu: bool
) -> tuple[Tensor, Tensor]:
    grad_x, grads = rows.norm_backward(rows.as_rows(grad), rows.as_rows(x), statistics, weight, bias, relu)
    return rows.as_map(grad_x, len(x), x.shape[2], x.shape[3]), grads


@_batch_norm_backward.register_fake
def _(grad: Tensor, x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    return rows.empty_map(x, *x.shape[1:]), x.new_empty(2, x.shape[1], dtype=torch.float32)


def _norm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.relu = inputs
    ctx.save_for_backward(*tensors)


def _norm_autograd(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients; that of the input includes its effect on the statistics, which therefore have none."""
    grad_x, grads = _batch_norm_backward(grad, *ctx.saved_tensors, ctx.relu)
    return grad_x, None, grads[0], grads[1], None


_batch_norm.register_autograd(_norm_autograd, setup_context=_norm_setup)


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor, Tensor, Tensor],
    momentum: float,
    eps: float,
    relu: bool,
) -> Tensor:
    """Batch norm in training with an optional ReLU. It updates `running`: mean, variance and number of batches."""
    statistics = _statistics(x.detach(), *running, momentum, eps)
    out: Tensor = _batch_norm(x, statistics, weight, bias, relu)
    return out


@custom_op("lrnas::norm_factors", mutates_args=())
def _norm_factors(bias: Tensor | None, norm: Sequence[Tensor], eps: float) -> Tensor:
    with torch.cuda.device_of(norm[0]):
        return folding.norm_factors(bias, norm, eps)


@_norm_factors.register_fake
def _(bias: Tensor | None, norm: Sequence[Tensor], eps: float) -> Tensor:
    return norm[0].new_empty(2, len(norm[0]), dtype=torch.float32)


def norm_factors(bias: Tensor | None, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The scale and the shift of a batch norm in inference, in float32; the shift includes a bias before the norm."""
    factors: Tensor = _norm_factors(bias, *_constants(norm))
    return factors[0], factors[1]


@custom_op("lrnas::fold_norm", mutates_args=())
def _fold_norm(
    weight: Tensor, bias: Tensor | None, norm: Sequence[Tensor], eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    with torch.cuda.device_of(weight):
        return folding.fold_norm(weight, bias, norm, eps, dtype)


@_fold_norm.register_fake
def _(
    weight: Tensor, bias: Tensor | None, norm: Sequence[Tensor], eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    folded = torch.empty_like(weight.contiguous(memory_format=torch.channels_last), dtype=dtype)
    return folded, weight.new_empty(len(weight), dtype=dtype)


def fold_norm(weight: Tensor, bias: Tensor | None, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The weights and the bias of a convolution that includes the batch norm after it, in inference."""
    folded: tuple[Tensor, Tensor] = _fold_norm(weight, bias, *_constants(norm), compute_dtype(weight))
    return folded


def _constants(norm: nn.BatchNorm2d) -> tuple[list[Any], float]:
    return [norm.running_mean, norm.running_var, norm.weight, norm.bias], norm.eps


# --- pools


@custom_op("lrnas::max_pool", mutates_args=())
def _max_pool(x: Tensor, window: Ints, ceil_mode: bool) -> tuple[Tensor, Tensor]:
    return pools.max_forward(x, Window(*window), ceil_mode)


@_max_pool.register_fake
def _(x: Tensor, window: Ints, ceil_mode: bool) -> tuple[Tensor, Tensor]:
    height, width = (Window(*window).output_size(size, ceil_mode) for size in x.shape[2:])
    return rows.empty_map(x, x.shape[1], height, width), rows.empty_map(x, x.shape[1], height, width, torch.uint8)


@custom_op("lrnas::max_pool_backward", mutates_args=())
def _max_pool_backward(grad: Tensor, winner: Tensor, height: int, width: int, window: Ints) -> Tensor:
    return pools.max_backward(grad, winner, height, width, Window(*window))


@_max_pool_backward.register_fake
def _(grad: Tensor, winner: Tensor, height: int, width: int, window: Ints) -> Tensor:
    return rows.empty_map(grad, grad.shape[1], height, width)


def _max_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, ctx.window, _ = inputs
    ctx.size = x.shape[2:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _max_autograd(ctx: Any, grad: Tensor | None, winner: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return None, None, None
    return _max_pool_backward(grad, *ctx.saved_tensors, *ctx.size, ctx.window), None, None


_max_pool.register_autograd(_max_autograd, setup_context=_max_setup)


def max_pool(x: Tensor, window: Window, ceil_mode: bool) -> Tensor:
    """Max pool, as `F.max_pool2d`."""
    out: Tensor = _max_pool(x, window, ceil_mode)[0]
    return out


@custom_op("lrnas::average_pool", mutates_args=())
def _average_pool(x: Tensor, window: Ints, ceil_mode: bool, count_padding: bool) -> Tensor:
    return pools.average_forward(x, Window(*window), ceil_mode, count_padding)


@_average_pool.register_fake
def _(x: Tensor, window: Ints, ceil_mode: bool, count_padding: bool) -> Tensor:
    height, width = (Window(*window).output_size(size, ceil_mode) for size in x.shape[2:])
    return rows.empty_map(x, x.shape[1], height, width)


@custom_op("lrnas::average_pool_backward", mutates_args=())
def _average_pool_backward(grad: Tensor, height: int, width: int, window: Ints, count_padding: bool) -> Tensor:
    return pools.average_backward(grad, height, width, Window(*window), count_padding)


@_average_pool_backward.register_fake
def _(grad: Tensor, height: int, width: int, window: Ints, count_padding: bool) -> Tensor:
    return rows.empty_map(grad, grad.shape[1], height, width)


def _average_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, ctx.window, _, ctx.count_padding = inputs
    ctx.size = x.shape[2:]


def _average_autograd(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _average_pool_backward(grad, *ctx.size, ctx.window, ctx.count_padding), None, None, None


_average_pool.register_autograd(_average_autograd, setup_context=_average_setup)


def average_pool(x: Tensor, window: Window, ceil_mode: bool, count_padding: bool) -> Tensor:
    """Average pool, as `F.avg_pool2d`; `count_padding` is its `count_include_pad`."""
    out: Tensor = _average_pool(x, window, ceil_mode, count_padding)
    return out


@custom_op("lrnas::whole_max", mutates_args=())
def _whole_max(x: Tensor) -> tuple[Tensor, Tensor]:
    return pools.whole_max_forward(x)


@_whole_max.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    shape = (*x.shape[:2], 1, 1)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)


@custom_op("lrnas::whole_max_backward", mutates_args=())
def _whole_max_backward(grad: Tensor, winner: Tensor, height: int, width: int) -> Tensor:
    return pools.whole_max_backward(grad, winner, height, width)


@_whole_max_backward.register_fake
def _(grad: Tensor, winner: Tensor, height: int, width: int) -> Tensor:
    return rows.empty_map(grad, grad.shape[1], height, width)


def _whole_setup(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.size = inputs[0].shape[2:]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _whole_autograd(ctx: Any, grad: Tensor | None, winner: None) -> Tensor | None:
    return None if grad is None else _whole_max_backward(grad, *ctx.saved_tensors, *ctx.size)


_whole_max.register_autograd(_whole_autograd, setup_context=_whole_setup)


def whole_max(x: Tensor) -> Tensor:
    """The maximum of every channel, as a map of one position."""
    out: Tensor = _whole_max(x)[0]
    return out
