"""Real searches with the user's own training code: killed and continued, with a faulty function, from a script."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from lrnas.training.checkpoint import recorded_curve

pytestmark = [pytest.mark.slow]
DOCS = Path(__file__).parent.parent.parent / "docs"
SMALL = ["--name", "s", "--budget", "4", "--max-macs", "1.3M", "--concurrency", "2", "--finals", "0"]
"""Options for networks that train in seconds; the paper's networks break the limit."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the example. At the end, processes that a killed search left are killed."""
    (tmp_path / "own_training.py").write_text((DOCS.parent / "examples/own_training.py").read_text())
    mark = uuid.uuid4().hex
    monkeypatch.setenv("LRNAS_TEST", mark)  # inherited by all processes
    yield tmp_path
    monkeypatch.delenv("LRNAS_TEST")
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (place / "environ").read_bytes():
                os.kill(int(place.name), signal.SIGKILL)


def documented_command() -> list[str]:
    lines = (DOCS / "own_training.md").read_text().splitlines()
    program, *arguments = shlex.split(next(line for line in lines if line.startswith("    lrnas search ")))
    return [sys.executable, "-m", program, *arguments, *SMALL]


def trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    """The trials that were trained."""
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{folder}/studies/s/study.db")
    return [trial for trial in study.trials if trial.user_attrs.get("trained")]


def run(folder: Path, *command: str) -> tuple[int, str]:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    return ended.returncode, ended.stdout + ended.stderr


def test_the_example_continues_after_a_kill(folder: Path) -> None:
    command = documented_command()
    with (folder / "log.txt").open("w") as log:
        first = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    deadline = time.monotonic() + 180
    begun = None
    while begun is None:
        assert time.monotonic() < deadline and first.poll() is None, (folder / "log.txt").read_text()
        time.sleep(0.05)
        if (folder / "studies/s/study.db").exists() and "trials in all" in (folder / "log.txt").read_text():
            running = [trial for trial in trials(folder) if trial.state == TrialState.RUNNING]
            begun = next((trial for trial in running if trial.user_attrs.get("epochs", 0)), None)
    first.send_signal(signal.SIGKILL)
    first.wait()
    time.sleep(3)  # its workers end by themselves
    place = folder / f"studies/s/trials/{begun.number:05d}"
    before = recorded_curve(place)
    assert len(before) >= begun.user_attrs["epochs"]

    code, log_of_second = run(folder, *command)
    assert code == 0 and "own data of own_training:train, 1x8x8, 10 classes" in log_of_second
    after = {trial.number: trial for trial in trials(folder)}
    assert len(after) == 4 and all(trial.state.is_finished() for trial in after.values())
    if after[begun.number].state == TrialState.COMPLETE:
        assert recorded_curve(place)[: len(before)] == before  # the seconds too: no epoch was trained again
    curve = after[begun.number].user_attrs["curve"]
    assert curve[: len(before)] == [entry["val_accuracy"] for entry in before]
    best = max((t for t in after.values() if t.state == TrialState.COMPLETE), key=lambda trial: trial.values[0])
    assert best.values[0] > 0.8 and best.user_attrs["metric.loss"] > 0 and best.user_attrs["epochs"] == 3
    weights = [path.name for path in (folder / f"studies/s/trials/{best.number:05d}").iterdir()]
    assert sorted(weights) == ["checkpoint.json", "epoch-3.safetensors"]

    code, refused = run(folder, *command, "--trainable", "own_training:load_images")
    assert code == 2 and "got own_training:load_images" in refused
    (folder / "other.py").write_text((folder / "own_training.py").read_text())
    code, refused = run(folder, *command, "--trainable", "other:train")
    assert code == 2 and "--trainable was 'own_training:train', now 'other:train'" in refused


def test_no_network_is_blamed_for_a_function_that_fails(folder: Path) -> None:
    whole = (folder / "own_training.py").read_text()
    (folder / "own_training.py").write_text(whole.replace("schedule.step()", "schedule.stepp()"))
    code, log = run(folder, *documented_command())
    assert code == 2 and "trials in a row were lost, the last one" in log and "Traceback" not in log
    assert "AttributeError: 'CosineAnnealingLR' object has no attribute 'stepp'" in log
    assert "(own_training.py, line 4" in log
    assert {trial.state for trial in trials(folder)} <= {TrialState.FAIL, TrialState.WAITING}
    (folder / "own_training.py").write_text(whole)
    code, log = run(folder, *documented_command())
    states = Counter(trial.state for trial in trials(folder))
    assert code == 0 and states[TrialState.COMPLETE] + states[TrialState.PRUNED] == 4, log


def test_a_worker_whose_gpu_failed_ends_with_a_reason(folder: Path) -> None:
    """After a CUDA error a process cannot train any more, so its worker ends."""
    whole = (folder / "own_training.py").read_text()
    fault = """schedule.step()
        import os, pathlib
        known = pathlib.Path("processes")
        known.open("a").write(f"{os.getpid()}\\n")
        if len(known.read_text().split()) == 1:
            raise RuntimeError("Triton Error [CUDA]: an illegal instruction was encountered")
"""
    (folder / "own_training.py").write_text(whole.replace("schedule.step()\n", fault))
    code, log = run(folder, *documented_command())
    assert code == 0 and "a trial was lost (" in log, log
    assert "Triton Error [CUDA]: an illegal instruction was encountered" in log and "Traceback" not in log
    failed, *others = (folder / "processes").read_text().split()
    assert others and failed not in others
    states = Counter(trial.state for trial in trials(folder))
    assert states[TrialState.COMPLETE] + states[TrialState.PRUNED] == 4


def test_a_function_of_a_script(folder: Path) -> None:
    """Workers cannot import a script as a module; the function reads the study's data and a file in the folder."""
    (folder / "rate.txt").write_text("0.25")
    (folder / "script.py").write_text("""
import lrnas
from pathlib import Path

def train(model, run):
    images = run.data.val.images.permute(0, 3, 1, 2).float()
    for epoch in range(run.keep(), run.epochs):
        run.report(float(Path("rate.txt").read_text()), outputs=model(images).shape[1])

if __name__ == "__main__":
    study = lrnas.search("nin", budget=2, name="s", data="digits", max_macs=1_300_000, trainable=train, finals=0)
    print(study.manifest["trainable"], [(trial.accuracy, dict(trial.metrics)) for trial in study.trials[-1:]])
""")
    code, log = run(folder, sys.executable, "script.py")
    assert code == 0 and "script:train [(0.25, {'outputs': 10.0})]" in log, log
    assert "s: 2 trials in all, 0 done; training with script:train on digits" in log and "2/2 trials:" in log, log
    assert json.loads((folder / "studies/s/trials/00004/checkpoint.json").read_text())["epoch"] == 3
