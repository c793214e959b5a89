"""Convolutions whose filters have different shapes.

`CompositeConv2d` stands where a k×k convolution stood: same input, same output size. Its groups of
filters (3×1, 1×3, 3×3, …) all look at the middle of the k×k window of the layer they replace, and their
outputs are concatenated: vertical ones first, then horizontal ones, then the rest. With a join, a 1×1
convolution mixes the result, with no activation between. `SeparableConv2d` is 1×k followed by k×1.

State-dict keys name the shapes: `conv3x1.weight`, `conv1x3.weight`, `conv3x3.weight`, `join.weight`.

All is plain PyTorch, but for one thing: on a GPU where the fused kernels run, filters side by side are computed by one
of them instead of several convolutions and a concatenation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.nn.functional as F
from timm.layers import pad_same
from torch import Tensor, nn
from torch.nn.modules import module as modules

from lrnas.arch.architecture import Filters, Mix, concatenation_order
from lrnas.errors import ConversionError
from lrnas.layers.kernels import pays

if TYPE_CHECKING:
    from lrnas.layers.kernels.layer import Layer

IntPair = int | tuple[int, int]
Padding = IntPair | str
"""As in `nn.Conv2d`: numbers, "valid" or "same"; and "tf_same", timm's `Conv2dSame`."""
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


def _pair(value: IntPair) -> tuple[int, int]:
    if isinstance(value, int):
        return (value, value)
    first, second = value
    return (first, second)


class WindowConv2d(nn.Conv2d):
    """A convolution whose kernel lies in the middle of the window of another one.

    Its output has the size that a convolution with kernel `window` and the given stride, padding and
    dilation would have. Where the window reaches further than the kernel, the padding shrinks by the
    difference; what is left below zero crops the input. In an even window the middle is rounded down.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntPair,
        window: IntPair,
        stride: IntPair = 1,
        padding: Padding = 0,
        dilation: IntPair = 1,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        kernel_size, window, dilation = _pair(kernel_size), _pair(window), _pair(dilation)
        pads = _explicit_padding(padding, window, dilation)
        margins = []
        for axis in (0, 1):
            reach = dilation[axis] * (window[axis] - kernel_size[axis])
            before = dilation[axis] * ((window[axis] - 1) // 2 - (kernel_size[axis] - 1) // 2)
            margins.append((pads[axis][0] - before, pads[axis][1] - (reach - before)))
        even = all(first == last >= 0 for first, last in margins)
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=(margins[0][0], margins[1][0]) if even else 0,
            dilation=dilation,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.margins = (margins[0], margins[1])
        """Zeros before and after the rows, before and after the columns; what is cropped where negative."""
        self.margin = None if even else (*margins[1], *margins[0])
        """Uneven padding, or cropping where negative: left, right, top, bottom."""

    def forward(self, x: Tensor) -> Tensor:
        if self.takes(x):
            return self.compute(x)
        if self.margin is not None:
            x = F.pad(x, self.margin)
        return super().forward(x)

    def takes(self, x: Tensor) -> bool:
        return _kernels_take([self], x)

    def compute(self, x: Tensor, **then: Any) -> Tensor:
        return _side_by_side([self], x, **then)


def is_watched(module: nn.Module) -> bool:
    """Whether somebody wants to know when a module is called, or changed what it does: then it must be called."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    everywhere = (modules._global_forward_hooks, modules._global_forward_pre_hooks, modules._global_backward_hooks)
    return any(hooks) or any(everywhere) or "forward" in module.__dict__


def _kernels_take(convs: Sequence[WindowConv2d], x: Tensor) -> bool:
    """Whether one kernel does the work of these convolutions. What it does not take, PyTorch does, or refuses."""
    return (
        pays(x)
        and x.shape[1] == convs[0].in_channels
        and min(_output_size(convs[0], x)) > 0
        and not any(is_watched(conv) for conv in convs)
    )


def _side_by_side(convs: Sequence[WindowConv2d], x: Tensor, **then: Any) -> Tensor:
    """Convolutions of one input, their outputs concatenated, by one kernel; `then` is what it does with them."""
    from lrnas.layers.kernels.composite_op import composite_conv

    then.setdefault("bias", joint_bias(convs))
    return composite_conv(x, [conv.weight for conv in convs], layer=layer_of(convs, x), **then)


def layer_of(convs: Sequence[WindowConv2d], x: Tensor) -> Layer:
    """Convolutions side by side, as the kernels know them."""
    from lrnas.layers.kernels.layer import Layer

    first = convs[0]
    return Layer(
        tuple(conv.out_channels for conv in convs),
        tuple((conv.kernel_size[0], conv.kernel_size[1]) for conv in convs),
        tuple((conv.margins[0][0], conv.margins[1][0]) for conv in convs),
        (first.stride[0], first.stride[1]),
        (first.dilation[0], first.dilation[1]),
        _output_size(first, x),
    )


def joint_bias(convs: Sequence[nn.Conv2d]) -> Tensor | None:
    """The biases of convolutions whose outputs are concatenated."""
    biases = [conv.bias for conv in convs if conv.bias is not None]
    return None if not biases else biases[0] if len(biases) == 1 else torch.cat(biases)


def _output_size(conv: WindowConv2d, x: Tensor) -> tuple[int, int]:
    rows, columns = (
        (x.shape[2 + axis] + sum(conv.margins[axis]) - conv.dilation[axis] * (conv.kernel_size[axis] - 1) - 1)
        // conv.stride[axis]
        + 1
        for axis in (0, 1)
    )
    return rows, columns


class _StandIn(nn.Module):
    """What takes a k×k convolution's place: its geometry, and padding that zeros cannot express."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntPair,
        stride: IntPair,
        padding: Padding,
        dilation: IntPair,
        padding_mode: PaddingMode,
    ) -> None:
        super().__init__()
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = _pair(kernel_size)
        self.stride = _pair(stride)
        self.padding = padding if isinstance(padding, str) else _pair(padding)
        self.dilation = _pair(dilation)
        self.groups = 1
        self.padding_mode = padding_mode
        self.pads_input = padding_mode != "zeros" or padding == "tf_same"
        """Whether the input is padded once, for all filters, before they crop their part of it."""

    @property
    def inner_padding(self) -> Padding:
        return 0 if self.pads_input else self.padding

    def pad_input(self, x: Tensor, *, rows: bool = True, columns: bool = True) -> Tensor:
        if not self.pads_input:
            return x
        kernel = [self.kernel_size[0] if rows else 1, self.kernel_size[1] if columns else 1]
        if self.padding == "tf_same":
            stride = [self.stride[0] if rows else 1, self.stride[1] if columns else 1]
            return cast(Tensor, pad_same(x, kernel, stride, list(self.dilation)))
        vertical, horizontal = _explicit_padding(self.padding, self.kernel_size, self.dilation)
        margin = (*(horizontal if columns else (0, 0)), *(vertical if rows else (0, 0)))
        return F.pad(x, margin, mode=self.padding_mode)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0, 0):
            text += f", padding={self.padding!r}"
        if self.dilation != (1, 1):
            text += f", dilation={self.dilation}"
        if self.padding_mode != "zeros":
            text += f", padding_mode={self.padding_mode!r}"
        return text


class CompositeConv2d(_StandIn):
    """Groups of filters of different shapes side by side, optionally joined by a 1×1 convolution.

    >>> CompositeConv2d(64, {(3, 1): 48, (1, 3): 48, (3, 3): 32}, kernel_size=3, padding=1, join=128)

    `filters` gives the number of filters of each shape (rows, columns); zero leaves a shape out. The
    other arguments are those of `nn.Conv2d` for the k×k layer this one stands for.
    """

    def __init__(
        self,
        in_channels: int,
        filters: Mapping[tuple[int, int], int] | Iterable[Filters],
        kernel_size: IntPair,
        stride: IntPair = 1,
        padding: Padding = 0,
        dilation: IntPair = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        join: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if isinstance(filters, Mapping):
            filters = [Filters(rows, columns, num) for (rows, columns), num in filters.items()]
        present = sorted((g for g in filters if g.num), key=lambda g: concatenation_order((g.height, g.width)))
        if not present or len({group.shape for group in present}) < len(present) or join == 0:
            listed = ", ".join(f"{group.shape} {group.num}" for group in present) or "none"
            raise ConversionError(
                f"a composite layer has at least one filter, each shape once, and a join of at least 1 or None; got "
                f"{listed} and join {join}"
            )
        total = sum(group.num for group in present)
        super().__init__(in_channels, join or total, kernel_size, stride, padding, dilation, padding_mode)
        self.filters = tuple(present)
        tallest, widest = max(g.height for g in present), max(g.width for g in present)
        if self.pads_input and (tallest > self.kernel_size[0] or widest > self.kernel_size[1]):
            raise ConversionError(
                f"filters larger than the {self.kernel_size} window need zero padding, whose margin can grow; got "
                f"{tallest}x{widest} with {self.padding_mode if padding != 'tf_same' else 'tf_same'} padding"
            )
        for group in present:
            conv = WindowConv2d(
                in_channels,
                group.num,
                (group.height, group.width),
                self.kernel_size,
                self.stride,
                self.inner_padding,
                self.dilation,
                bias,
                device,
                dtype,
            )
            self.add_module(f"conv{group.shape}", conv)
        self.join = nn.Conv2d(total, join, 1, bias=bias, device=device, dtype=dtype) if join else None

    def group_convs(self) -> Iterator[WindowConv2d]:
        """The convolutions side by side, in the order of their outputs."""
        for group in self.filters:
            conv = self.get_submodule(f"conv{group.shape}")
            assert isinstance(conv, WindowConv2d)
            yield conv

    def forward(self, x: Tensor) -> Tensor:
        x = self.pad_input(x)
        if self.takes(x):
            x = self.compute(x)
        else:
            outputs = [conv(x) for conv in self.group_convs()]
            x = torch.cat(outputs, dim=-3) if len(outputs) > 1 else outputs[0]
        return x if self.join is None else self.join(x)

    def takes(self, x: Tensor) -> bool:
        """Whether one kernel computes all groups."""
        return _kernels_take(list(self.group_convs()), x)

    def compute(self, x: Tensor, **then: Any) -> Tensor:
        """All groups by one kernel, without the join."""
        return _side_by_side(list(self.group_convs()), x, **then)


class SeparableConv2d(_StandIn):
    """A 1×k convolution over columns, then a k×1 convolution over rows, with no activation between."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: IntPair,
        stride: IntPair = 1,
        padding: Padding = 0,
        dilation: IntPair = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        middle: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, padding_mode)
        self.middle = middle or out_channels
        (rows, columns), pads = self.kernel_size, self.inner_padding
        if rows == 1 or columns == 1:
            raise ConversionError(f"a separable layer has rows and columns to separate; got a {rows}x{columns} kernel")
        across, down = (pads, pads) if isinstance(pads, str) else ((0, _pair(pads)[1]), (_pair(pads)[0], 0))
        self.names = (f"conv1x{columns}", f"conv{rows}x1")
        for name, inputs, outputs, kernel, stride, pad in (
            (self.names[0], in_channels, self.middle, (1, columns), (1, self.stride[1]), across),
            (self.names[1], self.middle, out_channels, (rows, 1), (self.stride[0], 1), down),
        ):
            half = WindowConv2d(inputs, outputs, kernel, kernel, stride, pad, self.dilation, bias, device, dtype)
            self.add_module(name, half)

    def halves(self) -> tuple[WindowConv2d, WindowConv2d]:
        first, second = (self.get_submodule(name) for name in self.names)
        assert isinstance(first, WindowConv2d) and isinstance(second, WindowConv2d)
        return first, second

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.halves()
        x = first(self.pad_input(x, rows=False))
        return cast(Tensor, second(self.pad_input(x, columns=False)))


def make_conv(
    in_channels: int,
    mix: Mix,
    kernel_size: int,
    stride: IntPair = 1,
    padding: Padding = 0,
    dilation: IntPair = 1,
    bias: bool = True,
    padding_mode: PaddingMode = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """The module for a mix of whole filters that stands where a k×k convolution stood."""
    geometry = (kernel_size, stride, padding, dilation, bias, padding_mode)
    if mix.is_separable:
        assert mix.second is not None
        middle, out_channels = mix.groups[0].num, mix.second.num
        return SeparableConv2d(in_channels, out_channels, *geometry, middle, device, dtype)
    simple = padding_mode == "zeros" and padding != "tf_same"
    if mix.is_plain and simple:
        group = mix.groups[0]
        shape, window = (group.height, group.width), kernel_size
        if shape == _pair(window):
            return nn.Conv2d(in_channels, group.num, *geometry[:4], 1, bias, padding_mode, device, dtype)
        return WindowConv2d(in_channels, group.num, shape, window, stride, padding, dilation, bias, device, dtype)
    join = mix.second.num if mix.second else None
    return CompositeConv2d(in_channels, mix.groups, *geometry, join, device, dtype)


def _explicit_padding(
    padding: Padding, window: tuple[int, int], dilation: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows before and after, columns before and after, for any way `nn.Conv2d` spells padding."""
    if padding == "valid":
        padding = 0
    if padding == "same":
        totals = [dilation[axis] * (window[axis] - 1) for axis in (0, 1)]
        return tuple((total // 2, total - total // 2) for total in totals)  # type: ignore[return-value]
    assert not isinstance(padding, str), f"padding is a number, a pair, valid or same; got {padding!r}"
    rows, columns = _pair(padding)
    return (rows, rows), (columns, columns)


class ConvBlock(nn.Module):
    """Convolution with "same" padding, batch norm if wanted, ReLU."""

    def __init__(
        self,
        in_chs: int,
        out_chs: int,
        kernel_size: int,
        stride: int = 1,
        batch_norm: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            in_chs,
            out_chs,
            kernel_size,
            stride,
            padding=kernel_size // 2,
            bias=not batch_norm,  # the norm's shift does what a bias would
            device=device,
            dtype=dtype,
        )
        self.norm = nn.BatchNorm2d(out_chs, device=device, dtype=dtype) if batch_norm else nn.Identity()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.act(self.norm(self.conv(x))))
