"""Print what the best networks of a study are made of, beside its other networks.

    python benchmarks/made_of.py nin-deep-cifar10 --studies FOLDER

The best networks are those that are farthest above a quadratic in log MACs that is fitted to all of them. Only networks
that cost at least 0.2 of the baseline's MACs are compared. The accuracies are those of the short trainings.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from lrnas import Trial, make_plan, open_study

LEAST = 0.2
"""Share of the baseline's MACs below which networks are not compared."""
BLOCK = re.compile(r"^(\D+\d)[^.]*")
"""Blocks of layers: `conv3` of conv3_2, `inception_4.conv5x5` of inception_4b.conv5x5."""


def facts_of(trial: Trial, size: int) -> dict[str, float]:
    """Numbers that describe a network: layers, shares of filters and widths, for each block."""
    facts: dict[str, float] = defaultdict(float)
    filters: dict[str, list[tuple[int, int]]] = defaultdict(list)
    assert trial.architecture is not None
    for setting in ("pool", "classifier"):
        if (value := getattr(trial.architecture, setting)) is not None:
            facts[f"{setting} {value}"] = 1
    for conv in make_plan(trial.architecture, size, deployed=True).convs:
        if conv.kernel == 1:
            facts[f"has {conv.name}"] = 1
            continue
        block = BLOCK.sub(r"\1", conv.name)
        facts[f"{block}: largest filters"] = max(max(group.height, group.width) for group in conv.mix.groups)
        if conv.mix.second is not None:
            facts[f"{block}: {'separable layers' if conv.mix.is_separable else 'layers with a join'}"] += 1
        facts[f"{block}: spatial layers"] += 1
        square = sum(group.num for group in conv.mix.groups if group.height == group.width)
        filters[block].append((square, conv.mix.out_channels))
    for block, counts in filters.items():
        squares, widths = zip(*counts, strict=True)
        facts[f"{block}: share of k×k filters"] = sum(squares) / sum(widths)
        facts[f"{block}: filters per layer"] = sum(widths) / len(widths)
    return facts


def mean_facts(trials: Iterable[Trial], size: int) -> dict[str, float]:
    """Means of the facts of several networks; what a network does not have counts as 0."""
    found = [facts_of(trial, size) for trial in trials]
    names = sorted({name for facts in found for name in facts})
    return {name: float(np.mean([facts.get(name, 0.0) for facts in found])) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study")
    parser.add_argument("--studies", default="studies")
    parser.add_argument("--best", type=int, default=30, help="number of best networks")
    options = parser.parse_args()
    study = open_study(options.study, studies=options.studies)
    trials = [t for t in study.trials if t.accuracy is not None and (t.share or 0) >= LEAST and t.point is None]
    log_macs = np.log([float(trial.macs) for trial in trials])
    accuracies = np.array([100 * (trial.accuracy or 0) for trial in trials])
    excess = accuracies - np.polyval(np.polyfit(log_macs, accuracies, 2), log_macs)
    order = np.argsort(-excess)
    size = study.image_shape.size
    best, others = (
        mean_facts([trials[i] for i in part], size) for part in (order[: options.best], order[options.best :])
    )
    gap = float(excess[order[: options.best]].mean() - excess[order[options.best :]].mean())
    print(f"{options.best} best of {len(trials)} networks: {gap:.2f} points above the others at equal MACs")
    print(f"{'best':>8} {'others':>8}")
    for name in sorted(best.keys() | others.keys()):
        print(f"{best.get(name, 0):8.2f} {others.get(name, 0):8.2f}  {name}")


if __name__ == "__main__":
    main()
