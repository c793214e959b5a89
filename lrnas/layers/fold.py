"""The same function with fewer, larger operations: batch norms folded in, mixed-shape layers as one convolution.

Nothing here changes what a network computes, up to rounding:

- A batch norm right after a convolution, in evaluation, is a factor and a shift of its filters.
- Groups side by side are one k×k convolution whose kernels are zero around each shape ("merged", before a join).
- With a join, and no activation between, all of it is one k×k convolution ("dense"): the join mixes kernels as it
  mixes their outputs.
- A separable layer is one k×k convolution of outer products, where the two halves commute with the padding between
  them. Zeros put around the map after a bias was added are not what a padded image would have given: with a bias in
  the first half and zero padding of the rows the two differ at the border, and the layer stays as it is.

Which form is the fastest depends on where it runs: `exporting.fastest_form` measures. A `Folding` says what was
done, so that the same can be done to a new model before weights are loaded into it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from timm.layers import Conv2dSame
from torch import Tensor, nn

from lrnas.errors import ConversionError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d
from lrnas.layers.norms import fold_norm, rest_of

Sides = tuple[int, int]
"""Rows or columns before and after; negative where they are cropped."""


@dataclass(frozen=True, slots=True)
class Folding:
    """What was folded in a model, by path."""

    norms: Mapping[str, str] = field(default_factory=dict)
    """Of convolutions, the batch norm that is in them now."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """Of mixed-shape layers that have another form now: dense or merged."""

    def to_dict(self) -> dict[str, Any]:
        return {"norms": dict(self.norms), "forms": dict(self.forms)}


def fold(model: nn.Module, folding: Folding) -> nn.Module:
    """Fold a model, in place, as a folding says; the weights go along."""
    for path, norm_path in folding.norms.items():
        norm = _get(model, norm_path, "a batch norm")
        if not isinstance(norm, nn.BatchNorm2d):
            raise ConversionError(f"{norm_path} is a {type(norm).__name__} here, not a batch norm; fold another model")
        fold_norm(_get(model, path, "a convolution"), norm)
        _replace(model, norm, rest_of(norm))
    for path, form in folding.forms.items():
        layer = _get(model, path, "a layer")
        new = {"dense": dense_form, "merged": merged_form}.get(form, lambda _: None)(layer)
        if new is None:
            raise ConversionError(f"{path} has no form {form!r}; fold another model")
        _replace(model, layer, new)
    return model


def foldable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that can be one dense convolution, or that say why not, by path."""
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
    """Why a layer has no dense form; "" where it has one."""
    if isinstance(layer, SeparableConv2d) and _shifts_the_border(layer):
        return "its first bias and zero padding do not commute"
    return ""


@torch.no_grad()
def dense_form(layer: nn.Module) -> nn.Module | None:
    """One convolution that computes what a layer computes; None where there is none."""
    if isinstance(layer, SeparableConv2d):
        return None if reason_to_keep(layer) else _dense_separable(layer)
    if isinstance(layer, WindowConv2d):
        side = max(layer.kernel_size)
        return _side_by_side([layer], _Place((side, side), _centred(layer, side)), None)
    if not isinstance(layer, CompositeConv2d):
        return None
    return _side_by_side(list(layer.group_convs()), _window_of(layer), layer)


@torch.no_grad()
def merged_form(layer: nn.Module) -> nn.Module | None:
    """One convolution for the groups, then the join; None for layers without one."""
    if not isinstance(layer, CompositeConv2d) or layer.join is None:
        return None
    groups = _side_by_side(list(layer.group_convs()), _window_of(layer), layer, with_join=False)
    return nn.Sequential(groups, copy.deepcopy(layer.join)).train(layer.training)


class PlainComposite(CompositeConv2d):
    """A composite layer in PyTorch's own operations wherever it runs, for who must not meet any others."""

    def takes(self, x: Tensor) -> bool:
        return False


class PlainWindow(WindowConv2d):
    """Likewise."""

    def takes(self, x: Tensor) -> bool:
        return False


def plain(model: nn.Module) -> nn.Module:
    """Have a model use PyTorch's own operations alone, in place."""
    kinds = {CompositeConv2d: PlainComposite, WindowConv2d: PlainWindow}
    for module in model.modules():
        if (kind := kinds.get(type(module))) is not None:
            module.__class__ = kind
    return model


def _get(model: nn.Module, path: str, what: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise ConversionError(f"the model has no {path}, where {what} is to be folded; fold another model") from None


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    new.train(old.training)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is old:
            model.set_submodule(name, new)


# geometry: kernels in a common window


@dataclass(frozen=True, slots=True)
class _Place:
    """A kernel over an input: its size, and how far the input reaches beyond it (or is cropped) on each side."""

    size: tuple[int, int]
    margins: tuple[Sides, Sides]
    """Of rows, of columns."""


def _place_of(conv: WindowConv2d) -> _Place:
    rows, columns = conv.kernel_size
    return _Place((rows, columns), conv.margins)


def _centred(conv: WindowConv2d, side: int) -> tuple[Sides, Sides]:
    """Margins of a window around a kernel."""
    margins = []
    for axis, (before, after) in enumerate(_place_of(conv).margins):
        more = side - conv.kernel_size[axis]
        margins.append((before + conv.dilation[axis] * (more // 2), after + conv.dilation[axis] * (more - more // 2)))
    return (margins[0], margins[1])


def _window_of(layer: CompositeConv2d) -> _Place:
    """The window of the k×k layer that a composite one stands for, as its groups see it."""
    conv = next(layer.group_convs())
    margins = []
    for axis, (before, after) in enumerate(_place_of(conv).margins):
        window, kernel, step = layer.kernel_size[axis], conv.kernel_size[axis], layer.dilation[axis]
        first = (window - 1) // 2 - (kernel - 1) // 2
        margins.append((before + step * first, after + step * (window - kernel - first)))
    return _Place(layer.kernel_size, (margins[0], margins[1]))


def _side_by_side(
    convs: list[WindowConv2d], window: _Place, layer: CompositeConv2d | None, *, with_join: bool = True
) -> nn.Conv2d:
    """Convolutions of one input as one, in a window that all of their kernels fit into; a composite's join too."""
    conv = convs[0]
    step = conv.dilation
    places = [*map(_place_of, convs), window]
    starts = [max(place.margins[axis][0] for place in places) for axis in (0, 1)]
    offsets = [[(starts[axis] - place.margins[axis][0]) // step[axis] for axis in (0, 1)] for place in places]
    sizes, ends = [], []
    for axis in (0, 1):
        sizes.append(max(offset[axis] + place.size[axis] for offset, place in zip(offsets, places, strict=True)))
        more = step[axis] * (sizes[axis] - window.size[axis])  # than the window has, which gave the output its size
        ends.append(sum(window.margins[axis]) + more - starts[axis])
    weight = conv.weight.new_zeros(
        sum(conv.out_channels for conv in convs), conv.in_channels, *sizes, dtype=torch.float64
    )
    first = 0
    for conv, (top, left) in zip(convs, offsets, strict=False):  # the window's own comes last
        rows, columns = conv.kernel_size
        weight[first : first + conv.out_channels, :, top : top + rows, left : left + columns] = conv.weight.double()
        first += conv.out_channels
    bias = None if conv.bias is None else torch.cat([cast(Tensor, conv.bias).double() for conv in convs])
    join = layer.join if layer is not None and with_join else None
    if join is not None:
        mixing = join.weight[:, :, 0, 0].double()
        weight = torch.einsum("oj,jcyx->ocyx", mixing, weight)
        if bias is not None:
            bias = mixing @ bias
        if join.bias is not None:
            bias = join.bias.double() if bias is None else bias + join.bias.double()
    if layer is not None and layer.pads_input:
        return _like(layer, weight, bias)
    even = all(start == end >= 0 for start, end in zip(starts, ends, strict=True))
    kind = nn.Conv2d if even else WindowConv2d
    geometry: dict[str, Any] = {"stride": conv.stride, "dilation": conv.dilation, "bias": bias is not None}
    geometry |= {"padding": (starts[0], starts[1])} if even else {"window": (sizes[0], sizes[1])}
    new = kind(conv.in_channels, len(weight), (sizes[0], sizes[1]), **geometry)
    if isinstance(new, WindowConv2d):
        new.margins = ((starts[0], ends[0]), (starts[1], ends[1]))
        new.margin = (starts[1], ends[1], starts[0], ends[0])
    return _filled(new, conv, weight, bias)


def _like(layer: CompositeConv2d | SeparableConv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    """The k×k convolution that a layer stands for, with these weights."""
    assert tuple(weight.shape[2:]) == layer.kernel_size
    geometry: dict[str, Any] = {"stride": layer.stride, "dilation": layer.dilation, "bias": bias is not None}
    new: nn.Conv2d
    if layer.padding == "tf_same":
        new = Conv2dSame(layer.in_channels, len(weight), layer.kernel_size, **geometry)
    else:
        geometry |= {"padding": layer.padding, "padding_mode": layer.padding_mode}
        new = nn.Conv2d(layer.in_channels, len(weight), layer.kernel_size, **geometry)
    like = next(module for module in layer.modules() if isinstance(module, nn.Conv2d))
    return _filled(new, like, weight, bias)


def _filled(new: nn.Conv2d, like: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    new.to(like.weight.device, like.weight.dtype).train(like.training)
    new.weight.copy_(weight)
    if bias is not None:
        assert new.bias is not None
        new.bias.copy_(bias)
    return new


def _dense_separable(layer: SeparableConv2d) -> nn.Conv2d:
    first, second = layer.halves()
    down = second.weight[..., 0].double()  # out × middle × rows
    weight = torch.einsum("omi,mcj->ocij", down, first.weight[:, :, 0].double())
    bias = None if second.bias is None else second.bias.double()
    if first.bias is not None:
        carried = torch.einsum("omi,m->o", down, first.bias.double())
        bias = carried if bias is None else bias + carried
    return _like(layer, weight, bias)


def _shifts_the_border(layer: SeparableConv2d) -> bool:
    """Whether the rows of zeros around the first half's output are not what the dense layer would see there.

    They are where no bias was added, and where rows are padded by copies of others, which have had theirs.
    """
    first, second = layer.halves()
    if first.bias is None or not first.bias.any():
        return False
    if layer.padding == "tf_same":
        return True
    if layer.pads_input:
        return False
    return any(_place_of(second).margins[0])
