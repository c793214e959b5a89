"""Registers the networks with timm, so that `timm.create_model("vgg_gmp_lr")` works.

Every network of the paper is registered under its name with underscores, and VGG-11, 13, 16 and 19 with
global max pooling as `vgg16_gmp` and, with batch norm, `vgg16_bn_gmp`. A name that timm has itself is
left to timm. Any other network is the model `lrnas` with its architecture, as a file of JSON or as data:

    timm.create_model("lrnas", architecture="my_network.json", num_classes=10)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from timm.models import (
    build_model_with_cfg,
    generate_default_cfgs,
    get_pretrained_cfg,
    is_model,
    model_entrypoint,
    register_model,
)
from torch import nn

from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import VGG_STAGES
from lrnas.models.paper import named_networks
from lrnas.models.plan import TIMM, native_num_classes, resolve_backbone
from lrnas.models.timm_config import default_cfg

__all__: list[str] = []  # register_model adds the entry points


def _entry_point(name: str, architecture: Architecture) -> Callable[..., nn.Module]:
    def entry_point(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _build(name, architecture, pretrained, **kwargs)

    entry_point.__name__ = entry_point.__qualname__ = name
    entry_point.__doc__ = f"The network {name}, see `lrnas count {name.replace('_', '-')} --layers`."
    return entry_point


def _build(
    name: str, architecture: Architecture, pretrained: bool, folded: Mapping[str, Any] | None = None, **kwargs: Any
) -> nn.Module:
    backbone, _ = resolve_backbone(architecture)
    # one level per resolution; VGG with its fifth pool has six
    levels = 3 if backbone.startswith("nin") else 6 if backbone in VGG_STAGES and not architecture.pool else 5

    def build(num_classes: int = native_num_classes(backbone), **kwargs: Any) -> nn.Module:
        from lrnas.models.build import create_model  # which itself imports timm, and so may be what brought us here

        model = create_model(architecture, num_classes, **kwargs)
        if folded is not None:
            from lrnas.layers.fold import Folding, fold

            fold(model, Folding(**folded))
        return model

    feature_cfg = {"flatten_sequential": True, "out_indices": tuple(range(levels))}
    return build_model_with_cfg(
        build, name, pretrained, feature_cfg=feature_cfg, pretrained_filter_fn=_without_unknown_heads, **kwargs
    )


def lrnas(
    pretrained: bool = False,
    *,
    architecture: Architecture | Mapping[str, Any] | str | Path,
    folded: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> nn.Module:
    """Any network: `architecture` is an `Architecture`, its JSON form, or the file that holds it.

    `folded` is what an exported network has folded (`lrnas.layers.fold.Folding`), whose weights are to be loaded.
    """
    if isinstance(architecture, str | Path):
        architecture = Architecture.load(architecture)
    elif not isinstance(architecture, Architecture):
        architecture = Architecture.from_dict(architecture)
    if not kwargs.get("pretrained_cfg"):
        backbone = architecture.backbone
        is_timms = backbone.startswith(TIMM)
        own = get_pretrained_cfg(backbone.removeprefix(TIMM)) if is_timms else default_cfg(architecture)
        kwargs["pretrained_cfg"] = own
    return _build("lrnas", architecture, pretrained, folded, **kwargs)


def _without_unknown_heads(state_dict: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """A checkpoint with auxiliary heads fits a model built without them."""
    known = model.state_dict().keys()
    return {key: value for key, value in state_dict.items() if key in known or not key.startswith("aux_")}


_NETWORKS = {name.replace("-", "_"): network for name, network in named_networks().items()}
default_cfgs = generate_default_cfgs({name: default_cfg(network) for name, network in _NETWORKS.items()})

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # as below
    register_model(lrnas)

for _name, _network in _NETWORKS.items():
    if is_model(_name) and model_entrypoint(_name).__module__ != __name__:
        warnings.warn(f"timm has a model {_name} of its own; lrnas.create_model builds ours", stacklevel=2)
        continue
    globals()[_name] = _entry_point(_name, _network)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this module loaded once more registers the same again
        register_model(globals()[_name])
