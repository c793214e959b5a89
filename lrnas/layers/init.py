"""Initialisation for layers with filters of several shapes.

The paper's rule (section 3.1): all groups of a composite layer are drawn from the same zero-mean Gaussian. Its variance
is chosen so that the whole layer, seen as one layer, keeps the variance of the gradients that flow back through it:

    sigma = sqrt(gain / n_hat),    n_hat = sum over groups of rows * columns * filters

The gain is 2 before a ReLU, which stops half of the gradients. It is 1 if another convolution follows without an
activation (in a composite layer before its join, and in the first half of a separable layer). Nothing stops gradients
there, so with a gain of 2 the gradients of a deep network with joins would double at every layer. For a layer with one
group this is He's fan-out rule.

Convolutions that read the same input side by side count as one layer, even if they are in different modules: the first
convolutions of the four branches of an inception module are drawn together.

The weights of a classifier are drawn with sigma = sqrt(1 / fan_in). Its fan-out is the number of classes, so with the
rule above the initial logits would be larger for fewer classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import nn

from lrnas._arguments import checked
from lrnas.errors import LrnasError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d

Rule = Literal["composite", "fan_in", "fan_out", "default"]
"""composite: the paper's rule. fan_in, fan_out: He's rules for each group separately. default: PyTorch's rule."""


@checked
@torch.no_grad()
def initialise(model: nn.Module, rule: Rule = "composite", *, generator: torch.Generator | None = None) -> None:
    """Initialise all convolutions, linear layers and batch norms of a model, in place.

    Biases become zero, or the `initial_bias` of a layer that has this attribute. With the rule "default" all layers are
    initialised by PyTorch's own rules. Classifiers are the layers that `get_classifier` returns, both of the model and
    of heads inside it.

    Args:
        model: Any model.
        rule: "composite" for the paper's rule, "fan_in" or "fan_out" for He's rules for each group separately,
            "default" for PyTorch's rule.
        generator: Source of the random numbers; None for PyTorch's global one.

    Raises:
        LrnasError: If the rule is unknown.
    """
    if rule not in get_args(Rule):
        raise LrnasError(f"the initialisation must be one of {', '.join(get_args(Rule))}; got {rule!r}; choose one")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) or (rule == "default" and isinstance(module, nn.Conv2d | nn.Linear)):
            module.reset_parameters()
    if rule == "default":
        return
    classifiers = find_classifiers(model)
    for convs, gain in _initialised_together(model):
        if convs[0] in classifiers:
            continue
        n_hat = sum(map(_fan_out, convs))
        for conv in convs:
            fan = {"composite": n_hat, "fan_out": _fan_out(conv), "fan_in": conv.weight[0].numel()}[rule]
            _draw(conv, gain / fan, generator)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module not in classifiers:
            _draw(module, 2 / (module.in_features if rule == "fan_in" else module.out_features), generator)
    for layer in classifiers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            _draw(layer, 1 / layer.weight[0].numel(), generator)


def find_classifiers(model: nn.Module) -> list[nn.Module]:
    """The layers whose outputs are classes: the last layer of a timm model, and the last layers of heads inside it."""
    getters = [getattr(module, "get_classifier", None) for module in model.modules()]
    found = [getter() for getter in getters if callable(getter)]
    return [layer for layer in found if isinstance(layer, nn.Module)]


def _fan_out(conv: nn.Conv2d) -> int:
    return math.prod(conv.kernel_size) * conv.out_channels // conv.groups


def _draw(module: nn.Conv2d | nn.Linear, variance: float, generator: torch.Generator | None) -> None:
    module.weight.normal_(0.0, math.sqrt(variance), generator=generator)
    if module.bias is not None:
        module.bias.fill_(getattr(module, "initial_bias", 0.0))


def _initialised_together(model: nn.Module) -> Iterator[tuple[list[nn.Conv2d], float]]:
    """Lists of convolutions that count as one layer, each with its gain. Every convolution occurs once."""
    seen: set[nn.Module] = set()
    for module in model.modules():
        layers: list[tuple[list[nn.Conv2d], float]] = []
        if isinstance(module, CompositeConv2d):
            groups: list[nn.Conv2d] = list(module.group_convs())
            layers = [(groups, 2.0)] if module.join is None else [(groups, 1.0), ([module.join], 2.0)]
        elif isinstance(module, SeparableConv2d):
            first, second = module.halves()
            layers = [([first], 1.0), ([second], 2.0)]
        elif callable(side_by_side := getattr(module, "side_by_side", None)):
            layers = [(side_by_side(), 2.0)]
        elif isinstance(module, nn.Conv2d) and module not in seen:
            layers = [([module], 2.0)]
        for convs, _ in layers:
            seen.update(convs)
        yield from layers
