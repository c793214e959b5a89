"""Search spaces: the parameters that can vary, and the network of each combination of their values.

    space = load_space("nin")                     # or "timm:resnet18", or "mine.toml"
    params = space.params_of(space.points["nin-c3-lr"])
    architecture = space.architecture({**params, "conv1.square": 0.25})

Every combination of allowed values is a network. In some networks a parameter has no effect (the join of a separable
layer, a layer that the backbone does not have). Several points are then the same architecture and have the same
`canonical_id`. This module does not need torch, except for spaces of timm models.
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

from lrnas._arguments import checked
from lrnas._notebook import NotebookView
from lrnas._quantities import magnitude
from lrnas._resources import SEARCH_SPACES
from lrnas.arch.architecture import DENSE, Allocation, Architecture, check_divisor
from lrnas.arch.backbone_shapes import Choices, PlannedConv
from lrnas.errors import InvalidArchitecture, InvalidSpace, LrnasError, OutsideSpace, UnknownName, closest
from lrnas.models.plan import TIMM, Plan, canonical_id, make_plan, names_to_suggest, resolve_backbone
from lrnas.spaces.layer_groups import make_groups
from lrnas.spaces.parameters import NEUTRAL, Group, Parameter, format_value, format_values
from lrnas.spaces.toml_file import CHOICES, GRANULARITIES, Definition, Entry, Source, read_definition

VERSION = 1
"""Version of the format of `SearchSpace.to_dict`."""
UNIFORM_WIDTHS = (1.0, 0.5, 0.25)
"""Widths of the seeds, the simple networks with which a search starts and with which its results are compared."""
UNCHANGED = ("baseline", "dense-x1")
"""Names of the uniform network that is the unchanged backbone."""
DIVISOR = 8
"""Filter counts are multiples of this number in spaces that are derived from a timm model."""


@dataclass(frozen=True, repr=False)
class SearchSpace(NotebookView):
    """A search space, created by `load_space`."""

    name: str
    parameters: tuple[Parameter, ...]
    granularity: str
    choices: Mapping[str, Parameter]
    """The settings of the whole network that the space defines, including settings with one value."""
    groups: tuple[Group, ...]
    batch_norm: bool | None = None
    """Whether the networks have batch norm. None: they have none, or the norms of the timm model."""
    points: Mapping[str, Architecture] = field(default_factory=dict)
    """The reference networks by name: the paper's in the spaces of lrnas, or those of the user's file; else the
    unchanged model, if it is in the space."""
    uniform: Mapping[str, Architecture] = field(default_factory=dict)
    """Networks whose layers are all alike, by name: all dense, or all half k×1, half 1×k filters, at several widths."""
    baseline: str | None = None
    """The point with which other networks are compared."""
    left_out: tuple[str, ...] = ()
    """Names of points in the file that are not in the space, because its granularity is not the file's."""

    def __repr__(self) -> str:
        return (
            f"<SearchSpace {self.name}, granularity {self.granularity}: {self.dimension} parameters, "
            f"{magnitude(self.size)} points, {len(self.points)} named, {len(self.uniform)} uniform>"
        )

    @property
    def dimension(self) -> int:
        """The number of parameters."""
        return len(self.parameters)

    @property
    def size(self) -> int:
        """The number of points; several of them can be the same architecture."""
        return math.prod(len(parameter.values) for parameter in self.parameters)

    @property
    def layers_of(self) -> dict[str, str]:
        """What each parameter changes, by its name: layers, or the whole network."""
        found = {
            parameter.name: ", ".join(dict.fromkeys(layer.name for layer in group.layers_of(axis)))
            for group in self.groups
            for axis, parameter in group.axes.items()
        }
        return {parameter.name: found.get(parameter.name, "the whole network") for parameter in self.parameters}

    @property
    def divisor(self) -> int:
        """Filter counts are multiples of this number, as in an architecture."""
        return next((group.divisor for group in self.groups), 1)

    @property
    def backbones(self) -> tuple[str, ...]:
        """The names of the backbones."""
        return tuple(map(str, self.choices["backbone"].values))

    @checked
    def architecture(self, params: Mapping[str, Any]) -> Architecture:
        """The network of a point.

        Args:
            params: A value of every parameter, by name.

        Raises:
            OutsideSpace: If a parameter is missing or unknown, or a value is not allowed.
        """
        values = self._check(params)
        choices = {name: values.get(name, choice.values[0]) for name, choice in self.choices.items()}
        layers = {}
        for group in self.groups:
            allocations = group.allocations(choices["backbone"], values)
            layers.update({name: allocation for name, allocation in allocations.items() if allocation != DENSE})
        return _make_architecture(choices, layers, self.batch_norm, self.divisor)

    def smallest(self) -> list[Architecture]:
        """The networks with the fewest blocks, filters and k×k filters, one for each combination of the choices."""
        params: dict[str, Any] = {
            parameter.name: min(parameter.values) if axis in ("depth", "width", "square") else parameter.neutral
            for group in self.groups
            for axis, parameter in group.axes.items()
            if len(parameter.values) > 1
        }
        return [self.architecture(params | self._only_varying(found)) for found in self._combinations.values()]

    @checked
    def idle_parameters(self, params: Mapping[str, Any]) -> set[str]:
        """The parameters that have no effect at a point: those of layers that its network does not have, for example.

        Args:
            params: A value of every parameter, by name.
        """
        backbone = str(params.get("backbone", self.backbones[0]))
        left_out = frozenset(group.name for group in self.groups if group.is_left_out(params))
        kept = self._kept_layers(backbone, left_out)
        idle: set[str] = set()
        for group in self.groups:
            if group.names & kept:
                idle.update(group.idle_parameters(params))
                continue
            idle.update(group.parameter_names)
            if group.name in left_out and group.names & self._kept_layers(backbone, left_out - {group.name}):
                idle.discard(group.axes["present"].name)  # only the layers themselves are left out
        return idle

    def _kept_layers(self, backbone: str, left_out: frozenset[str]) -> frozenset[str]:
        """The layers of a backbone that are there if those of some groups are left out."""
        key = (backbone, left_out)
        if key not in self._kept:
            layers = {
                layer.name: Allocation(width=0)
                for group in self.groups
                if group.name in left_out
                for layer in group.layers
                if layer.backbone == backbone
            }
            self._kept[key] = frozenset(conv.name for conv in make_plan(Architecture(backbone, layers)).convs)
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[tuple[str, frozenset[str]], frozenset[str]]:
        """What `_kept_layers` found before."""
        return {}

    @checked
    def draw(self, chance: random.Random) -> dict[str, Any]:
        """Draw a random point, uniformly.

        Args:
            chance: The random number generator.

        Returns:
            A value of every parameter, by name.
        """
        return {parameter.name: chance.choice(parameter.values) for parameter in self.parameters}

    @checked
    def params_of(self, architecture: Architecture) -> dict[str, Any]:
        """The point of a network.

        Args:
            architecture: Any description of the network.

        Returns:
            A value of every parameter, by name.

        Raises:
            OutsideSpace: If the network is not in the space.
        """
        plan = make_plan(architecture)
        params = self._choices_of(plan)
        mixes = {conv.name: conv.mix for conv in plan.convs}
        for group in self.groups:
            layers = [layer for layer in group.layers if layer.backbone == plan.backbone]
            params |= group.params_of([(layer, mixes.pop(layer.name, None)) for layer in layers])
        own_mixes = {conv.name: conv.mix for conv in make_plan(Architecture(plan.backbone)).convs}
        for name, mix in mixes.items():
            if mix != (own := own_mixes[name]):
                raise OutsideSpace(f"{name}: {mix}; allowed: {own}, because this layer does not vary in this space")
        if len(plan.convs) < len(own_mixes):  # is a layer left out that must be there?
            found = make_plan(self.architecture(params))
            if missing := {conv.name for conv in found.convs} - {conv.name for conv in plan.convs}:
                raise OutsideSpace(f"{min(missing)}: left out; allowed: this layer is in all networks of this space")
        return {parameter.name: params[parameter.name] for parameter in self.parameters}

    def to_dict(self) -> dict[str, Any]:
        """The space as a JSON object. Two spaces are the same if and only if their JSON objects are equal."""
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
            "seeds": {name: network.to_dict() for name, network in self.uniform.items()},  # their name in studies
            "left_out": list(self.left_out),
        }

    def _check(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The given values, each replaced by the equal allowed value; raises OutsideSpace if there is none."""
        values = {}
        for parameter in self.parameters:
            name = parameter.name
            values[name] = parameter.match(params.get(name))
            if values[name] is None:
                got = format_value(params[name]) if name in params else "no value"
                raise OutsideSpace(f"{name}: {got}; allowed: {format_values(parameter)}")
        if len(params) > len(values):
            unknown = min(params.keys() - values.keys())
            raise OutsideSpace(f"{self.name} has no parameter {unknown!r}{closest(unknown, values)}")
        return values

    def _choices_of(self, plan: Plan) -> dict[str, Any]:
        """The values of the parameters that are settings of the whole network."""
        if plan.backbone not in self.backbones:
            raise OutsideSpace(f"backbone {plan.backbone}; allowed: {format_values(self.choices['backbone'])}")
        found = self._combinations.get((plan.backbone, _settings_of(plan)))
        if found is not None:
            return self._only_varying(found)
        known = [choices for backbone, choices in self._combinations if backbone == plan.backbone]
        if plan.choices is None:
            strides = " or ".join(map(str, known))
            raise OutsideSpace(f"stem_stride {_settings_of(plan)}; allowed: {strides}")
        for name, value in plan.choices._asdict().items():
            allowed = list(dict.fromkeys(str(getattr(choices, name)) for choices in known))
            if str(value) not in allowed:
                raise OutsideSpace(f"{name} {value}; allowed: {' or '.join(allowed)}")
        raise OutsideSpace(f"{plan.choices} is not a combination of this space's settings")

    def _only_varying(self, choices: Mapping[str, Any]) -> dict[str, Any]:
        """The choices that are parameters."""
        return {name: value for name, value in choices.items() if len(self.choices[name].values) > 1}

    @cached_property
    def _combinations(self) -> dict[Any, dict[str, Any]]:
        """Every combination of the choices, by the backbone and the settings of the resulting network."""
        found: dict[Any, dict[str, Any]] = {}
        for values in product(*(choice.values for choice in self.choices.values())):
            choices = dict(zip(self.choices, values, strict=True))
            plan = make_plan(_make_architecture(choices, {}, self.batch_norm))
            found.setdefault((plan.backbone, _settings_of(plan)), choices)
        return found


def _settings_of(plan: Plan) -> Choices | int:
    """The settings of a whole network; of a timm model, the only one is the stride of its first convolution."""
    return plan.convs[0].stride if plan.choices is None else plan.choices


@checked
def load_space(
    source: str,
    *,
    granularity: str | None = None,
    batch_norm: bool | None = None,
    divisor: int | None = None,
    stem_stride: int | None = None,
) -> SearchSpace:
    """Load a search space.

    Args:
        source: The name of a space that is part of lrnas (`lrnas spaces` lists them), a TOML file, or timm:MODEL for a
            space derived from a timm model.
        granularity: Which layers share parameters: `network`, `stage` or `layer`; by default as in the file.
        batch_norm: Whether all networks of the space have batch norm, including its points; by default as in the file.
        divisor: Filter counts are multiples of this number; by default as in the file.
        stem_stride: Stride of the first layer of all networks, including the points: 1, 2 or 4; by default as in the
            file.

    Returns:
        The space.

    Raises:
        UnknownName: If there is no space with this name.
        InvalidSpace: If the file or an argument is not valid.

    Example:
        >>> from lrnas import load_space
        >>> space = load_space("nin")
        >>> params = space.params_of(space.points["nin-c3-lr"])
        >>> params["backbone"], params["conv1.square"]
        ('nin_3x3', 0.0)
        >>> space.architecture({**params, "conv1.width": 0.5}).layers["conv1"].width
        0.5
    """
    if granularity is not None and granularity not in GRANULARITIES:
        raise InvalidSpace(f"granularity must be one of {', '.join(GRANULARITIES)}; got {granularity!r}; choose one")
    if source.startswith(TIMM):
        definition = _derive(source, granularity or "stage")
    elif source in named_spaces():
        definition = read_definition(SEARCH_SPACES / f"{source}.toml", f"{source}.toml")
    elif source.endswith(".toml") or (len(source) < 1000 and Path(source).is_file()):
        definition = read_definition(Path(source), source)
    else:
        known = names_to_suggest(source, named_spaces())
        raise UnknownName("space", source[:80], known, " (`lrnas spaces` lists all; or give FILE.toml or timm:MODEL)")
    if divisor is not None:
        check_divisor(divisor)
        definition = dataclasses.replace(definition, divisor=divisor)
    if stem_stride is not None:
        definition = _with_stem_stride(definition, stem_stride)
    return _make_space(definition, granularity or definition.granularity, batch_norm)


def _with_stem_stride(definition: Definition, stem_stride: int) -> Definition:
    """The definition with this stride of the first layer in all networks, including the points."""
    try:
        points = {name: dataclasses.replace(p, stem_stride=stem_stride) for name, p in definition.points.items()}
        Architecture("nin", stem_stride=stem_stride)  # checks the value if there are no points
    except InvalidArchitecture as error:
        raise InvalidSpace(str(error)) from None
    choices = {**definition.choices, "stem_stride": (stem_stride,)}
    return dataclasses.replace(definition, choices=choices, points=points)


def named_spaces() -> list[str]:
    """The names of the spaces that are part of lrnas."""
    return sorted(path.stem for path in SEARCH_SPACES.glob("*.toml"))


def _make_space(definition: Definition, granularity: str, batch_norm: bool | None) -> SearchSpace:
    backbones = _resolve_backbones(definition)
    if batch_norm is None:
        batch_norm = definition.batch_norm
    if batch_norm is not None and any(name.startswith(TIMM) for name in (*backbones, definition.name)):
        got = str(batch_norm).lower()
        raise InvalidSpace(f"{definition.name}: a timm model keeps its own norm; got batch_norm {got}; leave it out")
    values = {**definition.choices, "backbone": backbones}
    choices = {name: Parameter(name, values[name], ordered=False) for name in CHOICES if name in values}
    groups = make_groups(definition, backbones, granularity)
    parameters = [choice for choice in choices.values() if len(choice.values) > 1]
    parameters += [parameter for group in groups for parameter in group.parameters]
    space = SearchSpace(definition.name, tuple(parameters), granularity, choices, groups, batch_norm)
    if not parameters:
        definition.source.fail("a space needs a parameter; got only fixed values; give a list or a range", "space")
    try:
        space._combinations  # noqa: B018  # raises an error unless every combination is a network
    except LrnasError as error:
        named = next((name for name in CHOICES[1:] if name in choices and name in str(error)), "backbone")
        definition.source.fail(str(error), "space", named)
    points, left_out = _place_points(space, definition)
    baseline = definition.baseline if definition.baseline in points else None
    space = dataclasses.replace(space, points=points, left_out=left_out, baseline=baseline)
    uniform = _uniform_networks(space)
    if not points and (dense := next((uniform.pop(name) for name in UNCHANGED if name in uniform), None)) is not None:
        # the network to compare with is then the unchanged backbone
        name = dense.backbone.removeprefix(TIMM)
        space = dataclasses.replace(space, points={name: dense}, baseline=name)
    return dataclasses.replace(space, uniform=uniform)


def _resolve_backbones(definition: Definition) -> tuple[str, ...]:
    names = []
    for given in definition.choices["backbone"]:
        try:
            name, with_norm = resolve_backbone(Architecture(given))
        except LrnasError as error:
            definition.source.fail(str(error), "space", "backbone")
        if with_norm:
            message = f"batch norm is a separate setting; got backbone {given!r}; write {name!r} and batch_norm = true"
            definition.source.fail(message, "space", "backbone")
        names.append(name)
    return tuple(dict.fromkeys(names))


def _make_architecture(
    choices: Mapping[str, Any], layers: Mapping[str, Any], batch_norm: bool | None, divisor: int = 1
) -> Architecture:
    choices = dict(choices)
    if choices.get("pool") == "none":  # a VGG without global pool keeps its own classifier, which fits its 7×7 map
        choices.pop("classifier", None)
    return Architecture(layers=layers, batch_norm=batch_norm, divisor=divisor, **choices)


def _place_points(space: SearchSpace, definition: Definition) -> tuple[dict[str, Architecture], tuple[str, ...]]:
    """The points of the file that are in the space, with the space's batch norm, and the names of the other points."""
    points: dict[str, Architecture] = {}
    left_out = []
    for name, point in definition.points.items():
        try:
            backbone, _ = resolve_backbone(point)
            point = _inside(space, dataclasses.replace(point, backbone=backbone, batch_norm=space.batch_norm))
        except OutsideSpace as error:
            if space.granularity == definition.granularity:
                definition.source.fail(f"point {name} is outside its own space: {error}", "points", name)
            left_out.append(name)
        except LrnasError as error:
            definition.source.fail(f"point {name}: {error}", "points", name)
        else:
            points[name] = point
    return points, tuple(left_out)


def _inside(space: SearchSpace, point: Architecture) -> Architecture:
    """The point as written or, if it is not in the space, with the space's divisor; may raise OutsideSpace."""
    try:
        space.params_of(point)
    except OutsideSpace:
        if point.divisor is not None or space.divisor == 1:
            raise
        point = dataclasses.replace(point, divisor=space.divisor)
        space.params_of(point)
    return point


def _uniform_networks(space: SearchSpace) -> dict[str, Architecture]:
    """The uniform networks of a space (see `SearchSpace.uniform`).

    Networks that are already points are left out, and so are networks that cost more than the baseline.
    """
    found: dict[str, Architecture] = {}
    known = {canonical_id(point) for point in space.points.values()}
    base: dict[str, Any] = {parameter.name: parameter.neutral for parameter in space.parameters}
    most = math.inf
    if space.baseline is not None:
        own = space.params_of(space.points[space.baseline])
        most = make_plan(space.points[space.baseline]).cost.macs
        base |= {name: own[name] for name in space.choices if name in own}
    home = base.get("backbone", space.backbones[0])
    mixes = [("dense", home, 1.0), *(("lr", backbone, 0.0) for backbone in space.backbones)]
    for (mix, backbone, square), width in product(mixes, UNIFORM_WIDTHS):
        wanted = {"form": "mixed", "square": square, "vertical": 0.5, "join": "none", "width": width}
        network = _uniform(space, {**base, "backbone": backbone}, wanted)
        if network is None or (key := canonical_id(network)) in known or make_plan(network).cost.macs > most:
            continue
        known.add(key)
        name = f"{mix}-x{width:g}"
        if width == 1 and (backbone.startswith(TIMM) or space.name.startswith(TIMM)):
            name = "baseline" if mix == "dense" else mix
        found[name if backbone == home else f"{backbone}-{name}"] = network
    return found


def _uniform(space: SearchSpace, base: Mapping[str, Any], wanted: Mapping[str, Any]) -> Architecture | None:
    """The network in which all groups of layers have the same values; None if it is not in the space."""
    params = dict(base)
    for group in space.groups:
        for axis in ("form", "square", "width"):  # a value that a space fixes
            value = group.axes[axis].values[0]
            is_fixed = len(group.axes[axis].values) == 1 and value not in (NEUTRAL[axis], wanted[axis])
            if is_fixed and group.layers_of(axis):
                return None
        for parameter in group.parameters:
            value = wanted.get(parameter.name.rpartition(".")[2], parameter.neutral)
            params[parameter.name] = parameter.match(value)
    if None in params.values():
        return None
    return space.architecture({parameter.name: params[parameter.name] for parameter in space.parameters})


def _derive(source: str, granularity: str) -> Definition:
    """The definition of the space of a timm model, in which everything varies that can: see docs/spaces.md."""
    try:
        plan = make_plan(Architecture(source))
    except InvalidArchitecture as error:
        raise InvalidSpace(f"{source}: {error}") from None
    stages: dict[str, list[PlannedConv]] = {}
    for conv in plan.convs:
        if conv.kernel > 1:
            stages.setdefault(_stage_of(conv.name), []).append(conv)
    if not stages:
        raise InvalidSpace(
            f"a space needs a convolution that can be replaced; all of {source} are 1×1, grouped or of a special type; "
            "choose another model"
        )
    eighths = tuple(i / 8 for i in range(9))
    axes: dict[str, Any] = {
        "square": eighths,
        "vertical": (0.25, 0.5, 0.75),
        "join": ("none", "1"),
        "width": eighths[1:],
    }
    entries = [Entry(tuple(conv.name for convs in stages.values() for conv in convs), axes)]
    if granularity == "stage":  # stages have different numbers of blocks
        entries = []
        for convs in stages.values():
            depths = tuple(float(i) for i in range(1, len({conv.block for conv in convs}) + 1))
            depth = {"depth": depths} if len(depths) > 1 else {}
            entries.append(Entry(tuple(conv.name for conv in convs), axes | depth))
    return Definition(
        name=plan.backbone if plan.backbone.startswith(TIMM) else source,
        source=Source(source),
        choices={"backbone": (plan.backbone,)},
        vary=tuple(entries),
        granularity="stage",
        divisor=DIVISOR,
        stages={name: tuple(conv.name for conv in convs) for name, convs in stages.items()},
    )


def _stage_of(path: str) -> str:
    """The stage of a layer of a timm model: its path up to the first part with a digit.

    Examples are layer1, s1, blocks.0, stages.1 and features.denseblock1. All layers in a module `stem` are one stage.
    """
    parts: Sequence[str] = path.split(".")
    if "stem" in parts[0]:
        return parts[0]
    counting = next((i for i, part in enumerate(parts) if any(map(str.isdigit, part))), 0)
    return ".".join(parts[: counting + 1])
