"""Convolutions whose filters have different shapes.

`CompositeConv2d` replaces a k×k convolution: same input, same output size. Its groups of filters (3×1, 1×3, 3×3, …)
all look at the middle of the k×k window, and their outputs are concatenated: vertical filters first, then horizontal
ones, then the rest. With a join, a 1×1 convolution mixes the result, with no activation in between. `SeparableConv2d`
is a 1×k convolution followed by a k×1 convolution.

Keys of the state dict name the shapes: `conv3x1.weight`, `conv1x3.weight`, `conv3x3.weight`, `join.weight`.

The layers consist of ordinary PyTorch operations. On a GPU that can run the fused kernels, one kernel computes all
groups instead of several convolutions and a concatenation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
import torch.nn.functional as F
from timm.layers import pad_same
from torch import Tensor, nn
from torch.nn.modules import module as modules

from lrnas.arch.architecture import Filters, Mix, concatenation_order
from lrnas.errors import ConversionError
from lrnas.layers.kernels import is_faster

if TYPE_CHECKING:
    from lrnas.layers.kernels.layer import Layer

IntPair = int | tuple[int, int]
Padding = IntPair | str
"""As in `nn.Conv2d`: numbers, "valid" or "same"; also "tf_same", the padding of timm's `Conv2dSame`."""
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
Margins = tuple[tuple[int, int], tuple[int, int]]
"""Padding of an input with zeros: (before, after) its rows, and (before, after) its columns. Negative numbers crop."""


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _explicit_padding(padding: Padding, window: tuple[int, int], dilation: tuple[int, int]) -> Margins:
    """The padding in numbers, for any padding argument of `nn.Conv2d`."""
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilation, window, strict=True)]
        return tuple((total // 2, total - total // 2) for total in totals)  # type: ignore[return-value]
    padding = 0 if padding == "valid" else padding
    assert not isinstance(padding, str), f"padding is a number, a pair, valid or same; got {padding!r}"
    rows, columns = _pair(padding)
    return (rows, rows), (columns, columns)


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks or a replaced `forward`. It must then be called; a GPU kernel cannot replace it."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    everywhere = (modules._global_forward_hooks, modules._global_forward_pre_hooks, modules._global_backward_hooks)
    return any(hooks) or any(everywhere) or "forward" in module.__dict__


class _Groups(ABC):
    """Mixin for layers with convolutions side by side that one fused kernel can compute."""

    @abstractmethod
    def group_convs(self) -> Iterable[WindowConv2d]:
        """The convolutions side by side, in the order of their outputs."""

    def supports(self, x: Tensor) -> bool:
        """Whether a fused kernel can compute the groups for this input. All other inputs are left to PyTorch."""
        convs = list(self.group_convs())
        fits = is_faster(x) and x.shape[1] == convs[0].in_channels and min(_output_size(convs[0], x)) > 0
        return fits and not any(map(has_hooks, convs))

    def compute(self, x: Tensor, **epilogue: Any) -> Tensor:
        """Compute the groups and an epilogue (see `composite_conv`) with one fused kernel; a join is not included."""
        from lrnas.layers.kernels.composite_op import composite_conv

        convs = list(self.group_convs())
        epilogue.setdefault("bias", concatenated_bias(convs))
        return composite_conv(x, [conv.weight for conv in convs], layer=kernel_layer(convs, x), **epilogue)


class WindowConv2d(_Groups, nn.Conv2d):
    """A convolution whose kernel lies in the middle of a larger window.

    The output has the size that a convolution with the window as its kernel would have. If the window is larger than
    the kernel, there is less padding by the difference; negative padding crops the input. In a window of even size the
    middle is rounded down.

    Args:
        in_channels: Channels of the input.
        out_channels: Number of filters.
        kernel_size: Rows and columns of the filters.
        window: Rows and columns of the window.
        stride: As in `nn.Conv2d`.
        padding: As in `nn.Conv2d`, for a convolution with the window as its kernel.
        dilation: As in `nn.Conv2d`.
        bias: As in `nn.Conv2d`.
        device: As in `nn.Conv2d`.
        dtype: As in `nn.Conv2d`.
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
        pad = (margins[0][0], margins[1][0]) if even else 0
        super().__init__(
            in_channels, out_channels, kernel_size, stride, pad, dilation, bias=bias, device=device, dtype=dtype
        )
        self.margins: Margins = (margins[0], margins[1])
        self.margin = None if even else (*margins[1], *margins[0])
        """Uneven padding: left, right, top, bottom. Negative numbers crop. None if the padding is even."""

    def forward(self, x: Tensor) -> Tensor:
        # TorchScript, which does not have the kernels, would compile both sides of an `and`
        if False if torch.jit.is_scripting() else self.supports(x):  # type: ignore[attr-defined]
            return self.compute(x)
        if self.margin is not None:
            x = F.pad(x, self.margin)
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation)

    def group_convs(self) -> Iterable[WindowConv2d]:
        return [self]


def kernel_layer(convs: Sequence[WindowConv2d], x: Tensor) -> Layer:
    """The description of convolutions side by side that the kernels need, for an input."""
    from lrnas.layers.kernels.layer import Layer

    first = convs[0]
    filters = tuple(conv.out_channels for conv in convs)
    kernels = tuple(_pair(conv.kernel_size) for conv in convs)
    margins = tuple((conv.margins[0][0], conv.margins[1][0]) for conv in convs)
    return Layer(filters, kernels, margins, _pair(first.stride), _pair(first.dilation), _output_size(first, x))


def concatenated_bias(convs: Sequence[nn.Conv2d]) -> Tensor | None:
    """The biases of convolutions whose outputs are concatenated; None if there are no biases."""
    biases = [conv.bias for conv in convs if conv.bias is not None]
    return None if not biases else biases[0] if len(biases) == 1 else torch.cat(biases)


def covers(conv: nn.Conv2d, x: Tensor) -> bool:
    """Whether the filters of a convolution have the size of its input, as in VGG's classifier: the output is 1×1."""
    is_plain = conv.padding == (0, 0) and conv.dilation == (1, 1) and conv.groups == 1
    return is_plain and x.ndim == 4 and x.shape[1:] == conv.weight.shape[1:]


def conv_as_product(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """The output of a convolution that `covers` its input, as a matrix product."""
    weight = conv.weight
    if not weight.is_contiguous():  # keep its order in memory, to avoid a copy
        x, weight = x.permute(0, 2, 3, 1), weight.permute(0, 2, 3, 1)
    return F.linear(x.flatten(1), weight.flatten(1), conv.bias)[:, :, None, None]


def num_positions(x: Tensor) -> int:
    """The number of positions in all maps of a batch."""
    return x.shape[0] * x.shape[2] * x.shape[3]


def _output_size(conv: WindowConv2d, x: Tensor) -> tuple[int, int]:
    rows, columns = (
        (x.shape[2 + axis] + sum(conv.margins[axis]) - conv.dilation[axis] * (conv.kernel_size[axis] - 1) - 1)
        // conv.stride[axis]
        + 1
        for axis in (0, 1)
    )
    return rows, columns


class _Replacement(nn.Module):
    """Base class of layers that replace a k×k convolution: its geometry, and all padding that is not with zeros."""

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
        self.groups = 1  # for code that reads this attribute of nn.Conv2d
        self.padding_mode = padding_mode
        self.pads_input = padding_mode != "zeros" or padding == "tf_same"
        """Whether the input is padded once for all filters. Each filter then crops the part that it needs."""
        self.inner_padding: Padding = 0 if self.pads_input else self.padding
        """The padding of the convolutions inside."""
        self.depends_on_size = padding == "tf_same"
        """Whether the padding depends on the size of the input."""
        self.pads = _explicit_padding(0 if self.depends_on_size else padding, self.kernel_size, self.dilation)

    def pad_input(self, x: Tensor, rows: bool = True, columns: bool = True) -> Tensor:
        """Pad rows, columns or both, if the input is padded once for all filters."""
        if not self.pads_input:
            return x
        if self.depends_on_size:
            kernel = [self.kernel_size[0] if rows else 1, self.kernel_size[1] if columns else 1]
            stride = [self.stride[0] if rows else 1, self.stride[1] if columns else 1]
            return pad_same(x, kernel, stride, list(self.dilation))  # type: ignore[no-any-return]
        (top, bottom), (left, right) = self.pads
        margin = [left if columns else 0, right if columns else 0, top if rows else 0, bottom if rows else 0]
        return F.pad(x, margin, mode=self.padding_mode)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        for name, default in (("padding", (0, 0)), ("dilation", (1, 1)), ("padding_mode", "zeros")):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)!r}"
        return text


class CompositeConv2d(_Groups, _Replacement):
    """Groups of filters of different shapes side by side, optionally followed by a 1×1 convolution (join).

    It replaces a k×k convolution: the output has the same size. Outputs are concatenated in a fixed order: k×1, 1×k,
    then the other shapes.

    >>> CompositeConv2d(64, {(3, 1): 48, (1, 3): 48, (3, 3): 32}, kernel_size=3, padding=1, join=128)

    Args:
        in_channels: Channels of the input.
        filters: The number of filters of each shape (rows, columns); a shape with zero filters is left out.
        kernel_size: Kernel size of the k×k convolution that the layer replaces. All filters look at its middle.
        stride: As in `nn.Conv2d`, of the k×k convolution.
        padding: As in `nn.Conv2d`, of the k×k convolution; also "tf_same" (timm's `Conv2dSame`).
        dilation: As in `nn.Conv2d`, of the k×k convolution.
        bias: Whether the filters and the join have biases.
        padding_mode: As in `nn.Conv2d`.
        join: Number of filters of the join; None for no join.
        device: As in `nn.Conv2d`.
        dtype: As in `nn.Conv2d`.

    Raises:
        ConversionError: If there is no filter, or if a filter is larger than the window and the padding is not zeros.
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
                f"a composite layer needs at least one filter, no shape twice, and a join of None or at least 1; got "
                f"{listed} and join {join}"
            )
        total = sum(group.num for group in present)
        super().__init__(in_channels, join or total, kernel_size, stride, padding, dilation, padding_mode)
        self.filters = tuple(present)
        tallest, widest = max(g.height for g in present), max(g.width for g in present)
        if self.pads_input and (tallest > self.kernel_size[0] or widest > self.kernel_size[1]):
            raise ConversionError(
                f"filters larger than the window {self.kernel_size} need padding with zeros; got {tallest}x{widest} "
                f"with {self.padding_mode if padding != 'tf_same' else 'tf_same'} padding"
            )
        geometry = (self.kernel_size, self.stride, self.inner_padding, self.dilation, bias, device, dtype)
        for group in present:
            conv = WindowConv2d(in_channels, group.num, (group.height, group.width), *geometry)
            self.add_module(f"conv{group.shape}", conv)
        self.join = nn.Conv2d(total, join, 1, bias=bias, device=device, dtype=dtype) if join else None

    def group_convs(self) -> Iterator[WindowConv2d]:
        for group in self.filters:
            yield cast(WindowConv2d, self.get_submodule(f"conv{group.shape}"))

    def forward(self, x: Tensor) -> Tensor:
        x = self.pad_input(x)
        if False if torch.jit.is_scripting() else self.supports(x):  # type: ignore[attr-defined]
            x = self.compute(x)
        else:
            outputs = []
            for name, conv in self.named_children():  # not group_convs(), which TorchScript cannot compile
                if name != "join":
                    outputs.append(conv(x))
            x = torch.cat(outputs, dim=-3) if len(outputs) > 1 else outputs[0]
        if self.join is not None:
            x = self.join(x)
        return x


class SeparableConv2d(_Replacement):
    """A 1×k convolution over columns, then a k×1 convolution over rows, with no activation in between.

    Args:
        in_channels: Channels of the input.
        out_channels: Number of filters of the k×1 convolution.
        kernel_size: Kernel size of the k×k convolution that the layer replaces.
        stride: As in `nn.Conv2d`, of the k×k convolution.
        padding: As in `nn.Conv2d`, of the k×k convolution; also "tf_same" (timm's `Conv2dSame`).
        dilation: As in `nn.Conv2d`, of the k×k convolution.
        bias: Whether both convolutions have biases.
        padding_mode: As in `nn.Conv2d`.
        middle: Number of filters of the 1×k convolution; None for as many as `out_channels`.
        device: As in `nn.Conv2d`.
        dtype: As in `nn.Conv2d`.

    Raises:
        ConversionError: If the kernel has only one row or one column.
    """

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
            raise ConversionError(
                f"a separable layer needs a kernel of at least 2x2; got {rows}x{columns}; use a plain convolution"
            )
        across, down = (pads, pads) if isinstance(pads, str) else ((0, _pair(pads)[1]), (_pair(pads)[0], 0))
        self.names = (f"conv1x{columns}", f"conv{rows}x1")
        for name, inputs, outputs, kernel, stride, pad in (
            (self.names[0], in_channels, self.middle, (1, columns), (1, self.stride[1]), across),
            (self.names[1], self.middle, out_channels, (rows, 1), (self.stride[0], 1), down),
        ):
            half = WindowConv2d(inputs, outputs, kernel, kernel, stride, pad, self.dilation, bias, device, dtype)
            self.add_module(name, half)

    def halves(self) -> tuple[WindowConv2d, WindowConv2d]:
        """The 1×k convolution and the k×1 convolution."""
        first, second = (cast(WindowConv2d, self.get_submodule(name)) for name in self.names)
        return first, second

    def forward(self, x: Tensor) -> Tensor:
        for i, half in enumerate(self.children()):  # not halves(), which TorchScript cannot compile
            x = half(self.pad_input(x, rows=i == 1, columns=i == 0))
        return x


def output_convs(layer: nn.Module) -> list[nn.Conv2d]:
    """The convolutions inside a layer that produce its output channels, in the order of these channels."""
    if isinstance(layer, CompositeConv2d):
        return list(layer.group_convs()) if layer.join is None else [layer.join]
    if isinstance(layer, SeparableConv2d):
        return [layer.halves()[1]]
    assert isinstance(layer, nn.Conv2d), f"{type(layer).__name__} is no convolution"
    return [layer]


def make_conv(
    in_channels: int,
    mix: Mix,
    kernel_size: IntPair,
    stride: IntPair = 1,
    padding: Padding = 0,
    dilation: IntPair = 1,
    bias: bool = True,
    padding_mode: PaddingMode = "zeros",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Module:
    """Make the layer that replaces a k×k convolution by a mix of filters.

    Args:
        in_channels: Channels of the input.
        mix: The numbers and shapes of the filters, and the second convolution, if any.
        kernel_size: Kernel size of the k×k convolution.
        stride: As in `nn.Conv2d`, of the k×k convolution.
        padding: As in `nn.Conv2d`, of the k×k convolution; also "tf_same" (timm's `Conv2dSame`).
        dilation: As in `nn.Conv2d`, of the k×k convolution.
        bias: Whether the convolutions have biases.
        padding_mode: As in `nn.Conv2d`.
        device: As in `nn.Conv2d`.
        dtype: As in `nn.Conv2d`.

    Returns:
        The simplest module for the mix: `nn.Conv2d`, `WindowConv2d`, `SeparableConv2d` or `CompositeConv2d`.
    """
    geometry = (kernel_size, stride, padding, dilation, bias, padding_mode)
    if mix.is_separable:
        assert mix.second is not None
        return SeparableConv2d(in_channels, mix.second.num, *geometry, mix.groups[0].num, device, dtype)
    if mix.is_plain and padding_mode == "zeros" and padding != "tf_same":
        group = mix.groups[0]
        shape = (group.height, group.width)
        if shape == _pair(kernel_size):
            return nn.Conv2d(in_channels, group.num, *geometry[:4], 1, bias, padding_mode, device, dtype)
        return WindowConv2d(in_channels, group.num, shape, kernel_size, stride, padding, dilation, bias, device, dtype)
    join = mix.second.num if mix.second else None
    return CompositeConv2d(in_channels, mix.groups, *geometry, join, device, dtype)


class ConvBlock(nn.Module):
    """Convolution with "same" padding, then an optional batch norm, then ReLU.

    Args:
        in_chs: Channels of the input.
        out_chs: Number of filters.
        kernel_size: Rows and columns of the filters.
        stride: As in `nn.Conv2d`.
        batch_norm: Whether a batch norm follows; the convolution then has no bias.
        device: As in `nn.Conv2d`.
        dtype: As in `nn.Conv2d`.
    """

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
        pad, bias = kernel_size // 2, not batch_norm  # the shift of the norm replaces the bias
        self.conv = nn.Conv2d(in_chs, out_chs, kernel_size, stride, pad, bias=bias, device=device, dtype=dtype)
        self.norm = nn.BatchNorm2d(out_chs, device=device, dtype=dtype) if batch_norm else nn.Identity()
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))  # type: ignore[no-any-return]
