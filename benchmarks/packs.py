"""How fast are images packed, and how fast do networks train on packed images?

    python benchmarks/packs.py --images 20000 --out results/packs.json
    python benchmarks/packs.py --device cpu --images 100 --size 32 --batch 8 --networks nin nin-c3-lr

The benchmark writes JPEGs of about 500×375 pixels, cut out of photographs (default: the two of scikit-learn). After
200 of them they are repeated, as links. It measures, on the same machine and one after another:

- Packing as pixels and as JPEGs, and bytes per image. It is compared with processes on all cores that only decode the
  JPEGs, with PIL as timm does, and with torchvision as packing does. Each is measured several times in turn; all files
  are in memory, because they were just written.
- What resized crops of the pack lose: their difference from the same crops of the original images, smoothed before they
  are made smaller, as timm makes them. For comparison, that between timm's two ways of interpolation, which it chooses
  from at random.
- Training from the pack: in GPU memory, from the file batch by batch, from JPEGs, and with random resized crops.
  Compared with the same loop on one batch of random numbers, and on batches of timm's loader with one process per core.

Rates of training are the median over epochs, without evaluation and without the first epoch.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from common import make_parser, write_result
from PIL import Image
from timm.data import create_dataset, create_loader
from torch import Tensor

from lrnas import create_model, get_point
from lrnas.data.catalog import load_set
from lrnas.data.crops import gather, make_places, random_resized_boxes
from lrnas.data.in_memory import DataSet, Evaluation
from lrnas.data.names import PACKS
from lrnas.data.packed import PackedSet
from lrnas.data.sources import read_pixels_quickly, read_rgb
from lrnas.layers.layout import fastest_layout
from lrnas.recipes import Recipe, get_recipe
from lrnas.training.loop import train
from lrnas.training.provenance import provenance

PHOTOGRAPHS = sorted((Path(sklearn.__file__).parent / "datasets" / "images").glob("*.jpg"))
CLASSES, DISTINCT = 10, 200
CORES = len(os.sched_getaffinity(0))


def write_images(root: Path, photographs: Sequence[Path], number: int) -> list[Path]:
    """Write a data set in folders, and return the files of its training images."""
    rng = np.random.default_rng(0)
    opened = [Image.open(file).convert("RGB") for file in photographs]
    written: list[Path] = []
    counts = {"train": number, "val": max(CLASSES, number // 20), "test": CLASSES}
    for split, count in counts.items():
        for label in range(CLASSES):
            (root / split / f"class{label}").mkdir(parents=True, exist_ok=True)
        for i in range(count):
            file = root / split / f"class{i % CLASSES}" / f"{i:07}.jpg"
            if len(written) < DISTINCT:
                photo = opened[i % len(opened)]
                columns, rows = rng.integers(480, 521), rng.integers(360, 391)
                left, top = rng.integers(0, photo.width - columns + 1), rng.integers(0, photo.height - rows + 1)
                photo.crop((left, top, left + columns, top + rows)).save(file, quality=90)
                written.append(file)
            else:
                os.link(written[i % len(written)], file)
    return sorted((root / "train").glob("*/*.jpg"))


def decode_with_pil(file: str) -> None:
    with Path(file).open("rb") as stream:
        read_rgb(stream)


def decode(file: str) -> None:
    with Path(file).open("rb") as stream:
        read_pixels_quickly(stream)


def bare_loop(function: Callable[[Any], None], tasks: Sequence[Any]) -> float:
    """Images per second of a pool of processes that return nothing."""
    with multiprocessing.Pool(CORES, torch.set_num_threads, (1,)) as pool:
        pool.map(function, tasks[:CORES])  # all processes have started
        started = time.perf_counter()
        for _ in pool.imap_unordered(function, tasks, chunksize=32):
            pass
        return len(tasks) / (time.perf_counter() - started)


def packing_rate(name: str, cache: Path, size: int, kind: str) -> tuple[float, float]:
    """Images per second, and bytes per image."""
    for file in (cache / "packs").glob("*"):
        if ("-jpeg" in file.name) == (kind == "jpeg"):
            file.unlink()
    data = load_set(name, cache, image_size=size, pack=kind)
    assert isinstance(data, PackedSet)
    number = sum(map(len, (data.train, data.val, data.test())))
    started = time.perf_counter()
    data.prepare()
    return number / (time.perf_counter() - started), int(data.pack.open().bounds[-1]) / number


def crop_differences(data: PackedSet, files: Sequence[str], number: int = 200) -> dict[str, float]:
    """Mean absolute differences of crops of at least 35 % of the area, in grey levels (0 to 255)."""
    pack, size = data.pack.open(), data.image_size
    where = data.train.where[:number]
    table = pack.table[:, pack.first("train") + where]
    _, rows, columns = torch.from_numpy(table)
    boxes = random_resized_boxes(rows, columns, 0.35, torch.Generator().manual_seed(0))
    places = make_places(table, np.zeros(len(where), np.int64), boxes, torch.zeros(len(where), dtype=torch.int64))
    crops = gather(torch.tensor(pack.pixels[: int(table[0, -1] + rows[-1] * columns[-1])]), places, size, resize=True)
    packed, interpolated = [], []
    for i, crop in enumerate(crops.numpy()):
        image = Image.open(files[int(where[i])]).convert("RGB")
        top, left, height, width = (float(values[i]) for values in boxes)
        down, across = image.height / float(rows[i]), image.width / float(columns[i])
        box = (left * across, top * down, (left + width) * across, (top + height) * down)
        expected, other = (
            np.asarray(image.resize((size, size), way, box), dtype=np.float32)
            for way in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
        )
        packed.append(np.abs(crop - expected).mean())
        interpolated.append(np.abs(other - expected).mean())
    return {"pack": float(np.mean(packed)), "bicubic": float(np.mean(interpolated))}


class OtherBatches(DataSet):
    """A data set with the same images, whose training batches come from elsewhere."""

    own_crops, channels = True, 3

    def __init__(self, data: PackedSet, next_batch: Callable[[], tuple[Tensor, Tensor]] | None = None) -> None:
        self.name = self.identity = data.name
        self.classes, self.image_size = data.classes, data.image_size
        self.train, self.val, self._test = data.train, data.val, data.test()
        self.next_batch = next_batch

    num_bytes = 0

    def joined(self) -> DataSet:
        raise NotImplementedError

    def eval_batches(self, split: Any, recipe: Recipe, device: torch.device, cache: Path | None) -> Evaluation:
        size = self.image_size
        return [(torch.randn(2, 3, size, size, device=device), torch.zeros(2, dtype=torch.int64, device=device))]

    def batches(self, recipe: Recipe, device: torch.device, cache: Path | None) -> tuple[Any, Evaluation]:
        return _StaticBatch(self, recipe, device), self.eval_batches(None, recipe, device, cache)


class _StaticBatch:
    """Training batches in one tensor: random numbers, or what `next_batch` returns."""

    def __init__(self, data: OtherBatches, recipe: Recipe, device: torch.device) -> None:
        self.device, self.batch_size, self.next_batch = device, recipe.batch_size, data.next_batch
        self.steps = len(data.train) // self.batch_size
        on_gpu = device.type == "cuda"
        images = torch.randn(self.batch_size, 3, data.image_size, data.image_size, device=device)
        self.images = images.to(torch.bfloat16 if on_gpu else torch.float32, memory_format=fastest_layout(device))
        self.crop = data.image_size
        self.labels = torch.randint(CLASSES, (self.batch_size,), device=device)
        self.places = torch.arange(self.steps * self.batch_size, device=device)[None]

    def start_epoch(self, generator: torch.Generator) -> None:
        pass

    def load(self, step: int) -> None:
        if self.next_batch is not None:
            images, labels = self.next_batch()
            self.images.copy_(images)
            self.labels.copy_(labels)
            if self.device.type == "cuda":  # timm made them on its own stream, which would use their memory again
                for tensor in (images, labels):
                    tensor.record_stream(torch.cuda.current_stream())

    def take(self, places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.images, self.labels


def timm_batches(
    data: PackedSet, root: Path, batch: int, device: torch.device, min_area: float = 0.08
) -> Callable[[], tuple[Tensor, Tensor]]:
    """A function that returns the next batch of timm's loader, which begins again at its end."""
    labels = {name: label for label, name in enumerate(data.classes)}  # by itself, timm sorts class10 after class2
    loader = create_loader(
        create_dataset("", str(root / "train"), is_training=True, class_map=labels),
        input_size=(3, data.image_size, data.image_size),
        batch_size=batch,
        is_training=True,
        use_prefetcher=device.type == "cuda",
        scale=(min_area, 1.0),
        hflip=0.5,
        color_jitter=None,
        num_workers=CORES,
        device=device,
        persistent_workers=True,
    )

    def endless() -> Any:
        while True:
            yield from loader

    batches = endless()
    return lambda: next(batches)


def training_rate(name: str, data: DataSet, recipe: Recipe, device: torch.device) -> float:
    """Images per second, as the median over all epochs but the first."""
    torch.manual_seed(0)
    model = create_model(get_point(name).architecture, CLASSES, 3)
    result = train(model, data, recipe, seed=0, device=device)
    assert result.status == "completed", f"{name} {result.status}"
    return statistics.median(report.images_per_second for report in result.curve[1:])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--photographs", nargs="+", type=Path, default=PHOTOGRAPHS)
    parser.add_argument("--images", type=int, default=20_000, help="training images (default: 20000)")
    parser.add_argument("--size", type=int, default=224, help="rows and columns of the input (default: 224)")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3, help="how often packing is measured (default: 3)")
    parser.add_argument("--networks", nargs="*", default=["vgg-gmp", "vgg-gmp-lr"], help="none: only packing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help="where images and packs are written (default: a temporary folder)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        root, cache = Path(scratch, "images"), Path(scratch, "cache")
        files = [str(file) for file in write_images(root, options.photographs, options.images)]
        name = f"folder:{root}"

        packing: dict[str, list[float]] = {
            "decode with PIL": [],
            "decode": [],
            **{f"pack, {kind}": [] for kind in PACKS},
        }
        sizes = {}
        for _ in range(options.repeats):
            packing["decode with PIL"].append(bare_loop(decode_with_pil, files))
            packing["decode"].append(bare_loop(decode, files))
            for kind in PACKS:
                rate, sizes[kind] = packing_rate(name, cache, options.size, kind)
                packing[f"pack, {kind}"].append(rate)
        for what, rates in packing.items():
            listed = ", ".join(f"{rate:,.0f}" for rate in rates)
            print(f"{what:18} {statistics.median(rates):8,.0f} images/s on {CORES} cores ({listed})", flush=True)
        print(*(f"{kind}: {size:,.0f} bytes per image" for kind, size in sizes.items()), sep="\n", flush=True)

        whole = load_set(name, cache, image_size=options.size, image_memory=1.0)
        jpegs = load_set(name, cache, image_size=options.size, pack="jpeg")
        in_parts = load_set(name, cache, image_size=options.size, image_memory=0.0)
        assert isinstance(whole, PackedSet)
        differences = crop_differences(whole, files)
        print(
            f"resized crops differ from those of the originals by {differences['pack']:.2f} grey levels; "
            f"bilinear and bicubic ones by {differences['bicubic']:.2f}",
            flush=True,
        )
        changes = {"batch_size": options.batch, "epochs": options.epochs, "lr": 1e-4}
        rows: list[dict[str, Any]] = []
        for network in options.networks:
            recipe = get_recipe("fast", network, options.size, len(whole.train), changes, norms=False, own_crops=True)
            resizing = recipe.changed({"min_area": 0.35})
            timm_loader = timm_batches(whole, root, options.batch, device)
            kinds: dict[str, tuple[DataSet, Recipe]] = {
                "random numbers": (OtherBatches(whole), recipe),
                "pack": (whole, recipe),
                "pack, resized crops": (whole, resizing),
                "pack, batch by batch": (in_parts, recipe),
                "pack, batch by batch, resized crops": (in_parts, resizing),
                "pack of JPEGs": (jpegs, recipe),
                "pack of JPEGs, resized crops": (jpegs, resizing),
                "timm's loader": (OtherBatches(whole, timm_loader), recipe),
            }
            rates = {}
            for kind, (data, changed) in kinds.items():
                rates[kind] = training_rate(network, data, changed, device)
                share = rates[kind] / rates["random numbers"]
                rows.append({"network": network, "images": kind, "images_per_second": round(rates[kind], 1)})
                print(f"{network:12} {kind:36} {rates[kind]:9,.1f} images/s, {share:6.1%}", flush=True)
    facts = provenance(seeds=[0], n=options.epochs - 1, batch=options.batch, size=options.size, images=options.images)
    rounded = {what: [round(rate, 1) for rate in rates] for what, rates in packing.items()}
    measured = {"packing_images_per_second": rounded, "bytes_per_image": sizes, "crop_differences": differences}
    write_result(options.out, facts, cores=CORES, **measured, training=rows)


if __name__ == "__main__":
    main()
