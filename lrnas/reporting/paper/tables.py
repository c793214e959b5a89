"""Figures of the paper's tables: accuracy against cost, published and measured."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lrnas._resources import PAPER_TABLES
from lrnas.arch.cost import Convention
from lrnas.errors import LrnasError
from lrnas.models.paper import Table, family_table, paper_points
from lrnas.models.plan import make_plan, resolve_backbone
from lrnas.models.summary import summarise
from lrnas.reporting.figures.panels import Mark, Panel, PanelFigure, Series
from lrnas.reporting.paper.records import Runs, group_by_recipe, read_runs

PAPER = "Ioannou et al., ICLR 2016; single runs"
REMARKS = {
    "table1": "The published counts of vgg-gmp-lr-lde cannot be reproduced",
    "table2": "The published counts are those of 1000 classes at stride 1 divided by four; vgg-gmp-sf is counted "
    "without global max pooling",
    "table3": "Counts include the auxiliary heads, parameters exclude the classifier, googlenet-lr has larger maps",
}
"""Known differences between published counts and the networks (docs/counting.md)."""


class NothingToDraw(LrnasError):
    """A figure for which there are no numbers."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where measured numbers are read from."""

    results: Path = Path("results")
    """Folder with reproduce/, composite_*.json and gradient_variance.json."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Name of the data set in the records by table, for tables whose data set has another name there."""

    def runs(self) -> list[Runs]:
        return read_runs(self.results / "reproduce")


@dataclass(frozen=True, slots=True)
class _Row:
    """A network in a published table."""

    name: str
    multiply_acc: int
    params: int
    top1: float | None
    top5: float | None


def table_figure(name: str, sources: Sources) -> PanelFigure:
    """Accuracy against multiply-accumulates and parameters, as in one of the tables 1 to 4.

    Args:
        name: Name of the figure, "table1" to "table4".
        sources: Where to look for measured numbers.
    """
    table = _tables()[name]
    rows = _read_rows(table.file)
    runs = [runs for runs in sources.runs() if _belongs_to(runs, name, table, sources)]
    has_top5 = rows[0].top5 is not None
    unit, unit_name = (1e6, "millions") if table.input_size < 100 else (1e9, "billions")
    panels = []
    for accuracy, label in (("top1", "top-1 " if has_top5 else ""), ("top5", "top-5 "))[: 1 + has_top5]:
        for cost, divisor, x_label in (
            ("multiply_acc", unit, f"multiply-accumulates, {unit_name}"),
            ("params", 1e6, "parameters, millions"),
        ):
            measured = [Series("lrnas does not measure top-5", "measured", ())]
            if accuracy == "top1":
                measured = _measured(runs, partial(_count, name=name, table=table, cost=cost, unit=divisor))
            series = (_published(rows, cost, divisor, accuracy), *measured)
            costs = sorted(getattr(row, cost) for row in rows)
            is_wide = costs[-1] > 3 * costs[len(costs) // 2]  # on a linear axis, most networks would be crowded
            panels.append(Panel(x_label, f"{label}accuracy, %", series, log="x" if is_wide else ""))
    footer = [f"Published: results/paper/{table.file} ({PAPER}).", *_describe_runs(runs)]
    footer += [f"{REMARKS[name]} (docs/counting.md)."] if name in REMARKS else []
    return PanelFigure(name, table.title, tuple(panels), tuple(footer))


def state_of_the_art(sources: Sources) -> PanelFigure:
    """Table 5: published top-5 accuracies of the paper's networks and of other networks of that time.

    Args:
        sources: Not used, because nothing is measured here.
    """
    others = _read_rows("table5_state_of_the_art.csv", "test_multiply_acc_with_augmentation")
    # vgg-11 is also in table 1, where it is tested on one crop
    others = [replace(row, name="vgg-11, augmented") if row.name == "vgg-11" else row for row in others]
    own = [row for name in ("table1", "table3") for row in _read_rows(_tables()[name].file)]
    panels = []
    for cost, unit, label in (
        ("multiply_acc", 1e9, "multiply-accumulates of a test, billions"),
        ("params", 1e6, "parameters, millions"),
    ):
        beside = _published(others, cost, unit, "top5", "state of the art, as tested with augmentation")
        series = _published(own, cost, unit, "top5", "the paper's networks, one crop"), replace(beside, style="beside")
        panels.append(Panel(label, "top-5 accuracy, %", series, log="x"))
    footer = (
        "Published: results/paper/table5_state_of_the_art.csv, table1_vgg_ilsvrc.csv, table3_googlenet_ilsvrc.csv "
        f"({PAPER}).",
        "The paper's networks are tested on one central crop. The others are tested on several crops, and their cost "
        "is the sum over all crops. Parameters of table 3 exclude the classifier.",
        "All numbers are published ones; nothing was measured here.",
    )
    return PanelFigure("table5", "Table 5: the state of the art on ILSVRC", tuple(panels), footer, columns=1)


def other_data(sources: Sources) -> PanelFigure:
    """Test accuracy on data sets that are not in the paper, one panel for each."""
    tables = _tables()
    groups: dict[str, list[Runs]] = {}
    for runs in sources.runs():
        if not any(_belongs_to(runs, name, table, sources) for name, table in tables.items()):
            groups.setdefault(runs.data, []).append(runs)
    if not groups:
        raise NothingToDraw(
            "other-data needs records on data sets that are not in the paper; found none in "
            f"{sources.results / 'reproduce'}; make some with `lrnas reproduce --data NAME`, or give --results FOLDER"
        )
    panels = [
        Panel(
            "multiply-accumulates, millions",
            "test accuracy, %",
            tuple(_measured(group, lambda runs: runs.macs / 1e6)),
            group[0].data_name,
        )
        for group in groups.values()
    ]
    every = [runs for group in groups.values() for runs in group]
    footer = (
        *_describe_runs(every),
        "The paper has no numbers for these images. Counts are at the image size of the training.",
    )
    return PanelFigure("other-data", "Data sets that are not in the paper", tuple(panels), footer)


def read_table(file: str) -> list[dict[str, str]]:
    """Rows of a table in results/paper/ by column name."""
    with (PAPER_TABLES / file).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def _read_rows(file: str, cost: str = "multiply_acc") -> list[_Row]:
    def number(row: Mapping[str, str], *names: str) -> float | None:
        return next((float(row[name]) for name in names if row.get(name)), None)

    return [
        _Row(
            row["network"],
            int(row[cost]),
            int(row.get("params") or row["test_params"]),
            number(row, "top1", "accuracy"),
            number(row, "top5"),
        )
        for row in read_table(file)
    ]


def _tables() -> dict[str, Table]:
    """Tables 1 to 4 by the names of their figures."""
    found = {point.table.title.split(":")[0].lower().replace(" ", ""): point.table for point in paper_points().values()}
    return found | {
        "table2": Table(
            "Table 2: VGG-11 on MIT Places", "table2_vgg_places.csv", 224, 205, "vgg-gmp", "places", Convention()
        )
    }


def _belongs_to(runs: Runs, name: str, table: Table, sources: Sources) -> bool:
    """Whether a network belongs to a table's family and was trained on the table's data set."""
    if runs.data != sources.data.get(name, table.data):
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


def _measured(runs: Sequence[Runs], find_x: Callable[[Runs], float]) -> list[Series]:
    """Mean accuracies over seeds, one series for each recipe."""
    if not runs:
        return [Series("nothing measured here on these images", "measured", ())]

    def mark(each: Runs) -> Mark:
        deviation = None if each.deviation is None else 100 * each.deviation
        return Mark(each.network, find_x(each), 100 * each.mean, deviation, len(each.accuracies))

    groups = group_by_recipe(runs)
    return [Series(f"measured here, recipe {name}", "measured", tuple(map(mark, groups[name]))) for name in groups]


def _count(runs: Runs, name: str, table: Table, cost: str, unit: float) -> float:
    """Cost of a network at the table's input size and number of classes, by the table's convention."""
    if name == "table2":  # its networks are those of table 1
        counted = make_plan(runs.architecture, table.input_size, table.num_classes).cost
        return (counted.paper_params if cost == "params" else counted.paper_multiply_acc)(table.convention) / unit
    paper = summarise(runs.network, runs.architecture, table.input_size, table.num_classes).paper
    return float(getattr(paper, cost)) / unit


def _describe_runs(runs: Sequence[Runs]) -> list[str]:
    """Lines of a footer with the number of runs, commits and hardware; empty if there are no runs."""
    if not runs:
        return []
    number = sum(len(each.accuracies) for each in runs)
    commits = ", ".join(dict.fromkeys(commit for each in runs for commit in each.commits))
    hardware = "; ".join(dict.fromkeys(name for each in runs for name in each.hardware))
    diverged, repeated = sum(each.diverged for each in runs), sum(each.repeated for each in runs)
    more = f", {diverged} more diverged" if diverged else ""
    more += f", {repeated} more with repeated seeds left out" if repeated else ""
    return [f"Measured: test images, {number} runs{more}, records of lrnas reproduce; commit {commits}; {hardware}."]
