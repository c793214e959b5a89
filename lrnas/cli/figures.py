"""The commands that draw pictures: filters, figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas._messages import logger
from lrnas.cli.options import FILE, add_command, add_option, add_source_options, call, needs_extra
from lrnas.cli.output import make_console, make_table, print_result
from lrnas.errors import LrnasError
from lrnas.searching.settings import CHANGES, TEXT, WHOLE

if TYPE_CHECKING:
    from lrnas.reporting.figures.filters import FilterFigure
    from lrnas.reporting.figures.panels import PanelFigure


def add_commands(commands: Any) -> None:
    """Add the commands to the program."""
    filters = add_command(
        commands,
        "filters",
        _filters,
        "draw the filters that a layer has learned",
        "Draw the filters of a mixed-shape layer of any network, and the k×k filters that the next layer combines them "
        "into (see docs/paper_figures.md).",
    )
    add_source_options(filters)
    text = "Name of the layer, as in `lrnas count --layers` (default: the first mixed-shape layer)"
    add_option(filters, "--layer", TEXT, "NAME", text)
    add_option(filters, "--out", FILE, "FILE", "File to write: .png, .svg or .pdf (default: figures/NAME-LAYER.png)")
    add_option(filters, "--number", WHOLE, "N", "Draw at most N filters of each shape", 64)
    text = "What to show of the input channels: colour, principal, mean, or the number of one channel (default: colour "
    text += "for three channels, else the principal pattern)"
    add_option(filters, "--show", TEXT, "HOW", text)

    figures = add_command(
        commands,
        "figures",
        _figures,
        "draw the paper's figures, with published and measured numbers",
        "Draw the paper's figures again, with the published numbers and those in --results: table1 to table5, "
        "other-data, times, gradients (see docs/paper_figures.md).",
    )
    figures.add_argument("names", nargs="*", metavar="NAME", help="Figures to draw (default: all with data).")
    add_option(figures, "--out", FILE, "FOLDER", "Folder for the figures", Path("figures"))
    add_option(figures, "--format", TEXT, "NAMES", "Format: png, svg, pdf, or several, e.g. png,pdf", "png")
    text = "Folder with reproduce/, composite_*.json and gradient_variance.json"
    add_option(figures, "--results", FILE, "FOLDER", text, Path("results"))
    kind = CHANGES._replace(rule="TABLE=NAME", example="table1=folder:1f0a")
    text = "Data set of the records to use for a table, e.g. table1=folder:1f0a…; may be given several times"
    add_option(figures, "--data", kind, "TABLE=NAME", text)


def _filters(options: argparse.Namespace) -> None:
    with needs_extra("a picture", "plot"):
        from lrnas.reporting.figures.filters import NoMixedLayer, draw_filters
    from lrnas.exporting.sources import find_source

    source = call(find_source, options)
    if source.weights is None:
        logger.info(f"{source.name} has {source.origin}")
    try:
        result = draw_filters(source, options.layer, options.out, number=options.number, show=options.show)
    except NoMixedLayer as error:
        raise LrnasError(f"{error}; try {_find_mixed(options)}") from None
    print_result(options, result.to_dict, lambda: _print_filters(result))


def _find_mixed(options: argparse.Namespace) -> str:
    """A network with a mixed-shape layer: the most accurate one of the given study, else one of the paper's."""
    from lrnas.models.plan import make_plan
    from lrnas.study.references import find_network

    found = call(find_network, options)
    done = [] if found is None else [trial for trial in found.study.trials if trial.status == "completed"]
    for trial in sorted(done, key=lambda trial: -(trial.accuracy or 0.0)):
        if any(conv.mix.kind != "dense" for conv in make_plan(trial.architecture).convs):
            return f"{trial.study.name}:{trial.number}"
    return "vgg-gmp-lr-join"


def _figures(options: argparse.Namespace) -> None:
    with needs_extra("a picture", "plot"):
        from lrnas.reporting.figures.panels import draw_panels
        from lrnas.reporting.paper.figures import FIGURES, make_paper_figure
    from lrnas.reporting.figures.style import check_format
    from lrnas.reporting.paper.tables import NothingToDraw, Sources

    formats = list(dict.fromkeys(map(check_format, options.format.split(","))))
    data = options.data or {}
    if other := data.keys() - {"table1", "table2", "table3", "table4"}:
        raise LrnasError(f"--data is for table1 to table4; got {min(other)!r}; write --data table1=NAME")
    sources = Sources(options.results, data)
    made = []
    for name in dict.fromkeys(options.names or FIGURES):
        try:
            made.append(make_paper_figure(name, sources))
        except NothingToDraw as error:
            if options.names:
                raise
            logger.info(f"{name} is left out: {error}")
    results = [(figure, [options.out / f"{figure.name}.{name}" for name in formats]) for figure in made]
    for figure, files in results:
        draw_panels(figure, files)
    print_result(
        options,
        lambda: [{**figure.to_dict(), "files": list(map(str, files))} for figure, files in results],
        lambda: _print_figures(results),
    )


def _print_figures(results: list[tuple[PanelFigure, list[Path]]]) -> None:
    table = make_table("Figures", ["figure"], ["panels", "published", "measured"], ["files"])
    for figure, files in results:
        marks = {True: 0, False: 0}
        for panel in figure.panels:
            for series in panel.series:
                marks[series.is_published] += len(series.marks)
        numbers = (len(figure.panels), marks[True], marks[False])
        table.add_row(figure.name, *map(str, numbers), ", ".join(map(str, files)))
    console = make_console()
    console.print(table)
    console.print("published, measured: numbers drawn in all panels. The text below each picture names their sources.")


def _print_filters(result: FilterFigure) -> None:
    columns = (["filters"], ["total", "drawn", "channels"], ["shown as", ""])
    table = make_table(f"Filters of {result.layer.name}", *columns)
    for each in result.pictures:
        numbers = (str(each.total), str(len(each.values)), str(each.channels))
        table.add_row(each.filters.label, *numbers, each.shown_as, each.filters.remark)
    console = make_console()
    console.print(table)
    console.print(f"{result.source.name}: {result.source.origin}", soft_wrap=True)
    if result.layer.remark:
        console.print(f"No effective filters: {result.layer.remark}.")
    console.print(f"Layers:   {', '.join(result.layers)}", soft_wrap=True)
    console.print(f"Written:  {result.file}", soft_wrap=True)
