"""All figures of the paper by name, as data. Figures of times and gradients are made here, the others in `tables`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from lrnas.errors import DataError, UnknownName
from lrnas.models.paper import get_point
from lrnas.models.plan import make_plan
from lrnas.reporting.figures.panels import MACS_LABEL, Mark, Panel, PanelFigure, Series
from lrnas.reporting.paper.records import read_json
from lrnas.reporting.paper.tables import (
    PAPER,
    NothingToDraw,
    Sources,
    other_data,
    read_table,
    state_of_the_art,
    table_figure,
)

INITIALISATIONS = {
    "composite": "composite (the paper's)",
    "fan_out": "He fan-out per group",
    "fan_in": "He fan-in per group",
    "default": "PyTorch's default",
}


def make_paper_figure(name: str, sources: Sources) -> PanelFigure:
    """One of the paper's figures as data.

    Args:
        name: A key of `FIGURES`.
        sources: Where to look for measured numbers; published numbers come with lrnas.

    Raises:
        NothingToDraw: If there are no numbers for this figure.
    """
    if name not in FIGURES:
        raise UnknownName("figure", name, FIGURES)
    return FIGURES[name](sources)


def times(sources: Sources) -> PanelFigure:
    """Time against multiply-accumulates: the paper's layers, and layers and networks measured here."""
    file = "fig_layer_timings_vgg_gmp_lr.csv"
    rows = read_table(file)
    cpu, gpu = (
        tuple(Mark(row["layer"], int(row["multiply_acc"]) / 1e6, float(row[column])) for row in rows)
        for column in ("cpu_ms", "gpu_ms")
    )
    series = (Series("published, CPU", "beside", cpu, True), Series("published, GPU", "published", gpu, True))
    panels = [Panel(MACS_LABEL, "ms", series, "the paper: layers of vgg-gmp-lr", log="xy", named=False)]
    footer = [f"Published: results/paper/{file} ({PAPER})."]
    for panel, source in chain(_layer_times(sources.results), _network_times(sources.results)):
        panels.append(panel)
        footer.append(source)
    if len(panels) == 1:
        footer.append(f"Nothing measured here: no composite_*.json in {sources.results}.")
    return PanelFigure("times", "Time against multiply-accumulates", tuple(panels), tuple(footer))


def gradients(sources: Sources) -> PanelFigure:
    """Variance of back-propagated gradients by layer, for every initialisation."""
    file = sources.results / "gradient_variance.json"
    data = _read_result(file)
    if data is None:
        raise NothingToDraw(f"{file} does not exist; make it with benchmarks/gradient_variance.py, or give --results")
    facts = data["provenance"]
    depth = facts["depth"]
    y_label = f"gradient variance at the layer's input\nrelative to layer {depth}"
    panels = []
    for stack, rules in data["geometric_mean_variance_relative_to_the_last_layer"].items():
        series = [
            Series(INITIALISATIONS[rule], "line", tuple(Mark("", i + 1, mean) for i, mean in enumerate(means)))
            for rule, means in rules.items()
        ]
        panels.append(Panel("layer", y_label, tuple(series), stack, log="y", named=False, band=(0.5, 2)))
    what = f"{depth} layers of {facts['width']} channels, circular padding, geometric mean of {facts['n']} seeds"
    footer = f"{_describe_result(file, data)} {what}."
    return PanelFigure("gradients", "Gradients by initialisation", tuple(panels), (footer,))


FIGURES: dict[str, Callable[[Sources], PanelFigure]] = {
    **{name: partial(table_figure, name) for name in ("table1", "table2", "table3", "table4")},
    "table5": state_of_the_art,
    "other-data": other_data,
    "times": times,
    "gradients": gradients,
}
"""Functions by name that make a figure from the sources of measured numbers."""


def _layer_times(results: Path) -> Iterator[tuple[Panel, str]]:
    """Yield a panel of measured layers, and its source; nothing if there are no measurements."""
    file = results / "composite_layers.json"
    data = _read_result(file)
    if data is None:
        return
    plan = make_plan(get_point("vgg-gmp").architecture, 224, 1000)
    costs = {layer.name: layer.macs for layer in plan.cost.layers}
    dense: dict[str, Mark] = {}
    networks: dict[str, list[Mark]] = {}
    for row in data["rows"]:
        name = plan.convs[row["layer"] - 1].name
        macs = costs[name] / 1e6
        dense[name] = Mark(name, macs, row["dense_ms"])
        networks.setdefault(row["network"], []).append(Mark(name, row["macs_share"] * macs, row["ms"]))
    series = [Series("vgg-gmp (dense)", "beside", tuple(dense.values()))]
    series += [Series(name, "measured", tuple(marks)) for name, marks in networks.items()]
    title = f"here: layers, forward, {_hardware(data)}"
    yield Panel(MACS_LABEL, "ms", tuple(series), title, log="xy", named=False), _describe_result(file, data)


def _network_times(results: Path) -> Iterator[tuple[Panel, str]]:
    """Yield a panel of networks relative to the dense one, and its source; nothing if there are no measurements."""
    file = results / "composite_networks.json"
    data = _read_result(file)
    if data is None:
        return
    series = [
        Series(
            f"{label}, commit {_commit(data)}",
            "measured",
            tuple(Mark(row["network"], row["macs_share"], row[key]) for row in data["rows"] if key in row),
        )
        for key, label in (("inference_share", "inference"), ("training_share", "training step"))
    ]
    shown = tuple(each for each in series if each.marks)
    title = f"here: networks, {_hardware(data)}"
    panel = Panel("share of vgg-gmp's MACs", "share of its time", shown, title, shares=True)
    yield panel, _describe_result(file, data)


def _read_result(file: Path) -> dict[str, Any] | None:
    """Result of a benchmark; None if the file does not exist."""
    if not file.exists():
        return None
    data = read_json(file)
    if not isinstance(data, dict) or "provenance" not in data:
        raise DataError(f"{file} is not a result of a benchmark: it has no provenance; give another --results")
    return data


def _hardware(data: Mapping[str, Any]) -> str:
    return str(data["provenance"].get("hardware", "unknown hardware")).split(",")[0]


def _commit(data: Mapping[str, Any]) -> str:
    return str(data["provenance"].get("commit", "unknown"))[:7]


def _describe_result(file: Path, data: Mapping[str, Any]) -> str:
    hardware = data["provenance"].get("hardware", "unknown hardware")
    return f"Measured: {file.as_posix()}, commit {_commit(data)}, {hardware}."
