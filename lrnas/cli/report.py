"""The commands that show studies: report, plot, dashboard."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas._files import write_atomically
from lrnas.cli.options import FILE, add_command, add_option, add_settings, needs_extra, open_named
from lrnas.cli.output import complain, make_console, make_table, percent, print_result, say
from lrnas.errors import LrnasError
from lrnas.searching.settings import TEXT, WHOLE

if TYPE_CHECKING:
    from lrnas.reporting.report import Report
    from lrnas.study.study import Study

PICTURES = ("pareto", "history", "allocation", "curves")
FORMS = ("png", "svg")
"""Formats of the figures of a report."""


def add_commands(commands: Any) -> None:
    """Add the commands to the program."""
    report = add_command(
        commands,
        "report",
        _report,
        "write studies as one HTML page, with figures for print",
        "Write one self-contained HTML page, and the figures as PNG and SVG (see docs/report.md).",
    )
    text = "Name of a study, see `lrnas studies`; several are drawn together (default: the only study)."
    report.add_argument("names", nargs="*", metavar="STUDY", help=text)
    add_option(report, "--out", FILE, "FOLDER", "Folder for the page and the figures (default: studies/STUDY/report)")

    plot = add_command(
        commands,
        "plot",
        _plot,
        "draw one figure of a study: PDF, PNG or SVG",
        "Draw one figure of a study. pareto: accuracy against cost. history: growth of the front. allocation: filter "
        "shapes of the networks on the front. curves: accuracy by epoch.",
        json=False,
    )
    plot.add_argument("picture", choices=PICTURES, metavar="PICTURE", help=f"One of {', '.join(PICTURES)}.")
    text = "File to write: .pdf, .png or .svg (default: studies/STUDY/PICTURE.pdf)"
    add_option(plot, "--out", FILE, "FILE", text)
    for command in (report, plot):
        text = "Cost on the axis: macs, params or latency (default: the first cost objective of the study)"
        add_option(command, "--axis", TEXT, "NAME", text)

    text = "Open a study in optuna-dashboard on this machine. Ctrl-C ends it."
    dashboard = add_command(commands, "dashboard", _dashboard, "open a study in optuna-dashboard", text, json=False)
    add_option(dashboard, "--port", WHOLE, "N", "Serve on port N; 0: any free port", 8080)
    dashboard.add_argument("--no-browser", action="store_true", help="Only print the address.")

    for command in (report, plot, dashboard):
        if command is not report:
            text = "Name of the study, see `lrnas studies` (default: the only study)."
            command.add_argument("name", nargs="?", metavar="STUDY", help=text)
        add_settings(command, "studies", "storage")


def _report(options: argparse.Namespace) -> None:
    studies = [open_named(options, name) for name in dict.fromkeys(options.names or [None])]
    report = _make_report(options, studies)
    first, *others = (study.name for study in studies)
    folder = options.out or Path(options.studies) / first / "-".join(["report", *others])
    files = [_write_page(report, folder), *_write_figures(report, folder)]
    rows = [
        {
            "study": study.name,
            "counts": study.summary.counts,
            "front": len(study.front),
            "best": study.best,
            "hypervolume": study.summary.hypervolume,
            "seconds": study.history[-1].seconds if study.history else 0.0,
            "images_per_second": None if (rate := opened.throughput()) is None else round(rate.images_per_second),
        }
        for study, opened in zip(report.studies, studies, strict=True)
    ]
    print_result(
        options,
        lambda: {"title": report.title, "files": [str(file) for file in files], "studies": rows},
        lambda: _print_report(report, rows, files),
    )


def _print_report(report: Report, rows: list[dict[str, Any]], files: list[Path]) -> None:
    columns = ("trained", "stopped", "on the front", "best", "hypervolume", "hours", "images/s")
    table = make_table(report.title, ["study"], columns)
    for row in rows:
        numbers = [str(row["counts"].get(status, 0)) for status in ("completed", "stopped")]
        numbers += [str(row["front"]), percent(row["best"]), f"{row['hypervolume']:.4f}"]
        rate = "–" if row["images_per_second"] is None else f"{row['images_per_second']:,}"
        table.add_row(row["study"], *numbers, f"{row['seconds'] / 3600:.2f}", rate)
    console = make_console()
    console.print(table)
    for one in report.tested:
        console.print(f"Trained again: {one.retrained}")
    for remark in report.remarks():
        console.print(remark)
    figures = f", and {len(files) - 1} figures beside it" if len(files) > 1 else ""
    console.print(f"Written: {files[0]}, {files[0].stat().st_size / 1e6:.1f} MB{figures}", soft_wrap=True)


def _plot(options: argparse.Namespace) -> None:
    with needs_extra("a figure", "plot"):
        from lrnas.reporting.figures.report_plots import plot_allocation, plot_curves, plot_front, plot_history
        from lrnas.reporting.figures.style import check_format
    opened = open_named(options, options.name)
    file = options.out or Path(options.studies) / opened.name / f"{options.picture}.pdf"
    check_format(file)
    report = _make_report(options, [opened])
    study = report.studies[0]
    if options.picture == "pareto" and not study.full:
        raise LrnasError(f"{study.name} has no network trained in full yet; let the search run, then try again")
    draw: dict[str, Callable[[], None]] = {
        "pareto": lambda: plot_front(report, file),
        "history": lambda: plot_history([study], file),
        "allocation": lambda: plot_allocation(study, file, report.axis),
        "curves": lambda: plot_curves(study, file),
    }
    draw[options.picture]()
    say(f"Written: {file}")


def _dashboard(options: argparse.Namespace) -> None:
    from lrnas.reporting.dashboard import serve_dashboard

    serve_dashboard(open_named(options, options.name), options.port, browser=not options.no_browser)


def _make_report(options: argparse.Namespace, studies: list[Study]) -> Report:
    from lrnas.reporting.report import make_report
    from lrnas.study.location import Whereabouts
    from lrnas.study.retrained import read_retrained

    where = Whereabouts(options.studies, options.storage)
    retrained = [found for study in studies if (found := read_retrained(study)) is not None]
    return make_report(studies, where=where, axis=options.axis, retrained=retrained)


def _write_page(report: Report, folder: Path) -> Path:
    from lrnas.reporting.html import make_page

    file = folder / "report.html"
    text = make_page(report)
    try:
        with write_atomically(file) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LrnasError(f"cannot write to {folder}: {error.strerror or error}; give another --out") from None
    return file


def _write_figures(report: Report, folder: Path) -> list[Path]:
    """Write every figure that has something to show; returns the files."""
    try:
        from lrnas.reporting.figures import report_plots as figures
    except ImportError as error:
        complain(f"no figures without {error.name}; pip install 'lrnas[plot]'")
        return []
    draw: dict[str, Callable[[list[Path]], None]] = {}
    if any(study.full for study in report.studies):
        draw["front"] = partial(figures.plot_front, report)
        draw["history"] = partial(figures.plot_history, report.studies)
    if any(one.finals for one in report.tested):
        draw["finals"] = partial(figures.plot_finals, report)
    for study in report.studies:
        ending = f"-{study.name}" if len(report.studies) > 1 else ""
        if any(network.layers for network in study.front):
            draw[f"allocation{ending}"] = partial(figures.plot_allocation, study, axis=report.axis)
        if any(network.trial.curve for network in study.full):
            draw[f"curves{ending}"] = partial(figures.plot_curves, study)
        if study.importances:
            draw[f"importances{ending}"] = partial(figures.plot_importances, study)
    files = []
    for name, picture in draw.items():
        forms = [folder / f"{name}.{form}" for form in FORMS]
        picture(forms)
        files += forms
    return files
