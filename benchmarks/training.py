"""How many images per second does the training loop of lrnas process, compared with other loops?

    python benchmarks/training.py --data cifar10 --batch 512 --networks nin nin-c3-lr

For every network, with and without batch norm: the loop of lrnas (`lrnas.training.loop`); a plain eager loop; the
same with torch.compile; and a plain loop with timm's loader (workers, collation, prefetcher). All train in bf16 on a
GPU and in fp32 on a CPU, with maps in the layout that is fastest there. The results are written to
results/training_speed.json.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from common import RESULTS, make_parser, write_result
from PIL import Image
from timm.data import create_loader
from torch import Tensor, nn

from lrnas import Architecture, create_model, get_point
from lrnas.data.catalog import ImageSet, load_set
from lrnas.layers.layout import fastest_layout
from lrnas.recipes import Recipe, get_recipe
from lrnas.training.loop import train
from lrnas.training.provenance import provenance

Batch = tuple[Tensor, Tensor]


def make_model(architecture: Architecture, data: ImageSet, recipe: Recipe, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    model = create_model(architecture, data.num_classes, data.channels, drop_rate=recipe.drop_rate)
    return model.to(device, memory_format=fastest_layout(device))


def this_loop(architecture: Architecture, data: ImageSet, recipe: Recipe, device: torch.device) -> tuple[float, float]:
    """Images per second, and seconds before the first step."""
    result = train(make_model(architecture, data, recipe, device), data, recipe, seed=0, device=device)
    first = result.curve[0]
    steps_of_first = len(data.train) / first.images_per_second
    waiting = result.start_seconds + max(0.0, first.seconds - steps_of_first)
    return statistics.median(report.images_per_second for report in result.curve), waiting


def plain_loop(
    architecture: Architecture,
    data: ImageSet,
    recipe: Recipe,
    device: torch.device,
    epochs: Callable[[], Iterable[Iterator[Batch]]],
    compiled: bool = False,
) -> tuple[float, float]:
    """The simplest loop: a batch, a forward pass, a backward pass, a step of the optimizer."""
    model = make_model(architecture, data, recipe, device).train()
    run = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=device.type == "cuda")
    rates: list[float] = []
    started, waiting = time.perf_counter(), 0.0
    for epoch in epochs():
        images_seen, start = 0, time.perf_counter()
        for images, labels in epoch:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = F.cross_entropy(run(images).float(), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if not rates and not waiting:
                synchronize(device)
                waiting = time.perf_counter() - started
                start = time.perf_counter()
                continue
            images_seen += len(labels)
        synchronize(device)
        rates.append(images_seen / (time.perf_counter() - start))
    return statistics.median(rates), waiting


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def on_device(data: ImageSet, recipe: Recipe, device: torch.device) -> Callable[[], Iterable[Iterator[Batch]]]:
    """Shuffled batches of the whole data set, as normalised floats on the device, without augmentation."""
    pixels = data.train.images.to(device).permute(0, 3, 1, 2).float().div(128).sub(1)
    labels = data.train.labels.to(device)
    layout = fastest_layout(device)

    def batches() -> Iterator[Batch]:
        order = torch.randperm(len(labels), device=device)
        for part in order.split(recipe.batch_size):
            if len(part) == recipe.batch_size:
                yield pixels[part].contiguous(memory_format=layout), labels[part]

    return lambda: (batches() for _ in range(recipe.epochs))


class Pictures(torch.utils.data.Dataset[tuple[Image.Image, int]]):
    """The data set for timm's loader: PIL images and a transform."""

    def __init__(self, data: ImageSet) -> None:
        self.images = [np.ascontiguousarray(image) for image in data.train.images.numpy()]
        self.labels = data.train.labels.tolist()
        self.transform: Callable[[Image.Image], object] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        image = self.images[index]
        picture: object = Image.fromarray(image if image.shape[2] == 3 else image.repeat(3, axis=2))
        return self.transform(picture) if self.transform else picture, self.labels[index]  # type: ignore[return-value,arg-type]


def timm_loader(
    data: ImageSet, recipe: Recipe, device: torch.device, workers: int
) -> Callable[[], Iterable[Iterator[Batch]]]:
    loader = create_loader(
        Pictures(data),
        input_size=(3, data.image_size, data.image_size),
        batch_size=recipe.batch_size,
        is_training=True,
        use_prefetcher=device.type == "cuda",
        no_aug=False,
        scale=(0.8, 1.0),
        hflip=0.5,
        color_jitter=None,
        num_workers=workers,
        device=device,
        persistent_workers=workers > 0,
    )

    def batches() -> Iterator[Batch]:
        for images, labels in loader:
            yield images[:, : data.channels].contiguous(memory_format=fastest_layout(device)), labels

    return lambda: (batches() for _ in range(recipe.epochs))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--networks", nargs="+", default=["nin", "nin-c3-lr"])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--loader-workers", type=int, default=8)
    parser.add_argument("--skip", nargs="*", default=[], help="loops to leave out: eager, compile, timm")
    parser.add_argument("--out", type=Path, default=RESULTS / "training_speed.json")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_set(options.data, options.data_dir, min_size=8)
    changes = {"batch_size": options.batch, "epochs": options.epochs, "lr": 0.01}
    rows = []
    for name in options.networks:
        for batch_norm in (False, True):
            architecture = dataclasses.replace(get_point(name).architecture, batch_norm=batch_norm)
            recipe = get_recipe("fast", "nin", data.image_size, len(data.train), changes)
            stored = on_device(data, recipe, device)
            loops = {
                "lrnas": lambda a=architecture, r=recipe: this_loop(a, data, r, device),
                "eager": lambda a=architecture, r=recipe, s=stored: plain_loop(a, data, r, device, s),
                "compile": lambda a=architecture, r=recipe, s=stored: plain_loop(a, data, r, device, s, compiled=True),
                "timm": lambda a=architecture, r=recipe: plain_loop(
                    a, data, r, device, timm_loader(data, r, device, options.loader_workers)
                ),
            }
            for loop in [loop for loop in loops if loop not in options.skip]:
                rate, waiting = loops[loop]()
                row = {"network": name, "batch_norm": batch_norm, "loop": loop, "images_per_second": round(rate)}
                rows.append({**row, "seconds_before_the_first_step": round(waiting, 2)})
                print(f"{name:10} batch norm {batch_norm!s:5} {loop:8} {rate:10,.0f} images/s, waited {waiting:.1f} s")
    facts = provenance(seeds=[0], n=options.epochs, batch=options.batch, data=options.data)
    write_result(options.out, facts, median_over_epochs=rows)


if __name__ == "__main__":
    main()
