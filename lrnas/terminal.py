"""Tables and JSON on stdout, in one look for every command."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lrnas.errors import LrnasError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["make_console", "make_table", "print_json", "read_settings"]


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def make_console() -> Console:
    from rich.console import Console

    # a table in a file or a pipe keeps its columns whole
    width = None if sys.stdout.isatty() else 200
    return Console(highlight=False, markup=False, width=width)


def make_table(title: str, texts: Iterable[str] = (), numbers: Iterable[str] = ()) -> Table:
    """A table with columns of texts, then columns of numbers, none of which is broken into lines."""
    from rich.table import Table

    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in texts:
        table.add_column(column, no_wrap=True)
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def read_settings(settings: list[str], epochs: int | None) -> dict[str, Any]:
    """The changes to a recipe that --set and --epochs ask for."""
    changes: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise LrnasError(f"--set takes FIELD=VALUE; got {setting!r}; write --set lr=0.05, say")
        changes[name] = value
    if epochs is not None:
        changes["epochs"] = epochs
    return changes
