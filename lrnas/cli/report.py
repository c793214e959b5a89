"""The commands that show studies: report, plot, dashboard."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas._messages import percent
from lrnas.cli.options import FILE, add_command, add_option, add_settings, call, needs_extra, open_named
from lrnas.cli.output import make_console, make_table, print_result, say
from lrnas.searching.settings import TEXT, WHOLE

if TYPE_CHECKING:
    from lrnas.reporting.report import Report

PICTURES = ("pareto", "history", "allocation", "curves")


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
    text = "Show this retraining (default: the one with the most reference networks, then the one used last)"
    add_option(report, "--retraining", TEXT, "STUDY@RECIPE", text)

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
    with needs_extra("a study", "search"):
        from lrnas.reporting.write import report

    written = call(report, options, study=options.names or None)
    rows = [
        {
            "study": study.name,
            "counts": study.summary.counts,
            "level": study.level,
            "front": len(study.front),
            "best": study.best,
            "hypervolume": study.hypervolume,
            "seconds": sum(study.seconds.values()),
            "images_per_second": None if (rate := opened.throughput()) is None else round(rate.images_per_second),
        }
        for study, opened in zip(written.contents.studies, written.studies, strict=True)
    ]
    files = [written.page, *written.figures]
    print_result(
        options,
        lambda: {"title": written.contents.title, "files": [str(file) for file in files], "studies": rows},
        lambda: _print_report(written.contents, rows, files),
    )


def _print_report(report: Report, rows: list[dict[str, Any]], files: list[Path]) -> None:
    columns = ("trained", "stopped", "level", "on the front", "best", "hypervolume", "hours", "images/s")
    optional = ("images/s", "hours", "stopped", "level", "hypervolume")
    table = make_table(report.title, ["study"], columns, optional=optional)
    for row in rows:
        numbers = [str(row["counts"].get(status, 0)) for status in ("completed", "stopped")]
        numbers += [row["level"], str(row["front"]), percent(row["best"]), f"{row['hypervolume']:.4f}"]
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
    with needs_extra("a study", "search"):
        from lrnas.reporting.write import plot

    study = open_named(options, options.name)
    file = options.out or Path(options.studies) / study.name / f"{options.picture}.pdf"
    call(plot, options, study=study, out=file)
    say(f"Written: {file}")


def _dashboard(options: argparse.Namespace) -> None:
    from lrnas.reporting.dashboard import serve_dashboard

    serve_dashboard(open_named(options, options.name), options.port, browser=not options.no_browser)
