"""Builds the model of an architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, get_args

import timm
import torch
from torch import nn

from lrnas._arguments import checked
from lrnas.arch.architecture import Architecture, Pool
from lrnas.arch.backbone_shapes import GOOGLENET_MODULES, GOOGLENET_POOLS, NIN_BLOCKS, VGG_STAGES
from lrnas.errors import ConversionError, InvalidArgument, closest
from lrnas.layers.init import Rule, initialise
from lrnas.models.backbones import GoogLeNet, NiN, Vgg, VggGlobalPool, vgg_layers
from lrnas.models.convert import replace_conv
from lrnas.models.plan import TIMM, Plan, make_plan, native_num_classes, resolve_backbone, timm_config, trace_of
from lrnas.models.pretrained import approximate
from lrnas.models.shrink import leave_out, narrow, set_stem_stride

_RESERVED = {"stem_stride", "batch_norm", "norm_layer", "conv_layer", "widths", "blocks", "hidden", "pools"}
"""Arguments of the backbones that callers cannot give, because the architecture sets them."""
_ARGUMENTS = ("num_classes", "in_chans", "init", "drop_rate", "global_pool", "device", "dtype", "aux_logits")
"""Arguments of `create_model` that are suggested if one is misspelt."""


@checked
def create_model(
    architecture: Architecture,
    num_classes: int | None = None,
    in_chans: int = 3,
    *,
    init: Rule | Literal["pretrained"] = "composite",
    **kwargs: Any,
) -> nn.Module:
    """Build the model of an architecture, with random weights unless `init` is "pretrained".

    Args:
        architecture: The network.
        num_classes: Number of classes; 0: no classifier; None: as in the paper, or as in the timm model.
        in_chans: Channels of the images.
        init: The rule for the initial weights; see `initialise`. In a timm model it applies only to layers that are
            replaced or have fewer filters; the other layers keep timm's weights, which can be pretrained. With
            "pretrained", replaced layers approximate those of timm's model, and the most important filters are kept;
            also give `pretrained=True`.
        kwargs: Arguments of the backbone, as in `timm.create_model`: `drop_rate`, `global_pool`, `device`, `dtype`,
            `aux_logits` of GoogLeNet.

    Returns:
        The model. Its attribute `architecture` is the description that it was built from.

    Example:
        >>> import torch
        >>> from lrnas import Allocation, Architecture, create_model
        >>> half = Allocation.composite(vertical=0.5, horizontal=0.5)
        >>> model = create_model(Architecture("nin", {"*": half}), num_classes=10)
        >>> model(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    if num_classes is None:
        num_classes = native_num_classes(resolve_backbone(architecture)[0])
    if num_classes < 0:
        raise InvalidArgument(f"the number of classes must be at least 0; got {num_classes}; 0 means no classifier")
    if kwargs.get("global_pool") in get_args(Pool):
        architecture = dataclasses.replace(architecture, pool=kwargs.pop("global_pool"))
    plan = make_plan(architecture, num_classes=max(num_classes, 1), in_chans=in_chans)
    kwargs |= {"num_classes": num_classes, "in_chans": in_chans}
    if architecture.backbone.startswith(TIMM) and _timm_builds_backbone(architecture, plan):
        with _refusing_arguments(architecture.backbone):
            model = timm.create_model(architecture.backbone.removeprefix(TIMM), **kwargs)
        if plan.choices is None:
            _shrink(model, architecture, plan, None if init == "pretrained" else init)
        before: dict[str, Any] = dict(model.named_modules(remove_duplicate=False))
        replaced = _replace_convs(model, plan)
        for path in replaced:
            initialise(model.get_submodule(path), "composite" if init == "pretrained" else init)
        if init == "pretrained":
            approximate(model, {path: before[path] for path in replaced})
    elif init == "pretrained":
        raise ConversionError(f"only models of timm can start from pretrained weights; got {plan.backbone}")
    else:
        # built on the meta device first, so that memory is needed only for the final layers
        device = torch.device(kwargs.pop("device", None) or torch.get_default_device())
        with _refusing_arguments(plan.backbone):
            model = _create_backbone(plan, device="meta", **kwargs)
        _replace_convs(model, plan)
        if device.type != "meta":
            model.to_empty(device=device)
            initialise(model, init)
        config = timm_config(dataclasses.replace(architecture, backbone=plan.backbone))
        model.pretrained_cfg = model.default_cfg = config  # type: ignore[assignment]  # as timm does it
    model.architecture = architecture  # type: ignore[assignment]  # a plain attribute, for exports
    return model


@contextmanager
def _refusing_arguments(backbone: str) -> Iterator[None]:
    """Context in which an argument that the backbone does not have is refused in one line."""
    try:
        yield
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        near = closest(str(error).split("'")[-2], _ARGUMENTS)
        raise ConversionError(f"{backbone}: {error}{near if '?' in near else '; leave this argument out'}") from None


def _timm_builds_backbone(architecture: Architecture, plan: Plan) -> bool:
    """Whether timm can build the backbone of a `timm:` architecture, so that only convolutions must be replaced.

    Names such as timm:vgg11 also allow other changes; the backbone is then built by lrnas.
    """
    if plan.choices is None:
        return True
    changed = (architecture.pool, architecture.stem_stride, architecture.batch_norm, architecture.classifier)
    widths = [conv.mix.out_channels for conv in plan.convs]
    own_widths = [conv.mix.out_channels for conv in make_plan(Architecture(plan.backbone)).convs]
    return plan.backbone in timm.models.vgg.cfgs and not any(changed) and widths == own_widths


def _shrink(model: nn.Module, architecture: Architecture, plan: Plan, init: Rule | None) -> None:
    """Leave out blocks and filters of a timm model, as planned, and set the stride of its first layer."""
    trace = trace_of(architecture, plan.input_size, plan.num_classes)
    kept = {conv.path: conv for conv in plan.convs}
    there = {path for path, _ in model.named_modules(remove_duplicate=False)}
    if missing := sorted(trace.sites.keys() - there):
        raise ConversionError(
            f"the model has no {missing[0]}, because an argument changes the network; leave this argument out"
        )
    leave_out(model, [block for block, convs in trace.blocks.items() if convs[0] not in kept])
    widths = {path: kept[path].mix.out_channels for path in trace.inner if path in kept}
    own = {path: site.conv.out_channels for path, site in trace.sites.items()}
    narrow(model, {path: width for path, width in widths.items() if width < own[path]}, trace.inner, init)
    if architecture.stem_stride is not None:
        set_stem_stride(model, architecture.stem_stride)


def _replace_convs(model: nn.Module, plan: Plan) -> list[str]:
    """Replace every convolution whose filters differ from the backbone's; returns the paths of the new layers."""
    modules, paths = dict(model.named_modules(remove_duplicate=False)), []
    for conv in plan.convs:
        kernel = (conv.kernel, conv.kernel)
        if conv.mix.is_plain and conv.mix.groups[0][:2] == kernel:
            continue
        existing = modules.get(conv.path)
        if not isinstance(existing, nn.Conv2d) or existing.kernel_size != kernel:
            raise ConversionError(
                f"{conv.path} is not the same convolution as in {plan.backbone}, because an argument changes the "
                "network; leave this argument out"
            )
        replace_conv(model, conv.path, conv.mix)
        paths.append(conv.path)
    return paths


def _create_backbone(plan: Plan, **kwargs: Any) -> nn.Module:
    """The backbone with the widths of the plan, in which all convolutions are k×k."""
    choices = plan.choices
    assert choices is not None
    for name in kwargs.keys() & _RESERVED:
        raise ConversionError(f"{name} must be set in the architecture; got argument {kwargs[name]!r}; leave it out")
    if plan.backbone in VGG_STAGES:
        return _create_vgg(plan, **kwargs)
    kwargs.setdefault("global_pool", choices.pool)
    kwargs |= {"stem_stride": choices.stem_stride, "batch_norm": choices.batch_norm}
    widths = {conv.name: conv.mix.out_channels for conv in plan.convs}
    if plan.backbone in GOOGLENET_POOLS:
        spatial = (f"inception_{module}.conv3x3" for module in GOOGLENET_MODULES)
        left_out = {name: 0 for name in spatial if name not in widths}
        return GoogLeNet(widths | left_out, pools=GOOGLENET_POOLS[plan.backbone], **kwargs)
    blocks = NIN_BLOCKS[plan.backbone]
    left_out = {name: 0 for block in blocks for name in (*block.spatial, *block.mixing) if name not in widths}
    return NiN(widths | left_out, blocks, **kwargs)


def _create_vgg(plan: Plan, **kwargs: Any) -> nn.Module:
    choices = plan.choices
    assert choices is not None
    stages: list[list[int]] = [[] for _ in VGG_STAGES[plan.backbone]]
    for conv in plan.convs:  # conv3_2 is in stage 3
        stages[int(conv.name.removeprefix("conv").partition("_")[0]) - 1].append(conv.mix.out_channels)
    if choices.batch_norm:
        kwargs["norm_layer"] = nn.BatchNorm2d
        # no bias is needed before a norm; the convolutions of the classifier are created with a bias
        kwargs["conv_layer"] = partial(nn.Conv2d, bias=False)
    if choices.pool == "none":
        model: Vgg = Vgg(vgg_layers(stages, last_pool=True), **kwargs)
    else:
        kwargs.setdefault("global_pool", choices.pool)
        model = VggGlobalPool(vgg_layers(stages, last_pool=False), hidden=choices.hidden, **kwargs)
    stem = model.get_submodule("features.0")
    assert isinstance(stem, nn.Conv2d)
    stem.stride = (choices.stem_stride, choices.stem_stride)
    for level in model.feature_info:
        level["reduction"] *= choices.stem_stride
    return model
