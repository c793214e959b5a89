"""A network layer by layer, for pictures: which filters each layer has, and what it costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lrnas.arch.architecture import Architecture, Filters
from lrnas.models.plan import make_plan
from lrnas.study.references import ImageShape

KINDS = ("kx1", "1xk", "kxk", "1x1", "other")
"""Of filters: vertical, horizontal, square, those of a single pixel, and the rest."""
SHADES = dict(zip(KINDS, ("#3b78c4", "#e0862c", "#9a4fb0", "#a9a9a9", "#4d9c6a"), strict=True))
"""Their colours in all pictures."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer that has weights."""

    name: str
    macs: int
    params: int
    output: tuple[int, ...]
    kernel: int | None = None
    """Rows and columns of the backbone's own filters here; None where an architecture changes nothing."""
    groups: tuple[Filters, ...] = ()
    """Filters side by side."""
    second: Filters | None = None
    """The join, or the k×1 half of a separable layer."""

    @property
    def join(self) -> int | None:
        """Channels of the 1×1 layer that follows."""
        return self.second.num if self.second is not None and self.second.height == 1 else None

    @property
    def is_varied(self) -> bool:
        """Whether its filters could have other shapes."""
        return (self.kernel or 1) > 1

    def shares(self) -> dict[str, float]:
        """Of the filters, by kind; the two halves of a separable layer count as they are."""
        filters = [*self.groups, *([self.second] if self.second is not None and self.join is None else [])]
        total = sum(group.num for group in filters)
        found = dict.fromkeys(KINDS, 0.0)
        for group in filters:
            found[kind_of(group, self.kernel)] += group.num / total
        return {kind: share for kind, share in found.items() if share}

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "macs": self.macs,
            "params": self.params,
            "output": list(self.output),
            "kernel": self.kernel,
            "groups": [[*group, kind_of(group, self.kernel)] for group in self.groups],
            "second": None if self.second is None else [*self.second, kind_of(self.second, self.kernel)],
            "join": self.join,
        }


def kind_of(filters: Filters, kernel: int | None) -> str:
    """What filters are in a layer whose own are so large."""
    height, width, _ = filters
    if height == width == 1:
        return "1x1"
    if width == 1:
        return "kx1"
    if height == 1:
        return "1xk"
    return "kxk" if height == width == kernel else "other"


def lay_out(architecture: Architecture, shape: ImageShape) -> tuple[Layer, ...]:
    """The layers in use, in order; the parameters of a norm belong to the layer before it."""
    plan = make_plan(architecture, shape.size, shape.num_classes, shape.channels, check_fit=False)
    convs = {conv.name: (conv.kernel, conv.mix.groups, conv.mix.second) for conv in plan.convs}
    used = [cost for cost in plan.cost.layers if cost.role != "auxiliary"]
    kept = [i for i, cost in enumerate(used) if cost.macs or not i]
    return tuple(
        Layer(
            used[first].name,
            used[first].macs,
            sum(cost.params for cost in used[first:after]),
            tuple(used[first].output),
            *convs.get(used[first].name, ()),
        )
        for first, after in zip(kept, [*kept[1:], len(used)], strict=True)
    )


def merge_orders(orders: Iterable[Sequence[str]]) -> list[str]:
    """Names in one order that agrees with all those given; where that leaves a choice, as the numbers in them go.

    So layers of unlike backbones stand where they belong: conv1, conv2, conv2_1, conv2_2, conv3.
    """
    before: dict[str, set[str]] = {}
    for order in orders:
        for i, name in enumerate(order):
            before.setdefault(name, set()).update(order[:i])
    found = []
    while before:
        free = [name for name, others in before.items() if not others]
        found.append(min(free or before, key=_by_numbers))  # none is free where two orders contradict each other
        del before[found[-1]]
        for others in before.values():
            others.discard(found[-1])
    return found


def _by_numbers(name: str) -> list[str | int]:
    parts = re.split(r"(\d+)", name)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)]
