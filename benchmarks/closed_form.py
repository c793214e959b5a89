"""How many random VGG-11 architectures per second the closed form counts, on one core.

    python benchmarks/closed_form.py

Beside it, in the same run: counting the same architectures by building them (on the meta device) and
passing an image of shapes through them. Writes results/closed_form.json.
"""

from __future__ import annotations

import json
import random
import statistics
import time

import torch
from provenance import ROOT, provenance

from lrnas import Allocation, Architecture, FilterGroup, canonical_id, count_model, create_model, make_plan

LAYERS = [conv.name for conv in make_plan(Architecture("vgg11")).convs]
ARCHITECTURES, BUILT, REPEATS, SEED = 5_000, 20, 5, 0


def random_allocation(rng: random.Random) -> Allocation:
    """Shares in steps of 1/8, as a search proposes them."""
    cuts = sorted(rng.choices(range(9), k=2))
    eighths = (cuts[0], cuts[1] - cuts[0], 8 - cuts[1])
    groups = (FilterGroup(shape, part / 8) for shape, part in zip(("kx1", "1xk", "kxk"), eighths, strict=True) if part)
    return Allocation("composite", tuple(groups), rng.choice((0.5, 1.0, 2.0)), rng.choice((None, 0.5, 1.0)))


def main() -> None:
    torch.set_num_threads(1)
    rng = random.Random(SEED)
    architectures = [
        Architecture("vgg11", {name: random_allocation(rng) for name in LAYERS}, pool="max")
        for _ in range(ARCHITECTURES)
    ]

    def rate(function, sample) -> float:  # type: ignore[no-untyped-def]
        start = time.perf_counter()
        for architecture in sample:
            function(architecture)
        return len(sample) / (time.perf_counter() - start)

    closed = [rate(lambda a: make_plan(a, 224).cost.macs, architectures) for _ in range(REPEATS)]
    ids = [rate(canonical_id, architectures) for _ in range(REPEATS)]
    built = rate(lambda a: count_model(create_model(a, device="meta"), 224).macs, architectures[:BUILT])
    result = {
        "provenance": provenance("torch", "timm", "lrnas", seeds=[SEED], n=ARCHITECTURES, repeats=REPEATS),
        "closed_form_per_second": {"median": round(statistics.median(closed)), "min": round(min(closed))},
        "canonical_ids_per_second": {"median": round(statistics.median(ids)), "min": round(min(ids))},
        "by_building_per_second": round(built, 2),
        "ratio": round(statistics.median(closed) / built),
    }
    (ROOT / "results" / "closed_form.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
