"""How many images per second do several processes train on one GPU, without and with CUDA MPS?

    python -m benchmarks.side_by_side 1 4 8 --space nin --data FOLDER --out results/side_by_side.json

Each setting trains the same networks, the first random ones of the table, for a few epochs each. Processes take them
from one queue. The time runs from the moment when all processes are ready (imports done, images loaded) until the first
of them finds the queue empty. So it includes building, capturing and validation, but no waiting at the end. A first
pass, which is not counted, compiles the kernels.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import time
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.common import make_parser, write_result
from benchmarks.table.jobs import make_recipe
from benchmarks.table.networks import Network, read_networks
from benchmarks.table.train import ALL_IMAGES, load_data
from lrnas.arch.architecture import Architecture
from lrnas.training.gpu_sharing import shared_gpus
from lrnas.training.provenance import provenance

SHORT = "clip=2 batch_size=128 lr=0.1"


def work(args: argparse.Namespace, pipe: Connection) -> None:
    """A process: says when it is ready, and trains the networks that come through the pipe."""
    import torch

    from lrnas.models import build  # noqa: F401  # imports timm

    torch.set_num_threads(1)
    data = load_data(args.data, args.images)
    pipe.send(None)
    while True:
        pipe.send(train_one(pipe.recv(), data, args))


def train_one(network: Network, data: Any, args: argparse.Namespace) -> dict[str, float]:
    from lrnas.training.job import Job
    from lrnas.training.loop import train

    started = time.perf_counter()
    recipe = make_recipe(f"{args.recipe} epochs={args.epochs}")
    job = Job(Architecture.from_dict(network["architecture"]), "cifar10", recipe, 0)
    result = train(job.create_model(data), data, recipe, seed=0, device=args.device)
    images = recipe.epochs * (len(data.train) // recipe.batch_size) * recipe.batch_size
    accuracy = result.curve[-1].val_accuracy if result.curve else 0.0
    seconds = time.perf_counter() - started
    return {"images": images, "seconds": seconds, "ended": time.time(), "accuracy": accuracy}


def measure(args: argparse.Namespace, processes: int) -> dict[str, float]:
    """Images per second of a number of processes. An error in one of them ends all."""
    networks = [network for network in read_networks()[args.space] if network["kind"] == "random"][: args.networks]
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    found: list[dict[str, float]] = []
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            context.Process(target=work, args=(args, theirs), daemon=True).start()
            theirs.close()
            pipes.append(ours)
        num_ready = 0
        while num_ready < processes:
            num_ready += sum(pipe.recv() is None for pipe in wait(pipes))
        began, queue = time.time(), iter(networks)
        for pipe in pipes:
            pipe.send(next(queue))
        while len(found) < len(networks):
            for pipe in wait(pipes):
                found.append(pipe.recv())
                if (network := next(queue, None)) is not None:
                    pipe.send(network)
    except (EOFError, OSError):
        raise SystemExit("a process has ended; the error that it raised, if any, is shown above") from None
    finally:
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
    # the first process without work; trainings that ended later count with the share that they had done by then
    end = sorted(training["ended"] for training in found)[-processes]
    images = sum(each["images"] * min(1.0, max(0.0, 1 - (each["ended"] - end) / each["seconds"])) for each in found)
    return {
        "seconds": round(end - began, 2),
        "images_per_second": round(images / (end - began)),
        "mean_accuracy": round(sum(each["accuracy"] for each in found) / len(found), 4),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("processes", nargs="+", type=int, help="numbers of processes")
    parser.add_argument("--space", default="nin")
    parser.add_argument("--networks", type=int, default=32, help="trainings of each setting (default: 32)")
    parser.add_argument("--epochs", type=int, default=2, help="epochs of each training (default: 2)")
    parser.add_argument("--recipe", default=SHORT, help=f'changes of jobs.BASE (default: "{SHORT}")')
    parser.add_argument("--data", help="folder with cifar10.npz")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu for a trial without MPS (default: cuda)")
    parser.add_argument("--images", type=int, default=ALL_IMAGES, help="for tests: use only so many training images")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if max(args.processes) > args.networks:
        parser.error(f"--networks must be at least the number of processes; got {args.networks}; give more")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by a signal"))  # an exception, which ends all processes
    measure(args, max(args.processes))
    rows = []
    for processes in args.processes:
        row: dict[str, Any] = {"processes": processes, "without_mps": measure(args, processes)}
        if args.device == "cuda":
            with shared_gpus() as reason:
                if reason:
                    raise SystemExit(f"CUDA MPS cannot be used: {reason}")
                row["with_mps"] = measure(args, processes)
            rates = [row[name]["images_per_second"] for name in ("with_mps", "without_mps")]
            row["ratio"] = round(rates[0] / rates[1], 3)
        print(row, flush=True)
        rows.append(row)
    facts = provenance(n=1, seeds=[0], space=args.space, recipe=args.recipe, networks=args.networks, epochs=args.epochs)
    write_result(args.out, facts, settings=rows)


if __name__ == "__main__":
    main()
