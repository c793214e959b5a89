"""Replacements for modules on a CPU; `lrnas.layers.accelerate` installs them.

Without gradients, maps are in the channels-last layout. The library behind PyTorch's convolutions needs this layout; it
would copy maps in another layout once for every group of filters. Results are equal up to rounding. Code that reshapes
these maps must use `reshape` or `flatten`, because `view` works only in PyTorch's default layout.
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrnas.layers.conv import CompositeConv2d, WindowConv2d, conv_as_product, covers, has_hooks, num_positions
from lrnas.layers.fold import join_kernels, joined_bias, joined_geometry
from lrnas.layers.kernels import is_exporting

LARGE_MAP = 1 << 16
"""Smallest number of values of a map for which pooling in several passes is faster than PyTorch's pool."""


def _is_inference(x: Tensor) -> bool:
    """Whether a tensor is a map of a model that runs without gradients, and is not exported for batches of any size."""
    return x.ndim == 4 and x.is_floating_point() and not torch.is_grad_enabled() and not is_exporting()


def _channels_last(x: Tensor) -> Tensor:
    """A map in the channels-last layout in inference; unchanged otherwise."""
    return x.contiguous(memory_format=torch.channels_last) if _is_inference(x) else x


class _Conv2d(nn.Conv2d):
    """A convolution that is computed as a matrix product if its kernel covers the whole input, as in VGG's classifier.

    On some processors oneDNN is slow for the gradients of such a convolution, and it copies the weights in the forward
    pass.
    """

    @staticmethod
    def fits(module: nn.Conv2d) -> bool:
        return module.groups == 1

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # PyTorch's name
        return conv_as_product(self, input) if covers(self, input) else super().forward(_channels_last(input))


class _Window(WindowConv2d):
    """A convolution that converts its input to the channels-last layout."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_channels_last(x))


class _Composite(CompositeConv2d):
    """Computes groups and join as one convolution if this needs fewer products, for example with few input channels."""

    def forward(self, x: Tensor) -> Tensor:
        if not _is_inference(x):
            return super().forward(x)
        x = _channels_last(x)
        if self.join is None or not self._is_faster_joined(x) or any(map(has_hooks, self.children())):
            return super().forward(x)
        weight, ((top, bottom), (left, right)), _ = join_kernels(self)
        bias = joined_bias(self, self.join.bias)
        padding = (top, left)
        if top != bottom or left != right or min(padding) < 0:
            x, padding = F.pad(x, (left, right, top, bottom)), (0, 0)
        return F.conv2d(x, weight, bias, self.stride, padding, self.dilation)

    def _is_faster_joined(self, x: Tensor) -> bool:
        assert self.join is not None
        apart = sum(conv.weight.numel() for conv in self.group_convs()) + self.join.weight.numel()
        joined = self.in_channels * self.out_channels * math.prod(joined_geometry(self)[1])
        positions = num_positions(x) // (self.stride[0] * self.stride[1])
        return positions * joined + self.join.in_channels * joined <= positions * apart


class _LocalResponseNorm(nn.LocalResponseNorm):
    """Local response norm with exponent 3/4, computed by square roots and sums over neighbouring channels.

    PyTorch computes a power for each value, which takes longer than the convolution before it.
    """

    @staticmethod
    def fits(module: nn.LocalResponseNorm) -> bool:
        return module.beta == 0.75

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _is_inference(input):
            return super().forward(input)
        x = _channels_last(input).permute(0, 2, 3, 1)
        channels = x.shape[-1]
        squares = F.pad(x * x, (self.size // 2, (self.size - 1) // 2))
        total = squares.narrow(-1, 0, channels).clone()
        for shift in range(1, self.size):
            total += squares.narrow(-1, shift, channels)
        root = total.mul_(self.alpha / self.size).add_(self.k).rsqrt_()
        return root.sqrt().mul_(root).mul_(x).permute(0, 3, 1, 2)


class _MaxPool2d(nn.MaxPool2d):
    """Maximum over rows and then over columns.

    On large maps this is faster than PyTorch's pool, which also records the positions of the maxima.
    """

    @staticmethod
    def fits(module: nn.MaxPool2d) -> bool:
        is_plain = module.dilation in (1, (1, 1)) and not module.return_indices and not module.ceil_mode
        # with a larger stride PyTorch's pool compares fewer values than this one
        return is_plain and (module.kernel_size, module.stride, module.padding) in ((2, 2, 0), (3, 1, 1))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _is_inference(input) or min(input.shape[2:]) < 2 or input.numel() < LARGE_MAP:
            return cast(Tensor, super().forward(input))
        x, (size, stride) = _channels_last(input), cast(tuple[int, int], (self.kernel_size, self.stride))
        if self.padding:
            x = F.pad(x, (1, 1, 1, 1), value=-math.inf)
        for axis in (2, 3):
            x = functools.reduce(torch.maximum, x.unfold(axis, size, stride).unbind(-1))
        return x


REPLACEMENTS: dict[type[nn.Module], Any] = {
    nn.Conv2d: _Conv2d,
    WindowConv2d: _Window,
    CompositeConv2d: _Composite,
    nn.LocalResponseNorm: _LocalResponseNorm,
    nn.MaxPool2d: _MaxPool2d,
}
"""Replacement classes. A key is the class that defines the `forward` of the module to be replaced."""
