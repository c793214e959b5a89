"""Checks of the arguments of the sampler and the pruner, so that a wrong one is refused in one line.

They do without the rest of lrnas, as the sampler and the pruner do in other Optuna programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def read_list(argument: str, values: Any, is_valid: Callable[[Any], bool], words: str) -> tuple[Any, ...]:
    """The values of an argument; raises an error unless it is a list of valid ones.

    Args:
        argument: Name of the argument.
        values: What was given. One text is no list of names.
        is_valid: Returns whether a value is valid.
        words: What the values are, and an example, for the error.
    """
    read = tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else None
    if read is None or not all(map(is_valid, read)):
        raise TypeError(f"{argument} takes a list of {words}; got {values!r:.80}")
    return read


def read_names(argument: str, names: Any) -> tuple[str, ...]:
    """The names in an argument; raises an error unless it is a list of names."""
    return read_list(argument, names, lambda name: isinstance(name, str), "names, such as ['macs']")


def check_functions(**arguments: Any) -> None:
    """Raise an error if an argument is not a function."""
    for name, value in arguments.items():
        if not callable(value):
            raise TypeError(f"{name} takes a function; got {value!r:.80}")
