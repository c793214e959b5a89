"""How often is one of two equal networks called better, if seeds are added until it is?

The accuracies of a network of the paper and of networks that a search might have found are drawn from the same normal
distribution, over a few seeds, and judged like `lrnas retrain` does. As long as the verdict is `no difference shown`,
seeds are added, as users do whose result is not significant yet. The result is the share of the verdicts `dominated`
and `not reached`, which are all wrong, for a fixed number of seeds and for added seeds.

    python benchmarks/verdicts.py --out results/verdict_level.json
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import make_parser, write_result

from lrnas.study.retrained import Final
from lrnas.study.verdicts import TEST, judge
from lrnas.training.provenance import provenance

SEED = 0
MEAN, DEVIATION = 0.9, 0.003
"""Distribution of the accuracies; the test does not depend on it."""


def kind_of(accuracies: Sequence[Sequence[float]]) -> str:
    """The verdict on the first network, given the accuracies of all networks."""
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
    parser = make_parser(__doc__)
    parser.add_argument(
        "--simulations", type=int, default=3000, metavar="N", help="simulations for each number of rivals"
    )
    parser.add_argument(
        "--rivals", type=int, nargs="+", default=[1, 5], metavar="N", help="numbers of networks that a search found"
    )
    parser.add_argument(
        "--looks", type=int, nargs="+", default=[3, 5, 7], metavar="N", help="numbers of seeds, in increasing order"
    )
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
            added.append(next((kind for kind in looks if kind != "no difference shown"), "no difference shown"))
        fixed = {"first": shares(first), "last": shares(last)}
        table.append({"rivals": rivals, "looks": options.looks, "fixed": fixed, "added": shares(added)})
        print(json.dumps(table[-1]))
    write_result(options.out, facts, wrong=table)


if __name__ == "__main__":
    main()
