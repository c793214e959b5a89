"""Triton kernels over rows and channels: a channels-last map [N, C, H, W] is a matrix of N·H·W rows and C columns.

Operations between two convolutions read and write whole maps and compute almost nothing, so their time is proportional
to the number of passes over memory. Each of the following is one pass here:

- the mask of the ReLU and the bias gradient, optionally with the gradient of a pool;
- the statistics of batch norm, and its scaling with the ReLU, one pass each;
- the backward passes of these two.

Sums over rows are computed in float32, in a fixed order: first per program, then over programs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrnas.layers.kernels.layer import unit

BLOCK_ROWS, BLOCK_COLS, NUM_WARPS = 64, 64, 4
STAGES = tl.constexpr(3)
"""Number of blocks that a program is loading at once."""
_SIZES = ["num_rows", "col_units", "rows_per_program", "height", "width", "full_height", "full_width"]
"""Arguments for which Triton does not specialise a kernel, so that new values need no compilation."""
PARTIALS = 256
"""Largest number of programs along the rows in kernels with sums, so that their partial sums fit into one block."""
PROGRAMS = 1024
"""Largest number of programs along the rows in other kernels."""


def as_rows(x: Tensor) -> Tensor:
    """A map [N, C, H, W] as [N·H·W, C]; not copied if channels are last in memory."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()


def as_map(rows: Tensor, number: int, height: int, width: int) -> Tensor:
    """The inverse of `as_rows`. It is not a view, because autograd forbids changing some views in place."""
    channels = rows.shape[1]
    size, stride = (number, channels, height, width), (height * width * channels, 1, width * channels, channels)
    return rows.new_empty(0).set_(rows.untyped_storage(), rows.storage_offset(), size, stride)


def empty_map(like: Tensor, channels: int, height: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised channels-last map with the same number of images as another map."""
    shape = (len(like), channels, height, width)
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device, memory_format=torch.channels_last)


@triton.jit(do_not_specialize=["num_rows", "num_cols", "full_rows", "full_cols"])
def _pad_kernel(
    x_ptr, out_ptr, num_rows, num_cols, full_rows, full_cols, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    cols = tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    exists = (rows < num_rows)[:, None] & (cols < num_cols)[None, :]
    value = tl.load(x_ptr + rows.to(tl.int64)[:, None] * num_cols + cols[None, :], mask=exists, other=0.0)
    inside = (rows < full_rows)[:, None] & (cols < full_cols)[None, :]
    tl.store(out_ptr + rows.to(tl.int64)[:, None] * full_cols + cols[None, :], value, mask=inside)


def pad(matrix: Tensor, rows: int, cols: int) -> Tensor:
    """A matrix with rows and columns of zeros added at its end; the same matrix if there are none to add.

    `F.pad` needs two kernels, one of them to write zeros everywhere.
    """
    if not rows and not cols:
        return matrix
    num_rows, num_cols = matrix.shape
    full_rows, full_cols = num_rows + rows, num_cols + cols
    out = matrix.new_empty(full_rows, full_cols)
    block_cols = min(BLOCK_COLS, triton.next_power_of_2(full_cols))
    block_rows = BLOCK_ROWS * BLOCK_COLS // block_cols
    _pad_kernel[(triton.cdiv(full_rows, block_rows), triton.cdiv(full_cols, block_cols))](
        matrix.contiguous(), out, num_rows, num_cols, full_rows, full_cols, block_rows, block_cols, num_warps=NUM_WARPS
    )
    return out


def _grid(num_rows: int, num_cols: int, most: int = PARTIALS) -> tuple[tuple[int, int], int]:
    """The number of programs along columns and rows (at most `most`), and the rows of each program."""
    blocks = triton.cdiv(triton.cdiv(num_rows, BLOCK_ROWS), most)
    rows_per_program = blocks * BLOCK_ROWS
    return (triton.cdiv(num_cols, BLOCK_COLS), triton.cdiv(num_rows, rows_per_program)), rows_per_program


@triton.jit
def _tile(start, num_rows, cols, num_cols, BLOCK_ROWS: tl.constexpr):
    """Offsets of a block of the matrix, and a mask of the offsets inside the matrix."""
    rows = start + tl.arange(0, BLOCK_ROWS)
    inside = (rows < num_rows)[:, None] & (cols < num_cols)[None, :]
    return rows.to(tl.int64)[:, None] * num_cols + cols[None, :], inside


@triton.jit
def _program(rows_per_program, BLOCK_COLS: tl.constexpr, FROM_END: tl.constexpr = False):
    """The number of this program along the rows, its first row, and its columns.

    With FROM_END, the last rows come first. They were written last, so they may still be in the cache.
    """
    program = tl.program_id(1)
    if FROM_END:
        program = tl.num_programs(1) - 1 - program
    return program, program * rows_per_program, tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)


@triton.jit
def load_masked(grad_ptr, out_ptr, at, inside, RELU: tl.constexpr):
    """A block of a gradient, with zeros where the output of the ReLU is zero."""
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0)
    if RELU:
        out = tl.load(out_ptr + at, mask=inside, other=0.0)
        grad = tl.where(out <= 0, tl.zeros_like(grad), grad)  # NaN passes, as in PyTorch
    return grad


@triton.jit(do_not_specialize=["num_partials", "num_cols"])
def _sum_kernel(
    partial_ptr, out_ptr, num_partials, num_cols, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr
):  # fmt: skip
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for start in range(0, num_partials, BLOCK_ROWS):
        at, inside = _tile(start, num_partials, cols, num_cols, BLOCK_ROWS)
        total += tl.load(partial_ptr + at, mask=inside, other=0.0)
    tl.store(out_ptr + cols, tl.sum(total, 0), mask=cols < num_cols)


def sum_partials(partial: Tensor) -> Tensor:
    """The sum of [partials, ...] over the first axis, in float32.

    PyTorch's own kernel takes twice as long for so few numbers.
    """
    num_partials, num_cols = len(partial), partial[0].numel()
    rows, cols = (256, 16) if num_partials > 32 else (16, 256)
    out = torch.empty_like(partial[0])
    _sum_kernel[(triton.cdiv(num_cols, cols),)](partial, out, num_partials, num_cols, rows, cols, num_warps=NUM_WARPS)
    return out


@triton.jit(do_not_specialize=_SIZES)
def _bias_kernel(
    grad_ptr, out_ptr, masked_ptr, sums_ptr, num_rows, col_units, rows_per_program,
    UNIT: tl.constexpr, RELU: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    num_cols = col_units * UNIT
    program, first, cols = _program(rows_per_program, BLOCK_COLS)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for start in tl.range(0, rows_per_program, BLOCK_ROWS, num_stages=STAGES):
        at, inside = _tile(first + start, num_rows, cols, num_cols, BLOCK_ROWS)
        grad = load_masked(grad_ptr, out_ptr, at, inside, RELU)
        if RELU:
            tl.store(masked_ptr + at, grad, mask=inside)
        total += grad.to(tl.float32)
    tl.store(sums_ptr + program * num_cols + cols, tl.sum(total, 0), mask=cols < num_cols)


def bias_backward(grad: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient, masked by the ReLU whose output is given (if any), and its sum over rows, the bias gradient."""
    num_rows, num_cols = grad.shape
    grid, rows_per_program = _grid(num_rows, num_cols)
    masked = grad if out is None else torch.empty_like(grad)
    sums = torch.empty(grid[1], num_cols, dtype=torch.float32, device=grad.device)
    _bias_kernel[grid](
        grad, grad if out is None else out, masked, sums, num_rows, num_cols // unit(num_cols), rows_per_program,
        unit(num_cols), out is not None, BLOCK_ROWS, BLOCK_COLS, num_warps=NUM_WARPS,
    )  # fmt: skip
    return masked, sum_partials(sums)


@triton.jit(do_not_specialize=_SIZES)
def _unpool_kernel(
    grad_ptr, out_ptr, winner_ptr, full_ptr, sums_ptr, num_rows, col_units, rows_per_program,
    height, width, full_height, full_width,
    UNIT: tl.constexpr, RELU: tl.constexpr, POOL: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    num_cols = col_units * UNIT
    program, first, cols = _program(rows_per_program, BLOCK_COLS)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for start in range(0, rows_per_program, BLOCK_ROWS):
        at, inside = _tile(first + start, num_rows, cols, num_cols, BLOCK_ROWS)
        grad = load_masked(grad_ptr, out_ptr, at, inside, RELU)
        total += grad.to(tl.float32)
        winner = tl.load(winner_ptr + at, mask=inside, other=0).to(tl.int32)
        position = first + start + tl.arange(0, BLOCK_ROWS)
        corner = (position // (height * width)).to(tl.int64) * full_height + position // width % height * POOL
        corner = (corner * full_width + position % width * POOL) * num_cols
        for i in tl.static_range(POOL * POOL):
            place = corner + (i // POOL * full_width + i % POOL) * num_cols
            full = tl.where(winner == i, grad, tl.zeros_like(grad))
            tl.store(full_ptr + place[:, None] + cols[None, :], full, mask=inside)
    tl.store(sums_ptr + program * num_cols + cols, tl.sum(total, 0), mask=cols < num_cols)


def unpool(
    grad: Tensor, out: Tensor | None, winner: Tensor, size: Sequence[int], full_size: Sequence[int], pool: int
) -> tuple[Tensor, Tensor]:
    """`bias_backward` combined with the gradient of a max pool of pool × pool without overlap.

    Each gradient goes to the position of the maximum. `size` and `full_size` are the rows and columns of the map after
    and before the pool. Returns the gradient [N·H·W, C] of the map before the pool, and the sums over rows.
    """
    num_rows, num_cols = grad.shape
    grid, rows_per_program = _grid(num_rows, num_cols)
    covered = all(after * pool == before for after, before in zip(size, full_size, strict=True))
    num_full = num_rows // (size[0] * size[1]) * full_size[0] * full_size[1]
    full = (torch.empty if covered else torch.zeros)(num_full, num_cols, dtype=grad.dtype, device=grad.device)
    sums = torch.empty(grid[1], num_cols, dtype=torch.float32, device=grad.device)
    _unpool_kernel[grid](
        grad, grad if out is None else out, winner, full, sums, num_rows, num_cols // unit(num_cols), rows_per_program,
        *size, *full_size, unit(num_cols), out is not None, pool, BLOCK_ROWS, BLOCK_COLS, num_warps=2 * NUM_WARPS,
    )  # fmt: skip
    return full, sum_partials(sums)


@triton.jit(do_not_specialize=_SIZES)
def _statistics_kernel(
    x_ptr, means_ptr, squares_ptr, num_rows, col_units, rows_per_program,
    UNIT: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations of a program's rows, relative to the first row to avoid cancellation."""
    num_cols = col_units * UNIT
    program, first, cols = _program(rows_per_program, BLOCK_COLS, True)
    origin = tl.load(x_ptr + first.to(tl.int64) * num_cols + cols, mask=cols < num_cols, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    squares = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for start in tl.range(0, rows_per_program, BLOCK_ROWS, num_stages=STAGES):
        at, inside = _tile(first + start, num_rows, cols, num_cols, BLOCK_ROWS)
        x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
        apart = tl.where(inside, x - origin[None, :], 0.0)
        total += apart
        squares += apart * apart
    number = tl.minimum(rows_per_program, num_rows - first).to(tl.float32)
    shift = tl.sum(total, 0) / number
    at_partial = program * num_cols + cols
    tl.store(means_ptr + at_partial, origin + shift, mask=cols < num_cols)
    tl.store(squares_ptr + at_partial, tl.sum(squares, 0) - shift * shift * number, mask=cols < num_cols)


@triton.jit
def _finish_statistics_kernel(
    means_ptr, squares_ptr, statistics_ptr, running_mean_ptr, running_variance_ptr, number_ptr,
    num_rows, num_cols, rows_per_program, num_partials, momentum, eps,
    PARTIALS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    """Combine partial statistics into mean and 1/deviation of all rows, and update running statistics."""
    partials = tl.arange(0, PARTIALS)
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    here = cols < num_cols
    at = partials[:, None] * num_cols + cols[None, :]
    inside = (partials < num_partials)[:, None] & here[None, :]
    means = tl.load(means_ptr + at, mask=inside, other=0.0)
    squares = tl.load(squares_ptr + at, mask=inside, other=0.0)
    number = tl.minimum(rows_per_program, num_rows - partials * rows_per_program)
    share = tl.where(partials < num_partials, number, 0).to(tl.float32)[:, None]
    mean = tl.sum(means * share, 0) / num_rows
    apart = tl.where(inside, means - mean[None, :], 0.0)
    variance = (tl.sum(squares, 0) + tl.sum(apart * apart * share, 0)) / num_rows
    tl.store(statistics_ptr + cols, mean, mask=here)
    tl.store(statistics_ptr + num_cols + cols, 1.0 / tl.sqrt(variance + eps), mask=here)
    unbiased = variance * (num_rows / tl.maximum(num_rows - 1.0, 1.0))
    running_mean = tl.load(running_mean_ptr + cols, mask=here, other=0.0)
    running_variance = tl.load(running_variance_ptr + cols, mask=here, other=0.0)
    tl.store(running_mean_ptr + cols, running_mean + momentum * (mean - running_mean), mask=here)
    tl.store(running_variance_ptr + cols, running_variance + momentum * (unbiased - running_variance), mask=here)
    if tl.program_id(0) == 0:
        tl.store(number_ptr, tl.load(number_ptr) + 1)


@triton.jit
def _load_affine(statistics_ptr, weight_ptr, bias_ptr, cols, num_cols):
    """Mean, 1/(standard deviation), scale and bias of some channels, each [1, channels]."""
    here = cols < num_cols
    mean = tl.load(statistics_ptr + cols, mask=here, other=0.0)
    rstd = tl.load(statistics_ptr + num_cols + cols, mask=here, other=0.0)
    scale = tl.load(weight_ptr + cols, mask=here, other=0.0).to(tl.float32) * rstd
    bias = tl.load(bias_ptr + cols, mask=here, other=0.0).to(tl.float32)
    return mean[None, :], rstd[None, :], scale[None, :], bias[None, :]


@triton.jit(do_not_specialize=_SIZES)
def _scale_kernel(
    x_ptr, statistics_ptr, weight_ptr, bias_ptr, out_ptr, num_rows, col_units, rows_per_program,
    UNIT: tl.constexpr, RELU: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    num_cols = col_units * UNIT
    _, first, cols = _program(rows_per_program, BLOCK_COLS)
    mean, _, scale, bias = _load_affine(statistics_ptr, weight_ptr, bias_ptr, cols, num_cols)
    for start in tl.range(0, rows_per_program, BLOCK_ROWS, num_stages=STAGES):
        at, inside = _tile(first + start, num_rows, cols, num_cols, BLOCK_ROWS)
        out = (tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) - mean) * scale + bias
        if RELU:
            out = tl.maximum(out, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


def statistics(x: Tensor, mean: Tensor, variance: Tensor, number: Tensor, momentum: float, eps: float) -> Tensor:
    """Mean and 1/deviation of [rows, C], as [2, C]. Running mean and variance and the number of batches are updated."""
    num_rows, num_cols = x.shape
    grid, rows_per_program = _grid(num_rows, num_cols)
    means, squares = torch.empty(2, grid[1], num_cols, dtype=torch.float32, device=x.device)
    result = torch.empty(2, num_cols, dtype=torch.float32, device=x.device)
    sizes = (num_rows, num_cols // unit(num_cols), rows_per_program, unit(num_cols))
    _statistics_kernel[grid](x, means, squares, *sizes, BLOCK_ROWS, BLOCK_COLS, num_warps=NUM_WARPS)
    _finish_statistics_kernel[(triton.cdiv(num_cols, 16),)](
        means, squares, result, mean, variance, number,
        num_rows, num_cols, rows_per_program, grid[1], momentum, eps, PARTIALS, 16,
    )  # fmt: skip
    return result


def norm_forward(x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, relu: bool) -> Tensor:
    """Batch norm of [rows, C] with the result of `statistics`, and an optional ReLU."""
    num_rows, num_cols = x.shape
    grid, rows_per_program = _grid(num_rows, num_cols, PROGRAMS)
    sizes = (num_rows, num_cols // unit(num_cols), rows_per_program, unit(num_cols))
    out = torch.empty_like(x)
    _scale_kernel[grid](x, statistics, weight, bias, out, *sizes, relu, BLOCK_ROWS, BLOCK_COLS, num_warps=NUM_WARPS)
    return out


@triton.jit
def _load_normed(grad_ptr, x_ptr, at, inside, mean, scale, bias, RELU: tl.constexpr):
    """A block of the gradient, masked by the ReLU after the norm (if any), and the input minus its mean."""
    grad = tl.load(grad_ptr + at, mask=inside, other=0.0).to(tl.float32)
    apart = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32) - mean
    if RELU:
        grad = tl.where(apart * scale + bias <= 0, 0.0, grad)
    return grad, apart


@triton.jit(do_not_specialize=_SIZES)
def _norm_sums_kernel(
    grad_ptr, x_ptr, statistics_ptr, weight_ptr, bias_ptr, sums_ptr,
    num_rows, col_units, rows_per_program,
    UNIT: tl.constexpr, RELU: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    """Sums over a program's rows: of the gradient, and of the gradient times the normalised input."""
    num_cols = col_units * UNIT
    program, first, cols = _program(rows_per_program, BLOCK_COLS, True)
    here = cols < num_cols
    mean, rstd, scale, bias = _load_affine(statistics_ptr, weight_ptr, bias_ptr, cols, num_cols)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    product = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for start in tl.range(0, rows_per_program, BLOCK_ROWS, num_stages=STAGES):
        at, inside = _tile(first + start, num_rows, cols, num_cols, BLOCK_ROWS)
        grad, apart = _load_normed(grad_ptr, x_ptr, at, inside, mean, scale, bias, RELU)
        total += grad
        product += grad * apart
    at_partial = 2 * program * num_cols + cols
    tl.store(sums_ptr + at_partial, tl.sum(product * rstd, 0), mask=here)
    tl.store(sums_ptr + at_partial + num_cols, tl.sum(total, 0), mask=here)


@triton.jit(do_not_specialize=_SIZES)
def _norm_backward_kernel(
    grad_ptr, x_ptr, statistics_ptr, weight_ptr, bias_ptr, sums_ptr, out_ptr,
    num_rows, col_units, rows_per_program,
    UNIT: tl.constexpr, RELU: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    num_cols = col_units * UNIT
    _, first, cols = _program(rows_per_program, BLOCK_COLS)
    here = cols < num_cols
    mean, rstd, scale, bias = _load_affine(statistics_ptr, weight_ptr, bias_ptr, cols, num_cols)
    slope = tl.load(sums_ptr + cols, mask=here, other=0.0)[None, :] * rstd * scale / num_rows
    level = tl.load(sums_ptr + num_cols + cols, mask=here, other=0.0)[None, :] * scale / num_rows
    for start in tl.range(0, rows_per_program, BLOCK_ROWS, num_stages=STAGES):
        at, inside = _tile(first + start, num_rows, cols, num_cols, BLOCK_ROWS)
        grad, apart = _load_normed(grad_ptr, x_ptr, at, inside, mean, scale, bias, RELU)
        out = grad * scale - level - apart * slope
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=inside)


def norm_backward(
    grad: Tensor, x: Tensor, statistics: Tensor, weight: Tensor, bias: Tensor, relu: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of `norm_forward`: of the input [rows, C], and of weight and bias as [2, C]."""
    num_rows, num_cols = x.shape
    units = unit(num_cols)
    blocks = (units, relu, BLOCK_ROWS, BLOCK_COLS)
    grid, rows_per_program = _grid(num_rows, num_cols)
    partial = torch.empty(grid[1], 2, num_cols, dtype=torch.float32, device=x.device)
    _norm_sums_kernel[grid](
        grad, x, statistics, weight, bias, partial, num_rows, num_cols // units, rows_per_program, *blocks,
        num_warps=NUM_WARPS,
    )  # fmt: skip
    sums, out = sum_partials(partial), torch.empty_like(x)
    grid, rows_per_program = _grid(num_rows, num_cols, PROGRAMS)
    _norm_backward_kernel[grid](
        grad, x, statistics, weight, bias, sums, out, num_rows, num_cols // units, rows_per_program, *blocks,
        num_warps=NUM_WARPS,
    )  # fmt: skip
    return out, sums
