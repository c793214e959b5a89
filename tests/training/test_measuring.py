"""The process that measures trainings side by side, and those that compile kernels for it."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.recipes import Recipe
from lrnas.training import measuring
from lrnas.training.gpu_sharing import PIPES
from lrnas.training.job import Images
from lrnas.training.measuring import MeasuringProcess, compile_kernels, measure
from lrnas.training.side_by_side import Rate

SMALL = Architecture("nin", {"*": Allocation(width=0.05)}, batch_norm=True)
OTHER = Architecture("nin", {"*": Allocation.composite(vertical=0.5, horizontal=0.5, width=0.05)}, batch_norm=True)
DIGITS = Images("digits", "digits", channels=1, image_size=8, num_classes=10)
RECIPE = Recipe(epochs=1, batch_size=8)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a file for each network that a process trains before it is measured, named after its process."""

    def make_training(network: Architecture, *_: object) -> None:
        (tmp_path / str(os.getpid())).write_text(network.to_json())
        if network == OTHER:
            raise torch.OutOfMemoryError("no room")
        time.sleep(60 if network.divisor > 1 else 0)

    monkeypatch.setattr(measuring, "make_training", make_training)
    return tmp_path


def test_each_network_is_compiled_by_a_process_and_all_have_ended(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Processes that fail or hang do no harm."""
    monkeypatch.setattr(measuring, "COMPILE_SECONDS", 1.0)
    slow = Architecture("nin", divisor=2)
    compile_kernels([SMALL, OTHER, slow], [RECIPE], DIGITS, "cpu", 4)
    assert "no room" in capfd.readouterr().err
    files = list(calls.iterdir())
    assert sorted(file.read_text() for file in files) == sorted(one.to_json() for one in (SMALL, OTHER, slow))
    for file in files:
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.name), 0)


def test_the_crops_of_most_epochs_are_measured_and_memory_is_that_of_the_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = Recipe(epochs=4, batch_size=8, early_crop=4)
    monkeypatch.setattr(measuring, "measure_rates", lambda _, used, *__, **___: [Rate(1, 1.0, used.crop**2, 10)])
    found = measure([SMALL], recipe, DIGITS, "cpu", 4)["rates"][0]
    assert (found["memory"], found["eval_memory"]) == (64, 40)


@pytest.mark.slow
@pytest.mark.ci
def test_a_process_measures_and_ends() -> None:
    found = MeasuringProcess([SMALL, OTHER], RECIPE, DIGITS, "cpu", 4).measure(timeout=200)
    assert found["gpu"] == "none" and found["is_alone"] and found["rates"][0]["number"] == 1
    assert 0 < found["compile_seconds"] < found["seconds"]


@pytest.mark.parametrize("output", ["", r"\\200\\004"])
def test_a_process_that_ends_without_a_result(output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/read\nprintf '{output}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    process = MeasuringProcess([SMALL], RECIPE, DIGITS, "cpu", 4)
    process.start()  # it gets its task at once
    monkeypatch.setenv(PIPES, "/folder/of/mps")  # the service starts later
    with pytest.raises(RuntimeError, match="the process that measures has ended"):
        process.measure(timeout=60)
    with (tmp_path / "read").open("rb") as stream:
        (networks, *_), pipes = pickle.load(stream), pickle.load(stream)
    assert pipes == "/folder/of/mps" and networks == [SMALL]


TOLD = """
import pickle, sys
from lrnas.training import measuring
def say(*words): print(*words, file=sys.stderr, flush=True)
measuring.compile_kernels = lambda networks, recipes, *_: say(len(networks), *(one.crop for one in recipes))
measuring.measure = lambda *_: say("measured") or {"seconds": 1.0}
measuring.serve()
"""


def test_kernels_of_all_sizes_are_compiled_before_it_is_told_to_measure() -> None:
    recipe = Recipe(epochs=4, batch_size=8, early_crop=4)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TOLD], **pipes) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(pickle.dumps(([SMALL, OTHER], recipe, DIGITS, "cpu", 4)))
        process.stdin.flush()
        assert process.stderr.readline() == b"2 4 8\n"
        written, told = process.communicate(pickle.dumps(None), timeout=60)
    assert told == b"measured\n"
    assert pickle.loads(written)["seconds"] >= 1


HANGING = """
import os, time
from lrnas.recipes import Recipe
from lrnas.training import measuring
measuring.make_training = lambda *_: (print(os.getpid(), flush=True), time.sleep(600))
measuring.compile_kernels([None], [Recipe()], None, "cpu", 4)
"""


@pytest.mark.slow
def test_processes_end_with_one_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", HANGING], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        compiling = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{compiling}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{compiling}").exists()


COMPILED = """
import os
from pathlib import Path
from lrnas.models.paper import named_networks
from lrnas.recipes import Recipe
from lrnas.training.job import Images
from lrnas.training.measuring import compile_kernels
from lrnas.training.side_by_side import measure_rates

def number():
    return len([*Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")])

networks = [named_networks()[name] for name in ("nin", "nin-c3-lr")]
images = Images("random", "random", channels=3, image_size=32, num_classes=10)
compile_kernels(networks, [Recipe()], images, "cuda", 500)
compiled = number()
measure_rates(networks, Recipe(), images, "cuda", eval_batch=500, counts=(1, 2))
print(compiled, number())
"""


@pytest.mark.gpu
def test_nothing_is_left_to_compile_when_networks_are_measured(tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILED], env=environment, stdout=subprocess.PIPE, check=True)
    before, after = map(int, done.stdout.split())
    assert before == after > 10
