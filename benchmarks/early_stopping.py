"""How many epochs does early stopping save, and what does it cost the front?

Networks of the space `nin` were trained in full on CIFAR-10 (results/nin_cifar10_curves.json), so their final
accuracies are known. Here a search is replayed with these curves, several trials at a time, with the rungs of `lrnas
search`; the paper's networks are never stopped, as in a search. The result is the share of all epochs that were
trained, and the hypervolume of the front of the networks trained in full, relative to the front without early
stopping. For comparison: the same rule without costs, and stopping at random as often.

    python benchmarks/early_stopping.py --orders 20 --out results/early_stopping.json
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import RESULTS, make_parser, write_result

from lrnas.sampling.front_pruner import compare
from lrnas.sampling.pareto import hypervolume
from lrnas.searching.setup import rung_epochs
from lrnas.spaces.space import load_space
from lrnas.training.provenance import provenance

MEASURED = RESULTS / "nin_cifar10_curves.json"
CONCURRENCY = 4

Row = dict[str, Any]
Rule = Callable[[float, list[float], list[tuple[float, list[float]]]], bool]
"""Whether a trial continues, by its accuracy, its costs, and those of the other trials at the rung."""


def replay(rows: list[Row], rungs: tuple[int, ...], rule: Rule, protected: set[str]) -> tuple[int, list[Row]]:
    """Number of epochs trained, and the networks trained in full."""
    at_rung: dict[int, list[tuple[float, list[float]]]] = {rung: [] for rung in rungs}
    waiting, running = list(reversed(rows)), []
    epochs, full = 0, []
    while waiting or running:
        while waiting and len(running) < CONCURRENCY:
            running.append((waiting.pop(), 0))
        still = []
        for row, done in running:  # one epoch of each
            done, epochs = done + 1, epochs + 1
            if done == len(row["curve"]):
                full.append(row)
                continue
            if done in at_rung:
                accuracy, others = row["curve"][done - 1], list(at_rung[done])
                at_rung[done].append((accuracy, [row["macs"]]))
                if row["point"] not in protected and not rule(accuracy, [row["macs"]], others):
                    continue
            still.append((row, done))
        running = still
    return epochs, full


def volume(rows: list[Row], reference: float) -> float:
    return hypervolume([(1 - row["curve"][-1], row["macs"] / reference) for row in rows], [1.0, 1.0])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--orders", type=int, default=20, help="number of random orders, besides the original one")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    space = load_space("nin", batch_norm=True)
    table = []
    generator = random.Random(0)
    for study in json.loads(MEASURED.read_text())["studies"]:
        rows = study["trials"]
        reference = max(row["macs"] for row in rows if row["point"] in space.points)
        total, best = sum(len(row["curve"]) for row in rows), volume(rows, reference)

        def at_random(
            accuracy: float,
            costs: list[float],
            others: list[tuple[float, list[float]]],
            generator: random.Random = generator,
        ) -> bool:
            return len(others) < 2 or generator.random() < 1 / 3

        rules: dict[str, Rule] = {
            "competitive for its cost": lambda accuracy, costs, others: compare(accuracy, costs, others).is_competitive,
            "competitive, blind to cost": lambda accuracy, costs, others: (
                compare(accuracy, [0], [(rival, [0]) for rival, _ in others]).is_competitive
            ),
            "at random": at_random,
        }
        for first in (1, 3):
            rungs = rung_epochs(first, len(rows[0]["curve"]))
            for name, rule in rules.items():
                runs = []
                for order in range(options.orders + 1):
                    ordered = list(rows)
                    if order:  # in every search the named networks come first
                        seeds = [row for row in rows if row["point"]]
                        others = [row for row in rows if not row["point"]]
                        random.Random(order).shuffle(others)
                        ordered = seeds + others
                    epochs, full = replay(ordered, rungs, rule, set(space.points))
                    runs.append((epochs / total, volume(full, reference) / best))
                own, shuffled = runs[0], runs[1:] or runs
                entry = {
                    "study": study["study"],
                    "networks": len(rows),
                    "rungs": list(rungs),
                    "rule": name,
                    "epochs_share": round(own[0], 4),
                    "hypervolume_share": round(own[1], 5),
                    "epochs_share_mean": round(statistics.mean(e for e, _ in shuffled), 4),
                    "hypervolume_share_mean": round(statistics.mean(v for _, v in shuffled), 5),
                    "hypervolume_share_sd": round(statistics.pstdev(v for _, v in shuffled), 5),
                }
                table.append(entry)
                print(
                    f"{entry['study']:11s} rungs {rungs!s:8s} {name:28s} epochs {entry['epochs_share']:.3f}, "
                    f"hypervolume {entry['hypervolume_share']:.4f}; in random orders {entry['epochs_share_mean']:.3f}, "
                    f"{entry['hypervolume_share_mean']:.4f} ± {entry['hypervolume_share_sd']:.4f}"
                )
    facts = provenance(seeds=list(range(options.orders + 1)), n=options.orders + 1, concurrency=CONCURRENCY)
    write_result(options.out, facts, saving=table)


if __name__ == "__main__":
    main()
