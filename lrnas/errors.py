"""Errors that users can get. Each message states the rule, the value that was given and the next step."""

from __future__ import annotations

import difflib
import linecache
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

OPTIONS = {
    "address", "architecture", "axis", "baseline", "batch", "batch-norm", "beat", "browser", "budget", "channels",
    "check-table", "classes", "compile", "concurrency", "cpus-per-trial", "data", "data-dir", "delete", "device",
    "divisor", "dry-run", "dtype", "epochs", "final-epochs", "final-seeds", "finals", "force", "format", "fresh",
    "front", "fuse", "gpus-per-trial", "granularity", "image-memory", "image-size", "input", "latency-batch",
    "latency-device", "layer", "layers", "level", "max-latency", "max-macs", "max-params", "min-epochs", "min-macs",
    "name", "number", "objectives", "out", "pack", "plot", "points", "port", "recipe", "results", "retraining",
    "sampler", "seed", "seeds", "set", "show", "space", "start-from", "stem-stride", "storage", "studies",
    "threads", "trainable", "training", "trial-timeout", "trials", "warm-start", "workers", "yes",
}  # fmt: skip
"""Options of all commands, without `no-`; in Python, they are arguments."""
FLAGS = {"force", "fresh"}
"""Options without a value that messages advise to add."""
_OPTION = re.compile(r"(`[^`]*`)|(?<![\w/=-])--(?:set ([a-z_]+)=(…|[\w.]+)|([a-z][a-z-]+)(?![\w/-]))")
_command_line: list[bool] = []
"""Not empty while a command runs."""


@contextmanager
def naming_options() -> Iterator[None]:
    """Context in which messages name options of the command line, such as --epochs, not arguments."""
    _command_line.append(True)
    try:
        yield
    finally:
        _command_line.pop()


def is_command() -> bool:
    """Whether a command of the command line runs, not a call from Python."""
    return bool(_command_line)


def in_users_words(text: str) -> str:
    """The text of a message with options as the user knows them: --data-dir in a command, `data_dir` in Python.

    Whole commands, which are in backquotes, are left as they are, and so is what is no option of lrnas, such as a part
    of a path.
    """
    if _command_line or "--" not in text:
        return text
    return _OPTION.sub(_as_argument, text)


def _as_argument(found: re.Match[str]) -> str:
    _, field, value, option = found.groups()
    if field:
        return f'`set={{"{field}": {value}}}`'
    if option and option.startswith("no-") and option[3:] in OPTIONS:
        return f"`{option[3:].replace('-', '_')}=False`"
    return f"`{option.replace('-', '_')}{'=True' * (option in FLAGS)}`" if option in OPTIONS else found[0]


class _OneLine(BaseException):
    """An error that notebooks show without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the line of the notebook and the message; later, with `%tb`, the whole traceback."""
        if sys.exc_info()[1] is not self:
            return traceback.format_exception(self)
        places = [
            f"line {number}: {linecache.getline(frame.f_code.co_filename, number).strip()}"
            for frame, number in traceback.walk_tb(self.__traceback__)
            if frame.f_globals.get("__name__") == "__main__"
        ]
        return [*places[-1:], f"{type(self).__name__}: {self}", "(%tb shows the whole traceback)"]


class LrnasError(_OneLine, Exception):
    """Base class of all errors that a user can correct. The command line prints the message and exits with 2.

    Messages are written with the names of options, such as --epochs; in Python they are shown as arguments.
    """

    def __str__(self) -> str:
        return in_users_words(super().__str__())


class Terminated(KeyboardInterrupt):
    """SIGTERM, with which Slurm and Kubernetes end a program. Whatever handles Ctrl-C handles it in the same way."""


class Interrupted(_OneLine, KeyboardInterrupt):
    """Ctrl-C before a search or a retraining was ready to stop by itself."""


class InvalidArgument(LrnasError, TypeError, ValueError):
    """An argument of a public function that is missing or of the wrong kind."""


class InvalidArchitecture(LrnasError, ValueError):
    """A description of a network that is not valid."""


class ConversionError(LrnasError, ValueError):
    """A convolution that cannot be replaced or folded as requested."""


class DataError(LrnasError):
    """A data set that is missing, damaged or in an unexpected format."""


class UnfitMachine(DataError):
    """A machine of a cluster that has other images than the study, or another folder. Other machines may train."""


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

    def __init__(self, what: str, name: object, known: Iterable[str], next_step: str = "") -> None:
        super().__init__(f"unknown {what} {name!r}{closest(str(name), known)}{next_step}")


def closest(name: str, known: Iterable[str]) -> str:
    """The end of an error message that suggests names similar to a misspelt one.

    Args:
        name: The misspelt name.
        known: All names that exist.

    Returns:
        "; did you mean …?", or "; known: …" if nothing is similar and the list is short, or an empty text.
    """
    known = list(dict.fromkeys(known))
    near = _near(name, known)
    if not near:  # perhaps in upper case
        lower = {each.lower(): each for each in known}
        near = [lower[each] for each in _near(name.lower(), lower)]
    if near:
        return "; did you mean " + " or ".join(near) + "?"
    return "; known: " + ", ".join(known) if 0 < len(known) <= 16 else ""


def _near(name: str, known: Iterable[str]) -> list[str]:
    """At most three similar names: the most similar one, and those that are nearly as similar or a part of the name."""
    bare = {each.lstrip("-"): each for each in known}  # the dashes of options are no likeness
    name = name.lstrip("-")
    near = difflib.get_close_matches(name, bare, cutoff=0.6)
    ratios = [difflib.SequenceMatcher(None, each, name).ratio() for each in near]
    return [bare[each] for each, ratio in zip(near, ratios, strict=True) if ratio > 0.95 * ratios[0] or each in name]


def first_line(error: BaseException) -> str:
    """The first line of the message of another library's error, without its last full stop."""
    return (str(error) or type(error).__name__).splitlines()[0][:300].removesuffix(".")


def error_line(error: BaseException) -> str:
    """The type of an error and the first line of its message, as it was written: another process may show it.

    If the first line ends with a colon, the second one follows.
    """
    text = Exception.__str__(error) if isinstance(error, LrnasError) else str(error)
    first, *others = f"{type(error).__name__}: {text}".splitlines()
    return (f"{first} {others[0].strip()}" if others and first.endswith(":") else first)[:300]
