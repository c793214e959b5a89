"""Search spaces: what may vary in a network, and the networks that come of it.

    space = load_space("nin")                     # or "timm:resnet18", or "mine.toml"
    params = space.params_of(space.points["nin-c3-lr"])
    architecture = space.architecture({**params, "conv1.square": 0.25})

Every combination of allowed values is a network. Some parameters make no difference to some networks
(a join to a separable layer, a layer to a backbone without it); then several points mean one
architecture, and `canonical_id` tells. Nothing here needs torch, but for spaces of timm models.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from lrnas._resources import SEARCH_SPACES
from lrnas.arch.architecture import DENSE, Architecture, check_divisor
from lrnas.errors import InvalidArchitecture, InvalidSpace, LrnasError, OutsideSpace, UnknownName, closest
from lrnas.models.plan import TIMM, Plan, canonical_id, make_plan, resolve_backbone
from lrnas.spaces.layer_groups import tie_layers
from lrnas.spaces.parameters import Group, Parameter, format_value, format_values
from lrnas.spaces.toml_file import CHOICES, GRANULARITIES, Definition, Entry, Source, read_definition

VERSION = 1
"""Version of what `SearchSpace.to_dict` gives."""
SEED_WIDTHS = (1.0, 0.5, 0.25)
"""Uniform scalings to begin a search with, and to compare its result with."""
DIVISOR = 8
"""Of numbers of filters in spaces that are derived, as in those that come with lrnas."""


@dataclass(frozen=True)
class SearchSpace:
    """What may vary, with the networks that have a name in it. `load_space` makes them."""

    name: str
    parameters: tuple[Parameter, ...]
    granularity: str
    choices: Mapping[str, Parameter]
    """What concerns the whole network, for what the space speaks of; with one value where it is fixed."""
    groups: tuple[Group, ...]
    batch_norm: bool | None = None
    """Of every network in the space; None is without, or as a timm model has it."""
    points: Mapping[str, Architecture] = field(default_factory=dict)
    """The paper's networks of this space, or those of one's own file."""
    seeds: Mapping[str, Architecture] = field(default_factory=dict)
    """Uniform scalings: the dense baseline and half k×1, half 1×k, where the space has them."""
    baseline: str | None = None
    """The point that others are compared with."""
    left_out: tuple[str, ...] = ()
    """Points of the file that lie outside at a granularity other than the file's own."""

    @property
    def dimension(self) -> int:
        """The number of parameters, the same for every point."""
        return len(self.parameters)

    @property
    def size(self) -> int:
        """The number of points; architectures may be fewer."""
        return math.prod(len(parameter.values) for parameter in self.parameters)

    @property
    def divisor(self) -> int:
        """Of numbers of filters, as in an architecture."""
        return next((group.divisor for group in self.groups), 1)

    @property
    def backbones(self) -> tuple[str, ...]:
        return tuple(map(str, self.choices["backbone"].values))

    def architecture(self, params: Mapping[str, Any]) -> Architecture:
        """The network that a value of every parameter means."""
        values = self._checked(params)
        choices = {name: values.get(name, choice.values[0]) for name, choice in self.choices.items()}
        backbone = choices["backbone"]
        layers = {}
        for group, names in self._names[backbone]:
            allocation = group.allocation(values)
            if allocation != DENSE:
                layers.update(dict.fromkeys(names, allocation))
        return _network(choices, layers, self.batch_norm, self.divisor)

    def draw(self, chance: random.Random) -> dict[str, Any]:
        """A value of every parameter, at random."""
        return {parameter.name: chance.choice(parameter.values) for parameter in self.parameters}

    def params_of(self, architecture: Architecture) -> dict[str, Any]:
        """The parameters of a network, under whatever description; OutsideSpace if it has none here."""
        plan = make_plan(architecture, check_fit=False)
        params = self._choices_of(plan)
        mixes = {conv.name: conv.mix for conv in plan.convs}
        for group in self.groups:
            layers = [layer for layer in group.layers if layer.backbone == plan.backbone]
            params |= group.params_of([(layer, mixes.pop(layer.name)) for layer in layers])
        for name, mix in mixes.items():
            own = next(conv.mix for conv in make_plan(Architecture(plan.backbone)).convs if conv.name == name)
            if mix != own:
                raise OutsideSpace(f"{name}: {mix}; allowed: {own}, for it does not vary in this space")
        return {parameter.name: params[parameter.name] for parameter in self.parameters}

    def to_dict(self) -> dict[str, Any]:
        """All there is to know, for JSON: two spaces are the same if and only if these are equal."""
        return {
            "version": VERSION,
            "name": self.name,
            "granularity": self.granularity,
            "batch_norm": self.batch_norm,
            **({} if self.divisor == 1 else {"divisor": self.divisor}),
            "parameters": [parameter.to_dict() for parameter in self.parameters],
            "choices": {name: list(choice.values) for name, choice in self.choices.items()},
            "groups": [group.to_dict() for group in self.groups],
            "baseline": self.baseline,
            "points": {name: point.to_dict() for name, point in self.points.items()},
            "seeds": {name: seed.to_dict() for name, seed in self.seeds.items()},
            "left_out": list(self.left_out),
        }

    def _checked(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """A value of every parameter, as the space spells it."""
        values = {}
        for name, parameter in self._by_name.items():
            if name not in params:
                raise OutsideSpace(f"every parameter has a value; {name} has none; allowed: {format_values(parameter)}")
            value = parameter.match(params[name])
            if value is None:
                raise OutsideSpace(f"{name}: {format_value(params[name])}; allowed: {format_values(parameter)}")
            values[name] = value
        if len(params) > len(values):
            unknown = min(params.keys() - values.keys())
            raise OutsideSpace(f"{self.name} has no parameter {unknown!r}{closest(unknown, values)}")
        return values

    def _choices_of(self, plan: Plan) -> dict[str, Any]:
        """The parameters that concern the whole network."""
        if plan.backbone not in self.backbones:
            raise OutsideSpace(f"backbone {plan.backbone}; allowed: {format_values(self.choices['backbone'])}")
        found = self._combinations.get((plan.backbone, plan.choices))
        if found is not None:
            return {name: value for name, value in found.items() if len(self.choices[name].values) > 1}
        known = [choices for backbone, choices in self._combinations if backbone == plan.backbone]
        assert plan.choices is not None, "a timm model has no choices"
        for name, value in plan.choices._asdict().items():
            allowed = list(dict.fromkeys(str(getattr(choices, name)) for choices in known))
            if str(value) not in allowed:
                raise OutsideSpace(f"{name} {value}; allowed: {' or '.join(allowed)}")
        raise OutsideSpace(f"{plan.choices} is no combination of this space's choices")

    @cached_property
    def _by_name(self) -> dict[str, Parameter]:
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def _names(self) -> dict[str, list[tuple[Group, list[str]]]]:
        """By backbone, the groups that have layers in it, with these layers."""
        return {
            backbone: [
                (group, names)
                for group in self.groups
                if (names := [layer.name for layer in group.layers if layer.backbone == backbone])
            ]
            for backbone in self.backbones
        }

    @cached_property
    def _combinations(self) -> dict[Any, dict[str, Any]]:
        """Every combination of the choices, by backbone and what it resolves to."""
        found: dict[Any, dict[str, Any]] = {}
        for values in product(*(choice.values for choice in self.choices.values())):
            choices = dict(zip(self.choices, values, strict=True))
            plan = make_plan(_network(choices, {}, self.batch_norm))
            found.setdefault((plan.backbone, plan.choices), choices)
        return found


def load_space(
    source: str, *, granularity: str | None = None, batch_norm: bool | None = None, divisor: int | None = None
) -> SearchSpace:
    """A space by its name, from a TOML file, or derived from a timm model (`timm:resnet18`).

    `granularity` is network, stage or layer, in place of the space's own, and so is `divisor`, of numbers of filters;
    `batch_norm` is for every network that the space hands out, its named points included.
    """
    if granularity is not None and granularity not in GRANULARITIES:
        raise InvalidSpace(f"granularity is one of {', '.join(GRANULARITIES)}; got {granularity!r}; choose one")
    if source.startswith(TIMM):
        definition = _derive(source)
    elif source in named_spaces():
        definition = read_definition(SEARCH_SPACES / f"{source}.toml", f"{source}.toml")
    elif source.endswith(".toml") or (len(source) < 1000 and Path(source).is_file()):
        definition = read_definition(Path(source), source)
    else:
        raise UnknownName(
            "space", source[:80], named_spaces(), " (`lrnas spaces` lists all; or give FILE.toml or timm:MODEL)"
        )
    if divisor is not None:
        check_divisor(divisor)
        definition = dataclasses.replace(definition, divisor=divisor)
    return _make_space(definition, granularity or definition.granularity, batch_norm)


def named_spaces() -> list[str]:
    """The spaces that come with lrnas."""
    return sorted(path.stem for path in SEARCH_SPACES.glob("*.toml"))


def _make_space(definition: Definition, granularity: str, batch_norm: bool | None) -> SearchSpace:
    backbones = _resolve_backbones(definition)
    models = [name for name in backbones if name.startswith(TIMM)]
    if batch_norm is None:
        batch_norm = definition.batch_norm
    if batch_norm is not None and (models or definition.name.startswith(TIMM)):
        got = str(batch_norm).lower()
        raise InvalidSpace(f"{definition.name}: a timm model keeps its own norm; got batch_norm {got}; leave it out")
    values = {**definition.choices, "backbone": backbones}
    choices = {name: Parameter(name, values[name], ordered=False) for name in CHOICES if name in values}
    groups = tie_layers(definition, backbones, granularity)
    parameters = [choice for choice in choices.values() if len(choice.values) > 1]
    parameters += [parameter for group in groups for parameter in group.parameters]
    space = SearchSpace(definition.name, tuple(parameters), granularity, choices, groups, batch_norm)
    if not parameters:
        raise definition.source.error("every value is fixed; got nothing that varies; give a list or a range", "space")
    try:
        space._combinations  # noqa: B018  # every combination must be a network
    except LrnasError as error:
        named = next((name for name in CHOICES[1:] if name in choices and name in str(error)), "backbone")
        raise definition.source.error(str(error), "space", named) from None
    points, left_out = _place_points(space, definition)
    baseline = definition.baseline if definition.baseline in points else None
    space = dataclasses.replace(space, points=points, left_out=left_out, baseline=baseline)
    return dataclasses.replace(space, seeds=_make_seeds(space))


def _resolve_backbones(definition: Definition) -> tuple[str, ...]:
    names = []
    for given in definition.choices["backbone"]:
        try:
            name, with_norm = resolve_backbone(Architecture(given))
        except LrnasError as error:
            raise definition.source.error(str(error), "space", "backbone") from None
        if with_norm:
            message = f"batch norm is the study's choice; got backbone {given!r}; write {name!r} and batch_norm = true"
            raise definition.source.error(message, "space", "backbone")
        names.append(name)
    return tuple(dict.fromkeys(names))


def _network(
    choices: Mapping[str, Any], layers: Mapping[str, Any], batch_norm: bool | None, divisor: int = 1
) -> Architecture:
    choices = dict(choices)
    if choices.get("pool") == "none":  # a VGG that keeps its map keeps its classifier, which is made for it
        choices.pop("classifier", None)
    return Architecture(layers=layers, batch_norm=batch_norm, divisor=divisor, **choices)


def _place_points(space: SearchSpace, definition: Definition) -> tuple[dict[str, Architecture], tuple[str, ...]]:
    """The named points that lie in the space, with the study's batch norm, and the names of the others."""
    points: dict[str, Architecture] = {}
    left_out = []
    for name, point in definition.points.items():
        try:
            backbone, _ = resolve_backbone(point)
            point = _inside(space, dataclasses.replace(point, backbone=backbone, batch_norm=space.batch_norm))
        except OutsideSpace as error:
            if space.granularity == definition.granularity:
                raise definition.source.error(
                    f"point {name} is outside its own space: {error}", "points", name
                ) from None
            left_out.append(name)
        except LrnasError as error:
            raise definition.source.error(f"point {name}: {error}", "points", name) from None
        else:
            points[name] = point
    return points, tuple(left_out)


def _inside(space: SearchSpace, point: Architecture) -> Architecture:
    """A point as it is where the space has it so, else with the space's divisor; OutsideSpace where it has neither."""
    try:
        space.params_of(point)
    except OutsideSpace:
        if point.divisor is not None or space.divisor == 1:
            raise
        point = dataclasses.replace(point, divisor=space.divisor)
        space.params_of(point)
    return point


def _make_seeds(space: SearchSpace) -> dict[str, Architecture]:
    """Uniform scalings that are no points already: of the baseline, and of half k×1, half 1×k."""
    seeds: dict[str, Architecture] = {}
    known = {canonical_id(point) for point in space.points.values()}
    base: dict[str, Any] = {parameter.name: parameter.neutral for parameter in space.parameters}
    if space.baseline is not None:
        own = space.params_of(space.points[space.baseline])
        base |= {name: own[name] for name in space.choices if name in own}
    home = base.get("backbone", space.backbones[0])
    mixes = [("dense", home, 1.0), *(("lr", backbone, 0.0) for backbone in space.backbones)]
    for (mix, backbone, square), width in product(mixes, SEED_WIDTHS):
        wanted = {"form": "mixed", "square": square, "vertical": 0.5, "join": "none", "width": width}
        seed = _uniform(space, {**base, "backbone": backbone}, wanted)
        if seed is None or (key := canonical_id(seed)) in known:
            continue
        known.add(key)
        name = f"{mix}-x{width:g}"
        if backbone.startswith(TIMM) or space.name.startswith(TIMM):  # where widths stay
            name = "baseline" if mix == "dense" else mix
        seeds[name if backbone == home else f"{backbone}-{name}"] = seed
    return seeds


def _uniform(space: SearchSpace, base: Mapping[str, Any], wanted: Mapping[str, Any]) -> Architecture | None:
    """The network in which all that varies has the same value, if the space has it."""
    params = dict(base)
    for group in space.groups:
        for parameter in group.parameters:
            params[parameter.name] = parameter.match(wanted[parameter.name.rpartition(".")[2]])
    if None in params.values():
        return None
    return space.architecture({parameter.name: params[parameter.name] for parameter in space.parameters})


def _derive(source: str) -> Definition:
    """The space of a timm model: shares and joins of every k×k convolution that can be replaced.

    Widths stay, since other parts of a model count on its numbers of channels.
    """
    try:
        plan = make_plan(Architecture(source))
    except InvalidArchitecture as error:
        raise InvalidSpace(f"{source}: {error}") from None
    layers = [conv.name for conv in plan.convs if conv.kernel > 1]
    if not layers:
        raise InvalidSpace(
            f"{source} has no convolution that can be replaced (they are 1×1, grouped, or do more than convolve); "
            "got nothing that varies; choose another model"
        )
    stages: dict[str, list[str]] = {}
    for layer in layers:
        stages.setdefault(_stage_of(layer), []).append(layer)
    eighths = tuple(i / 8 for i in range(9))
    entry = Entry(tuple(layers), {"square": eighths, "vertical": (0.25, 0.5, 0.75), "join": ("none", "1")})
    return Definition(
        name=plan.backbone if plan.backbone.startswith(TIMM) else source,
        source=Source(source),
        choices={"backbone": (plan.backbone,)},
        vary=(entry,),
        granularity="stage",
        divisor=DIVISOR,
        stages={name: tuple(layers) for name, layers in stages.items()},
    )


def _stage_of(path: str) -> str:
    """The part of a timm model that a layer is in: layer1, s1, blocks.0, stages.1, features.denseblock1, stem.

    It goes up to the first part of the path that counts, that is, has a digit.
    """
    parts: Sequence[str] = path.split(".")
    if "stem" in parts[0]:
        return parts[0]
    counting = next((i for i, part in enumerate(parts) if any(map(str.isdigit, part))), 0)
    return ".".join(parts[: counting + 1])
