"""A composite layer and its join as the one convolution that they are, and when that is the faster way.

With no activation between, filters of several shapes and the 1×1 filters that mix them are filters of one shape: all
positions that any of them looks at. That is more products, but one map less to write and to read, which is what counts
where a layer has few channels.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lrnas.layers.conv import CompositeConv2d, WindowConv2d, joint_bias
from lrnas.layers.kernels import FEW_CHANNELS

PRODUCTS_PER_BYTE = 75
"""What a GPU multiplies while it moves a byte of a map, in half precision, roughly (an H200: 300 TMAC/s, 4 TB/s)."""
LIBRARY = 0.78
"""Time of a product in the library's k×k convolution, as a share of that in ours (on an H200 0.73 to 0.87)."""


class Form(Enum):
    APART = "the groups by one kernel, then the join"
    JOINED = "one convolution, by the kernel for filters of all shapes"
    LIBRARY = "one convolution, by the library"


class Joined(NamedTuple):
    """Groups and join as one convolution."""

    weight: Tensor
    """[outputs, channels, rows, columns]."""
    margins: tuple[tuple[int, int], tuple[int, int]]
    """Zeros before and after the rows, before and after the columns; what is cropped where negative."""
    taps: tuple[int, ...]
    """The positions of the window that are looked at, counted row by row."""


def join(composite: CompositeConv2d) -> Joined:
    """The one convolution; gradients find their way through it."""
    assert composite.join is not None
    convs, margins = list(composite.group_convs()), _margins(composite)
    with torch.autocast(composite.join.weight.device.type, enabled=False):
        kernels = torch.cat([F.pad(conv.weight, _room(conv, margins)) for conv in convs])
        weight = torch.einsum("jf,fcyx->jcyx", composite.join.weight[:, :, 0, 0], kernels)
    return Joined(weight, margins, _taps(composite))


def joined_bias(composite: CompositeConv2d, then: dict[str, Any]) -> Tensor | None:
    """The bias after the join, scaled as `then` says, with what the groups' own biases come to there."""
    assert composite.join is not None
    bias: Tensor | None = then["bias"]
    own = joint_bias(list(composite.group_convs()))
    if own is None:
        return bias
    with torch.autocast(own.device.type, enabled=False):
        mix = composite.join.weight[:, :, 0, 0]
        if "scale" not in then:
            return F.linear(own, mix, bias)
        scale: Tensor = then["scale"]
        assert bias is not None
        return bias + scale * (mix @ own)


def num_positions(x: Tensor) -> int:
    return x.shape[0] * x.shape[2] * x.shape[3]


def best_form(composite: CompositeConv2d, positions: int, pools: bool) -> Form:
    """By what a position costs in each: products, those that join the weights, and maps that are written and read.

    In training a convolution's gradients take twice its products, so the groups stay apart there, but where the
    products are few anyway.
    """
    assert composite.join is not None
    channels, outputs = composite.in_channels, composite.out_channels
    if channels <= FEW_CHANNELS:
        return Form.JOINED
    if torch.is_grad_enabled() or composite.stride != (1, 1):
        return Form.APART
    groups = [(conv.out_channels, conv.kernel_size[0] * conv.kernel_size[1]) for conv in composite.group_convs()]
    mixed = sum(num for num, _ in groups)
    products = sum((num + -num % 64) * area for num, area in groups) * channels  # filters go by blocks
    taps, margins, (rows, cols) = _taps(composite), _margins(composite), window(composite)
    joining = mixed * outputs * channels * rows * cols / positions
    as_one = len(taps) * channels * outputs
    times: dict[Form, float] = {
        Form.APART: products + mixed * outputs + 4 * mixed * PRODUCTS_PER_BYTE,
        Form.JOINED: as_one + joining,
    }
    if len(taps) == rows * cols and all(before == after >= 0 for before, after in margins):
        pool = 2.5 * outputs * PRODUCTS_PER_BYTE if pools else 0
        times[Form.LIBRARY] = LIBRARY * as_one + joining + pool
    return min(times, key=lambda form: times[form])


def _margins(composite: CompositeConv2d) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of the window that all groups lie in."""
    margins = [conv.margins for conv in composite.group_convs()]
    rows, cols = ((max(each[axis][0] for each in margins), max(each[axis][1] for each in margins)) for axis in (0, 1))
    return rows, cols


def _room(conv: WindowConv2d, margins: tuple[tuple[int, int], ...]) -> list[int]:
    """Zeros around a kernel, as `F.pad` wants them, that make it reach as far as these margins do."""
    return [
        (margins[axis][side] - conv.margins[axis][side]) // conv.dilation[axis] for axis in (1, 0) for side in (0, 1)
    ]


def window(composite: CompositeConv2d) -> tuple[int, int]:
    """Rows and columns of the joined kernel."""
    conv, margins = next(composite.group_convs()), _margins(composite)
    left, right, above, below = _room(conv, margins)
    return above + conv.kernel_size[0] + below, left + conv.kernel_size[1] + right


def _taps(composite: CompositeConv2d) -> tuple[int, ...]:
    margins, (_, width) = _margins(composite), window(composite)
    seen = set()
    for conv in composite.group_convs():
        left, _, above, _ = _room(conv, margins)
        rows, cols = conv.kernel_size
        seen |= {(above + row) * width + left + col for row in range(rows) for col in range(cols)}
    return tuple(sorted(seen))
