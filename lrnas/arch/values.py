"""How the values in an architecture are read and checked, each with the message that says what is wrong with it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from numbers import Real
from typing import Any, TypeVar

from lrnas.errors import InvalidArchitecture, closest

MOST_DIVISOR = 64
T = TypeVar("T")

_SPELLINGS = {"vertical": "kx1", "horizontal": "1xk", "square": "kxk"}
_FRACTION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?|[0-9]{1,9}/0*[1-9][0-9]{0,8}")
_SHAPE = re.compile(r"(k|[1-9][0-9]?)x(k|[1-9][0-9]?)")


def parse_shape(shape: object) -> str:
    """A shape in the spelling that JSON has."""
    text = str(shape).strip().lower().replace("×", "x").replace(" ", "")
    text = _SPELLINGS.get(text, text)
    if not _SHAPE.fullmatch(text):
        raise InvalidArchitecture(
            f"a shape is kx1, 1xk, kxk or rows x columns in numbers up to 99; got {shape!r}; write 5x1, say"
        )
    return text


def parse_classifier(classifier: object) -> tuple[str, int | None]:
    """Kind of classifier, and the width of its hidden layers where one is given."""
    found = re.fullmatch(r"(linear|conv|mlp)(?:(?<=mlp):([1-9][0-9]{0,5}))?", str(classifier))
    if found is None or not isinstance(classifier, str):
        raise InvalidArchitecture(f"classifier is linear, conv, mlp or mlp:WIDTH; got {classifier!r}; write mlp:512")
    kind, width = found.groups()
    return kind, int(width) if width else None


def check_divisor(divisor: object) -> None:
    """Refuse what numbers of filters cannot be divided by."""
    if not isinstance(divisor, int) or isinstance(divisor, bool) or not 1 <= divisor <= MOST_DIVISOR:
        raise InvalidArchitecture(
            f"divisor is a whole number from 1 to {MOST_DIVISOR}; got {divisor!r}; 8 suits GPUs in half precision"
        )


def read_number(value: object, what: str) -> float:
    """A finite number, also one written as a fraction, "3/8"."""
    if isinstance(value, str) and _FRACTION.fullmatch(value.strip()):
        return float(Fraction(value.strip()))
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    text = repr(value)
    raise InvalidArchitecture(f'{what} is a number or a fraction like "3/8"; got {text[:40]}{"…" * (len(text) > 40)}')


def read_multiple(value: object, name: str) -> float:
    """Of a backbone's width."""
    number = read_number(value, name)
    if not 0 < number <= 64:
        raise InvalidArchitecture(
            f"{name} is a multiple of the backbone's width, above 0 and at most 64; got {number:g}; 1 keeps it"
        )
    return number


def json_number(value: float) -> float | int:
    """Without a point where it is whole."""
    return int(value) if value == int(value) else value


def check_one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    """Refuse a value that is not among those known."""
    if value not in known or type(value) is not type(known[0]):  # True and 2.0 are not 1 and 2
        raise InvalidArchitecture(f"{name} is one of {', '.join(map(str, known))}; got {value!r}; choose one")


def check_keys(data: object, known: set[str], where: str) -> dict[str, Any]:
    """A JSON object as a dict of its own, all of whose keys are known; `where` names the place in messages."""
    if not isinstance(data, Mapping):
        raise InvalidArchitecture(f"{where}: a JSON object is expected; got {data!r}")
    for key in data:
        if key not in known:
            raise InvalidArchitecture(
                f"{where}: unknown key {key!r}{closest(str(key), sorted(known))} (known: {', '.join(sorted(known))})"
            )
    return dict(data)


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `json.loads`, which would keep the last of several."""
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise InvalidArchitecture(f"each key stands once in an object; {repeated!r} is repeated; remove one")
    return data


def located(where: str, make: Callable[[], T]) -> T:
    """What `make` gives, with the place at the head of its error."""
    try:
        return make()
    except InvalidArchitecture as error:
        raise InvalidArchitecture(f"{where}: {error}") from None
