"""Data sets read from files: batches, determinism, unreadable images, training and the single use of test images."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from pictures import spoil, write_set
from torch import nn

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.data.catalog import load_set
from lrnas.data.folders import FolderSplit
from lrnas.data.in_memory import epoch_generator
from lrnas.data.streamed import StreamSet
from lrnas.errors import DataError
from lrnas.models.paper import get_point
from lrnas.recipes import InvalidRecipe, Recipe, get_recipe
from lrnas.training import reproduce as module
from lrnas.training.job import Job
from lrnas.training.loop import EpochReport, evaluate, train
from lrnas.training.multi_gpu import run_on_workers

CPU = torch.device("cpu")
RECIPE = Recipe(epochs=3, batch_size=8, lr=0.05)


def load(root: Path, loaders: int = 0) -> StreamSet:
    data = load_set(f"folder:{root}", image_size=7, loaders=loaders)
    assert isinstance(data, StreamSet)
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


def epoch(data: StreamSet, number: int, recipe: Recipe = RECIPE) -> tuple[torch.Tensor, torch.Tensor]:
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


def test_an_epoch_has_every_image_once_with_any_loaders(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    original = FolderSplit.open
    with monkeypatch.context() as patch:
        patch.setattr(FolderSplit, "open", lambda self, index: opened.append(index) or original(self, index))
        epoch(load(pictures), 0, RECIPE.changed({"batch_size": 9}))
        assert sorted(opened) == list(range(36)) != opened
        opened.clear()
        images, labels = epoch(load(pictures), 0)
    assert len(set(opened)) == len(opened) == 32
    assert images.shape == (32, 3, 7, 7) and labels.dtype == torch.int64  # 36 images are 4 whole batches
    brightest = images.mean((2, 3)).argmax(1)
    assert torch.equal(2 - brightest, labels)  # blue, green, red are channels 2, 1, 0
    for loaders in (0, 2):
        data = load(pictures, loaders)
        again = epoch(data, 0)
        assert torch.equal(again[0], images) and torch.equal(again[1], labels)
    assert not torch.equal(epoch(load(pictures), 1)[0], images)


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
    again = next(iter(load(pictures, 2).eval_batches(data.val, RECIPE, CPU, None)))
    assert torch.equal(again[0], images)


def test_it_learns_and_leaves_the_test_images_alone(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    original = FolderSplit.open
    monkeypatch.setattr(FolderSplit, "open", lambda self, index: opened.append(self.path.name) or original(self, index))
    data, model = load(pictures), make_model()
    result = train(model, data, RECIPE, seed=0)
    assert result.status == "completed" and result.val_accuracy > 0.9
    assert set(opened) == {"train", "val"}
    _, accuracy = evaluate(model, data.test(), data, RECIPE)
    assert accuracy > 0.9 and opened.count("test") == 12


def test_a_killed_run_gives_bit_identical_results_with_other_loaders(pictures: Path, tmp_path: Path) -> None:
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
    result = train(model, load(pictures, 2), RECIPE, seed=3, folder=tmp_path / "run")
    assert same(model, through)
    assert [report.val_loss for report in result.curve] == [report.val_loss for report in expected.curve]


def test_out_of_memory_splits_the_step_and_loads_nothing_twice(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr("lrnas.data.streamed.rank", lambda: rank)
    monkeypatch.setattr("lrnas.data.streamed.world_size", lambda: world)


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


def large(root: Path, spoilt: int, split: str = "train") -> StreamSet:
    """102 images in a split, some of which cannot be read."""
    write_set(root, {"train": 4, "val": 2, "test": 2} | {split: 34}, size=7)
    for i in range(spoilt):
        spoil(root / split / "green" / f"{10 + i:03}.png")
    return load(root)


@pytest.mark.parametrize("loaders", [0, 2])
def test_an_unreadable_image_is_named_once_and_replaced(
    loaders: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large(tmp_path, 1)
    data = load(tmp_path, loaders)
    model = make_model()
    result = train(model, data, RECIPE, seed=0)
    assert result.status == "completed"
    file = tmp_path / "train" / "green" / "010.png"
    assert caplog.messages == [f"leaving out an image that cannot be read: {file} (image file is truncated)"]
    assert data.unreadable == {"train": [(44, "image file is truncated")]}
    again = make_model()
    train(again, load(tmp_path), RECIPE, seed=0)
    assert same(model, again)


def test_evaluation_leaves_out_unreadable_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = large(tmp_path, 1, "test")
    images = [image for image, _ in data.eval_batches(data.test(), RECIPE, CPU, None)]
    assert sum(map(len, images)) == 101
    assert "test/green/010.png (image file is truncated)" in caplog.text
    train(make_model(), data, RECIPE, seed=0)  # unreadable test images do not affect training


def test_unreadable_images_of_a_training_on_all_images_are_noted(tmp_path: Path) -> None:
    write_set(tmp_path, {"train": 38, "test": 2}, size=7)
    spoil(tmp_path / "train" / "green" / "010.png")
    data = load(tmp_path)
    train(make_model(), data, RECIPE.changed({"all_images": True, "batch_size": 19}), seed=0)
    assert data.unreadable == {"train": [(48, "image file is truncated")]}
    list(data.eval_batches(data.train, RECIPE, CPU, None))
    list(data.eval_batches(data.val, RECIPE, CPU, None))
    assert len(data.unreadable["train"]) == 1  # whichever split it is in


def test_a_continued_run_knows_unreadable_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = large(tmp_path / "set", 1, "val")
    train(make_model(), data, RECIPE.changed({"epochs": 1}), seed=0, folder=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    assert record["state"]["unreadable"] == {
        "val": [[44, "image file is truncated"]]
    }  # the number of the image, without a path
    logged = [*caplog.messages]
    again = load(tmp_path / "set")
    train(make_model(), again, RECIPE.changed({"epochs": 1}), seed=0, folder=tmp_path / "run")  # it is complete
    assert again.unreadable == data.unreadable != {} and caplog.messages == logged * 2


def test_unreadable_images_of_other_workers_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = large(tmp_path, 1, "val")
    monkeypatch.setattr("lrnas.data.streamed.gather_objects", lambda mine, device: [mine, {44: "as here"}])
    list(data.eval_batches(data.val, RECIPE, CPU, None))
    assert len(data.unreadable["val"]) == 1  # the same image
    monkeypatch.setattr("lrnas.data.streamed.gather_objects", lambda mine, device: [mine, {45: "not as here"}])
    message = r"2 of 102 validation images cannot be read, .*green/010.png .*green/011.png \(not as here\)"
    with pytest.raises(DataError, match=message):
        list(data.eval_batches(data.val, RECIPE, CPU, None))


def work(rank: int, root: Path) -> None:
    """Train as one of two workers, and write the error into a file."""
    dist.init_process_group("gloo", init_method=f"file://{root / 'meeting'}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    data = load(root / "set")
    try:
        train(make_model(), data, RECIPE.changed({"epochs": 1}), seed=0)
    except DataError as error:
        (root / f"{rank}.txt").write_text(str(error))
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.ci
def test_the_limit_counts_all_workers(tmp_path: Path) -> None:
    """Each of two workers finds 1 unreadable image in 102, which is allowed; together they find 2."""
    large(tmp_path / "set", 2, "val")
    torch.multiprocessing.spawn(work, (tmp_path,), nprocs=2)
    first, second = ((tmp_path / f"{rank}.txt").read_text() for rank in range(2))
    assert first == second and "2 of 102 validation images cannot be read, and more than 1% end a run" in first


@pytest.mark.slow
def test_unreadable_images_of_all_workers_are_in_the_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    large(tmp_path / "set", 1)
    thin = Architecture.from_dict({"backbone": "nin", "layers": THIN})
    recipe = Recipe(epochs=1, batch_size=34)
    job = Job(thin, f"folder:{tmp_path / 'set'}", recipe, 0, image_size=8, loaders=0)
    assert run_on_workers(job, tmp_path / "run", 2, use_gpu=False) == "completed"
    data = job.load_data()
    job.run(job.create_model(data), data, tmp_path / "run", "cpu")
    assert len(data.unreadable["train"]) == 1


@pytest.mark.parametrize(("loaders", "split"), [(0, "train"), (2, "train"), (0, "val")])
def test_more_than_one_in_a_hundred_end_the_run(loaders: int, split: str, tmp_path: Path) -> None:
    large(tmp_path, 2, split)
    with pytest.raises(DataError) as caught:
        train(make_model(), load(tmp_path, loaders), RECIPE, seed=0)
    message = str(caught.value)
    title = {"train": "training", "val": "validation"}[split]
    assert message.startswith(f"2 of 102 {title} images cannot be read, and more than 1% end a run: {tmp_path}")
    assert message.endswith("; repair or remove them") and "\n" not in message


def test_in_a_small_split_a_single_image_ends_the_run(pictures: Path) -> None:
    spoil(pictures / "train" / "red" / "003.png")
    with pytest.raises(DataError, match="1 of 36 training images cannot be read, and more than 1% end a run"):
        train(make_model(), load(pictures), RECIPE, seed=0)


def test_every_kind_of_broken_file_has_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_set(tmp_path, {"train": 2, "val": 1, "test": 1}, size=7)
    data = load(tmp_path)
    folder = tmp_path / "train" / "blue"
    (folder / "000.png").write_bytes(b"no picture")
    (folder / "001.png").unlink()  # deleted after the data set was opened
    (tmp_path / "train" / "red" / "000.png").write_bytes(b"")
    with pytest.raises(DataError, match="1%"):
        list(data.eval_batches(data.train, RECIPE, CPU, None))
    assert [line.split("/")[-1] for line in caplog.messages] == [
        "000.png (cannot identify image file)",
        "001.png (No such file or directory)",
        "000.png (cannot identify image file)",
    ]


def test_a_loader_that_dies_is_one_line(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FolderSplit, "open", lambda self, index: os._exit(3))
    with pytest.raises(DataError, match=r"a process that reads images died \(.*\); try --loaders 1") as caught:
        train(make_model(), load(pictures, 1), RECIPE, seed=0)
    assert "\n" not in str(caught.value)


def test_recipes_for_streams(pictures: Path) -> None:
    recipe = get_recipe("paper", "nin", 32, 36, own_crops=True)
    assert not recipe.all_images  # validation images are not used for training by default
    assert (recipe.crop, recipe.pad, recipe.whiten) == (0, 0, False)
    data = load(pictures)
    with pytest.raises(InvalidRecipe, match=r"whitening needs all images in memory; .* set whiten=false"):
        data.batches(RECIPE.changed({"whiten": True}), CPU, None)
    with pytest.raises(InvalidRecipe, match="are cropped to 7 pixels when they are read, so pad must be 0; got 2"):
        data.batches(RECIPE.changed({"pad": 2}), CPU, None)


THIN = {name: {"width": 0.05} for name in ("conv1", "cccp1", "cccp2", "conv2", "cccp3", "cccp4", "conv3", "cccp5")}


def test_a_reproduction_uses_the_test_images_once(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[str] = []
    look, run = StreamSet.test, Job.run
    monkeypatch.setattr(StreamSet, "test", lambda self: events.append("test") or look(self))
    monkeypatch.setattr(Job, "run", lambda self, *a, **k: (run(self, *a, **k), events.append("trained"))[0])
    file = tmp_path / "thin.json"
    file.write_text(json.dumps({"backbone": "nin", "layers": THIN}))
    real = get_point("nin")
    small = Architecture.from_dict({"backbone": "nin", "layers": {**THIN, "conv1": {"width": 0.1}}})
    monkeypatch.setattr(module, "get_point", lambda name: type(real)(name, small, real.table, real.published))
    arguments = ["reproduce", str(file), "--data", f"folder:{pictures}", "--recipe", "fast", "--epochs", "1"]
    arguments += ["--image-size", "8", "--loaders", "0", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    assert events == ["trained", "test"] * 2  # the network, then its baseline
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


@pytest.mark.gpu
def test_on_a_gpu_the_captured_step_reads_every_batch(pictures: Path) -> None:
    data = load(pictures, 2)
    result = train(make_model(), data, RECIPE, seed=0, device="cuda")
    on_cpu = train(make_model(), load(pictures), RECIPE, seed=0)
    assert result.val_accuracy > 0.9
    assert result.curve[0].train_loss == pytest.approx(on_cpu.curve[0].train_loss, rel=0.15)
