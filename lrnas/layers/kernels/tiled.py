"""Matrix products of a composite layer by kernels that copy boxes, for NVIDIA GPUs from Hopper on.

A program computes the outputs in a box of images × rows × columns. For each tap it needs a box of the input that has
the same size and is shifted by the position of the tap. The GPU copies this box at once and fills it with zeros beyond
the edge of the map, so no element needs its own address or mask. The stride must be 1, and the channels of a pixel must
fill a multiple of 16 bytes.

In each product, the weights are the left-hand factor and the box is the right-hand factor: in Triton, only the
right-hand factor can have several dimensions without a copy to registers. The result is therefore transposed.

Maps are stored as in `gathered`. In the forward pass, the weights of a group are a matrix [filters, taps × channels],
as they are in memory in the channels-last layout. The outputs of a group are written in boxes of their own, which end
with the last filter of the group.

In the backward pass, weights are packed as in `gathered`, with two kinds of additional zeros. A box of the gradient
must begin at a multiple of 16 bytes; if a group begins later, its box also has filters of the group before, and these
are multiplied by rows of zeros. Each tap ends with rows of zeros that fill its last block, so that no block of filters
reaches into the next tap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from lrnas.layers.kernels.blocks import Blocks, fitting
from lrnas.layers.kernels.epilogue import pool_and_clip, scale_and_shift
from lrnas.layers.kernels.layer import ALIGNMENT, Layer, precision, unit

MOST_GROUPS = 4
"""Largest number of groups of a layer for the forward kernel."""
_ALIGNMENT = tl.constexpr(ALIGNMENT)
_SIZES = ["filter_units", "box_rows", "channel_units", "number", "height", "width", "tiles_per_split"]


@triton.jit
def _corner(tile, height, width, BLOCK_IMAGES: tl.constexpr, BLOCK_HEIGHT: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """The first image, row and column of a box."""
    down, across = tl.cdiv(height, BLOCK_HEIGHT), tl.cdiv(width, BLOCK_WIDTH)
    return tile // (down * across) * BLOCK_IMAGES, tile // across % down * BLOCK_HEIGHT, tile % across * BLOCK_WIDTH


@triton.jit
def _load_weights(GROUP: tl.constexpr, box_0, box_1, box_2, box_3, row, col):
    if GROUP == 0:
        block = box_0.load([row, col])
    elif GROUP == 1:
        block = box_1.load([row, col])
    elif GROUP == 2:
        block = box_2.load([row, col])
    else:
        block = box_3.load([row, col])
    return block


@triton.jit
def _store_output(GROUP: tl.constexpr, box_0, box_1, box_2, box_3, image, row, col, own, block):
    if GROUP == 0:
        box_0.store([image, row, col, own], block)
    elif GROUP == 1:
        box_1.store([image, row, col, own], block)
    elif GROUP == 2:
        box_2.store([image, row, col, own], block)
    else:
        box_3.store([image, row, col, own], block)


@triton.jit(do_not_specialize=_SIZES)
def _forward_kernel(
    x_box, weight_0, weight_1, weight_2, weight_3, scale_ptr, bias_ptr,
    out_ptr, out_0, out_1, out_2, out_3, winner_ptr,
    filter_units, channel_units, number, height, width,
    KERNELS: tl.constexpr, MARGINS: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr,
    UNIT: tl.constexpr, FILTER_UNIT: tl.constexpr,
    HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, RELU: tl.constexpr, POOL: tl.constexpr, WINNER: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_IMAGES: tl.constexpr, BLOCK_HEIGHT: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    BLOCK_COLS: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """The forward product; `height` and `width` are the output's, before the pool."""
    channels = channel_units * UNIT
    num_blocks, num_filters = 0, 0
    for group in tl.static_range(len(KERNELS)):
        num_blocks += tl.cdiv(filter_units[group] * FILTER_UNIT, BLOCK_COLS)
        num_filters += filter_units[group] * FILTER_UNIT
    program = tl.program_id(0)
    block = program % num_blocks
    image, row, col = _corner(program // num_blocks, height, width, BLOCK_IMAGES, BLOCK_HEIGHT, BLOCK_WIDTH)
    num_steps = tl.cdiv(channels, BLOCK_INNER)
    first_filter = 0
    for group in tl.static_range(len(KERNELS)):
        own_filters = filter_units[group] * FILTER_UNIT
        own_blocks = tl.cdiv(own_filters, BLOCK_COLS)
        if (block >= 0) & (block < own_blocks):
            total = tl.zeros((BLOCK_COLS, BLOCK_IMAGES * BLOCK_HEIGHT * BLOCK_WIDTH), tl.float32)
            num_taps = KERNELS[group][0] * KERNELS[group][1]
            if len(TAPS) > 0:
                num_taps = len(TAPS)
            for step in range(num_taps * num_steps):
                tap = step // num_steps
                channel = (step - tap * num_steps) * BLOCK_INNER
                place_in_window = tap
                for i in tl.static_range(len(TAPS)):
                    place_in_window = tl.where(tap == i, TAPS[i], place_in_window)
                seen_row = row - MARGINS[group][0] + place_in_window // KERNELS[group][1] * DILATION[0]
                seen_col = col - MARGINS[group][1] + place_in_window % KERNELS[group][1] * DILATION[1]
                x = x_box.load([image, seen_row, seen_col, channel])
                x = x.reshape(BLOCK_IMAGES * BLOCK_HEIGHT * BLOCK_WIDTH, BLOCK_INNER)
                # a block of weights may reach into the next tap; there the pixels have zeros, after their last channel
                weight = _load_weights(
                    group, weight_0, weight_1, weight_2, weight_3, block * BLOCK_COLS, tap * channels + channel
                )
                total = tl.dot(weight, x.T, total, input_precision=PRECISION)
            total = total.T
            own = block * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
            exists = own < own_filters
            total = scale_and_shift(total, scale_ptr, bias_ptr, first_filter + own, exists, HAS_SCALE, HAS_BIAS)
            if POOL > 1:
                windows = total.reshape(
                    BLOCK_IMAGES * BLOCK_HEIGHT // POOL, POOL, BLOCK_WIDTH // POOL, POOL, BLOCK_COLS
                ).permute(0, 2, 1, 3, 4)
                windows = windows.reshape(
                    BLOCK_IMAGES * BLOCK_HEIGHT * BLOCK_WIDTH // (POOL * POOL), POOL * POOL, BLOCK_COLS
                )
            else:
                windows = total
            position = tl.arange(0, BLOCK_IMAGES * BLOCK_HEIGHT * BLOCK_WIDTH // (POOL * POOL))
            out_image = image + position // (BLOCK_HEIGHT * BLOCK_WIDTH // (POOL * POOL))
            out_row = row // POOL + position // (BLOCK_WIDTH // POOL) % (BLOCK_HEIGHT // POOL)
            out_col = col // POOL + position % (BLOCK_WIDTH // POOL)
            here = (out_image < number) & (out_row < height // POOL) & (out_col < width // POOL)
            here = here[:, None] & exists[None, :]
            place = out_image.to(tl.int64) * (height // POOL) * (width // POOL) + out_row * (width // POOL) + out_col
            out_at = (place * num_filters)[:, None] + (first_filter + own)[None, :]
            result = pool_and_clip(windows, winner_ptr, out_at, here, RELU, POOL, WINNER).to(out_ptr.dtype.element_ty)
            if FILTER_UNIT > 1:
                result = result.reshape(BLOCK_IMAGES, BLOCK_HEIGHT // POOL, BLOCK_WIDTH // POOL, BLOCK_COLS)
                _store_output(
                    group, out_0, out_1, out_2, out_3, image, row // POOL, col // POOL, block * BLOCK_COLS, result
                )
            else:  # groups may begin anywhere
                tl.store(out_ptr + out_at, result, mask=here)
        block -= own_blocks
        first_filter += own_filters


@triton.jit(do_not_specialize=_SIZES)
def _input_kernel(
    grad_box, weight_box, out_box, filter_units, box_rows,
    channel_units, height, width,
    KERNELS: tl.constexpr, MARGINS: tl.constexpr, DILATION: tl.constexpr,
    UNIT: tl.constexpr, FILTER_UNIT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_IMAGES: tl.constexpr, BLOCK_HEIGHT: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    BLOCK_COLS: tl.constexpr, BLOCK_INNER: tl.constexpr,
):  # fmt: skip
    """The input gradient, in one loop over the taps and filters of all groups; `height` and `width` are the input's."""
    channels = channel_units * UNIT
    num_blocks = tl.cdiv(channels, BLOCK_COLS)
    num_steps = 0
    for group in tl.static_range(len(KERNELS)):
        blocks = box_rows[group] // BLOCK_INNER
        num_steps += KERNELS[group][0] * KERNELS[group][1] * blocks
    program = tl.program_id(0)
    first_col = program % num_blocks * BLOCK_COLS
    image, row, col = _corner(program // num_blocks, height, width, BLOCK_IMAGES, BLOCK_HEIGHT, BLOCK_WIDTH)
    total = tl.zeros((BLOCK_COLS, BLOCK_IMAGES * BLOCK_HEIGHT * BLOCK_WIDTH), tl.float32)
    for step in range(num_steps):
        rest, own_blocks, first_filter, kernel_cols, top, left = step, 1, 0, 1, 0, 0
        steps_before, filters_before = 0, 0
        for group in tl.static_range(len(KERNELS)):  # find the group of this step, and its sizes
            blocks = box_rows[group] // BLOCK_INNER
            mine = step >= steps_before
            rest = tl.where(mine, step - steps_before, rest)
            own_blocks = tl.where(mine, blocks, own_blocks)
            # a box must begin at a multiple of 16 bytes; filters of the group before it are multiplied by zeros
            first_filter = tl.where(mine, filters_before // _ALIGNMENT * _ALIGNMENT, first_filter)
            kernel_cols = tl.where(mine, KERNELS[group][1], kernel_cols)
            top = tl.where(mine, MARGINS[group][0], top)
            left = tl.where(mine, MARGINS[group][1], left)
            steps_before += KERNELS[group][0] * KERNELS[group][1] * blocks
            filters_before += filter_units[group] * FILTER_UNIT
        tap = rest // own_blocks
        out_row = row + top - tap // kernel_cols * DILATION[0]
        out_col = col + left - tap % kernel_cols * DILATION[1]
        grad = grad_box.load([image, out_row, out_col, first_filter + (rest - tap * own_blocks) * BLOCK_INNER])
        grad = grad.reshape(BLOCK_IMAGES * BLOCK_HEIGHT * BLOCK_WIDTH, BLOCK_INNER)
        weight = weight_box.load([step * BLOCK_INNER, first_col])
        total = tl.dot(weight.T, grad.T, total, input_precision=PRECISION)
    total = total.T.reshape(BLOCK_IMAGES, BLOCK_HEIGHT, BLOCK_WIDTH, BLOCK_COLS)
    out_box.store([image, row, col, first_col], total.to(out_box.dtype))


@triton.jit(do_not_specialize=_SIZES)
def _weight_kernel(
    grad_ptr, x_box, out_ptr, filter_units,
    tiles_per_split, channel_units, number, height, width,
    KERNELS: tl.constexpr, MARGINS: tl.constexpr, DILATION: tl.constexpr,
    UNIT: tl.constexpr, FILTER_UNIT: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_IMAGES: tl.constexpr, BLOCK_HEIGHT: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr,
):  # fmt: skip
    """Partial sums [splits, weights]; a block has filters × channels of one tap.

    The weights of each group are [filters, rows, columns, channels]. `height` and `width` are the output's.
    """
    channels = channel_units * UNIT
    across = tl.cdiv(channels, BLOCK_COLS)
    num_blocks, num_weights, num_filters = 0, 0, 0
    for group in tl.static_range(len(KERNELS)):
        own_filters = filter_units[group] * FILTER_UNIT
        num_blocks += tl.cdiv(own_filters, BLOCK_ROWS) * KERNELS[group][0] * KERNELS[group][1] * across
        num_weights += own_filters * KERNELS[group][0] * KERNELS[group][1] * channels
        num_filters += own_filters
    program = tl.program_id(0)
    split = program // num_blocks
    block = program % num_blocks
    num_tiles = tl.cdiv(number, BLOCK_IMAGES) * tl.cdiv(height, BLOCK_HEIGHT) * tl.cdiv(width, BLOCK_WIDTH)
    begin = split * tiles_per_split
    end = tl.minimum(begin + tiles_per_split, num_tiles)
    out_ptr += split.to(tl.int64) * num_weights
    position = tl.arange(0, BLOCK_IMAGES * BLOCK_HEIGHT * BLOCK_WIDTH)[:, None]
    images = position // (BLOCK_HEIGHT * BLOCK_WIDTH)
    rows, cols = position // BLOCK_WIDTH % BLOCK_HEIGHT, position % BLOCK_WIDTH
    first_filter = 0
    for group in tl.static_range(len(KERNELS)):
        own_filters = filter_units[group] * FILTER_UNIT
        own_blocks = tl.cdiv(own_filters, BLOCK_ROWS) * KERNELS[group][0] * KERNELS[group][1] * across
        if (block >= 0) & (block < own_blocks):
            channel = block % across * BLOCK_COLS
            tap = block // across % (KERNELS[group][0] * KERNELS[group][1])
            first_own = block // across // (KERNELS[group][0] * KERNELS[group][1]) * BLOCK_ROWS
            row_step = tap // KERNELS[group][1] * DILATION[0] - MARGINS[group][0]
            col_step = tap % KERNELS[group][1] * DILATION[1] - MARGINS[group][1]
            own = first_own + tl.arange(0, BLOCK_ROWS)
            real = (own < own_filters)[None, :]
            place = ((images * height + rows) * width + cols) * num_filters + (first_filter + own)[None, :]
            total = tl.zeros((BLOCK_ROWS, BLOCK_COLS), tl.float32)
            for step in range(end - begin):
                image, row, col = _corner(begin + step, height, width, BLOCK_IMAGES, BLOCK_HEIGHT, BLOCK_WIDTH)
                here = real & (image + images < number) & (row + rows < height) & (col + cols < width)
                corner = ((image * height + row) * width + col).to(tl.int64) * num_filters
                grad = tl.load(grad_ptr + corner + place, mask=here, other=0.0)
                x = x_box.load([image, row + row_step, col + col_step, channel])
                x = x.reshape(BLOCK_IMAGES * BLOCK_HEIGHT * BLOCK_WIDTH, BLOCK_COLS)
                total = tl.dot(grad.T, x, total, input_precision=PRECISION)
            seen = channel + tl.arange(0, BLOCK_COLS)
            first = (own * (KERNELS[group][0] * KERNELS[group][1]) + tap) * channels
            exists = (own < own_filters)[:, None] & (seen < channels)[None, :]
            tl.store(out_ptr + first[:, None] + seen[None, :], total, mask=exists)
        block -= own_blocks
        first_filter += own_filters
        out_ptr += own_filters * (KERNELS[group][0] * KERNELS[group][1]) * channels


Box = tuple[int, int, int]


@functools.cache
def _box(length: int, number: int, height: int, width: int, least: int = 1) -> Box:
    """The box of `length` positions that covers a map with the least waste; its sides are powers of two.

    The smallest number of rows and of columns is `least`.
    """
    sides = [least << power for power in range(length.bit_length())]
    boxes = [
        (length // (rows * cols), rows, cols)
        for rows in sides
        for cols in sides
        if rows * cols <= length and max(rows, cols, length // (rows * cols)) <= 256
    ]

    def covered(box: Box) -> tuple[int, int, int]:
        return _num_tiles(box, number, height, width), box[0], abs(box[1] - box[2])

    return min(boxes, key=covered)


def _num_tiles(box: Box, number: int, height: int, width: int) -> int:
    return math.ceil(number / box[0]) * math.ceil(height / box[1]) * math.ceil(width / box[2])


def _describe(tensor: Tensor, *block: int) -> TensorDescriptor:
    """A descriptor of a contiguous tensor, for copies of blocks.

    The strides are computed here, because in PyTorch an axis of length 1 can have any stride.
    """
    strides = [math.prod(tensor.shape[axis + 1 :]) for axis in range(tensor.ndim)]
    aligned = tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()
    return TensorDescriptor(aligned, list(tensor.shape), strides, list(block))


def _describe_parts(out: Tensor, layer: Layer, *block: int) -> list[TensorDescriptor]:
    """Descriptors of the parts of an output map that belong to each group."""
    number, height, width, num_filters = out.shape
    strides = [height * width * num_filters, width * num_filters, num_filters, 1]
    shapes = [[number, height, width, num] for num in layer.filters]
    parts = out.split(list(layer.filters), 3)
    return [TensorDescriptor(part, shape, strides, list(block)) for part, shape in zip(parts, shapes, strict=True)]


def _four(boxes: list[TensorDescriptor]) -> list[TensorDescriptor]:
    """Exactly `MOST_GROUPS` descriptors, as a kernel needs them; the first is repeated for groups that do not exist."""
    return boxes + boxes[:1] * (MOST_GROUPS - len(boxes))


def forward(
    pixels: Tensor,
    matrices: Sequence[Tensor],
    layer: Layer,
    scale: Tensor | None,
    bias: Tensor | None,
    relu: bool,
    pool: int,
    winner: Tensor | None,
) -> Tensor:
    """The output map; `matrices` are the weights of each group, [filters, taps × channels].

    The position of the maximum in each pooling window is written to `winner`, if given.
    """
    number, _, _, channels = pixels.shape
    height, width = layer.size
    out = pixels.new_empty(number, height // pool, width // pool, layer.num_filters)

    def run(blocks: Blocks) -> None:
        box = _box(blocks.rows, number, height, width, pool)
        num_blocks = sum(triton.cdiv(num, blocks.cols) for num in layer.filters)
        weights = _four([_describe(matrix, blocks.cols, blocks.inner) for matrix in matrices])
        outs = weights
        if layer.filter_unit > 1:
            outs = _four(_describe_parts(out, layer, box[0], box[1] // pool, box[2] // pool, blocks.cols))
        _forward_kernel[(_num_tiles(box, number, height, width) * num_blocks,)](
            _describe(pixels, *box, blocks.inner), *weights,
            pixels if scale is None else scale, pixels if bias is None else bias,
            out, *outs, out if winner is None else winner, layer.filter_units,
            channels // unit(channels), number, height, width,
            layer.kernels, layer.margins, layer.taps if len(layer.taps) < layer.areas[0] else (), layer.dilation,
            unit(channels), layer.filter_unit,
            scale is not None, bias is not None, relu, pool, winner is not None, precision(pixels.dtype),
            *box, blocks.cols, blocks.inner, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip

    run(_forward_blocks(layer, channels))
    return out


def _forward_blocks(layer: Layer, channels: int) -> Blocks:
    """The blocks of the forward kernel: long if they need little padding, otherwise with more positions."""
    work, inner = layer.work((64, 128)), fitting([channels], (16, 32, 64))
    if work[128] <= 1.1 * work[64]:
        return Blocks(128, 128, inner, 4, 3)
    if work[128] <= 1.3 * work[64]:
        return Blocks(256, 128, inner, 8, 3)
    if channels == inner == 16:  # the result of `gathered.spread`
        return Blocks(256, 64, inner, 4, 4)
    return Blocks(256, 64, inner, 8, 2) if len(layer.filters) > 2 else Blocks(128, 64, inner, 4, 2)


def input_gradient(grad: Tensor, packed: Tensor, layer: Layer, height: int, width: int) -> Tensor:
    """The gradient of an input map with `height` rows and `width` columns."""
    number, channels = len(grad), packed.shape[1]
    out = grad.new_empty(number, height, width, channels)

    def run(blocks: Blocks) -> None:
        box = _box(blocks.rows, number, height, width)
        _input_kernel[(_num_tiles(box, number, height, width) * triton.cdiv(channels, blocks.cols),)](
            _describe(grad, *box, blocks.inner), _describe(packed, blocks.inner, blocks.cols),
            _describe(out, *box, blocks.cols), layer.filter_units, layer.box_rows,
            channels // unit(channels), height, width,
            layer.kernels, layer.margins, layer.dilation, unit(channels), layer.filter_unit,
            precision(grad.dtype), *box, blocks.cols, blocks.inner, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip

    run(Blocks(128, fitting([channels], (64, 128)), layer.filter_block, 4, 3))
    return out


def weight_gradient(grad: Tensor, pixels: Tensor, layer: Layer, num_programs: int) -> Tensor:
    """Partial sums of the weight gradient, [splits, weights]; each group is [filters, rows, columns, channels]."""
    number, _, _, channels = pixels.shape
    height, width = layer.size
    num_weights = sum(num * area for num, area in zip(layer.filters, layer.areas, strict=True)) * channels

    def run(blocks: Blocks) -> Tensor:
        box = _box(blocks.inner, number, height, width)
        num_tiles = _num_tiles(box, number, height, width)
        num_blocks = triton.cdiv(channels, blocks.cols) * sum(
            triton.cdiv(num, blocks.rows) * area for num, area in zip(layer.filters, layer.areas, strict=True)
        )
        splits = max(1, num_programs * (2 if blocks.warps == 4 else 1) // num_blocks)
        per_split = triton.cdiv(num_tiles, splits)
        splits = triton.cdiv(num_tiles, per_split)
        partial = torch.empty(splits, num_weights, dtype=torch.float32, device=grad.device)
        _weight_kernel[(num_blocks * splits,)](
            grad, _describe(pixels, *box, blocks.cols), partial, layer.filter_units,
            per_split, channels // unit(channels), number, height, width,
            layer.kernels, layer.margins, layer.dilation, unit(channels), layer.filter_unit, precision(grad.dtype),
            *box, blocks.rows, blocks.cols, num_warps=blocks.warps, num_stages=blocks.stages,
        )  # fmt: skip
        return partial

    work, cols = layer.work((64, 128)), 32 if channels <= 32 else fitting([channels], (64, 128, 256))
    wide = Blocks(128, 256, 64, 8, 3)
    rows = 128 if work[128] <= 1.45 * work[64] else 64
    default = wide if (rows, cols) == (128, 256) else Blocks(rows, cols, 64, 4, 3)
    if rows == 64 and cols <= 64:
        default = default._replace(inner=128)
    return run(default)
