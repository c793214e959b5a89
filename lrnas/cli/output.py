"""Tables and JSON on stdout, with the same look for all commands."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lrnas._messages import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Column, Table
    from rich.text import Text

GAP = 2
"""Number of spaces between columns of a table."""


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
    """A console on stdout. In a file or a pipe, lines are wide enough for tables, and sentences are not broken."""
    from rich.console import Console

    class PrintableConsole(Console):
        """Console that escapes control characters, in tables too, and cuts no lines."""

        def print(self, *objects: Any, **options: Any) -> None:
            is_text = all(isinstance(part, str) for part in objects)
            super().print(*objects, **{"crop": False, "soft_wrap": is_text and not self.is_terminal} | options)

        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text, keep="\n"), **options)

    width = None if sys.stdout.isatty() else 200
    return PrintableConsole(highlight=False, markup=False, emoji=False, width=width)


def say(text: str) -> None:
    """Print a line on stdout, at once."""
    print(printable(text), flush=True)


def complain(text: object) -> None:
    """Print a line on stderr, after the name of the program."""
    print(f"lrnas: {printable(text)}", file=sys.stderr)


def make_table(
    title: str,
    texts: Iterable[str] = (),
    numbers: Iterable[str] = (),
    ends: Iterable[str] = (),
    optional: Iterable[str] = (),
    explained: Mapping[str, str] = {},
) -> Table:
    """An empty table. Columns that have only dashes are not shown, and nothing is cut.

    In a narrow terminal, optional columns are left out, and a line below names them; then texts are wrapped. Words are
    broken only if it fits then.

    Args:
        title: Its title.
        texts: Names of columns of text.
        numbers: Names of columns of numbers.
        ends: Names of columns of text after the numbers; their words are never broken.
        optional: Names of columns that a narrow terminal leaves out, the first ones first.
        explained: Explanations by name of column; those of columns that are shown are printed below the table.
    """
    from rich.table import Table

    class FittingTable(Table):
        """Table that chooses its columns and their widths when it is printed."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            yield console.render_str(f"\n{title}", style="bold")
            shown, left_out = _fit(self.columns, optional, options.max_width)
            table = Table(*shown, box=None, padding=(0, GAP, 0, 0), pad_edge=False)
            table.rows = self.rows
            yield from console.render(table, options.update_width(_total(shown)))
            if left_out:
                names = ", ".join(" ".join(name.split()) for name in left_out)
                yield console.render_str(f"Not shown for lack of room: {names}; use a wider terminal or --json.")
            for column in shown:
                if text := explained.get(str(column.header)):
                    yield console.render_str(text)

    table = FittingTable()
    for column in texts:
        table.add_column(column, overflow="fold", min_width=len(column))
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    for column in ends:
        table.add_column(column)
    return table


def _fit(columns: Iterable[Column], optional: Iterable[str], room: int) -> tuple[list[Column], list[str]]:
    """The columns to show within so many characters, with their widths, and the names of those left out."""
    shown = [column for column in columns if set(column.cells) not in ({"–"}, {""})]
    for column in shown:
        column.width = _longest(column, str.splitlines)
    left_out = []
    for column in [column for name in optional for column in shown if column.header == name]:
        if _total(shown) > room:
            shown.remove(column)
            left_out.append(str(column.header))
    texts = [(column, _longest(column, str.split)) for column in shown if not column.no_wrap]
    broken = [(column, column.min_width or words) for column, words in texts]
    if _total(shown) - sum(_width(column) - limit for column, limit in broken) > room:
        broken = []  # it would still be too wide
    for limits in (texts, broken):
        while _total(shown) > room and (wide := [column for column, limit in limits if _width(column) > limit]):
            widest = max(wide, key=_width)
            widest.width = _width(widest) - 1
    return shown, left_out


def _longest(column: Column, split: Callable[[str], list[str]]) -> int:
    """Number of characters of the longest part of a column."""
    from rich.cells import cell_len

    texts = [printable(text, keep="\n") for text in (column.header, *column.cells)]
    return max((cell_len(part) for text in texts for part in split(text)), default=0)


def _width(column: Column) -> int:
    return column.width or 0


def _total(columns: Sequence[Column]) -> int:
    """Number of characters of a line."""
    return sum(map(_width, columns)) + GAP * (len(columns) - 1)
