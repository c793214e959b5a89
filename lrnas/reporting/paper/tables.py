"""Accuracy against cost: the paper's tables of results, with what was measured here beside what was published."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lrnas._resources import PAPER_TABLES
from lrnas.arch.cost import Convention
from lrnas.models.paper import Table, family_table, paper_points
from lrnas.models.plan import make_plan, resolve_backbone
from lrnas.models.summary import summarise
from lrnas.reporting.paper.data import PAPER, Mark, NothingToDraw, Panel, PaperFigure, Places, Series
from lrnas.reporting.paper.runs import Runs, by_recipe

AUGMENTED = {"vgg-11": "vgg-11, augmented"}
"""The network that is in tables 1 and 5, in the one tested on one crop."""
AUGMENTED_COLUMN = "test_multiply_acc_with_augmentation"
"""Of table 5 alone."""


# tables 1 to 4


@dataclass(frozen=True, slots=True)
class _Row:
    """Of a published table."""

    name: str
    multiply_acc: int
    params: int
    top1: float | None
    top5: float | None
    augmented: int | None = None
    """Multiply-accumulates of a test with augmentation."""


def _read_rows(file: str) -> list[_Row]:
    def number(row: Mapping[str, str], *names: str) -> float | None:
        return next((float(row[name]) for name in names if row.get(name)), None)

    with (PAPER_TABLES / file).open(newline="", encoding="utf-8") as stream:
        return [
            _Row(
                row["network"],
                int(row["multiply_acc"]),
                int(row.get("params") or row["test_params"]),
                number(row, "top1", "accuracy"),
                number(row, "top5"),
                int(row[AUGMENTED_COLUMN]) if AUGMENTED_COLUMN in row else None,
            )
            for row in csv.DictReader(stream)
        ]


def _tables() -> dict[str, Table]:
    """The tables of results, by the names of their figures."""
    found = {point.table.title.split(":")[0].lower().replace(" ", ""): point.table for point in paper_points().values()}
    return found | {
        "table2": Table(
            "Table 2: VGG-11 on MIT Places", "table2_vgg_places.csv", 224, 205, "vgg-gmp", "places", Convention()
        )
    }


def table_figure(name: str) -> Callable[[Places], PaperFigure]:
    def make(places: Places) -> PaperFigure:
        table = _tables()[name]
        rows = _read_rows(table.file)
        runs = [runs for runs in places.runs() if _is_of(runs, name, table, places)]
        panels = []
        for accuracy in ("top1", "top5"):
            if rows[0].top5 is None and accuracy == "top5":
                continue
            for cost, unit, what in (
                ("multiply_acc", 1e6 if table.input_size < 100 else 1e9, "multiply-accumulates"),
                ("params", 1e6, "parameters"),
            ):
                series = [_published(rows, cost, unit, accuracy)]
                if accuracy == "top1":
                    series += _measured(runs, name, table, cost, unit)
                else:
                    series.append(Series("lrnas does not measure top-5", "measured", ()))
                x_label = f"{what}, {'millions' if unit == 1e6 else 'billions'}"
                y_label = f"{'top-1 ' if accuracy == 'top1' and rows[0].top5 else ''}accuracy, %"
                y_label = y_label if accuracy == "top1" else "top-5 accuracy, %"
                panels.append(Panel(x_label, y_label, tuple(series), log="x" if _is_wide(rows, cost) else ""))
        footer = [f"Published: results/paper/{table.file} ({PAPER})."]
        return PaperFigure(name, table.title, tuple(panels), (*footer, *_sources(runs), *_remarks(name)))

    return make


def _is_wide(rows: Sequence[_Row], cost: str) -> bool:
    """Whether one network would leave the others no room."""
    costs: list[int] = sorted(getattr(row, cost) for row in rows)
    return costs[-1] > 3 * costs[len(costs) // 2]


def _remarks(name: str) -> list[str]:
    about = {
        "table1": "The published counts of vgg-gmp-lr-lde do not come out",
        "table2": "The published counts are those of 1000 classes at stride 1 divided by four, vgg-gmp-sf's without "
        "global max pooling",
        "table3": "Counts are with auxiliary heads, parameters without the classifier, googlenet-lr's on larger maps",
    }
    return [f"{about[name]} (docs/counting.md)."] if name in about else []


def _is_of(runs: Runs, name: str, table: Table, places: Places) -> bool:
    """Whether a network belongs to a table: of its family, trained on its data."""
    if runs.data != places.data.get(name, table.data):
        return False
    family = family_table(resolve_backbone(runs.architecture)[0])
    return family is not None and family.file == (table.file if name != "table2" else _tables()["table1"].file)


def _published(rows: Sequence[_Row], cost: str, unit: float, accuracy: str, label: str = "published") -> Series:
    marks = [
        Mark(row.name, getattr(row, cost) / unit, 100 * value)
        for row in rows
        if (value := getattr(row, accuracy)) is not None
    ]
    return Series(label, "published", tuple(marks), True)


def _measured(runs: Sequence[Runs], name: str, table: Table, cost: str, unit: float) -> list[Series]:
    """A series for each recipe, at the counts of the table's convention."""
    if not runs:
        return [Series("nothing measured here on these images", "measured", ())]
    return [
        Series(
            f"measured here, recipe {recipe}",
            "measured",
            tuple(_mark(each, getattr(_counted(each, name, table), cost) / unit) for each in found),
        )
        for recipe, found in by_recipe(runs).items()
    ]


def _counted(runs: Runs, name: str, table: Table) -> Any:
    """As the table counts: at its own input size and number of classes."""
    if name == "table2":  # whose networks are those of table 1
        cost = make_plan(runs.architecture, table.input_size, table.num_classes).cost
        return _Row(runs.network, cost.paper_multiply_acc(table.convention), cost.paper_params(table.convention), 0, 0)
    return summarise(runs.network, runs.architecture, table.input_size, table.num_classes).paper


def _mark(runs: Runs, x: float) -> Mark:
    deviation = None if runs.deviation is None else 100 * runs.deviation
    return Mark(runs.network, x, 100 * runs.mean, deviation, len(runs.accuracies))


def _sources(runs: Sequence[Runs]) -> list[str]:
    if not runs:
        return []
    number = sum(len(each.accuracies) for each in runs)
    commits = ", ".join(dict.fromkeys(commit for each in runs for commit in each.commits))
    hardware = "; ".join(dict.fromkeys(name for each in runs for name in each.hardware))
    diverged = sum(each.diverged for each in runs)
    more = f", {diverged} more diverged" if diverged else ""
    repeated = sum(each.repeated for each in runs)
    more += f", {repeated} more with the same seeds left out" if repeated else ""
    return [f"Measured: test images, {number} runs{more}, records of lrnas reproduce; commit {commits}; {hardware}."]


# table 5


def state_of_the_art(places: Places) -> PaperFigure:
    """Top-5 accuracy of the networks of its time, with the paper's own beside them."""
    others = [replace(row, name=AUGMENTED.get(row.name, row.name)) for row in _read_rows("table5_state_of_the_art.csv")]
    own = [row for name in ("table1", "table3") for row in _read_rows(_tables()[name].file)]
    panels = []
    for cost, what in (
        ("multiply_acc", "multiply-accumulates of a test, billions"),
        ("params", "parameters, millions"),
    ):
        unit = 1e9 if cost == "multiply_acc" else 1e6
        column = "augmented" if cost == "multiply_acc" else cost
        beside = Series("state of the art, as tested with augmentation", "beside", _top5(others, column, unit), True)
        series = [_published(own, cost, unit, "top5", "the paper's networks, one crop"), beside]
        panels.append(Panel(what, "top-5 accuracy, %", tuple(series), log="x"))
    footer = (
        f"Published: results/paper/table5_state_of_the_art.csv, table1_vgg_ilsvrc.csv, table3_googlenet_ilsvrc.csv "
        f"({PAPER}).",
        "The paper's own networks are tested on one crop in the middle; the others' cost is of all crops they were "
        "tested on. Parameters of table 3 are without the classifier.",
        "All of this was published; nothing in it was measured here.",
    )
    return PaperFigure("table5", "Table 5: the state of the art on ILSVRC", tuple(panels), footer, columns=1)


def _top5(rows: Sequence[_Row], column: str, unit: float) -> tuple[Mark, ...]:
    return tuple(Mark(row.name, getattr(row, column) / unit, 100 * row.top5) for row in rows if row.top5 is not None)


# other data than the paper's


def other_data(places: Places) -> PaperFigure:
    """Networks on images that the paper does not have, one panel for each set of them."""
    tables = _tables()
    groups: dict[str, list[Runs]] = {}
    for runs in places.runs():
        if not any(_is_of(runs, name, table, places) for name, table in tables.items()):
            groups.setdefault(runs.data, []).append(runs)
    if not groups:
        raise NothingToDraw(
            f"this is of records on other images than the paper's; got none in {places.results / 'reproduce'}; make "
            "some with `lrnas reproduce --data NAME`, or give --records FOLDER"
        )
    panels = []
    for data, found in groups.items():
        series = [
            Series(f"measured here, recipe {recipe}", "measured", tuple(_mark(runs, runs.macs / 1e6) for runs in some))
            for recipe, some in by_recipe(found).items()
        ]
        panels.append(Panel("multiply-accumulates, millions", "test accuracy, %", tuple(series), data))
    every = [runs for found in groups.values() for runs in found]
    footer = (*_sources(every), "The paper has no numbers for these images. Costs are at the size trained at.")
    return PaperFigure("other-data", "On other images than the paper's", tuple(panels), footer)
