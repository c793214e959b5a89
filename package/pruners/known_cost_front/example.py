"""Accuracy against the width of a made-up network; a formula replaces the epochs of training."""

from __future__ import annotations

import math

import optuna
import optunahub

FrontPruner = optunahub.load_module("pruners/known_cost_front").FrontPruner
pruner = FrontPruner(["width"], rungs=[1, 3, 9])


def objective(trial: optuna.Trial) -> tuple[float, float]:
    width = trial.suggest_int("width", 8, 128, step=8)
    rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
    trial.set_user_attr("width", width)  # known before training
    for epoch in range(1, 28):
        best = 0.5 + 0.08 * math.log(width) - 0.02 * math.log10(rate / 0.1) ** 2
        accuracy = best * (1 - 0.5 / epoch)
        pruner.report(trial, accuracy)  # in place of trial.report
        if pruner.should_prune(trial):  # in place of trial.should_prune
            raise optuna.TrialPruned
    return accuracy, width


study = optuna.create_study(
    directions=["maximize", "minimize"],
    sampler=optuna.samplers.RandomSampler(seed=0),
    pruner=pruner,
)
study.optimize(objective, n_trials=40)
epochs = sum(len(trial.user_attrs["curve"]) for trial in study.trials)
print(f"{epochs} of {27 * len(study.trials)} epochs were trained")
