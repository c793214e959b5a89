"""Initialisation for layers with filters of several shapes.

The paper's rule (its section 3.1): every group of a composite layer is drawn from the same zero-mean
Gaussian, whose variance makes the whole layer, as one layer, keep the variance of the gradients that
flow back through it:

    sigma = sqrt(gain / n_hat),    n_hat = sum over groups of rows * columns * filters

The gain is 2 where a ReLU follows, which stops half of what flows back. Where the next convolution
follows with no activation between (a composite before its join, the first half of a separable layer),
nothing is stopped, the same derivation gives 1, and with 2 the gradients of a deep network with joins
would double at every layer. With one group the rule is He's fan-out rule.

The classifier is drawn with sigma = sqrt(1 / fan_in): its fan-out is the number of classes, and the
rule would make the first logits the larger the fewer the classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple, get_args

import torch
from torch import nn

from lrnas.errors import LrnasError
from lrnas.layers import CompositeConv2d, SeparableConv2d

__all__ = ["Rule", "find_classifier", "initialise"]

Rule = Literal["composite", "fan_in", "fan_out", "default"]
"""composite: the paper's. fan_in, fan_out: He's, for each group by itself. default: PyTorch's own."""


class _Stage(NamedTuple):
    """Convolutions side by side, as one layer, and whether an activation follows it."""

    convs: tuple[nn.Conv2d, ...]
    activated: bool


@torch.no_grad()
def initialise(
    model: nn.Module,
    rule: Rule = "composite",
    *,
    classifier: nn.Module | None = None,
    generator: torch.Generator | None = None,
) -> None:
    """Draw the weights of every convolution and linear layer of a model anew; biases become zero.

    `classifier` is the last layer, for timm models by default `model.get_classifier()`. Batch norms
    start anew too.
    """
    if rule not in get_args(Rule):
        raise LrnasError(f"the initialisation is one of {', '.join(get_args(Rule))}; got {rule!r}")
    if classifier is None:
        classifier = find_classifier(model)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) or (rule == "default" and isinstance(module, nn.Conv2d | nn.Linear)):
            module.reset_parameters()
    if rule == "default":
        return
    for stage in _stages(model):
        if stage.convs[0] is not classifier:
            _draw_stage(stage, rule, generator)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not classifier:
            fan = module.in_features if rule == "fan_in" else module.out_features
            _draw(module, 2 / fan, generator)
    if isinstance(classifier, nn.Linear | nn.Conv2d):
        _draw(classifier, 1 / classifier.weight[0].numel(), generator)


def find_classifier(model: nn.Module) -> nn.Module | None:
    """The last layer of a timm model."""
    get_classifier = getattr(model, "get_classifier", None)
    return get_classifier() if callable(get_classifier) else None


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
        module.bias.zero_()


def _stages(model: nn.Module) -> Iterator[_Stage]:
    """Every convolution of the model once, those of one composite layer together."""
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside:
            continue
        if isinstance(module, CompositeConv2d):
            groups = tuple(module.group_convs())
            yield _Stage(groups, activated=module.join is None)
            if module.join is not None:
                yield _Stage((module.join,), activated=True)
            inside.update(_children(module))
        elif isinstance(module, SeparableConv2d):
            first, second = module.halves()
            yield _Stage((first,), activated=False)
            yield _Stage((second,), activated=True)
            inside.update(_children(module))
        elif isinstance(module, nn.Conv2d):
            yield _Stage((module,), activated=True)


def _children(module: nn.Module) -> Iterable[nn.Module]:
    return list(module.children())
