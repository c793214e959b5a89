"""Accuracy against the number of weights of a made-up network with three layers; a formula replaces training."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import optuna
import optunahub


def costs_of(params: dict[str, Any]) -> dict[str, float]:
    widths = [10, params["layer1.width"], params["layer2.width"], params["layer3.width"], 10]
    return {"weights": float(sum(a * b for a, b in pairwise(widths)))}


def objective(trial: optuna.Trial) -> tuple[float, float]:
    for i in (1, 2, 3):
        trial.suggest_int(f"layer{i}.width", 8, 128, step=8)
    activation = trial.suggest_categorical("activation", ["relu", "tanh"])
    weights = costs_of(trial.params)["weights"]
    shape = math.log(trial.params["layer1.width"] / trial.params["layer3.width"])
    accuracy = 0.5 + 0.04 * math.log(weights) + 0.02 * math.tanh(shape) - 0.01 * (activation == "tanh")
    return accuracy, weights


FrontSampler = optunahub.load_module("samplers/known_cost_front").FrontSampler

study = optuna.create_study(directions=["maximize", "minimize"], sampler=FrontSampler(costs_of, ["weights"], seed=0))
study.optimize(objective, n_trials=30)
for trial in sorted(study.best_trials, key=lambda trial: trial.values[1]):
    print(f"{trial.values[1]:8.0f} weights: {trial.values[0]:.4f} {trial.params}")
