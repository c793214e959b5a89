"""How much time does a search spend outside training, and how fast is a study with very many trials?

    python benchmarks/search.py overhead --trials 20 --seconds 10 --out results/search_overhead.json
    python benchmarks/search.py scale --trials 10000 --out results/search_scale.json

`overhead` is a real search with Ray Tune and an SQLite study in a temporary folder. Instead of training, a function
(`--trainable`) sleeps, so all other time is overhead: proposing, counting, building the network, its checkpoint after
every epoch, early stopping, recording. Time before the first epoch of the first trials (Python, Ray's workers) is
reported separately. `scale` fills a study with networks of the space `nin` and made-up results, then measures the time
until a command that continues it starts its first trial, and the time of single proposals.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from common import costs, make_parser, write_result
from optuna.storages._rdb import models
from torch import nn

import lrnas
from lrnas.models.plan import canonical_id, deployed_form
from lrnas.searching.proposals import Proposals, distributions_of
from lrnas.searching.samplers import make_sampler
from lrnas.spaces.space import load_space
from lrnas.study.ledger import Ledger
from lrnas.study.open import open_study
from lrnas.training.custom import Run
from lrnas.training.provenance import provenance

EPOCHS = 9


def sleep_through(model: nn.Module, run: Run) -> None:
    """Sleep for a known time instead of training."""
    for _ in range(run.epochs_done, run.epochs):
        time.sleep(float(os.environ["SECONDS_PER_TRIAL"]) / run.epochs)
        run.report(0.5 + 0.4 * random.random())


def overhead(options: argparse.Namespace) -> dict[str, Any]:
    os.environ["SECONDS_PER_TRIAL"] = str(options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        start = datetime.now()
        study = lrnas.search(
            "nin",
            budget=options.trials,
            studies=folder,
            trainable=sleep_through,
            epochs=EPOCHS,
            min_epochs=EPOCHS,  # no early stopping: the time of every trial is known
            concurrency=options.concurrency,
            cpus_per_trial=min(1.0, (os.cpu_count() or 1) / options.concurrency),
            sampler=options.sampler,
            finals=0,
        )
        rows = [t for t in study.optuna_trials() if t.user_attrs.get("status") == "completed"]
    ends = sorted(row.datetime_complete for row in rows if row.datetime_complete is not None)
    first = ends[options.concurrency - 1]
    number = len(ends) - options.concurrency
    per_trial = (ends[-1] - first).total_seconds() * options.concurrency / number - options.seconds
    slept = [row.user_attrs["seconds"] - options.seconds for row in rows]
    return {
        "seconds_of_training": options.seconds,
        "trials": number,
        "concurrency": options.concurrency,
        "sampler": options.sampler,
        "seconds_outside_training_per_trial": round(per_trial, 3),
        "share": round(per_trial / options.seconds, 4),
        "of_it_between_reports": round(statistics.mean(slept), 3),
        "seconds_to_the_first_result": round((ends[0] - start).total_seconds() - options.seconds, 2),
    }


def scale(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lrnas", "search", "--space", "nin", "--studies", folder, "--name", "large"]
        command += ["--epochs", "2", "--max-macs", "600k"]
        found: dict[str, Any] = {"trials": options.trials}
        found["seconds_to_the_first_trial_of_a_new_study"] = time_start([*command, "--budget", "2"], folder)
        fill(folder, options.trials)
        before = time.perf_counter()
        study = open_study("large", studies=folder)
        study.summary()
        found["seconds_to_open_and_summarise"] = round(time.perf_counter() - before, 2)
        spent = study.spent()
        found["seconds_to_the_first_trial_when_continued"] = time_start([*command, "--budget", str(spent + 2)], folder)
        for name in ("front", "tpe"):
            found[f"seconds_per_ask_{name}"] = round(time_ask(folder, name), 3)
    return found


def time_start(command: list[str], folder: str) -> float:
    """Seconds from the command to the start of its first trial."""
    start = datetime.now()
    subprocess.run(command, check=True, capture_output=True)
    rows = open_study("large", studies=folder).optuna_trials()
    starts = [row.datetime_start for row in rows if row.datetime_start is not None and row.datetime_start > start]
    return round((min(starts) - start).total_seconds(), 2)


def fill(folder: str, number: int) -> None:
    """Write many trials, as a search would, directly into the tables."""
    space = load_space("nin", batch_norm=True)
    study = open_study("large", studies=folder)
    before = study.optuna_trials()
    like = next(row.user_attrs for row in before if row.user_attrs.get("status") == "completed")
    distributions = {
        name: (optuna.distributions.distribution_to_json(one), one) for name, one in distributions_of(space).items()
    }
    generator = random.Random(0)
    tables: dict[Any, list[dict[str, Any]]] = {
        model: []
        for model in (
            models.TrialModel,
            models.TrialParamModel,
            models.TrialValueModel,
            models.TrialUserAttributeModel,
        )
    }
    first_id = max(row._trial_id for row in before) + 1
    for i in range(number):
        trial_id = first_id + i
        params = space.draw(generator)
        network = deployed_form(space.architecture(params), 8, 1)
        cost = costs(network, 8, 10, 1)
        is_full = generator.random() < 0.5
        accuracy = min(0.99, 0.3 + 0.1 * generator.random() + cost["macs"] ** 0.5 / 6000)
        known = like | {
            "architecture": network.to_json(),
            "id": canonical_id(network, 8, 1),
            **cost,
            "curve": [accuracy] * (2 if is_full else 1),
            "accuracy": accuracy,
            "status": "completed" if is_full else "stopped",
        }
        state = optuna.trial.TrialState.COMPLETE if is_full else optuna.trial.TrialState.PRUNED
        times = {"_datetime_start_utc": datetime(2026, 1, 1), "_datetime_complete_utc": datetime(2026, 1, 1)}
        tables[models.TrialModel].append(
            {
                "trial_id": trial_id,
                "number": len(before) + i,
                "study_id": study.optuna_study._study_id,
                "state": state,
                **times,
            }
        )
        tables[models.TrialParamModel] += [
            {
                "trial_id": trial_id,
                "param_name": name,
                "param_value": distribution.to_internal_repr(params[name]),
                "distribution_json": text,
            }
            for name, (text, distribution) in distributions.items()
        ]
        if is_full:
            tables[models.TrialValueModel] += [
                {"trial_id": trial_id, "objective": place, "value": value, "value_type": "FINITE"}
                for place, value in enumerate((accuracy, cost["macs"]))
            ]
        tables[models.TrialUserAttributeModel] += [
            {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)} for key, value in known.items()
        ]
    with study.optuna_study._storage._backend.scoped_session() as session:  # type: ignore[attr-defined]
        for model, rows in tables.items():
            session.bulk_insert_mappings(model, rows)
        session.commit()


def time_ask(folder: str, sampler: str) -> float:
    """Median seconds of a proposal, without the first one of a process."""
    study = open_study("large", studies=folder)
    space = load_space("nin", batch_norm=True)

    proposals = Proposals(Ledger(study), space, lambda network: costs(network, 8, 10, 1))
    study.optuna_study.sampler = make_sampler(sampler, 1, proposals)
    seconds = []
    for _ in range(6):
        before = time.perf_counter()
        proposals.ask()
        seconds.append(time.perf_counter() - before)
    proposals.ledger.sign_off()
    return statistics.median(seconds[1:])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("what", choices=("overhead", "scale"))
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--sampler", default="front")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {"overhead": overhead, "scale": scale}[options.what](options)
    print(json.dumps(result, indent=1))
    write_result(options.out, provenance(seeds=[0], n=result["trials"]), **result)


if __name__ == "__main__":
    main()
