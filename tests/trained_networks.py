"""Networks that were really trained, as the models of lrnas.sampling see them."""

import json
import lzma
from pathlib import Path

import numpy as np

from lrnas.arch.architecture import Architecture
from lrnas.sampling.accuracy_model import Inputs
from lrnas.sampling.axes import Axes
from lrnas.searching.proposals import distributions_of, kind_of
from lrnas.spaces.space import load_space

RESULTS = Path(__file__).parents[1] / "results"


def read_curves() -> tuple[Inputs, list[list[float]], list[int]]:
    """161 networks of the space nin, their accuracies on CIFAR-10 after each of 9 epochs, and the kinds of features."""
    studies = json.loads((RESULTS / "nin_cifar10_curves.json").read_text())["studies"]
    rows = {tuple(row["params"].values()): row for study in studies for row in study["trials"]}.values()
    axes = Axes(distributions_of(load_space("nin", batch_norm=True, divisor=1)), kind_of)
    log_costs = np.log([[row["macs"], row["parameters"]] for row in rows])
    points = axes.encode([axes.point(row["params"]) for row in rows])
    inputs = Inputs(log_costs, points, np.zeros(len(points), dtype=np.int64))
    return inputs, [row["curve"] for row in rows], axes.kinds


def read_levels(space: str) -> tuple[Inputs, np.ndarray, list[int]]:
    """Networks of a space, trained on CIFAR-10 for 5 epochs (level 0) or 40 (level 1), and their last accuracies."""
    packed = json.loads(lzma.decompress((RESULTS / "table" / "pilot.json.xz").read_bytes()))
    axes = Axes(distributions_of(load_space(space, batch_norm=True, divisor=1)), kind_of)
    points, log_costs, levels, values = [], [], [], []
    for record in packed["records"]:
        network, recipe = packed["networks"][record["network"]], packed["recipes"][record["recipe"]]
        kept = {("short", 5, 0.5): 0, ("truth", 40, 0.5): 1}.get((record["what"], recipe["epochs"], recipe["lr"]))
        if network["space"] == space and kept is not None:
            architecture = Architecture.from_dict(network["architecture"])
            divisor = architecture.divisor
            points.append(axes.point(load_space(space, batch_norm=True, divisor=divisor).params_of(architecture)))
            log_costs.append(np.log([network["macs"], network["params"]]))
            levels.append(kept)
            values.append(record["curves"]["val"][-1])
    return Inputs(np.array(log_costs), axes.encode(points), np.array(levels)), np.array(values), axes.kinds
