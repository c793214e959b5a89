"""What timm wants to know of a model besides its layers: the input it is made for, its first and last layers."""

from __future__ import annotations

from typing import Any

from lrnas.arch.architecture import Architecture
from lrnas.models.plan import make_plan, native_num_classes

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop_pct": 0.875}
_CIFAR10 = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616), "crop_pct": 1.0}


def default_cfg(architecture: Architecture) -> dict[str, Any]:
    """timm's `default_cfg` for a network on one of our own backbones."""
    backbone = architecture.backbone
    if backbone.startswith("nin"):
        size, smallest, classifier, pixels = 32, 8, "cccp6", _CIFAR10
    elif backbone.startswith("googlenet"):
        size, smallest, pixels = 224, 32, _IMAGENET
        classifier = ("fc", "aux_4a.fc2", "aux_4d.fc2")  # type: ignore[assignment]  # timm takes one or several
    else:
        size, smallest, classifier, pixels = 224, 32, "head.fc", _IMAGENET
    plan = make_plan(architecture, size, check_fit=False)
    stem, last = plan.convs[0], plan.convs[-1].name
    parts = () if stem.mix.is_plain else tuple(f"{stem.path}.conv{group.shape}" for group in stem.mix.groups)
    map_size = next(layer.output[1] for layer in plan.cost.layers if layer.name == last)
    return {
        "url": "",
        "num_classes": native_num_classes(plan.backbone),
        "input_size": (3, size, size),
        "min_input_size": (3, smallest, smallest),
        "pool_size": (map_size, map_size),
        "interpolation": "bilinear",
        "first_conv": parts or stem.path,
        "classifier": classifier,
        **pixels,
    }
