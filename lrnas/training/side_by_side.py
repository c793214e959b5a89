"""How many networks should train at the same time on one GPU: measured speed and memory of trainings side by side.

All trainings run in one process, each with its own CUDA graph on its own stream, because it would take too long to
start as many processes. The result is an estimate for processes with CUDA MPS. Networks differ in cost, so images per
second would depend on which networks are in the mix. Instead, the time that all need side by side is compared with the
time that the same steps need one after the other.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch
from torch import nn

from lrnas.arch.architecture import Architecture
from lrnas.data.in_memory import Batches, ImageSet, Split, epoch_generator
from lrnas.recipes import Recipe
from lrnas.training.job import Images, Job
from lrnas.training.loop import Device, TrainingStep, evaluate, make_optimizer, move_model

COUNTS = (1, 2, 4, 6, 8, 12)
"""Numbers of trainings that are tried."""
STEPS = 4
"""Batches of random images."""
ROUNDS = 3
"""Number of times that everything is measured; the median counts."""
ALONE_SECONDS, TOGETHER_SECONDS = 0.05, 0.3
"""Shortest time in which steps of one training alone are measured, and the time for several side by side."""
WORSE_COUNTS = 2
"""Measuring stops after this many counts in a row without a new highest speed."""
TIME_LIMIT = 60.0
"""Seconds after which no larger count is tried."""
ENOUGH = 0.95
"""Share of the highest speed at which more trainings at a time are not worth their memory."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Speed and memory of a number of trainings side by side."""

    number: int
    speedup: float
    """Speed of all of them together, relative to the same trainings one after the other; 1 for one training."""
    memory: int
    """Bytes of GPU memory that the largest of them needs for training, without images and without the CUDA context."""
    eval_memory: int
    """Bytes that an evaluation needs in addition, at most."""


def measure_rates(
    architectures: Sequence[Architecture],
    recipe: Recipe,
    images: Images,
    device: Device,
    *,
    eval_batch: int,
    counts: Sequence[int] = COUNTS,
) -> list[Rate]:
    """Measure how fast networks train side by side on a GPU. On a CPU, they take turns.

    Args:
        architectures: The networks. If more trainings are measured, they are taken again from the beginning, and what
            they need alone is not measured again.
        recipe: The settings of the training.
        images: Size, channels and classes of the images; their pixels are random.
        device: Where to train.
        eval_batch: Number of images in a batch of the evaluation, whose memory is measured too.
        counts: The numbers of trainings to measure, in ascending order.

    Returns:
        The measurements. Larger numbers are left out if there is no memory for them, if two counts in a row
        were not the fastest so far, or if the measurement takes more than a minute.

    Raises:
        torch.OutOfMemoryError: There is no memory for a single training.
    """
    from lrnas.layers.accelerate import fused  # imports timm, which takes seconds

    started = time.perf_counter()
    device = torch.device(device)
    recipe = for_random_images(recipe)
    data = random_images(images, recipe, eval_batch)
    batches, _ = data.batches(recipe, device, None)
    batches.start_epoch(epoch_generator(0, 0))
    models: list[nn.Module] = []
    trainings: list[Training] = []
    rates: list[Rate] = []
    with ExitStack() as stack:
        for number in counts:
            try:
                while (place := len(trainings)) < number:
                    first = place % len(architectures)  # the training of the same network
                    if first == place:
                        models.append(Job(architectures[place], data.name, recipe, seed=0).create_model(data))
                    training = Training(copy.deepcopy(models[first]), recipe, data, batches)
                    if first == place:
                        training.measure()
                    else:
                        training.memory, training.seconds = trainings[first].memory, trainings[first].seconds
                    stack.enter_context(fused(training.step.model))
                    trainings.append(training)
            except torch.OutOfMemoryError:
                if not rates:
                    raise
                break
            speedup = _measure_speedup(trainings, rates[-1].speedup if rates else 1.0) if number > 1 else 1.0
            memory, eval_memory = (
                max(sizes) for sizes in zip(*(training.memory for training in trainings), strict=True)
            )
            rates.append(Rate(number, speedup, memory, eval_memory))
            best = max(range(len(rates)), key=lambda i: rates[i].speedup)
            if len(rates) - 1 - best >= WORSE_COUNTS or time.perf_counter() - started > TIME_LIMIT:
                break
    return rates


def pick_number(rates: Sequence[Rate], memory_per_training: float, memory: float, most: int) -> int:
    """Pick the number of trainings at a time: the smallest that reaches 95 % of the highest speed.

    Args:
        rates: Measurements of `measure_rates`.
        memory_per_training: Bytes that a training process needs.
        memory: Bytes that there are for all of them.
        most: Largest number that is allowed for other reasons, such as the number of CPU cores.

    Returns:
        One of the measured numbers that fits; 1 if none does.
    """
    fitting = [rate for rate in rates if rate.number <= most and rate.number * memory_per_training <= memory]
    enough = ENOUGH * max((rate.speedup for rate in fitting), default=0.0)
    return min((rate.number for rate in fitting if rate.speedup >= enough), default=1)


class Training:
    """The training of one network on random images, on a stream of its own if there is a GPU.

    Args:
        model: The network, which is moved to the device of the batches.
        recipe: The settings of the training.
        data: The random images.
        batches: Their batches, which all trainings share.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, data: ImageSet, batches: Batches) -> None:
        from lrnas.layers.accelerate import fused

        device = batches.device
        self.data = data
        self.num_done = 0
        self.seconds = 0.0
        """Duration of a step if no other training runs."""
        self.memory = (0, 0)
        """Bytes for training, and more for evaluation, from `evaluate`."""
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._memory_before = _reserved_memory(device)
        move_model(model, device)
        self.step = TrainingStep(model, batches, make_optimizer(model, recipe, device), recipe)
        model.train()
        if self.stream is not None:
            with fused(model):
                self.step.graph = self.step.capture(self.stream)

    def advance(self) -> None:
        """Make one step; on a GPU, only enqueue it."""
        with torch.cuda.stream(self.stream):
            if self.num_done % STEPS == 0:
                self.step.position.zero_()
            self.step.advance(0.0)  # with a learning rate of 0 the weights stay as they are
        self.num_done += 1

    def evaluate(self) -> None:
        """Evaluate the network for the first time, which compiles kernels, and measure the memory of both."""
        model, device = self.step.model, self.step.batches.device
        held = _reserved_memory(device)
        evaluate(model, self.data.val, self.data, self.step.recipe, device=device)
        model.train()
        peak = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else 0
        self.memory = (held - self._memory_before, peak - held)

    def measure(self) -> None:
        """Measure the memory and the duration of a step."""
        from lrnas.layers.accelerate import fused

        self.evaluate()
        with fused(self.step.model):
            number = 1  # the search for a number of steps also brings the GPU up to its clock rate
            while time_steps([self], [number]) < ALONE_SECONDS:
                number *= 2
            self.seconds = statistics.median(time_steps([self], [number]) for _ in range(ROUNDS)) / number


def make_training(
    architecture: Architecture, recipe: Recipe, images: Images, device: Device, eval_batch: int
) -> Training:
    """The training of a network alone.

    Args:
        architecture: The network.
        recipe: The settings of the training, from `for_random_images`.
        images: Size, channels and classes of the images; their pixels are random.
        device: Where to train.
        eval_batch: Number of images for evaluation.
    """
    data = random_images(images, recipe, eval_batch)
    batches, _ = data.batches(recipe, torch.device(device), None)
    batches.start_epoch(epoch_generator(0, 0))
    return Training(Job(architecture, data.name, recipe, seed=0).create_model(data), recipe, data, batches)


def _reserved_memory(device: torch.device) -> int:
    """Return the bytes that PyTorch holds on a GPU, without free memory, and begin to look for a new peak."""
    if device.type == "cpu":
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_reserved(device)


def for_random_images(recipe: Recipe) -> Recipe:
    """The recipe without the settings that only real images can have."""
    return replace(recipe, whiten=False, min_area=0.0, all_images=False)


def random_images(images: Images, recipe: Recipe, eval_batch: int) -> ImageSet:
    """A data set of random pixels: some batches for training, and one for evaluation.

    Args:
        images: Size, channels and classes of the images.
        recipe: The recipe, which has the batch size.
        eval_batch: Number of images for evaluation.
    """
    generator = torch.Generator().manual_seed(0)

    def split(number: int) -> Split:
        shape = (number, images.image_size, images.image_size, images.channels)
        pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
        return Split(pixels, torch.randint(images.num_classes, (number,), generator=generator))

    classes = tuple(map(str, range(images.num_classes)))
    return ImageSet("random pixels", classes, split(STEPS * recipe.batch_size), split(eval_batch), split(0))


def _measure_speedup(trainings: Sequence[Training], expected: float) -> float:
    """Return the speed of trainings side by side, relative to one after the other.

    Args:
        trainings: The trainings. They make different numbers of steps, which take the same time if each runs alone.
        expected: An estimate of the result, which decides how many steps are measured.
    """
    share = TOGETHER_SECONDS * expected / len(trainings)
    steps = [max(2, round(share / training.seconds)) for training in trainings]
    alone = sum(number * training.seconds for number, training in zip(steps, trainings, strict=True))
    return alone / statistics.median(time_steps(trainings, steps) for _ in range(ROUNDS))


def time_steps(trainings: Sequence[Training], steps: Sequence[int]) -> float:
    """Return the seconds that trainings need side by side for a number of steps each."""
    # in the order in which steps would begin if they did not disturb each other, so that all streams have work
    begins = [(i * training.seconds, number) for number, training in enumerate(trainings) for i in range(steps[number])]
    order = [trainings[number] for _, number in sorted(begins)]
    on_gpu = trainings[0].stream is not None
    if on_gpu:
        torch.cuda.synchronize()
    started = time.perf_counter()
    for training in order:
        training.advance()
    if on_gpu:
        torch.cuda.synchronize()  # waits for all streams
    return time.perf_counter() - started
