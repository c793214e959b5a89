"""How many images per second are trained by several trainings side by side: in processes, or in threads of one process?

    python -m benchmarks.side_by_side 1x1 8x1 1x8 2x4 --space nin --data FOLDER --out results/side_by_side.json

8x1 means 8 processes with 1 thread each, 1x8 one process with 8 threads, each with a CUDA stream of its own. Several
processes share the GPU by CUDA MPS. Each setting trains the same networks, the first random ones of the table, with the
recipe `fast`, for a few epochs each. Workers take them from one queue; the time runs from the moment when all workers
are ready (imports done, images loaded) until the queue is empty and the first worker has nothing left to do. So it
includes building, capturing, compiling (what earlier settings have not compiled) and validation, but no waiting at the
end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.common import make_parser, write_result
from benchmarks.table.jobs import make_recipe
from benchmarks.table.networks import read_networks
from benchmarks.table.train import ALL_IMAGES, Mps, load_data
from lrnas.arch.architecture import Architecture
from lrnas.recipes import Recipe
from lrnas.training.provenance import provenance

SHORT = "clip=2 batch_size=128 lr=0.1"


def work(args: argparse.Namespace, threads: int, jobs: Any, results: Any, start: Any) -> None:
    """A process: trains networks of the queue in several threads."""
    import torch

    from lrnas.models import build  # noqa: F401  # imports timm

    torch.set_num_threads(1)
    data = load_data(args.data, args.images)
    recipe = make_recipe(f"{args.recipe} epochs={args.epochs}")

    def run() -> None:
        if args.device == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream())
        start.wait()
        while True:
            if (network := jobs.get()) is None:
                results.put(None)
                return
            try:
                results.put(train_one(network, recipe, data, args.device))
            except Exception:
                results.put({"error": traceback.format_exc()})

    workers = [threading.Thread(target=run) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def train_one(network: dict[str, Any], recipe: Recipe, data: Any, device: str) -> dict[str, Any]:
    from lrnas.training.job import Job
    from lrnas.training.loop import train

    started = time.perf_counter()
    job = Job(Architecture.from_dict(network["architecture"]), "cifar10", recipe, 0)
    result = train(job.create_model(data), data, recipe, seed=0, device=device)
    images = recipe.epochs * (len(data.train) // recipe.batch_size) * recipe.batch_size
    seconds = time.perf_counter() - started
    accuracy = result.curve[-1].val_accuracy if result.curve else 0.0
    return {"name": network["name"], "images": images, "seconds": seconds, "accuracy": accuracy, "ended": time.time()}


def measure(args: argparse.Namespace, processes: int, threads: int) -> dict[str, Any]:
    """Images per second of one setting."""
    context = multiprocessing.get_context("spawn")
    jobs, results = context.Queue(), context.Queue()
    networks = [n for n in read_networks()[args.space] if n["kind"] == "random"][: args.networks]
    for network in [*networks, *[None] * (processes * threads)]:
        jobs.put(network)
    start = context.Barrier(processes * threads + 1)
    arguments = (args, threads, jobs, results, start)
    workers = [context.Process(target=work, args=arguments, daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    start.wait(timeout=120)
    began = time.time()
    found: list[dict[str, Any]] = []
    end = 0.0
    for _ in range(len(networks) + processes * threads):
        result = results.get(timeout=args.patience)
        if result is None:
            end = end or time.time()
        elif "error" in result:
            print(result["error"])
        else:
            found.append(result)
    for worker in workers:
        worker.join()
    # a training that ended after the queue was empty counts with the share that it had done by then
    images = sum(r["images"] * min(1.0, max(0.0, 1 - (r["ended"] - end) / r["seconds"])) for r in found)
    return {
        "processes": processes,
        "threads": threads,
        "trainings": len(found),
        "seconds": round(end - began, 2),
        "images_per_second": round(images / (end - began)),
        "mean_accuracy": round(sum(r["accuracy"] for r in found) / max(1, len(found)), 4),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("settings", nargs="+", help="PROCESSESxTHREADS")
    parser.add_argument("--space", default="nin")
    parser.add_argument("--networks", type=int, default=32, help="trainings of each setting (default: 32)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each training (default: 2)")
    parser.add_argument("--recipe", default=SHORT, help=f'changes of jobs.BASE (default: "{SHORT}")')
    parser.add_argument("--data", help="folder with cifar10.npz")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=int, default=ALL_IMAGES)
    parser.add_argument("--patience", type=float, default=120, help="seconds to wait for one training")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    mps = Mps() if args.device == "cuda" and not args.no_mps else None
    try:
        for setting in args.settings:
            rows.append(measure(args, *map(int, setting.split("x"))))
            print(rows[-1], flush=True)
    finally:
        if mps:
            mps.stop()
    facts = provenance(n=1, seeds=[0], space=args.space, recipe=args.recipe, networks=args.networks, mps=bool(mps))
    write_result(args.out, facts, settings=rows)


if __name__ == "__main__":
    main()
