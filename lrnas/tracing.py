"""Counts a built model: one forward pass without numbers, layer by layer.

The pass runs on PyTorch's meta device, so it needs neither time nor memory for weights. Each layer's
MACs follow from its weights and the size of its output; PyTorch's own `FlopCounterMode` counts the same
pass at the level of operators. What that finds beyond the layers (attention, weights applied by a
function) is listed as one more layer, so that the total leaves nothing out.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import timm
import torch
from timm.models import get_deprecated_models, get_pretrained_cfg
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lrnas.arch import Mix
from lrnas.cost import Cost, LayerCost, Role, mix_cost
from lrnas.errors import LrnasError, UnknownName
from lrnas.init import find_classifier
from lrnas.layers import CompositeConv2d, SeparableConv2d
from lrnas.surgery import Site, find_sites

__all__ = ["Trace", "TracedSite", "count_model", "create_on_meta", "current_name", "native_input_size", "trace_timm"]

OUTSIDE = "(outside layers)"
Shape = tuple[int, ...]


class _Seen(NamedTuple):
    """The sizes one module met in the forward pass, batch left out."""

    input: Shape
    output: Shape
    calls: int


@dataclass(frozen=True, slots=True)
class TracedSite:
    """A replaceable convolution of a traced model, with the map it sees."""

    site: Site
    seen: _Seen

    def cost(self, layer: LayerCost, mix: Mix) -> LayerCost:
        """The layer's cost with other filters in its place."""
        rows, columns = self.seen.output[1:]
        macs, params, biases = mix_cost(mix, self.site.in_channels, self.seen.input[1], rows, columns, self.site.bias)
        return layer._replace(kind=mix.kind, macs=macs * self.seen.calls, params=params, biases=biases)


@dataclass(frozen=True, slots=True)
class Trace:
    """A timm model as data: what each layer costs, and which can be replaced."""

    costs: tuple[LayerCost, ...]
    sites: dict[str, TracedSite]
    left: dict[str, str]
    """By path, why a convolution cannot be replaced."""


def count_model(model: nn.Module, input_size: int | tuple[int, ...] | None = None) -> Cost:
    """MACs and parameters of a model in use (`model.eval()`), per layer and in all.

    The input is one image, by default of the size in the model's timm configuration. The model itself
    is neither run nor changed.
    """
    return Cost(_count(model, _image_shape(model, input_size))[0])


def trace_timm(name: str, input_size: int, num_classes: int, in_chans: int = 3) -> Trace:
    """Count a timm model by name and find what can be replaced in it, without building its weights."""
    model = create_on_meta(name, num_classes=num_classes, in_chans=in_chans)
    costs, seen = _count(model, (in_chans, input_size, input_size))
    sites, left = find_sites(model)
    for path in sites.keys() - seen.keys():
        left[path] = "the model does not use it"
    traced = {path: TracedSite(site, seen[path]) for path, site in sites.items() if path in seen}
    return Trace(tuple(costs), traced, left)


def current_name(name: str) -> str:
    """The name timm has for a model today."""
    if not timm.is_model(name):
        raise UnknownName("timm model", name, timm.list_models(), "; timm.list_models() lists them")
    renamed = get_deprecated_models().get(name)
    return renamed.split(".")[0] if renamed else name


def native_input_size(name: str) -> int:
    """The input size a timm model is made for."""
    config = get_pretrained_cfg(name)
    return int(config.input_size[-1]) if config is not None else 224


def create_on_meta(name: str, **kwargs: Any) -> nn.Module:
    """A timm model without weights: shapes only."""
    with torch.device("meta"):
        try:
            return timm.create_model(name, **kwargs)
        except TypeError as error:
            raise LrnasError(f"timm:{name} cannot be built with {kwargs}: {error}") from None


def _image_shape(model: nn.Module, input_size: int | tuple[int, ...] | None) -> Shape:
    if isinstance(input_size, tuple):
        return input_size
    channels = getattr(model, "in_chans", 3)
    if input_size is None:
        config = getattr(model, "pretrained_cfg", None) or {}
        input_size = int(config.get("input_size", (3, 224, 224))[-1])
    return (channels, input_size, input_size)


def _count(model: nn.Module, image: Shape) -> tuple[list[LayerCost], dict[str, _Seen]]:
    leaves = _layers(model)
    seen: dict[str, _Seen] = {}
    flops = _run(model, leaves, image, seen)
    classifier = find_classifier(model)
    costs: list[LayerCost] = []
    claimed: set[int] = set()
    for path, module in leaves.items():
        here, macs = seen.get(path), _macs(module, path, seen)
        parameters = [p for p in module.parameters() if id(p) not in claimed]
        claimed.update(map(id, parameters))
        role: Role = "classifier" if module is classifier else "auxiliary" if here is None else "body"
        output = here.output if here is not None else ()
        count = sum(parameter.numel() for parameter in parameters)
        costs.append(LayerCost(path, _kind(module), macs, count, _biases(module), output, role))
    outside = flops // 2 - sum(layer.macs for layer in costs)
    params = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in claimed)
    if outside or params:
        costs.append(LayerCost(OUTSIDE, "function", outside, params, 0, ()))
    return costs, seen


def _run(model: nn.Module, leaves: dict[str, nn.Module], image: Shape, seen: dict[str, _Seen]) -> int:
    """One pass on the meta device; fills in what every layer saw and returns PyTorch's FLOPs."""
    watched = dict(leaves)
    for path, module in leaves.items():  # a stand-in's parts have maps of their own
        watched |= {f"{path}.{name}": part for name, part in module.named_children()}

    def note(path: str, inputs: tuple[Any, ...], output: Any) -> None:
        calls = seen[path].calls + 1 if path in seen else 1
        seen[path] = _Seen(tuple(inputs[0].shape[1:]), tuple(output.shape[1:]), calls)

    hooks = [
        module.register_forward_hook(lambda _, inputs, output, path=path: note(path, inputs, output))
        for path, module in watched.items()
    ]
    weights = {name: tensor.to("meta") for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    dtype = next((w.dtype for w in weights.values() if w.is_floating_point()), torch.float32)
    try:
        with (
            _evaluating(model),
            torch.no_grad(),
            warnings.catch_warnings(),
            FlopCounterMode(display=False) as counter,
        ):
            warnings.simplefilter("ignore")
            torch.func.functional_call(model, weights, (torch.empty(1, *image, device="meta", dtype=dtype),))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LrnasError(f"the model does not take an input of {'×'.join(map(str, image))}: {reason}") from error
    finally:
        for hook in hooks:
            hook.remove()
    return int(counter.get_total_flops())


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """What is counted as one layer: stand-ins whole, and whatever else holds all its parameters itself."""
    layers: dict[str, nn.Module] = {}
    inside: set[nn.Module] = set()
    for path, module in model.named_modules():
        own = sum(1 for _ in module.parameters(recurse=False))
        if isinstance(module, CompositeConv2d | SeparableConv2d):
            layers[path] = module
            inside.update(module.children())
        elif own and own == sum(1 for _ in module.parameters()) and module not in inside:
            layers[path] = module
    return layers


def _kind(module: nn.Module) -> str:
    if isinstance(module, CompositeConv2d):
        return "composite"
    if isinstance(module, SeparableConv2d):
        return "separable"
    if isinstance(module, nn.Conv2d):
        return "dense" if module.groups == 1 else "depthwise" if module.groups == module.in_channels else "grouped"
    if isinstance(module, nn.Linear):
        return "linear"
    return "norm" if "norm" in type(module).__name__.lower() else type(module).__name__.lower()


def _macs(module: nn.Module, path: str, seen: dict[str, _Seen]) -> int:
    if isinstance(module, CompositeConv2d | SeparableConv2d):
        return sum(_macs(part, f"{path}.{name}", seen) for name, part in module.named_children())
    if path not in seen or not isinstance(module, nn.Conv2d | nn.Linear):
        return 0
    here = seen[path]
    positions = here.output[1:] if isinstance(module, nn.Conv2d) else here.output[:-1]
    macs = module.weight.numel() * here.calls
    for size in positions:
        macs *= size
    return macs


def _biases(module: nn.Module) -> int:
    return sum(
        part.bias.numel()
        for part in module.modules()
        if isinstance(part, nn.Conv2d | nn.Linear) and isinstance(part.bias, Tensor)
    )
