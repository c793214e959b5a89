"""Mixed-shape filters in any CNN: find its k×k convolutions and put others in their place.

    model = timm.create_model("resnet50")
    report = lrnas.convert(model)           # half 3×1, half 1×3, everywhere
    print(report)

A replacement keeps the geometry, device and dtype of what it replaces, so the rest of the model does
not notice. What has no mixed-shape counterpart is left alone and listed with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from timm.layers import Conv2dSame
from torch import nn
from torch.nn.utils import parametrize

from lrnas.arch.architecture import Allocation, Filters, Mix
from lrnas.errors import ConversionError, closest
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d, make_conv
from lrnas.layers.init import Rule, initialise

LOW_RANK = Allocation.composite(vertical=0.5, horizontal=0.5)
"""Half k×1, half 1×k: the paper's basic layer."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What `convert` did."""

    model: nn.Module
    """The converted model: the one given, unless that was itself a convolution."""
    replaced: dict[str, Mix]
    """By path, the filters that stand there now."""
    left: dict[str, str]
    """By path, why a convolution was left as it was."""

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} convolutions replaced, {len(self.left)} left as they were"]
        lines += [f"  {path}: {mix}" for path, mix in self.replaced.items()]
        lines += [f"  {path}: left, {reason}" for path, reason in self.left.items()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Site:
    """A k×k convolution that can be replaced."""

    kernel: int
    own: Mix
    """The filters it has now."""
    in_channels: int
    stride: tuple[int, int]
    bias: bool


def convert(
    model: nn.Module,
    allocation: Allocation | Mapping[str, Allocation] = LOW_RANK,
    *,
    init: Rule = "composite",
    divisor: int = 1,
) -> Conversion:
    """Replace the k×k convolutions of a model, in place, and draw the new weights.

    `allocation` is for every k×k convolution, or by path, with "*" for those not named; `divisor` is an
    architecture's. Every
    replacement must put out as many channels as what it replaces: the layers after it expect them. All
    new weights are trainable, also where the old ones were frozen. Methods of a model that read a
    convolution's weight by themselves, such as timm's re-parameterisation of RepVGG, know nothing of it.
    """
    sites, left = find_sites(model)
    by_path = {"*": allocation} if isinstance(allocation, Allocation) else dict(allocation)
    for path in by_path.keys() - sites.keys() - {"*"}:
        if path in left:
            raise ConversionError(f"{path} cannot be replaced, {left[path]}; leave it out")
        raise ConversionError(f"the model has no k×k convolution {path!r}{closest(path, sites)}")
    replaced = {}
    for path, site in sites.items():
        chosen = by_path.get(path, by_path.get("*"))
        if chosen is None:
            left[path] = "no allocation names it"
        elif (mix := mix_at(path, site, chosen, divisor)) == site.own:
            left[path] = "it stays as it is by the allocation"
        else:
            replaced[path] = mix
    for path, mix in replaced.items():  # only now, when nothing is left to refuse
        model = replace_conv(model, path, mix)
        initialise(model.get_submodule(path), init)
    return Conversion(model, replaced, left)


def find_sites(model: nn.Module) -> tuple[dict[str, Site], dict[str, str]]:
    """By path: the convolutions that can be replaced, and why the others cannot."""
    sites: dict[str, Site] = {}
    left: dict[str, str] = {}
    stand_ins: list[str] = []
    shared = _shared_weights(model)
    for path, module in model.named_modules():
        if any(path.startswith(prefix) for prefix in stand_ins):
            continue
        if isinstance(module, CompositeConv2d | SeparableConv2d):
            left[path] = "it has mixed-shape filters already"
            stand_ins.append(path + "." if path else "")
        elif (reason := reason_to_leave(module)) is not None:
            left[path] = reason
        elif isinstance(module, nn.Conv2d) and id(module.weight) in shared:
            left[path] = "it shares its weight with another layer"
        elif isinstance(module, nn.Conv2d):
            k = module.kernel_size[0]
            own = Mix((Filters(k, k, module.out_channels),))
            bias = module.bias is not None
            sites[path] = Site(k, own, module.in_channels, (module.stride[0], module.stride[1]), bias)
    return sites, left


def _shared_weights(model: nn.Module) -> set[int]:
    """Parameters that more than one module holds."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def reason_to_leave(module: nn.Module) -> str | None:
    """Why a convolution cannot be replaced; None for one that can, and for what is no convolution."""
    if isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        return "it is transposed"
    if isinstance(module, nn.Conv1d | nn.Conv3d):
        return "it is not two-dimensional"
    if isinstance(module, WindowConv2d):
        return "it has another shape already"
    if not isinstance(module, nn.Conv2d):
        return None
    if module.groups == module.in_channels > 1:
        return "it is depthwise"
    if module.groups > 1:
        return f"it is grouped (groups={module.groups})"
    rows, columns = module.kernel_size
    if rows == columns == 1:
        return "it is 1×1"
    if rows != columns:
        return f"its {rows}×{columns} kernel is not square"
    if parametrize.is_parametrized(module):
        return "its weight is parametrised"
    if module._forward_pre_hooks or module._forward_hooks:
        return "hooks are attached to it (a norm of its weight, a pruning mask)"
    if type(module) not in (nn.Conv2d, Conv2dSame):
        return f"{type(module).__name__} does more than convolve"
    return None


def mix_at(path: str, site: Site, allocation: Allocation, divisor: int = 1) -> Mix:
    """The whole filters of an allocation at a site, whose number of output channels must stay."""
    width = site.own.out_channels
    mix = allocation.at(site.kernel, width, divisor)
    if mix.out_channels != width:
        raise ConversionError(
            f"{path} must keep its {width} output channels, which the next layers expect; the allocation gives "
            f"{mix.out_channels}; set width to 1, or add a join of 1"
        )
    return mix


def replace_conv(model: nn.Module, path: str, mix: Mix) -> nn.Module:
    """Put a mix of filters where a convolution stands, wherever the model uses that convolution.

    Returns the model, which is another one only where `path` is "", the model itself. The weights are
    PyTorch's default; the caller draws them.
    """
    conv = model.get_submodule(path)
    assert isinstance(conv, nn.Conv2d) and reason_to_leave(conv) is None, f"{path} cannot be replaced"
    padding = "tf_same" if isinstance(conv, Conv2dSame) else conv.padding
    new = make_conv(
        conv.in_channels,
        mix,
        conv.kernel_size[0],
        conv.stride,  # type: ignore[arg-type]  # a pair, though typed as a tuple of any length
        padding,  # type: ignore[arg-type]
        conv.dilation,  # type: ignore[arg-type]
        conv.bias is not None,
        conv.padding_mode,
        conv.weight.device,
        conv.weight.dtype,
    )
    if conv.weight.is_contiguous(memory_format=torch.channels_last) and not conv.weight.is_contiguous():
        new = new.to(memory_format=torch.channels_last)
    new.train(conv.training)
    if not path:
        return new
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if module is conv:
            model.set_submodule(name, new)
    return model
