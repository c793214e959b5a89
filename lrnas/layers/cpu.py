"""What stands in for a model's modules on a CPU; `lrnas.layers.accelerate` puts it there.

Where no gradient is wanted, maps have their channels last: the library behind PyTorch's convolutions wants them so, and
of a map in another order it makes a copy for every group of filters. Results differ in their last digits at most; who
takes a map apart by `view`, for which it must lie in PyTorch's own order, has to take `reshape`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrnas.layers.conv import CompositeConv2d, WindowConv2d, is_watched
from lrnas.layers.join import join, joined_bias, num_positions, window

LARGE_MAP = 1 << 16
"""Values from which on a pool of several passes is faster than one that takes them one by one."""


def _in_use(x: Tensor) -> bool:
    """Whether this is a map of a model that is only used."""
    return x.ndim == 4 and x.is_floating_point() and not torch.is_grad_enabled()


def _laid_out(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if _in_use(x) else x


class _Conv2d(nn.Conv2d):
    """A matrix product where the kernel covers the whole input, as in VGG's classifier.

    On some processors oneDNN takes ten times as long for the gradients of such a convolution, and forward it copies the
    weights.
    """

    @staticmethod
    def fits(module: nn.Conv2d) -> bool:
        return module.groups == 1

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # PyTorch's name
        alone = self.padding == (0, 0) and self.dilation == (1, 1)
        if alone and input.ndim == 4 and input.shape[1:] == self.weight.shape[1:]:
            x, weight = input, self.weight
            if not weight.is_contiguous():  # as it lies in memory, so that it is not copied
                x, weight = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)
            return F.linear(x.flatten(1), weight.flatten(1), self.bias)[:, :, None, None]
        return super().forward(_laid_out(input))


class _Window(WindowConv2d):
    @staticmethod
    def fits(module: WindowConv2d) -> bool:
        return True

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(_laid_out(x))


class _Composite(CompositeConv2d):
    """Groups and join as the one convolution that they are, where that has fewer products: after few channels."""

    @staticmethod
    def fits(module: CompositeConv2d) -> bool:
        return not module.pads_input

    def forward(self, x: Tensor) -> Tensor:
        if not _in_use(x):
            return super().forward(x)
        x = _laid_out(x)
        if self.join is None or not self._joins_first(x) or any(map(is_watched, self.children())):
            return super().forward(x)
        weight, ((top, bottom), (left, right)), _ = join(self)
        bias = joined_bias(self, {"bias": self.join.bias})
        padding = (top, left)
        if top != bottom or left != right or min(padding) < 0:
            x, padding = F.pad(x, (left, right, top, bottom)), (0, 0)
        return F.conv2d(x, weight, bias, self.stride, padding, self.dilation)

    def _joins_first(self, x: Tensor) -> bool:
        assert self.join is not None
        filters, (rows, cols) = self.join.in_channels, window(self)
        apart = sum(conv.weight.numel() for conv in self.group_convs()) + self.join.weight.numel()
        as_one = self.in_channels * self.out_channels * rows * cols
        positions = num_positions(x) // (self.stride[0] * self.stride[1])
        return positions * as_one + filters * as_one <= positions * apart


class _LocalResponseNorm(nn.LocalResponseNorm):
    """By the roots that the exponent 3/4 consists of, and sums of channels that lie side by side.

    PyTorch takes powers one by one, which is longer than the convolution before it takes.
    """

    @staticmethod
    def fits(module: nn.LocalResponseNorm) -> bool:
        return module.beta == 0.75

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _in_use(input):
            return super().forward(input)
        x = _laid_out(input).permute(0, 2, 3, 1)
        channels = x.shape[-1]
        squares = F.pad(x * x, (self.size // 2, (self.size - 1) // 2))
        total = squares.narrow(-1, 0, channels).clone()
        for shift in range(1, self.size):
            total += squares.narrow(-1, shift, channels)
        root = total.mul_(self.alpha / self.size).add_(self.k).rsqrt_()
        return root.sqrt().mul_(root).mul_(x).permute(0, 3, 1, 2)


class _MaxPool2d(nn.MaxPool2d):
    """Largest values of rows and then of columns: on large maps half the time of PyTorch's, which notes where they
    stood."""

    @staticmethod
    def fits(module: nn.MaxPool2d) -> bool:
        numbers = (module.kernel_size, module.stride, module.padding)
        plain = module.dilation in (1, (1, 1)) and not module.return_indices and not module.ceil_mode
        # larger strides leave out much of what PyTorch compares
        return plain and all(isinstance(number, int) for number in numbers) and numbers in ((2, 2, 0), (3, 1, 1))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _in_use(input) or min(input.shape[2:]) < 2 or input.numel() < LARGE_MAP:
            return cast(Tensor, super().forward(input))
        x, (size, stride) = _laid_out(input), cast(tuple[int, int], (self.kernel_size, self.stride))
        if self.padding:
            x = F.pad(x, (1, 1, 1, 1), value=-math.inf)
        for axis in (2, 3):
            x = functools.reduce(torch.maximum, x.unfold(axis, size, stride).unbind(-1))
        return x


KINDS: dict[type[nn.Module], Any] = {
    nn.Conv2d: _Conv2d,
    WindowConv2d: _Window,
    CompositeConv2d: _Composite,
    nn.LocalResponseNorm: _LocalResponseNorm,
    nn.MaxPool2d: _MaxPool2d,
}
"""By whose `forward` a module has, what stands in for it."""
