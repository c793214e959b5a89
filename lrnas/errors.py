"""The errors people meet. Each message says the rule, the value it got and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LrnasError(Exception):
    """Anything a user can mend. The command line prints it as one line and exits with 2."""


class InvalidArchitecture(LrnasError, ValueError):
    """A description of a network that breaks a rule."""


class ConversionError(LrnasError, ValueError):
    """A convolution that cannot become what was asked of it."""


class DataError(LrnasError):
    """A data set that is missing, broken or not what it should be."""


class UnreadableImages(DataError):
    """Too many images that cannot be read: whoever tries again meets them again."""


class InvalidSpace(LrnasError, ValueError):
    """A description of a search space that breaks a rule."""


class OutsideSpace(LrnasError, ValueError):
    """A network, or a value of a parameter, that a search space does not have."""


class MissingExtra(LrnasError):
    """Something that wants a package of an extra which is not installed."""

    def __init__(self, what: str, package: str | None, extra: str) -> None:
        super().__init__(f"{what} needs {package}; it is not installed; pip install 'lrnas[{extra}]'")


class UnknownName(LrnasError, LookupError):
    """A name that nothing answers to; the message offers the closest ones."""

    def __init__(self, what: str, name: str, known: Iterable[str], next_step: str = "") -> None:
        super().__init__(f"unknown {what} {name!r}{closest(name, known)}{next_step}")


def closest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """The known names nearest to a misspelt one, as the tail of a sentence; all of a short list."""
    known = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, known, n=limit, cutoff=0.6)
    if near:
        return "; did you mean " + " or ".join(near) + "?"
    if 0 < len(known) <= 16:
        return "; known: " + ", ".join(known)
    return ""


def error_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
