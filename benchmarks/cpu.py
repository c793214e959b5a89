"""Is the time of the paper's networks proportional to their multiply-accumulates, on a CPU?

    python benchmarks/cpu.py                          # all families, inference at batch 1 and 8, with two threads
    python benchmarks/cpu.py --families nin --compile # with torch.compile as well

Each network is compared with the dense network that it replaces. Both run as built, accelerated and, with --compile,
compiled after that; the networks of a family alternate. Times are the shortest of several rounds, by two clocks: wall
time, which grows when other processes use the machine, and CPU time of this process, which grows less if waiting
threads sleep (OMP_WAIT_POLICY=passive, which makes wall time longer). The results are written to
results/composite_cpu.json after every family, with the number of cores that other processes used meanwhile. In them,
`bar` is the share of time divided by the share of multiply-accumulates.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, make_parser

from lrnas import create_model
from lrnas.layers.accelerate import accelerate
from lrnas.models.paper import Point, paper_points
from lrnas.models.plan import make_plan
from lrnas.profiling.timing import OtherWork, measure
from lrnas.training.provenance import provenance

BAR = 1.3
Run = Callable[[torch.Tensor], object]


def native_size(point: Point) -> int:
    return 32 if point.table.input_size < 64 else point.table.input_size  # the paper cropped CIFAR's images


def forms_of(point: Point, compiled: bool) -> dict[str, Run]:
    torch.manual_seed(0)
    plain = create_model(point.architecture, point.table.num_classes).eval()
    forms: dict[str, Run] = {
        "plain": plain,
        "accelerated": accelerate(copy.deepcopy(plain)),
    }
    if compiled:
        forms["compiled"] = torch.compile(accelerate(copy.deepcopy(plain)), dynamic=False)
    return forms


def timed(run: Run, x: torch.Tensor, wall: dict[tuple[str, str], float], key: tuple[str, str]) -> None:
    started = time.perf_counter()
    run(x)
    wall[key] = min(wall[key], time.perf_counter() - started)


def family(points: list[Point], batch: int, compiled: bool, rounds: int, limit: float) -> list[dict[str, Any]]:
    """One row for every network of a family; the first one is the baseline."""
    size = native_size(points[0])
    x = torch.randn(batch, 3, size, size)
    forms = {point.name: forms_of(point, compiled) for point in points}
    kinds = list(forms[points[0].name])
    macs = {point.name: make_plan(point.architecture, size, point.table.num_classes).cost.macs for point in points}
    rows: list[dict[str, Any]] = [
        {
            "network": point.name,
            "baseline": points[0].name,
            "batch": batch,
            "input": size,
            "macs_share": macs[point.name] / macs[points[0].name],
        }
        for point in points
    ]
    wall = {(kind, point.name): math.inf for kind in kinds for point in points}
    calls = [partial(timed, forms[name][kind], x, wall, (kind, name)) for kind, name in wall]
    with torch.inference_mode():
        taken = measure(calls, rounds=rounds, limit=limit, quantile=0.0, clock=time.process_time)
    for clock, seconds in (("cpu", dict(zip(wall, taken, strict=True))), ("wall", wall)):
        for kind in kinds:
            base = seconds[kind, points[0].name]
            for row in rows:
                own = seconds[kind, row["network"]]
                row[f"{kind}_{clock}"] = {"ms": own * 1e3, "share": own / base, "bar": own / base / row["macs_share"]}
    torch._dynamo.reset()
    for row in rows:
        marks = {key: value["bar"] for key, value in row.items() if isinstance(value, dict)}
        text = "  ".join(f"{key} {value:.2f}{'' if value <= BAR else '*'}" for key, value in marks.items())
        took = row["accelerated_wall"]["ms"]
        print(f"{row['network']:22s} batch {batch} MACs {row['macs_share']:.3f} {took:9.2f} ms  {text}", flush=True)
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--families",
        nargs="+",
        choices=["vgg-gmp", "googlenet", "nin"],
        help="families of networks, named after their baselines",
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true", help="measure with torch.compile, too")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--limit", type=float, default=4.0, help="seconds for one network in one form, but at least 3 rounds"
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "composite_cpu.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    families: dict[str, list[Point]] = {}
    for point in paper_points().values():
        families.setdefault(point.table.baseline, []).append(point)
    waiting = os.environ.get("OMP_WAIT_POLICY", "default")
    for name in args.families or families:
        points = sorted(families[name], key=lambda point: point.name != name)
        for batch in args.batches:
            work = OtherWork()
            rows = family(points, batch, args.compile, args.rounds, args.limit)
            facts = {"threads": args.threads, "waiting": waiting, "cores_others_used": round(work.cores() or 0.0, 2)}
            known = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}
            known[f"{name}, batch {batch}"] = {"provenance": provenance(seeds=[0], **facts), "rows": rows}
            args.out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            print(f"others used {facts['cores_others_used']:.2f} cores meanwhile", flush=True)


if __name__ == "__main__":
    main()
