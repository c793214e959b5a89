"""Matrix products of a composite layer by kernels that gather values, for any stride, number of channels and GPU.

Training needs three matrix products. Their operands are gathered while they are loaded, so only results are written:

- forward: positions × filters, over the taps and channels of a group; every block of filters belongs to one group and
  writes to its place in the concatenated output, with scale, bias, ReLU and pool applied;
- input gradient: positions × channels, over the filters and taps of all groups;
- weight gradient: filters × (taps and channels) of one group, over positions, which are split among programs whose
  partial sums are added in a fixed order.

Maps are contiguous [N, H, W, C]. Weights are rows of channels, ordered by group, tap and filter; each tap has rows of
zeros up to a multiple of `Layer.filter_block`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lrnas.layers.kernels.blocks import Blocks, fitting
from lrnas.layers.kernels.epilogue import pool_and_clip, scale_and_shift
from lrnas.layers.kernels.layer import Layer, precision, unit
from lrnas.layers.kernels.rows import as_rows, load_masked

_SIZES = [
    *("filter_units", "filter_rows", "num_positions", "positions_per_split", "channel_units"),
    *("height", "width", "out_height", "out_width"),
]
"""Arguments for which Triton does not specialise a kernel, so that new values need no compilation."""
PACKED_ROWS = 16
"""Rows of packed weights that a program writes. The rows of each tap are a multiple of this number."""
SPREAD = 1 << 14
"""Number of values that a program of `spread` writes."""
SUMS = 1 << 22
"""Number of partial sums that are cheap to add. Small layers are split until they have this number."""


@triton.jit
def _position(index, height, width):
    """Image, row and column of a position, given its index in a batch of maps."""
    return index // (height * width), index // width % height, index % width


@triton.jit(do_not_specialize=_SIZES)
def _forward_kernel(
    x_ptr, weight_ptr, scale_ptr, bias_ptr, out_ptr, winner_ptr, filter_units, filter_rows,
    num_positions, channel_units, height, width, out_height, out_width,
    KERNELS: tl.constexpr, MARGINS: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    UNIT: tl.constexpr, FILTER_UNIT: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr, POOL: tl.constexpr, WINNER: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """The forward product. Positions are ordered by pooling window; `out_height` and `out_width` are after the pool."""
    channels = channel_units * UNIT
    num_blocks, num_filters = 0, 0
    for group in tl.static_range(len(KERNELS)):
        num_blocks += tl.cdiv(filter_units[group] * FILTER_UNIT, BLOCK_COLS)
        num_filters += filter_units[group] * FILTER_UNIT
    program = tl.program_id(0)
    first = program // num_blocks * (BLOCK_ROWS // (POOL * POOL))
    block = program % num_blocks
    index = tl.arange(0, BLOCK_ROWS)
    image, row, col = _position(first + index // (POOL * POOL), out_height, out_width)
    row, col = row * POOL + index % (POOL * POOL) // POOL, col * POOL + index % POOL
    real = first + index // (POOL * POOL) < num_positions
    first_image = first // (out_height * out_width)
    x_ptr += first_image.to(tl.int64) * (height * width * channels)
    origin = (image - first_image) * (height * width)
    inner = tl.arange(0, BLOCK_INNER)
    first_filter, weight_row = 0, 0
    for group in tl.static_range(len(KERNELS)):
        own_filters = filter_units[group] * FILTER_UNIT
        own_blocks = tl.cdiv(own_filters, BLOCK_COLS)
        own_rows = filter_rows[group]
        if (block >= 0) & (block < own_blocks):
            in_row = row * STRIDE[0] - MARGINS[group][0]
            in_col = col * STRIDE[1] - MARGINS[group][1]
            place = (origin + in_row * width + in_col) * channels
            own = block * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
            exists = own < own_filters
            total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
            for step in range(tl.cdiv(KERNELS[group][0] * KERNELS[group][1] * channels, BLOCK_INNER)):
                at = step * BLOCK_INNER + inner
                within = at < KERNELS[group][0] * KERNELS[group][1] * channels
                tap, channel = at // channels, at % channels
                row_step, col_step = tap // KERNELS[group][1] * DILATION[0], tap % KERNELS[group][1] * DILATION[1]
                seen_row, seen_col = in_row[:, None] + row_step[None, :], in_col[:, None] + col_step[None, :]
                inside = (seen_row >= 0) & (seen_row < height) & (seen_col >= 0) & (seen_col < width)
                shift = (row_step * width + col_step) * channels + channel
                x = tl.load(
                    x_ptr + (place[:, None] + shift[None, :]),
                    mask=inside & real[:, None] & within[None, :], other=0.0,
                )  # fmt: skip
                taken = (weight_row + tap * own_rows) * channels + channel
                weight = tl.load(
                    weight_ptr + (taken[:, None] + (own * channels)[None, :]),
                    mask=exists[None, :] & within[:, None], other=0.0,
                )  # fmt: skip
                total = tl.dot(x, weight, total, input_precision=PRECISION)
            at_filter = first_filter + own
            total = scale_and_shift(total, scale_ptr, bias_ptr, at_filter, exists, HAS_SCALE, HAS_BIAS)
            if POOL > 1:  # noqa: SIM108  # Triton evaluates constant conditions in statements, not in expressions
                windows = total.reshape(BLOCK_ROWS // (POOL * POOL), POOL * POOL, BLOCK_COLS)
            else:
                windows = total
            position = first + tl.arange(0, BLOCK_ROWS // (POOL * POOL))
            here = (position < num_positions)[:, None] & exists[None, :]
            out_at = position.to(tl.int64)[:, None] * num_filters + at_filter[None, :]
            total = pool_and_clip(windows, winner_ptr, out_at, here, RELU, POOL, WINNER)
            tl.store(out_ptr + out_at, total.to(out_ptr.dtype.element_ty), mask=here)
        block -= own_blocks
        first_filter += own_filters
        weight_row += KERNELS[group][0] * KERNELS[group][1] * own_rows


@triton.jit(do_not_specialize=_SIZES)
def _input_kernel(
    grad_ptr, weight_ptr, out_ptr, filter_units, filter_rows,
    num_positions, channel_units, height, width, out_height, out_width,
    KERNELS: tl.constexpr, MARGINS: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    UNIT: tl.constexpr, FILTER_UNIT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """The gradient of the input [N, H, W, channels], in one loop over the taps and filters of all groups."""
    channels = channel_units * UNIT
    num_steps, num_filters = 0, 0
    for group in tl.static_range(len(KERNELS)):
        num_filters += filter_units[group] * FILTER_UNIT
        num_steps += KERNELS[group][0] * KERNELS[group][1] * tl.cdiv(filter_units[group] * FILTER_UNIT, BLOCK_INNER)
    num_blocks = tl.cdiv(channels, BLOCK_COLS)
    program = tl.program_id(0)
    first = program // num_blocks * BLOCK_ROWS
    positions = first + tl.arange(0, BLOCK_ROWS)
    real = positions < num_positions
    image, row, col = _position(positions, height, width)
    first_image = first // (height * width)
    grad_ptr += first_image.to(tl.int64) * (out_height * out_width * num_filters)
    origin = (image - first_image) * (out_height * out_width)
    cols = program % num_blocks * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    exists = cols < channels
    inner = tl.arange(0, BLOCK_INNER)

    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    for step in range(num_steps):
        # the group of this step, and its sizes
        rest, own_blocks, own_filters, own_rows, first_filter, first_row = step, 1, 0, 0, 0, 0
        kernel_cols, top, left = 1, 0, 0
        steps_before, filters_before, rows_before = 0, 0, 0
        for group in tl.static_range(len(KERNELS)):
            area = KERNELS[group][0] * KERNELS[group][1]
            blocks = tl.cdiv(filter_units[group] * FILTER_UNIT, BLOCK_INNER)
            mine = step >= steps_before
            rest = tl.where(mine, step - steps_before, rest)
            own_blocks = tl.where(mine, blocks, own_blocks)
            own_filters = tl.where(mine, filter_units[group] * FILTER_UNIT, own_filters)
            first_filter = tl.where(mine, filters_before, first_filter)
            own_rows = tl.where(mine, filter_rows[group], own_rows)
            first_row = tl.where(mine, rows_before, first_row)
            kernel_cols = tl.where(mine, KERNELS[group][1], kernel_cols)
            top = tl.where(mine, MARGINS[group][0], top)
            left = tl.where(mine, MARGINS[group][1], left)
            steps_before += area * blocks
            filters_before += filter_units[group] * FILTER_UNIT
            rows_before += filter_rows[group] * area
        tap = rest // own_blocks
        own = rest % own_blocks * BLOCK_INNER + inner
        out_row = row + top - tap // kernel_cols * DILATION[0]
        out_col = col + left - tap % kernel_cols * DILATION[1]
        inside = real & (out_row >= 0) & (out_col >= 0)
        if STRIDE[0] > 1:
            inside = inside & (out_row % STRIDE[0] == 0)
            out_row = out_row // STRIDE[0]
        if STRIDE[1] > 1:
            inside = inside & (out_col % STRIDE[1] == 0)
            out_col = out_col // STRIDE[1]
        inside = inside & (out_row < out_height) & (out_col < out_width)
        here = own < own_filters
        place = (origin + out_row * out_width + out_col) * num_filters + first_filter
        grad = tl.load(grad_ptr + (place[:, None] + own[None, :]), mask=inside[:, None] & here[None, :], other=0.0)
        taken = (first_row + tap * own_rows + own) * channels
        weight = tl.load(weight_ptr + (taken[:, None] + cols[None, :]), mask=here[:, None] & exists[None, :], other=0.0)
        total = tl.dot(grad, weight, total, input_precision=PRECISION)
    out = out_ptr + first.to(tl.int64) * channels + (tl.arange(0, BLOCK_ROWS)[:, None] * channels + cols[None, :])
    tl.store(out, total.to(out_ptr.dtype.element_ty), mask=real[:, None] & exists[None, :])


@triton.jit(do_not_specialize=_SIZES)
def _weight_kernel(
    grad_ptr, x_ptr, out_ptr, filter_units,
    num_positions, positions_per_split,
    channel_units, height, width, out_height, out_width,
    KERNELS: tl.constexpr, MARGINS: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    UNIT: tl.constexpr, FILTER_UNIT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """Partial sums [splits, weights] of the gradient of the packed weights; a block has filters of one group."""
    channels = channel_units * UNIT
    num_blocks, num_filters, num_weights = 0, 0, 0
    for group in tl.static_range(len(KERNELS)):
        num_filters += filter_units[group] * FILTER_UNIT
        length = KERNELS[group][0] * KERNELS[group][1] * channels
        num_weights += filter_units[group] * FILTER_UNIT * length
        num_blocks += tl.cdiv(filter_units[group] * FILTER_UNIT, BLOCK_ROWS) * tl.cdiv(length, BLOCK_COLS)
    program = tl.program_id(0)
    split = program // num_blocks
    block = program % num_blocks
    begin = split * positions_per_split
    end = tl.minimum(begin + positions_per_split, num_positions)
    out_ptr += split.to(tl.int64) * num_weights
    first_filter = 0
    for group in tl.static_range(len(KERNELS)):
        own_length = KERNELS[group][0] * KERNELS[group][1] * channels
        across = tl.cdiv(own_length, BLOCK_COLS)
        own_blocks = tl.cdiv(filter_units[group] * FILTER_UNIT, BLOCK_ROWS) * across
        if (block >= 0) & (block < own_blocks):
            own = block // across * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
            exists = own < filter_units[group] * FILTER_UNIT
            weights = block % across * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
            within = weights < own_length
            taps = weights // channels
            row_step = taps // KERNELS[group][1] * DILATION[0] - MARGINS[group][0]
            col_step = taps % KERNELS[group][1] * DILATION[1] - MARGINS[group][1]
            shift = (row_step * width + col_step) * channels + weights % channels
            total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
            for step in range(tl.cdiv(end - begin, BLOCK_INNER)):
                start = begin + step * BLOCK_INNER
                positions = start + tl.arange(0, BLOCK_INNER)
                real = positions < end
                image, row, col = _position(positions, out_height, out_width)
                first_image = start // (out_height * out_width)
                grad_at = tl.arange(0, BLOCK_INNER)[:, None] * num_filters + (first_filter + own)[None, :]
                grad = tl.load(
                    grad_ptr + start.to(tl.int64) * num_filters + grad_at,
                    mask=real[:, None] & exists[None, :], other=0.0,
                )  # fmt: skip
                in_row, in_col = row * STRIDE[0], col * STRIDE[1]
                seen_row, seen_col = in_row[:, None] + row_step[None, :], in_col[:, None] + col_step[None, :]
                inside = (seen_row >= 0) & (seen_row < height) & (seen_col >= 0) & (seen_col < width)
                place = ((image - first_image) * (height * width) + in_row * width + in_col) * channels
                x = tl.load(
                    x_ptr + first_image.to(tl.int64) * (height * width * channels)
                    + (place[:, None] + shift[None, :]),
                    mask=inside & real[:, None] & within[None, :], other=0.0,
                )  # fmt: skip
                total = tl.dot(tl.trans(grad), x, total, input_precision=PRECISION)
            out = out_ptr + own[:, None] * own_length + weights[None, :]
            tl.store(out, total, mask=exists[:, None] & within[None, :])
        block -= own_blocks
        first_filter += filter_units[group] * FILTER_UNIT
        out_ptr += filter_units[group] * FILTER_UNIT * own_length


@triton.jit(do_not_specialize=_SIZES)
def _pooled_weight_kernel(
    grad_ptr, relu_ptr, winner_ptr, x_ptr, out_ptr, sums_ptr, filter_units,
    num_positions, positions_per_split, channel_units, height, width, out_height, out_width,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr, UNIT: tl.constexpr, FILTER_UNIT: tl.constexpr,
    RELU: tl.constexpr, POOL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """`_weight_kernel` for one group whose output was pooled, and partial sums [splits, filters] for the bias.

    Positions are those after the pool. The input has its margins, so every window is inside of it.
    """
    channels, num_filters = channel_units * UNIT, filter_units * FILTER_UNIT
    length = KERNEL[0] * KERNEL[1] * channels
    across = tl.cdiv(length, BLOCK_COLS)
    num_blocks = tl.cdiv(num_filters, BLOCK_ROWS) * across
    split, block = tl.program_id(0) // num_blocks, tl.program_id(0) % num_blocks
    begin = split * positions_per_split
    end = tl.minimum(begin + positions_per_split, num_positions)
    own = block // across * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    exists = own < num_filters
    weights = block % across * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    taps = tl.minimum(weights, length - 1) // channels
    shift = (taps // KERNEL[1] * DILATION[0] * width + taps % KERNEL[1] * DILATION[1]) * channels
    shift += tl.minimum(weights, length - 1) % channels
    index = tl.arange(0, BLOCK_INNER)
    total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
    level = tl.zeros((BLOCK_INNER, BLOCK_ROWS), tl.float32)
    for step in range(tl.cdiv(end - begin, BLOCK_INNER)):
        start = begin + step * BLOCK_INNER
        at = start.to(tl.int64) * num_filters + (index[:, None] * num_filters + own[None, :])
        here = (start + index < end)[:, None] & exists[None, :]
        grad = load_masked(grad_ptr, relu_ptr, at, here, RELU)
        winner = tl.load(winner_ptr + at, mask=here, other=0).to(tl.int32)
        level += grad.to(tl.float32)
        # past the end, the last position is read again, where the gradient counts as zero
        image, row, col = _position(tl.minimum(start + index, end - 1), out_height, out_width)
        first_image = start // (out_height * out_width)
        images_ptr = x_ptr + first_image.to(tl.int64) * (height * width * channels)
        corner = (image - first_image) * height + row * (POOL * STRIDE[0])
        corner = (corner * width + col * (POOL * STRIDE[1])) * channels
        for place in tl.static_range(POOL * POOL):
            inner = (place // POOL * STRIDE[0] * width + place % POOL * STRIDE[1]) * channels
            x = tl.load(images_ptr + ((corner + inner)[:, None] + shift[None, :]))
            part = tl.where(winner == place, grad, tl.zeros_like(grad))
            total = tl.dot(tl.trans(part), x, total, input_precision=PRECISION)
    out = out_ptr + split.to(tl.int64) * num_filters * length + own[:, None] * length + weights[None, :]
    tl.store(out, total, mask=exists[:, None] & (weights < length)[None, :])
    if block % across == 0:
        tl.store(sums_ptr + split * num_filters + own, tl.sum(level, 0), mask=exists)


@triton.jit(do_not_specialize=["filters", "leads", "heights", "channels", "full_channels"])
def _pack_kernel(
    weights, out_ptr, filters, leads, heights, channels, full_channels,
    AREAS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    """Pack the weights of all groups; a program writes BLOCK rows, which belong to one tap."""
    first = tl.program_id(0) * BLOCK
    row = first  # within the group
    index, channel = tl.arange(0, BLOCK), tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    out_at = (first + index).to(tl.int64)[:, None] * full_channels + channel[None, :]
    for group in tl.static_range(len(AREAS)):
        if (row >= 0) & (row < heights[group] * AREAS[group]):
            tap, own = row // heights[group], row % heights[group] + index - leads[group]
            exists = ((own >= 0) & (own < filters[group]))[:, None] & (channel < channels)[None, :]
            at = (own * AREAS[group] + tap).to(tl.int64)[:, None] * channels + channel[None, :]
            value = tl.load(weights[group] + at, mask=exists, other=0.0)
            tl.store(out_ptr + out_at, value.to(out_ptr.dtype.element_ty), mask=(channel < full_channels)[None, :])
        row -= heights[group] * AREAS[group]


def pack(
    weights: Sequence[Tensor],
    layer: Layer,
    leads: Sequence[int],
    heights: Sequence[int],
    channels: int,
    dtype: torch.dtype,
) -> Tensor:
    """Packed weights: `heights` rows per tap of each group, zeros but for the filters, which begin at `leads`."""
    num_rows = sum(height * area for height, area in zip(heights, layer.areas, strict=True))
    packed = torch.empty(num_rows, channels, dtype=dtype, device=weights[0].device)
    block_cols = min(128, triton.next_power_of_2(channels))
    _pack_kernel[(num_rows // PACKED_ROWS, triton.cdiv(channels, block_cols))](
        tuple(as_rows(weight) for weight in weights), packed, layer.filters, tuple(leads), tuple(heights),
        weights[0].shape[1], channels, layer.areas, PACKED_ROWS, block_cols,
    )  # fmt: skip
    return packed


@triton.jit(do_not_specialize=["num_positions", "width", "out_width", "channels", "step", "margin"])
def _spread_kernel(
    x_ptr, out_ptr, num_positions, width, out_width, channels, step, margin,
    COLS: tl.constexpr, UNITS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK
    position = first + tl.arange(0, BLOCK)
    unit = tl.arange(0, UNITS)
    tap = unit // channels
    row = position // out_width
    col = position - row * out_width - margin
    seen = col[:, None] + (tap * step)[None, :]
    inside = (position < num_positions)[:, None] & (tap < COLS)[None, :] & (seen >= 0) & (seen < width)
    x_ptr += (first // out_width).to(tl.int64) * width * channels
    at = (((row - first // out_width) * width + col) * channels)[:, None]
    at += (tap * step * channels + unit % channels)[None, :]
    value = tl.load(x_ptr + at, mask=inside, other=0.0)
    out = out_ptr + first.to(tl.int64) * UNITS + (tl.arange(0, BLOCK)[:, None] * UNITS + unit[None, :])
    tl.store(out, value, mask=(position < num_positions)[:, None])


def spread(pixels: Tensor, out_width: int, cols: int, margin: int, step: int) -> Tensor:
    """A map in which the pixels of a row of the window are the channels of one pixel, and zeros up to a power of 2."""
    number, height, width, channels = pixels.shape
    units = max(16, triton.next_power_of_2(cols * channels))
    out = pixels.new_empty(number, height, out_width, units)
    num_positions, block = number * height * out_width, max(1, SPREAD // units)
    _spread_kernel[(triton.cdiv(num_positions, block),)](
        pixels, out, num_positions, width, out_width, channels, step, margin, cols, units, block
    )
    return out


def forward(
    pixels: Tensor,
    packed: Tensor,
    layer: Layer,
    scale: Tensor | None,
    bias: Tensor | None,
    relu: bool,
    pool: int,
    winner: Tensor | None,
) -> Tensor:
    """The output map. The position of the maximum in each pooling window is written to `winner`, if given."""
    number, height, width, channels = pixels.shape
    out_height, out_width = layer.size[0] // pool, layer.size[1] // pool
    out = pixels.new_empty(number, out_height, out_width, layer.num_filters)
    num_positions = number * out_height * out_width

    def run(blocks: Blocks) -> None:
        num_blocks = sum(triton.cdiv(num, blocks.cols) for num in layer.filters)
        _forward_kernel[(triton.cdiv(num_positions * pool * pool, blocks.rows) * num_blocks,)](
            pixels, packed, packed if scale is None else scale, packed if bias is None else bias, out,
            out if winner is None else winner, layer.filter_units, layer.filter_rows,
            num_positions, channels // unit(channels), height, width, out_height, out_width,
            layer.kernels, layer.margins, layer.stride, layer.dilation,
            unit(channels), layer.filter_unit,
            scale is not None, bias is not None, relu, pool, winner is not None, precision(pixels.dtype),
            blocks.rows, blocks.cols, blocks.inner, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip

    longest = max(layer.areas) * channels
    cols = fitting(layer.filters, (16, 32, 64, 128))
    inner = min(64 if pixels.element_size() == 2 else 32, max(16, triton.next_power_of_2(longest)))
    run(Blocks(64 if longest <= 64 else 128, cols, inner, 4, 3))
    return out


def input_gradient(grad: Tensor, packed: Tensor, layer: Layer, height: int, width: int) -> Tensor:
    """The gradient of an input map with `height` rows and `width` columns."""
    number, channels = len(grad), packed.shape[1]
    out = grad.new_empty(number, height, width, channels)
    num_positions = number * height * width

    def run(blocks: Blocks) -> None:
        _input_kernel[(triton.cdiv(num_positions, blocks.rows) * triton.cdiv(channels, blocks.cols),)](
            grad, packed, out, layer.filter_units, layer.filter_rows,
            num_positions, channels // unit(channels), height, width, *layer.size,
            layer.kernels, layer.margins, layer.stride, layer.dilation,
            unit(channels), layer.filter_unit, precision(grad.dtype),
            blocks.rows, blocks.cols, blocks.inner, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip

    run(Blocks(128, fitting([channels], (16, 32, 64, 128)), fitting(layer.filters, (16, 32)), 4, 3))
    return out


def weight_gradient(grad: Tensor, pixels: Tensor, layer: Layer, num_programs: int) -> Tensor:
    """Partial sums of the weight gradient, [splits, weights]; each group is [filters, rows, columns, channels]."""
    number, height, width, channels = pixels.shape
    num_positions = number * layer.size[0] * layer.size[1]
    lengths = [area * channels for area in layer.areas]
    num_weights = sum(num * length for num, length in zip(layer.filters, lengths, strict=True))

    def run(blocks: Blocks) -> Tensor:
        num_blocks = sum(
            triton.cdiv(num, blocks.rows) * triton.cdiv(length, blocks.cols)
            for num, length in zip(layer.filters, lengths, strict=True)
        )
        few_sums = max(num_programs // num_blocks, SUMS // num_weights)
        splits = max(1, min(8 * num_programs // num_blocks, few_sums))
        per_split = triton.cdiv(triton.cdiv(num_positions, splits), blocks.inner) * blocks.inner
        splits = triton.cdiv(num_positions, per_split)
        partial = torch.empty(splits, num_weights, dtype=torch.float32, device=grad.device)
        _weight_kernel[(num_blocks * splits,)](
            grad, pixels, partial, layer.filter_units, num_positions, per_split,
            channels // unit(channels), height, width, *layer.size,
            layer.kernels, layer.margins, layer.stride, layer.dilation,
            unit(channels), layer.filter_unit, precision(grad.dtype),
            blocks.rows, blocks.cols, blocks.inner, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip
        return partial

    inner = 32 if pixels.element_size() == 4 else 64
    return run(Blocks(fitting(layer.filters, (16, 32, 64)), fitting(lengths, (16, 32, 64, 128)), inner, 4, 3))


def pooled_weight_gradient(
    grad: Tensor, out: Tensor | None, winner: Tensor, pixels: Tensor, layer: Layer, pool: int, num_programs: int
) -> tuple[Tensor, Tensor]:
    """`weight_gradient` and the bias gradient of a layer of one group, from the gradient after its ReLU and its pool.

    So the gradient before the pool, which has pool × pool as many values, is neither written nor read.

    Args:
        grad: The gradient after the pool, [positions, filters].
        out: The output after the ReLU, in the same layout; None if there is no ReLU.
        winner: The position of the maximum in each window of the pool.
        pixels: The input with its margins, [N, H, W, channels].
        layer: The layer.
        pool: Rows and columns of a window.
        num_programs: Number of programs that the GPU runs at the same time.

    Returns:
        Partial sums of both, [splits, weights] and [splits, filters].
    """
    height, width, channels = pixels.shape[1:]
    num_positions, num_filters = grad.shape
    length = layer.areas[0] * channels

    def run(blocks: Blocks) -> tuple[Tensor, Tensor]:
        num_blocks = triton.cdiv(num_filters, blocks.rows) * triton.cdiv(length, blocks.cols)
        splits = max(1, 8 * num_programs // num_blocks)
        per_split = triton.cdiv(triton.cdiv(num_positions, splits), blocks.inner) * blocks.inner
        splits = triton.cdiv(num_positions, per_split)
        partial, sums = (
            torch.empty(splits, number, dtype=torch.float32, device=grad.device)
            for number in (num_filters * length, num_filters)
        )
        _pooled_weight_kernel[(num_blocks * splits,)](
            grad, grad if out is None else out, winner, pixels, partial, sums, layer.filter_units[0],
            num_positions, per_split, channels // unit(channels), height, width,
            layer.size[0] // pool, layer.size[1] // pool,
            layer.kernels[0], layer.stride, layer.dilation, unit(channels), layer.filter_unit,
            out is not None, pool, precision(grad.dtype),
            blocks.rows, blocks.cols, blocks.inner, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip
        return partial, sums

    return run(Blocks(fitting(layer.filters, (16, 32, 64)), fitting([length], (16, 32, 64, 128)), 32, 4, 3))
