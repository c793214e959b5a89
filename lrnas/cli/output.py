"""Tables and JSON on stdout, with the same look for all commands."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lrnas._messages import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

NARROW = 100
"""Width of the terminal, in characters, below which tables leave out the least important columns."""


def exit_code(stopped_by: int) -> int:
    """The exit code of a command that a signal stopped, which is the shell's own; 0 if none did.

    Args:
        stopped_by: Number of the signal, or 0.
    """
    return 128 + stopped_by if stopped_by else 0


def print_result(options: argparse.Namespace, data: Callable[[], Any], show: Callable[[], None]) -> None:
    """Print a result, as JSON if the option --json is given.

    Args:
        options: The options of the command.
        data: Returns the result as data for JSON.
        show: Prints the result for people.
    """
    if options.json:
        print(json.dumps(data(), indent=2))
    else:
        show()


def make_console() -> Console:
    """A console on stdout. In a file or a pipe, lines are wide enough for whole tables."""
    from rich.console import Console

    class PrintableConsole(Console):
        """Console that escapes control characters, in tables too."""

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text, keep="\n"), **options)

    width = None if sys.stdout.isatty() else 200
    return PrintableConsole(highlight=False, markup=False, width=width)


def say(text: str) -> None:
    """Print a line on stdout, at once."""
    print(printable(text), flush=True)


def complain(text: object) -> None:
    """Print a line on stderr, after the name of the program."""
    print(f"lrnas: {printable(text)}", file=sys.stderr)


def make_table(title: str, texts: Iterable[str] = (), numbers: Iterable[str] = (), ends: Iterable[str] = ()) -> Table:
    """An empty table.

    Args:
        title: Its title.
        texts: Names of columns of text, which is wrapped if the terminal is too narrow.
        numbers: Names of columns of numbers.
        ends: Names of columns of text after the numbers.
    """
    from rich.table import Table

    table = Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for column in texts:
        table.add_column(column, overflow="fold", min_width=len(column))
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    for column in ends:
        table.add_column(column)
    return table


def percent(share: float | None, deviation: float | None = None) -> str:
    """An accuracy in per cent, with its deviation if there is one; a dash for None."""
    spread = "" if deviation is None else f" ± {100 * deviation:.2f}"
    return "–" if share is None else f"{100 * share:.2f}{spread} %"


def magnitude(number: int) -> str:
    """A number, rounded to a power of ten with two digits if it is large."""
    return f"{number:,}" if number < 100_000 else f"{number:.1e}".replace("e+", "e")
