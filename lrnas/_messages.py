"""The logger `lrnas` for messages of the library, and a handler that writes them to stderr."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("lrnas")


class _Stderr(logging.Handler):
    """Writes each message as one plain line to `sys.stderr`, which tests and notebooks can replace at any time."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def show_messages() -> None:
    """Show messages on stderr, unless the program that uses lrnas has given the logger `lrnas` a handler."""
    if not logger.handlers:
        logger.addHandler(_Stderr())
    if all(isinstance(handler, _Stderr) for handler in logger.handlers):
        logger.setLevel(logging.INFO)
