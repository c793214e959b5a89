"""The commands about pictures: filters."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas.errors import LrnasError
from lrnas.terminal import make_console, make_table, print_json

if TYPE_CHECKING:
    from lrnas.filter_plots import FilterFigure

__all__ = ["add_figure_commands"]


def add_figure_commands(commands: Any) -> list[argparse.ArgumentParser]:
    """Add them to the parser; they take --json."""
    filters: argparse.ArgumentParser = commands.add_parser(
        "filters",
        help="a picture of the filters that a layer has learned",
        description="Draw the filters of a mixed-shape layer, and the k×k filters that their combinations are, of any "
        "trained network (see docs/paper_figures.md).",
    )
    filters.add_argument(
        "source",
        metavar="SOURCE",
        help="a checkpoint (folder or file), STUDY:TRIAL (a number, or best), or, with weights as they are drawn, a "
        "network as in `lrnas count`",
    )
    filters.add_argument("--layer", metavar="NAME", help="as in `lrnas count --layers` (default: the first mixed one)")
    filters.add_argument(
        "--out", type=Path, metavar="FILE", help="png, svg or pdf by its suffix (default: figures/NAME-LAYER.png)"
    )
    filters.add_argument("--number", type=int, default=64, metavar="N", help="of each shape, at most (default: 64)")
    filters.add_argument(
        "--show",
        metavar="HOW",
        help="what of the input channels: colour, principal, mean, or the number of one (default: colour for three "
        "channels, the principal pattern otherwise)",
    )
    filters.add_argument("--architecture", metavar="FILE", help="JSON, for weights that do not say what they are of")
    filters.add_argument("--fresh", action="store_true", help="where there are no weights, take them as they are drawn")
    filters.add_argument("--studies", default="studies", metavar="FOLDER", help="where studies are kept")
    filters.add_argument("--storage", metavar="URL", help="of the study, if not in its folder")
    filters.set_defaults(run=_filters)
    return [filters]


def _filters(options: argparse.Namespace) -> None:
    try:
        from lrnas.filter_plots import draw_filters
    except ModuleNotFoundError as error:
        raise LrnasError(f"pictures need {error.name}; it is not installed; pip install 'lrnas[plot]'") from None
    from lrnas.sources import find_source

    source = find_source(
        options.source,
        architecture=options.architecture,
        studies=options.studies,
        storage=options.storage,
        fresh=options.fresh,
    )
    if source.weights is None:
        print(f"{source.name} has {source.origin}", file=sys.stderr)
    result = draw_filters(source, options.layer, options.out, number=options.number, show=options.show)
    if options.json:
        print_json(result.to_dict())
    else:
        _print_filters(result)


def _print_filters(result: FilterFigure) -> None:
    table = make_table(f"Filters of {result.layer.name}")
    for column in ("filters", "there are", "drawn", "channels", "shown as", ""):
        table.add_column(column, justify="right" if column in ("there are", "drawn", "channels") else "left")
    for each, filters in zip(result.pictures, result.layer.sets, strict=True):
        numbers = (str(each.total), str(len(each.values)), str(each.channels))
        table.add_row(each.label, *numbers, each.shown_as, filters.remark)
    console = make_console()
    console.print(table)
    console.print(f"{result.source.name}: {result.source.origin}", soft_wrap=True)
    if result.layer.remark:
        console.print(f"No effective filters: {result.layer.remark}.")
    console.print(f"Layers:   {', '.join(result.layers)}", soft_wrap=True)
    console.print(f"Written:  {result.file}", soft_wrap=True)
