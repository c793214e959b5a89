"""Convolution with bias and ReLU on channels-last maps, by the library kernel that is fastest for its shape.

A 1×1 convolution is computed as one matrix product. A convolution with few input channels is too, after its patches are
copied into the rows of a matrix. Bias and ReLU are part of the product. Other convolutions are left to cuDNN.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from lrnas.layers.kernels import FEW_CHANNELS
from lrnas.layers.kernels.rows import as_map, as_rows, bias_backward, pad

ALIGNMENT = 8
"""Matrix products are slow if a row of a matrix is not a multiple of 16 bytes, 8 values in half precision."""
PATCH_ROWS = 32


@triton.jit
def _patches_kernel(
    x_ptr, out_ptr, num_rows, height, width, out_height, out_width, num_cols,
    WORDS: tl.constexpr, KERNEL_ROWS: tl.constexpr, KERNEL_COLS: tl.constexpr,
    STRIDE_ROWS: tl.constexpr, STRIDE_COLS: tl.constexpr, PAD_ROWS: tl.constexpr, PAD_COLS: tl.constexpr,
    STEP_ROWS: tl.constexpr, STEP_COLS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    """Copy the pixels of each patch into one row. A pixel consists of WORDS words of 8 bytes."""
    position = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    col = tl.arange(0, BLOCK_COLS)
    tap_row, tap_col = col // WORDS // KERNEL_COLS * STEP_ROWS, col // WORDS % KERNEL_COLS * STEP_COLS
    row = position // out_width % out_height * STRIDE_ROWS - PAD_ROWS
    column = position % out_width * STRIDE_COLS - PAD_COLS
    image = (position // (out_height * out_width)).to(tl.int64)
    # an address is a number of the row plus a number of the column, so that each element needs only one addition
    origin = image * (height * width * WORDS) + (row * width + column) * WORDS
    step = (tap_row * width + tap_col) * WORDS + col % WORDS
    in_row, in_col = row[:, None] + tap_row[None, :], column[:, None] + tap_col[None, :]
    inside = (in_row >= 0) & (in_row < height) & (in_col >= 0) & (in_col < width)
    exists = (position < num_rows)[:, None]
    real = exists & (col < KERNEL_ROWS * KERNEL_COLS * WORDS)[None, :]
    value = tl.load(x_ptr + (origin[:, None] + step[None, :]), mask=inside & real, other=0)
    at = position.to(tl.int64)[:, None] * num_cols + col[None, :]
    tl.store(out_ptr + at, value, mask=exists & (col < num_cols)[None, :])


def _patches(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """The patches of all output positions, [N·H·W, rows·columns·4], with 4 channels per pixel.

    Missing channels are zeros, and each row has zeros up to a multiple of 16 bytes.
    """
    number, channels, height, width = x.shape
    pixels = pad(as_rows(x), 0, FEW_CHANNELS - channels).view(torch.int64)
    words = pixels.shape[1]
    out_height, out_width = output_size(x, kernel, stride, padding, dilation)
    num_cols = triton.cdiv(kernel[0] * kernel[1] * words, 2) * 2
    num_rows = number * out_height * out_width
    out = torch.empty(num_rows, num_cols, dtype=torch.int64, device=x.device)
    _patches_kernel[(triton.cdiv(num_rows, PATCH_ROWS),)](
        pixels, out, num_rows, height, width, out_height, out_width, num_cols,
        words, *kernel, *stride, *padding, *dilation, PATCH_ROWS, triton.next_power_of_2(num_cols),
    )  # fmt: skip
    return out.view(x.dtype)


def output_size(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, int]:
    """Rows and columns of a convolution's output."""
    height, width = (
        (x.shape[2 + axis] + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        for axis in (0, 1)
    )
    return height, width


def _is_product(weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
    return tuple(weight.shape[2:]) == (1, 1) and set(stride) == {1} and set(padding) == {0}


def _weight_rows(weight: Tensor) -> Tensor:
    """Weights as [filters, rows·columns·channels], with the zeros of patches, and a multiple of 8 rows."""
    taps, spare = as_rows(weight), 0
    if weight.shape[1] <= FEW_CHANNELS:
        taps = pad(taps, 0, FEW_CHANNELS - weight.shape[1])
        length = taps.numel() // len(weight)
        spare = -length * weight.element_size() % 16 // weight.element_size()
    return pad(taps.view(len(weight), -1), _missing(weight), spare)


def _missing(weight: Tensor) -> int:
    """The number of filters that are missing to a multiple of 8."""
    return -len(weight) % ALIGNMENT


def _input_rows(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor | None:
    """The matrix whose product with the weights is the convolution; None if the convolution is left to cuDNN."""
    kernel = weight.shape[2:]
    if weight.shape[1] <= FEW_CHANNELS:
        return _patches(x, kernel, stride, padding, dilation)
    return as_rows(x) if _is_product(weight, stride, padding) else None


def conv_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    relu: bool,
) -> Tensor:
    """The output of the convolution as a channels-last map."""
    rows = _input_rows(x, weight, stride, padding, dilation)
    if rows is None:
        x, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
        if relu and bias is not None and x.is_cuda:
            return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, 1)
        out = F.conv2d(x, weight, bias, stride, padding, dilation).contiguous(memory_format=torch.channels_last)
        return out.relu_() if relu else out
    matrix = _weight_rows(weight)
    if bias is not None:
        bias = pad(bias[None], 0, _missing(weight))[0]
        out = (torch._addmm_activation if relu else torch.addmm)(bias, rows, matrix.T)
    else:
        out = rows @ matrix.T
        out = out.relu_() if relu else out
    if len(matrix) > len(weight):
        out = out[:, : len(weight)].contiguous()
    return as_map(out, len(x), *output_size(x, weight.shape[2:], stride, padding, dilation))


def conv_backward(
    grad: Tensor,
    out: Tensor | None,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    needs_input: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input, the weight and the bias; empty if not needed. `out` is the output if there is a ReLU."""
    grad_rows, grad_bias = as_rows(grad), grad.new_empty(0, dtype=torch.float32)
    if out is not None or needs_bias:
        grad_rows, grad_bias = bias_backward(grad_rows, None if out is None else as_rows(out))
    rows = None
    if not needs_input or _is_product(weight, stride, padding):
        rows = _input_rows(x, weight, stride, padding, dilation)
    if rows is None:
        x, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
        grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
            as_map(grad_rows, len(grad), grad.shape[2], grad.shape[3]),
            *(x, weight, None, stride, padding, dilation, False, [0, 0], 1, [needs_input, True, False]),
        )
        grad_x = grad_x.contiguous(memory_format=torch.channels_last) if needs_input else grad.new_empty(0)
        return grad_x, grad_weight.contiguous(memory_format=torch.channels_last), grad_bias
    grad_rows = pad(grad_rows, 0, _missing(weight))
    grad_x = grad.new_empty(0)
    if needs_input:
        grad_inputs = (grad_rows @ _weight_rows(weight))[:, : x.shape[1]]  # without the zeros of few channels
        grad_x = as_map(grad_inputs.contiguous(), len(x), x.shape[2], x.shape[3])
    number, channels, height, width = weight.shape
    depth = FEW_CHANNELS if channels <= FEW_CHANNELS else channels
    taps = (grad_rows.T @ rows)[:number, : height * width * depth].reshape(number, height, width, depth)
    grad_weight = taps[..., :channels].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    return grad_x, grad_weight, grad_bias
