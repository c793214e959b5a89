"""Messages of the library: the logger `lrnas`, and the handler that shows them on stderr."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("lrnas")


class _Stderr(logging.Handler):
    """Writes each message as one plain line to what `sys.stderr` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def show_messages() -> None:
    """Show messages on stderr, unless the logger `lrnas` has a handler already."""
    if not logger.handlers:
        logger.addHandler(_Stderr())
        logger.setLevel(logging.INFO)
