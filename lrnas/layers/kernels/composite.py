"""Composite convolution and its gradients: prepares the operands and calls the kernels that fit a layer.

See `layer` for the words tap, box and packed weights.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from lrnas.layers.kernels import FEW_CHANNELS, LONGEST_PATCH, convs, gathered, tiled
from lrnas.layers.kernels.layer import ALIGNMENT, Layer, Pair
from lrnas.layers.kernels.rows import as_rows, bias_backward, empty_map, pad, sum_partials, unpool

LONGEST_WINDOW = 128
"""Largest number of values in a window for which it is fastest to gather the values one by one."""
SHORT_WINDOW = 32
"""The same for the weight gradient: so many values fit into one block, so the gradient of the output is read once."""


def _aligned(channels: int) -> int:
    return channels if channels <= FEW_CHANNELS else channels + -channels % ALIGNMENT


def _pixels(x: Tensor) -> Tensor:
    """A map as contiguous [N, H, W, C], with zeros up to a multiple of eight channels."""
    number, channels, height, width = x.shape
    return pad(as_rows(x), 0, _aligned(channels) - channels).view(number, height, width, -1)


def _as_map(pixels: Tensor, channels: int) -> Tensor:
    """The inverse of `_pixels`: a channels-last map without the added channels."""
    out = pixels[..., :channels].permute(0, 3, 1, 2)
    return out.contiguous(memory_format=torch.channels_last)


def _pack(weights: Sequence[Tensor], layer: Layer, dtype: torch.dtype, *, boxes: bool = False) -> Tensor:
    """Pack weights into rows of channels, ordered by group, tap and filter; rows of zeros fill the last block of a tap.

    With `boxes`, there are also rows of zeros before a group whose box begins with filters of another group
    (`Layer.leads`).
    """
    leads, heights = (layer.leads, layer.box_rows) if boxes else ((0,) * len(weights), layer.filter_rows)
    return gathered.pack(weights, layer, leads, heights, _aligned(weights[0].shape[1]), dtype)


def _matrices(weights: Sequence[Tensor], layer: Layer, dtype: torch.dtype) -> list[Tensor]:
    """Weights of every group as [filters, taps × channels].

    They are not copied if they have the right dtype and the channels-last layout.
    """
    missing = _aligned(weights[0].shape[1]) - weights[0].shape[1]
    taps = [weight.permute(0, 2, 3, 1).flatten(1, 2) for weight in weights]
    if layer.taps:
        taps = [torch.stack([taps[0][:, tap] for tap in layer.taps], 1)]
    if missing:
        taps = [F.pad(tap, (0, missing)) for tap in taps]
    # one kernel for all of them (`torch._foreach_copy_`) takes longer, because it uses few processors of the GPU
    return [tap.to(dtype, memory_format=torch.contiguous_format).flatten(1) for tap in taps]


@functools.cache
def _copies_boxes(device: torch.device) -> bool:
    """Whether a GPU can copy boxes and has enough shared memory for several boxes."""
    if device.type == "cpu":  # in tests, with Triton's interpreter
        return True
    properties = torch.cuda.get_device_properties(device)
    usual = 227 << 10 if properties.major in (9, 10) else 0  # if PyTorch does not report it
    return properties.major >= 9 and getattr(properties, "shared_memory_per_block_optin", usual) >= 200 << 10


def _kernels(layer: Layer, channels: int, like: Tensor) -> ModuleType:
    """The module with the kernels for a layer: `tiled` if the GPU can copy boxes and the sizes allow it."""
    fits = layer.stride == (1, 1) and channels % ALIGNMENT == 0 and like.element_size() == 2
    return tiled if fits and _copies_boxes(like.device) else gathered


def _merged(layer: Layer, channels: int) -> Layer:
    """A layer with few input channels as one group, whose common window contains the filters of all groups.

    In such a layer, writing the output takes longer than the products, so one pass over all positions is better than
    one pass per group. Layers with many channels are returned unchanged, and also layers whose common window is too
    large: it has more than `LONGEST_WINDOW` values although the filters of every group have fewer (as for 7×1 and 1×7
    filters), or more than `LONGEST_PATCH` positions.
    """
    if channels > FEW_CHANNELS or len(layer.filters) == 1:
        return layer
    before, length = [], []
    for axis in (0, 1):
        step = layer.dilation[axis]
        starts = [-margin[axis] for margin in layer.margins]
        ends = [start + step * (kernel[axis] - 1) for start, kernel in zip(starts, layer.kernels, strict=True)]
        if any((start - starts[0]) % step for start in starts):
            return layer
        before.append(-min(starts))
        length.append((max(ends) - min(starts)) // step + 1)
    area = length[0] * length[1]
    if area * channels > LONGEST_WINDOW and (max(layer.areas) * channels <= LONGEST_WINDOW or area > LONGEST_PATCH):
        return layer
    whole = layer._replace(filters=(layer.num_filters,))
    return whole._replace(kernels=((length[0], length[1]),), margins=((before[0], before[1]),))


def _places(dense: Tensor, layer: Layer, merged: Layer) -> list[Tensor]:
    """The parts of the merged weights [filters, channels, rows, columns] that belong to each group."""
    parts = []
    for part, margin, kernel in zip(dense.split(list(layer.filters)), layer.margins, layer.kernels, strict=True):
        row, col = ((merged.margins[0][axis] - margin[axis]) // layer.dilation[axis] for axis in (0, 1))
        parts.append(part[:, :, row : row + kernel[0], col : col + kernel[1]])
    return parts


def _merge(weights: Sequence[Tensor], layer: Layer, merged: Layer) -> list[Tensor]:
    if merged is layer:
        return list(weights)
    dense = weights[0].new_zeros(layer.num_filters, weights[0].shape[1], *merged.kernels[0])
    for place, weight in zip(_places(dense, layer, merged), weights, strict=True):
        place.copy_(weight)
    return [dense]


def _fits_patches(x: Tensor, merged: Layer) -> bool:
    """Whether a layer can be computed as a matrix product with copied patches: few channels, one group."""
    return (
        x.shape[1] <= FEW_CHANNELS
        and len(merged.filters) == 1
        and merged.areas[0] <= LONGEST_PATCH
        and x.element_size() == 2
        and min(merged.margins[0]) >= 0
        and convs.output_size(x, merged.kernels[0], merged.stride, merged.margins[0], merged.dilation) == merged.size
    )


def _goes_by_patches(x: Tensor, merged: Layer) -> bool:
    """Whether patches are fastest in the forward pass, too.

    This is so for a large window and a stride above 1 (with stride 1, writing the patches takes longest).
    """
    is_large = merged.areas[0] * x.shape[1] > LONGEST_WINDOW
    return is_large and merged.stride != (1, 1) and _fits_patches(x, merged)


def forward(
    x: Tensor,
    weights: Sequence[Tensor],
    bias: Tensor | None,
    scale: Tensor | None,
    layer: Layer,
    relu: bool,
    pool: int,
    keep_winner: bool,
) -> tuple[Tensor, Tensor]:
    """The output, and the position of the maximum in each window of the pool (empty if `keep_winner` is False)."""
    winner = torch.empty(0, dtype=torch.uint8, device=x.device)
    if keep_winner:
        winner = empty_map(x, layer.num_filters, layer.size[0] // pool, layer.size[1] // pool, torch.uint8)
    if x.dtype == torch.float64:
        return _plain(x, weights, bias, scale, layer, relu, pool, winner), winner
    merged = _merged(layer, x.shape[1])
    weights = _merge(weights, layer, merged)
    if pool == 1 and _goes_by_patches(x, merged):
        return _patches_forward(x, weights[0], bias, scale, merged, relu), winner
    if x.shape[1] <= FEW_CHANNELS and len(merged.filters) == 1 and x.element_size() == 2 and layer.stride == (1, 1):
        pixels, weights, merged = _spread(x, weights[0], merged)
    else:
        pixels = _pixels(x)
    then = (merged, scale, bias, relu, pool, winner if keep_winner else None)
    if _kernels(merged, pixels.shape[3], pixels) is tiled and len(merged.filters) <= tiled.MOST_GROUPS:
        out = tiled.forward(pixels, _matrices(weights, merged, x.dtype), *then)
    else:
        out = gathered.forward(pixels, _pack(weights, merged, x.dtype), *then)
    return _as_map(out, layer.num_filters), winner


def _patches_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None, layer: Layer, relu: bool
) -> Tensor:
    weight = weight if scale is None else weight * scale[:, None, None, None]
    shift = None if bias is None else bias.to(x.dtype)
    return convs.conv_forward(x, weight.to(x.dtype), shift, layer.stride, layer.margins[0], layer.dilation, relu)


def _spread(x: Tensor, weight: Tensor, layer: Layer) -> tuple[Tensor, list[Tensor], Layer]:
    """Turn a convolution with few channels into one with more channels.

    The pixels in one row of the window become the channels of one pixel, which copies the map once. The new window has
    one column and can be read in boxes.

    Returns:
        The new pixels, weights and layer.
    """
    rows, cols = layer.kernels[0]
    pixels = gathered.spread(
        x.permute(0, 2, 3, 1).contiguous(), layer.size[1], cols, layer.margins[0][1], layer.dilation[1]
    )
    tall = weight.new_zeros(len(weight), pixels.shape[3], rows, 1)
    tall[:, : cols * x.shape[1], :, 0] = weight.permute(0, 3, 1, 2).flatten(1, 2)
    return pixels, [tall], layer._replace(kernels=((rows, 1),), margins=((layer.margins[0][0], 0),), taps=())


def backward(
    grad: Tensor,
    out: Tensor | None,
    winner: Tensor | None,
    x: Tensor,
    weights: Sequence[Tensor],
    layer: Layer,
    pool: int,
    needs_input: bool,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input, of all weights, and of the bias; a gradient that is not needed is empty.

    The gradients of the weights are one vector: group after group, each as [filters, rows, columns, channels]. `out` is
    the output of the forward pass if there is a ReLU, otherwise None. A pool passes each gradient to one position, so
    the mask of the ReLU and the sum for the bias are computed on the smaller map after the pool.
    """
    if x.dtype == torch.float64:
        return _plain_backward(grad, out, winner, x, weights, layer, pool, needs_input)
    grad_rows, grad_bias = as_rows(grad), grad.new_empty(0, dtype=torch.float32)
    out_rows = None if out is None else as_rows(out)
    merged = _merged(layer, x.shape[1])
    is_long = merged.areas[0] * x.shape[1] > SHORT_WINDOW
    is_image = x.shape[1] <= FEW_CHANNELS and len(merged.filters) == 1 and not needs_input
    if winner is not None and is_image and not is_long:
        padded = F.pad(_pixels(x), (0, 0, *_margin(x, merged.kernels[0], merged.margins[0], layer)))
        programs = _num_processors(x.device)
        partial, sums = gathered.pooled_weight_gradient(
            grad_rows, out_rows, as_rows(winner), padded, merged, pool, programs
        )
        return x.new_empty(0), _unmerged(sum_partials(partial), x.shape[1], layer, merged), sum_partials(sums)
    if winner is not None:
        grad_rows, grad_bias = unpool(grad_rows, out_rows, as_rows(winner), grad.shape[2:], layer.size, pool)
    elif out is not None or needs_bias:
        grad_rows, grad_bias = bias_backward(grad_rows, out_rows)
    grad_pixels = grad_rows.view(len(grad), *layer.size, layer.num_filters)
    if _goes_by_patches(x, merged) or (is_long and not needs_input and _fits_patches(x, merged)):
        return *_patches_backward(grad_pixels, x, weights, layer, merged, needs_input), grad_bias
    grad_x = x.new_empty(0)
    if needs_input:
        kernels = _kernels(merged, _aligned(x.shape[1]), x) if layer.num_filters % ALIGNMENT == 0 else gathered
        packed = _pack(_merge(weights, layer, merged), merged, x.dtype, boxes=kernels is tiled)
        grad_x = _as_map(kernels.input_gradient(grad_pixels, packed, merged, *x.shape[2:]), x.shape[1])
    pixels = _pixels(x)
    kernels = _kernels(merged, pixels.shape[3], pixels)
    partial = kernels.weight_gradient(grad_pixels, pixels, merged, _num_processors(x.device))
    total = partial[0] if len(partial) == 1 else sum_partials(partial)
    if pixels.shape[3] > x.shape[1]:
        total = total.view(-1, pixels.shape[3])[:, : x.shape[1]].flatten()
    return grad_x, _unmerged(total, x.shape[1], layer, merged), grad_bias


def _unmerged(total: Tensor, channels: int, layer: Layer, merged: Layer) -> Tensor:
    """The gradient of all weights, from that of the merged layer as one vector."""
    if merged is layer:
        return total
    return _apart(total.view(layer.num_filters, *merged.kernels[0], channels), layer, merged)


def _apart(total: Tensor, layer: Layer, merged: Layer) -> Tensor:
    """The gradients of the groups, one after another, taken from the gradient of the merged layer."""
    parts = _places(total.permute(0, 3, 1, 2), layer, merged)
    return torch.cat([part.permute(0, 2, 3, 1).flatten() for part in parts])


def _patches_backward(
    grad_pixels: Tensor, x: Tensor, weights: Sequence[Tensor], layer: Layer, merged: Layer, needs_input: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of the input and of all weights, as in `backward`; the sums are in half precision, as in PyTorch."""
    weight = _merge(weights, layer, merged)[0].to(x.dtype)
    grad, geometry = grad_pixels.permute(0, 3, 1, 2), (merged.stride, merged.margins[0], merged.dilation)
    grad_x, total, _ = convs.conv_backward(grad, None, x, weight, *geometry, needs_input, False)
    return grad_x, _apart(total.float().permute(0, 2, 3, 1), layer, merged)


@functools.cache
def _num_processors(device: torch.device) -> int:
    return 4 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


def _margin(x: Tensor, kernel: Pair, before: Pair, layer: Layer) -> list[int]:
    """The padding (or cropping) of the input for one group, in the order of `F.pad`."""
    after = []
    for axis in (0, 1):
        seen = (layer.size[axis] - 1) * layer.stride[axis] + layer.dilation[axis] * (kernel[axis] - 1) + 1
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
    winner: Tensor,
) -> Tensor:
    """`forward` in PyTorch's own operations, for float64: a reference for the kernels."""
    parts = []
    for weight, kernel, before in zip(weights, layer.kernels, layer.margins, strict=True):
        padded = F.pad(x, _margin(x, kernel, before, layer))
        parts.append(F.conv2d(padded, weight.to(x.dtype), None, layer.stride, 0, layer.dilation))
    out = torch.cat(parts, 1)
    out = out if scale is None else out * scale[:, None, None]
    out = out if bias is None else out + bias[:, None, None]
    if pool > 1:
        out, place = F.max_pool2d(out, pool, return_indices=True)
        if winner.numel():
            row, col = place // layer.size[1], place % layer.size[1]
            winner.copy_(row % pool * pool + col % pool)
    return (out.relu() if relu else out).contiguous(memory_format=torch.channels_last)


def _plain_backward(
    grad: Tensor,
    out: Tensor | None,
    winner: Tensor | None,
    x: Tensor,
    weights: Sequence[Tensor],
    layer: Layer,
    pool: int,
    needs_input: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    grad = grad if out is None else grad * (out > 0)
    grad_bias = grad.sum((0, 2, 3))
    if winner is not None:
        number, channels, height, width = grad.shape
        windows = F.one_hot(winner.long(), pool * pool).to(grad.dtype) * grad[..., None]
        windows = windows.view(number, channels, height, width, pool, pool).transpose(3, 4)
        grad = grad.new_zeros(number, channels, *layer.size)
        grad[:, :, : height * pool, : width * pool] = windows.reshape(number, channels, height * pool, width * pool)
    grad_x, grad_weights = torch.zeros_like(x, memory_format=torch.channels_last), []
    groups = zip(grad.split(list(layer.filters), 1), weights, layer.kernels, layer.margins, strict=True)
    for part, weight, kernel, before in groups:
        margin = _margin(x, kernel, before, layer)
        geometry = (layer.stride, (0, 0), layer.dilation, False, (0, 0), 1, (True, True, False))
        grad_padded, grad_weight, _ = torch.ops.aten.convolution_backward(
            part.contiguous(), F.pad(x, margin), weight.to(x.dtype), None, *geometry
        )
        grad_x += F.pad(grad_padded, [-side for side in margin])
        grad_weights.append(grad_weight.permute(0, 2, 3, 1).flatten())
    return grad_x if needs_input else x.new_empty(0), torch.cat(grad_weights), grad_bias
