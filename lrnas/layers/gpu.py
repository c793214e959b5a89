"""Replacements for modules on a GPU: the same layers with the fused kernels; `lrnas.layers.accelerate` installs them.

A convolution also computes its epilogue, that is, some of the modules that follow it: the ReLU, in evaluation a batch
norm, and in mixed-shape layers a 2×2 pool.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any, cast

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from lrnas.layers.conv import (
    CompositeConv2d,
    ConvBlock,
    SeparableConv2d,
    WindowConv2d,
    concatenated_bias,
    conv_as_product,
    covers,
    has_hooks,
    kernel_layer,
    num_positions,
    output_convs,
)
from lrnas.layers.fold import Joined, join_kernels, joined_bias, joined_geometry
from lrnas.layers.kernels import FEW_CHANNELS, LONGEST_PATCH, ops, usable
from lrnas.layers.kernels.composite_op import composite_conv
from lrnas.layers.kernels.layer import Layer
from lrnas.layers.kernels.pools import Window

MANY_POSITIONS = 1 << 14
"""On maps with at least this number of positions, one more pass takes longer than a few small matrix products."""
PRODUCTS_PER_BYTE = 75
"""Approximate number of products that a GPU computes in half precision while it moves one byte.

H200: 300 TMAC/s, 4 TB/s.
"""
LIBRARY_TIME = 0.78
"""Time per product in cuDNN's k×k convolution relative to our kernel (0.73 to 0.87 on an H200)."""


class _Conv2d(nn.Conv2d):
    """A convolution that is computed as a matrix product if it is 1×1, has few input channels or covers its input.

    The last case is VGG's first fully connected layer, 7×7 filters on a 7×7 map. With cuDNN's gradients of this layer,
    VGG-11 trained at 1,200 images/s on an H200, where others of its size reach tens of thousands.
    """

    @staticmethod
    def fits(module: nn.Conv2d) -> bool:
        long_patch = module.in_channels <= FEW_CHANNELS and math.prod(module.kernel_size) > LONGEST_PATCH
        zeros = module.padding_mode == "zeros" and not isinstance(module.padding, str)
        return module.groups == 1 and zeros and not long_patch

    def supports(self, x: Tensor) -> bool:
        """Whether the kernels can compute this input. All other inputs are left to PyTorch."""
        if not usable(x) or x.shape[1] != self.in_channels:
            return False
        geometry = zip(x.shape[2:], cast(tuple[int, int], self.padding), self.dilation, self.kernel_size, strict=True)
        return all(size + 2 * pad >= step * (kernel - 1) + 1 for size, pad, step, kernel in geometry)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # PyTorch's name
        direct = self.kernel_size == (1, 1) or self.in_channels <= FEW_CHANNELS
        if direct and self.supports(input):
            return self.compute(input, relu=False)
        return conv_as_product(self, input) if covers(self, input) else super().forward(input)

    def compute(
        self, x: Tensor, relu: bool = False, norm: nn.BatchNorm2d | None = None, **bias: Tensor | None
    ) -> Tensor:
        """Compute the layer. The argument `bias`, if given, replaces the bias of the layer; None means no bias."""
        weight, shift = self.weight, bias.get("bias", self.bias)
        if norm is not None:
            weight, shift = ops.fold_norm(weight, shift, norm)
        padding = cast(tuple[int, int], self.padding)
        return ops.conv(x, weight, shift, self.stride, padding, self.dilation, relu)


class _AnyBatchNorm(nn.BatchNorm2d):
    """A batch norm that in training needs two passes: one for statistics, one for normalisation and ReLU."""

    @staticmethod
    def fits(module: nn.BatchNorm2d) -> bool:
        has_both = module.affine and module.bias is not None
        return has_both and module.running_mean is not None and module.weight.dtype == torch.float32

    def supports(self, x: Tensor) -> bool:
        keeps = self.track_running_stats and self.momentum is not None  # torch.optim.swa_utils.update_bn changes it
        right = usable(x) and x.shape[1] == self.num_features and x.numel() > x.shape[1]
        return self.training and keeps and right

    def compute(self, x: Tensor, relu: bool) -> Tensor:
        running = cast(tuple[Tensor, Tensor, Tensor], (self.running_mean, self.running_var, self.num_batches_tracked))
        return ops.batch_norm(x, self.weight, self.bias, running, cast(float, self.momentum), self.eps, relu)


class _BatchNorm2d(_AnyBatchNorm):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self.compute(input, relu=False) if self.supports(input) else super().forward(input)


class _BatchNormAct2d(_AnyBatchNorm, BatchNormAct2d):
    """timm's batch norm, which includes the ReLU after it."""

    @staticmethod
    def fits(module: Any) -> bool:
        return type(module.act) is nn.ReLU and type(module.drop) is nn.Identity and _AnyBatchNorm.fits(module)

    def forward(self, x: Tensor) -> Tensor:
        if self.supports(x) and not has_hooks(self.act):
            return self.compute(x, relu=True)
        return cast(Tensor, super().forward(x))  # type: ignore[no-untyped-call]


class _MaxPool2d(nn.MaxPool2d):
    @staticmethod
    def fits(module: nn.MaxPool2d) -> bool:
        return module.dilation in (1, (1, 1)) and not module.return_indices and _is_square(module)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _supports_pool(self, input):
            return cast(Tensor, super().forward(input))
        return ops.max_pool(input, _window(self), self.ceil_mode)


class _AvgPool2d(nn.AvgPool2d):
    @staticmethod
    def fits(module: nn.AvgPool2d) -> bool:
        return module.divisor_override is None and _is_square(module)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _supports_pool(self, input):
            return super().forward(input)
        return ops.average_pool(input, _window(self), self.ceil_mode, self.count_include_pad)


class _AdaptiveMaxPool2d(nn.AdaptiveMaxPool2d):
    """Global max pool with the fused kernel."""

    @staticmethod
    def fits(module: nn.AdaptiveMaxPool2d) -> bool:
        return module.output_size in (1, (1, 1)) and not module.return_indices

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return ops.whole_max(input) if usable(input) else cast(Tensor, super().forward(input))


class _Composite(CompositeConv2d):
    """A composite layer, computed in the fastest `Form`. If there is a join, the epilogue follows the join."""

    def supports(self, x: Tensor) -> bool:
        join_fits = self.join is None or (isinstance(self.join, _Conv2d) and not has_hooks(self.join))
        return join_fits and super().supports(x)

    def compute(self, x: Tensor, **epilogue: Any) -> Tensor:
        if self.join is None:
            return super().compute(x, **epilogue)
        epilogue.setdefault("bias", self.join.bias)
        form = best_form(self, num_positions(x), pools="pool" in epilogue)
        if form is Form.APART and num_positions(x) < MANY_POSITIONS:
            return self._compute_join(super().compute(x), **epilogue)
        # as part of the join's bias; a bias of the groups would need one more backward pass over the map
        epilogue["bias"] = joined_bias(self, epilogue["bias"], epilogue.get("scale"))
        if form is Form.APART:
            return self._compute_join(super().compute(x, bias=None), **epilogue)
        joined = join_kernels(self)
        if form is Form.LIBRARY:
            return self._compute_by_library(x, joined, **epilogue)
        layer = kernel_layer(list(self.group_convs()), x)._replace(
            filters=(self.out_channels,),
            kernels=((joined.weight.shape[2], joined.weight.shape[3]),),
            margins=((joined.margins[0][0], joined.margins[1][0]),),
            taps=joined.taps,
        )
        return composite_conv(x, [joined.weight], layer=layer, **epilogue)

    def _compute_join(self, mixed: Tensor, **epilogue: Any) -> Tensor:
        assert isinstance(self.join, _Conv2d)
        if epilogue.keys() <= {"relu", "bias"}:
            return self.join.compute(mixed, **epilogue)
        size = (mixed.shape[2], mixed.shape[3])
        layer = Layer((self.out_channels,), ((1, 1),), ((0, 0),), (1, 1), (1, 1), size)
        return composite_conv(mixed, [self.join.weight], layer=layer, **epilogue)

    def _compute_by_library(
        self, x: Tensor, joined: Joined, relu: bool = False, pool: int = 1, **epilogue: Any
    ) -> Tensor:
        weight = joined.weight
        if "scale" in epilogue:
            weight = weight * epilogue["scale"][:, None, None, None]
        bias = None if epilogue["bias"] is None else epilogue["bias"].to(x.dtype)
        padding = (joined.margins[0][0], joined.margins[1][0])
        out = ops.conv(x, weight.to(x.dtype), bias, self.stride, padding, self.dilation, relu)
        return out if pool == 1 else ops.max_pool(out, Window(pool, pool, 0), False)

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x, relu=False) if self.supports(x) else super().forward(x)


class Form(Enum):
    """Ways to compute a composite layer with a join."""

    APART = "the groups by one kernel, then the join"
    JOINED = "one convolution, by the kernel for filters of all shapes"
    LIBRARY = "one convolution, by cuDNN"


def best_form(composite: CompositeConv2d, positions: int, pools: bool) -> Form:
    """The form with the shortest estimated time, from the numbers of products and of bytes moved.

    In training, gradients need twice the products of the forward pass. The groups therefore stay apart, except in a
    layer with few input channels.

    Args:
        composite: A composite layer with a join.
        positions: Number of positions in all maps of the batch.
        pools: Whether the epilogue contains a 2×2 pool.
    """
    assert composite.join is not None
    channels, outputs = composite.in_channels, composite.out_channels
    if channels <= FEW_CHANNELS:
        return Form.JOINED
    if torch.is_grad_enabled() or composite.stride != (1, 1):
        return Form.APART
    groups = [(conv.out_channels, math.prod(conv.kernel_size)) for conv in composite.group_convs()]
    mixed = sum(num for num, _ in groups)
    products = sum((num + -num % 64) * area for num, area in groups) * channels  # filters are computed in blocks of 64
    margins, (rows, cols), taps = joined_geometry(composite)
    joining = mixed * outputs * channels * rows * cols / positions
    as_one = len(taps) * channels * outputs
    times: dict[Form, float] = {
        Form.APART: products + mixed * outputs + 4 * mixed * PRODUCTS_PER_BYTE,
        Form.JOINED: as_one + joining,
    }
    if len(taps) == rows * cols and all(before == after >= 0 for before, after in margins):
        pool = 2.5 * outputs * PRODUCTS_PER_BYTE if pools else 0
        times[Form.LIBRARY] = LIBRARY_TIME * as_one + joining + pool
    return min(times, key=lambda form: times[form])


class _Separable(SeparableConv2d):
    """A separable layer whose second half computes the epilogue."""

    def supports(self, x: Tensor) -> bool:
        first, second = self.halves()
        return first.supports(x) and not has_hooks(second) and min(kernel_layer([second], x).size) > 0

    def compute(self, x: Tensor, **epilogue: Any) -> Tensor:
        first, second = self.halves()
        return second.compute(first.compute(x), **epilogue)


class _Sequence(nn.Module):
    """Runs its children one after another; convolutions and batch norms also compute their epilogues."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not usable(input):
            return cast(Tensor, super().forward(input))
        x = input
        # not children(), which omits a module that occurs twice
        modules = [
            module
            for module in self._modules.values()
            if module is not None and (type(module) is not nn.Identity or has_hooks(module))
        ]
        while modules:
            module = modules.pop(0)
            epilogue, number = _find_epilogue(module, modules)
            if number and module.supports(x):  # type: ignore[operator]
                del modules[:number]
                x = module.compute(x, **_with_factors(module, epilogue))  # type: ignore[operator]
            else:
                x = module(x)
        return x


def _find_epilogue(module: nn.Module, following: list[nn.Module]) -> tuple[dict[str, Any], int]:
    """The epilogue of a module as arguments of its `compute`, and the number of following modules that it replaces."""
    if not isinstance(module, _WITH_EPILOGUE) or has_hooks(module):
        return {}, 0
    length = 0
    while length < len(following) and not has_hooks(following[length]):  # torch.compile knows no itertools.takewhile
        length += 1
    rest = following[:length]
    epilogue: dict[str, Any] = {}
    if not isinstance(module, nn.BatchNorm2d) and rest and _is_constant(rest[0], module.out_channels):
        epilogue["norm"] = rest.pop(0)
    if rest and type(rest[0]) is nn.ReLU:
        epilogue["relu"] = True
        rest.pop(0)
    if isinstance(module, _MIXED) and rest and isinstance(rest[0], nn.MaxPool2d) and _is_halving(rest[0]):
        epilogue["pool"] = 2
        rest.pop(0)
    return epilogue, length - len(rest)


def _with_factors(module: nn.Module, epilogue: dict[str, Any]) -> dict[str, Any]:
    """The epilogue as `composite_conv` expects it, if a mixed-shape layer computes it: with a scale and a bias."""
    if not isinstance(module, _MIXED) or "norm" not in epilogue:
        return epilogue
    norm = epilogue.pop("norm")
    scale, bias = ops.norm_factors(concatenated_bias(output_convs(module)), norm)
    return {**epilogue, "scale": scale, "bias": bias}


def _is_constant(module: nn.Module, channels: int) -> bool:
    """Whether a module is a batch norm that only scales and shifts channels: in evaluation, without gradients."""
    if not isinstance(module, nn.BatchNorm2d) or module.training or torch.is_grad_enabled():
        return False
    is_plain = type(module).forward in (nn.BatchNorm2d.forward, _BatchNorm2d.forward)
    numbers = (module.running_mean, module.running_var, module.weight, module.bias)
    return is_plain and module.num_features == channels and all(tensor is not None for tensor in numbers)


def _window(pool: nn.MaxPool2d | nn.AvgPool2d) -> Window:
    numbers = (pool.kernel_size, pool.stride, pool.padding)
    return Window(*(number if isinstance(number, int) else number[0] for number in numbers))


def _is_square(pool: nn.MaxPool2d | nn.AvgPool2d) -> bool:
    """Whether a pool treats rows and columns alike, and a position in its window fits into one byte."""
    numbers = (pool.kernel_size, pool.stride, pool.padding)
    return all(isinstance(number, int) or len(set(number)) == 1 for number in numbers) and _window(pool)[0] <= 8


def _is_halving(pool: nn.MaxPool2d) -> bool:
    size, stride, padding = _window(pool)  # torch.compile of torch 2.11 finds a NamedTuple and a tuple always different
    return _MaxPool2d.fits(pool) and not pool.ceil_mode and size == stride == 2 and padding == 0


def _supports_pool(pool: nn.MaxPool2d | nn.AvgPool2d, x: Tensor) -> bool:
    size, _, padding = _window(pool)
    return pool.training and usable(x) and min(x.shape[2:]) + 2 * padding >= size


REPLACEMENTS: dict[type[nn.Module], Any] = {
    nn.Conv2d: _Conv2d,
    nn.BatchNorm2d: _BatchNorm2d,
    BatchNormAct2d: _BatchNormAct2d,
    nn.MaxPool2d: _MaxPool2d,
    nn.AvgPool2d: _AvgPool2d,
    nn.AdaptiveMaxPool2d: _AdaptiveMaxPool2d,
    nn.Sequential: _Sequence,
    ConvBlock: _Sequence,
    CompositeConv2d: _Composite,
    SeparableConv2d: _Separable,
}
"""Replacement classes. A key is the class that defines the `forward` of the module to be replaced."""
_MIXED = (CompositeConv2d, SeparableConv2d, WindowConv2d)
"""Classes of layers that the kernel for filters of all shapes computes."""
_WITH_EPILOGUE = (_Conv2d, _BatchNorm2d, _Composite, _Separable, WindowConv2d)
"""Classes that can compute an epilogue."""
