"""`report` and `plot`: studies as a page with figures, and as single figures."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lrnas._arguments import checked
from lrnas._files import write_atomically
from lrnas._messages import logger
from lrnas.errors import InvalidArgument, LrnasError, MissingExtra, UnknownName
from lrnas.reporting.html import make_page
from lrnas.reporting.report import Report, make_report
from lrnas.study.manifest import RETRAINS, StudyError
from lrnas.study.open import open_search, open_study
from lrnas.study.optuna_internals import without_collecting
from lrnas.study.retrained import find_shown, read_retrained, retrained_recipes
from lrnas.study.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Picture = Literal["pareto", "history", "allocation", "curves"]
PICTURES = get_args(Picture)
PAGE = "report.html"
FIGURES = ("front", "history", "tested", "allocation", "curves", "importances")
"""Names of the figures of a report; with several studies, the last three have the name of a study after them."""
EARLIER = "finals"
"""Earlier name of the figure `tested`, whose files are removed."""
FORMS = ("png", "svg")
"""Formats of the figures of a report."""


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """The files of a report."""

    page: Path
    """The HTML page."""
    figures: tuple[Path, ...]
    """The figures beside it; none without matplotlib."""
    contents: Report
    """What the page shows."""
    studies: tuple[Study, ...]

    def __repr__(self) -> str:
        return f"<WrittenReport {self.page}, {len(self.figures)} figures>"

    def _repr_html_(self) -> str:
        return f'Written: <a href="{html.escape(str(self.page), quote=True)}">{html.escape(str(self.page))}</a>'


@checked
def report(
    study: str | Study | Sequence[str | Study] | None = None,
    *,
    out: str | Path | None = None,
    axis: str | None = None,
    retraining: str | None = None,
    studies: str | Path = "studies",
    storage: str | None = None,
) -> WrittenReport:
    """Write studies as one self-contained HTML page, and the figures as PNG and SVG.

    Args:
        study: A study or its name, or several, which are drawn together; None for the only study there is.
        out: Folder for the page and the figures; None for `report` in the study's folder.
        axis: Cost on the axis: macs, params or latency; None for the first cost objective of the studies.
        retraining: Name of the retraining to show, STUDY@RECIPE; None for the one in which most reference networks were
            tested, of several such ones for the one used last.
        studies: Folder that holds the studies, for those given by name.
        storage: Database URL, or journal:FILE, that holds the studies; None for the files in their folders.

    Returns:
        The written files.
    """
    names = [study] if study is None or isinstance(study, str | Study) else study
    opened = [_open(name, studies, storage) for name in dict.fromkeys(names)]
    if not opened:
        raise InvalidArgument("a report needs a study; got none; leave the argument out for the only study there is")
    folder = Path(opened[0].where.folder, opened[0].name, "-".join(["report", *(each.name for each in opened[1:])]))
    folder = folder if out is None else Path(out)
    with without_collecting():  # thousands of trials are millions of objects, and all of them are needed
        contents = _make_report(opened, axis, retraining)
        is_new = not (folder / PAGE).exists()
        page = _write_page(contents, folder)
        figures = _write_figures(contents, folder)
    if not is_new:
        _remove_earlier(contents, folder, figures)
    return WrittenReport(page, tuple(figures), contents, tuple(opened))


@checked
def plot(
    study: str | Study | None = None,
    picture: Picture = "pareto",
    *,
    out: str | Path | None = None,
    axis: str | None = None,
    studies: str | Path = "studies",
    storage: str | None = None,
) -> Figure:
    """Draw one figure of a study.

    Args:
        study: The study or its name; None for the only study there is.
        picture: "pareto" (accuracy against cost), "history" (growth of the front), "allocation" (filter shapes of the
            networks on the front) or "curves" (accuracy by epoch).
        out: File to write: .pdf, .png or .svg; None to write none.
        axis: Cost on the axis: macs, params or latency; None for the first cost objective of the study.
        studies: Folder that holds the studies, for a study given by name.
        storage: Database URL, or journal:FILE, that holds the study; None for the file in its folder.

    Returns:
        The figure of Matplotlib, which notebooks show if it is the last value of a cell; elsewhere, `out` or its method
        `savefig` writes it. `plt.show()` does not know it.
    """
    try:
        from lrnas.reporting.figures import report_plots as figures
        from lrnas.reporting.figures.style import check_format
    except ImportError as error:
        raise MissingExtra("a figure", error.name, "plot") from None
    if picture not in PICTURES:
        raise UnknownName("picture", str(picture), PICTURES)
    files = [] if out is None else [Path(out)]
    for file in files:
        check_format(file)
    contents = _make_report([_open(study, studies, storage)], axis)
    shown = contents.studies[0]
    if picture == "pareto" and not shown.full:
        raise LrnasError(f"{shown.name} has no trained network yet; let the search run, then try again")
    draw: dict[str, Callable[[], Figure]] = {
        "pareto": lambda: figures.plot_front(contents, files),
        "history": lambda: figures.plot_history([shown], files),
        "allocation": lambda: figures.plot_allocation(shown, files, contents.axis),
        "curves": lambda: figures.plot_curves(shown, files),
    }
    return draw[picture]()


def _open(name: str | Study | None, studies: str | Path, storage: str | None) -> Study:
    """Open a search; a retraining is refused, since the page of its search contains it."""
    study = open_study(name, studies=studies, storage=storage)
    if (search := study.manifest.get(RETRAINS)) is not None:
        command = f"{study.where.command('report', search)} --retraining {shlex.quote(study.name)}"
        raise StudyError(
            f"reports and plots are of searches; got {study.name}, a retraining, which is on the page of {search}: "
            f'`{command}`, in Python lrnas.report("{search}", retraining="{study.name}")'
        )
    return open_search(study)


def _make_report(studies: list[Study], axis: str | None, retraining: str | None = None) -> Report:
    named, _, recipe = (retraining or "").partition("@")
    known = [f"{study.name}@{each}" for study in studies for each in retrained_recipes(study)]
    if retraining is not None and retraining not in known:
        raise UnknownName("retraining", retraining, known)
    found = [read_retrained(study, recipe) if study.name == named else find_shown(study) for study in studies]
    return make_report(studies, axis=axis, retrained=[each for each in found if each is not None])


def _write_page(contents: Report, folder: Path) -> Path:
    file = folder / PAGE
    text = make_page(contents)
    try:
        with write_atomically(file) as part:
            part.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LrnasError(f"cannot write to {folder}: {error.strerror or error}; give another --out") from None
    return file


def _write_figures(contents: Report, folder: Path) -> list[Path]:
    """Write every figure that has something to show; returns the files."""
    try:
        from lrnas.reporting.figures import report_plots as figures
    except ImportError as error:
        logger.warning(f"no figures without {error.name}; pip install 'lrnas[plot]'")
        return []
    draw: dict[str, Callable[[list[Path]], object]] = {}
    if any(study.full for study in contents.studies):
        draw["front"] = partial(figures.plot_front, contents)
        draw["history"] = partial(figures.plot_history, contents.studies)
    if any(one.finals for one in contents.tested):
        draw["tested"] = partial(figures.plot_tested, contents)
    for study in contents.studies:
        ending = f"-{study.name}" if len(contents.studies) > 1 else ""
        if any(network.layers for network in study.front):
            draw[f"allocation{ending}"] = partial(figures.plot_allocation, study, axis=contents.axis)
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


def _remove_earlier(contents: Report, folder: Path, figures: Sequence[Path]) -> None:
    """Remove figures that an earlier report wrote and this one does not have."""
    for ending in ("", *(f"-{study.name}" for study in contents.studies)):
        for file in (folder / f"{name}{ending}.{form}" for name in (*FIGURES, EARLIER) for form in FORMS):
            if file not in figures:
                file.unlink(missing_ok=True)
