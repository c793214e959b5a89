"""Reads a search space from TOML, and says file and line of what is wrong with it.

The format is described in docs/spaces.md. What comes out is a `Definition`: the file's own words,
checked one by one. `lrnas.spaces.space` brings them together with the layers of the backbones.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

from lrnas.arch.architecture import Architecture, check_divisor
from lrnas.errors import InvalidArchitecture, InvalidSpace, closest
from lrnas.spaces.parameters import NEUTRAL

GRANULARITIES = ("network", "stage", "layer")
CHOICES = ("backbone", "pool", "stem_stride", "classifier")
"""What concerns the whole network. Batch norm does too, but it is the study's choice, not a trial's."""
POINT_EXTRAS = ("counted_on", "note", "explained")
"""What `lrnas.models.paper` knows of the paper's networks beside the architecture."""
PAPER = ("table", "title", "input", "num_classes", "data", "baseline", "auxiliary_macs", "classifier_params")
MOST_VALUES = 1000

_HEADER = re.compile(r"\s*\[(\[?)([^\[\]]+)\]\]?\s*(#.*)?")
_KEY = re.compile(r"\s*([^=#\[\]{}]+?)\s*=")

Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class Source:
    """Where a definition comes from, for messages."""

    name: str
    text: str = ""

    def at(self, *path: str | int) -> str:
        """The place of a key, given by the keys that lead to it; of the nearest one around it at worst."""
        if not self.text:
            return self.name
        lines = _find_lines(self.text)
        known = next((path[:n] for n in range(len(path), 0, -1) if path[:n] in lines), None)
        return self.name if known is None else f"{self.name}, line {lines[known]}"

    def error(self, message: str, *path: str | int) -> InvalidSpace:
        return InvalidSpace(f"{self.at(*path)}: {message}")


@dataclass(frozen=True)
class Entry:
    """Layers and what varies in them: one `[[space.vary]]`."""

    layers: tuple[str, ...]
    """Names or patterns."""
    axes: Mapping[str, tuple[Any, ...]]
    """Values by axis, for the axes given."""
    name: str = ""

    @property
    def widths_only(self) -> bool:
        return not self.axes.keys() - {"width"}


@dataclass(frozen=True)
class Definition:
    """A space as its file describes it, before it meets the backbones' layers."""

    name: str
    source: Source
    choices: Mapping[str, tuple[Any, ...]]
    """By the names in `CHOICES`, for those given."""
    vary: tuple[Entry, ...]
    granularity: str = "layer"
    batch_norm: bool | None = None
    divisor: int = 1
    """Of numbers of filters, as in an architecture."""
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Layers that share their parameters whatever the granularity, by the name they have together."""
    points: Mapping[str, Architecture] = field(default_factory=dict)
    baseline: str | None = None


def read_definition(path: Path, shown: str) -> Definition:
    """Read a space's file; `shown` is how messages call it."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise InvalidSpace(f"cannot read {shown}: {error.strerror}; give a TOML file or a space's name") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidSpace(f"{shown}: not TOML, {error}; see docs/spaces.md for the form") from None
    return _Reader(Source(shown, text)).definition(path.stem, data)


class _Reader:
    """Checks a file's tables one after the other."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def definition(self, name: str, data: dict[str, Any]) -> Definition:
        self.known_keys(data, ("space", "paper", "points"))
        if "space" not in data:
            raise self.source.error("a space has a table [space]; got none; add one, see docs/spaces.md")
        space = self.table(data["space"], "space")
        self.known_keys(
            space, (*CHOICES, "granularity", "batch_norm", "divisor", "baseline", "stages", "tied", "vary"), "space"
        )
        granularity = space.get("granularity", "layer")
        if granularity not in GRANULARITIES:
            raise self.source.error(
                f"granularity is one of {', '.join(GRANULARITIES)}; got {granularity!r}; choose one",
                "space",
                "granularity",
            )
        batch_norm = space.get("batch_norm")
        if batch_norm is not None and not isinstance(batch_norm, bool):
            raise self.source.error(
                f"batch_norm is true or false, for all networks; got {batch_norm!r}", "space", "batch_norm"
            )
        divisor = space.get("divisor", 1)
        try:
            check_divisor(divisor)
        except InvalidArchitecture as error:
            raise self.source.error(str(error), "space", "divisor") from None
        points = self.points(self.table(data.get("points", {}), "points"))
        return Definition(
            name=name,
            source=self.source,
            choices=self.choices(space),
            vary=self.vary(space),
            granularity=granularity,
            batch_norm=batch_norm,
            divisor=divisor,
            stages=self.layer_lists(space, "stages"),
            tied=self.layer_lists(space, "tied"),
            points=points,
            baseline=self.baseline(space, self.table(data.get("paper", {}), "paper"), points),
        )

    def choices(self, space: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
        if "backbone" not in space:
            raise self.source.error('a space names its backbone; got none; add backbone = "vgg11", say', "space")
        choices = {}
        for name in CHOICES:
            if name in space:
                given = space[name] if isinstance(space[name], list) else [space[name]]
                self.distinct(given, "space", name)
                choices[name] = tuple(given)
        for value in choices["backbone"]:
            if not isinstance(value, str):
                raise self.source.error(f"backbone is a name or a list of names; got {value!r}", "space", "backbone")
        return choices

    def vary(self, space: dict[str, Any]) -> tuple[Entry, ...]:
        entries = space.get("vary", [])
        if not isinstance(entries, list) or not entries:
            raise self.source.error("a space varies something; got nothing; add a table [[space.vary]]", "space")
        return tuple(self.entry(self.table(entry, "space", "vary", i), i) for i, entry in enumerate(entries))

    def entry(self, data: dict[str, Any], i: int) -> Entry:
        where = ("space", "vary", i)
        self.known_keys(data, ("layers", "name", *NEUTRAL), *where)
        layers = self.names(data.get("layers"), *where, "layers")
        name = data.get("name", "")
        if not isinstance(name, str):
            raise self.source.error(f"name is text; got {name!r}", *where, "name")
        axes = {axis: self.values(axis, data[axis], *where, axis) for axis in NEUTRAL if axis in data}
        if not axes:
            raise self.source.error(f"an entry varies {', '.join(NEUTRAL)}; got none of them; add one", *where)
        return Entry(layers, axes, name)

    def values(self, axis: str, given: Any, *where: str | int) -> tuple[Any, ...]:
        """The allowed values of an axis: one, a list, or a range with a step."""
        if axis == "form":
            listed = given if isinstance(given, list) else [given]
            for value in listed:
                if value not in ("mixed", "separable"):
                    raise self.source.error(f"form is mixed or separable; got {value!r}", *where)
            self.distinct(listed, *where)
            return tuple(listed)
        if isinstance(given, dict):
            numbers: list[Fraction | None] = list(self.steps(given, *where))
        else:
            numbers = [
                None if axis == "join" and value == "none" else self.number(value, *where)
                for value in (given if isinstance(given, list) else [given])
            ]
        self.distinct(numbers, *where)
        for number in numbers:
            if axis in ("square", "vertical") and not 0 <= (number or 0) <= 1:
                raise self.source.error(f"{axis} is a share from 0 to 1; got {number}", *where)
            if axis in ("width", "join") and number is not None and not 0 < number <= 64:
                raise self.source.error(
                    f"{axis} is a multiple of the backbone's width, above 0 and at most 64; got {number}", *where
                )
        if axis == "join":
            return tuple("none" if number is None else str(number) for number in numbers)
        return tuple(float(number) for number in sorted(number for number in numbers if number is not None))

    def steps(self, given: dict[str, Any], *where: str | int) -> list[Fraction]:
        self.known_keys(given, ("from", "to", "step"), *where)
        if len(given) < 3:
            raise self.source.error(f"a range has from, to and step; got {', '.join(given) or 'none'}", *where)
        first, last, step = (self.number(given[key], *where) for key in ("from", "to", "step"))
        if step <= 0 or last < first or (last - first) % step or (last - first) / step >= MOST_VALUES:
            raise self.source.error(
                f"a range goes up from one end to the other in whole steps, {MOST_VALUES} values at most; got {first} "
                f"to {last} in steps of {step}; change one of them",
                *where,
            )
        return [first + i * step for i in range(int((last - first) / step) + 1)]

    def number(self, value: Any, *where: str | int) -> Fraction:
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 24:
                raise ValueError
            if isinstance(value, str) and not re.fullmatch(r"[0-9./ ]+", value):
                raise ValueError
            return Fraction(str(value))  # a decimal means what it says: 0.1 is 1/10
        except (ValueError, ZeroDivisionError):
            raise self.source.error(f'a number or a fraction like "3/8" is expected; got {value!r}', *where) from None

    def layer_lists(self, space: dict[str, Any], key: str) -> dict[str, tuple[str, ...]]:
        table = self.table(space.get(key, {}), "space", key)
        return {name: self.names(layers, "space", key, name) for name, layers in table.items()}

    def points(self, table: dict[str, Any]) -> dict[str, Architecture]:
        points = {}
        keys = ("version", *(item.name for item in fields(Architecture)), *POINT_EXTRAS)
        for name, entry in table.items():
            self.known_keys(self.table(entry, "points", name), keys, "points", name)
            entry = {key: value for key, value in entry.items() if key not in POINT_EXTRAS}
            try:
                points[name] = Architecture.from_dict(entry, name)
            except InvalidArchitecture as error:
                layers = entry["layers"] if isinstance(entry.get("layers"), dict) else {}
                found = [layer for layer in layers if str(error).startswith(f"{name}: {layer}: ")]
                where = ("layers", found[0]) if found else ()
                raise self.source.error(f"point {error}", "points", name, *where) from None
        return points

    def baseline(self, space: dict[str, Any], paper: dict[str, Any], points: Mapping[str, Any]) -> str | None:
        self.known_keys(paper, PAPER, "paper")
        table = "space" if "baseline" in space else "paper"
        baseline = space.get("baseline", paper.get("baseline"))
        if baseline is not None and (not isinstance(baseline, str) or baseline not in points):
            known = closest(str(baseline), points) or "; add one"
            raise self.source.error(f"the baseline is one of the points; got {baseline!r}{known}", table, "baseline")
        return baseline

    def names(self, given: Any, *where: str | int) -> tuple[str, ...]:
        if isinstance(given, str):
            given = [given]
        if not isinstance(given, list) or not given or not all(isinstance(name, str) and name for name in given):
            got = "nothing" if given is None else repr(given)
            raise self.source.error(
                f'layers are listed by name or pattern, like ["conv1", "conv2_*"]; got {got}', *where
            )
        return tuple(given)

    def table(self, given: Any, *where: str | int) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise self.source.error(f"{where[0] if len(where) == 1 else where[1]} is a table; got {given!r}", *where)
        return given

    def known_keys(self, table: Mapping[str, Any], known: Iterable[str], *where: str | int) -> None:
        known = list(known)
        for key in table:
            if key not in known:
                listed = ", ".join(known)
                raise self.source.error(f"unknown key {key!r}{_guess(key, known)} (known: {listed})", *where, key)

    def distinct(self, values: list[Any], *where: str | int) -> None:
        if not values:
            raise self.source.error(f"{where[-1]} has a value or several; got an empty list; add one", *where)
        repeated = [value for i, value in enumerate(values) if value in values[:i]]
        if repeated:
            raise self.source.error(f"each value is given once; {repeated[0]} is repeated; remove one", *where)


def _guess(key: str, known: list[str]) -> str:
    guess = closest(key, known)
    return guess if "did you mean" in guess else ""


def _find_lines(text: str) -> dict[Path_, int]:
    """The line of every table and key, by the keys that lead to it.

    A line begins a statement if what stands before it is TOML by itself; inside a text or a list of
    several lines it is not.
    """
    lines = text.splitlines(keepends=True)
    found: dict[Path_, int] = {}
    table: Path_ = ()
    counts: dict[Path_, itertools.count[int]] = {}
    arrays: dict[Path_, int] = {}
    for number, line in enumerate(lines, start=1):
        header, key = _HEADER.fullmatch(line.rstrip("\r\n")), _KEY.match(line)
        if (header is None and key is None) or not _is_toml("".join(lines[: number - 1])):
            continue
        if header is not None:
            table = ()
            parts = _parts(header[2])
            for i, part in enumerate(parts):
                table += (part,)
                if header[1] and i == len(parts) - 1:
                    arrays[table] = next(counts.setdefault(table, itertools.count()))
                    found.setdefault(table, number)
                if table in arrays:
                    table += (arrays[table],)
                found.setdefault(table, number)
        elif key is not None:
            path = table
            for part in _parts(key[1]):
                path += (part,)
                found.setdefault(path, number)
    return found


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _parts(dotted: str) -> list[str]:
    """The parts of a dotted key, unquoted."""
    try:
        data: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return []
    parts = []
    while isinstance(data, dict):
        part, data = next(iter(data.items()))
        parts.append(part)
    return parts
