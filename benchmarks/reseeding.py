"""Is the front that a search found better than the paper's networks, beyond what another seed changes?

    python benchmarks/reseeding.py nin-deep-cifar10 --studies FOLDER

For every seed of a retraining with the recipe `full`, the networks of that seed give two fronts: of the networks that
were found, and of the paper's. The hypervolume of a front is the mean, over all costs from zero to the baseline's, of
the best test accuracy that can be had for that cost; it is 0 where no network is cheap enough. The cost is the first
one that was an objective of the search.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from statistics import mean, stdev

from lrnas import open_study, read_retraining


def hypervolume(networks: Iterable[tuple[float, float]]) -> float:
    """Mean of the best accuracy over costs from 0 to 1, of networks given as costs and accuracies."""
    volume, best, at = 0.0, 0.0, 0.0
    for cost, accuracy in sorted(networks):
        if accuracy > best and cost <= 1:
            volume += best * (cost - at)
            best, at = accuracy, cost
    return volume + best * (1 - at)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--studies", default="studies", help="folder that holds the study (default: studies)")
    options = parser.parse_args()
    study = open_study(options.study, studies=options.studies)
    finals = read_retraining(study, "full")
    cost = study.costs[0]
    most = next(final.known_costs[cost] for final in finals if final.point == study.baseline)
    volumes: dict[bool, list[float]] = {}
    for is_reference in (False, True):
        chosen = [final for final in finals if (final.point is not None) == is_reference]
        by_seed = [dict(zip(final.seeds, final.accuracies, strict=True)) for final in chosen]
        seeds = sorted(set.intersection(*(set(own) for own in by_seed)))
        volumes[is_reference] = [
            hypervolume(
                (final.known_costs[cost] / most, 100 * own[seed]) for final, own in zip(chosen, by_seed, strict=True)
            )
            for seed in seeds
        ]
        found = volumes[is_reference]
        what = "the paper's networks" if is_reference else "networks found"
        print(f"{what}: hypervolume {mean(found):.2f} ± {stdev(found):.2f} ({len(found)} seeds)")
    gain = mean(volumes[False]) - mean(volumes[True])
    spread = max(stdev(volumes[False]), stdev(volumes[True]))
    print(f"difference {gain:.2f}, {gain / spread:.0f} times the larger standard deviation")


if __name__ == "__main__":
    main()
