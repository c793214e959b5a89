"""How small may batches be if there are few training images?

    python benchmarks/small_batches.py --out results/small_batches.json

Validation accuracy on digits (8×8 pixels) of a network of the space `nin`, a quarter of its filters as k×1 and 1×k, by
the number of training images and the size of batches. Every seed draws other images. Learning rates depend on the batch
as in `lrnas.recipes`: on its square root for networks with norms, and not at all for others.
"""

from __future__ import annotations

import copy
from pathlib import Path
from statistics import mean, stdev

import torch
from common import make_parser, write_result

from lrnas import create_model
from lrnas.data.catalog import ImageSet, load_set
from lrnas.data.in_memory import Split
from lrnas.recipes import get_recipe
from lrnas.spaces.space import load_space
from lrnas.training.loop import train
from lrnas.training.provenance import provenance

NETWORK, SIZE, MANY = "lr-x0.25", 8, 10**6
BATCHES = (1, 2, 4, 8, 16)


def accuracy(data: ImageSet, number: int, batch: int, seed: int, epochs: int, *, norms: bool) -> float:
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))[:number]
    few = copy.copy(data)
    few.train = Split(data.train.images[order], data.train.labels[order])
    usual = get_recipe("fast", "nin", SIZE, MANY, norms=norms)
    rate = usual.lr * (batch / usual.batch_size) ** 0.5 if norms else usual.lr
    changes = {"batch_size": batch, "lr": rate, "epochs": epochs}
    torch.manual_seed(seed)
    space = load_space("nin", batch_norm=norms)
    model = create_model(space.uniform[NETWORK], 10, data.channels, init=usual.init)
    result = train(model, few, get_recipe("fast", "nin", SIZE, number, changes, norms=norms), seed=seed)
    last = result.curve[-1].val_accuracy if result.curve else None
    return 100 * (last or 0.0)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--numbers", type=int, nargs="+", default=[51, 100])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data, rows = load_set("digits"), []
    assert isinstance(data, ImageSet)
    for norms in (True, False):
        for number in options.numbers:
            for batch in BATCHES:
                found = [
                    accuracy(data, number, batch, seed, options.epochs, norms=norms) for seed in range(options.seeds)
                ]
                row = {
                    "images": number,
                    "batch_norm": norms,
                    "batch": batch,
                    "accuracies": [round(x, 1) for x in found],
                }
                rows.append(row)
                result = f"{mean(found):.1f} ± {stdev(found):.1f} %"
                print(f"{number} images, norms {norms}, batches of {batch}: {result}", flush=True)
    facts = {"network": NETWORK, "epochs": options.epochs, "seeds": list(range(options.seeds)), "n": options.seeds}
    write_result(options.out, provenance(**facts), rows=rows)


if __name__ == "__main__":
    main()
