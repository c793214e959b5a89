"""Microseconds and GPU kernels of a captured training step: the recipe `fast`, random images.

    python benchmarks/step.py nin nin-c3-lr my_network.json --batch 128 --top 15

A network is a name of `lrnas models`, which gets batch norm, or a JSON file. To compare two versions of the code, run
this with the PYTHONPATH of each. `--top` prints the kernels that take the most time.
"""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import make_parser, write_result
from lrnas.arch.architecture import Architecture
from lrnas.layers.accelerate import fused
from lrnas.models.paper import named_networks
from lrnas.recipes import get_recipe
from lrnas.training.job import Images
from lrnas.training.provenance import provenance
from lrnas.training.side_by_side import for_random_images, make_training

STEPS = 3
"""Number of steps in the profile."""


def find_network(name: str) -> Architecture:
    """A network by its name, with batch norm, or from a JSON file."""
    if name.endswith(".json"):
        return Architecture.load(name)
    return dataclasses.replace(named_networks()[name], batch_norm=True)


def measure(architecture: Architecture, batch: int, size: int) -> dict[str, Any]:
    """Time the captured step of a network, and count the kernels of the same step without capture."""
    recipe = get_recipe("fast", architecture.backbone, 32, 45_000, {"batch_size": batch})
    recipe = for_random_images(recipe)
    training = make_training(architecture, recipe, Images("random", "random", 3, size, 10), "cuda", batch)
    training.measure()
    with fused(training.step.model):
        training.step.position.zero_()
        with torch.cuda.stream(training.stream), profile(activities=[ProfilerActivity.CUDA]) as profiled:
            for _ in range(STEPS):
                training.step._step()
            torch.cuda.synchronize()
    counts: collections.Counter[str] = collections.Counter()
    times: collections.Counter[str] = collections.Counter()
    for event in profiled.events():
        if event.device_type == DeviceType.CUDA and not event.name.startswith("Optimizer"):
            counts[event.name] += 1
            times[event.name] += event.device_time
    return {
        "microseconds": round(1e6 * training.seconds),
        "images_per_second": round(batch / training.seconds),
        "kernels": round(counts.total() / STEPS),
        "microseconds_in_kernels": round(times.total() / STEPS),
        "top": [
            {"kernel": name, "number": counts[name] / STEPS, "microseconds": round(total / STEPS, 1)}
            for name, total in times.most_common()
        ],
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="rows and columns of the images (default: 32)")
    parser.add_argument("--top", type=int, default=0, help="number of kernels to show (default: none)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    found = {}
    for name in options.networks:
        architecture = find_network(name)
        result = measure(architecture, options.batch, options.size)
        shown = {key: value for key, value in result.items() if key != "top"}
        print(name, ", ".join(f"{key.replace('_', ' ')} {value:,}" for key, value in shown.items()), flush=True)
        for row in result["top"][: options.top]:
            print(f"  {row['number']:5.1f} × {row['microseconds']:7.1f} us in all  {row['kernel'][:100]}")
        found[name] = {"architecture": architecture.to_dict(), **result, "top": result["top"][: options.top]}
    if options.out:
        write_result(options.out, provenance(seeds=[0], n=1), batch=options.batch, size=options.size, networks=found)


if __name__ == "__main__":
    main()
