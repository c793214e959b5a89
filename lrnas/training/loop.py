"""Trains one network. Knows no tuner: it reports after every epoch through a callback.

On a GPU the whole step (gather, forward, backward, update) is one CUDA graph in bf16, replayed once per batch with
no work left to Python; on a CPU it is the same step, eager and in float32. Everything random is drawn from the seed
and the epoch, so a run continued from a checkpoint ends, on a CPU, in the same bits as one that was never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sized
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lrnas._distributed import rank, world_size
from lrnas.data.in_memory import Batches, DataSet, Evaluation, Unreadable, epoch_generator
from lrnas.recipes import Recipe
from lrnas.training.checkpoint import CheckpointError, described, difference, load_checkpoint, save_checkpoint

Status = Literal["completed", "diverged"]


@dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch came to."""

    epoch: int
    """From 1."""
    epochs: int
    lr: float
    train_loss: float
    train_accuracy: float
    val_loss: float | None
    """None, and so the accuracy, where the validation images were trained on."""
    val_accuracy: float | None
    images_per_second: float
    """Of the training steps alone."""
    seconds: float
    note: str = ""


@dataclass(slots=True)
class Result:
    """What training came to."""

    status: Status
    curve: list[EpochReport]
    seconds: float
    start_seconds: float
    """Until the first step ran: moving the data, capturing the graph."""
    micro_batches: int

    @property
    def val_accuracy(self) -> float | None:
        return self.curve[-1].val_accuracy if self.curve else None

    @property
    def images_per_second(self) -> float:
        """The median epoch's."""
        rates = sorted(report.images_per_second for report in self.curve)
        return rates[len(rates) // 2] if rates else 0.0


@dataclass(slots=True)
class _State:
    """What, besides weights and momentum, an epoch hands to the next."""

    epoch: int = 0
    best: float = -1.0
    stale: int = 0
    drops: int = 0
    finished: bool = False
    unreadable: Unreadable = field(default_factory=dict)
    curve: list[EpochReport] = field(default_factory=list)


def train(
    model: nn.Module,
    data: DataSet,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device | str = "cpu",
    folder: Path | None = None,
    identity: dict[str, Any] | None = None,
    cache: Path | None = None,
    compile_model: bool = False,
    report: Callable[[EpochReport], None] | None = None,
) -> Result:
    """Train a model, in place, on the training split; the validation split steers and is reported.

    With `folder`, a checkpoint is written there after every epoch, and a run that finds one goes on from it, if its
    `identity` (architecture, data, recipe, seed) is the same. `cache` keeps what preprocessing computes.
    """
    started = time.perf_counter()
    device = torch.device(device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # graphs and kernels run on the current one
    recipe.check_fits(data.image_size, len(data.train))
    data = data.joined() if recipe.all_images else data
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    model.to(device, memory_format=layout)  # type: ignore[call-overload]
    batches, validation = data.batches(recipe, device, cache)
    optimizer = _make_optimizer(model, recipe, device)
    state = _State()
    if folder is not None:
        state = _resume(folder, model, optimizer, identity or {}) or state
        data.restore_unreadable(state.unreadable)
    run = _wrap(model, compile_model)
    step = _Step(run, batches, optimizer, recipe)
    from lrnas.layers.accelerate import fused  # with timm, like what builds a model

    ready = time.perf_counter()

    while state.epoch < recipe.epochs and not state.finished:
        epoch_started = time.perf_counter()
        generator = epoch_generator(seed, state.epoch)
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)) + rank())  # for dropout
        batches.start_epoch(generator)
        rates = _learning_rates(recipe, state, batches.steps)
        model.train()
        with fused(model):
            loss, accuracy, note = step.run_epoch(rates)
        trained = time.perf_counter()
        if not (math.isfinite(loss) and is_finite(model)):
            return Result("diverged", state.curve, time.perf_counter() - started, ready - started, step.parts)
        if dist.is_initialized():  # the running means of batch norm are rank 0's, as in the checkpoint
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
        val_loss, val_accuracy = (None, None) if recipe.all_images else _evaluate(model, validation)
        _steer(recipe, state, val_accuracy)
        state.epoch += 1
        state.unreadable = data.unreadable_state()
        images = batches.steps * batches.batch_size
        state.curve.append(
            EpochReport(
                epoch=state.epoch,
                epochs=recipe.epochs,
                lr=rates[-1],
                train_loss=loss,
                train_accuracy=accuracy,
                val_loss=val_loss,
                val_accuracy=val_accuracy,
                images_per_second=images / (trained - epoch_started - step.capture_seconds),
                seconds=time.perf_counter() - epoch_started,
                note=note,
            )
        )
        if folder is not None and rank() == 0:
            _save(folder, model, optimizer, state, identity or {})
        if report is not None and rank() == 0:
            report(state.curve[-1])
    return Result("completed", state.curve, time.perf_counter() - started, ready - started, step.parts)


def evaluate(
    model: nn.Module,
    split: Sized,
    data: DataSet,
    recipe: Recipe,
    *,
    device: torch.device | str = "cpu",
    cache: Path | None = None,
) -> tuple[float, float]:
    """Loss and accuracy of a model on a split, preprocessed as in training."""
    data = data.joined() if recipe.all_images else data
    return _evaluate(model, data.eval_batches(split, recipe, torch.device(device), cache))


def _make_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.SGD:
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    free = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    on_gpu = device.type == "cuda"
    return torch.optim.SGD(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": free, "weight_decay": 0.0}],
        lr=torch.tensor(recipe.lr, device=device) if on_gpu else recipe.lr,  # a graph reads it where it lies
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        fused=on_gpu,
    )


def _learning_rates(recipe: Recipe, state: _State, steps: int) -> list[float]:
    """The learning rate of every step of the coming epoch."""
    first, total = state.epoch * steps, recipe.epochs * steps
    times = range(first, first + steps)
    if recipe.schedule == "paper":
        if recipe.drop_at:
            parts = [recipe.drop_at + (1 - recipe.drop_at) * i / recipe.drops for i in range(recipe.drops)]
            state.drops = sum(state.epoch >= round(part * recipe.epochs, 6) for part in parts)
        dropped = recipe.lr * 0.1**state.drops
        return [dropped / (1 + recipe.lr * recipe.weight_decay * t) for t in times]
    if recipe.schedule == "polynomial":
        return [recipe.lr * (1 - t / total) ** recipe.power for t in times]
    rising = max(1.0, recipe.warmup * total)
    return [
        recipe.lr
        * min((t + 1) / rising, 0.5 * (1 + math.cos(math.pi * max(0.0, t - rising) / max(1.0, total - rising))))
        for t in times
    ]


def _steer(recipe: Recipe, state: _State, val_accuracy: float | None) -> None:
    """The paper's rule: a tenth of the learning rate whenever validation accuracy levels off."""
    if not recipe.watches_validation:
        return
    assert val_accuracy is not None
    if val_accuracy > state.best:
        state.best, state.stale = val_accuracy, 0
        return
    state.stale += 1
    if state.stale >= recipe.patience:
        state.stale = 0
        state.drops += 1
        state.finished = state.drops > recipe.drops


class _Step:
    """One step of SGD over part of the epoch's plan, captured as a CUDA graph where there is a GPU."""

    def __init__(self, model: nn.Module, batches: Batches, optimizer: torch.optim.SGD, recipe: Recipe) -> None:
        self.model = model
        self.batches = batches
        self.optimizer = optimizer
        self.recipe = recipe
        self.device = batches.device
        self.parts = 1
        """Micro-batches per step: more than 1 after running out of memory."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.capture_seconds = 0.0
        share = batches.batch_size // world_size()
        self.columns = torch.arange(share, device=self.device) + rank() * share
        self.position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.rates = torch.zeros(batches.steps, device=self.device)
        self.loss = torch.zeros((), dtype=torch.float64, device=self.device)
        self.correct = torch.zeros((), dtype=torch.int64, device=self.device)

    def run_epoch(self, rates: list[float]) -> tuple[float, float, str]:
        """Mean loss, accuracy, and what there is to say; a loss that is not finite ends the epoch."""
        note = ""
        self.capture_seconds = 0.0
        self.rates.copy_(torch.tensor(rates))
        for total in (self.position, self.loss, self.correct):
            total.zero_()
        for i in range(self.batches.steps):
            self.batches.load(i)
            while True:
                try:
                    self._advance(rates[i])
                    break
                except torch.OutOfMemoryError:
                    note = self._split()
            if i % 128 == 127 and world_size() == 1 and not math.isfinite(float(self.loss)):  # workers stay together
                break
        totals = torch.stack([self.loss, self.correct.double()])  # on the device, where NCCL wants them
        if dist.is_initialized():
            dist.all_reduce(totals)
        images = self.batches.steps * len(self.columns) * world_size()
        return float(totals[0]) / images, float(totals[1]) / images, note

    def _advance(self, rate: float) -> None:
        if self.device.type != "cuda":
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self._step()
        elif dist.is_initialized():  # the exchange of gradients stays outside of graphs
            self._step()
        else:
            if self.graph is None:
                self._capture()
            assert self.graph is not None
            self.graph.replay()

    def _step(self) -> None:
        on_gpu = self.device.type == "cuda"
        columns = self.position * self.batches.batch_size + self.columns
        if on_gpu:
            for group in self.optimizer.param_groups:
                group["lr"].copy_(self.rates.index_select(0, self.position)[0])
        plan = self.batches.plan[:, columns]
        self.optimizer.zero_grad(set_to_none=True)
        for part in plan.chunk(self.parts, dim=1):
            images, labels = self.batches.take(part, torch.bfloat16 if on_gpu else torch.float32)
            with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu, cache_enabled=False):
                outputs = self.model(images)
            loss, logits = self._losses(outputs, labels)
            (loss * (len(labels) / len(columns))).backward()
            self.loss += loss.detach().double() * len(labels)
            self.correct += (logits.argmax(1) == labels).sum()
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        self.position += 1

    def _losses(self, outputs: Tensor | tuple[Tensor, ...], labels: Tensor) -> tuple[Tensor, Tensor]:
        logits, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
        logits = logits.float()
        loss = F.cross_entropy(logits, labels, label_smoothing=self.recipe.label_smoothing)
        for head in auxiliary:
            loss = loss + self.recipe.aux_weight * F.cross_entropy(head.float(), labels)
        return loss, logits.detach()

    def _capture(self) -> None:
        """Record the step once. The steps that warm it up are undone."""
        started = time.perf_counter()
        touched = [*self.model.state_dict(keep_vars=True).values(), self.position, self.loss, self.correct]
        saved = [tensor.detach().clone() for tensor in touched]
        momentum = {p: s["momentum_buffer"].clone() for p, s in self.optimizer.state.items() if "momentum_buffer" in s}
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.position.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # loaders may pin memory meanwhile
            self._step()
        with torch.no_grad():
            for tensor, before in zip(touched, saved, strict=True):
                tensor.copy_(before)
            for parameter, values in self.optimizer.state.items():
                buffer = values.get("momentum_buffer")
                if buffer is not None:  # a first step from zero is a first step
                    buffer.copy_(momentum[parameter]) if parameter in momentum else buffer.zero_()
        torch.cuda.synchronize()
        self.graph = graph
        self.capture_seconds = time.perf_counter() - started

    def _split(self) -> str:
        """Twice as many micro-batches, the same step."""
        if 2 * self.parts > len(self.columns):
            raise
        self.parts *= 2
        self.graph = None
        self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        return f"out of memory: every step now takes {self.parts} micro-batches"


@torch.no_grad()
def _evaluate(model: nn.Module, batches: Evaluation) -> tuple[float, float]:
    model.eval()
    loss, correct, number = 0.0, 0.0, 0.0
    for images, labels in batches:
        with torch.autocast("cuda", torch.bfloat16, enabled=images.device.type == "cuda"):
            logits = model(images).float()
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        correct += int((logits.argmax(1) == labels).sum())
        number += len(labels)
    totals = torch.tensor([loss, correct, number], dtype=torch.float64)
    if dist.is_initialized():  # every worker had its share, or all; either way they agree on what came of it
        totals = totals.to(next(model.parameters()).device)
        dist.all_reduce(totals)
    loss, correct, number = totals.tolist()
    return loss / number, correct / number


def is_finite(model: nn.Module) -> bool:
    """Whether all weights are numbers; a ReLU can hide from the loss that some are not."""
    return all(bool(norm.isfinite()) for norm in torch._foreach_norm([p.detach() for p in model.parameters()]))


def _wrap(model: nn.Module, compile_model: bool) -> nn.Module:
    if compile_model:
        model = cast(nn.Module, torch.compile(model))
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    return model


def _save(folder: Path, model: nn.Module, optimizer: torch.optim.SGD, state: _State, identity: dict[str, Any]) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if (buffer := optimizer.state[parameter].get("momentum_buffer")) is not None:
            tensors[f"momentum.{name}"] = buffer
    save_checkpoint(folder, state.epoch, tensors, {"identity": identity, **described(model), "state": asdict(state)})


def _resume(folder: Path, model: nn.Module, optimizer: torch.optim.SGD, identity: dict[str, Any]) -> _State | None:
    found = load_checkpoint(folder)
    if found is None:
        return None
    tensors, record = found
    if other := difference(record["identity"], identity):
        raise CheckpointError(f"{folder} holds another run: {other}; choose another folder")
    model.load_state_dict({k.removeprefix("model."): t for k, t in tensors.items() if k.startswith("model.")})
    for name, parameter in model.named_parameters():
        if (buffer := tensors.get(f"momentum.{name}")) is not None:
            optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer).detach()
    saved = record["state"]
    return _State(**{**saved, "curve": [EpochReport(**entry) for entry in saved["curve"]]})
