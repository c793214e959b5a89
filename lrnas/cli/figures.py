"""The commands about pictures: filters, figures."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas.cli.options import add_source_options, read_pairs
from lrnas.cli.output import make_console, make_table, print_json
from lrnas.errors import LrnasError, MissingExtra

if TYPE_CHECKING:
    from lrnas.reporting.figures.filters import FilterFigure
    from lrnas.reporting.figures.panels import PanelFigure


def add_figure_commands(commands: Any) -> list[argparse.ArgumentParser]:
    """Add them to the parser; they take --json."""
    filters: argparse.ArgumentParser = commands.add_parser(
        "filters",
        help="a picture of the filters that a layer has learned",
        description="Draw the filters of a mixed-shape layer, and the k×k filters that their combinations are, of any "
        "trained network (see docs/paper_figures.md).",
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
    add_source_options(filters)
    filters.set_defaults(run=_filters)

    figures: argparse.ArgumentParser = commands.add_parser(
        "figures",
        help="the paper's figures, with what was measured here beside what was published",
        description="Draw the paper's figures again, with what was measured here beside what was published: table1 to "
        "table5, other-data, times, gradients (see docs/paper_figures.md).",
    )
    figures.add_argument("names", nargs="*", metavar="NAME", help="(default: all that there are numbers for)")
    figures.add_argument("--out", type=Path, default=Path("figures"), metavar="FOLDER", help="(default: figures)")
    figures.add_argument(
        "--format", default="png", metavar="NAMES", help="png (default), svg, pdf, or several: png,pdf"
    )
    figures.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="FOLDER",
        help="with reproduce/, composite_*.json and gradient_variance.json (default: results)",
    )
    figures.add_argument(
        "--records",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="more records of `lrnas reproduce` (can be given several times)",
    )
    figures.add_argument(
        "--profile",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="of `lrnas profile --json`, for times (likewise)",
    )
    figures.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="TABLE=NAME",
        help="what the records call the data of a table, table1=folder:1f0a… say (likewise)",
    )
    figures.set_defaults(run=_figures)
    return [filters, figures]


def _filters(options: argparse.Namespace) -> None:
    try:
        from lrnas.reporting.figures.filters import draw_filters
    except ModuleNotFoundError as error:
        raise MissingExtra("a picture", error.name, "plot") from None
    from lrnas.exporting.sources import find_source

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


def _figures(options: argparse.Namespace) -> None:
    try:
        from lrnas.reporting.figures.panels import draw_panels
        from lrnas.reporting.paper.figures import FIGURES, make_paper_figure
    except ModuleNotFoundError as error:
        raise MissingExtra("a picture", error.name, "plot") from None
    from lrnas.reporting.figures.style import check_format
    from lrnas.reporting.paper.tables import NothingToDraw, Sources

    formats = list(dict.fromkeys(map(check_format, options.format.split(","))))
    data = read_pairs("--data", options.data, "TABLE=NAME", "table1=folder:1f0a…")
    if other := data.keys() - {"table1", "table2", "table3", "table4"}:
        raise LrnasError(f"--data is for table1 to table4; got {min(other)!r}; write --data table1=NAME")
    sources = Sources(options.results, tuple(options.records), tuple(options.profile), data)
    made = []
    for name in dict.fromkeys(options.names or FIGURES):
        try:
            made.append(make_paper_figure(name, sources))
        except NothingToDraw as error:
            if options.names:
                raise
            print(f"{name} is left out: {error}", file=sys.stderr)
    results = [(figure, [options.out / f"{figure.name}.{name}" for name in formats]) for figure in made]
    for figure, files in results:
        draw_panels(figure, files)
    if options.json:
        print_json([{**figure.to_dict(), "files": list(map(str, files))} for figure, files in results])
    else:
        _print_figures(results)


def _print_figures(results: list[tuple[PanelFigure, list[Path]]]) -> None:
    table = make_table("Figures", ["figure"], ["panels", "published", "measured"])
    table.add_column("files")
    for figure, files in results:
        marks = {True: 0, False: 0}
        for panel in figure.panels:
            for series in panel.series:
                marks[series.is_published] += len(series.marks)
        numbers = (len(figure.panels), marks[True], marks[False])
        table.add_row(figure.name, *map(str, numbers), ", ".join(map(str, files)))
    console = make_console()
    console.print(table)
    console.print("published, measured: marks in all panels; below each picture stands where its numbers come from.")


def _print_filters(result: FilterFigure) -> None:
    table = make_table(f"Filters of {result.layer.name}", ["filters"], ["there are", "drawn", "channels"])
    for column in ("shown as", ""):
        table.add_column(column)
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
