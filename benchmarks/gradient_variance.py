"""How does the variance of back-propagated gradients change over 20 mixed-shape layers, for each initialisation?

    python benchmarks/gradient_variance.py --out results/gradient_variance.json

`lrnas figures gradients` draws the result.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import get_args

import torch
from common import make_parser, write_result
from torch import nn

from lrnas.layers.conv import CompositeConv2d
from lrnas.layers.init import Rule, initialise
from lrnas.training.provenance import provenance

DEPTH, WIDTH, SIZE, BATCH, SEEDS = 20, 64, 32, 4, 10
STACKS = {
    "3×1 || 1×3": ({(3, 1): 32, (1, 3): 32}, None),
    "3×1 || 1×3 || 3×3, then a join": ({(3, 1): 24, (1, 3): 24, (3, 3): 16}, 64),
}


def make_stack(filters: dict[tuple[int, int], int], join: int | None) -> nn.Sequential:
    """Mixed-shape layers with ReLU; with circular padding, no gradient is lost at the border."""
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [CompositeConv2d(WIDTH, filters, 3, padding=1, padding_mode="circular", join=join), nn.ReLU()]
    return nn.Sequential(*layers)


def variances(stack: nn.Sequential, rule: Rule, seed: int) -> list[float]:
    """Variance of the gradient at the input of every layer, first to last, relative to the last one's."""
    torch.manual_seed(seed)
    initialise(stack, rule)
    inputs = [torch.randn(BATCH, WIDTH, SIZE, SIZE, requires_grad=True)]
    for module in stack:
        inputs.append(module(inputs[-1]))
    at_layers = inputs[:-1:2]
    inputs[-1].backward(torch.randn_like(inputs[-1]), inputs=at_layers)
    measured = [float(x.grad.double().var()) for x in at_layers if x.grad is not None]
    return [variance / measured[-1] for variance in measured]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, list[float]]] = {}
    for name, (filters, join) in STACKS.items():
        stack = make_stack(filters, join)
        results[name] = {}
        for rule in get_args(Rule):
            runs = [variances(stack, rule, seed) for seed in range(SEEDS)]
            means = [math.exp(sum(map(math.log, layer)) / SEEDS) for layer in zip(*runs, strict=True)]
            results[name][rule] = means
            print(f"{name:32} {rule:10} first layer / last layer: {means[0]:.3g}")
    facts = provenance(seeds=list(range(SEEDS)), n=SEEDS)
    facts |= {"depth": DEPTH, "width": WIDTH, "map": [SIZE, SIZE], "batch": BATCH}
    write_result(options.out, facts, geometric_mean_variance_relative_to_the_last_layer=results)


if __name__ == "__main__":
    main()
