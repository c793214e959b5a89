"""Reads a search space from a TOML file. Error messages name the file and the line.

docs/spaces.md describes the format. The result is a `Definition`, the content of the file. Every value is checked, but
not yet whether the values fit the layers of the backbones: `lrnas.spaces.space` does this.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from lrnas._files import parse_toml, read_text
from lrnas.arch.architecture import Architecture, check_divisor
from lrnas.errors import InvalidArchitecture, InvalidSpace, closest
from lrnas.spaces.parameters import NEUTRAL

GRANULARITIES = ("network", "stage", "layer")
CHOICES = ("backbone", "pool", "stem_stride", "classifier")
"""Settings of the whole network that can vary. Batch norm cannot: it is the same for all networks of a study."""
POINT_EXTRAS = ("counted_on", "note", "explained")
"""Keys of a point that only `lrnas.models.paper` reads."""
PAPER = ("table", "title", "input", "num_classes", "data", "baseline", "auxiliary_macs", "classifier_params")
WORDS = {"present": ("yes", "no"), "form": ("mixed", "separable")}
"""The values of axes that are words."""
MAX_KERNEL = 11
MAX_VALUES = 1000
Key = str | int
"""A key of a table or the index of an entry in an array of tables."""
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\'|#[^\n]*|[\[\]{}]|\n', re.DOTALL
)
"""The parts of a TOML file by which statements are told apart: strings, comments, brackets and ends of lines."""


@dataclass(frozen=True)
class Source:
    """The origin of a definition, for error messages."""

    name: str
    text: str = ""

    def fail(self, message: str, *path: Key) -> NoReturn:
        """Raise InvalidSpace with the file, and the line of the key at `path` or of the nearest table around it."""
        line = self._find_line(path)
        raise InvalidSpace(f"{self.name}{'' if line is None else f', line {line}'}: {message}") from None

    def _find_line(self, path: tuple[Key, ...]) -> int | None:
        """The line of the statement that defines a key, or of the nearest table around it; None if there is neither."""
        lines: dict[tuple[Key, ...], int] = {}
        sizes: Counter[tuple[Key, ...]] = Counter()
        """Number of tables so far in every array of tables."""
        table: tuple[Key, ...] = ()
        for line, statement in _statements(self.text):
            data = tomllib.loads(statement)
            if statement.startswith("["):
                table = ()
                while data:
                    key, data = next(iter(data.items()))
                    table += (key,)
                    lines.setdefault(table, line)
                    if isinstance(data, list):  # [[…]] begins the next table of an array
                        sizes[table] += 1
                        data = {}
                    if table in sizes:
                        table += (sizes[table] - 1,)
                        lines.setdefault(table, line)
            for keys in _keys(data):
                lines.setdefault((*table, *keys), line)
        known = (path[:length] for length in range(len(path), 0, -1))
        return next((lines[part] for part in known if part in lines), None)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The statements of valid TOML, each with the number of its first line. Comments and empty lines are left out."""
    start, line, depth = 0, 1, 0
    for token in _TOKEN.finditer(text + "\n"):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if token[0] == "\n" and not depth:
            statement = text[start : token.start()].strip()
            if statement and not statement.startswith("#"):
                yield line, statement
            line += text.count("\n", start, token.end())
            start = token.end()


def _keys(data: Any) -> Iterator[tuple[Key, ...]]:
    """The paths of all keys in nested tables and lists."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield (key,)
        yield from ((key, *deeper) for deeper in _keys(value))


@dataclass(frozen=True)
class Entry:
    """One `[[space.vary]]` table: some layers, and the values that can vary in them."""

    layers: tuple[str, ...]
    """Names of layers, or patterns."""
    axes: Mapping[str, tuple[Any, ...]]
    """The allowed values by axis. Axes that are not in the table are missing."""
    name: str = ""


@dataclass(frozen=True)
class Definition:
    """A space as described in its file, not yet combined with the layers of the backbones."""

    name: str
    source: Source
    choices: Mapping[str, tuple[Any, ...]]
    """The allowed values by name in `CHOICES`. Settings that are not in the file are missing."""
    vary: tuple[Entry, ...]
    granularity: str = "layer"
    batch_norm: bool | None = None
    divisor: int = 1
    """Filter counts are multiples of this number, as in an architecture."""
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Layers that share their parameters at every granularity, by the name of the group."""
    points: Mapping[str, Architecture] = field(default_factory=dict)
    baseline: str | None = None


def read_definition(path: Path, shown: str) -> Definition:
    """Read the file of a space.

    Args:
        path: The TOML file.
        shown: The name of the file in error messages.
    """
    try:
        text = read_text(path)
        data = parse_toml(text)
    except OSError as error:
        raise InvalidSpace(f"cannot read {shown}: {error.strerror}; give a TOML file or the name of a space") from None
    except ValueError as error:
        raise InvalidSpace(f"{shown}: not valid TOML: {error}; see docs/spaces.md for the format") from None
    return _Reader(Source(shown, text)).definition(path.stem, data)


class _Reader:
    """Checks the tables of a file and converts them to a `Definition`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.fail = source.fail

    def definition(self, name: str, data: dict[str, Any]) -> Definition:
        self.check_keys(data, ("space", "paper", "points"))
        if "space" not in data:
            self.fail("a space needs a table [space]; got none; add one, see docs/spaces.md")
        space = self.table(data["space"], "space")
        settings = ("granularity", "batch_norm", "divisor", "baseline", "stages", "tied", "vary")
        self.check_keys(space, (*CHOICES, *settings), "space")
        granularity, batch_norm, divisor = (space.get(key) for key in ("granularity", "batch_norm", "divisor"))
        if granularity not in (None, *GRANULARITIES):
            listed = ", ".join(GRANULARITIES)
            self.fail(f"granularity must be one of {listed}; got {granularity!r}; choose one", "space", "granularity")
        if not isinstance(batch_norm, bool | None):
            self.fail(f"batch_norm must be true or false, for all networks; got {batch_norm!r}", "space", "batch_norm")
        try:
            check_divisor(1 if divisor is None else divisor)
        except InvalidArchitecture as error:
            self.fail(str(error), "space", "divisor")
        points = self.points(self.table(data.get("points", {}), "points"))
        return Definition(
            name=name,
            source=self.source,
            choices=self.choices(space),
            vary=self.entries(space),
            granularity=granularity or "layer",
            batch_norm=batch_norm,
            divisor=divisor or 1,
            stages=self.layer_lists(space, "stages"),
            tied=self.layer_lists(space, "tied"),
            points=points,
            baseline=self.baseline(space, self.table(data.get("paper", {}), "paper"), points),
        )

    def choices(self, space: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
        if "backbone" not in space:
            self.fail('a space needs a backbone; got none; add for example backbone = "vgg11"', "space")
        choices = {name: self.listed(space[name], "space", name) for name in CHOICES if name in space}
        for value in choices["backbone"]:
            if not isinstance(value, str):
                self.fail(f"backbone must be a name or a list of names; got {value!r}", "space", "backbone")
        return choices

    def entries(self, space: dict[str, Any]) -> tuple[Entry, ...]:
        entries = space.get("vary", [])
        if not isinstance(entries, list) or not entries:
            self.fail("a space needs something that varies; got nothing; add a table [[space.vary]]", "space")
        return tuple(self.entry(entry, "space", "vary", i) for i, entry in enumerate(entries))

    def entry(self, data: Any, *where: Key) -> Entry:
        self.check_keys(self.table(data, *where), ("layers", "name", *NEUTRAL), *where)
        name = data.get("name", "")
        if not isinstance(name, str):
            self.fail(f"name must be text; got {name!r}", *where, "name")
        axes = {axis: self.values(axis, data[axis], *where, axis) for axis in NEUTRAL if axis in data}
        if not axes:
            self.fail(f"an entry must vary at least one of {', '.join(NEUTRAL)}; got none; add one", *where)
        if "kernel" in axes and "separable" in axes.get("form", ()):
            self.fail(
                "separable layers keep the backbone's kernel; got form and kernel; leave one out", *where, "kernel"
            )
        return Entry(self.names(data.get("layers"), *where, "layers"), axes, name)

    def values(self, axis: str, given: Any, *where: Key) -> tuple[Any, ...]:
        """The allowed values of an axis, given as one value, a list, or a range with a step."""
        if axis in WORDS:
            words = self.listed(given, *where)
            for word in words:
                if word not in WORDS[axis]:
                    self.fail(f"{axis} must be {' or '.join(WORDS[axis])}; got {word!r}", *where)
            return words
        if axis == "kernel":
            return self.kernels(given, *where)
        numbers: list[Fraction | None]
        if isinstance(given, dict):
            numbers = [*self.steps(given, *where)]
        else:
            values = given if isinstance(given, list) else [given]
            numbers = [None if axis == "join" and v == "none" else self.number(v, *where) for v in values]
        if axis == "depth":
            depths = [number for number in self.listed(numbers, *where) if number is not None]
            for number in depths:
                if number < 1 or number.denominator > 1:
                    self.fail(f"depth must be a whole number above 0; got {number}", *where)
            return tuple(map(float, sorted(depths)))
        is_share = axis in ("square", "vertical")
        for number in self.listed(numbers, *where):
            if number is not None and not (0 <= number <= 1 if is_share else 0 < number <= 64):
                rule = "a share from 0 to 1" if is_share else "a multiple of the backbone's width, above 0, at most 64"
                self.fail(f"{axis} must be {rule}; got {number}", *where)
        if axis == "join":
            return tuple("none" if number is None else str(number) for number in numbers)
        return tuple(float(number) for number in sorted(number for number in numbers if number is not None))

    def kernels(self, given: Any, *where: Key) -> tuple[int, ...]:
        sizes = self.listed(given, *where)
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int) or not (1 < size <= MAX_KERNEL and size % 2):
                self.fail(f"kernel must be an odd whole number from 3 to {MAX_KERNEL}; got {size!r}", *where)
        return tuple(sorted(sizes))

    def steps(self, given: dict[str, Any], *where: Key) -> list[Fraction]:
        self.check_keys(given, ("from", "to", "step"), *where)
        if len(given) < 3:
            self.fail(f"a range needs from, to and step; got {', '.join(given) or 'none'}", *where)
        first, last, step = (self.number(given[key], *where) for key in ("from", "to", "step"))
        if step <= 0 or last < first or (last - first) % step or (last - first) / step >= MAX_VALUES:
            self.fail(
                f"a range must rise from one end to the other in whole steps, with at most {MAX_VALUES} values; got "
                f"{first} to {last} in steps of {step}; change one of them",
                *where,
            )
        return [first + i * step for i in range(int((last - first) / step) + 1)]

    def number(self, value: Any, *where: Key) -> Fraction:
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 24:
                raise ValueError
            if isinstance(value, str) and not re.fullmatch(r"[0-9./ ]+", value):
                raise ValueError
            return Fraction(str(value))  # a decimal is exact: 0.1 is 1/10
        except (ValueError, ZeroDivisionError):
            self.fail(f'a number or a fraction such as "3/8" is needed; got {value!r}', *where)

    def layer_lists(self, space: dict[str, Any], key: str) -> dict[str, tuple[str, ...]]:
        table = self.table(space.get(key, {}), "space", key)
        return {name: self.names(layers, "space", key, name) for name, layers in table.items()}

    def points(self, table: dict[str, Any]) -> dict[str, Architecture]:
        points = {}
        keys = ("version", *(item.name for item in fields(Architecture)), *POINT_EXTRAS)
        for name, entry in table.items():
            if set(name) & set("/:@") or name.isdigit() or name == "best":
                rule = "names of points must not contain /, : or @, and not be numbers or best"
                self.fail(f"{rule}, because STUDY:NAME is also the name of a network; got {name!r}", "points", name)
            self.check_keys(self.table(entry, "points", name), keys, "points", name)
            entry = {key: value for key, value in entry.items() if key not in POINT_EXTRAS}
            try:
                points[name] = Architecture.from_dict(entry, name)
            except InvalidArchitecture as error:
                layers = entry["layers"] if isinstance(entry.get("layers"), dict) else {}
                where = [("layers", layer) for layer in layers if str(error).startswith(f"{name}: {layer}: ")]
                self.fail(f"point {error}", "points", name, *(where[0] if where else ()))
        return points

    def baseline(self, space: dict[str, Any], paper: dict[str, Any], points: Mapping[str, Any]) -> str | None:
        self.check_keys(paper, PAPER, "paper")
        table = "space" if "baseline" in space else "paper"
        baseline = space.get("baseline", paper.get("baseline"))
        if baseline is not None and (not isinstance(baseline, str) or baseline not in points):
            known = closest(str(baseline), points) or "; add a point"
            self.fail(f"the baseline must be one of the points; got {baseline!r}{known}", table, "baseline")
        return baseline

    def names(self, given: Any, *where: Key) -> tuple[str, ...]:
        if isinstance(given, str):
            given = [given]
        if not isinstance(given, list) or not given or not all(isinstance(name, str) and name for name in given):
            got = "nothing" if given is None else repr(given)
            self.fail(f'layers must be a list of names or patterns, such as ["conv1", "conv2_*"]; got {got}', *where)
        return tuple(given)

    def table(self, given: Any, *where: Key) -> dict[str, Any]:
        if not isinstance(given, dict):
            self.fail(f"{where[0] if len(where) == 1 else where[1]} must be a table; got {given!r}", *where)
        return given

    def check_keys(self, table: Mapping[str, Any], known: Iterable[str], *where: Key) -> None:
        known = list(known)
        for key in table:
            if key not in known:
                hint = closest(key, known)
                hint = hint if "did you mean" in hint else ""
                self.fail(f"unknown key {key!r}{hint} (known: {', '.join(known)})", *where, key)

    def listed(self, given: Any, *where: Key) -> tuple[Any, ...]:
        """One value or a list of values as a tuple; an empty list or a repeated value is an error."""
        values = given if isinstance(given, list) else [given]
        if not values:
            self.fail(f"{where[-1]} needs at least one value; got an empty list; add one", *where)
        if len(values) > MAX_VALUES:
            self.fail(f"{where[-1]} can have at most {MAX_VALUES} values; got {len(values)}; remove some", *where)
        seen: set[Any] = set()
        for value in values:
            key = value if isinstance(value, Hashable) else repr(value)
            if key in seen:
                self.fail(f"each value can be given once; {value} is repeated; remove one", *where)
            seen.add(key)
        return tuple(values)
