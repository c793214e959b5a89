"""Are networks faster on this device if all numbers of filters are multiples of 8?

    python benchmarks/divisor.py --spaces nin vgg11 googlenet --number 5 --found results/retrain/nin-cifar10.json

Networks drawn from spaces, and networks that a search found, are compared with their shares rounded to whole filters
and to multiples of 8: a forward pass and a training step, with the kernels of lrnas and with PyTorch's convolutions.
Rounding changes the multiply-accumulates a little, so their share is given beside the share of time. The results are
written to results/divisor.json.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, make_parser, write_result

from lrnas import Architecture, load_space, make_plan
from lrnas.errors import LrnasError
from lrnas.models.plan import canonical_id
from lrnas.profiling.profile import profile
from lrnas.training.provenance import provenance


def both(network: Architecture, divisor: int) -> list[Architecture]:
    """The network with its shares rounded to whole filters, and to multiples of the divisor."""
    return [dataclasses.replace(network, divisor=own) for own in (None, divisor)]


def drawn(name: str, number: int, seed: int, size: int, divisor: int) -> list[tuple[str, Architecture]]:
    """Random networks of a space, with batch norm, that the divisor changes."""
    space = load_space(name, batch_norm=True)
    generator = random.Random(seed)
    networks: list[Architecture] = []
    while len(networks) < number:
        with suppress(LrnasError):  # images may be too small for this network
            network = space.architecture(space.draw(generator))
            if len({canonical_id(rounded) for rounded in both(network, divisor)}) > 1:
                make_plan(network, size, 10)
                networks.append(network)
    return [(f"{name} {i}", network) for i, network in enumerate(networks)]


def found(file: Path) -> list[tuple[str, Architecture]]:
    """Networks of a retraining, without the paper's."""
    rows = json.loads(file.read_text())["networks"]
    return [
        (f"{file.stem} trial {row['trial']}", Architecture.from_dict(row["architecture"]))
        for row in rows
        if not row["point"]
    ]


def compare(name: str, network: Architecture, divisor: int, batch: int, size: int) -> list[dict[str, Any]]:
    """One row with the kernels and one without."""
    whole, multiples = both(network, divisor)
    rows = []
    for kernels in ("on", "off"):
        os.environ["LRNAS_KERNELS"] = kernels
        setting: dict[str, Any] = {"batch": batch, "input": size, "classes": 10, "layers": False}
        result = profile([("multiples", multiples)], baseline=("whole", whole), **setting)
        base, rounded = result.networks
        row: dict[str, Any] = {
            "set": name.rsplit(" ", 1)[0],
            "network": name,
            "kernels": kernels,
            "batch": batch,
            "input": size,
        }
        for key in ("macs", "forward", "training"):
            row[key] = [getattr(base, key), getattr(rounded, key)]
        rows.append(row | {"share": result.shares(rounded)})
    return rows


def mean_share(rows: list[dict[str, Any]], key: str) -> float:
    """Geometric mean of a share."""
    return math.exp(sum(math.log(row["share"][key]) for row in rows) / len(rows))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--spaces", nargs="+", default=["nin", "vgg11", "googlenet"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[32, 224, 224])
    parser.add_argument("--number", type=int, default=4)
    parser.add_argument("--found", type=Path)
    parser.add_argument("--divisor", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=math.inf, help="start no network after so many seconds")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    start = time.monotonic()
    sets = [
        drawn(name, args.number, args.seed, size, args.divisor)
        for name, size in zip(args.spaces, args.sizes, strict=True)
    ]
    jobs = [(network, size) for networks, size in zip(sets, args.sizes, strict=True) for network in networks]
    jobs.sort(key=lambda job: int(job[0][0].split()[-1]))  # the first of each space, then the second of each
    jobs = [(network, 32) for network in (found(args.found) if args.found else [])] + jobs
    facts = provenance(seed=args.seed, divisor=args.divisor, batch=args.batch)
    rows: list[dict[str, Any]] = []
    for (name, network), size in jobs:
        if time.monotonic() - start > args.limit:
            break
        rows += compare(name, network, args.divisor, args.batch, size)
        for row in rows[-2:]:
            shares = ", ".join(f"{key} {value:.3f}" for key, value in row["share"].items())
            print(f"{name:24s} kernels {row['kernels']:3s} {shares}", flush=True)
        torch.cuda.empty_cache()
        write_result(args.out / "divisor.json", facts, rows=rows)
    for kind in dict.fromkeys(row["set"] for row in rows):
        for kernels in ("on", "off"):
            own = [row for row in rows if row["set"] == kind and row["kernels"] == kernels]
            means = ", ".join(f"{key} {mean_share(own, key):.3f}" for key in ("macs", "forward", "training"))
            print(f"{kind} (n {len(own)}), kernels {kernels}: {means}")


if __name__ == "__main__":
    main()
