"""How many trainings should share a GPU: measured on the device at hand, and picked from given measurements."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.recipes import Recipe
from lrnas.training import side_by_side
from lrnas.training.job import Images, Job
from lrnas.training.loop import train
from lrnas.training.side_by_side import Rate, Training, measure_rates, pick_number, random_images

DENSE = Architecture("nin", {"*": Allocation(width=0.1)}, batch_norm=True)
MIXED = Architecture("nin", {"*": Allocation.composite(vertical=0.5, horizontal=0.5, width=0.05)}, batch_norm=True)
DIGITS = Images("digits", "digits", channels=1, image_size=8, num_classes=10)
RECIPE = Recipe(epochs=1, batch_size=8, lr=0.1, clip=2.0, pad=1, drop_rate=0.2)


def test_trainings_are_measured_on_a_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their images are random, so fields of the recipe for images in files do not matter."""
    monkeypatch.setattr(side_by_side, "TOGETHER_SECONDS", 0.05)
    recipe = RECIPE.changed({"pad": 0, "min_area": 0.1})
    rates = measure_rates([DENSE, MIXED], recipe, DIGITS, "cpu", eval_batch=4, counts=(1, 3))
    assert [(rate.number, rate.memory, rate.eval_memory) for rate in rates] == [(1, 0, 0), (3, 0, 0)]
    assert rates[0].speedup == 1 and rates[1].speedup > 0


def test_networks_are_built_evaluated_and_measured_alone_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (calls.append(name), method(*given))[1]

    monkeypatch.setattr(Job, "create_model", counted("build", Job.create_model))
    monkeypatch.setattr(Training, "evaluate", counted("evaluate", Training.evaluate))
    monkeypatch.setattr(Training, "measure", counted("measure", Training.measure))
    monkeypatch.setattr(side_by_side, "ALONE_SECONDS", 0.0)
    monkeypatch.setattr(side_by_side, "TOGETHER_SECONDS", 0.05)
    assert len(measure_rates([DENSE, MIXED], RECIPE, DIGITS, "cpu", eval_batch=4, counts=(1, 5))) == 2
    assert calls == 2 * ["build", "measure", "evaluate"]


def test_measuring_ends_where_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[torch.nn.Module] = []

    def move(model: torch.nn.Module, device: torch.device) -> None:
        if len(moved) == 2:
            raise torch.OutOfMemoryError("no room for a third")
        moved.append(model)

    monkeypatch.setattr(side_by_side, "move_model", move)
    rates = measure_rates([MIXED, DENSE], RECIPE, DIGITS, "cpu", eval_batch=4, counts=(1, 2, 3, 4))
    assert [rate.number for rate in rates] == [1, 2]
    with pytest.raises(torch.OutOfMemoryError):
        measure_rates([MIXED], RECIPE, DIGITS, "cpu", eval_batch=4)


@pytest.mark.parametrize(
    ("speedups", "numbers"),
    [
        ([1.0, 1.8, 1.7, 1.6, 1.9], [1, 2, 3, 4]),  # two larger numbers that were no faster
        ([1.0, 0.9, 1.2, 1.1, 1.3], [1, 2, 3, 4, 6]),
    ],
)
def test_measuring_ends_when_more_are_no_faster(
    speedups: list[float], numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(speedups[1:])  # one training is as fast as itself
    monkeypatch.setattr(side_by_side, "_measure_speedup", lambda *_: next(found))
    monkeypatch.setattr(side_by_side, "ALONE_SECONDS", 0.0)
    rates = measure_rates([MIXED], RECIPE, DIGITS, "cpu", eval_batch=4, counts=(1, 2, 3, 4, 6))
    assert [rate.number for rate in rates] == numbers


def test_measuring_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "TIME_LIMIT", 0.0)
    assert len(measure_rates([MIXED], RECIPE, DIGITS, "cpu", eval_batch=4)) == 1


def test_the_smallest_number_that_is_nearly_the_fastest_and_fits() -> None:
    speedups = {1: 1.0, 2: 1.6, 4: 1.92, 8: 2.0, 12: 1.98}
    rates = [Rate(number, speedup, 0, 0) for number, speedup in speedups.items()]
    assert pick_number(rates, 1, 100, 100) == 4
    assert pick_number(rates, 1, 100, 3) == pick_number(rates, 30, 100, 100) == 2  # of CPU cores, of memory
    assert pick_number(rates, 1, 0, 100) == pick_number(rates, 1, 100, 0) == 1
    assert pick_number([Rate(1, 1.0, 0, 0), Rate(2, 1.04, 0, 0)], 1, 100, 100) == 1


@pytest.mark.gpu
def test_graphs_side_by_side_on_a_gpu() -> None:
    """All of them run, their memory is plausible, and trainings before and after give the same results."""
    images = Images("random", "random", channels=3, image_size=32, num_classes=10)
    networks = [Architecture("nin", batch_norm=True), MIXED]
    recipe = Recipe(epochs=2, batch_size=128, lr=0.01, drop_rate=0.2)
    data = random_images(images, recipe, 256)

    def losses() -> list[float]:
        model = Job(networks[0], "random", recipe, seed=0).create_model(data)
        return [report.train_loss for report in train(model, data, recipe, seed=0, device="cuda").curve]

    before = losses()
    rates = measure_rates(networks, recipe, images, "cuda", eval_batch=2000, counts=(1, 2, 4))
    assert [rate.number for rate in rates] == [1, 2, 4] and all(rate.speedup > 0 for rate in rates)
    weights = sum(parameter.numel() for parameter in Job(networks[0], "", recipe, 0).create_model(data).parameters())
    assert 12 * weights < rates[0].memory <= rates[2].memory < 8e9  # with gradients and momentum
    assert 2000 * 192 * 32 * 32 * 2 < rates[0].eval_memory <= rates[2].eval_memory < 16e9  # a map of the first layer
    assert losses() == pytest.approx(before, rel=0.02)
