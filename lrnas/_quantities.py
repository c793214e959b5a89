"""Numbers as users write them: 3M, 1.5e8, 2.5ms."""

from __future__ import annotations

import math
from typing import Any

from lrnas.errors import LrnasError

DTYPES = ("bf16", "fp16", "fp32")
"""Names of the number formats in which networks are measured."""


def read_number(value: Any) -> float:
    """A finite number, given as text or as itself; else ValueError or TypeError is raised."""
    if isinstance(value, bool) or not math.isfinite(number := float(value)):
        raise ValueError
    return number


def read_quantity(value: Any) -> int:
    """A whole number of at least 1, in text also with k, M or G; else ValueError or TypeError is raised."""
    unit = {"k": 1e3, "m": 1e6, "g": 1e9}.get(value[-1:].lower(), 1) if isinstance(value, str) else 1
    number = round(read_number(value[:-1] if unit > 1 else value) * unit)
    if number < 1:
        raise ValueError
    return number


def read_time(unit: str, value: Any) -> float:
    """A time above 0, in text also with its unit; else ValueError or TypeError is raised."""
    number = read_number(value.removesuffix(unit) if isinstance(value, str) else value)
    if number <= 0:
        raise ValueError
    return number


def magnitude(number: int) -> str:
    """A number, rounded to a power of ten with two digits if it is large."""
    return f"{number:,}" if number < 100_000 else f"{number:.1e}".replace("e+", "e")


def check_dtype(name: str | None) -> None:
    """Raise an error if there is no number format of this name; None is the default one."""
    if name is not None and name not in DTYPES:
        raise LrnasError(f"the type must be one of {', '.join(DTYPES)}; got {name!r}; choose one")
