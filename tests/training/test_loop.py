"""Training: learning, bit-identical results after a stop, divergence, schedules, checkpoints."""

import dataclasses
import errno
import itertools
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lrnas.arch.architecture import Architecture
from lrnas.data.catalog import ImageSet, load_set
from lrnas.data.in_memory import Split, epoch_generator
from lrnas.layers import accelerate
from lrnas.layers.conv import CompositeConv2d
from lrnas.recipes import InvalidRecipe, Recipe
from lrnas.training import checkpoint, loop
from lrnas.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint, save_interval
from lrnas.training.loop import (
    EpochReport,
    TrainingStep,
    _follow_plateaus,
    _learning_rates,
    _loss,
    _resume,
    _State,
    evaluate,
    make_optimizer,
    move_model,
    train,
)

DIGITS = load_set("digits")
RECIPE = Recipe(epochs=4, batch_size=32, lr=0.1, pad=1, clip=2.0, drop_rate=0.2)


def make_model(seed: int = 0) -> nn.Module:
    """A small model with dropout and batch norm, so that it has everything a checkpoint must save."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_it_learns_and_reports_every_epoch() -> None:
    model, reports = make_model(), []
    result = train(model, DIGITS, RECIPE, seed=0, report=reports.append)
    assert result.status == "completed"
    assert [report.epoch for report in reports] == [1, 2, 3, 4]
    assert reports == result.curve
    assert result.val_accuracy > 0.9 and reports[-1].train_loss < reports[0].train_loss
    loss, accuracy = evaluate(model, DIGITS.val, DIGITS, RECIPE)
    assert accuracy == result.val_accuracy and loss == pytest.approx(result.curve[-1].val_loss)


def test_training_never_sees_the_test_images() -> None:
    forbidden: Any = None  # any use of it fails
    guarded = ImageSet(DIGITS.name, DIGITS.classes, DIGITS.train, DIGITS.val, forbidden, mirrorable=False)
    assert train(make_model(), guarded, RECIPE, seed=0).status == "completed"
    with pytest.raises(AttributeError):
        evaluate(make_model(), guarded.test(), guarded, RECIPE)


@pytest.mark.parametrize("schedule", ["one_cycle", "paper", "polynomial"])
def test_a_killed_run_gives_bit_identical_results(schedule: str, tmp_path: Path) -> None:
    recipe = RECIPE.changed({"schedule": schedule, "patience": 1, "drops": 5})
    through = make_model()
    expected = train(through, DIGITS, recipe, seed=3)

    class Killed(BaseException):
        pass

    def die(report: EpochReport) -> None:
        if report.epoch in (1, 3):
            raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            train(make_model(), DIGITS, recipe, seed=3, folder=tmp_path, report=die)
    model = make_model(seed=99)  # its own weights do not matter
    result = train(model, DIGITS, recipe, seed=3, folder=tmp_path)
    assert all(torch.equal(tensor, weights(through)[name]) for name, tensor in weights(model).items())
    for before, after in zip(expected.curve, result.curve, strict=True):
        assert (before.train_loss, before.val_loss, before.lr) == (after.train_loss, after.val_loss, after.lr)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["epoch-4.safetensors"]


def test_the_first_epochs_may_have_smaller_crops(tmp_path: Path) -> None:
    """Validation is always on whole images. A run that was stopped continues with the crops of its epoch."""
    recipe, sizes = dataclasses.replace(RECIPE, early_crop=6, drop_rate=0.0), []

    def make_watched() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)]
        model = nn.Sequential(*layers)
        model.register_forward_pre_hook(lambda _, inputs: sizes.append((model.training, inputs[0].shape[2])))
        return model

    def stop(report: EpochReport) -> None:
        if report.epoch == 3:
            raise KeyboardInterrupt

    model = make_watched()
    expected = train(model, DIGITS, recipe, seed=0)
    seen = [key for key, _ in itertools.groupby(sizes)]
    assert seen == [(True, 6), (False, 8)] * 3 + [(True, 8), (False, 8)]
    with pytest.raises(KeyboardInterrupt):
        train(make_watched(), DIGITS, recipe, seed=0, folder=tmp_path, report=stop)
    assert train(make_watched(), DIGITS, recipe, seed=0, folder=tmp_path).val_accuracy == expected.val_accuracy


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    model = make_model()
    model.architecture = Architecture("nin")  # type: ignore[assignment]  # as `create_model` leaves it
    train(model, DIGITS, RECIPE, seed=0, folder=tmp_path)
    found = load_checkpoint(tmp_path)
    assert found is not None and found[1]["architecture"] == {"version": 1, "backbone": "nin", "layers": {}}
    again = make_model(seed=5)
    reports: list[EpochReport] = []
    result = train(again, DIGITS, RECIPE, seed=0, folder=tmp_path, report=reports.append)
    assert reports == [] and len(result.curve) == 4
    assert all(torch.equal(tensor, weights(model)[name]) for name, tensor in weights(again).items())


def test_seeds_matter() -> None:
    losses = [train(make_model(), DIGITS, RECIPE, seed=seed).curve[-1].train_loss for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def test_divergence_is_reported_as_a_status() -> None:
    model = make_model()
    with torch.no_grad():
        model[0].weight.fill_(math.inf)
    result = train(model, DIGITS, RECIPE, seed=0)
    assert (result.status, result.curve) == ("diverged", [])


def test_the_papers_learning_rates() -> None:
    recipe = Recipe(epochs=10, lr=0.1, weight_decay=0.01, schedule="paper", patience=2, drops=1)
    state = _State(epoch=3)
    rates = _learning_rates(recipe, state, 5)
    assert rates == [0.1 / (1 + 0.1 * 0.01 * t) for t in range(15, 20)]
    for accuracy in (0.5, 0.6, 0.6, 0.55):
        _follow_plateaus(recipe, state, accuracy)
    assert (state.drops, state.finished) == (1, False)
    assert _learning_rates(recipe, state, 5)[0] == pytest.approx(rates[0] / 10)
    for accuracy in (0.61, 0.6, 0.6):
        _follow_plateaus(recipe, state, accuracy)
    assert (state.drops, state.finished) == (2, True)


def test_the_other_learning_rates() -> None:
    polynomial = Recipe(epochs=4, lr=0.2, schedule="polynomial", power=0.5)
    assert _learning_rates(polynomial, _State(epoch=3), 1) == [pytest.approx(0.2 * 0.5)]
    cycle = Recipe(epochs=4, lr=0.2, schedule="one_cycle", warmup=0.25)
    whole = [rate for epoch in range(4) for rate in _learning_rates(cycle, _State(epoch=epoch), 10)]
    assert max(whole) == pytest.approx(0.2) and whole.index(max(whole)) in (9, 10)
    assert whole[0] == pytest.approx(0.02) and whole[-1] < 0.002
    assert all(later <= earlier for earlier, later in itertools.pairwise(whole[10:]))


def test_out_of_memory_splits_the_step_and_changes_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    start = weights(model)
    whole = train(model, DIGITS, RECIPE, seed=0)
    model.load_state_dict(start)
    take = torch.nn.Linear.forward

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        if self.training and len(x) > 8:
            raise torch.OutOfMemoryError("too large")
        return take(self, x)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    split = train(model, DIGITS, RECIPE, seed=0)
    assert (whole.micro_batches, split.micro_batches) == (1, 4)
    assert split.curve[0].note == "out of memory: every step now takes 4 micro-batches"
    for before, after in zip(whole.curve, split.curve, strict=True):
        assert after.train_loss == pytest.approx(before.train_loss, rel=1e-5)

    def never(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(nn.Linear, "forward", never)
    with pytest.raises(torch.OutOfMemoryError):
        train(model, DIGITS, RECIPE, seed=0)


def test_auxiliary_losses_are_added() -> None:
    recipe = Recipe(aux_weight=0.3)
    logits, head = torch.randn(4, 10), torch.randn(4, 10)
    labels = torch.arange(4)
    loss, _ = _loss((logits, head), labels, recipe)
    expected = nn.functional.cross_entropy(logits, labels) + 0.3 * nn.functional.cross_entropy(head, labels)
    torch.testing.assert_close(loss, expected)


class TwoHeads(nn.Module):
    """A network with a mixed-shape layer and an auxiliary head, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        filters = {(3, 1): 8, (1, 3): 4, (3, 3): 4}
        self.body = nn.Sequential(
            *make_model()[:4],
            CompositeConv2d(16, filters, 3, padding=1, bias=False, join=24),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.heads = nn.ModuleList([nn.Linear(24, 10), nn.Linear(24, 10)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.body(x)
        return tuple(head(x) for head in self.heads)


def steps(device: str, plain: bool) -> tuple[list[float], dict[str, torch.Tensor], TrainingStep]:
    """Losses and accuracies of two epochs and the weights after them; `plain`: with none of the faster operations."""
    recipe = dataclasses.replace(RECIPE, clip=0.2, label_smoothing=0.1)
    torch.manual_seed(0)
    model = TwoHeads()
    move_model(model, torch.device(device))
    few = Split(DIGITS.train.images[:160], DIGITS.train.labels[:160])
    data = ImageSet("few", DIGITS.classes, few, DIGITS.val, DIGITS.test())
    batches, _ = data.batches(recipe, torch.device(device), None)
    optimizer = make_optimizer(model, recipe, torch.device(device))
    step = TrainingStep(model, batches, optimizer, recipe)
    if plain:
        step.uses_kernels, step.network, optimizer.defaults["fused"] = False, model, False
    elif device == "cpu":  # as on a GPU
        step.uses_kernels, optimizer.defaults["fused"] = True, True
        for group in optimizer.param_groups:
            group["fused"] = True
    step.micro_batches = 2
    results = []
    with accelerate.fused(model):
        for epoch in range(2):
            batches.start_epoch(epoch_generator(0, epoch))
            results += step.run_epoch([0.05] * batches.steps)[:2]
    return results, weights(model), step


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # the interpreter divides masked values, too
def test_the_operations_for_a_gpu_give_the_same_training() -> None:
    """In float32, with Triton's interpreter: the kernel for the loss, and clipping by the fused optimizer."""
    (results, after, step), (expected, other, _) = steps("cpu", plain=False), steps("cpu", plain=True)
    assert float(step.optimizer.grad_scale) > 1  # gradients are clipped
    assert results == pytest.approx(expected, rel=1e-5)
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, other[name], rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # the first backward pass of a process, in a thread
def test_fewer_kernels_give_the_same_training_on_a_gpu() -> None:
    (results, after, step), (expected, other, _) = steps("cuda", plain=False), steps("cuda", plain=True)
    assert step.uses_kernels and step.network is not step.model
    assert results == pytest.approx(expected, rel=0.02, abs=0.02)
    for name, tensor in after.items():
        change = (tensor - other[name]).float().norm()
        assert change <= 0.02 * other[name].float().norm() + 1e-3, name


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    train(make_model(), DIGITS, RECIPE, seed=0, folder=tmp_path, identity={"architecture": "a", "seed": 0})
    with pytest.raises(CheckpointError, match="holds another run: architecture was 'a', now 'b'"):
        train(make_model(), DIGITS, RECIPE, seed=0, folder=tmp_path, identity={"architecture": "b", "seed": 0})


def test_large_checkpoints_are_written_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    size = 2 * sum(tensor.nbytes for tensor in model.state_dict().values())
    assert save_interval(model) == 0
    monkeypatch.setattr(checkpoint, "SMALL", size - 1)
    assert save_interval(model) == size / checkpoint.WRITE_RATE
    monkeypatch.setattr(checkpoint, "WRITE_RATE", size / 1000)  # once in 1000 s
    saved: list[int | None] = []

    def note(entry: EpochReport) -> None:
        found = load_checkpoint(tmp_path)
        saved.append(found and found[1]["epoch"])

    whole = train(model, DIGITS, RECIPE, seed=0, folder=tmp_path, report=note)
    assert saved == [None] * (RECIPE.epochs - 1) + [RECIPE.epochs]
    found = load_checkpoint(tmp_path)
    assert found is not None and not any(name.startswith("momentum.") for name in found[0])  # nothing is left to train
    again = train(make_model(), DIGITS, RECIPE, seed=0, folder=tmp_path)
    assert again.curve == whole.curve
    with pytest.raises(CheckpointError, match="which ended after 4; choose another folder"):
        train(make_model(), DIGITS, dataclasses.replace(RECIPE, epochs=5), seed=0, folder=tmp_path)


def test_a_run_continues_from_a_checkpoint_before_its_last_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    whole = train(model, DIGITS, RECIPE, seed=0)

    def stop(entry: EpochReport) -> None:
        monkeypatch.setattr(loop, "_save", lambda *args, **named: None)  # none after the first epoch
        if entry.epoch == 3:
            raise KeyboardInterrupt

    save = loop._save
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), DIGITS, RECIPE, seed=0, folder=tmp_path, report=stop)
    monkeypatch.setattr(loop, "_save", save)
    found = load_checkpoint(tmp_path)
    assert found is not None and found[1]["epoch"] == 1
    second = make_model()
    reports: list[int] = []
    again = train(second, DIGITS, RECIPE, seed=0, folder=tmp_path, report=lambda entry: reports.append(entry.epoch))
    assert reports == [2, 3, 4]
    assert [entry.val_accuracy for entry in again.curve] == [entry.val_accuracy for entry in whole.curve]
    assert all(map(torch.equal, weights(second).values(), weights(model).values()))


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, {"w": torch.ones(3)}, {"state": 1})

    def full(tensors: object, part: Path) -> None:
        part.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CheckpointError, match="No space left on device; the previous one is intact"):
        save_checkpoint(tmp_path, 2, {"w": torch.zeros(3)}, {"state": 2})
    found = load_checkpoint(tmp_path)
    assert found is not None and found[1]["state"] == 1 and torch.equal(found[0]["w"], torch.ones(3))
    assert not list(tmp_path.glob("*.part"))


def test_temporary_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    for name in ("checkpoint.json.1234.part", "epoch-1.safetensors.5678.part", "epoch-1.safetensors"):
        (tmp_path / name).write_text("half")
    (tmp_path / "own").mkdir()
    save_checkpoint(tmp_path, 2, {"w": torch.ones(3)}, {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint.json", "epoch-2.safetensors", "own"]


def test_broken_checkpoints_are_named(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    save_checkpoint(tmp_path, 1, {"w": torch.ones(3)}, {})
    (tmp_path / "epoch-1.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(tmp_path)
    (tmp_path / "epoch-1.safetensors").unlink()
    os.mkfifo(tmp_path / "epoch-1.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read: not a regular file; repair the disk"):
        load_checkpoint(tmp_path)
    (tmp_path / "epoch-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match="names a file of tensors that is missing"):
        load_checkpoint(tmp_path)
    (tmp_path / "checkpoint.json").write_text('{"version": 9, "tensors": "x"}')
    with pytest.raises(CheckpointError, match="up to version 1; got 9; upgrade"):
        load_checkpoint(tmp_path)


@pytest.mark.gpu
def test_on_a_gpu_it_learns_and_the_capture_changes_nothing() -> None:
    model = make_model()
    result = train(model, DIGITS, RECIPE, seed=0, device="cuda")
    on_cpu = train(make_model(), DIGITS, RECIPE, seed=0)
    assert result.val_accuracy > 0.9
    assert result.curve[0].train_loss == pytest.approx(on_cpu.curve[0].train_loss, rel=0.15)


def test_drops_at_fixed_epochs() -> None:
    recipe = Recipe(epochs=8, schedule="paper", drop_at=0.5, drops=2, weight_decay=0.0)
    rates = [_learning_rates(recipe, _State(epoch=epoch), 1)[0] for epoch in range(8)]
    assert rates == pytest.approx([0.1] * 4 + [0.01] * 2 + [0.001] * 2)
    recipe = Recipe(epochs=10, schedule="paper", drop_at=0.4, drops=2, weight_decay=0.0)  # 0.4 · 10 is not quite 4
    rates = [_learning_rates(recipe, _State(epoch=epoch), 1)[0] for epoch in range(10)]
    assert rates == pytest.approx([0.1] * 4 + [0.01] * 3 + [0.001] * 3)
    with pytest.raises(InvalidRecipe, match="drop_at needs schedule"):
        Recipe(schedule="one_cycle", drop_at=0.5)


def test_weights_that_are_not_finite_end_a_run() -> None:
    """This holds even if a ReLU hides them from the loss."""
    model = make_model()
    with torch.no_grad():
        model[0].bias[0] = -torch.inf
    assert train(model, DIGITS, dataclasses.replace(RECIPE, epochs=1), seed=0).status == "diverged"


def test_the_last_training_may_use_all_images(tmp_path: Path) -> None:
    """Then nothing is validated, and the test images are whitened like the training images."""
    data = load_set("digits")
    recipe = Recipe(epochs=4, batch_size=32, lr=0.02, schedule="paper", drop_at=0.5, all_images=True, whiten=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    result = train(model, data, recipe, seed=0, cache=tmp_path)
    assert [report.val_accuracy for report in result.curve] == [None] * 4 and result.val_accuracy is None
    _, accuracy = evaluate(model, data.test(), data, recipe, cache=tmp_path)
    assert accuracy > 0.8
    assert [file.name for file in tmp_path.iterdir()] == [f"digits-{len(data.train) + len(data.val)}-of-8-zca.npz"]
    with pytest.raises(InvalidRecipe, match="set drop_at"):
        Recipe(schedule="paper", all_images=True)


def test_momentum_is_restored_in_the_memory_layout_of_its_weights(tmp_path: Path) -> None:
    """On a GPU weights are in the channels-last layout, and the fused optimiser needs momentum in the same layout."""
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), DIGITS, RECIPE, seed=0, folder=tmp_path, report=_interrupt)
    model = make_model().to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, RECIPE, torch.device("cpu"))
    assert _resume(tmp_path, model, optimizer, RECIPE, {}).epoch == 1
    buffers = [(parameter, optimizer.state[parameter]["momentum_buffer"]) for parameter in model.parameters()]
    assert all(buffer.stride() == parameter.stride() and buffer.any() for parameter, buffer in buffers)


@pytest.mark.gpu
def test_a_run_continues_after_a_stop_on_a_gpu(tmp_path: Path) -> None:
    short = dataclasses.replace(RECIPE, epochs=2)
    with pytest.raises(KeyboardInterrupt):
        train(make_model(), DIGITS, short, seed=0, device="cuda", folder=tmp_path, report=_interrupt)
    result = train(make_model(), DIGITS, short, seed=0, device="cuda", folder=tmp_path)
    assert result.status == "completed" and len(result.curve) == 2


def _interrupt(report: EpochReport) -> None:
    raise KeyboardInterrupt
