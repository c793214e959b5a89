"""Data sets in files: crops, determinism, unreadable images, training and the single use of test images."""

import importlib.util
import json
import logging
import math
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from pictures import spoil, write_set
from PIL import Image
from torch import nn

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.data import packed
from lrnas.data.catalog import load_set
from lrnas.data.crops import (
    DecodedBatches,
    NextBatches,
    WholePack,
    decode_jpegs,
    gather,
    make_places,
    normalise,
    random_boxes,
    random_resized_boxes,
)
from lrnas.data.folders import FolderSplit
from lrnas.data.in_memory import epoch_generator
from lrnas.data.packed import PackedSet, PackOnDevices
from lrnas.data.shared_copy import CannotShare
from lrnas.errors import DataError, UnreadableImages
from lrnas.models.paper import get_point
from lrnas.recipes import InvalidRecipe, Recipe, get_recipe
from lrnas.training import reproduce as module
from lrnas.training.job import Job
from lrnas.training.loop import EpochReport, evaluate, train

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=3, batch_size=8, lr=0.05)


def load(root: Path, pack: str | None = None) -> PackedSet:
    data = load_set(f"folder:{root}", root.parent / "cache", image_size=7, pack=pack)
    assert isinstance(data, PackedSet)
    return data


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_set(tmp_path / "set", {"train": 12, "val": 4, "test": 4}, size=7)


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(200, 3)
    )


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(tensor, weights(second)[name]) for name, tensor in weights(first).items())


def epoch(data: PackedSet, number: int, recipe: Recipe = RECIPE) -> tuple[torch.Tensor, torch.Tensor]:
    """All images and labels of an epoch, in order."""
    batches, _ = data.batches(recipe, CPU, None)
    batches.start_epoch(epoch_generator(5, number))
    images, labels = [], []
    for step in range(batches.steps):
        batches.load(step)
        columns = slice(step * batches.batch_size, (step + 1) * batches.batch_size)
        part, classes = batches.take(batches.places[:, columns], torch.float32)
        images.append(part)
        labels.append(classes)
    return torch.cat(images), torch.cat(labels)


def test_an_epoch_has_every_image_once(pictures: Path) -> None:
    batches, _ = load(pictures).batches(RECIPE.changed({"batch_size": 9}), CPU, None)
    batches.start_epoch(epoch_generator(5, 0))
    first_pixels = batches.images[0]
    shown = np.searchsorted(first_pixels, batches.places[0].numpy(), side="right") - 1
    assert sorted(shown) == list(range(36)) != shown.tolist()
    images, labels = epoch(load(pictures), 0)
    assert images.shape == (32, 3, 7, 7) and labels.dtype == torch.int64  # 36 images are 4 whole batches
    brightest = images.mean((2, 3)).argmax(1)
    assert torch.equal(2 - brightest, labels)  # blue, green, red are channels 2, 1, 0
    again = epoch(load(pictures), 0)
    assert torch.equal(again[0], images) and torch.equal(again[1], labels)
    assert not torch.equal(epoch(load(pictures), 1)[0], images)


def test_crops_are_those_of_timm(tmp_path: Path) -> None:
    """Pixel by pixel: resized and cropped by timm and torchvision, then normalised. Some differ by a grey level."""
    from timm.data import create_transform
    from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    from timm.data.transforms import ResizeKeepRatio
    from torchvision.transforms import functional

    rng = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        for name in ("a", "b"):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            for i in range(5):
                rows, columns = rng.integers(30, 100, 2)
                pixels = rng.integers(0, 256, (rows // 4, columns // 4, 3), dtype=np.uint8)
                image = Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BICUBIC)
                image.save(tmp_path / "set" / split / name / f"{i}.jpg")
    data = load_set(f"folder:{tmp_path / 'set'}", tmp_path, image_size=28)
    originals = [Image.open(file) for file in sorted((tmp_path / "set" / "train").glob("*/*"))]
    mean, std = (torch.tensor(values)[:, None, None] for values in (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD))

    prepare = create_transform(28, crop_pct=0.875, interpolation="bilinear")
    expected = torch.stack([prepare(image) for image in originals])
    ((images, labels),) = data.eval_batches(data.train, Recipe(), CPU, None)
    level = 1 / 255 / min(IMAGENET_DEFAULT_STD)
    torch.testing.assert_close(images, expected, atol=1.01 * level, rtol=0)
    assert (images - expected).abs().mean() < 0.05 * level
    assert labels.tolist() == [0] * 5 + [1] * 5

    batches, _ = data.batches(Recipe(batch_size=10), CPU, None)
    compared = 0
    for number in range(10):
        batches.start_epoch(epoch_generator(0, number))
        images, _ = batches.take(batches.places, torch.float32)
        for image, place in zip(images, batches.places.T.tolist(), strict=True):
            index = int(np.searchsorted(batches.images[0], place[0], side="right")) - 1
            offset = place[0] - int(batches.images[0, index])
            resized = ResizeKeepRatio(32, longest=0.0)(originals[index])
            if resized.width != place[1]:  # timm rounds the longer side up or down, evaluation and packs always down
                continue
            crop = functional.crop(resized, offset // place[1], offset % place[1], 28, 28)
            crop = functional.hflip(crop) if place[4] else crop
            torch.testing.assert_close(image, (functional.to_tensor(crop) - mean) / std, atol=1.01 * level, rtol=0)
            compared += 1
    assert compared > 40


def test_crops_and_reflections_follow_the_recipe(tmp_path: Path) -> None:
    root = write_set(tmp_path, {"train": 2, "val": 2, "test": 1}, size=8)
    one = Recipe(batch_size=6, mirror=False)
    data = load(root)
    images, labels = (torch.cat(parts) for parts in zip(*(epoch(data, i, one) for i in range(30)), strict=True))
    rows = [tuple(image.flatten().tolist()) for image in images]
    assert 6 < len(set(rows)) <= 6 * 2 * 4  # 8×8 or 8×10 pixels leave room for so many crops of 7×7
    both = one.changed({"mirror": True})
    mirrored, again = (torch.cat(parts) for parts in zip(*(epoch(data, i, both) for i in range(30)), strict=True))
    assert torch.equal(labels, again)
    turned = [bool(torch.equal(after, before.flip(2))) for before, after in zip(images, mirrored, strict=True)]
    assert all(
        torch.equal(after, before) != flipped for before, after, flipped in zip(images, mirrored, turned, strict=True)
    )
    assert 60 < sum(turned) < 120


def test_evaluation_is_in_order_and_of_the_middle(pictures: Path) -> None:
    data = load(pictures)
    ((images, labels),) = data.eval_batches(data.val, RECIPE, CPU, None)
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 and images.shape == (12, 3, 7, 7)


def test_it_learns(pictures: Path) -> None:
    data, model = load(pictures), make_model()
    result = train(model, data, RECIPE, seed=0)
    assert result.status == "completed" and result.val_accuracy > 0.9
    _, accuracy = evaluate(model, data.test(), data, RECIPE)
    assert accuracy > 0.9


def test_a_killed_run_gives_bit_identical_results(pictures: Path, tmp_path: Path) -> None:
    through = make_model()
    expected = train(through, load(pictures), RECIPE, seed=3)

    class Killed(BaseException):
        pass

    def die(report: EpochReport) -> None:
        if report.epoch == 1:
            raise Killed

    with pytest.raises(Killed):
        train(make_model(), load(pictures), RECIPE, seed=3, folder=tmp_path / "run", report=die)
    model = make_model(seed=99)
    result = train(model, load(pictures), RECIPE, seed=3, folder=tmp_path / "run")
    assert same(model, through)
    assert [report.val_loss for report in result.curve] == [report.val_loss for report in expected.curve]


def test_out_of_memory_splits_the_step(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(147, 3))

    data = load(pictures)
    whole = train(model(), data, RECIPE, seed=0)
    take = nn.Linear.forward

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) > 2:
            raise torch.OutOfMemoryError("too large")
        return take(self, x)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    split = train(model(), data, RECIPE, seed=0)
    assert (whole.micro_batches, split.micro_batches) == (1, 4)
    for before, after in zip(whole.curve, split.curve, strict=True):
        assert after.train_loss == pytest.approx(before.train_loss, rel=1e-5)


def be_worker(monkeypatch: pytest.MonkeyPatch, rank: int, world: int) -> None:
    monkeypatch.setattr("lrnas.data.packed.rank", lambda: rank)
    monkeypatch.setattr("lrnas.data.packed.world_size", lambda: world)


def test_workers_together_read_what_one_would_read(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load(pictures)
    whole, _ = epoch(data, 0)
    validation = len(data.val)
    parts, seen = [], 0
    for rank in range(2):
        be_worker(monkeypatch, rank, 2)
        batches, evaluation = data.batches(RECIPE, CPU, None)
        batches.start_epoch(epoch_generator(5, 0))
        mine = []
        for step in range(batches.steps):
            batches.load(step)
            columns = step * 8 + rank * 4 + torch.arange(4)
            mine.append(batches.take(batches.places[:, columns], torch.float32)[0])
        parts.append(mine)
        seen += sum(len(labels) for _, labels in evaluation)
    together = torch.cat([torch.cat(step) for step in zip(*parts, strict=True)])
    assert torch.equal(together, whole) and seen == validation


def test_more_workers_than_images(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = load(pictures), []
    for rank in range(14):
        be_worker(monkeypatch, rank, 14)
        seen.append(sum(len(labels) for _, labels in data.eval_batches(data.val, RECIPE, CPU, None)))
    assert seen == [1] * 12 + [0] * 2


def large(root: Path, spoilt: int, split: str = "train") -> PackedSet:
    """102 images in a split, some of which cannot be read."""
    write_set(root, {"train": 4, "val": 2, "test": 2} | {split: 34}, size=7)
    for i in range(spoilt):
        spoil(root / split / "green" / f"{10 + i:03}.png")
    return load(root)


def test_an_unreadable_image_is_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = large(tmp_path / "set", 1)
    result = train(make_model(), data, RECIPE.changed({"batch_size": 101}), seed=0)
    assert result.status == "completed"
    file = tmp_path / "set" / "train" / "green" / "010.png"
    warnings = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [f"an image cannot be read: {file} (image file is truncated)"]
    assert data.num_unreadable == 1 and data.counts == (101, 6, 6)
    images, _ = epoch(data, 0, RECIPE.changed({"batch_size": 101}))
    assert len(images) == 101
    caplog.clear()
    again = load(tmp_path / "set")
    again.prepare()
    left_out = "1 of 102 training images cannot be read, and is left out"
    assert caplog.messages == [
        f"{left_out}: {file} (image file is truncated); repair or remove it, unless a study has begun with these images"
    ]


def test_evaluation_leaves_out_unreadable_images(tmp_path: Path) -> None:
    data = large(tmp_path / "set", 1, "test")
    images = [image for image, _ in data.eval_batches(data.test(), RECIPE, CPU, None)]
    assert sum(map(len, images)) == 101


def test_unreadable_test_images_do_not_prevent_training(tmp_path: Path) -> None:
    data = large(tmp_path / "set", 2, "test")
    assert train(make_model(), data, RECIPE, seed=0).status == "completed"
    with pytest.raises(DataError, match="2 of 102 test images cannot be read, and more than 1 % end a run"):
        evaluate(make_model(), data.test(), data, RECIPE)


def test_too_many_unreadable_test_images_are_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImages, match="2 of 102 test images cannot be read, and more than 1 % end a run"):
        large(tmp_path / "set", 2, "test").prepare()


@pytest.mark.parametrize("split", ["train", "val"])
def test_more_than_one_in_a_hundred_end_the_run(split: str, tmp_path: Path) -> None:
    data = large(tmp_path / "set", 2, split)
    for use in (data.prepare, lambda: train(make_model(), data, RECIPE, seed=0)):
        with pytest.raises(UnreadableImages) as caught:
            use()
        message = str(caught.value)
        title = {"train": "training", "val": "validation"}[split]
        assert message.startswith(f"2 of 102 {title} images cannot be read, and more than 1 % end a run: {tmp_path}")
        assert message.endswith("; repair or remove them") and "\n" not in message


def test_in_a_small_split_a_single_image_ends_the_run(pictures: Path) -> None:
    spoil(pictures / "train" / "red" / "003.png")
    with pytest.raises(DataError, match="1 of 36 training images cannot be read, and more than 1 % end a run"):
        train(make_model(), load(pictures), RECIPE, seed=0)


def test_a_decoder_that_dies_is_one_line(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderSplit, "open", lambda self, index: os._exit(3))
    with pytest.raises(DataError, match=r"a process that decodes them died, .*; run this again") as caught:
        load(pictures).prepare()
    assert "\n" not in str(caught.value)


def work(rank: int, root: Path) -> None:
    """Train as one of two workers."""
    dist.init_process_group("gloo", init_method=f"file://{root / 'meeting'}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    result = train(make_model(), load(root / "set"), RECIPE.changed({"epochs": 1}), seed=0)
    (root / f"{rank}.txt").write_text(str([report.val_loss for report in result.curve]))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.ci
def test_workers_train_together(pictures: Path, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work, (tmp_path,), nprocs=2)
    first, second = ((tmp_path / f"{rank}.txt").read_text() for rank in range(2))
    assert first == second != "[]"
    assert len(list((tmp_path / "cache" / "packs").glob("*.pack"))) == 1


RESIZED = RECIPE.changed({"min_area": 0.3})


@pytest.mark.parametrize("recipe", [RECIPE, RESIZED])
def test_crops_of_the_next_batches_are_those_of_the_whole_pack(
    recipe: Recipe, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of(data: PackedSet) -> list[torch.Tensor]:
        ((images, labels),) = data.eval_batches(data.val, recipe, CPU, None)
        return [images, labels, *epoch(data, 0, recipe), *epoch(data, 1, recipe)]

    def in_parts(self: PackOnDevices, device: torch.device, crops: int, images: int) -> NextBatches:
        return NextBatches(self.open().pixels, crops, device)

    whole = all_of(load(pictures))
    monkeypatch.setattr(PackOnDevices, "pixels", in_parts)
    assert all(map(torch.equal, whole, all_of(load(pictures))))
    for rank in range(2):  # each of two workers copies only its own part
        be_worker(monkeypatch, rank, 2)
        batches, _ = load(pictures).batches(recipe, CPU, None)
        batches.start_epoch(epoch_generator(5, 0))
        batches.load(0)
        images, labels = batches.take(batches.places[:, rank * 4 : rank * 4 + 4], torch.float32)
        assert torch.equal(images, whole[2][rank * 4 : rank * 4 + 4]) and torch.equal(
            labels, whole[3][rank * 4 : rank * 4 + 4]
        )


def replace_by_jpegs(pixels: PackedSet, jpegs: PackedSet) -> None:
    """Write the images of a pack of JPEGs, decoded, to a pack of pixels."""
    pack = jpegs.pack.open()
    assert np.array_equal(pack.table, pixels.pack.open().table)
    with pixels.pack.open().file.open("r+b") as stream:
        for start, (first, end) in zip(pack.table[0], pairwise(pack.bounds), strict=True):
            if end > first:
                (image,) = decode_jpegs([torch.tensor(pack.data[first:end])], CPU)
                stream.seek(3 * start)
                stream.write(image.permute(1, 2, 0).contiguous().numpy())


@pytest.mark.parametrize("recipe", [RECIPE, RESIZED])
def test_batches_of_jpegs_are_those_of_their_pixels(
    recipe: Recipe, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(pictures, {"train": 34}, size=7)
    (pictures / "train" / "blue" / "010.png").write_bytes(b"no picture")  # takes no room in the table
    jpegs, pixels = load(pictures, "jpeg"), load(pictures, "pixels")
    before = epoch(pixels, 0, recipe)[0]
    replace_by_jpegs(pixels, jpegs)

    def all_of(data: PackedSet) -> list[torch.Tensor]:
        evaluated = [part for split in (data.val, data.test()) for part in data.eval_batches(split, recipe, CPU, None)]
        return [*(tensor for part in evaluated for tensor in part), *epoch(data, 0, recipe), *epoch(data, 1, recipe)]

    monkeypatch.setattr(packed, "EVAL_BATCH", 5)
    expected = all_of(pixels)
    assert len(expected) == 16 and all(map(torch.equal, all_of(jpegs), expected))
    assert not torch.equal(before, expected[-4]) and (before - expected[-4]).abs().mean() < 0.2
    for rank in range(2):  # each of two workers decodes only its own part
        be_worker(monkeypatch, rank, 2)
        batches, _ = jpegs.batches(recipe, CPU, None)
        assert isinstance(batches.pixels, DecodedBatches)
        batches.start_epoch(epoch_generator(5, 0))
        batches.load(1)
        own = slice(8 + rank * 4, 12 + rank * 4)
        assert torch.equal(batches.take(batches.places[:, own], torch.float32)[0], expected[-4][own])
        assert len(batches.pixels.pixels) <= 4 * 8 * 10


def test_it_learns_from_jpegs(pictures: Path) -> None:
    data, model = load(pictures, "jpeg"), make_model()
    assert train(model, data, RECIPE, seed=0).val_accuracy > 0.9
    assert evaluate(model, data.test(), data, RECIPE)[1] > 0.9 and data.num_bytes == 0


def test_jpegs_are_decoded_on_the_cpu_if_the_gpu_cannot(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, device = load(pictures, "jpeg"), torch.device("cuda", 0)
    asked = []

    def decode(images: list[torch.Tensor], where: torch.device) -> list[torch.Tensor]:
        asked.append(where)
        if len(asked) > 1:
            raise RuntimeError("no nvJPEG here\nsome lines of C++")
        return []

    monkeypatch.setattr(packed, "decode_jpegs", decode)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda where: None)
    start = "folder:set: 0.0 GB of packed JPEGs are decoded batch by batch, on "
    assert data.placement == "" and data.pack._decoder(data.pack.open(), device) == device
    assert data.placement == f"{start}the GPU"
    assert data.pack._decoder(data.pack.open(), device) == CPU and asked == [device] * 2
    assert data.placement == f"{start}the CPU, because the GPU cannot: RuntimeError: no nvJPEG here"


def test_packs_are_kept_on_a_gpu_if_they_fit(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, device = load(pictures), torch.device("cuda", 0)
    pack = data.pack.open()
    size = pack.pixels.nbytes
    free, total, reason = 10 * size, 2 * size, ""

    def share_file(file: Path, where: torch.device, share: float) -> torch.Tensor:
        if reason:
            raise CannotShare(reason)
        assert file == pack.file and where == device and share == data.pack.image_memory
        return torch.from_numpy(np.fromfile(file, np.uint8))

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda where: (free, total))
    monkeypatch.setattr(packed, "share_file", share_file)
    monkeypatch.setattr(packed, "copy_pack", lambda pixels, where: "a copy")
    start, on_gpu = "folder:set: 0.0 GB of packed images are ", "in the memory of the GPU"
    in_files = f"read from {pictures.parent / 'cache' / 'packs'} batch by batch"
    assert data.placement == ""
    shared = data.pack._on_gpu(pack, device)
    assert shared is not None and np.array_equal(shared.numpy(), pack.pixels)
    assert data.placement == f"{start}{on_gpu} (once for all trainings)"
    total -= 2  # more than half of its memory
    assert data.pack._on_gpu(pack, device) is None
    assert data.placement == f"{start}{in_files} (there, images may take 0.0 GB)"
    total, reason = 20 * size, "no"
    data.pack.gpu_share = 0.1
    assert data.pack._on_gpu(pack, device) == "a copy"
    assert data.placement == f"{start}{on_gpu} (one copy for all trainings is not possible: no)"
    data.pack.gpu_share = 0.09
    assert data.pack._on_gpu(pack, device) is None
    data.pack.gpu_share, free = 0.1, 2 * size - 2  # other programs use it
    assert data.pack._on_gpu(pack, device) is None and in_files in data.placement
    data.pack.image_memory = 0.6
    assert data.pack._on_gpu(pack, device) == "a copy"


def test_resized_crops_are_interpolated_like_those_of_torch() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)
    table = np.array([[0, 600, 1200], [20] * 3, [30] * 3])
    boxes = tuple(torch.tensor(values) for values in ([0, 3, 7], [0, 10, 1], [20, 9, 13], [30, 12, 5]))
    places = make_places(table, np.arange(3), boxes, torch.tensor([0, 1, 0]))
    crops = gather(torch.from_numpy(images.reshape(-1, 3)), places, 14, resize=True)
    for image, crop, box, mirrored in zip(images, crops, zip(*boxes, strict=True), (False, True, False), strict=True):
        top, left, height, width = map(int, box)
        part = torch.from_numpy(image)[top : top + height, left : left + width].permute(2, 0, 1)[None].float()
        expected = F.interpolate(part, (14, 14), mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
        torch.testing.assert_close(crop, expected.flip(1) if mirrored else expected, atol=1e-3, rtol=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("resize", "channels"), [(False, 3), (True, 3), (False, 1)])
def test_the_kernel_takes_the_same_crops(resize: bool, channels: int, dtype: torch.dtype) -> None:
    """On a GPU if there is one, else with Triton's interpreter."""
    from lrnas.layers.kernels.crops import crop_and_normalise

    device, generator = "cuda" if torch.cuda.is_available() else "cpu", torch.Generator().manual_seed(0)
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 40, (2, 7))
    table = np.stack([np.cumsum(sizes.prod(0)) - sizes.prod(0), *sizes])
    pixels = torch.from_numpy(rng.integers(0, 256, (int(sizes.prod(0).sum()), channels), dtype=np.uint8)).to(device)
    rows, columns = torch.from_numpy(sizes)
    boxes = (
        random_resized_boxes(rows, columns, 0.2, generator) if resize else random_boxes(rows, columns, 19, generator)
    )
    places = make_places(table, np.arange(7), boxes, torch.tensor([0, 1, 0, 1, 1, 0, 0])).to(device)
    shift, scale = torch.tensor([[-2.0, -1.0, 0.5], [0.01, 0.02, 0.03]], device=device)[:, :channels]
    for part in (places, places[:, 2:5], places[:, :0]):
        expected = normalise(gather(pixels, part, 19, resize), shift, scale, torch.float32)
        crops = crop_and_normalise(pixels, part, 19, resize, shift, scale, dtype)
        assert crops.dtype == dtype and crops.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(crops.float(), expected, atol=4e-3 if dtype == torch.float16 else 1e-4, rtol=1e-3)


def test_resized_boxes_are_distributed_like_those_of_torchvision() -> None:
    from torchvision.transforms import RandomResizedCrop

    number, image = 4000, torch.zeros(3, 64, 100)
    rows, columns = torch.full((number,), 64), torch.full((number,), 100)
    boxes = torch.stack(random_resized_boxes(rows, columns, 0.2, torch.Generator().manual_seed(0)))
    torch.manual_seed(0)
    expected = torch.tensor([RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(number)]).T
    for ours, theirs in zip(boxes.double(), expected.double(), strict=True):
        mean, deviation = float(theirs.mean()), float(theirs.std())
        assert float(ours.mean()) == pytest.approx(mean, abs=3 * deviation * math.sqrt(2 / number))
        assert float(ours.std()) == pytest.approx(deviation, rel=0.05)
    top, left, height, width = boxes
    assert (top >= 0).all() and (top + height <= 64).all() and (left + width <= 100).all() and (left >= 0).all()
    thin = random_resized_boxes(torch.tensor([10, 90]), torch.tensor([90, 10]), 1.0, torch.Generator().manual_seed(0))
    assert [values.tolist() for values in thin] == [[0, 38], [38, 0], [10, 13], [13, 10]]  # the middle


def test_it_learns_from_resized_crops(pictures: Path) -> None:
    assert train(make_model(), load(pictures), RESIZED, seed=0).val_accuracy > 0.9
    digits = load_set("digits")
    with pytest.raises(InvalidRecipe, match=r"min_area needs images from files; got 0.3 for digits; set pad"):
        digits.batches(RESIZED, CPU, None)


def test_a_few_images_need_no_pack(pictures: Path, tmp_path: Path) -> None:
    data = load(pictures)
    some = data.first_images(5)
    assert not (tmp_path / "cache").exists()
    ((images, _),) = data.eval_batches(data.val, RECIPE, CPU, None)
    assert torch.equal(some, images[:5]) and len(data.first_images(99)) == 12


def test_recipes_for_images_in_files(pictures: Path) -> None:
    recipe = get_recipe("paper", "nin", 32, 36, own_crops=True)
    assert not recipe.all_images  # validation images are not used for training by default
    assert (recipe.crop, recipe.pad, recipe.whiten) == (0, 0, False)
    data = load(pictures)
    with pytest.raises(InvalidRecipe, match=r"whitening needs all images in memory; .* set whiten=false"):
        data.batches(RECIPE.changed({"whiten": True}), CPU, None)
    with pytest.raises(InvalidRecipe, match="are always cropped to 7 pixels, so pad must be 0; got 2"):
        data.batches(RECIPE.changed({"pad": 2}), CPU, None)


THIN = {name: {"width": 0.05} for name in ("conv1", "cccp1", "cccp2", "conv2", "cccp3", "cccp4", "conv3", "cccp5")}


def test_a_reproduction_uses_the_test_images_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[str] = []
    look, run = PackedSet.test, Job.run
    monkeypatch.setattr(PackedSet, "test", lambda self: events.append("test") or look(self))
    monkeypatch.setattr(Job, "run", lambda self, *a, **k: (run(self, *a, **k), events.append("trained"))[0])
    file = tmp_path / "thin.json"
    file.write_text(json.dumps({"backbone": "nin", "layers": THIN}))
    real = get_point("nin")
    small = Architecture.from_dict({"backbone": "nin", "layers": {**THIN, "conv1": {"width": 0.1}}})
    monkeypatch.setattr(module, "get_point", lambda name: type(real)(name, small, real.table, real.published))
    arguments = ["reproduce", str(file), "--data", f"folder:{pictures}", "--recipe", "fast", "--epochs", "1"]
    arguments += ["--image-size", "8", "--out", str(tmp_path / "out")]
    arguments += ["--pack", "jpeg", "--data-dir", str(tmp_path / "cache")]
    assert main([*arguments, "--json"]) == 0
    assert events == ["trained", "test"] * 2  # the network, then its baseline
    assert [file.name.endswith("-jpeg95.pack") for file in (tmp_path / "cache" / "packs").glob("*.pack")] == [True]
    result = json.loads(capsys.readouterr().out)
    record = json.loads((tmp_path / "out" / "thin-folder-set-fast-seed0.json").read_text())
    assert record["identity"]["image_size"] == 8 and record["identity"]["data"].startswith("folder:")
    assert record["identity"]["recipe"]["pad"] == 0 and record["unreadable_images"] == 0
    assert str(tmp_path) not in json.dumps(record)  # a record has no paths of this machine
    assert result["networks"][0]["accuracies"] == [record["test_accuracy"]]

    assert main(arguments) == 0 and len(events) == 4  # nothing is trained or tested twice
    (pictures / "train" / "red" / "000.png").unlink()
    capsys.readouterr()
    assert main(arguments) == 2
    assert "holds another run: data was 'folder:" in capsys.readouterr().err


def test_a_reproduction_says_how_many_images_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    caplog.set_level("INFO", "lrnas")
    monkeypatch.setattr(module, "_run", stop)
    large(tmp_path / "set", 1)
    with pytest.raises(KeyboardInterrupt):
        module.reproduce("nin", data=f"folder:{tmp_path / 'set'}", image_size=8, recipe="fast", out=tmp_path / "out")
    assert "training nin on 101 images of folder:" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [RECIPE, RESIZED])
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_on_a_gpu_the_captured_step_takes_every_batch(recipe: Recipe, share: float, pictures: Path) -> None:
    data = load_set(f"folder:{pictures}", pictures.parent / "cache", image_size=7, image_memory=share)
    device = torch.device("cuda", 0)
    on_gpu, _ = data.batches(recipe, device, None)
    on_cpu, _ = data.batches(recipe, CPU, None)
    assert isinstance(on_gpu.pixels, WholePack if share else NextBatches)
    for number in range(2):
        for batches in (on_gpu, on_cpu):
            batches.start_epoch(epoch_generator(0, number))
        for step in range(on_gpu.steps):
            columns = slice(8 * step, 8 * step + 8)
            parts = []
            for batches in (on_gpu, on_cpu):
                batches.load(step)
                parts.append(batches.take(batches.places[:, columns], torch.float32)[0].cpu())
            torch.testing.assert_close(*parts, atol=1e-4, rtol=1e-4)
    result = train(make_model(), data, recipe, seed=0, device=device)
    expected = train(make_model(), load(pictures), recipe, seed=0)
    assert result.val_accuracy > 0.9
    assert result.curve[0].train_loss == pytest.approx(expected.curve[0].train_loss, rel=0.15)


@pytest.mark.gpu
def test_nvjpeg_decodes_the_same_images(pictures: Path) -> None:
    pack = load(pictures, "jpeg").pack.open()
    data = [torch.tensor(pack.data[first:end]) for first, end in pairwise(pack.bounds)]
    device = torch.device("cuda", 0)
    for on_gpu, on_cpu in zip(decode_jpegs(data, device), decode_jpegs(data, CPU), strict=True):
        difference = (on_gpu.cpu().float() - on_cpu.float()).abs()
        assert on_gpu.is_cuda and difference.mean() < 8  # it interpolates colours in another way


@pytest.mark.gpu
@pytest.mark.parametrize("on_gpu", [True, False])
def test_on_a_gpu_jpegs_of_every_batch_are_decoded(
    on_gpu: bool, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, device = load(pictures, "jpeg"), torch.device("cuda", 0)
    if not on_gpu:
        monkeypatch.setattr(PackOnDevices, "_decoder", lambda self, pack, device: CPU)
    batches, _ = data.batches(RECIPE, device, None)
    others, _ = data.batches(RECIPE, CPU, None)
    for number in range(2):
        for each in (batches, others):
            each.start_epoch(epoch_generator(0, number))
        taken = []
        for step in range(batches.steps):  # without waiting for the GPU
            batches.load(step)
            taken.append(batches.take(batches.places[:, 8 * step : 8 * step + 8], torch.float32)[0])
        for step, images in enumerate(taken):
            others.load(step)
            expected, _ = others.take(others.places[:, 8 * step : 8 * step + 8], torch.float32)
            difference = (images.cpu() - expected).abs()
            assert difference.mean() < 0.07 if on_gpu else difference.max() < 1e-3
    assert train(make_model(), data, RECIPE, seed=0, device=device).val_accuracy > 0.9
