"""Equivalent forms of layers with fewer, larger operations: mixed-shape layers as one convolution, norms folded in.

Up to rounding, nothing here changes what a network computes:

- The groups of a composite layer are one convolution whose kernels have zeros around each shape. The form "merged" is
  this convolution followed by the join.
- There is no activation before a join, so groups and join together are also one convolution: the join mixes the kernels
  in the same way as it would mix their outputs. The form "single" has the smallest kernel that contains all shapes, the
  form "dense" at least the k×k kernel of the layer. They differ only if no shape has k rows or none has k columns.
- A separable layer is one convolution whose kernels are sums of outer products, called "dense" and "single". The
  exception is a layer whose first half has a bias: its second half pads with zeros, where the single convolution would
  have the bias. Such a layer is kept.

Which form is fastest depends on the device; `lrnas.exporting.fastest_form` measures it. A `Folding` records what was
folded, so that a new model can be folded in the same way before weights are loaded into it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from timm.layers import BatchNormAct2d, Conv2dSame
from torch import Tensor, nn

from lrnas.arch.architecture import Filters, Mix
from lrnas.errors import ConversionError
from lrnas.layers.conv import (
    CompositeConv2d,
    Margins,
    SeparableConv2d,
    WindowConv2d,
    concatenated_bias,
    make_conv,
    output_convs,
)
from lrnas.layers.norms import fold_norm

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Folding:
    """A record of the batch norms and layers that were folded in a model, by path."""

    norms: Mapping[str, str] = field(default_factory=dict)
    """The batch norm that was folded into a convolution, by the path of the convolution."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """The new form of a mixed-shape layer, dense, single or merged, by the path of the layer."""


def fold(model: nn.Module, folding: Folding) -> nn.Module:
    """Fold batch norms and change forms of layers, in place and with their weights.

    Args:
        model: The model to change.
        folding: The batch norms and layers to fold.

    Returns:
        The model.
    """
    for path, norm_path in folding.norms.items():
        norm = _find(model, norm_path, nn.BatchNorm2d)
        fold_norm(_find(model, path, nn.Module), norm)
        extra = [norm.drop, norm.act] if isinstance(norm, BatchNormAct2d) else []
        extra = [part for part in extra if type(part) is not nn.Identity]
        _replace(model, norm, nn.Sequential(*extra) if len(extra) > 1 else extra[0] if extra else nn.Identity())
    for path, form in folding.forms.items():
        layer = _find(model, path, nn.Module)
        new = _FORMS[form](layer) if form in _FORMS else None
        if new is None:
            raise ConversionError(f"the layer {path} cannot take the form {form!r}; fold another model")
        _replace(model, layer, new)
    return model


def foldable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a model that may have a dense form, by path.

    These are mixed-shape layers and single convolutions that are not square. `dense_form` returns this form, or
    `reason_to_keep` the reason why there is none.
    """
    found: dict[str, nn.Module] = {}
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        if isinstance(module, CompositeConv2d | SeparableConv2d):
            found[path] = module
            inside.update(module.modules())
        elif isinstance(module, WindowConv2d) and module not in inside and len(set(module.kernel_size)) > 1:
            found[path] = module
    return found


def reason_to_keep(layer: nn.Module) -> str:
    """The reason why a layer has no dense form; an empty text if it has one."""
    if not isinstance(layer, SeparableConv2d):
        return ""
    first, second = layer.halves()
    has_bias = first.bias is not None and bool(first.bias.any())
    pads_zeros = layer.padding == "tf_same" or (not layer.pads_input and any(second.margins[0]))
    return "its first half has a bias, its second half pads with zeros" if has_bias and pads_zeros else ""


@torch.no_grad()
def dense_form(layer: nn.Module) -> nn.Conv2d | None:
    """A single convolution that computes the same as a layer; None if no convolution does."""
    if isinstance(layer, SeparableConv2d):
        return None if reason_to_keep(layer) else _dense_separable(layer)
    if isinstance(layer, CompositeConv2d):
        return _one_conv(layer, list(layer.group_convs()), layer.kernel_size, layer.join)
    if isinstance(layer, WindowConv2d):
        side = max(layer.kernel_size)
        return _one_conv(layer, [layer], (side, side))
    return None


@torch.no_grad()
def single_form(layer: nn.Module) -> nn.Module | None:
    """The smallest single convolution that computes the same as a layer with a second convolution; None if none does.

    It is the module that `make_conv` returns for `Mix.folded`, so its weights fit the deployed form of the network.
    """
    if isinstance(layer, SeparableConv2d):
        return dense_form(layer)
    if not isinstance(layer, CompositeConv2d) or layer.join is None:
        return None
    convs = list(layer.group_convs())
    weight, bias = _weights(convs, _common_margins(*(conv.margins for conv in convs)), layer.join)
    mix = Mix((Filters(weight.shape[2], weight.shape[3], layer.out_channels),))
    geometry = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, bias is not None, layer.padding_mode)
    new = make_conv(layer.in_channels, mix, *geometry, layer.join.weight.device, layer.join.weight.dtype)
    _copy_weights(output_convs(new)[0], weight, bias)
    return new.train(layer.training)


@torch.no_grad()
def merged_form(layer: nn.Module) -> nn.Module | None:
    """One convolution for the groups of a composite layer, followed by its join; None for layers without a join."""
    if not isinstance(layer, CompositeConv2d) or layer.join is None:
        return None
    groups = _one_conv(layer, list(layer.group_convs()), layer.kernel_size)
    return nn.Sequential(groups, copy.deepcopy(layer.join)).train(layer.training)


_FORMS = {"dense": dense_form, "single": single_form, "merged": merged_form}


class Joined(NamedTuple):
    """The groups and the join of a composite layer as one convolution."""

    weight: Tensor
    """[outputs, channels, rows, columns]."""
    margins: Margins
    taps: tuple[int, ...]
    """The positions of the kernel that may be nonzero, counted row by row."""


def joined_geometry(composite: CompositeConv2d) -> tuple[Margins, tuple[int, int], tuple[int, ...]]:
    """Margins, size and taps of the smallest kernel that contains the kernels of all groups."""
    convs = list(composite.group_convs())
    margins = _common_margins(*(conv.margins for conv in convs))
    left, right, above, below = _zeros_around(convs[0], margins)
    size = (above + convs[0].kernel_size[0] + below, left + convs[0].kernel_size[1] + right)
    taps = set()
    for conv in convs:
        left, _, above, _ = _zeros_around(conv, margins)
        rows, columns = (range(length) for length in conv.kernel_size)
        taps |= {(above + row) * size[1] + left + column for row in rows for column in columns}
    return margins, size, tuple(sorted(taps))


def join_kernels(composite: CompositeConv2d) -> Joined:
    """The groups and the join of a composite layer as one convolution. Gradients flow through it.

    `joined_bias` computes its bias.
    """
    assert composite.join is not None
    margins, _, taps = joined_geometry(composite)
    with torch.autocast(composite.join.weight.device.type, enabled=False):
        kernels = _embed_kernels(list(composite.group_convs()), margins)
        weight = torch.einsum("jf,fcyx->jcyx", composite.join.weight[:, :, 0, 0], kernels)
    return Joined(weight, margins, taps)


def joined_bias(composite: CompositeConv2d, bias: Tensor | None, scale: Tensor | None = None) -> Tensor | None:
    """The bias of the convolution that `join_kernels` returns.

    Args:
        composite: A composite layer with a join.
        bias: The bias after the join, already scaled.
        scale: A factor for every output, for example of a batch norm after the join; `bias` must then be given.

    Returns:
        The sum of `bias` and the effect of the groups' biases on the output.
    """
    assert composite.join is not None
    group_bias = concatenated_bias(list(composite.group_convs()))
    if group_bias is None:
        return bias
    with torch.autocast(group_bias.device.type, enabled=False):
        mix = composite.join.weight[:, :, 0, 0]
        if scale is None:
            return F.linear(group_bias, mix, bias)
        assert bias is not None
        return bias + scale * (mix @ group_bias)


def _one_conv(
    layer: CompositeConv2d | WindowConv2d,
    convs: Sequence[WindowConv2d],
    window: tuple[int, int],
    join: nn.Conv2d | None = None,
) -> nn.Conv2d:
    """One convolution for all convolutions of a layer, and the join if given. Its kernel covers at least the window."""
    margins = _common_margins(*(conv.margins for conv in convs), _window_margins(convs[0], window))
    weight, bias = _weights(convs, margins, join)
    if isinstance(layer, CompositeConv2d) and layer.pads_input:
        return _like(layer, weight, bias)
    (top, bottom), (left, right) = margins
    if top == bottom >= 0 and left == right >= 0:
        return _new_conv(nn.Conv2d, layer, weight, bias, padding=(top, left))
    new = _new_conv(WindowConv2d, layer, weight, bias, window=tuple(weight.shape[2:]))
    assert isinstance(new, WindowConv2d)
    new.margins, new.margin = margins, (left, right, top, bottom)
    return new


def _weights(convs: Sequence[WindowConv2d], margins: Margins, join: nn.Conv2d | None) -> tuple[Tensor, Tensor | None]:
    """The weight, with these margins, and the bias of several convolutions as one, and of the join if given."""
    weight = _embed_kernels(convs, margins).double()
    bias = concatenated_bias(convs)
    bias = None if bias is None else bias.double()
    if join is not None:
        mix = join.weight[:, :, 0, 0].double()
        weight = torch.einsum("jf,fcyx->jcyx", mix, weight)
        bias = None if bias is None else mix @ bias
        if join.bias is not None:
            bias = join.bias.double() if bias is None else bias + join.bias.double()
    return weight, bias


def _dense_separable(layer: SeparableConv2d) -> nn.Conv2d:
    first, second = layer.halves()
    down = second.weight[..., 0].double()  # out × middle × rows
    weight = torch.einsum("omi,mcj->ocij", down, first.weight[:, :, 0].double())
    bias = None if second.bias is None else second.bias.double()
    if first.bias is not None:
        carried = torch.einsum("omi,m->o", down, first.bias.double())
        bias = carried if bias is None else bias + carried
    return _like(layer, weight, bias)


def _like(layer: CompositeConv2d | SeparableConv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    """A convolution with these weights and the geometry of the k×k convolution that a layer replaces."""
    assert tuple(weight.shape[2:]) == layer.kernel_size
    if layer.padding == "tf_same":
        return _new_conv(Conv2dSame, layer, weight, bias)
    return _new_conv(nn.Conv2d, layer, weight, bias, padding=layer.padding, padding_mode=layer.padding_mode)


def _new_conv(
    kind: type[nn.Conv2d],
    layer: CompositeConv2d | SeparableConv2d | WindowConv2d,
    weight: Tensor,
    bias: Tensor | None,
    **geometry: Any,
) -> nn.Conv2d:
    """A convolution with these weights, and with the stride, dilation, device and dtype of a layer."""
    geometry |= {"stride": layer.stride, "dilation": layer.dilation, "bias": bias is not None}
    new = kind(layer.in_channels, len(weight), (weight.shape[2], weight.shape[3]), **geometry)
    own = next(layer.parameters())
    new.to(own.device, own.dtype).train(layer.training)
    _copy_weights(new, weight, bias)
    return new


def _copy_weights(conv: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> None:
    conv.weight.copy_(weight)
    if conv.bias is not None and bias is not None:
        conv.bias.copy_(bias)


# Geometry: the place of each kernel in a common, larger kernel.


def _common_margins(*margins: Margins) -> Margins:
    """The margins of the smallest kernel that contains all kernels with the given margins."""
    rows, columns = ((max(own[axis][0] for own in margins), max(own[axis][1] for own in margins)) for axis in (0, 1))
    return rows, columns


def _window_margins(conv: WindowConv2d, window: tuple[int, int]) -> Margins:
    """The margins of a window of a given size around the kernel of a convolution."""
    margins = []
    for (before, after), size, kernel, step in zip(conv.margins, window, conv.kernel_size, conv.dilation, strict=True):
        first = (size - 1) // 2 - (kernel - 1) // 2
        margins.append((before + step * first, after + step * (size - kernel - first)))
    return (margins[0], margins[1])


def _zeros_around(conv: WindowConv2d, margins: Margins) -> list[int]:
    """The zeros around a kernel that give it these margins: left, right, above, below (the order of `F.pad`)."""
    return [
        (margins[axis][side] - conv.margins[axis][side]) // conv.dilation[axis] for axis in (1, 0) for side in (0, 1)
    ]


def _embed_kernels(convs: Sequence[WindowConv2d], margins: Margins) -> Tensor:
    """The kernels of several convolutions in one tensor [filters, channels, rows, columns], with zeros around them."""
    return torch.cat([F.pad(conv.weight, _zeros_around(conv, margins)) for conv in convs])


def _find(model: nn.Module, path: str, kind: type[_Module]) -> _Module:
    try:
        module: nn.Module | None = model.get_submodule(path)
    except AttributeError:
        module = None
    if not isinstance(module, kind):
        found = "nothing" if module is None else f"a {type(module).__name__}"
        raise ConversionError(f"{path} must be a {kind.__name__} to be folded; got {found}; fold another model")
    return module


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    new.train(old.training)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            model.set_submodule(name, new)
