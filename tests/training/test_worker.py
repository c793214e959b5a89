"""Trainings in a worker: what they report, and damaged checkpoints. Searches with Ray are in `integration/`."""

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_studies import SPACE

from lrnas.data.catalog import load_set
from lrnas.errors import UnfitMachine
from lrnas.recipes import Recipe
from lrnas.training import worker
from lrnas.training.job import Job
from lrnas.training.worker import Task, train_task


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def rewrite(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "checkpoint.json").write_text(text)


def forget_state(folder: Path) -> None:
    record = json.loads((folder / "checkpoint.json").read_text())
    del record["state"]["epoch"]
    (folder / "checkpoint.json").write_text(json.dumps(record))


def swap_weights(folder: Path) -> None:
    record = json.loads((folder / "checkpoint.json").read_text())
    save_file({"model.other": torch.ones(2)}, folder / record["tensors"])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "tensors cut short": lambda folder: halve(next(folder.glob("*.safetensors"))),
    "tensors removed": lambda folder: next(folder.glob("*.safetensors")).unlink(),
    "tensors of another network": swap_weights,
    "record cut short": lambda folder: halve(folder / "checkpoint.json"),
    "record without entries": rewrite("{}"),
    "record of another kind": rewrite("[]"),
    "record without state": forget_state,
}


def run_trial(folder: Path, *, stop: bool = False, data_identity: str | None = None) -> list[dict[str, Any]]:
    """Train a trial of two epochs, or only its first one; returns what it reports."""
    told: list[dict[str, Any]] = []

    def report(result: dict[str, Any]) -> None:
        told.append(copy.deepcopy(result))
        if stop and "curve" in result:
            raise OSError("the training ends after an epoch")

    job = Job(SPACE.uniform["lr-x0.25"], "digits", Recipe(epochs=2, batch_size=256), 0, data_identity=data_identity)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.tune, "report", report)
        patch.setattr(worker, "worker_location", lambda: {"node": "here"})
        (folder.parent / "mark").touch()
        with suppress(UnfitMachine):  # it ends the process
            train_task({"task": Task(job, folder, 1, 0, "mark", False)})
    return told


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """The folder of a trial that was stopped after its first epoch, and its accuracies if it is continued."""
    folder = tmp_path_factory.mktemp("trials") / "00001"
    assert run_trial(folder, stop=True)[-1]["status"] == "lost"
    shutil.copytree(folder, folder.with_name("00002"))
    told = run_trial(folder.with_name("00002"))
    assert [len(each.get("curve", ())) for each in told] == [0, 2, 2]
    return folder, told[-1]["curve"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_trial_with_a_damaged_checkpoint_starts_over(
    damage: str, begun: tuple[Path, list[float]], tmp_path: Path
) -> None:
    """It ends like a trial without a checkpoint, and one line says why."""
    folder = shutil.copytree(begun[0], tmp_path / "00001")
    own = folder / "own" / "notes.part"  # files of a training function
    own.parent.mkdir()
    own.touch()
    DAMAGES[damage](folder)
    told = run_trial(folder)
    assert own.exists()
    assert [len(each.get("curve", ())) for each in told] == [0, 0, 1, 2, 2]
    assert told[1]["remark"].endswith(": it starts again from epoch 0")
    assert told[-1]["status"] == "completed" and told[-1]["curve"] == begun[1]


def test_a_worker_refuses_other_images_than_those_of_the_study(tmp_path: Path) -> None:
    """A machine may have another copy of them, or they have changed."""
    told = run_trial(tmp_path / "00001", data_identity="cifar10")
    assert told[-1]["status"] == "unfit" and "digits on " in told[-1]["reason"]
    assert "has other images than those that the study began with" in told[-1]["reason"]
    data = load_set("digits", min_size=8)
    assert run_trial(tmp_path / "00002", data_identity=data.identity)[-1]["status"] == "completed"


def test_workers_load_neither_optuna_nor_a_study() -> None:
    """Each of many workers would need time and memory for them."""
    code = "import sys, lrnas.training.worker; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert "ray.tune" in loaded and not {"optuna", "sqlalchemy", "lrnas.study"} & set(loaded)
