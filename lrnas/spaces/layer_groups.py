"""Which layers of a search space vary together: a definition's names and patterns meet the backbones.

At granularity layer every layer is by itself, at stage those of one stage, at network all, each time
within one `[[space.vary]]`; `[space.tied]` binds layers at any granularity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from lrnas.arch.architecture import Architecture
from lrnas.errors import closest
from lrnas.models.plan import TIMM, make_plan
from lrnas.spaces.parameters import NEUTRAL, Group, Layer, Parameter
from lrnas.spaces.toml_file import Definition, Entry


def tie_layers(definition: Definition, backbones: Sequence[str], granularity: str) -> tuple[Group, ...]:
    """The groups of layers that share their parameters, in the order of their first layers."""
    layers = [
        Layer(backbone, conv.name, conv.kernel, conv.mix.out_channels)
        for backbone in backbones
        for conv in make_plan(Architecture(backbone)).convs
    ]
    return _Tying(definition, layers).groups(granularity)


class _Tying:
    def __init__(self, definition: Definition, layers: list[Layer]) -> None:
        self.definition = definition
        self.source = definition.source
        self.layers = layers
        self.known = list(dict.fromkeys(layer.name for layer in layers))
        self.entries = self.assign_entries()
        self.tied = self.assign("tied", definition.tied)
        self.stages = self.assign("stages", definition.stages)
        self.check_tied()
        if definition.stages:
            for name in self.entries:
                if name not in self.stages:
                    raise self.source.error(
                        f"the stages have every layer that varies; {name} is in none; add it to one", "space", "stages"
                    )

    def groups(self, granularity: str) -> tuple[Group, ...]:
        if granularity == "stage" and not self.definition.stages:
            raise self.source.error(
                'granularity stage needs stages; got none; add [space.stages] or choose "layer"', "space"
            )
        members: dict[tuple[int, str], list[Layer]] = {}
        for layer in self.layers:
            if layer.name in self.entries:
                i = self.entries[layer.name]
                members.setdefault((i, self.group_name(layer.name, i, granularity)), []).append(layer)
        groups: dict[str, Group] = {}
        for (i, name), layers in members.items():
            if name in groups:
                message = f"entries that vary layers of one stage have names; {name!r} stands for two; add name = …"
                raise self.source.error(message, "space", "vary", i)
            entry = self.definition.vary[i]
            axes = {axis: _parameter(name, axis, entry.axes) for axis in NEUTRAL}
            groups[name] = Group(name, tuple(layers), axes, self.definition.divisor)
            self.check_timm(groups[name], i)
        return tuple(groups.values())

    def group_name(self, layer: str, i: int, granularity: str) -> str:
        own = self.definition.vary[i].name
        if granularity == "layer":
            return self.tied.get(layer, layer)
        if granularity == "stage":
            return f"{self.stages[layer]}.{own}" if own else self.stages[layer]
        return own or "all"

    def assign_entries(self) -> dict[str, int]:
        """Which entry varies a layer. A name counts for more than a pattern, as does a layer for "*"."""
        found: dict[str, int] = {}
        named: set[str] = set()
        for exact in (True, False):
            for i, entry in enumerate(self.definition.vary):
                for pattern in entry.layers:
                    if (pattern in self.known) != exact:
                        continue
                    for name in self.matching(pattern, entry, i):
                        if found.get(name, i) == i:
                            found[name] = i
                        elif exact or name not in named:
                            message = f"a layer varies by one entry; {name} is in two; remove it from one"
                            raise self.source.error(message, "space", "vary", i, "layers")
            named |= found.keys()
        for i in range(len(self.definition.vary)):
            if i not in found.values():
                message = "an entry varies k×k layers, or the width of 1×1 ones; it has none; change its layers"
                raise self.source.error(message, "space", "vary", i, "layers")
        return found

    def matching(self, pattern: str, entry: Entry, i: int) -> list[str]:
        """The layers that a name or a pattern means; a pattern passes over 1×1 layers that cannot have it all."""
        kernels = {layer.name: layer.kernel for layer in self.layers}
        names = self.expand(pattern, "space", "vary", i, "layers")
        if entry.widths_only:
            return names
        if pattern in self.known and kernels[pattern] == 1:
            raise self.source.error(
                f"{pattern} is a 1×1 convolution, of which only the width varies; got {', '.join(entry.axes)}; give it "
                "an entry of its own",
                "space",
                "vary",
                i,
                "layers",
            )
        return [name for name in names if kernels[name] > 1]

    def expand(self, pattern: str, *where: str | int) -> list[str]:
        names = [name for name in self.known if name == pattern or fnmatchcase(name, pattern)]
        if not names:
            backbones = " and ".join(dict.fromkeys(layer.backbone for layer in self.layers))
            few = ", ".join(self.known[:6]) + (", …" if len(self.known) > 6 else "")
            guess = closest(pattern, self.known) or f"; it has {few}"
            raise self.source.error(f"{backbones} has no layer {pattern!r}{guess}", *where)
        return names

    def assign(self, key: str, lists: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        found: dict[str, str] = {}
        for group, patterns in lists.items():
            for pattern in patterns:
                for name in self.expand(pattern, "space", key, group):
                    if found.setdefault(name, group) != group:
                        message = f"a layer stands once in [space.{key}]; {name} is in two; remove it from one"
                        raise self.source.error(message, "space", key, group)
        return found

    def check_tied(self) -> None:
        for group in self.definition.tied:
            names = [name for name, own in self.tied.items() if own == group]
            if len({(self.entries.get(name), self.stages.get(name)) for name in names}) > 1:
                raise self.source.error(
                    f"tied layers are of one entry and one stage; {', '.join(names)} are not; change one of them",
                    "space",
                    "tied",
                    group,
                )
            if group in self.known and group not in names:
                raise self.source.error(
                    f"tied layers have a name of their own or one of theirs; {group!r} is another layer; rename it",
                    "space",
                    "tied",
                    group,
                )

    def check_timm(self, group: Group, i: int) -> None:
        """A timm model's layers keep their numbers of channels, which other parts count on."""
        if not any(layer.backbone.startswith(TIMM) for layer in group.layers):
            return
        for axis, allowed in (("width", {1.0}), ("join", {"none", "1"})):
            others = set(group.axes[axis].values) - allowed
            if others:
                message = f"layers of a timm model keep their channels: width is 1, join none or 1; got {axis} "
                raise self.source.error(f"{message}{min(map(str, others))}; remove it", "space", "vary", i, axis)


def _parameter(group: str, axis: str, given: Mapping[str, tuple[Any, ...]]) -> Parameter:
    values = given.get(axis, (NEUTRAL[axis],))
    ordered = len(values) > 1 and all(isinstance(value, float) for value in values)
    if ordered:
        step = (values[-1] - values[0]) / (len(values) - 1)
        ordered = all(abs(values[0] + i * step - value) < 1e-9 for i, value in enumerate(values))
    return Parameter(f"{group}.{axis}", values, ordered)
