"""`create_model`: from an architecture to a module that can be trained."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, cast, get_args

import timm
import torch
from timm.models.vgg import VGG
from torch import nn

from lrnas.arch.architecture import Architecture, Pool
from lrnas.arch.backbone_shapes import NIN_KERNELS, VGG_STAGES
from lrnas.errors import ConversionError
from lrnas.layers.init import Rule, initialise
from lrnas.models.backbones import GoogLeNet, NiN, VggGlobalPool, vgg_layers
from lrnas.models.convert import replace_conv
from lrnas.models.plan import TIMM, Plan, make_plan
from lrnas.models.timm_config import default_cfg


def create_model(
    architecture: Architecture,
    num_classes: int = 1000,
    in_chans: int = 3,
    *,
    init: Rule = "composite",
    **kwargs: Any,
) -> nn.Module:
    """Build an architecture and draw its weights.

    Further arguments are the backbone's own, as in `timm.create_model`: `drop_rate`, `global_pool`,
    `device`, `dtype`, GoogLeNet's `aux_logits`. Of a `timm:` backbone only the layers that were replaced
    are drawn by the rule; the others keep timm's weights, pretrained ones too.
    """
    if kwargs.get("global_pool") in get_args(Pool):
        architecture = dataclasses.replace(architecture, pool=kwargs.pop("global_pool"))
    plan = make_plan(architecture, num_classes=max(num_classes, 1), in_chans=in_chans, check_fit=False)
    if architecture.backbone.startswith(TIMM) and _is_timms_own(architecture, plan):
        name = architecture.backbone.removeprefix(TIMM)
        model = timm.create_model(name, num_classes=num_classes, in_chans=in_chans, **kwargs)
        for path in _put_in(model, plan):
            initialise(model.get_submodule(path), init)
    else:
        # shapes first, memory and weights once, when all shapes are final
        device = torch.device(kwargs.pop("device", None) or torch.get_default_device())
        model = _create_backbone(plan, num_classes=num_classes, in_chans=in_chans, device="meta", **kwargs)
        _put_in(model, plan)
        if device.type != "meta":
            model.to_empty(device=device)
            initialise(model, init)
        config = default_cfg(dataclasses.replace(architecture, backbone=plan.backbone))
        model.pretrained_cfg = model.default_cfg = config  # type: ignore[assignment]  # as timm does it
    model.architecture = architecture  # type: ignore[assignment]  # a plain attribute, for whoever exports it
    return model


def _is_timms_own(architecture: Architecture, plan: Plan) -> bool:
    """Whether timm's model with other filters in places is the network: always, but for a VGG changed beyond that."""
    if plan.choices is None:
        return True
    changed = (architecture.pool, architecture.stem_stride, architecture.batch_norm, architecture.classifier)
    plain = make_plan(Architecture(plan.backbone)).convs
    widths = ((own.mix.out_channels, conv.mix.out_channels) for own, conv in zip(plain, plan.convs, strict=True))
    return plan.backbone in VGG_STAGES and not any(changed) and all(own == width for own, width in widths)


def _put_in(model: nn.Module, plan: Plan) -> list[str]:
    """Replace what the plan has otherwise than the backbone; returns the paths."""
    paths = []
    for conv in plan.convs:
        if conv.mix.is_plain and conv.mix.groups[0][:2] == (conv.kernel, conv.kernel):
            continue
        try:
            existing = model.get_submodule(conv.path)
        except AttributeError:
            existing = None
        if not isinstance(existing, nn.Conv2d) or existing.kernel_size != (conv.kernel, conv.kernel):
            raise ConversionError(
                f"{conv.path} is not the convolution it is in {plan.backbone}; the arguments given change the "
                "network; leave out those that do"
            )
        replace_conv(model, conv.path, conv.mix)
        paths.append(conv.path)
    return paths


def _create_backbone(plan: Plan, **kwargs: Any) -> nn.Module:
    """The plain backbone with the plan's widths; every convolution k×k still."""
    choices = plan.choices
    assert choices is not None
    for name in (
        "stem_stride",
        "batch_norm",
        "norm_layer",
        "conv_layer",
        "widths",
        "kernels",
        "hidden",
        "pool_padding",
    ):
        if name in kwargs:
            raise ConversionError(f"{name} is for the architecture to say; got {kwargs[name]!r}; set it there")
    if plan.backbone in VGG_STAGES:
        return _create_vgg(plan, **kwargs)
    kwargs.setdefault("global_pool", choices.pool)
    widths = {conv.name: conv.mix.out_channels for conv in plan.convs}
    kwargs |= {"stem_stride": choices.stem_stride, "batch_norm": choices.batch_norm}
    if plan.backbone.startswith("googlenet"):
        return GoogLeNet(widths, pool_padding=int(plan.backbone == "googlenet_padded"), **kwargs)
    return NiN(widths, NIN_KERNELS[plan.backbone], **kwargs)


def _create_vgg(plan: Plan, **kwargs: Any) -> nn.Module:
    choices = plan.choices
    assert choices is not None
    stages, widths = [], [conv.mix.out_channels for conv in plan.convs]
    for own in VGG_STAGES[plan.backbone]:
        stages.append(widths[: len(own)])
        widths = widths[len(own) :]
    if choices.batch_norm:
        kwargs["norm_layer"] = nn.BatchNorm2d
        # the norm's shift does what a bias would; the classifier's convolutions ask for theirs
        kwargs["conv_layer"] = partial(nn.Conv2d, bias=False)
    if choices.pool == "none":
        model = VGG(vgg_layers(stages, last_pool=True), **kwargs)
    else:
        kwargs.setdefault("global_pool", choices.pool)
        model = VggGlobalPool(vgg_layers(stages, last_pool=False), hidden=choices.hidden, **kwargs)
    stem = model.get_submodule("features.0")
    assert isinstance(stem, nn.Conv2d)
    stem.stride = (choices.stem_stride, choices.stem_stride)
    for level in cast(list[dict[str, Any]], model.feature_info):
        level["reduction"] *= choices.stem_stride
    return model
