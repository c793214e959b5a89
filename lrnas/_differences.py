"""Differences between nested settings, in words, for errors if a study or checkpoint was begun with other settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MAX_LISTED = 4
"""Number of differences that are listed; the others are counted."""
MAX_SHOWN = 60
"""Largest number of characters of a value."""


def list_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first differences, in words, such as "recipe.lr was 0.03, now 0.5"; "" if there are none.

    Args:
        old: Settings as they were.
        new: Settings as they are now.
    """
    return tell_differences(list(find_differences(old, new)))


def tell_differences(found: Sequence[tuple[str, Any, Any]]) -> str:
    """The first of some differences, in words; each has a name, the old and the new value."""
    listed = [f"{where} was {_shown(before)}, now {_shown(now)}" for where, before, now in found[:MAX_LISTED]]
    more = [f"and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    return "; ".join([*listed, *more])


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
    text = ",".join(value) if value and is_list else repr(value)  # as on a command line
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def find_differences(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The places where two nested mappings differ, each as its dotted path, the old and the new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from find_differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif old != new:
        yield where, old, new
