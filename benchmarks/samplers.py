"""Which sampler finds the best front for a number of trials?

Networks of the space `nin` were trained on CIFAR-10 (results/nin_cifar10_curves.json). Training is replaced by a
model of their accuracy with noise as between seeds, so that every sampler can be run for hundreds of trials and
several seeds; costs are exact. The model is a linear fit in the logarithms of costs and widths, plus extremely
randomised trees for the rest; its cross-validated error is printed. With `--at-a-time 10`, ten trials are in training
at once, and the time that each takes grows with its MACs. All samplers start with the named networks of the space,
except those marked `unseeded`.

    python benchmarks/samplers.py --trials 100 --seeds 5 --out results/samplers.json
"""

from __future__ import annotations

import heapq
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from common import RESULTS, costs, make_parser, write_result
from scipy.stats import kendalltau
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold

from lrnas.arch.architecture import Architecture
from lrnas.sampling.pareto import hypervolume
from lrnas.searching.proposals import Proposals
from lrnas.searching.samplers import make_sampler
from lrnas.spaces.space import SearchSpace, load_space
from lrnas.study.ledger import Ledger
from lrnas.study.objectives import pick_objectives
from lrnas.study.study import Study
from lrnas.training.provenance import provenance

MEASURED = RESULTS / "nin_cifar10_curves.json"
NOISE = 0.003
"""Standard deviation of accuracies between seeds."""


class AccuracyModel:
    """Predicts the accuracy that training would give."""

    def __init__(self, space: SearchSpace, seed: int = 0) -> None:
        self.space = space
        self.trees = ExtraTreesRegressor(300, min_samples_leaf=2, random_state=seed, n_jobs=1)
        self.line = Ridge(1.0)

    def features(self, params: dict[str, Any]) -> list[float]:
        features = [math.log(value) for value in cost(self.space.architecture(params)).values()]
        for parameter in self.space.parameters:
            value = params[parameter.name]
            if parameter.name.endswith("width"):
                features.append(math.log(float(value)))
            elif parameter.ordered:
                features.append(float(value))
            else:
                features += [float(value == own) for own in parameter.values]
        return features

    def fit(self, rows: list[dict[str, Any]]) -> AccuracyModel:
        inputs = np.array([self.features(row["params"]) for row in rows])
        targets = np.array([row["curve"][-1] for row in rows])
        self.mean, self.scale = inputs.mean(axis=0), inputs.std(axis=0) + 1e-6
        scaled = (inputs - self.mean) / self.scale
        self.line.fit(scaled, targets)
        self.trees.fit(inputs, targets - self.line.predict(scaled))
        return self

    def predict(self, params: dict[str, Any]) -> float:
        row = np.array([self.features(params)])
        return float(self.line.predict((row - self.mean) / self.scale)[0] + self.trees.predict(row)[0])


def cost(architecture: Architecture) -> dict[str, float]:
    return costs(architecture, 32, 10, 3)


def validate(space: SearchSpace, rows: list[dict[str, Any]]) -> dict[str, float]:
    """Cross-validated error and rank correlation of the accuracy model."""
    found = np.zeros(len(rows))
    for train, test in KFold(10, shuffle=True, random_state=0).split(rows):
        model = AccuracyModel(space).fit([rows[i] for i in train])
        found[test] = [model.predict(rows[i]["params"]) for i in test]
    truth = np.array([row["curve"][-1] for row in rows])
    errors = found - truth
    return {
        "root_mean_square_error": round(float(np.sqrt((errors**2).mean())), 5),
        "explained_variance": round(float(1 - errors.var() / truth.var()), 4),
        "kendall_tau": round(float(kendalltau(found, truth).statistic), 4),
    }


def run(
    space: SearchSpace, predict: Callable[[dict[str, Any]], float], sampler: str, trials: int, seed: int, at_a_time: int
) -> tuple[list[float], float]:
    """Hypervolume after every finished trial, and the median seconds of a proposal."""
    goals = pick_objectives(["accuracy", "macs"])
    record = optuna.create_study(directions=[goal.direction for goal in goals])
    dearest = max(cost(network)["macs"] for network in space.points.values())
    manifest = {
        "space": space.to_dict(),
        "reference": {"macs": dearest, "params": 1},
        "recipe": {},
        "image_size": 32,
        "channels": 3,
        "num_classes": 10,
    }
    study = Study("benchmark", record, goals, manifest)
    proposals = Proposals(Ledger(study), space, cost)
    name = sampler.removesuffix(" unseeded")
    record.sampler = make_sampler(name, seed, proposals)
    if name == sampler:
        proposals.enqueue({**space.points, **space.uniform})
    noise = np.random.default_rng(seed)
    volumes, seconds = [], []
    running: list[tuple[float, int]] = []  # when each training ends, and its trial
    now = 0.0
    for started in range(trials + at_a_time):
        if started >= at_a_time:
            now, number = heapq.heappop(running)
            params = record.get_trials(deepcopy=False)[number].params
            accuracy = min(0.999, max(0.1, predict(params) + NOISE * noise.standard_normal()))
            proposals.ledger.report_epoch(number, [accuracy], 1.0)
            proposals.ledger.complete(number, accuracy)
            volumes.append(true_volume(study, predict))
        if started < trials:
            before = time.perf_counter()
            proposal = proposals.ask()
            seconds.append(time.perf_counter() - before)
            assert proposal is not None
            heapq.heappush(running, (now + 0.3 + proposal.macs / dearest, proposal.number))
    return volumes, float(np.median(seconds))


def true_volume(study: Study, predict: Callable[[dict[str, Any]], float]) -> float:
    """Hypervolume of the front with accuracies without noise: luck does not count."""
    reference = study.manifest["reference"]["macs"]
    rows = {trial.number: trial for trial in study.optuna_trials()}
    front = [(1 - predict(rows[trial.number].params), trial.macs / reference) for trial in study.front()]
    return hypervolume(front, [1.0, 1.0])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--samplers", default="front,tpe,gp,nsga2,random,tpe unseeded")
    parser.add_argument("--at-a-time", type=int, default=1, help="number of trials in training at once (default: 1)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.simplefilter("ignore")
    rows = [row for study in json.loads(MEASURED.read_text())["studies"] for row in study["trials"]]
    rows = list({tuple(row["params"].values()): row for row in rows}.values())  # the named networks were trained twice
    space = load_space("nin", batch_norm=True, divisor=1)  # as when these networks were trained
    quality = validate(space, rows)
    print(f"accuracy model, 10-fold over {len(rows)} networks: {quality}", flush=True)
    model = AccuracyModel(space).fit(rows)
    cache: dict[tuple[Any, ...], float] = {}

    def predict(params: dict[str, Any]) -> float:
        key = tuple(params.values())
        if key not in cache:
            cache[key] = model.predict(params)
        return cache[key]

    looks = [n for n in (20, 40, 80, 160, 320) if n <= options.trials]
    table = []
    for sampler in options.samplers.split(","):
        runs = [run(space, predict, sampler, options.trials, seed, options.at_a_time) for seed in range(options.seeds)]
        entry: dict[str, Any] = {
            "sampler": sampler,
            "seconds_per_ask": round(float(np.median([s for _, s in runs])), 4),
        }
        for n in looks:
            values = [volumes[n - 1] for volumes, _ in runs]
            spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            entry[f"after_{n}"] = {"mean": round(float(np.mean(values)), 5), "sd": round(spread, 5)}
        table.append(entry)
        found = ((n, entry[f"after_{n}"]) for n in looks)
        shown = ", ".join(f"{n}: {volume['mean']:.4f} ± {volume['sd']:.4f}" for n, volume in found)
        print(f"{sampler:14s} hypervolume after {shown}; {entry['seconds_per_ask']:.3f} s per ask", flush=True)
    facts = provenance(seeds=list(range(options.seeds)), n=options.seeds)
    write_result(options.out, facts, stand_in=quality, noise=NOISE, at_a_time=options.at_a_time, hypervolume=table)


if __name__ == "__main__":
    main()
