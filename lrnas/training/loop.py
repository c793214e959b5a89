"""The training loop for one network. It is independent of any tuner: it reports every epoch through a callback.

On a GPU, the whole step (gather, forward, backward, update) is one CUDA graph in bf16 that is replayed for every batch,
without any work in Python. On a CPU, the same step runs eagerly in float32. All random numbers depend only on the seed
and the epoch, so on a CPU a run that continues from a checkpoint gives bit-identical results to an uninterrupted run.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sized
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lrnas._distributed import rank, world_size
from lrnas.data.in_memory import Batches, DataSet, Evaluation, epoch_generator
from lrnas.errors import error_line
from lrnas.layers.kernels import available
from lrnas.layers.layout import fastest_layout
from lrnas.recipes import Recipe
from lrnas.training.checkpoint import (
    DamagedCheckpoint,
    finished_run,
    load_checkpoint,
    load_weights,
    save_interval,
    save_model,
)

Status = Literal["completed", "diverged"]
Device = torch.device | str


@dataclass(frozen=True, slots=True)
class EpochReport:
    """The results of one epoch."""

    epoch: int
    """Counted from 1."""
    epochs: int
    lr: float
    """Learning rate of the last step."""
    train_loss: float
    train_accuracy: float
    val_loss: float | None
    """None, like `val_accuracy`, if the network was also trained on the validation images."""
    val_accuracy: float | None
    images_per_second: float
    """Speed of the training steps, without evaluation."""
    seconds: float
    note: str = ""
    """A message for the user, for example about lack of memory."""


Report = Callable[[EpochReport], None]
"""Callback after every epoch."""


@dataclass(slots=True)
class Result:
    """The outcome of a training."""

    status: Status
    curve: list[EpochReport]
    start_seconds: float
    """Time before the first step: moving the data, reading the checkpoint."""
    micro_batches: int
    """Number of parts into which every batch was split because memory was too small; 1: not split."""

    @property
    def val_accuracy(self) -> float | None:
        return self.curve[-1].val_accuracy if self.curve else None

    @property
    def images_per_second(self) -> float:
        """Speed of the median epoch."""
        rates = sorted(report.images_per_second for report in self.curve)
        return rates[len(rates) // 2] if rates else 0.0


@dataclass(slots=True)
class _State:
    """State that one epoch passes to the next, besides weights and momentum."""

    epoch: int = 0
    best: float = -1.0
    stale: int = 0
    drops: int = 0
    finished: bool = False
    curve: list[EpochReport] = field(default_factory=list)


def train(
    model: nn.Module,
    data: DataSet,
    recipe: Recipe,
    *,
    seed: int,
    device: Device = "cpu",
    folder: Path | None = None,
    identity: dict[str, Any] | None = None,
    cache: Path | None = None,
    report: Report | None = None,
) -> Result:
    """Train a model in place.

    Args:
        model: The network, which is moved to the device.
        data: The data set. The accuracy on its validation images is reported, and controls the learning rate in recipes
            that wait for plateaus.
        recipe: The settings of the training: epochs, batch size, learning rate and so on.
        seed: Seed of order, crops, reflections and dropout.
        device: Where to train.
        folder: Where checkpoints are written: after every epoch, those of large models less often. If the folder has
            one already, training continues from it.
        identity: Facts about the run: architecture, data, recipe and seed. A checkpoint with other facts is refused.
        cache: Folder for the results of preprocessing.
        report: Callback after every epoch.

    Returns:
        The outcome, with the results of all epochs, including epochs before a stop.
    """
    from lrnas.layers.accelerate import fused  # imports timm, which takes seconds

    started = time.perf_counter()
    device = torch.device(device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # CUDA graphs and kernels run on the current device
    recipe.check_fits(data.image_size, len(data.train))
    data = data.joined() if recipe.all_images else data
    move_model(model, device)
    batches, validation = data.batches(recipe, device, cache)
    optimizer = make_optimizer(model, recipe, device)
    state = _State() if folder is None else _resume(folder, model, optimizer, recipe, identity or {})
    wrapped = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    step = TrainingStep(wrapped, batches, optimizer, recipe)
    ready = time.perf_counter()
    interval, last_save = save_interval(model), ready

    status: Status = "completed"
    while state.epoch < recipe.epochs and not state.finished:
        epoch_started = time.perf_counter()
        generator = epoch_generator(seed, state.epoch)
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)) + rank())  # for dropout
        step.set_crop(recipe.size_in(state.epoch, data.image_size))
        batches.start_epoch(generator)
        rates = _learning_rates(recipe, state, batches.steps)
        model.train()
        with fused(model):
            train_loss, train_accuracy, note = step.run_epoch(rates)
        train_seconds = time.perf_counter() - epoch_started - step.capture_seconds
        if not (math.isfinite(train_loss) and is_finite(model)):
            status = "diverged"
            break
        if dist.is_initialized():  # all workers use the running means of rank 0, as in the checkpoint
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
        val_loss, val_accuracy = (None, None) if recipe.all_images else _evaluate(model, validation)
        _follow_plateaus(recipe, state, val_accuracy)
        state.epoch += 1
        losses = (train_loss, train_accuracy, val_loss, val_accuracy)
        speed, seconds = batches.steps * batches.batch_size / train_seconds, time.perf_counter() - epoch_started
        state.curve.append(EpochReport(state.epoch, recipe.epochs, rates[-1], *losses, speed, seconds, note))
        is_last = state.finished or state.epoch == recipe.epochs
        if folder is not None and rank() == 0 and (is_last or time.perf_counter() - last_save >= interval):
            _save(folder, model, optimizer, state, identity or {}, keep_momentum=not is_last)
            last_save = time.perf_counter()
        if report is not None and rank() == 0:
            report(state.curve[-1])
    return Result(status, state.curve, ready - started, step.micro_batches)


def move_model(model: nn.Module, device: torch.device) -> None:
    """Move a model to a device, in the memory layout that is fastest there."""
    model.to(device, memory_format=fastest_layout(device))  # type: ignore[call-overload]


def make_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.SGD:
    """Return the optimizer of a model that is on the device."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    free = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    on_gpu = device.type == "cuda"
    return torch.optim.SGD(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": free, "weight_decay": 0.0}],
        lr=torch.tensor(recipe.lr, device=device) if on_gpu else recipe.lr,  # a CUDA graph reads it from the tensor
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        fused=on_gpu,
    )


def _resume(
    folder: Path, model: nn.Module, optimizer: torch.optim.SGD, recipe: Recipe, identity: dict[str, Any]
) -> _State:
    """Restore weights, momentum and state from the checkpoint in a folder, if there is one."""
    checkpoint = load_checkpoint(folder, identity)
    if checkpoint is None:
        return _State()
    tensors, record = checkpoint
    load_weights(model, tensors)
    for name, parameter in model.named_parameters():
        if (buffer := tensors.get(f"momentum.{name}")) is not None:
            if buffer.shape != parameter.shape:
                raise DamagedCheckpoint(f"the momentum of {name} in {folder} has another shape than its weight")
            optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer).detach()
    try:
        saved = {item.name: record["state"][item.name] for item in fields(_State)}  # earlier versions had more
        state = _State(**{**saved, "curve": [EpochReport(**entry) for entry in saved["curve"]]})
    except (KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"the record in {folder} is incomplete ({error_line(error)})") from None
    is_over = state.finished or state.epoch >= recipe.epochs
    if recipe.momentum and not is_over and not any(name.startswith("momentum.") for name in tensors):
        raise finished_run(folder, state.epoch)
    return state


def _save(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.SGD,
    state: _State,
    identity: dict[str, Any],
    *,
    keep_momentum: bool,
) -> None:
    buffers = {name: optimizer.state[value].get("momentum_buffer") for name, value in model.named_parameters()}
    momentum = {f"momentum.{name}": buffer for name, buffer in buffers.items() if keep_momentum and buffer is not None}
    save_model(folder, state.epoch, model, momentum, {"identity": identity, "state": asdict(state)})


def _learning_rates(recipe: Recipe, state: _State, steps: int) -> list[float]:
    """Return the learning rate of every step of the next epoch."""
    total = recipe.epochs * steps
    times = range(state.epoch * steps, (state.epoch + 1) * steps)
    if recipe.schedule == "paper":
        if recipe.drop_at:
            shares = [recipe.drop_at + (1 - recipe.drop_at) * i / recipe.drops for i in range(recipe.drops)]
            state.drops = sum(state.epoch >= round(share * recipe.epochs, 6) for share in shares)
        dropped = recipe.lr * 0.1**state.drops
        return [dropped / (1 + recipe.lr * recipe.weight_decay * t) for t in times]
    if recipe.schedule == "polynomial":
        return [recipe.lr * (1 - t / total) ** recipe.power for t in times]
    rising = max(1.0, recipe.warmup * total)
    falling = max(1.0, total - rising)
    return [
        recipe.lr * min((t + 1) / rising, 0.5 * (1 + math.cos(math.pi * max(0.0, t - rising) / falling))) for t in times
    ]


def _follow_plateaus(recipe: Recipe, state: _State, val_accuracy: float | None) -> None:
    """Apply the paper's rule: divide the learning rate by 10 when validation accuracy stops improving."""
    if not recipe.watches_validation:
        return
    assert val_accuracy is not None
    state.stale += 1
    if val_accuracy > state.best:
        state.best, state.stale = val_accuracy, 0
    elif state.stale >= recipe.patience:
        state.stale = 0
        state.drops += 1
        state.finished = state.drops > recipe.drops


class TrainingStep:
    """One step of SGD on the next batch, captured as a CUDA graph if there is a GPU.

    Args:
        model: The network, on the device of the batches.
        batches: The training batches.
        optimizer: The optimizer from `make_optimizer`.
        recipe: The settings of the training.
    """

    def __init__(self, model: nn.Module, batches: Batches, optimizer: torch.optim.SGD, recipe: Recipe) -> None:
        self.model = model
        self.batches = batches
        self.optimizer = optimizer
        self.recipe = recipe
        self.on_gpu = batches.device.type == "cuda"
        warnings.filterwarnings("ignore", "Attempting to run cuBLAS")  # PyTorch does what is missing, and says so
        self.micro_batches = 1
        """Number of parts of every batch; doubled when memory runs out."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.capture_seconds = 0.0
        device = batches.device
        self.num_images = batches.batch_size // world_size()
        """Images per step of this worker."""
        self.uses_kernels = available(device)
        self.network: Callable[[Tensor], Tensor | tuple[Tensor, ...]] = model
        if self.on_gpu and not dist.is_initialized():
            from lrnas.layers.casts import CastWeights  # imports timm, which takes seconds

            self.network = CastWeights(model, torch.bfloat16)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        """Number of the step within the epoch."""
        self.rates = torch.zeros(batches.steps, device=device)
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.correct = torch.zeros((), dtype=torch.int64, device=device)

    def set_crop(self, size: int) -> None:
        """Train on crops of this number of rows and columns from the next epoch on."""
        if size != self.batches.crop:
            self.batches.crop = size
            self.graph = None

    def run_epoch(self, rates: list[float]) -> tuple[float, float, str]:
        """Train for one epoch; a loss that is not finite ends it early.

        Returns:
            Mean loss, accuracy and a note for the user.
        """
        note = ""
        self.capture_seconds = 0.0
        self.rates.copy_(torch.tensor(rates))
        for total in (self.position, self.loss, self.correct):
            total.zero_()
        for i, rate in enumerate(rates):
            self.batches.load(i)
            while True:
                try:
                    self.advance(rate)
                    break
                except torch.OutOfMemoryError:
                    if 2 * self.micro_batches > self.num_images:
                        raise
                    self.micro_batches *= 2  # the gradients stay the same
                    self.graph = None
                    self.optimizer.zero_grad(set_to_none=True)
                    torch.cuda.empty_cache()
                    note = f"out of memory: every step now takes {self.micro_batches} micro-batches"
            # with several workers, the epoch never ends early: they wait for each other in every step
            if i % 128 == 127 and world_size() == 1 and not math.isfinite(float(self.loss)):
                break
        totals = torch.stack([self.loss, self.correct.double()])  # on the device, as NCCL requires
        if dist.is_initialized():
            dist.all_reduce(totals)
        images = self.batches.steps * self.num_images * world_size()
        return float(totals[0]) / images, float(totals[1]) / images, note

    def advance(self, rate: float) -> None:
        """Make the next step of the epoch.

        Args:
            rate: The learning rate. On a GPU, it is read from `self.rates` instead, because a graph cannot use `rate`.
        """
        if self.on_gpu and not dist.is_initialized():  # gradients are exchanged outside of graphs
            if self.graph is None:
                self.graph = self.capture()
            self.graph.replay()
        else:
            self._step(rate)

    def _step(self, rate: float = 0.0) -> None:
        # with as few operations as possible: in small networks, their number decides how long a step takes
        groups = self.optimizer.param_groups
        if self.on_gpu:  # all groups have the same tensor
            torch.index_select(self.rates, 0, self.position, out=groups[0]["lr"].view(1))
        for group in groups:
            group["lr"] = groups[0]["lr"] if self.on_gpu else rate
        places = self.batches.places.unflatten(1, (self.batches.steps, -1)).index_select(1, self.position)[:, 0]
        places = places.narrow(1, rank() * self.num_images, self.num_images)
        self.optimizer.zero_grad(set_to_none=True)
        for part in places.chunk(self.micro_batches, dim=1):
            images, labels = self.batches.take(part, torch.bfloat16 if self.on_gpu else torch.float32)
            with torch.autocast("cuda", torch.bfloat16, enabled=self.on_gpu, cache_enabled=False):
                outputs = self.network(images)
            self._backward(outputs, labels)
        if self.recipe.clip:
            self._clip()
        self.optimizer.step()
        self.position += 1

    def _backward(self, outputs: Tensor | tuple[Tensor, ...], labels: Tensor) -> None:
        """Compute the gradients, and add to the loss and to the number of correct answers of the epoch."""
        if not self.uses_kernels:
            loss, logits = _loss(outputs, labels, self.recipe)
            (loss if self.micro_batches == 1 else loss * (len(labels) / self.num_images)).backward()
            self.loss.add_(loss.detach(), alpha=len(labels))
            self.correct += (logits.argmax(1) == labels).sum()
            return
        from lrnas.layers.kernels.losses import cross_entropy  # needs Triton

        logits, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
        smoothing, weight = self.recipe.label_smoothing, self.recipe.aux_weight
        gradients = [cross_entropy(logits, labels, self.num_images, self.loss, self.correct, smoothing=smoothing)]
        gradients += [cross_entropy(head, labels, self.num_images, self.loss, weight=weight) for head in auxiliary]
        torch.autograd.backward([logits, *auxiliary], gradients)

    def _clip(self) -> None:
        """Limit the norm of the gradient."""
        if not self.optimizer.defaults["fused"]:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
            return
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        # a fused optimizer divides gradients by this number while it reads them
        self.optimizer.grad_scale = norm.div_(self.recipe.clip).clamp_(min=1)  # type: ignore[attr-defined]

    def capture(self, stream: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
        """Record a step as a CUDA graph, and undo the changes of the steps that recording needs.

        Args:
            stream: Where to record; None: PyTorch's own stream for that. Graphs that were recorded on the same stream
                share cuBLAS's working memory, so they must not be replayed at the same time.
        """
        started = time.perf_counter()
        touched = [*self.model.state_dict(keep_vars=True).values(), self.position, self.loss, self.correct]
        saved = [tensor.detach().clone() for tensor in touched]
        momentum = {p: s["momentum_buffer"].clone() for p, s in self.optimizer.state.items() if "momentum_buffer" in s}
        first = torch.cuda.Stream() if stream is None else stream
        first.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(first):
                for _ in range(2):
                    self.position.zero_()
                    self._step()
            torch.cuda.current_stream().wait_stream(first)
            self.optimizer.zero_grad(set_to_none=True)
            # other threads may use CUDA meanwhile
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._step()
        finally:  # also if there is too little memory, and the step is recorded again with micro-batches
            torch.cuda.current_stream().wait_stream(first)
            with torch.no_grad():
                for tensor, before in zip(touched, saved, strict=True):
                    tensor.copy_(before)
                for parameter, values in self.optimizer.state.items():
                    buffer = values.get("momentum_buffer")
                    if buffer is not None:  # if there was no momentum before, zero gives the same first step
                        buffer.copy_(momentum[parameter]) if parameter in momentum else buffer.zero_()
            torch.cuda.synchronize()
        self.capture_seconds = time.perf_counter() - started
        return graph


def _loss(outputs: Tensor | tuple[Tensor, ...], labels: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Return the loss, including the losses of auxiliary heads, and the logits."""
    logits, *auxiliary = outputs if isinstance(outputs, tuple) else (outputs,)
    logits = logits.float()
    loss = F.cross_entropy(logits, labels, label_smoothing=recipe.label_smoothing)
    for head in auxiliary:
        loss = loss + recipe.aux_weight * F.cross_entropy(head.float(), labels)
    return loss, logits.detach()


def is_finite(model: nn.Module) -> bool:
    """Return whether all weights are finite. The loss does not always show it, because a ReLU can hide NaN."""
    return all(bool(norm.isfinite()) for norm in torch._foreach_norm([p.detach() for p in model.parameters()]))


def evaluate(
    model: nn.Module, split: Sized, data: DataSet, recipe: Recipe, *, device: Device = "cpu", cache: Path | None = None
) -> tuple[float, float]:
    """Evaluate a model on a split, with the same preprocessing as in its training.

    Args:
        model: The network, on the device.
        split: A split of the data set, for example `data.test()`.
        data: The data set.
        recipe: The recipe of the training.
        device: Where the model is.
        cache: Folder for the results of preprocessing.

    Returns:
        Loss and accuracy.
    """
    data = data.joined() if recipe.all_images else data
    return _evaluate(model, data.eval_batches(split, recipe, torch.device(device), cache))


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
    if dist.is_initialized():  # shares may differ in size, so workers add up their sums
        totals = totals.to(next(model.parameters()).device)
        dist.all_reduce(totals)
    loss, correct, number = totals.tolist()
    return loss / number, correct / number
