"""The layers of a network for pictures: the filters and the cost of each layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from lrnas.arch.architecture import Architecture, Filters
from lrnas.models.plan import make_plan
from lrnas.study.study import ImageShape

SHADES = {"kx1": "#159a94", "1xk": "#e0862c", "kxk": "#9a4fb0", "1x1": "#cdb98a", "other": "#7a5a48"}
"""Colours of the kinds of filters in all pictures; they have no other meaning there."""


class Layer(NamedTuple):
    """One layer that has weights."""

    name: str
    macs: int
    params: int
    output: tuple[int, ...]
    """Shape of its output."""
    kernel: int | None = None
    """Kernel size of this layer in the backbone; None if an architecture cannot change the layer."""
    groups: tuple[Filters, ...] = ()
    """Groups of filters side by side."""
    second: Filters | None = None
    """The join, or the second half of a separable layer."""

    @property
    def join(self) -> int | None:
        """Number of channels of the join; None if there is no join."""
        return self.second.num if self.second is not None and self.second.height == 1 else None

    @property
    def is_varied(self) -> bool:
        """Whether a search can give its filters other shapes."""
        return (self.kernel or 1) > 1

    def counts(self) -> dict[str, int]:
        """Number of filters of each kind; in a separable layer, both halves count, and a join never does."""
        found = dict.fromkeys(SHADES, 0)
        for group in [*self.groups, *([self.second] if self.second is not None and self.join is None else [])]:
            found[kind_of(group)] += group.num
        return {kind: number for kind, number in found.items() if number}

    @property
    def num_filters(self) -> int:
        """Number of filters, its width."""
        return sum(self.counts().values())

    @property
    def shape(self) -> tuple[object, ...]:
        """Everything but the costs."""
        return self.name, self.output, self.kernel, self.groups, self.second

    def shape_to_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in ("name", "kernel", "join")},
            "output": list(self.output),
            "groups": [[*group, kind_of(group)] for group in self.groups],
            "second": None if self.second is None else [*self.second, kind_of(self.second)],
        }


def kind_of(filters: Filters) -> str:
    """The kind of a filter shape, a key of `SHADES`."""
    height, width, _ = filters
    if width == 1:
        return "1x1" if height == 1 else "kx1"
    if height == 1:
        return "1xk"
    return "kxk" if height == width else "other"


def lay_out(architecture: Architecture, shape: ImageShape) -> tuple[Layer, ...]:
    """The layers of a network as deployed, in order, without auxiliary heads.

    Args:
        architecture: The network.
        shape: Shape of its input images, and the number of classes.

    Returns:
        Layers with weights; the parameters of a norm are added to those of the layer before it.
    """
    plan = make_plan(architecture, shape.size, shape.num_classes, shape.channels, deployed=True)
    convs = {conv.name: (conv.kernel, conv.mix.groups, conv.mix.second) for conv in plan.convs}
    layers: list[list[Any]] = []
    for name, _, macs, params, _, output, role in plan.cost.layers:
        if role == "auxiliary":
            continue
        if macs or not layers:
            layers.append([name, macs, params, tuple(output)])
        else:
            layers[-1][2] += params
    return tuple([Layer(*layer, *convs.get(layer[0], ())) for layer in layers])


def merge_orders(orders: Iterable[Sequence[str]]) -> list[str]:
    """Merge ordered lists of names into one order that agrees with all of them.

    Layers of different backbones are then in a natural order: conv1, conv2, conv2_1, conv2_2, conv3.

    Args:
        orders: Lists of names. If they allow several orders, or contradict each other, numbers in the names decide.
    """
    before: dict[str, set[str]] = {}
    for order in orders:
        for i, name in enumerate(order):
            before.setdefault(name, set()).update(order[:i])
    merged = []
    while before:
        free = [name for name, others in before.items() if not others]
        merged.append(min(free or before, key=_number_key))
        del before[merged[-1]]
        for others in before.values():
            others.discard(merged[-1])
    return merged


def _number_key(name: str) -> list[str | int]:
    """Sort key that compares numbers in names by value."""
    parts = re.split(r"(\d+)", name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]
