"""The logger `lrnas` for messages of the library, its handler for stderr, and text that is safe to show."""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress

from lrnas.errors import in_users_words

logger = logging.getLogger("lrnas")
_IN_ADDRESS = re.compile(r"(://[^\s:/@]*:)\S*@")
_IN_OPTIONS = re.compile(r"([?&][\w-]*(?:pass|pwd|secret|token|key)[\w-]*=)[^\s&]*", re.IGNORECASE)


def hide_passwords(text: str) -> str:
    """The text with *** in place of passwords in URLs: `//USER:PASSWORD@HOST`, and `?password=PASSWORD`."""
    return _IN_OPTIONS.sub(r"\1***", _IN_ADDRESS.sub(r"\1***@", text))


def printable(text: object, keep: str = "") -> str:
    """The text as a terminal can show it: control characters are escaped, passwords in URLs are hidden.

    Args:
        text: The text, or a value such as an error.
        keep: Control characters that are left as they are.
    """
    shown = hide_passwords(str(text))
    if shown.isprintable():
        return shown
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode() for each in shown
    )


def _name_options(record: logging.LogRecord) -> bool:
    with suppress(TypeError, ValueError):  # a message that does not fit its arguments; its handler tells
        record.msg, record.args = in_users_words(record.getMessage()), None
    return True


logger.addFilter(_name_options)


class _Stderr(logging.Handler):
    """Writes each message as one plain line to `sys.stderr`, which tests and notebooks can replace at any time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{printable(self.format(record))}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def show_messages() -> None:
    """Show messages on stderr, unless the program that uses lrnas has given the logger `lrnas` a handler."""
    if not logger.handlers:
        logger.addHandler(_Stderr())
    if all(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.setLevel(logging.INFO)


def duration(seconds: float) -> str:
    """A time in words: seconds, minutes and seconds, or hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def file_size(number: int) -> str:
    """A number of bytes with three digits and a unit."""
    size, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"


def percent(share: float | None, deviation: float | None = None) -> str:
    """An accuracy in per cent, with its deviation if there is one; a dash for None."""
    spread = "" if deviation is None else f" ± {100 * deviation:.2f}"
    return "–" if share is None else f"{100 * share:.2f}{spread} %"


def some_of(some: int, number: int) -> str:
    """Some of a number of networks in words: `2 of the 3 networks`, or `the only network`."""
    return "the only network" if number == 1 else f"{some} of the {number} networks"
