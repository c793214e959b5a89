"""Errors that users can get. Each message states the rule, the value that was given and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LrnasError(Exception):
    """Base class of all errors that a user can correct. The command line prints the message and exits with 2."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, with which Slurm and Kubernetes end a program. Whatever handles Ctrl-C handles it in the same way."""


class InvalidArchitecture(LrnasError, ValueError):
    """A description of a network that is not valid."""


class ConversionError(LrnasError, ValueError):
    """A convolution that cannot be replaced or folded as requested."""


class DataError(LrnasError):
    """A data set that is missing, damaged or in an unexpected format."""


class UnreadableImages(DataError):
    """A data set with too many unreadable images. Retrying does not help."""


class InvalidSpace(LrnasError, ValueError):
    """A description of a search space that is not valid."""


class OutsideSpace(LrnasError, ValueError):
    """A network, or the value of a parameter, that is not in a search space."""


class MissingExtra(LrnasError):
    """A feature whose optional packages are not installed.

    Args:
        what: Name of the feature; the message begins with it.
        package: The package that is missing.
        extra: The extra of lrnas that installs it.
    """

    def __init__(self, what: str, package: str | None, extra: str) -> None:
        super().__init__(f"{what} needs {package}, which is not installed; run pip install 'lrnas[{extra}]'")


class UnknownName(LrnasError, LookupError):
    """A name that does not exist; the message lists similar names.

    Args:
        what: Kind of the thing with this name, such as "recipe".
        name: The unknown name.
        known: All names that exist.
        next_step: Further advice at the end of the message.
    """

    def __init__(self, what: str, name: str, known: Iterable[str], next_step: str = "") -> None:
        super().__init__(f"unknown {what} {name!r}{closest(name, known)}{next_step}")


def closest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """The end of an error message that suggests names similar to a misspelt one.

    Args:
        name: The misspelt name.
        known: All names that exist.
        limit: Largest number of suggestions.

    Returns:
        "; did you mean …?", or "; known: …" if nothing is similar and the list is short, or an empty text.
    """
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, known, n=limit, cutoff=0.6)
    if near:
        return "; did you mean " + " or ".join(near) + "?"
    return "; known: " + ", ".join(known) if 0 < len(known) <= 16 else ""


def error_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
