"""Tied layers of a search space: what varies in them, as allocations and back.

Every group has the same five axes. `form` is mixed or separable; a mixed layer has a share of k×k
filters (`square`; 1 is a dense layer), of the rest a share of k×1 ones (`vertical`; the others are 1×k)
and possibly a `join`; `width` is the number of filters. Widths and joins are multiples of the
backbone's width. An axis with one value is fixed, one with more is a parameter of the space.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product
from numbers import Real
from typing import Any, NamedTuple

from lrnas.arch.architecture import Allocation, Mix
from lrnas.errors import OutsideSpace

Values = tuple[float, ...] | tuple[str, ...] | tuple[int, ...]

NEUTRAL: dict[str, float | str] = {"form": "mixed", "square": 1.0, "vertical": 0.5, "join": "none", "width": 1.0}
"""The axes of a group, each with the value that leaves a layer as the backbone has it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that varies."""

    name: str
    values: Values
    """All that are allowed, in order."""
    ordered: bool
    """Numbers in even steps; otherwise a choice."""

    def match(self, value: object) -> Any:
        """The allowed value that is meant, up to floating point; None if there is none."""
        if isinstance(value, str):
            return value if value in self.values else None
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        near = (own for own in self.values if not isinstance(own, str) and math.isclose(own, value, abs_tol=1e-6))
        return next(near, None)

    @property
    def neutral(self) -> Any:
        """The value to give where nothing depends on it: the backbone's own, or the nearest to it."""
        wanted = NEUTRAL.get(self.name.rpartition(".")[2])
        if isinstance(wanted, float):
            return min(self.values, key=lambda value: abs(float(value) - wanted))
        return wanted if wanted in self.values else self.values[0]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "values": list(self.values), "ordered": self.ordered}


class Layer(NamedTuple):
    """A convolution of a backbone, as the backbone has it."""

    backbone: str
    name: str
    kernel: int
    width: int


@dataclass(frozen=True)
class Group:
    """Layers that share their parameters; they may be of several backbones."""

    name: str
    layers: tuple[Layer, ...]
    axes: Mapping[str, Parameter]
    """By the names in `NEUTRAL`, all of them, also those with one value."""
    divisor: int = 1
    """Of numbers of filters, as in an architecture."""

    @property
    def parameters(self) -> list[Parameter]:
        return [axis for axis in self.axes.values() if len(axis.values) > 1]

    def allocation(self, params: Mapping[str, Any]) -> Allocation:
        """What the layers are made of, for values of the space's parameters."""
        values = [params.get(axis.name, axis.values[0]) for axis in self.axes.values()]
        return _allocation(*values)

    def params_of(self, mixes: Sequence[tuple[Layer, Mix]]) -> dict[str, Any]:
        """The parameters that give layers these filters."""
        values = self._solve(mixes)
        if values is None:
            for layer, mix in mixes:
                self._refuse_alone(layer, mix)
            first, second = next(
                (mixes[0], other) for i, other in enumerate(mixes) if self._solve(mixes[: i + 1]) is None
            )
            raise OutsideSpace(
                f"{first[0].name} and {second[0].name} share their parameters in this space; got {first[1]} and "
                f"{second[1]}; choose a finer granularity or make them alike"
            )
        return {axis.name: values[name] for name, axis in self.axes.items() if len(axis.values) > 1}

    def _solve(self, mixes: Sequence[tuple[Layer, Mix]]) -> dict[str, Any] | None:
        """A value of every axis; what makes no difference is neutral. None if there is no solution."""
        kept: dict[str, list[Any]] = {}
        for name, axis in self.axes.items():
            kept[name] = [value for value in axis.values if all(self._fits(name, value, *pair) for pair in mixes)]
            kept[name].sort(key=lambda value, own=axis.neutral: value != own)  # type: ignore[misc]
        for values in product(*kept.values()):
            allocation = _allocation(*values)
            if all(allocation.at(layer.kernel, layer.width, self.divisor) == mix for layer, mix in mixes):
                return dict(zip(self.axes, values, strict=True))
        return None

    def _refuse_alone(self, layer: Layer, mix: Mix) -> None:
        """Raise what is wrong with a single layer, if anything is."""
        if self._solve([(layer, mix)]) is not None:
            return
        got: dict[str, Any] = {
            "form": "separable" if mix.is_separable else "mixed",
            "join": "none" if mix.second is None else mix.second.num / layer.width,
            "width": _num_filters(mix) / layer.width,
        }
        for name in ("form", "width") if mix.is_separable else ("form", "width", "join"):
            axis = self.axes[name]
            if not any(self._fits(name, value, layer, mix) for value in axis.values):
                raise OutsideSpace(f"{layer.name}: {name} {format_value(got[name])}; allowed: {format_values(axis)}")
        k = layer.kernel
        counts = {(group.height, group.width): group.num for group in mix.groups}
        total, square, vertical, horizontal = (
            sum(counts.values()),
            *(counts.pop(shape, 0) for shape in ((k, k), (k, 1), (1, k))),
        )
        if counts or mix.is_separable:
            raise OutsideSpace(
                f"{layer.name}: {mix}; allowed: filters of {k}×{k}, {k}×1 and 1×{k}"
                + (f", or 1×{k} and then as many {k}×1" if "separable" in self.axes["form"].values else "")
            )
        shares = {"square": square / total, "vertical": vertical / max(1, vertical + horizontal)}
        for name, share in shares.items():
            if self.axes[name].match(share) is None:
                raise OutsideSpace(
                    f"{layer.name}: {name} {format_value(share)}; allowed: {format_values(self.axes[name])}"
                )
        whole = "whole filters" if self.divisor == 1 else f"multiples of {self.divisor} filters"
        raise OutsideSpace(f"{layer.name}: {mix}; allowed: the shares of this space, rounded to {whole}")

    def _fits(self, axis: str, value: Any, layer: Layer, mix: Mix) -> bool:
        """Whether a layer's filters speak for a value of an axis, or at least not against it."""
        if axis == "form":
            return bool((value == "separable") == mix.is_separable)
        if axis == "width":
            return _filters(value, layer.width, self.divisor) == _num_filters(mix)
        if axis == "join":
            num = None if value == "none" else _filters(float(Fraction(value)), layer.width, self.divisor)
            return mix.is_separable or num == (mix.second.num if mix.second else None)
        return True

    def to_dict(self) -> dict[str, Any]:
        layers: dict[str, list[str]] = {}
        for layer in self.layers:
            layers.setdefault(layer.backbone, []).append(layer.name)
        return {
            "name": self.name,
            "layers": layers,
            "axes": {name: list(axis.values) for name, axis in self.axes.items()},
        }


@lru_cache(maxsize=1 << 14)
def _allocation(form: str, square: float, vertical: float, join: str, width: float) -> Allocation:
    if form == "separable":
        return Allocation("separable", width=width)
    multiple = None if join == "none" else float(Fraction(join))
    if square == 1:
        return Allocation("dense", width=width, join=multiple)
    rest = 1 - square
    return Allocation.composite(
        vertical=rest * vertical, horizontal=rest * (1 - vertical), square=square, width=width, join=multiple
    )


@lru_cache(maxsize=1 << 14)
def _filters(multiple: float, width: int, divisor: int) -> int:
    """A multiple of a width in whole filters, by the rule that allocations round by."""
    return Allocation(width=multiple).at(1, width, divisor).out_channels


def _num_filters(mix: Mix) -> int:
    """The filters that a width counts: the k×1 ones of a separable layer, all before the join of others."""
    return mix.out_channels if mix.is_separable else sum(group.num for group in mix.groups)


def format_value(value: object) -> str:
    """A value as people write it: 3/8 rather than 0.375."""
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    fraction = Fraction(value).limit_denominator(64)
    return str(fraction) if abs(fraction - Fraction(value)) < 1e-6 else f"{value:.4g}"


def format_values(parameter: Parameter) -> str:
    """What a parameter allows, in words."""
    values = parameter.values
    if parameter.ordered and len(values) > 3:
        step = (float(values[-1]) - float(values[0])) / (len(values) - 1)
        return f"{format_value(values[0])} to {format_value(values[-1])} in steps of {format_value(step)}"
    *others, last = [format_value(value) for value in values]
    return f"{', '.join(others)} or {last}" if others else last
