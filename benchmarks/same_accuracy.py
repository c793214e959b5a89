"""Does a network reach the same accuracy with the fused kernels as without them?

    python benchmarks/same_accuracy.py --data cifar10 --networks nin-c3-lr vgg-gmp-lr-join-wfull --seeds 3

Every network is trained over several seeds, with the kernels and with LRNAS_KERNELS=off, by the recipe `fast` and with
batch norm. The validation accuracies of the last epoch are compared. Needs a GPU. The results are written to
results/same_accuracy.json.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, make_parser, write_result

from lrnas import create_model, get_point
from lrnas.data.catalog import ImageSet, load_set
from lrnas.recipes import get_recipe
from lrnas.training.loop import train
from lrnas.training.provenance import provenance


def last_accuracy(name: str, data: ImageSet, epochs: int, seed: int, device: str) -> float:
    architecture = dataclasses.replace(get_point(name).architecture, batch_norm=True)
    recipe = get_recipe("fast", architecture.backbone, data.image_size, len(data.train), {"epochs": epochs})
    torch.manual_seed(seed)
    model = create_model(architecture, data.num_classes, data.channels, drop_rate=recipe.drop_rate)
    accuracy = train(model, data, recipe, seed=seed, device=device).curve[-1].val_accuracy
    assert accuracy is not None
    return accuracy


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--networks", nargs="+", default=["nin-c3-lr", "vgg-gmp-lr-join-wfull"])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    data = load_set(args.data, args.data_dir, min_size=32)
    assert isinstance(data, ImageSet)
    facts = provenance(seeds=list(range(args.seeds)), data=args.data, epochs=args.epochs)
    rows: list[dict[str, Any]] = []
    for name in args.networks:
        for kernels in ("on", "off"):
            os.environ["LRNAS_KERNELS"] = kernels
            found = [last_accuracy(name, data, args.epochs, seed, args.device) for seed in range(args.seeds)]
            row = {"network": name, "kernels": kernels, "accuracies": found, "mean": statistics.mean(found)}
            rows.append(row | {"sd": statistics.stdev(found) if len(found) > 1 else None})
            listed = ", ".join(f"{100 * accuracy:.2f}" for accuracy in found)
            print(f"{name:22s} kernels {kernels:3s} {100 * row['mean']:.2f} % ({listed})", flush=True)
            write_result(args.out / "same_accuracy.json", facts, rows=rows)


if __name__ == "__main__":
    main()
