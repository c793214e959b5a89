"""Does training on resized crops of a pack cost accuracy, compared with decoding every image in every epoch?

    python benchmarks/pack_accuracy.py /data/flowers --network vgg-gmp-lr --epochs 30 --seeds 3

Trains the same network, with batch norm, with the same recipe in two ways: on random resized crops that are taken from
the pack, and on those of timm's loader, which decodes the original images every time. Both mirror half of the images,
and start from the same weights. Prints and writes the accuracy on the validation images for every seed.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import make_parser, write_result
from packs import OtherBatches, timm_batches

from lrnas import create_model, get_point
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import Evaluation
from lrnas.data.packed import PackedSet
from lrnas.recipes import Recipe, get_recipe
from lrnas.training.loop import evaluate, train
from lrnas.training.provenance import provenance


class DecodedEveryTime(OtherBatches):
    """Training batches of timm's loader, and validation images of the pack."""

    def __init__(self, data: PackedSet, root: Path, recipe: Recipe, device: torch.device) -> None:
        batches = timm_batches(data, root, recipe.batch_size, device, recipe.min_area)
        super().__init__(data, batches)
        self.data = data

    def eval_batches(self, split: Any, recipe: Recipe, device: torch.device, cache: Path | None) -> Evaluation:
        return self.data.eval_batches(self.data.val, recipe, device, cache)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder with train/, and val/ and test/")
    parser.add_argument("--network", default="vgg-gmp-lr")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--min-area", type=float, default=0.35)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="FIELD=VALUE", help="changes of the recipe fast")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not (options.folder / "val").is_dir() or not (options.folder / "test").is_dir():
        parser.error("the folder needs val/ and test/: timm's loader trains on all images of train/")
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as cache:
        data = load_set(f"folder:{options.folder}", cache, image_size=options.size)
        assert isinstance(data, PackedSet)
        architecture = dataclasses.replace(get_point(options.network).architecture, batch_norm=True)
        changes = {"epochs": options.epochs, "min_area": options.min_area}
        changes |= dict(change.split("=", 1) for change in options.set)
        size, number = data.image_size, len(data.train)
        recipe = get_recipe("fast", architecture.backbone, size, number, changes, own_crops=True)
        accuracies: dict[str, list[float]] = {"pack": [], "decoded every time": []}
        for seed in range(options.seeds):
            for way, values in accuracies.items():
                training = data if way == "pack" else DecodedEveryTime(data, options.folder, recipe, device)
                torch.manual_seed(seed)
                model = create_model(architecture, data.num_classes, 3, drop_rate=recipe.drop_rate, init=recipe.init)
                result = train(model, training, recipe, seed=seed, device=device)
                values.append(evaluate(model, data.val, data, recipe, device=device)[1])
                print(f"seed {seed}: {way:20} {values[-1]:.2%} ({result.status})", flush=True)
    differences = [pack - decoded for pack, decoded in zip(*accuracies.values(), strict=True)]
    for way, values in {**accuracies, "difference": differences}.items():
        deviation = statistics.stdev(values) if len(values) > 1 else float("nan")
        print(f"{way:20} {statistics.mean(values):.2%}, standard deviation {deviation:.2%}, n = {len(values)}")
    facts = provenance(
        seeds=list(range(options.seeds)), n=options.seeds, network=f"{options.network}, batch norm", size=options.size
    )
    images = {"folder": options.folder.name, "training": len(data.train), "validation": len(data.val)}
    write_result(options.out, facts, recipe=recipe.to_dict(), images=images, validation_accuracies=accuracies)


if __name__ == "__main__":
    main()
