"""How often is one of two equal networks said to be better, when seeds are added until it is?

The accuracies of a network of the paper and of some that a search might have found are drawn from one normal
distribution, over a few seeds, and judged as `lrnas retrain` judges; then over more seeds, but only while the verdict
is `matched`, as somebody would who extends what is not significant yet. Reported is the share of verdicts `dominated`
and `not reached`, all of which are wrong, with a number of seeds fixed beforehand and with seeds that are added.

    python benchmarks/verdicts.py --out results/verdict_level.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lrnas.study.retrained import Final
from lrnas.study.verdicts import TEST, judge
from lrnas.training.provenance import provenance

SEED = 0
MEAN, DEVIATION = 0.9, 0.003
"""Of accuracies; the test does not depend on them."""


def kind_of(accuracies: Sequence[Sequence[float]]) -> str:
    """The verdict on the first network, from the accuracies of all."""
    finals = [
        Final(f"{i}", "", None if i else "paper", None, 1, 1, "simulated", tuple(range(len(some))), tuple(some))
        for i, some in enumerate(accuracies)
    ]
    (verdict,) = judge(finals)
    return verdict.kind


def shares(kinds: Sequence[str]) -> dict[str, float]:
    counts = Counter(kinds)
    return {kind: round(counts[kind] / len(kinds), 4) for kind in ("dominated", "not reached")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=3000, metavar="N", help="of each number of rivals")
    parser.add_argument("--rivals", type=int, nargs="+", default=[1, 5], metavar="N", help="networks found")
    parser.add_argument("--looks", type=int, nargs="+", default=[3, 5, 7], metavar="N", help="seeds, fewest first")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts = provenance(seeds=[SEED], n=options.simulations, test=TEST, mean=MEAN, deviation=DEVIATION)
    random = np.random.default_rng(SEED)
    table = []
    for rivals in options.rivals:
        first, last, added = [], [], []
        for _ in range(options.simulations):
            drawn = random.normal(MEAN, DEVIATION, (1 + rivals, options.looks[-1]))
            looks = [kind_of(drawn[:, :seeds].tolist()) for seeds in options.looks]
            first.append(looks[0])
            last.append(looks[-1])
            added.append(next((kind for kind in looks if kind != "matched"), "matched"))
        fixed = {"first": shares(first), "last": shares(last)}
        table.append({"rivals": rivals, "looks": options.looks, "fixed": fixed, "added": shares(added)})
        print(json.dumps(table[-1]))
    if options.out is not None:
        options.out.write_text(json.dumps({"provenance": facts, "wrong": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
