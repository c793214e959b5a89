"""How many trials share a GPU: what is measured, what is kept, and what is done if nothing can be measured."""

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from pictures import write_set

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet
from lrnas.recipes import Recipe
from lrnas.searching import trials_per_gpu
from lrnas.searching.ray_cluster import Workers
from lrnas.searching.settings import SearchSettings
from lrnas.searching.setup import SearchTraining
from lrnas.searching.trials_per_gpu import CONTEXT_MEMORY, FILE, Measurement, Sharing, decide, look_up, share_gpus
from lrnas.spaces.space import load_space
from lrnas.study.objectives import Limits
from lrnas.training.measuring import USED_MEMORY, MeasuringProcess
from lrnas.training.side_by_side import Rate

SMALL = Architecture("nin", {"*": Allocation(width=0.05)}, batch_norm=True)
WIDER = replace(SMALL, divisor=2)
RECIPE = Recipe(epochs=1, batch_size=8)


def test_a_measurement_is_made_once_for_each_gpu(tmp_path: Path) -> None:
    file, made = tmp_path / "cache" / FILE, []

    def find(gpu: str, batch_size: int = 128) -> Any:
        conditions = {"gpu": gpu, "batch_size": batch_size}

        def measure() -> dict[str, Any]:
            made.append(conditions)
            return {**conditions, "rates": [{"number": len(made)}]}

        return look_up(file, conditions, measure)["rates"][0]["number"]

    assert [find("H200"), find("H200"), find("A100"), find("H200"), find("H200", 512)] == [1, 1, 2, 1, 3]
    assert len(json.loads(file.read_text())) == 3
    for damaged in ("[{", "7", '["text"]', '{"gpu": "H200"}'):
        file.write_text(damaged)
        assert find("H200") == find("H200") == len(made)


def test_a_measurement_on_a_gpu_that_others_use_is_not_kept(tmp_path: Path) -> None:
    for is_alone in (False, True):
        record = {"gpu": "H200", "is_alone": is_alone}
        assert look_up(tmp_path / FILE, {"gpu": "H200"}, record.copy) == {"gpu": "H200"}
        assert (tmp_path / FILE).exists() == is_alone


def test_a_folder_that_cannot_be_written_keeps_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert look_up(tmp_path / "file" / FILE, {"gpu": "H200"}, lambda: {"gpu": "H200"}) == {"gpu": "H200"}


def test_images_in_files_have_room_as_long_as_a_gpu_can_hold_them(tmp_path: Path) -> None:
    write_set(tmp_path / "colours", {"train": 12, "val": 4, "test": 4})
    data, digits = load_set(f"folder:{tmp_path}/colours", tmp_path, image_size=8), load_set("digits")
    jpegs = load_set(f"folder:{tmp_path}/colours", tmp_path, image_size=8, pack="jpeg")
    rates = [asdict(Rate(number, float(number), 1000, 500)) for number in (1, 2, 3, 4)]
    size, training = data.num_bytes, CONTEXT_MEMORY + 3 * 1000 + 500
    assert size > 36 * 8 * 8 * 3

    def share(data: DataSet, memory: int, image_memory: float, is_shared: bool) -> Sharing:
        record = {"rates": rates, "memory": memory, "shares_memory": is_shared}
        return decide(record, RECIPE, data, image_memory=image_memory, largest_batch=3 * RECIPE.batch_size, most=16)

    for is_shared in (True, False):
        assert share(digits, 10**12, 0.5, is_shared) == Sharing(4, 4.0, training + digits.num_bytes, 0)
        for memory, image_memory in ((size, 0.5), (10**12, 0.0)):  # they stay on the disk
            on_disk = share(data, memory, image_memory, is_shared)
            assert (on_disk.memory, on_disk.shared) == (training, 0)
            on_disk = share(jpegs, memory, 0.5, is_shared)
            assert (on_disk.memory, on_disk.shared) == (training, 0)
    assert share(data, 10**12, 0.5, True) == Sharing(4, 4.0, training, size)
    assert share(data, 10**12, 0.5, False) == Sharing(4, 4.0, training + size, 0)
    # a trial has image_memory of its part of a GPU for images; with 3 trials, that is enough for them
    assert share(data, 10**12, 3.5 * size / 10**12, False).number == 3
    assert share(data, 10**12, 3.5 * size / 10**12, True).number == 4
    # the images are counted once
    memory = round((2.5 * training + size) / USED_MEMORY)
    assert share(data, memory, 1.0, True).number == 2


def test_four_networks_are_measured_the_first_among_them(tmp_path: Path) -> None:
    networks = [replace(SMALL, divisor=number) for number in range(2, 12)]
    for number, measured in ((10, [2, 4, 7, 9]), (2, [2, 3])):
        measurement = Measurement(Workers(), networks[:number], RECIPE, load_set("digits"), tmp_path, "cpu")
        assert [network.divisor for network in measurement.networks] == measured


def test_a_process_is_started_only_if_something_is_to_be_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int | None] = []
    monkeypatch.setattr(MeasuringProcess, "start", lambda process: started.append(concurrency))
    for concurrency in (None, 1, 2):
        with Measurement(Workers(1, 0.25, concurrency), [SMALL], RECIPE, load_set("digits"), tmp_path, "cpu") as one:
            pass
    assert started == [None, 2]
    (tmp_path / FILE).write_text(json.dumps([one.conditions]))
    with one:
        assert one.kept() == one.conditions
    assert started == [None, 2]


@pytest.fixture
def ray_with_a_gpu() -> Iterator[None]:
    """Ray that believes in a GPU, on any machine."""
    ray.init(num_cpus=3, num_gpus=1, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_with_a_gpu")
def test_a_worker_measures_and_a_second_search_does_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lrnas")

    def share(workers: Workers) -> Workers:
        with Measurement(workers, [SMALL, WIDER], RECIPE, load_set("digits"), tmp_path, "cpu") as measurement:
            return share_gpus(measurement, image_memory=0.5)

    first = share(Workers(1, 0.25))
    (record,) = json.loads((tmp_path / FILE).read_text())
    assert record["gpu"] == "none" and record["image_size"] == 8 and record["rates"][0]["number"] == 1
    number = round(1 / first.gpus)
    assert first == Workers(1, 10_000 // number / 10_000, concurrency=number) and number <= 3  # there are 3 CPUs
    assert share(Workers(1, 0.25)) == first and share(Workers(1, 0.25, concurrency=1)) == Workers(1, 1, 1, most=1)
    assert caplog.text.count("measuring how many networks") == 1
    assert caplog.text.count(f"kept in {tmp_path / FILE}") == 2  # none is needed for one at a time


@pytest.mark.slow
@pytest.mark.usefixtures("ray_with_a_gpu")
def test_without_a_measurement_four_share_a_gpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "lrnas")

    def share(networks: list[Architecture]) -> Workers:
        with Measurement(Workers(1, 0.25), networks, RECIPE, load_set("digits"), tmp_path, "cpu") as measurement:
            return share_gpus(measurement, image_memory=0.5)

    def reason() -> str:
        start = "4 networks at a time on a GPU; how many are best cannot be measured: "
        return caplog.messages[-1].removeprefix(start)

    assert share([]) == Workers(1, 0.25, concurrency=3)  # an error in the process
    assert reason().startswith("ZeroDivisionError: ")

    def fill_memory(*_: Any, **settings: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(MeasuringProcess, "measure", fill_memory)
        assert share([SMALL]) == Workers(1, 1, concurrency=1)
    assert caplog.messages[-1] == "1 network at a time on a GPU: there is no memory for more"

    monkeypatch.setattr(trials_per_gpu, "PATIENCE", 0.1)
    assert share([SMALL]) == Workers(1, 0.25, concurrency=3)
    assert reason() == "it takes more than 0.1 s" and not (tmp_path / FILE).exists()


def test_the_networks_within_the_limits_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrnas.searching.trials_per_gpu.describe", lambda device: {"gpu": "H200"})
    space, workers = load_space("nin", batch_norm=True), Workers(1, 0.25)
    training = SearchTraining(SearchSettings(space="nin", budget=1), space, "digits", None)
    measured = []
    monkeypatch.setattr("lrnas.searching.trials_per_gpu._some_of", lambda networks: measured.append(networks) or [])
    limits = Limits(max_macs=training.cost(space.uniform["lr-x0.5"])["macs"])
    point = space.params_of(space.uniform["lr-x0.25"])
    for limit, feasible in ((Limits(), None), (limits, None), (Limits(max_macs=1), point)):
        assert training.measurement(workers, limit, feasible) is not None
    named = [*space.points.values(), *space.uniform.values()]
    assert measured[0] == named and space.points["nin"] not in measured[1]
    assert measured[1] == [network for network in named if training.cost(network)["macs"] <= limits.max_macs]
    assert [space.params_of(network) for network in measured[2]] == [point]


def test_nothing_is_measured_on_a_cpu_on_a_cluster_or_if_the_settings_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    space = load_space("nin", batch_norm=True)

    def measurement(workers: Workers, **settings: Any) -> object:
        settings = {"space": "nin", "budget": 1, **settings}
        return SearchTraining(SearchSettings(**settings), space, "digits", None).measurement(workers, Limits(), None)

    assert measurement(Workers()) is measurement(Workers(1, 1)) is None
    assert measurement(Workers(1, 0.25, address="10.0.0.1:6379")) is None
    assert measurement(Workers(1, 0.25), gpus_per_trial=0.25) is None
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    assert measurement(Workers(1, 0.25)) is None
