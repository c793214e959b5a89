"""Counts MACs and parameters of a built model, layer by layer, with one forward pass of shapes.

The pass runs on PyTorch's meta device, so it needs almost no time and no memory for weights. The MACs of a layer follow
from its weights and the size of its output. PyTorch's `FlopCounterMode` counts the operators of the same pass. The MACs
that it finds outside layers (for example in attention) are listed as one more layer, so the total is complete.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import timm
import torch
from timm.models import PretrainedCfg, get_deprecated_models, get_pretrained_cfg
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.utils.flop_counter import FlopCounterMode

from lrnas._arguments import checked
from lrnas.arch.architecture import Mix
from lrnas.arch.cost import Cost, LayerCost, MixCost, Role, mix_cost
from lrnas.errors import LrnasError, UnknownName, first_line
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
from lrnas.layers.init import find_classifiers
from lrnas.models.convert import find_convs
from lrnas.models.shrink import Inner, find_blocks, find_inner, set_stem_stride

OUTSIDE = "(outside layers)"
Shape = tuple[int, ...]
_KINDS = {
    "composite": CompositeConv2d,
    "separable": SeparableConv2d,
    "transposed": _ConvTransposeNd,
    "linear": nn.Linear,
}


class _Call(NamedTuple):
    """The shapes of input and output in one call of a module.

    They include the batch axis, whose length is not always 1: some models put windows of the image there.
    """

    input: Shape
    output: Shape


@dataclass(frozen=True, slots=True)
class TracedConv:
    """A convolution of a timm model that can be replaced, and the shapes of its inputs and outputs."""

    conv: nn.Conv2d
    calls: tuple[_Call, ...]

    def cost(self, layer: LayerCost, mix: Mix, in_channels: int) -> LayerCost:
        """The cost of the layer if it had the filters `mix` and this number of input channels."""
        cost = self._cost_of(mix, in_channels, self.calls[0])
        output = (cost.out_channels, *layer.output[1:])
        return LayerCost(
            layer.name, mix.kind, self.macs(mix, in_channels), cost.params, cost.biases, output, layer.role
        )

    def macs(self, mix: Mix, in_channels: int) -> int:
        """The MACs of the layer if it had the filters `mix` and this number of input channels."""
        return sum(call.output[0] * self._cost_of(mix, in_channels, call).macs for call in self.calls)

    def _cost_of(self, mix: Mix, in_channels: int, call: _Call) -> MixCost:
        """The cost of the filters `mix` for one image of a call."""
        _, _, rows, columns = call.output
        return mix_cost(mix, in_channels, call.input[2], rows, columns, self.conv.bias is not None)


@dataclass(frozen=True, slots=True)
class Trace:
    """The cost of every layer of a timm model, and the convolutions that can be replaced."""

    costs: tuple[LayerCost, ...]
    sites: dict[str, TracedConv]
    left: dict[str, str]
    """The reason why a convolution cannot be replaced, by path."""
    inner: dict[str, Inner]
    """The convolutions that can have fewer filters."""
    blocks: dict[str, tuple[str, ...]]
    """The blocks that can be left out, with the convolutions in them that can be replaced."""

    def block_of(self, path: str) -> str:
        """The block that contains a convolution; "" if it is in none."""
        return next((block for block, convs in self.blocks.items() if path in convs), "")


@checked
def count_model(model: nn.Module, input_size: int | Sequence[int] | None = None) -> Cost:
    """Count the MACs and parameters of a model in evaluation mode, per layer and in total.

    Args:
        model: Any model that takes one image. It is not changed, and nothing is computed with its weights.
        input_size: Rows and columns of the image, or its whole shape without the batch axis; by default the size in the
            model's timm configuration.

    Returns:
        The cost of every layer. Operations outside layers are listed as the layer `(outside layers)`.

    Example:
        >>> import lrnas, timm
        >>> cost = lrnas.count_model(timm.create_model("resnet18"))
        >>> cost.macs, cost.params
        (1814073344, 11689512)
    """
    if input_size is None or isinstance(input_size, int):
        config = getattr(model, "pretrained_cfg", None) or {}
        size = config.get("input_size", (3, 224, 224))[-1] if input_size is None else input_size
        input_size = (getattr(model, "in_chans", 3), size, size)
    return Cost(_count(model, tuple(input_size))[0])


@lru_cache(maxsize=64)
def trace_timm(
    name: str, input_size: int, num_classes: int, in_chans: int = 3, stem_stride: int | None = None
) -> Trace:
    """Count a timm model and find what can be changed in it. No memory is needed for its weights.

    Args:
        name: Name of the model in timm.
        input_size: Rows and columns of the image.
        num_classes: Number of classes.
        in_chans: Channels of the image.
        stem_stride: Stride of the first convolution, if it is not the model's own.
    """
    try:
        with torch.device("meta"):
            model = timm.create_model(name, num_classes=num_classes, in_chans=in_chans)
    except (TypeError, RuntimeError, AssertionError) as error:
        settings = f"{num_classes} classes and {in_chans} channels"
        raise LrnasError(f"timm:{name} cannot be built for {settings}: {first_line(error)}") from None
    if stem_stride is not None:
        set_stem_stride(model, stem_stride)
    costs, calls = _count(model, (in_chans, input_size, input_size))
    convs, left = find_convs(model)
    left |= dict.fromkeys(convs.keys() - calls.keys(), "the model does not call it")
    traced = {path: TracedConv(conv, tuple(calls[path])) for path, conv in convs.items() if path in calls}
    inner, blocks = _find_removable(name)
    if any(layer.name == OUTSIDE for layer in costs):  # they may be a part of any block
        blocks = {}
    return Trace(tuple(costs), traced, left, inner, blocks)


@lru_cache(maxsize=64)
def _find_removable(name: str) -> tuple[dict[str, Inner], dict[str, tuple[str, ...]]]:
    """The inner layers of a timm model, and the blocks that can be left out; see `lrnas.models.shrink`.

    They are those at its usual image size: at a small size, a layer with a stride can keep the size of a map.
    """
    with torch.device("meta"):
        model = timm.create_model(name).eval()
    size, convs = timm_sizes(name)[0], find_convs(model)[0]
    inner, blocks = find_inner(model, convs, (3, size, size)), find_blocks(model, convs, (3, size, size))
    for block in list(blocks):
        for path, layer in inner.items():  # a layer in a block and a reader outside of it, or the other way round
            if len({own.startswith(f"{block}.") for own in (path, *layer.norms, *layer.readers)}) > 1:
                blocks.pop(block, None)
    return inner, blocks


def current_name(name: str) -> str:
    """The current name of a timm model, which may have been renamed. Raises LrnasError for networks of lrnas."""
    if not timm.is_model(name):
        raise UnknownName("timm model", name, timm.list_models(), " (timm.list_models() lists all)")
    if timm.model_entrypoint(name).__module__ == "lrnas.models.lrnas":
        raise LrnasError(f"timm:NAME must be a model of timm; {name} is one of lrnas; write {name.replace('_', '-')}")
    return get_deprecated_models().get(name, name).split(".")[0]


def timm_sizes(name: str) -> tuple[int, int]:
    """The default input size and the default number of classes of a timm model."""
    config = get_pretrained_cfg(name) or PretrainedCfg()
    return int(config.input_size[-1]), int(config.num_classes or 1000)


def auxiliary_heads(model: nn.Module) -> tuple[str, ...]:
    """How the names of the weights that only training needs begin."""
    return tuple(f"{path}." for path, module in model.named_modules() if getattr(module, "is_auxiliary", False))


def _count(model: nn.Module, image: Shape) -> tuple[list[LayerCost], dict[str, list[_Call]]]:
    layers = _find_layers(model)
    calls: dict[str, list[_Call]] = {}
    flops = _run(model, layers, image, calls)
    classifiers = find_classifiers(model)
    training_only = auxiliary_heads(model)
    costs: list[LayerCost] = []
    claimed: set[int] = set()
    for path, module in layers.items():
        own = [parameter for parameter in module.parameters() if id(parameter) not in claimed]
        claimed.update(map(id, own))
        role: Role = "classifier" if module in classifiers else "body"
        if path.startswith(training_only):
            role = "auxiliary"
        output = calls[path][-1].output[1:] if path in calls else ()
        params = sum(parameter.numel() for parameter in own)
        costs.append(LayerCost(path, _kind(module), _macs(module, path, calls), params, _biases(module), output, role))
    outside = flops // 2 - sum(layer.macs for layer in costs)
    params = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in claimed)
    if outside or params:
        costs.append(LayerCost(OUTSIDE, "function", outside, params, 0, ()))
    return costs, calls


def _run(model: nn.Module, layers: dict[str, nn.Module], image: Shape, calls: dict[str, list[_Call]]) -> int:
    """Run one pass on the meta device, add the shapes of every layer to `calls`, and return PyTorch's FLOPs."""
    watched = dict(layers)
    for path, module in layers.items():  # the convolutions inside composite and separable layers are counted separately
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
    modes = {module: module.training for module in model.modules()}
    weights = {name: x.detach().to("meta") for name, x in [*model.named_parameters(), *model.named_buffers()]}
    dtype = next((weight.dtype for weight in weights.values() if weight.is_floating_point()), torch.float32)
    try:
        model.eval()
        with torch.no_grad(), warnings.catch_warnings(), FlopCounterMode(display=False) as counter:
            warnings.simplefilter("ignore")
            torch.func.functional_call(model, weights, (torch.empty(1, *image, device="meta", dtype=dtype),))
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        shape = "×".join(map(str, image))
        raise LrnasError(
            f"the model cannot be counted with an input of {shape}: {first_line(error)}; choose another input size or "
            "another model"
        ) from None
    finally:
        for hook in hooks:
            hook.remove()
        for module, training in modes.items():
            module.training = training
    return int(counter.get_total_flops())


def _find_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that count as one layer: mixed-shape layers, and modules whose children have no parameters."""
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
    for kind, types in _KINDS.items():
        if isinstance(module, types):
            return kind
    if isinstance(module, _ConvNd):
        return "dense" if module.groups == 1 else "depthwise" if module.groups == module.in_channels else "grouped"
    return "norm" if "norm" in type(module).__name__.lower() else type(module).__name__.lower()


def _macs(module: nn.Module, path: str, calls: dict[str, list[_Call]]) -> int:
    if isinstance(module, CompositeConv2d | SeparableConv2d):
        return sum(_macs(part, f"{path}.{name}", calls) for name, part in module.named_children())
    macs = 0
    for call in calls.get(path, ()):
        if isinstance(module, _ConvTransposeNd):  # every input value is multiplied by every weight of its channel
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
