"""How fast is a search whose trials take no time, and how fast are commands that read a study of 20,000 networks?

    python benchmarks/load.py search --trials 10000 --concurrency 16 --out results/load_search.json
    python benchmarks/load.py search --trials 2000 --concurrency 16 --drivers 4 --out results/load_drivers.json
    python benchmarks/load.py driver --trials 8000 --concurrency 64 --out results/load_driver.json
    python benchmarks/load.py read --trials 20000 --out results/load_read.json

`search` runs the command `lrnas search`, with Ray, Optuna's storage and workers, and a training function that only
reports numbers. One driver uses SQLite in the study's folder; several drivers use a PostgreSQL server that is started
for this. While they run, memory and CPU time of the drivers are read from /proc. Rates per part of the study come from
the times at which trials ended. `driver` does what a driver does for a trial, except Ray's work, in studies that have
few trials and many: it proposes networks, records epochs, stops trials early and shows the progress. `read` writes a
study of random networks with made-up results straight into the tables, and measures commands that read it, each in a
process of its own, with the peak of its memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from lrnas import Architecture
    from lrnas.training.custom import Run

SPACE = """
[space]
backbone = ["nin", "nin_3x3"]
batch_norm = true

[space.tied]
conv2 = ["conv2", "conv2_1"]

[[space.vary]]
layers = ["conv*"]
square = { from = 0, to = 1, step = "1/8" }
vertical = ["1/4", "1/2", "3/4"]
join = ["none", "1/2", 1]
width = { from = "1/16", to = "3/8", step = "1/16" }

[[space.vary]]
name = "cccp"
layers = ["cccp*"]
width = { from = "1/16", to = "3/8", step = "1/16" }
"""
"""The parameters of the space `nin`, with narrower networks, so that checkpoints are small."""
INTERRUPTED = 130
"""Exit code of a search that was interrupted."""
PARTS = 10
"""Number of parts of a study for which rates are given."""


def train(model: nn.Module, run: Run) -> None:
    """Report accuracies that grow with the size of the network, without training."""
    size = sum(parameter.numel() for parameter in model.parameters())
    for _ in range(run.epochs_done, run.epochs):
        run.report(min(0.99, 0.3 + 0.1 * math.log10(size) + 0.02 * random.random()))


# --- a search


def measure_search(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "space.toml").write_text(SPACE)
        storage = None
        if options.drivers > 1:
            sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / part) for part in ("integration", "")]
            from servers import running_postgres

            storage = stack.enter_context(running_postgres()).create("load")
        command = [
            *(sys.executable, "-m", "lrnas", "search", "--space", str(folder / "space.toml"), "--name", "load"),
            *("--studies", str(folder / "studies"), "--budget", str(options.trials), "--sampler", options.sampler),
            *("--trainable", "load:train", "--input", "1x8x8", "--classes", "10", "--epochs", "3", "--min-epochs", "1"),
            *("--concurrency", str(options.concurrency), "--cpus-per-trial", str(options.cpus), "--finals", "0"),
            *(("--storage", storage) if storage else ()),
        ]
        with (folder / "log.txt").open("w") as log:
            drivers = [
                subprocess.Popen(command, cwd=Path(__file__).parent, stdout=log, stderr=log)
                for _ in range(options.drivers)
            ]
            samples = watch(drivers, options.seconds)
        if any(driver.returncode not in (0, INTERRUPTED) for driver in drivers):
            sys.exit((folder / "log.txt").read_text()[-2000:])
        from lrnas.study.open import open_study

        study = open_study("load", storage=storage, studies=folder / "studies")
        rows = [row for row in study.optuna_trials() if row.user_attrs.get("trained")]
        database = folder / "studies/load/study.db"
        size = database.stat().st_size if storage is None else postgres_size(storage)
    ended = [row for row in rows if row.datetime_complete is not None]
    if not ended:
        sys.exit("no trial ended in time; give more --seconds")
    networks = Counter(row.user_attrs["id"] for row in rows)
    return {
        "trials": len(ended),
        "at_a_time": options.concurrency * options.drivers,
        "drivers": options.drivers,
        "storage": "SQLite" if storage is None else "PostgreSQL, without fsync",
        "sampler": options.sampler,
        "states": dict(Counter(row.state.name for row in rows)),
        "networks_trained_twice": sum(number - 1 for number in networks.values()),
        "epochs": sum(row.user_attrs.get("epochs", 0) for row in rows),
        "bytes_of_database_per_trial": round(size / len(ended)),
        "bytes_of_database": size,
        **rates([row.datetime_complete for row in ended if row.datetime_complete], samples),
    }


def watch(drivers: list[subprocess.Popen[bytes]], seconds: float) -> list[tuple[datetime, float, float]]:
    """Wait for the drivers, and interrupt them after some seconds.

    Returns:
        Times, the mean memory of a driver in MB with what is swapped out, and CPU seconds of all drivers so far.
    """
    samples = []
    tick = os.sysconf("SC_CLK_TCK")
    end, is_interrupted = time.monotonic() + seconds, False
    while any(driver.poll() is None for driver in drivers):
        if time.monotonic() > end and not is_interrupted:
            is_interrupted = True
            for driver in drivers:
                driver.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError, IndexError, KeyError, ValueError):  # one of them ends just now
            memory = cpu = 0.0
            for driver in drivers:
                place = Path(f"/proc/{driver.pid}")
                sizes = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
                kilobytes = sum(int(sizes[name].split()[0]) for name in ("VmRSS", "VmSwap"))
                memory += kilobytes / 2**10 / len(drivers)
                cpu += sum(map(int, (place / "stat").read_text().rpartition(")")[2].split()[11:13])) / tick
            samples.append((datetime.now(), memory, cpu))
        time.sleep(0.5)
    return samples


def rates(ends: list[datetime], samples: list[tuple[datetime, float, float]]) -> dict[str, Any]:
    """Trials per second, memory and CPU time of the drivers, in all and for parts of the study."""
    ends = sorted(ends)
    size = max(1, len(ends) // PARTS)
    parts = []
    for first in range(0, len(ends) - size + 1, size):
        start, stop = ends[first], ends[first + size - 1]
        inside = [sample for sample in samples if start <= sample[0] <= stop] or samples[-1:]
        parts.append(
            {
                "until": first + size,
                "trials_per_second": round((size - 1) / max(1e-3, (stop - start).total_seconds()), 2),
                "driver_cpu_ms_per_trial": round(1000 * (inside[-1][2] - inside[0][2]) / size, 1),
                "driver_mb": round(statistics.median(memory for _, memory, _ in inside)),
            }
        )
    wall = (ends[-1] - ends[0]).total_seconds()
    return {
        "trials_per_second": round((len(ends) - 1) / wall, 2),
        "seconds_to_the_first_result": round((ends[0] - samples[0][0]).total_seconds(), 1),
        "driver_cpu_seconds": round(samples[-1][2], 1),
        "parts": parts,
    }


def postgres_size(url: str) -> int:
    from sqlalchemy import create_engine, text

    engine = create_engine(url)
    with engine.connect() as connection:
        return int(connection.execute(text("select pg_database_size(current_database())")).scalar_one())


# --- a driver without Ray


def measure_driver(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "trials": options.trials,
        "at_a_time": options.concurrency,
        "cpu_ms_per_trial": {
            number: [driver_time(number, options.concurrency) for _ in range(options.repeats)]
            for number in (200, options.trials)
        },
    }


def driver_time(number: int, at_a_time: int, measured: int = 100) -> float:
    """CPU milliseconds of a driver for a trial in a study of this size."""
    import optuna

    from lrnas.models.plan import make_plan
    from lrnas.sampling.front_pruner import FrontPruner
    from lrnas.searching.progress import ProgressView
    from lrnas.searching.proposals import Proposals
    from lrnas.spaces.space import load_space
    from lrnas.study.ledger import Ledger, training_facts
    from lrnas.study.open import open_study

    def cost(network: Architecture) -> dict[str, float]:
        total = make_plan(network, 32, 10, 3, deployed=True).cost
        return {"macs": total.macs, "params": total.params}

    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder), number)
        study = open_study("s", studies=folder)
        study.optuna_study.sampler = optuna.samplers.RandomSampler(seed=0)
        ledger = Ledger(study)
        queue = Proposals(ledger, load_space("nin", batch_norm=True), cost)
        pruner, view = FrontPruner(study.costs, [1]), ProgressView()
        budget = number + measured + 2 * at_a_time
        view.started(queue, budget)
        generator, running = random.Random(0), []

        def train_one() -> None:
            while len(running) < at_a_time and not queue.is_over(budget):
                proposal = queue.ask(budget)
                assert proposal is not None
                ledger.note(proposal.number, hardware="", node="", seed=0, commit="", versions={})
                view.changed("started")
                running.append(proposal.number)
            trial, curve = running.pop(0), []
            for epoch in range(3):
                curve.append(generator.random())
                ledger.report_epoch(trial, curve, epoch + 1.0)
                view.changed("epoch")
                if not epoch and pruner.prune(study.optuna_study, study.optuna_trial(trial)):
                    ledger.prune(trial, "stopped", "behind others", **training_facts(curve, 1.0))
                    break
            else:
                ledger.complete(trial, curve[-1], **training_facts(curve, 3.0))
            view.changed("ended")

        train_one()
        started = time.process_time()
        for _ in range(measured):
            train_one()
        return round(1000 * (time.process_time() - started) / measured, 1)


# --- commands that read a study


def measure_reading(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        # in a process of its own: a command's peak of memory is at least that of the process that starts it
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            pool.submit(fill, Path(folder), options.trials).result()
        found: dict[str, Any] = {"trials": options.trials, "seconds_to_write": round(time.perf_counter() - start, 1)}
        found["bytes_of_database"] = (Path(folder) / "s/study.db").stat().st_size
        for name in ("front", "report"):
            extra = ["--out", f"{folder}/page"] if name == "report" else []
            command = [sys.executable, "-m", "lrnas", name, "s", "--studies", folder, *extra]
            found[name] = [run(command) for _ in range(options.repeats)]
        found["bytes_of_page"] = (Path(folder) / "page/report.html").stat().st_size
    return found


def run(command: list[str]) -> dict[str, float]:
    """Seconds, CPU seconds and the peak of the memory of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)}: exit status {status}")
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(usage.ru_maxrss / 1024),
    }


def fill(folder: Path, number: int) -> None:
    """Write a study of different random networks of the space `nin`, in one transaction."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import optuna
    from filled_studies import BEGUN, _rows, fill_study
    from optuna.storages._rdb import models
    from sqlalchemy import insert

    from lrnas.spaces.space import load_space

    study = fill_study(folder, 0)
    space = load_space("nin", batch_norm=True)
    rows, known = [], set()
    for row in _rows(space, number + number // 10, study.manifest["objectives"], stopped=0.5, seed=0):
        if len(rows) < number and row.user_attrs["id"] not in known:
            known.add(row.user_attrs["id"])
            rows.append(row)
    assert len(rows) == number
    tables: dict[Any, list[dict[str, Any]]] = {}
    texts = {name: optuna.distributions.distribution_to_json(one) for name, one in rows[0].distributions.items()}
    database = study.optuna_study._storage._backend  # type: ignore[attr-defined]
    study_id = study.optuna_study._study_id
    for i, row in enumerate(rows):
        add = {"trial_id": i + 1}
        begun = BEGUN + timedelta(seconds=10 * i)
        tables.setdefault(models.TrialModel, []).append(
            add
            | {"number": i, "study_id": study_id, "state": row.state}
            | {"datetime_start": begun, "datetime_complete": begun + timedelta(seconds=9)}
        )
        tables.setdefault(models.TrialParamModel, []).extend(
            add
            | {
                "param_name": name,
                "param_value": row.distributions[name].to_internal_repr(value),
                "distribution_json": texts[name],
            }
            for name, value in row.params.items()
        )
        tables.setdefault(models.TrialValueModel, []).extend(
            add | {"objective": place, "value": value, "value_type": "FINITE"}
            for place, value in enumerate(row.values or ())
        )
        tables.setdefault(models.TrialUserAttributeModel, []).extend(
            add | {"key": key, "value_json": json.dumps(value)} for key, value in row.user_attrs.items()
        )
    with database.engine.begin() as connection:
        for model, entries in tables.items():
            connection.execute(insert(model.__table__), entries)


def main() -> None:
    from common import make_parser, write_result

    from lrnas.training.provenance import provenance

    parser = make_parser(__doc__)
    parser.add_argument("what", choices=("search", "driver", "read"))
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=8, help="trials at a time of each driver")
    parser.add_argument("--cpus", type=float, default=0.03, help="CPUs per trial, as Ray counts them")
    parser.add_argument("--drivers", type=int, default=1)
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--seconds", type=float, default=math.inf, help="time after which the search is interrupted")
    parser.add_argument("--repeats", type=int, default=3, help="of `driver` and `read`")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load = [round(os.getloadavg()[0], 1)]
    result = {"search": measure_search, "driver": measure_driver, "read": measure_reading}[options.what](options)
    load.append(round(os.getloadavg()[0], 1))
    print(json.dumps(result, indent=1))
    write_result(options.out, provenance(seeds=[0], n=result["trials"]), load_average=load, **result)


if __name__ == "__main__":
    main()
