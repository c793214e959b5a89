"""How well does `lrnas search --dry-run` predict the time of a search?

Each case is a search from the command to the front, in a temporary folder. The prediction is made twice, before and
after the search, because other programs may use the machine meanwhile; the ratio is that of their mean to the measured
time. On a busy machine, this ratio says little. So the CPU time of the training processes is compared as well: other
programs hardly change it. `--cases` picks some of the cases.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from common import make_parser, write_result
from PIL import Image

from lrnas.study.open import open_study
from lrnas.training.provenance import provenance

CASES = {
    "small": "--space nin --data digits --max-macs 1.3M --epochs 3 --budget 10 --finals 0",
    "all named": "--space nin --data digits --epochs 1 --budget 14 --finals 0",
    "vgg11": "--space vgg11 --data digits --max-macs 6M --epochs 1 --budget 6 --finals 0",
    "finals": "--space nin --data digits --max-macs 2M --epochs 1 --final-epochs 3 --budget 8",
    "paper in finals": "--space nin --data digits --epochs 1 --final-epochs 2 --budget 12",
    "own images": "--space nin --data folder:{folder} --image-size 32 --max-macs 20M --epochs 2 --budget 6 --finals 0",
}
TRAINER = "ray::ImplicitFunc"
"""Beginning of the name of Ray Tune's training processes."""
NUM_IMAGES = {"train": 300, "val": 60, "test": 60}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for _ in range(options.repeats):
        for name in options.cases:
            rows.append({"case": name, **compare(CASES[name])})
            print(json.dumps(rows[-1]), flush=True)
            errors = [abs(row["ratio"] - 1) for row in rows]
            summary = {"within_25_percent": sum(error <= 0.25 for error in errors), "n": len(rows)}
            write_result(options.out, provenance(seeds=[0], n=len(rows)), summary=summary, rows=rows)


def compare(options: str) -> dict[str, Any]:
    """Predicted and measured seconds of a search."""
    with tempfile.TemporaryDirectory() as folder:
        make_images(Path(folder) / "images")
        text = options.format(folder=Path(folder) / "images")
        command = [sys.executable, "-m", "lrnas", "search", *text.split(), "--data-dir", folder, "--studies", folder]
        before, loads = predict(command), [os.getloadavg()[0]]
        began, wall = time.perf_counter(), time.time()
        cpu = run([*command, "--name", "s"])
        seconds = time.perf_counter() - began
        loads.append(os.getloadavg()[0])
        trials = open_study("s", studies=folder).optuna_trials()
        starts = [trial.datetime_start.timestamp() for trial in trials if trial.datetime_start]
        trained = [trial.user_attrs["macs"] for trial in trials if trial.user_attrs.get("trained")]
        after = predict(command)
    predicted = statistics.fmean([before["seconds"]["0"], after["seconds"]["0"]])
    return {
        "options": options,
        "predicted": [round(one["seconds"]["0"], 1) for one in (before, after)],
        "measured": round(seconds, 1),
        "ratio": round(predicted / seconds, 3),
        "seconds_to_the_first_trial": round(min(starts) - wall, 1),
        "mean_macs": round(statistics.fmean(trained)),
        "runs_predicted": {level["name"]: level["runs"] for level in before["levels"]},
        "training_seconds": round(sum(trial.user_attrs.get("seconds", 0.0) for trial in trials), 1),
        "training_seconds_predicted": [round(one["levels"][0]["training_seconds"], 1) for one in (before, after)],
        "cpu_seconds": round(cpu, 1),
        "cpu_seconds_predicted": [round(cpu_seconds(one), 1) for one in (before, after)],
        "cpu_ratio": round((cpu_seconds(before) + cpu_seconds(after)) / 2 / cpu, 3),
        "busy": [round(one["busy"], 2) for one in (before, after)],
        "load": [round(load, 2) for load in loads],
    }


def run(command: list[str]) -> float:
    """Run a search; returns the CPU seconds of its training processes."""
    spent: dict[str, float] = {}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as search:
        while search.poll() is None:
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    fields = (folder / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[3]) == search.pid and TRAINER in (folder / "cmdline").read_text():
                        spent[folder.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            time.sleep(0.25)
    if search.returncode:
        raise subprocess.CalledProcessError(search.returncode, command)
    return sum(spent.values())


def cpu_seconds(found: dict[str, Any]) -> float:
    """Predicted CPU seconds of the training processes, with those for their start."""
    return 3600 * found["device_hours"] + found["at_a_time"] * found["start_seconds"] * (1 - found["busy"])


def predict(command: list[str]) -> dict[str, Any]:
    done = subprocess.run([*command, "--dry-run", "--json"], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def make_images(folder: Path) -> None:
    """Write JPEG files of random pixels, in two classes."""
    chance = np.random.default_rng(0)
    for split, number in NUM_IMAGES.items():
        for i in range(number):
            file = folder / split / "ab"[i % 2] / f"{i}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(chance.integers(256, size=(48, 40, 3), dtype=np.uint8)).save(file)


if __name__ == "__main__":
    main()
