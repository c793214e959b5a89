"""Lets a model run with the fused kernels, whatever it was built by.

Inside `with fused(model):` its convolutions, batch norms, pools and the sequences of them use `layers.kernels` on a
GPU: their classes are exchanged for ones that differ in `forward` alone. Parameters, names and results stay what they
are; outside, so does every line that runs. On a CPU other classes take their place (`lrnas.layers.cpu`).
`accelerate(model)` does the same for good, for a model that is trained and only used.

A convolution takes in what follows it: the ReLU and, after filters of different shapes, a pool of 2 × 2; in evaluation
the batch norm before them too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from lrnas.layers import cpu as on_cpu
from lrnas.layers.conv import (
    CompositeConv2d,
    ConvBlock,
    SeparableConv2d,
    WindowConv2d,
    is_watched,
    joint_bias,
    layer_of,
)
from lrnas.layers.join import Form, best_form, join, joined_bias, num_positions
from lrnas.layers.kernels import FEW_CHANNELS, LONGEST_PATCH, available, usable

MANY_POSITIONS = 1 << 14
"""From so many on, a pass over a map takes longer than a few small products."""


@contextmanager
def fused(model: nn.Module) -> Iterator[None]:
    """Inside, the model's modules use the kernels where these can be used."""
    before = {module: type(module) for module in model.modules()}
    try:
        _exchange(model)
        yield
    finally:
        for module, own in before.items():
            module.__class__ = own


def accelerate(model: nn.Module) -> nn.Module:
    """Lets a model's modules use the kernels from now on, where these can be used; returns the model.

    On a CPU the weights of its convolutions are laid out for use as well, channels last; their values stay what they
    are. So do its maps, which `flatten` and `reshape` take, but not `view`.
    """
    if _exchange(model) is on_cpu.KINDS:
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
    return model


def _exchange(model: nn.Module) -> dict[type[nn.Module], Any]:
    """Exchange the classes of modules for those that stand in for them where the model is."""
    first = next(model.parameters(), None)
    if first is None:
        return {}
    kinds = _KINDS if available(first.device) else on_cpu.KINDS if first.device.type == "cpu" else {}
    for module in model.modules():
        own: Any = getattr(type(module), "stands_for", type(module))  # it may have been exchanged before, elsewhere
        fitting = [kind for base, kind in kinds.items() if own.forward is base.forward and kind.fits(module)]
        module.__class__ = _with_kernels(own, fitting[0]) if fitting else own
    return kinds


class _Conv2d(nn.Conv2d):
    """Matrix products for 1×1 kernels and for few input channels; bias and ReLU in the same pass."""

    @staticmethod
    def fits(module: nn.Conv2d) -> bool:
        few = module.in_channels <= FEW_CHANNELS
        return (
            module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
            and not (few and _area(module) > LONGEST_PATCH)
        )

    def takes(self, x: Tensor) -> bool:
        """What it does not take, PyTorch does, or refuses in its own words."""
        return usable(x) and x.shape[1] == self.in_channels and self._reaches(x)

    def _reaches(self, x: Tensor) -> bool:
        assert not isinstance(self.padding, str)
        return all(
            size + 2 * pad >= step * (kernel - 1) + 1
            for size, pad, step, kernel in zip(x.shape[2:], self.padding, self.dilation, self.kernel_size, strict=True)
        )

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # PyTorch's name
        direct = self.kernel_size == (1, 1) or self.in_channels <= FEW_CHANNELS
        return self.compute(input, relu=False) if direct and self.takes(input) else super().forward(input)

    def compute(self, x: Tensor, relu: bool, **bias: Tensor | None) -> Tensor:
        """With its own bias, or another one."""
        from lrnas.layers.kernels import ops

        assert not isinstance(self.padding, str)
        shift = bias.get("bias", self.bias)
        return ops.conv(x, self.weight, shift, self.stride, self.padding, self.dilation, relu)


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
    from lrnas.layers.kernels import ops

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
        if _takes_norm(self, x) and not is_watched(self.act):
            return _batch_norm(self, x, relu=True)
        return cast(Tensor, super().forward(x))  # type: ignore[no-untyped-call]


class _MaxPool2d(nn.MaxPool2d):
    @staticmethod
    def fits(module: nn.MaxPool2d) -> bool:
        return module.dilation in (1, (1, 1)) and not module.return_indices and _is_square(module)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _takes_pool(self, input):
            return cast(Tensor, super().forward(input))
        from lrnas.layers.kernels import ops, pools

        return ops.max_pool(input, pools.Window(*_window(self)), self.ceil_mode)


class _AvgPool2d(nn.AvgPool2d):
    @staticmethod
    def fits(module: nn.AvgPool2d) -> bool:
        return module.divisor_override is None and _is_square(module)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not _takes_pool(self, input):
            return super().forward(input)
        from lrnas.layers.kernels import ops, pools

        return ops.average_pool(input, pools.Window(*_window(self)), self.ceil_mode, self.count_include_pad)


class _AdaptiveMaxPool2d(nn.AdaptiveMaxPool2d):
    """Over the whole map."""

    @staticmethod
    def fits(module: nn.AdaptiveMaxPool2d) -> bool:
        return module.output_size in (1, (1, 1)) and not module.return_indices

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not usable(input):
            return cast(Tensor, super().forward(input))
        from lrnas.layers.kernels import ops

        return ops.whole_max(input)


class _Composite(CompositeConv2d):
    """With a join, what follows comes with the join; see `CompositeConv2d` for the rest."""

    @staticmethod
    def fits(module: CompositeConv2d) -> bool:
        return not module.pads_input

    def takes(self, x: Tensor) -> bool:
        joined = self.join is None or (isinstance(self.join, _Conv2d) and not is_watched(self.join))
        return joined and super().takes(x)

    def compute(self, x: Tensor, **then: Any) -> Tensor:
        if self.join is None:
            return super().compute(x, **then)
        then.setdefault("bias", self.join.bias)
        form = best_form(self, num_positions(x), pools="pool" in then)
        if form is Form.APART and num_positions(x) < MANY_POSITIONS:
            return self._compute_join(super().compute(x), **then)
        then["bias"] = joined_bias(self, then)  # of its own it is one more pass over the map, backward
        if form is Form.APART:
            return self._compute_join(super().compute(x, bias=None), **then)
        return self._compute_joined(x, form, **then)

    def _compute_join(self, mixed: Tensor, **then: Any) -> Tensor:
        assert isinstance(self.join, _Conv2d)
        if then.keys() <= {"relu", "bias"}:
            return self.join.compute(mixed, **then)
        from lrnas.layers.kernels.composite_op import composite_conv
        from lrnas.layers.kernels.layer import Layer

        size = (mixed.shape[2], mixed.shape[3])
        layer = Layer((self.out_channels,), ((1, 1),), ((0, 0),), (1, 1), (1, 1), size)
        return composite_conv(mixed, [self.join.weight], layer=layer, **then)

    def _compute_joined(self, x: Tensor, form: Form, **then: Any) -> Tensor:
        """Groups and join as the one convolution that they are."""
        weight, margins, taps = join(self)
        if form is Form.LIBRARY:
            return self._compute_dense(x, weight, margins, **then)
        from lrnas.layers.kernels.composite_op import composite_conv

        layer = layer_of(list(self.group_convs()), x)._replace(
            filters=(self.out_channels,),
            kernels=((weight.shape[2], weight.shape[3]),),
            margins=((margins[0][0], margins[1][0]),),
            taps=taps,
        )
        return composite_conv(x, [weight], layer=layer, **then)

    def _compute_dense(
        self, x: Tensor, weight: Tensor, margins: Any, relu: bool = False, pool: int = 1, **then: Any
    ) -> Tensor:
        from lrnas.layers.kernels import ops
        from lrnas.layers.kernels.pools import Window

        if "scale" in then:
            weight = weight * then["scale"][:, None, None, None]
        bias = None if then["bias"] is None else then["bias"].to(x.dtype)
        out = ops.conv(x, weight.to(x.dtype), bias, self.stride, (margins[0][0], margins[1][0]), self.dilation, relu)
        return out if pool == 1 else ops.max_pool(out, Window(pool, pool, 0), False)

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x, relu=False) if self.takes(x) else super().forward(x)


class _Separable(SeparableConv2d):
    """The second half brings along what follows."""

    @staticmethod
    def fits(module: SeparableConv2d) -> bool:
        return not module.pads_input

    def takes(self, x: Tensor) -> bool:
        first, second = self.halves()
        return first.takes(x) and not is_watched(second) and min(layer_of([second], x).size) > 0

    def compute(self, x: Tensor, **then: Any) -> Tensor:
        first, second = self.halves()
        return second.compute(first.compute(x), **then)


class _InOrder(nn.Module):
    """Runs its children one after another, a convolution or batch norm together with what it can bring along."""

    @staticmethod
    def fits(module: nn.Module) -> bool:
        return True

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if not usable(input):
            return cast(Tensor, super().forward(input))
        x = input
        # not children(), which leaves out what stands here twice
        modules = [
            module
            for module in self._modules.values()
            if module is not None and (type(module) is not nn.Identity or is_watched(module))
        ]
        while modules:
            module = modules.pop(0)
            then = _take_along(module, modules) if isinstance(module, _LEADERS) else {}
            if then and module.takes(x):  # type: ignore[operator]
                del modules[: then.pop("number")]
                x = module.compute(x, **then)  # type: ignore[operator]
            else:
                x = module(x)
        return x


def _take_along(module: nn.Module, following: list[nn.Module]) -> dict[str, Any]:
    """What a module can do of what follows it, in `compute`'s words, and the number of modules that is."""
    rest = [] if is_watched(module) else list(itertools.takewhile(lambda other: not is_watched(other), following))
    length = len(rest)
    then: dict[str, Any] = {}
    mixed = _mixed_convs(module)
    if mixed and rest and _is_constant(rest[0]):
        then |= _scale_and_bias(mixed, rest.pop(0))  # type: ignore[arg-type]
    if rest and type(rest[0]) is nn.ReLU:
        then["relu"] = True
        rest.pop(0)
    if mixed and rest and isinstance(rest[0], nn.MaxPool2d) and _is_halving(rest[0]):
        then["pool"] = 2
        rest.pop(0)
    return then and then | {"number": length - len(rest)}


def _mixed_convs(module: nn.Module) -> Sequence[nn.Conv2d]:
    """The convolutions, computed by one kernel, whose output is the module's."""
    if isinstance(module, WindowConv2d):
        return [module]
    if isinstance(module, SeparableConv2d):
        return [module.halves()[1]]
    if not isinstance(module, CompositeConv2d):
        return []
    return list(module.group_convs()) if module.join is None else [module.join]


def _is_constant(module: nn.Module) -> bool:
    """Whether this is a batch norm of which no gradient is wanted: then it is a factor and a summand."""
    plain = isinstance(module, nn.BatchNorm2d) and type(module).forward in (
        nn.BatchNorm2d.forward,
        _BatchNorm2d.forward,
    )
    known = plain and module.affine and module.running_var is not None and not module.training
    return bool(known) and not torch.is_grad_enabled()


def _scale_and_bias(convs: Sequence[nn.Conv2d], norm: nn.BatchNorm2d) -> dict[str, Tensor]:
    """Convolutions' biases and the batch norm after them, as one factor and one summand for every filter."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight.float() * torch.rsqrt(norm.running_var.float() + norm.eps)
    shift = norm.bias.float() - norm.running_mean.float() * scale
    bias = joint_bias(convs)
    return {"scale": scale, "bias": shift if bias is None else shift + bias * scale}


def _is_halving(pool: nn.MaxPool2d) -> bool:
    plain = pool.dilation in (1, (1, 1)) and not pool.return_indices and not pool.ceil_mode
    return plain and _is_square(pool) and _window(pool) == (2, 2, 0)


_KINDS: dict[type[nn.Module], Any] = {
    nn.Conv2d: _Conv2d,
    nn.BatchNorm2d: _BatchNorm2d,
    BatchNormAct2d: _BatchNormAct2d,
    nn.MaxPool2d: _MaxPool2d,
    nn.AvgPool2d: _AvgPool2d,
    nn.AdaptiveMaxPool2d: _AdaptiveMaxPool2d,
    nn.Sequential: _InOrder,
    ConvBlock: _InOrder,
    CompositeConv2d: _Composite,
    SeparableConv2d: _Separable,
}
"""By whose `forward` a module has, what stands in for it."""
_LEADERS = (_Conv2d, _BatchNorm2d, _Composite, _Separable, WindowConv2d)


@functools.cache
def _with_kernels(own: Any, kind: Any) -> Any:
    """A class like a module's own, whose `forward` is that of `kind`."""
    return type(f"Fused{own.__name__}", (kind, own), {"stands_for": own})


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
