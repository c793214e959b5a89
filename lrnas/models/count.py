"""Counts a built model: one forward pass without numbers, layer by layer.

The pass runs on PyTorch's meta device, so it needs neither time nor memory for weights. Each layer's
MACs follow from its weights and the size of its output; PyTorch's own `FlopCounterMode` counts the same
pass at the level of operators. What that finds beyond the layers (attention, weights applied by a
function) is listed as one more layer, so that the total leaves nothing out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import timm
import torch
from timm.models import get_deprecated_models, get_pretrained_cfg
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils.flop_counter import FlopCounterMode

from lrnas.arch.architecture import Mix
from lrnas.arch.cost import Cost, LayerCost, Role, mix_cost
from lrnas.errors import LrnasError, UnknownName
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
from lrnas.layers.init import find_classifiers
from lrnas.models.convert import Site, find_sites

OUTSIDE = "(outside layers)"
Shape = tuple[int, ...]


class _Call(NamedTuple):
    """The sizes a module met in one call for one image; windows of it may lie along the batch axis."""

    input: Shape
    output: Shape


@dataclass(frozen=True, slots=True)
class TracedSite:
    """A replaceable convolution of a traced model, with the maps it sees."""

    site: Site
    calls: tuple[_Call, ...]

    def cost(self, layer: LayerCost, mix: Mix) -> LayerCost:
        """The layer's cost with other filters in its place."""
        macs = 0
        for call in self.calls:
            number, _, rows, columns = call.output
            cost = mix_cost(mix, self.site.in_channels, call.input[2], rows, columns, self.site.bias)
            macs += number * cost.macs
        return layer._replace(kind=mix.kind, macs=macs, params=cost.params, biases=cost.biases)


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
    costs, calls = _count(model, (in_chans, input_size, input_size))
    sites, left = find_sites(model)
    for path in sites.keys() - calls.keys():
        left[path] = "the model does not call it"
    traced = {path: TracedSite(site, tuple(calls[path])) for path, site in sites.items() if path in calls}
    return Trace(tuple(costs), traced, left)


def current_name(name: str) -> str:
    """The name timm has for a model today; our own networks are not timm's."""
    if not timm.is_model(name):
        raise UnknownName("timm model", name, timm.list_models(), "; timm.list_models() lists them")
    if timm.model_entrypoint(name).__module__ == "lrnas.models.timm_registry":
        raise LrnasError(f"timm:NAME is for timm's own models; {name} is ours; write {name.replace('_', '-')}")
    renamed = get_deprecated_models().get(name)
    return renamed.split(".")[0] if renamed else name


def native_input_size(name: str) -> int:
    """The input size a timm model is made for."""
    config = get_pretrained_cfg(name)
    return int(config.input_size[-1]) if config is not None else 224


def native_num_classes(name: str) -> int:
    """The number of classes a timm model has where nobody says otherwise."""
    config = get_pretrained_cfg(name)
    return int(config.num_classes) if config is not None and config.num_classes else 1000


def create_on_meta(name: str, **kwargs: Any) -> nn.Module:
    """A timm model without weights: shapes only."""
    with torch.device("meta"):
        try:
            return timm.create_model(name, **kwargs)
        except (TypeError, RuntimeError, AssertionError) as error:
            raise LrnasError(f"timm:{name} cannot be built with {kwargs}: {_first_line(error)}") from None


def _image_shape(model: nn.Module, input_size: int | tuple[int, ...] | None) -> Shape:
    if isinstance(input_size, tuple):
        return input_size
    channels = getattr(model, "in_chans", 3)
    if input_size is None:
        config = getattr(model, "pretrained_cfg", None) or {}
        input_size = int(config.get("input_size", (3, 224, 224))[-1])
    return (channels, input_size, input_size)


def _count(model: nn.Module, image: Shape) -> tuple[list[LayerCost], dict[str, list[_Call]]]:
    layers = _find_layers(model)
    calls: dict[str, list[_Call]] = {}
    flops = _run(model, layers, image, calls)
    classifiers = find_classifiers(model)
    training_only = tuple(
        f"{path}." for path, module in model.named_modules() if getattr(module, "is_auxiliary", False)
    )
    costs: list[LayerCost] = []
    claimed: set[int] = set()
    for path, module in layers.items():
        own = [parameter for parameter in module.parameters() if id(parameter) not in claimed]
        claimed.update(map(id, own))
        role: Role = "body"
        if path.startswith(training_only):
            role = "auxiliary"
        elif module in classifiers:
            role = "classifier"
        output = calls[path][-1].output[1:] if path in calls else ()
        params = sum(parameter.numel() for parameter in own)
        costs.append(LayerCost(path, _kind(module), _macs(module, path, calls), params, _biases(module), output, role))
    outside = flops // 2 - sum(layer.macs for layer in costs)
    params = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in claimed)
    if outside or params:
        costs.append(LayerCost(OUTSIDE, "function", outside, params, 0, ()))
    return costs, calls


def _run(model: nn.Module, layers: dict[str, nn.Module], image: Shape, calls: dict[str, list[_Call]]) -> int:
    """One pass on the meta device; notes what every layer saw and returns PyTorch's FLOPs."""
    watched = dict(layers)
    for path, module in layers.items():  # a stand-in's parts have maps of their own
        watched |= {f"{path}.{name}": part for name, part in module.named_children()}

    def note(path: str, inputs: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = next((x for x in (*inputs, *kwargs.values()) if isinstance(x, Tensor)), None)
        if given is not None and isinstance(output, Tensor):
            calls.setdefault(path, []).append(_Call(tuple(given.shape), tuple(output.shape)))

    hooks = [
        module.register_forward_hook(
            lambda _, inputs, kwargs, output, path=path: note(path, inputs, kwargs, output), with_kwargs=True
        )
        for path, module in watched.items()
    ]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    weights = {name: tensor.detach().to("meta") for name, tensor in tensors}
    dtype = next((w.dtype for w in weights.values() if w.is_floating_point()), torch.float32)
    try:
        with _evaluating(model), torch.no_grad(), warnings.catch_warnings(), FlopCounterMode(display=False) as counter:
            warnings.simplefilter("ignore")
            torch.func.functional_call(model, weights, (torch.empty(1, *image, device="meta", dtype=dtype),))
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        shape = "×".join(map(str, image))
        raise LrnasError(
            f"the model cannot be counted with an input of {shape}: {_first_line(error)}; give images of a size that "
            "it takes, or another model"
        ) from None
    finally:
        for hook in hooks:
            hook.remove()
    return int(counter.get_total_flops())


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _find_layers(model: nn.Module) -> dict[str, nn.Module]:
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
    if isinstance(module, _ConvTransposeNd):
        return "transposed"
    if isinstance(module, _ConvNd):
        return "dense" if module.groups == 1 else "depthwise" if module.groups == module.in_channels else "grouped"
    if isinstance(module, nn.Linear):
        return "linear"
    return "norm" if "norm" in type(module).__name__.lower() else type(module).__name__.lower()


def _macs(module: nn.Module, path: str, calls: dict[str, list[_Call]]) -> int:
    if isinstance(module, CompositeConv2d | SeparableConv2d):
        return sum(_macs(part, f"{path}.{name}", calls) for name, part in module.named_children())
    macs = 0
    for call in calls.get(path, ()):
        if isinstance(module, _ConvTransposeNd):  # every input value meets every weight of its channel
            macs += module.weight.numel() * math.prod(call.input) // module.in_channels
        elif isinstance(module, _ConvNd):
            macs += module.weight.numel() * math.prod(call.output) // module.out_channels
        elif isinstance(module, nn.Linear):
            macs += module.weight.numel() * math.prod(call.output[:-1])
    return macs


def _biases(module: nn.Module) -> int:
    return sum(
        part.bias.numel()
        for part in module.modules()
        if isinstance(part, _ConvNd | nn.Linear) and isinstance(part.bias, Tensor)
    )
