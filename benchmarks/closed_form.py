"""How many random VGG-11 architectures per second can the closed form count, on one core?

    python benchmarks/closed_form.py --out results/closed_form.json

For comparison, the same architectures are counted by building them on the meta device and tracing an image through
them.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import make_parser, write_result

from lrnas import Allocation, Architecture, FilterGroup, canonical_id, count_model, create_model, make_plan
from lrnas.training.provenance import provenance

LAYERS = [conv.name for conv in make_plan(Architecture("vgg11")).convs]
ARCHITECTURES, BUILT, REPEATS = 5_000, 20, 5


def random_allocation(rng: random.Random, steps: int | None) -> Allocation:
    """Random shares: multiples of 1/steps, as a search proposes them; with None any numbers, which never repeat."""
    if steps is None:
        cuts = sorted((rng.random(), rng.random()))
    else:
        cuts = [cut / steps for cut in sorted(rng.choices(range(steps + 1), k=2))]
    shares = zip(("kx1", "1xk", "kxk"), (cuts[0], cuts[1] - cuts[0], 1 - cuts[1]), strict=True)
    groups = tuple(FilterGroup(shape, share) for shape, share in shares if share)
    return Allocation("composite", groups, rng.choice((0.5, 1.0, 2.0)), rng.choice((None, 0.5, 1.0)))


def random_architectures(seed: int, steps: int | None) -> list[Architecture]:
    rng = random.Random(seed)
    return [
        Architecture("vgg11", {name: random_allocation(rng, steps) for name in LAYERS}, pool="max")
        for _ in range(ARCHITECTURES)
    ]


def rate(function: Callable[[Architecture], object], sample: list[Architecture]) -> float:
    start = time.perf_counter()
    for architecture in sample:
        function(architecture)
    return len(sample) / (time.perf_counter() - start)


def summary(rates: list[float]) -> dict[str, int]:
    return {"median": round(statistics.median(rates)), "min": round(min(rates))}


def count(architecture: Architecture) -> int:
    return make_plan(architecture, 224).cost.macs


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    in_eighths = [random_architectures(seed, 8) for seed in range(REPEATS)]
    of_any_share = [random_architectures(seed, None) for seed in range(REPEATS)]
    eighths = summary([rate(count, sample) for sample in in_eighths])
    first_met = summary([rate(count, sample) for sample in of_any_share])
    ids = summary([rate(canonical_id, sample) for sample in in_eighths])
    built = rate(lambda a: count_model(create_model(a, device="meta"), 224).macs, in_eighths[0][:BUILT])
    result = {
        "per_second": {
            "closed form, shares in steps of 1/8": eighths,
            "closed form, shares never met before": first_met,
            "canonical id, shares in steps of 1/8": ids,
            "by building on the meta device": round(built, 2),
        },
        "ratio of the closed form in steps of 1/8 to building": round(eighths["median"] / built),
    }
    print(json.dumps(result, indent=1))
    write_result(options.out, provenance(seeds=list(range(REPEATS)), n=ARCHITECTURES), **result)


if __name__ == "__main__":
    main()
