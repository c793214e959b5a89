"""Initialisation for layers with filters of several shapes.

The paper's rule (its section 3.1): every group of a composite layer is drawn from the same zero-mean
Gaussian, whose variance makes the whole layer, as one layer, keep the variance of the gradients that
flow back through it:

    sigma = sqrt(gain / n_hat),    n_hat = sum over groups of rows * columns * filters

The gain is 2 where a ReLU follows, which stops half of what flows back. Where the next convolution
follows with no activation between (a composite before its join, the first half of a separable layer),
nothing is stopped, the same derivation gives 1, and with 2 the gradients of a deep network with joins
would double at every layer. With one group the rule is He's fan-out rule.

What reads the same input side by side is one layer to the gradient, also where it is not one module: the
first convolutions of an inception module's four branches are drawn together.

A classifier is drawn with sigma = sqrt(1 / fan_in): its fan-out is the number of classes, and the rule
would make the first logits the larger the fewer the classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import torch
from torch import nn

from lrnas.errors import LrnasError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d

Rule = Literal["composite", "fan_in", "fan_out", "default"]
"""composite: the paper's. fan_in, fan_out: He's, for each group by itself. default: PyTorch's own."""


class _Stage(NamedTuple):
    """Convolutions side by side, as one layer, and whether an activation follows it."""

    convs: tuple[nn.Conv2d, ...]
    activated: bool


@torch.no_grad()
def initialise(model: nn.Module, rule: Rule = "composite", *, generator: torch.Generator | None = None) -> None:
    """Draw the weights of every convolution and linear layer of a model anew; batch norms start anew too.

    Biases become zero (or the layer's own `initial_bias`), except with rule "default", which leaves every layer to
    PyTorch. The classifiers are what `get_classifier` returns, of the model and of the heads inside it.
    """
    if rule not in get_args(Rule):
        raise LrnasError(f"the initialisation is one of {', '.join(get_args(Rule))}; got {rule!r}")
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) or (rule == "default" and isinstance(module, nn.Conv2d | nn.Linear)):
            module.reset_parameters()
    if rule == "default":
        return
    classifiers = find_classifiers(model)
    for stage in _stages(model):
        if stage.convs[0] not in classifiers:
            _draw_stage(stage, rule, generator)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module not in classifiers:
            _draw(module, 2 / (module.in_features if rule == "fan_in" else module.out_features), generator)
    for layer in classifiers:
        if isinstance(layer, nn.Linear | nn.Conv2d):
            _draw(layer, 1 / layer.weight[0].numel(), generator)


def find_classifiers(model: nn.Module) -> list[nn.Module]:
    """The layers that put out classes: a timm model's last layer, and those of heads inside it."""
    getters = [getattr(module, "get_classifier", None) for module in model.modules()]
    found = [getter() for getter in getters if callable(getter)]
    return [layer for layer in found if isinstance(layer, nn.Module)]


def _draw_stage(stage: _Stage, rule: Rule, generator: torch.Generator | None) -> None:
    gain = 2.0 if stage.activated else 1.0
    n_hat = sum(_fan_out(conv) for conv in stage.convs)
    for conv in stage.convs:
        fan = {"composite": n_hat, "fan_out": _fan_out(conv), "fan_in": conv.weight[0].numel()}[rule]
        _draw(conv, gain / fan, generator)


def _fan_out(conv: nn.Conv2d) -> int:
    rows, columns = conv.kernel_size
    return rows * columns * conv.out_channels // conv.groups


def _draw(module: nn.Conv2d | nn.Linear, variance: float, generator: torch.Generator | None) -> None:
    module.weight.normal_(0.0, math.sqrt(variance), generator=generator)
    if module.bias is not None:
        module.bias.fill_(getattr(module, "initial_bias", 0.0))


def _stages(model: nn.Module) -> Iterator[_Stage]:
    """Every convolution of the model once, those that are one layer to the gradient together."""
    drawn: set[nn.Module] = set()
    for module in model.modules():
        stages: list[_Stage] = []
        if isinstance(module, CompositeConv2d):
            stages.append(_Stage(tuple(module.group_convs()), activated=module.join is None))
            if module.join is not None:
                stages.append(_Stage((module.join,), activated=True))
        elif isinstance(module, SeparableConv2d):
            first, second = module.halves()
            stages += [_Stage((first,), activated=False), _Stage((second,), activated=True)]
        elif callable(side_by_side := getattr(module, "side_by_side", None)):
            stages.append(_Stage(tuple(side_by_side()), activated=True))
        elif isinstance(module, nn.Conv2d) and module not in drawn:
            stages.append(_Stage((module,), activated=True))
        for stage in stages:
            drawn.update(stage.convs)
            yield stage
