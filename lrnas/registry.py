"""Registers the networks with timm, so that `timm.create_model("vgg_gmp_lr")` works.

Every network of the paper is registered under its name with underscores, and VGG-11, 13, 16 and 19 with
global max pooling as `vgg16_gmp` and, with batch norm, `vgg16_bn_gmp`. No name is one of timm's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, is_model, register_model
from torch import nn

from lrnas.arch import Architecture
from lrnas.plan import make_plan, native_num_classes
from lrnas.points import paper_points
from lrnas.topology import VGG_STAGES

__all__: list[str] = []  # register_model adds the entry points

_VGG = {
    "input_size": (3, 224, 224),
    "num_classes": 1000,
    "min_input_size": (3, 32, 32),
    "classifier": "head.fc",
}
_GOOGLENET = {
    "input_size": (3, 224, 224),
    "num_classes": 1000,
    "min_input_size": (3, 32, 32),
    "classifier": "fc",
}
_NIN = {"input_size": (3, 32, 32), "num_classes": 10, "min_input_size": (3, 8, 8), "classifier": "cccp6"}


def _networks() -> dict[str, Architecture]:
    networks = {name.replace("-", "_"): point.architecture for name, point in paper_points().items()}
    for backbone in VGG_STAGES:
        networks[f"{backbone}_gmp"] = Architecture(backbone, pool="max")
        networks[f"{backbone}_bn_gmp"] = Architecture(backbone, pool="max", batch_norm=True)
    return networks


def _default_cfg(architecture: Architecture) -> dict[str, Any]:
    """timm's description of a model: the input it is made for, and its first and last layers."""
    family = architecture.backbone
    own = _VGG if family.startswith("vgg") else _GOOGLENET if family.startswith("googlenet") else _NIN
    stem = make_plan(architecture).convs[0]
    parts = () if stem.mix.is_plain else tuple(f"{stem.path}.conv{group.shape}" for group in stem.mix.groups)
    return {
        "url": "",
        "interpolation": "bilinear",
        "crop_pct": 0.875,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": parts or stem.path,
        "pool_size": (14, 14) if architecture.pool == "max" else (7, 7),
        **own,
    }


def _entry_point(name: str, architecture: Architecture) -> Callable[..., nn.Module]:
    backbone = architecture.backbone

    def build(num_classes: int = native_num_classes(backbone), **kwargs: Any) -> nn.Module:
        from lrnas.build import create_model  # which itself imports timm, and so may be what brought us here

        return create_model(architecture, num_classes, **kwargs)

    def entry_point(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        # one level per resolution; VGG with its fifth pool has six
        levels = 3 if backbone.startswith("nin") else 6 if backbone in VGG_STAGES and not architecture.pool else 5
        feature_cfg = {"flatten_sequential": True, "out_indices": tuple(range(levels))}
        return build_model_with_cfg(build, name, pretrained, feature_cfg=feature_cfg, **kwargs)

    entry_point.__name__ = entry_point.__qualname__ = name
    entry_point.__doc__ = f"The network {name}, see `lrnas count {name.replace('_', '-')} --layers`."
    return entry_point


_NETWORKS = _networks()
default_cfgs = generate_default_cfgs({name: _default_cfg(network) for name, network in _NETWORKS.items()})

for _name, _network in _NETWORKS.items():
    assert not is_model(_name), f"timm has a model {_name} of its own"
    register_model(_entry_point(_name, _network))
