"""Decides which layers of a search space share their parameters, by combining a definition with the backbones.

At granularity `layer` every layer has its own parameters, at `stage` the layers of one stage share them, at `network`
all layers do, in each case within one `[[space.vary]]` table. Layers in `[space.tied]` share them at every granularity.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.arch.backbone_shapes import PlannedConv
from lrnas.errors import ConversionError, InvalidArchitecture, closest
from lrnas.models.plan import TIMM, make_plan
from lrnas.spaces.parameters import NEUTRAL, Group, Layer, Parameter, units_of
from lrnas.spaces.toml_file import Definition, Entry, Key


def make_groups(definition: Definition, backbones: Sequence[str], granularity: str) -> tuple[Group, ...]:
    """The groups of layers that share their parameters, in the order of their first layers.

    Args:
        definition: The space as described in its file.
        backbones: The names of its backbones.
        granularity: Which layers share parameters: `network`, `stage` or `layer`.
    """
    return _Grouping(definition, backbones).groups(granularity)


class _Grouping:
    """Assigns the layers of the backbones to the entries, stages and tied lists of a definition."""

    def __init__(self, definition: Definition, backbones: Sequence[str]) -> None:
        self.definition = definition
        self.fail = definition.source.fail
        self.layers = [
            Layer(backbone, conv.name, conv.kernel, conv.mix.out_channels, conv.keeps_width, _unit_of(backbone, conv))
            for backbone in backbones
            for conv in make_plan(Architecture(backbone)).convs
        ]
        self.kernels = {layer.name: layer.kernel for layer in self.layers}
        self.entries = self.assign_entries()
        self.tied = self.assign_lists("tied", definition.tied)
        self.stages = self.assign_lists("stages", definition.stages)
        self.check_tied()
        for name in self.entries if definition.stages else ():
            if name not in self.stages:
                self.fail(f"every layer that varies must be in a stage; {name} is in none; add it", "space", "stages")

    def groups(self, granularity: str) -> tuple[Group, ...]:
        if granularity == "stage" and not self.definition.stages:
            self.fail('granularity stage needs stages; got none; add [space.stages] or choose "layer"', "space")
        members: dict[tuple[int, str], list[Layer]] = {}
        for layer in self.layers:
            if layer.name in self.entries:
                i = self.entries[layer.name]
                members.setdefault((i, self.group_name(layer.name, i, granularity)), []).append(layer)
        groups: dict[str, Group] = {}
        for (i, name), layers in members.items():
            if name in groups:
                message = f"entries with layers in one stage need different names; {name!r} is used twice; add name = …"
                self.fail(message, "space", "vary", i)
            if "depth" in self.definition.vary[i].axes and granularity != "stage":
                message = f'depth needs granularity stage; got "{granularity}"; choose stage'
                self.fail(message, "space", "vary", i, "depth")
            given = self.definition.vary[i].axes
            if all(layer.keeps_width for layer in layers):
                given = {axis: values for axis, values in given.items() if axis != "width"}
            axes = {axis: _make_parameter(name, axis, given) for axis in NEUTRAL}
            groups[name] = Group(name, tuple(layers), axes, self.definition.divisor)
            self.check_timm(groups[name], i)
            self.check_present(groups[name], i)
            self.check_depth(groups[name], i)
        return tuple(groups.values())

    def group_name(self, layer: str, i: int, granularity: str) -> str:
        own = self.definition.vary[i].name
        if granularity == "layer":
            return self.tied.get(layer, layer)
        if granularity == "stage":
            return f"{self.stages[layer]}.{own}" if own else self.stages[layer]
        return own or "all"

    def assign_entries(self) -> dict[str, int]:
        """The index of the entry that varies each layer. Patterns do not match a layer that another entry names."""
        entries: dict[str, int] = {}
        named: set[str] = set()
        for exact in (True, False):
            for i, entry in enumerate(self.definition.vary):
                for pattern in entry.layers:
                    for name in self.match(pattern, entry, i) if (pattern in self.kernels) == exact else ():
                        if entries.get(name, i) == i:
                            entries[name] = i
                        elif exact or name not in named:
                            message = f"a layer can be in one entry; {name} is in two; remove it from one"
                            self.fail(message, "space", "vary", i, "layers")
            named |= entries.keys()
        for i in range(len(self.definition.vary)):
            if i not in entries.values():
                message = (
                    "an entry needs a layer that can vary; its patterns match only layers of other entries, or 1×1 "
                    "layers, in which only width and present can vary; add layers"
                )
                self.fail(message, "space", "vary", i, "layers")
        return entries

    def match(self, pattern: str, entry: Entry, i: int) -> list[str]:
        """The layers that a name or pattern matches. Patterns skip 1×1 layers if filter shapes or joins vary."""
        where = ("space", "vary", i, "layers")
        names = self.expand(pattern, *where)
        if entry.axes.keys() <= {"width", "present"}:
            return names
        if self.kernels.get(pattern) == 1:
            got = ", ".join(entry.axes)
            message = f"{pattern} is a 1×1 convolution, in which only width and present can vary; got {got}"
            self.fail(f"{message}; give it an entry of its own", *where)
        return [name for name in names if self.kernels[name] > 1]

    def expand(self, pattern: str, *where: Key) -> list[str]:
        known = list(self.kernels)
        names = [name for name in known if name == pattern or fnmatchcase(name, pattern)]
        if not names:
            backbones = " and ".join(dict.fromkeys(layer.backbone for layer in self.layers))
            hint = closest(pattern, known) or f"; it has {', '.join(known[:6])}, …"
            self.fail(f"{backbones} has no layer {pattern!r}{hint}", *where)
        return names

    def assign_lists(self, key: str, lists: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        """The name of the list in `[space.tied]` or `[space.stages]` that contains each layer."""
        owners: dict[str, str] = {}
        for group, patterns in lists.items():
            for pattern in patterns:
                for name in self.expand(pattern, "space", key, group):
                    if owners.setdefault(name, group) != group:
                        message = f"a layer can be in one list of [space.{key}]; {name} is in two; remove it from one"
                        self.fail(message, "space", key, group)
        return owners

    def check_tied(self) -> None:
        for group in self.definition.tied:
            names = [name for name, own in self.tied.items() if own == group]
            if len({(self.entries.get(name), self.stages.get(name)) for name in names}) > 1:
                message = f"tied layers must be in one entry and one stage; {', '.join(names)} are not; change one"
                self.fail(message, "space", "tied", group)
            if group in self.kernels and group not in names:
                message = (
                    f"tied layers need a new name or the name of one of them; {group!r} is another layer; rename it"
                )
                self.fail(message, "space", "tied", group)

    def check_timm(self, group: Group, i: int) -> None:
        """Refuse numbers of channels that the layers of a timm model cannot have."""
        if not any(layer.backbone.startswith(TIMM) for layer in group.layers):
            return
        for axis, allowed in (("width", lambda value: value <= 1), ("join", ("none", "1").__contains__)):
            if others := [str(value) for value in group.axes[axis].values if not allowed(value)]:
                message = (
                    "layers of a timm model have at most their own channels: width must be at most 1, join none or 1"
                )
                self.fail(f"{message}; got {axis} {min(others)}; remove it", "space", "vary", i, axis)

    def check_present(self, group: Group, i: int) -> None:
        """Refuse to leave out a layer that the backbone needs."""
        for layer in group.layers if "no" in group.axes["present"].values else ():
            try:
                make_plan(Architecture(layer.backbone, {layer.name: Allocation(width=0)}))
            except (InvalidArchitecture, ConversionError) as error:
                self.fail(f"{layer.backbone}: {error}", "space", "vary", i, "present")

    def check_depth(self, group: Group, i: int) -> None:
        """Refuse depths that the group does not have, or that would also leave out all layers of another group."""
        where = ("space", "vary", i, "depth")
        for depth in group.axes["depth"].values:
            for backbone in () if depth == "all" else dict.fromkeys(layer.backbone for layer in group.layers):
                layers = [layer for layer in group.layers if layer.backbone == backbone]
                units = units_of(layers)
                if int(depth) > len(units):
                    what = "layers and blocks that can be left out" if "" in units else "layers"
                    names = ", ".join(layer.name for layer in layers)
                    got = f"depth must be at most the number of {what}; got {int(depth)} for {names}"
                    self.fail(f"{got}; choose {len(units)} or less", *where)
                left_out = [layer.name for layer in layers if layer.unit not in units[: int(depth)]]
                try:
                    plan = make_plan(Architecture(backbone, dict.fromkeys(left_out, Allocation(width=0))))
                except (InvalidArchitecture, ConversionError) as error:
                    self.fail(f"{backbone}: {error}", *where)
                kept = {conv.name for conv in plan.convs}
                for other in self.layers:
                    if other.backbone == backbone and other.name not in kept and other.name not in left_out:
                        self.check_effect(other.name, kept, left_out[0], i)

    def check_effect(self, layer: str, kept: Collection[str], left_out: str, i: int) -> None:
        """Refuse to leave out a layer that has no parameters, or the last one that has these parameters."""
        place = (self.entries.get(layer), self.stages.get(layer))
        if place[0] is None or not any((self.entries.get(name), self.stages.get(name)) == place for name in kept):
            got = f"without {left_out} there is no {layer}, which does not vary with it"
            self.fail(f"{got}; put both in one entry and stage", "space", "vary", i, "depth")


def _unit_of(backbone: str, conv: PlannedConv) -> str:
    return conv.block if backbone.startswith(TIMM) else conv.name


def _make_parameter(group: str, axis: str, given: Mapping[str, tuple[Any, ...]]) -> Parameter:
    """The parameter of an axis; it is ordered if its values are numbers in even steps."""
    values = given.get(axis, (NEUTRAL[axis],))
    ordered = len(values) > 1 and all(isinstance(value, float) for value in values)
    steps = [after - before for before, after in pairwise(values)] if ordered else []
    return Parameter(f"{group}.{axis}", values, ordered and max(steps) - min(steps) < 1e-9)
