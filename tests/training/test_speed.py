"""The measured speed of training."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.errors import LrnasError
from lrnas.recipes import Recipe
from lrnas.training import speed
from lrnas.training.job import Images
from lrnas.training.side_by_side import STEPS, Training
from lrnas.training.speed import measure_speed, measure_speeds

SMALL = Architecture("nin", {"*": Allocation(width=0.1)}, batch_norm=True)
DENSE = Architecture("nin", batch_norm=True)
DIGITS = Images("digits", "digits", channels=1, image_size=8, num_classes=10)
RECIPE = Recipe(batch_size=32, pad=1)


def test_what_a_step_costs_whatever_its_batch_is_counted_once_per_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []

    def time_steps(trainings: Sequence[Training], steps: Sequence[int]) -> float:
        """The seconds of steps that take 10 ms and 1 ms per image."""
        batches.append(len(trainings[0].data.train) // STEPS)
        return sum(steps) * (0.01 + 0.001 * batches[-1])

    monkeypatch.setattr(speed, "time_steps", time_steps)
    monkeypatch.setattr(speed, "STEP_SECONDS", 0.03)
    found = measure_speed(SMALL, RECIPE, DIGITS, "cpu", eval_batch=50)
    assert found.step == pytest.approx(0.001 + 0.01 / RECIPE.batch_size)
    assert batches[-1] == 19  # the largest batch whose step takes no longer than 0.03 s, up to rounding
    assert found.build > 0 and found.evaluation > 0 and 0 <= found.busy <= 1


@pytest.mark.slow
def test_networks_are_measured_in_several_processes_at_a_time() -> None:
    speeds, start = measure_speeds([SMALL, DENSE], RECIPE, DIGITS, "cpu", eval_batch=50, processes=2)
    assert start > 0 and [one.step > 0 for one in speeds] == [True, True]


@pytest.mark.parametrize("script", ["exit 1", r"printf '\200\004N.'; exit 1"])
def test_a_process_that_ends_before_or_after_it_was_ready(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec 0<&-\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(LrnasError, match="a process has ended; run this again"):
        measure_speeds([SMALL] * 100, RECIPE, DIGITS, "cpu", eval_batch=50)


@pytest.mark.slow
def test_errors_of_a_process_are_raised_here() -> None:
    with pytest.raises(LrnasError, match=r"cannot be measured: RuntimeError: .*nowhere"):
        measure_speeds([SMALL], RECIPE, DIGITS, "nowhere", eval_batch=50)
