"""Time against multiply-accumulates, and gradients by initialisation: what benchmarks and profiles have measured."""

from __future__ import annotations

import csv
from pathlib import Path

from lrnas._resources import PAPER_TABLES
from lrnas.errors import DataError
from lrnas.models.paper import get_point
from lrnas.models.plan import make_plan
from lrnas.reporting.paper.data import (
    PAPER,
    Mark,
    NothingToDraw,
    Panel,
    PaperFigure,
    Places,
    Series,
    commit_of,
    read_result,
    told,
    where,
)
from lrnas.reporting.paper.runs import read_json

MACS = "multiply-accumulates of an image, millions"
RULES = {
    "composite": "composite (the paper's)",
    "fan_out": "He fan-out per group",
    "fan_in": "He fan-in per group",
    "default": "PyTorch's default",
}


def times(places: Places) -> PaperFigure:
    """The paper's figure of its layers; layers and networks here; networks of profiles."""
    file = "fig_layer_timings_vgg_gmp_lr.csv"
    with (PAPER_TABLES / file).open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    cpu, gpu = (
        tuple(Mark(row["layer"], int(row["multiply_acc"]) / 1e6, float(row[column])) for row in rows)
        for column in ("cpu_ms", "gpu_ms")
    )
    series = (Series("published, CPU", "beside", cpu, True), Series("published, GPU", "published", gpu, True))
    title = "the paper: layers of vgg-gmp-lr"
    panels = [Panel(MACS, "ms", series, title, log="xy", named=False)]
    footer = [f"Published: results/paper/{file} ({PAPER})."]
    for make in (_layer_times, _network_times):
        panel, sources = make(places.results)
        panels += panel
        footer += sources
    for path in places.profiles:
        panels += _profile_panels(path)
        footer.append(f"Measured: {path.name}, from lrnas profile --json.")
    if len(panels) == 1:
        footer.append(f"Nothing measured here: no composite_*.json in {places.results}, no --profile.")
    return PaperFigure("times", "Time against multiply-accumulates", tuple(panels), tuple(footer))


def _layer_times(results: Path) -> tuple[list[Panel], list[str]]:
    file = results / "composite_layers.json"
    data = read_result(file)
    if data is None:
        return [], []
    plan = make_plan(get_point("vgg-gmp").architecture, 224, 1000)
    costs = {layer.name: layer.macs for layer in plan.cost.layers}
    dense: dict[int, Mark] = {}
    found: dict[str, list[Mark]] = {}
    for row in data["rows"]:
        name = plan.convs[row["layer"] - 1].name
        macs = costs[name] / 1e6
        dense[row["layer"]] = Mark(name, macs, row["dense_ms"])
        found.setdefault(row["network"], []).append(Mark(name, row["macs_share"] * macs, row["ms"]))
    series = [Series("vgg-gmp (dense)", "beside", tuple(dense.values()))]
    series += [Series(name, "measured", tuple(marks)) for name, marks in found.items()]
    title = f"here: layers, forward, {where(data)}"
    panel = Panel(MACS, "ms", tuple(series), title, log="xy", named=False)
    return [panel], [told(file, data)]


def _network_times(results: Path) -> tuple[list[Panel], list[str]]:
    """Shares of the dense network's time."""
    file = results / "composite_networks.json"
    data = read_result(file)
    if data is None:
        return [], []
    series = []
    for key, what in (("inference_share", "inference"), ("training_share", "training step")):
        marks = [Mark(row["network"], row["macs_share"], row[key]) for row in data["rows"] if key in row]
        if marks:
            series.append(Series(f"{what}, commit {commit_of(data)}", "measured", tuple(marks)))
    if not series:
        return [], []
    title = f"here: networks, {where(data)}"
    panel = Panel("share of vgg-gmp's MACs", "share of its time", tuple(series), title, shares=True)
    return [panel], [told(file, data)]


def _profile_panels(path: Path) -> list[Panel]:
    data = read_json(path)
    try:
        conditions = data["conditions"]
        place = f"{conditions['hardware']}, {conditions['dtype']}, batch {conditions['batch']}"
        networks = data["networks"]
        layers = [
            Series(
                network["name"],
                "beside" if network["name"] == network["baseline"] else "measured",
                tuple(
                    Mark(layer["name"], layer["macs"] / 1e6, layer["forward_ms"])
                    for layer in network["layers"]
                    if layer["macs"]
                ),
            )
            for network in networks
        ]
        shares = [
            Series(
                label,
                "measured",
                tuple(
                    Mark(network["name"], network["share"]["macs"], network["share"][key])
                    for network in networks
                    if network["share"][key] is not None and network["name"] != network["baseline"]
                ),
            )
            for key, label in (("forward", "forward"), ("training", "training step"))
        ]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} is no output of `lrnas profile --json` ({error}); give another --profile") from None
    panels = []
    if any(series.marks for series in layers):
        panels.append(Panel(MACS, "ms", tuple(layers), f"here: layers, forward\n{place}", log="xy", named=False))
    if any(series.marks for series in shares):
        kept = tuple(series for series in shares if series.marks)
        title = f"here: networks\n{place}"
        panels.append(Panel("share of the baseline's MACs", "share of its time", kept, title, shares=True))
    if not panels:
        raise NothingToDraw(f"{path} has baselines alone and no layers; got nothing to draw; profile another network")
    return panels


def gradients(places: Places) -> PaperFigure:
    """Variance of back-propagated gradients over layers, by initialisation."""
    file = places.results / "gradient_variance.json"
    data = read_result(file)
    if data is None:
        raise NothingToDraw(
            f"{file} has the variances of gradients; it is not there; make it with `python "
            "benchmarks/gradient_variance.py`, or give --results FOLDER"
        )
    facts = data["provenance"]
    depth = facts["depth"]
    panels = []
    for stack, rules in data["geometric_mean_variance_relative_to_the_last_layer"].items():
        series = [
            Series(RULES[rule], "line", tuple(Mark("", i + 1, mean) for i, mean in enumerate(means)))
            for rule, means in rules.items()
        ]
        label = f"gradient variance at the layer's input\nrelative to layer {depth}"
        panels.append(Panel("layer", label, tuple(series), stack, log="y", named=False, band=(0.5, 2)))
    what = f"{depth} layers of {facts['width']} channels, circular padding, geometric mean of {facts['n']} seeds"
    title = "Gradients by initialisation"
    return PaperFigure("gradients", title, tuple(panels), (f"{told(file, data)} {what}.",))
