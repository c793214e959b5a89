"""Checks of the arguments of public functions against their annotations, so that a wrong one is refused in one line."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from lrnas.errors import InvalidArgument, closest

MAX_SHOWN = 80
"""Largest number of characters of a wrong value that a message shows."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Rule(NamedTuple):
    """What an argument can be."""

    words: str
    """The kind of value, in messages; empty if every value is allowed."""
    accepts: Callable[[Any], bool]
    item: Rule | None = None
    """What each value of a list can be."""

    def advise(self, name: str, value: Any, place: str) -> str:
        """What to give instead of a wrong value of an argument of a function."""
        part = getattr(value, name, None)  # such as the architecture of a trial
        if part is not None and self.accepts(part):
            return f"give its .{name}"
        if self.item is not None and self.item.accepts(value):
            return "put it into a list"
        if self.item is not None and self.item.words == "a Final" and is_a("Study", value):
            return "give lrnas.read_retraining(study), or lrnas.read_level(study)"
        if self.words == _ARTICLE["Architecture"] and isinstance(value, str):
            return f"for a network of the paper, give lrnas.get_point({short_repr(value)}).architecture"
        return f"see help({place})"


def checked(function: Function) -> Function:
    """Decorator for a public function or method: raises InvalidArgument if an argument is not as it is annotated.

    Known kinds are numbers, text, paths, classes, literals, sequences and mappings of them, and unions. Other
    annotations allow every value.
    """
    parameters = dict(inspect.signature(function).parameters)
    is_method = next(iter(parameters), None) in ("self", "cls")
    if is_method:
        del parameters[next(iter(parameters))]
    positional = [name for name, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    takes_others = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    required = [name for name, one in parameters.items() if one.default is one.empty and one.kind != one.VAR_KEYWORD]
    place = f"lrnas.{function.__qualname__}"

    @functools.cache
    def rules() -> dict[str, Rule]:
        names = inspect.unwrap(function).__globals__
        return {name: _rule(one.annotation, names) for name, one in parameters.items()}

    @functools.wraps(function)
    def call(*all_values: Any, **named: Any) -> Any:
        values = all_values[is_method:]
        if len(values) > len(positional):
            count = f"{len(positional)} argument{'s' * (len(positional) != 1)} without a name"
            raise InvalidArgument(f"{place} takes at most {count}; got {len(values)}; see help({place})")
        known, given = rules(), dict(zip(positional, values, strict=False))
        for name, value in (*given.items(), *named.items()):
            if name not in known:
                if takes_others:
                    continue
                raise InvalidArgument(f"unknown argument of {place} {name!r}{closest(name, known)} (see help({place}))")
            if not known[name].accepts(value):
                advice = known[name].advise(name, value, place)
                raise InvalidArgument(f"{name} takes {known[name].words}; got {short_repr(value)}; {advice}")
        if missing := [name for name in required if name not in given and name not in named]:
            raise InvalidArgument(f"{place} needs {' and '.join(missing)}; got none; see help({place})")
        if twice := given.keys() & named.keys():
            raise InvalidArgument(f"{place} takes {min(twice)} once; got it twice; leave out one")
        return function(*all_values, **named)

    return call  # type: ignore[return-value]


def short_repr(value: object) -> str:
    """A value as a message shows it, in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _rule(annotation: str, names: Mapping[str, Any]) -> Rule:
    """The rule of an annotation; `names` are those that its module knows."""
    return _read(ast.parse(annotation, mode="eval").body, names)


def _read(node: ast.expr, names: Mapping[str, Any]) -> Rule:
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            return _either(_read(left, names), _read(right, names))
        case ast.Constant(None):
            return Rule("None", lambda value: value is None)
        case ast.Subscript(ast.Name("Sequence" | "Iterable" as kind), item):
            return _several(_read(item, names), _is_sequence if kind == "Sequence" else _is_iterable)
        case ast.Subscript(ast.Name("tuple"), ast.Tuple([item, ast.Constant()])):  # tuple[int, ...]
            return _several(_read(item, names), _is_sequence)
        case ast.Subscript(ast.Name("Mapping")):
            return Rule("a mapping", lambda value: isinstance(value, Mapping))
        case ast.Subscript(ast.Name("Literal"), ast.Constant(text)):
            return _one_of((text,))
        case ast.Name(name) | ast.Attribute(attr=name):
            if name in _PLAIN:
                return _PLAIN[name]
            found = names.get(name)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and name[:1].isupper():
                found = getattr(names.get(node.value.id), name, None)  # random.Random
            if get_origin(found) is Literal:
                return _one_of(get_args(found))
            if isinstance(found, type) and not getattr(found, "_is_protocol", False):
                return Rule(_ARTICLE.get(name, f"a {name}"), lambda value: isinstance(value, found))
            if name[:1].isupper() and found is None:  # imported for type checkers only
                return Rule(_ARTICLE.get(name, f"a {name}"), functools.partial(is_a, name))
    return Rule("", lambda value: True)


def _either(first: Rule, second: Rule) -> Rule:
    words = f"{first.words} or {second.words}" if first.words and second.words else ""
    return Rule(words, lambda value: first.accepts(value) or second.accepts(value))


def _several(item: Rule, is_kind: Callable[[Any], bool]) -> Rule:
    def accepts(value: Any) -> bool:
        if isinstance(value, str | bytes | Mapping) or not is_kind(value):
            return False
        return not isinstance(value, Sequence) or all(item.accepts(one) for one in value)  # others can be read once

    return Rule(f"a list, each of them {item.words}" if item.words else "a list", accepts, item if item.words else None)


def _one_of(values: tuple[Any, ...]) -> Rule:
    """One of several texts; another text is refused by the function, which suggests a similar one."""
    return Rule(" or ".join(map(repr, values)), lambda value: isinstance(value, str))


def is_a(name: str, value: Any) -> bool:
    """Whether a value is of a class of lrnas, torch or pandas with this name, which need not be imported."""
    known = ("lrnas", "torch", "pandas")
    return any(one.__name__ == name and one.__module__.partition(".")[0] in known for one in type(value).__mro__)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence)


def _is_iterable(value: Any) -> bool:
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _is_whole(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and not math.isnan(value)


_PLAIN = {
    "int": Rule("a whole number", _is_whole),
    "float": Rule("a number", _is_number),
    "bool": Rule("True or False", lambda value: type(value).__name__ in ("bool", "bool_")),  # also NumPy's
    "str": Rule("text", lambda value: isinstance(value, str)),
    "Path": Rule("a path", lambda value: isinstance(value, os.PathLike)),
    "Any": Rule("", lambda value: True),
}
_ARTICLE = {"Architecture": "an Architecture", "Allocation": "an Allocation", "Module": "a model of PyTorch"}
