"""The parameters of a search space, and the groups of layers that share them.

Every group has the same axes. `present` is yes or no: whether the network has the layers at all. `depth` is how many of
the layers, or of the blocks of a timm model, it has, counted from the first. `form` is mixed or separable. In a mixed
layer, `kernel` is the size k, `square` is the share of k×k filters (1 is a dense layer), `vertical` is the share of k×1
filters among the filters that are not k×k (the rest is 1×k), and `join` is the width of a 1×1 join. `width` is the
number of filters. Widths and joins are multiples of the backbone's width. An axis with one value is fixed, an axis with
several values is a parameter of the space.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import product
from numbers import Real
from typing import Any, NamedTuple

from lrnas.arch.architecture import Allocation, FilterGroup, Mix, scale_width
from lrnas.errors import OutsideSpace

Values = tuple[float, ...] | tuple[str, ...] | tuple[int, ...]

NEUTRAL: dict[str, float | str] = {
    "present": "yes",
    "depth": "all",
    "form": "mixed",
    "kernel": "own",
    "square": 1.0,
    "vertical": 0.5,
    "join": "none",
    "width": 1.0,
}
"""The axes of a group, each with the value that does not change the layers of the backbone."""
ADDED = ("present", "depth", "kernel")
"""Axes that spaces of earlier versions do not have."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting with a finite number of allowed values."""

    name: str
    values: Values
    """All allowed values, in order."""
    ordered: bool
    """Whether the values are numbers in even steps; otherwise they are a choice without order."""

    def match(self, value: object) -> Any:
        """The allowed value that equals `value` up to rounding errors; None if there is none."""
        if isinstance(value, str):
            return value if value in self.values else None
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        if value in self.values:  # the usual case, much faster
            return self.values[self.values.index(value)]
        near = (own for own in self.values if not isinstance(own, str) and math.isclose(own, value, abs_tol=1e-6))
        return next(near, None)

    @property
    def neutral(self) -> Any:
        """The value to use if the parameter has no effect: the one in `NEUTRAL`, or the nearest allowed value."""
        wanted = NEUTRAL.get(self.name.rpartition(".")[2])
        if isinstance(wanted, float):
            return min(self.values, key=lambda value: abs(float(value) - wanted))
        if wanted == "all":
            return self.values[-1]
        return wanted if wanted in self.values else self.values[0]

    def to_dict(self) -> dict[str, Any]:
        """The parameter as a JSON object."""
        return {"name": self.name, "values": list(self.values), "ordered": self.ordered}


class Layer(NamedTuple):
    """A convolution of a backbone."""

    backbone: str
    name: str
    kernel: int
    width: int
    keeps_width: bool = False
    """Whether `width` has no effect, because other parts of a timm model need its number of outputs."""
    unit: str = ""
    """What `depth` counts: the layer, or the block of a timm model that contains it. "" is the part of a timm model
    that is always there."""


@dataclass(frozen=True)
class Group:
    """Layers that share their parameters; they can belong to several backbones."""

    name: str
    layers: tuple[Layer, ...]
    axes: Mapping[str, Parameter]
    """All axes by their names in `NEUTRAL`, including axes with one value."""
    divisor: int = 1
    """Filter counts are multiples of this number, as in an architecture."""

    @property
    def parameters(self) -> list[Parameter]:
        """The axes with more than one value."""
        return [axis for axis in self.axes.values() if len(axis.values) > 1]

    def layers_of(self, axis: str) -> list[Layer]:
        """The layers that an axis changes."""
        return [layer for layer in self.layers if axis != "width" or not layer.keeps_width]

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of the layers."""
        return frozenset(layer.name for layer in self.layers)

    @cached_property
    def parameter_names(self) -> frozenset[str]:
        """The names of the axes with more than one value."""
        return frozenset(parameter.name for parameter in self.parameters)

    def _value(self, axis: str, params: Mapping[str, Any]) -> Any:
        """The value of an axis for given values of the space's parameters."""
        return params.get(self.axes[axis].name, self.axes[axis].values[0])

    def is_left_out(self, params: Mapping[str, Any]) -> bool:
        """Whether the layers are left out for given values of the space's parameters."""
        return bool(self._value("present", params) == "no")

    def idle_parameters(self, params: Mapping[str, Any]) -> frozenset[str]:
        """The parameters of the group that have no effect in layers that are there, for given values."""
        if self._value("form", params) == "separable":
            return self.parameter_names & {self.axes[axis].name for axis in ("square", "vertical", "join")}
        if self._value("square", params) == 1:
            return self.parameter_names & {self.axes["vertical"].name}
        return frozenset()

    def allocations(self, backbone: str, params: Mapping[str, Any]) -> Mapping[str, Allocation]:
        """The filters of each layer of a backbone for given values of the space's parameters."""
        key = (backbone, *map(params.get, self._ordered_names))
        if key not in self._allocations:
            values = {axis: self._value(axis, params) for axis in self.axes}
            depth = values.pop("depth")
            layers = [layer for layer in self.layers if layer.backbone == backbone]
            kept = units_of(layers)[: None if depth == "all" else int(depth)]
            self._allocations[key] = {
                layer.name: _allocate(layer, values) if layer.unit in kept else Allocation(width=0) for layer in layers
            }
        return self._allocations[key]

    @cached_property
    def _ordered_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    @cached_property
    def _allocations(self) -> dict[tuple[Any, ...], Mapping[str, Allocation]]:
        """What `allocations` found before: samplers ask for the costs of hundreds of networks per trial."""
        return {}

    def params_of(self, mixes: Sequence[tuple[Layer, Mix | None]]) -> dict[str, Any]:
        """The values of the parameters for which the layers have the given filters.

        Args:
            mixes: Each layer with its filters; None if the layer is left out.

        Raises:
            OutsideSpace: If no values of the parameters give these filters.
        """
        depth, there = self.axes["depth"], _depth_of(mixes)
        if there and depth.values != (NEUTRAL["depth"],) and depth.match(there) is None:
            raise OutsideSpace(f"{self.name}: depth {there}; allowed: {format_values(depth)}")
        values = self._solve(mixes)
        if values is None:
            for layer, mix in mixes:
                if self._solve([(layer, mix)]) is None:
                    raise OutsideSpace(f"{layer.name}: {self._explain(layer, mix)}")
            i = next(i for i in range(len(mixes)) if self._solve(mixes[: i + 1]) is None)
            (first, first_mix), (second, second_mix) = mixes[0], mixes[i]
            raise OutsideSpace(
                f"{first.name} and {second.name} share their parameters in this space; got {first_mix} and "
                f"{second_mix}; choose a finer granularity or make them equal"
            )
        return {axis.name: values[name] for name, axis in self.axes.items() if len(axis.values) > 1}

    def _solve(self, mixes: Sequence[tuple[Layer, Mix | None]]) -> dict[str, Any] | None:
        """Values of all axes for which the layers have these filters; None if there are none.

        An axis without effect has its neutral value.
        """
        given = [(layer, mix) for layer, mix in mixes if mix is not None]
        mixes = given or mixes  # some layers of a group can be left out because layers before them are
        candidates = []
        for name, axis in self.axes.items():
            if name == "depth":
                candidates.append([axis.match(_depth_of(given)) or axis.neutral])
                continue
            values = [value for value in axis.values if all(self._fits(name, value, *pair) for pair in mixes)]
            candidates.append(sorted(values, key=lambda value, neutral=axis.neutral: value != neutral))  # type: ignore[misc]
        for solution in product(*candidates):
            solved = dict(zip(self.axes, solution, strict=True))
            shapes = {axis: value for axis, value in solved.items() if axis != "depth"}
            if all(_allocate(layer, shapes).at(layer.kernel, layer.width, self.divisor) == mix for layer, mix in given):
                return solved
        return None

    def _fits(self, axis: str, value: Any, layer: Layer, mix: Mix | None) -> bool:
        """Whether an axis can have this value if a layer has the filters `mix`. Shares are checked roughly."""
        if axis == "present":  # if a layer that must be there is left out, then because a layer before it is
            return bool((value == "yes") == (mix is not None)) or self.axes[axis].values == ("yes",)
        if mix is None:  # the other axes have no effect
            return bool(value == self.axes[axis].neutral)
        if axis == "form":
            return bool((value == "separable") == mix.is_separable)
        if axis == "width":
            return layer.keeps_width or scale_width(value, layer.width, self.divisor) == _num_filters(mix)
        if mix.is_separable:  # the other axes have no effect
            return bool(value == self.axes[axis].neutral)
        if axis == "join":
            num = None if value == "none" else scale_width(float(Fraction(value)), layer.width, self.divisor)
            return num == (mix.second.num if mix.second else None)
        k, num_of = mix.kernel, {(group.height, group.width): group.num for group in mix.groups}
        if axis == "kernel":
            return bool(k == (layer.kernel if value == "own" else value))
        if k == 1:
            return True
        part = num_of.get((k, k) if axis == "square" else (k, 1), 0)
        whole = _num_filters(mix) - (0 if axis == "square" else num_of.get((k, k), 0))
        return bool(abs(value * whole - part) <= 4 * self.divisor)  # counts are rounded to multiples of the divisor

    def _explain(self, layer: Layer, mix: Mix | None) -> str:
        """The reason why a layer cannot have these filters in this space, with the allowed values."""
        assert mix is not None, "a layer that is left out fits every group"
        k, counts = mix.kernel, {(group.height, group.width): group.num for group in mix.groups}
        square, vertical, horizontal = (counts.pop(shape, 0) for shape in ((k, k), (k, 1), (1, k)))
        found: dict[str, Any] = {
            "present": "yes",
            "form": "separable" if mix.is_separable else "mixed",
            "kernel": k,
            "width": _num_filters(mix) / layer.width,
            "join": "none" if mix.second is None else mix.second.num / layer.width,
        }
        for name, value in found.items():
            axis = self.axes[name]
            if not any(self._fits(name, own, layer, mix) for own in axis.values):
                allowed = str(layer.kernel) if axis.values == ("own",) else format_values(axis)
                return f"{name} {format_value(value)}; allowed: {allowed}"
        if counts or mix.is_separable:
            separable = f", or 1×{k} and then as many {k}×1" if "separable" in self.axes["form"].values else ""
            return f"{mix}; allowed: filters of {k}×{k}, {k}×1 and 1×{k}{separable}"
        shares = {"square": square / _num_filters(mix), "vertical": vertical / max(1, vertical + horizontal)}
        for name, share in shares.items():
            axis = self.axes[name]
            if axis.match(share) is None:
                return f"{name} {format_value(share)}; allowed: {format_values(axis)}"
        unit = "whole filters" if self.divisor == 1 else f"multiples of {self.divisor} filters"
        return f"{mix}; allowed: the shares of this space, rounded to {unit}"

    def to_dict(self) -> dict[str, Any]:
        """The group as a JSON object."""
        layers: dict[str, list[str]] = {}
        for layer in self.layers:
            layers.setdefault(layer.backbone, []).append(layer.name)
        varies = [name for name, axis in self.axes.items() if name not in ADDED or axis.values != (NEUTRAL[name],)]
        axes = {name: list(self.axes[name].values) for name in varies}
        return {"name": self.name, "layers": layers, "axes": axes}


def _allocate(layer: Layer, values: Mapping[str, Any]) -> Allocation:
    """The filters of a layer for the values of all axes but `depth`."""
    return _make_allocation(**{**values, "width": 1.0} if layer.keeps_width else values)


@lru_cache(maxsize=1 << 14)
def _make_allocation(
    present: str, form: str, kernel: int | str, square: float, vertical: float, join: str, width: float
) -> Allocation:
    if present == "no":
        return Allocation(width=0)
    if form == "separable":
        return Allocation("separable", width=width)
    multiple = None if join == "none" else float(Fraction(join))
    if square == 1 and kernel == "own":
        return Allocation("dense", width=width, join=multiple)
    k, rest = "k" if kernel == "own" else kernel, 1 - square
    shares = {f"{k}x1": rest * vertical, f"1x{k}": rest * (1 - vertical), f"{k}x{k}": square}
    groups = tuple(FilterGroup(shape, share) for shape, share in shares.items() if share)
    return Allocation("composite", groups, width, multiple)


def _num_filters(mix: Mix) -> int:
    """The number of filters that `width` sets: k×1 filters in a separable layer, otherwise all before a join."""
    return mix.out_channels if mix.is_separable else sum(group.num for group in mix.groups)


def units_of(layers: Iterable[Layer]) -> list[str]:
    """What `depth` counts in these layers, in order; first what is always there."""
    return sorted(dict.fromkeys(layer.unit for layer in layers), key=bool)


def _depth_of(mixes: Iterable[tuple[Layer, Mix | None]]) -> int:
    """How much of what `depth` counts has filters."""
    return len(units_of(layer for layer, mix in mixes if mix is not None))


def format_value(value: object) -> str:
    """A value as text. Numbers are written as fractions if these are exact: 3/8 instead of 0.375."""
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    fraction = Fraction(value).limit_denominator(64)
    return str(fraction) if abs(fraction - Fraction(value)) < 1e-6 else f"{value:.4g}"


def format_values(parameter: Parameter) -> str:
    """The allowed values of a parameter as text, such as "0 to 1 in steps of 1/8"."""
    values = parameter.values
    if parameter.ordered and len(values) > 3:
        step = (float(values[-1]) - float(values[0])) / (len(values) - 1)
        return f"{format_value(values[0])} to {format_value(values[-1])} in steps of {format_value(step)}"
    *others, last = [format_value(value) for value in values]
    return f"{', '.join(others)} or {last}" if others else last
