"""Registers the networks with timm, so that `timm.create_model("vgg_gmp_lr")` works.

Every network of the paper is registered under its name with underscores. VGG-11, 13, 16 and 19 with global max pooling
are registered as `vgg16_gmp` and so on, and with batch norm as `vgg16_bn_gmp`. Networks that searches found are
registered with their weights: `timm.create_model("lrnas_nin_a", pretrained=True)`. A name that timm itself uses is not
registered. Any other network can be built as the model `lrnas`, with its architecture as a JSON file or as data:

    timm.create_model("lrnas", architecture="my_network.json", num_classes=10)

`timm.list_models(module="lrnas")` lists them all: timm goes by the name of this file.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from timm import models as timm_models
from timm.models import FeatureHookNet, FeatureListNet
from torch import nn

from lrnas.arch.architecture import Architecture
from lrnas.errors import ConversionError, InvalidArgument
from lrnas.models.found import find_found
from lrnas.models.paper import named_networks
from lrnas.models.plan import TIMM, native_num_classes, resolve_backbone, timm_config

Folded = Mapping[str, Any] | None


def lrnas(
    pretrained: bool = False,
    *,
    architecture: Architecture | Mapping[str, Any] | str | Path | None = None,
    folded: Folded = None,
    **kwargs: Any,
) -> nn.Module:
    """Build any network with `timm.create_model`.

    Args:
        pretrained: As in `timm.create_model`.
        architecture: An `Architecture`, its JSON form, or the JSON file that contains it. It must be given.
        folded: The fields of the `lrnas.layers.fold.Folding` of an exported network. The model is folded in the same
            way, so that the exported weights can be loaded.
        kwargs: Further arguments of `lrnas.create_model`.
    """
    if architecture is None:
        raise InvalidArgument('the model "lrnas" needs its network; got none; give architecture="my_network.json"')
    if isinstance(architecture, str | Path):
        architecture = Architecture.load(architecture)
    elif not isinstance(architecture, Architecture):
        architecture = Architecture.from_dict(architecture)
    if not kwargs.get("pretrained_cfg"):
        model, is_timms = architecture.backbone.removeprefix(TIMM), architecture.backbone.startswith(TIMM)
        own = timm_models.get_pretrained_cfg(model) if is_timms else timm_config(architecture)
        kwargs["pretrained_cfg"] = own
    return _build("lrnas", architecture, pretrained, folded, **kwargs)


def _build(
    name: str,
    architecture: Architecture,
    pretrained: bool = False,
    folded: Folded = None,
    classes: int | None = None,
    **kwargs: Any,
) -> nn.Module:
    backbone, _ = resolve_backbone(architecture)
    own_classes = native_num_classes(backbone) if classes is None else classes

    def build(num_classes: int = own_classes, **kwargs: Any) -> nn.Module:
        from lrnas.models.build import create_model  # not at the top: it imports timm, whose import loads this module

        model = create_model(architecture, num_classes, **kwargs)
        if folded is not None:
            from lrnas.layers.fold import Folding, fold

            fold(model, Folding(**folded))
        return model

    feature_cfg: dict[str, Any] = {}
    if kwargs.get("features_only") and backbone.startswith(TIMM):
        feature_cfg = _timm_features(backbone)
    elif kwargs.get("features_only"):  # one map per resolution
        with torch.device("meta"):
            levels = len(cast(Any, build()).feature_info)
        feature_cfg = {"flatten_sequential": True, "out_indices": tuple(range(levels))}
    return timm_models.build_model_with_cfg(
        build, name, pretrained, feature_cfg=feature_cfg, pretrained_filter_fn=_without_unknown_heads, **kwargs
    )


def _timm_features(backbone: str) -> dict[str, Any]:
    """How timm makes a list of maps of this model of its own, as arguments of `build_model_with_cfg`.

    Raises:
        ConversionError: If timm has none, or has a model of its own for it.
    """
    name = backbone.removeprefix(TIMM)
    with torch.device("meta"):
        whole = cast(Any, timm_models.create_model(name))
        try:
            own = cast(Any, timm_models.create_model(name, features_only=True))
        except (AssertionError, AttributeError, RuntimeError):
            own = None
    if isinstance(own, FeatureListNet):
        is_flat = any(child not in dict(whole.named_children()) for child in own)
        how: dict[str, Any] = {"flatten_sequential": is_flat, "feature_concat": own.concat}
    elif isinstance(own, FeatureHookNet):
        how = {"feature_cls": "hook"}
    elif own is not None and hasattr(whole, "forward_intermediates"):
        how = {"feature_cls": "getter"}
    else:
        raise ConversionError(f"timm cannot give the maps of {backbone} as a list; choose features_only=False")
    return {**how, "out_indices": own.feature_info.out_indices}


def _without_unknown_heads(state_dict: dict[str, Any], model: nn.Module) -> dict[str, Any]:
    """A checkpoint without the weights of auxiliary heads that the model does not have."""
    known = model.state_dict().keys()
    return {key: value for key, value in state_dict.items() if key in known or not key.startswith("aux_")}


def _register(name: str, entry_point: Callable[..., nn.Module]) -> None:
    entry_point.__name__ = name
    entry_point.__module__ = __name__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reloading this module registers the same models again
        timm_models.register_model(entry_point)


def _config(name: str, network: Architecture) -> dict[str, Any]:
    """timm's `default_cfg` of a named network."""
    if (found := find_found(name)) is None:
        return timm_config(network)
    return {**timm_config(network, found.config["input_size"][1]), **found.config, "file": str(found.weights)}


_NETWORKS = {name.replace("-", "_"): network for name, network in named_networks().items()}
_CONFIGS = {name.replace("-", "_"): _config(name, network) for name, network in named_networks().items()}
default_cfgs = timm_models.generate_default_cfgs({**_CONFIGS})
_register("lrnas", lrnas)
for _name, _network in _NETWORKS.items():
    if timm_models.is_model(_name) and timm_models.model_entrypoint(_name).__module__ != __name__:
        warnings.warn(f"timm has its own model {_name}; lrnas.create_model builds the one of lrnas", stacklevel=2)
    else:
        _found = find_found(_name)
        _arguments = {} if _found is None else _found.arguments
        _register(_name, partial(_build, _name, _network, classes=_CONFIGS[_name]["num_classes"], **_arguments))
