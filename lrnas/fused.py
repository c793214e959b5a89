"""Lets a model train with the fused kernels, whatever it was built by.

Inside `with fused(model):` its convolutions, batch norms, pools and the sequences of them use `lrnas.kernels` while
training on a GPU: their classes are exchanged for ones that differ in `forward` alone. Parameters, names and results
stay what they are; outside, and in evaluation, so does every line that runs. On a CPU this concerns one kind of
convolution alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from lrnas.backbones import ConvBlock
from lrnas.kernels import FEW_CHANNELS, available, usable

__all__ = ["fused"]


@contextmanager
def fused(model: nn.Module) -> Iterator[None]:
    """Inside, the model's modules use the kernels where these can be used."""
    before = {module: type(module) for module in model.modules()}
    first = next(model.parameters(), None)
    try:
        if first is not None:
            kinds = _KINDS if available(first.device) else _KINDS_ON_CPU if first.device.type == "cpu" else {}
            for module, own in before.items():
                for base, kind in kinds.items():
                    if own.forward is base.forward and kind.fits(module):
                        module.__class__ = _with_kernels(own, kind)  # type: ignore[arg-type]
        yield
    finally:
        for module, own in before.items():
            module.__class__ = own


class _Conv2d(nn.Conv2d):
    """Matrix products for 1×1 kernels and for few input channels; bias and ReLU in the same pass."""

    @staticmethod
    def fits(module: nn.Conv2d) -> bool:
        few = module.in_channels <= FEW_CHANNELS
        return (
            module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
            and not (few and _area(module) > 128)  # patches would be too long
        )

    def takes(self, x: Tensor) -> bool:
        """What it does not take, PyTorch does, or refuses in its own words."""
        return self.training and usable(x) and x.shape[1] == self.in_channels and self._reaches(x)

    def _reaches(self, x: Tensor) -> bool:
        assert not isinstance(self.padding, str)
        return all(
            size + 2 * pad >= step * (kernel - 1) + 1
            for size, pad, step, kernel in zip(x.shape[2:], self.padding, self.dilation, self.kernel_size, strict=True)
        )

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # PyTorch's name
        direct = self.kernel_size == (1, 1) or self.in_channels <= FEW_CHANNELS
        return self.compute(input, relu=False) if direct and self.takes(input) else super().forward(input)

    def compute(self, x: Tensor, relu: bool) -> Tensor:
        from lrnas.kernels import ops

        assert not isinstance(self.padding, str)
        return ops.conv(x, self.weight, self.bias, self.stride, self.padding, self.dilation, relu)


class _CoveringConv2d(nn.Conv2d):
    """A matrix product where the kernel covers the whole input, as in VGG's classifier.

    On some processors oneDNN takes ten times as long for the gradients of such a convolution.
    """

    @staticmethod
    def fits(module: nn.Conv2d) -> bool:
        return module.groups == 1 and module.padding == (0, 0) and module.dilation == (1, 1)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if input.ndim != 4 or input.shape[1:] != self.weight.shape[1:]:
            return super().forward(input)
        return F.linear(input.flatten(1), self.weight.flatten(1), self.bias)[:, :, None, None]


def _area(conv: nn.Conv2d) -> int:
    return conv.kernel_size[0] * conv.kernel_size[1]


class _BatchNorm2d(nn.BatchNorm2d):
    """Statistics in one pass, normalisation and ReLU in another."""

    @staticmethod
    def fits(module: nn.BatchNorm2d) -> bool:
        return (
            module.affine
            and module.track_running_stats
            and module.momentum is not None
            and module.weight.dtype == torch.float32
        )

    def takes(self, x: Tensor) -> bool:
        return _takes_norm(self, x)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return self.compute(input, relu=False) if self.takes(input) else super().forward(input)

    def compute(self, x: Tensor, relu: bool) -> Tensor:
        return _batch_norm(self, x, relu)


def _takes_norm(norm: nn.BatchNorm2d, x: Tensor) -> bool:
    return norm.training and usable(x) and x.shape[1] == norm.num_features and x.numel() > x.shape[1]


def _batch_norm(norm: nn.BatchNorm2d, x: Tensor, relu: bool) -> Tensor:
    from lrnas.kernels import ops

    out, mean, var = ops.batch_norm(x, norm.weight, norm.bias, norm.eps, relu)
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
    norm.running_mean.lerp_(mean, norm.momentum)
    norm.running_var.lerp_(var, norm.momentum)
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    return out


class _BatchNormAct2d(BatchNormAct2d):
    """timm's batch norm that brings its ReLU along."""

    @staticmethod
    def fits(module: Any) -> bool:
        return type(module.act) is nn.ReLU and type(module.drop) is nn.Identity and _BatchNorm2d.fits(module)

    def forward(self, x: Tensor) -> Tensor:
        if _takes_norm(self, x) and not _is_watched(self.act):
            return _batch_norm(self, x, relu=True)
        return cast(Tensor, super().forward(x))  # type: ignore[no-untyped-call]


class _MaxPool2d(nn.MaxPool2d):
    @staticmethod
    def fits(module: nn.MaxPool2d) -> bool:
        return module.dilation in (1, (1, 1)) and not module.return_indices and _is_square(module)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _takes_pool(self, input):
            return cast(Tensor, super().forward(input))
        from lrnas.kernels import ops, pools

        return ops.max_pool(input, pools.Window(*_window(self)), self.ceil_mode)


class _AvgPool2d(nn.AvgPool2d):
    @staticmethod
    def fits(module: nn.AvgPool2d) -> bool:
        return module.divisor_override is None and _is_square(module)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _takes_pool(self, input):
            return super().forward(input)
        from lrnas.kernels import ops, pools

        return ops.average_pool(input, pools.Window(*_window(self)), self.ceil_mode, self.count_include_pad)


class _InOrder(nn.Module):
    """Runs its children one after another, a convolution or batch norm together with the ReLU that follows it."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return True

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not (self.training and usable(input)):
            return cast(Tensor, super().forward(input))
        x = input
        # not children(), which leaves out what stands here twice
        modules = [
            module for module in self._modules.values() if module is not None and type(module) is not nn.Identity
        ]
        while modules:
            module = modules.pop(0)
            pair = isinstance(module, _Conv2d | _BatchNorm2d) and bool(modules) and type(modules[0]) is nn.ReLU
            if pair and not _is_watched(module) and not _is_watched(modules[0]) and module.takes(x):  # type: ignore[operator]
                x = module.compute(x, relu=True)  # type: ignore[operator]
                modules.pop(0)
            else:
                x = module(x)
        return x


_KINDS: dict[type[nn.Module], Any] = {
    nn.Conv2d: _Conv2d,
    nn.BatchNorm2d: _BatchNorm2d,
    BatchNormAct2d: _BatchNormAct2d,
    nn.MaxPool2d: _MaxPool2d,
    nn.AvgPool2d: _AvgPool2d,
    nn.Sequential: _InOrder,
    ConvBlock: _InOrder,
}
"""By whose `forward` a module has, what stands in for it."""
_KINDS_ON_CPU: dict[type[nn.Module], Any] = {nn.Conv2d: _CoveringConv2d}


@functools.cache
def _with_kernels(own: Any, kind: Any) -> Any:
    """A class like a module's own, whose `forward` is that of `kind`."""
    return type(f"Fused{own.__name__}", (kind, own), {})


def _is_watched(module: nn.Module) -> bool:
    """Whether somebody wants to know when a module is called, or changed what it does: then it must be called."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in module.__dict__


def _takes_pool(pool: nn.MaxPool2d | nn.AvgPool2d, x: Tensor) -> bool:
    size, _, padding = _window(pool)
    return pool.training and usable(x) and min(x.shape[2:]) + 2 * padding >= size


def _window(pool: nn.MaxPool2d | nn.AvgPool2d) -> tuple[int, int, int]:
    numbers = (pool.kernel_size, pool.stride, pool.padding)
    size, stride, padding = (number if isinstance(number, int) else number[0] for number in numbers)
    return size, stride, padding


def _is_square(pool: nn.MaxPool2d | nn.AvgPool2d) -> bool:
    """One number for rows and columns, and a window that a byte can count."""
    numbers = (pool.kernel_size, pool.stride, pool.padding)
    return all(isinstance(number, int) or len(set(number)) == 1 for number in numbers) and _window(pool)[0] <= 8
