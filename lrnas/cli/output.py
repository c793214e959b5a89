"""Tables and JSON on stdout, in one look for every command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

INTERRUPTED = 130
"""Exit code of a command that somebody stopped: what is chained to it does not run."""
NARROW = 100
"""Characters in a line of the terminal, below which tables leave out what matters least."""


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def make_console() -> Console:
    from rich.console import Console

    # a table in a file or a pipe keeps its columns whole
    width = None if sys.stdout.isatty() else 200
    return Console(highlight=False, markup=False, width=width)


def make_table(title: str, texts: Iterable[str] = (), numbers: Iterable[str] = ()) -> Table:
    """A table with columns of texts, then columns of numbers; where the terminal is too narrow, texts are broken."""
    from rich.table import Table

    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in texts:
        table.add_column(column, overflow="fold", min_width=len(column))
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table
