"""The pruner for several objectives: which trials continue at a rung, and its use in an Optuna study."""

import math

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from lrnas.sampling.belief import Belief
from lrnas.sampling.front_pruner import FrontPruner, compare
from lrnas.sampling.front_sampler import FrontSampler


def test_a_cheap_network_is_not_stopped_by_expensive_ones() -> None:
    expensive = [(0.9, [100]), (0.91, [110]), (0.92, [120]), (0.93, [130]), (0.94, [140])]
    assert compare(0.5, [50], expensive).is_competitive
    assert not compare(0.5, [150], expensive).is_competitive


def test_rivals_cost_no_more_in_any_way() -> None:
    others = [(0.9, [100, 1.0]), (0.9, [90, 2.0]), (0.9, [90, 1.0]), (0.9, [80, 0.5])]
    assert not compare(0.5, [100, 2.0], others).is_competitive
    assert compare(0.5, [80, 2.0], others).is_competitive  # one rival
    assert compare(0.5, [100, 0.4], others).is_competitive  # none


def test_the_best_third_continues() -> None:
    others = [(accuracy / 10, [10]) for accuracy in range(1, 9)]  # 0.1 … 0.8
    assert [compare(a, [10], others).is_competitive for a in (0.85, 0.75, 0.65, 0.55)] == [True, True, True, False]


def test_all_continue_while_there_are_few() -> None:
    assert compare(0.1, [10], []).is_competitive and compare(0.1, [10], [(0.9, [10])]).is_competitive
    assert not compare(0.1, [10], [(0.9, [10]), (0.8, [10])]).is_competitive


def test_a_value_that_is_not_a_number_is_the_worst() -> None:
    assert not compare(math.nan, [10], [(0.9, [10]), (0.8, [10])]).is_competitive
    assert compare(0.1, [10], [(math.nan, [10]), (math.nan, [10])]).is_competitive


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_a_study_with_two_objectives(direction: str) -> None:
    """Trials with few good parameters are stopped at the first rung, unless they are cheap."""
    sign = 1 if direction == "maximize" else -1
    pruner = FrontPruner(["macs"], rungs=[2, 4])
    study = optuna.create_study(directions=[direction, "minimize"], pruner=pruner)
    for quality in (0.9, 0.8, 0.7, 0.3, 0.2, 0.1):
        study.enqueue_trial({"quality": quality, "macs": 10.0})
    study.enqueue_trial({"quality": 0.1, "macs": 1.0})

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        quality, macs = trial.suggest_float("quality", 0, 1), trial.suggest_float("macs", 1, 10)
        trial.set_user_attr("macs", macs)
        for epoch in range(1, 6):
            pruner.report(trial, sign * quality * epoch)
            if pruner.should_prune(trial):
                raise optuna.TrialPruned
        return sign * quality * 5, macs

    study.optimize(objective, n_trials=7)
    complete, pruned = TrialState.COMPLETE, TrialState.PRUNED
    assert [trial.state for trial in study.trials] == [complete, complete, pruned, pruned, pruned, pruned, complete]
    assert [len(trial.user_attrs["curve"]) for trial in study.trials] == [5, 5, 2, 2, 2, 2, 5]


def test_a_pruner_that_has_read_trials_before_gives_the_same_answer() -> None:
    """Finished trials are read once; trials in training, and those of another study, each time."""
    random = np.random.default_rng(0)
    kept = FrontPruner(["macs", "params"], rungs=[2])
    studies = [optuna.create_study(directions=["maximize", "minimize", "minimize"]) for _ in range(2)]
    for step in range(120):
        study = studies[random.integers(2)] if step > 60 else studies[0]
        trial = study.ask()
        trial.set_user_attr("macs", int(random.integers(1, 9)))
        trial.set_user_attr("params", int(random.integers(1, 9)))
        trial.set_user_attr("curve", [float(value) for value in random.random(random.integers(1, 4))])
        running = [one for one in study.trials if not one.state.is_finished()]
        if len(running) > 4:
            ended = running[random.integers(len(running))]
            study.tell(ended.number, [0.5, 1, 1] if step % 2 else None, state=None if step % 2 else TrialState.PRUNED)
        for one in study.trials:
            answers = [each.standing(study, one, 2, 0.5) for each in (kept, FrontPruner(["macs", "params"], rungs=[2]))]
            assert answers[0] == answers[1]
    others = [each for each in studies[0].trials if each.number != 7 and len(each.user_attrs["curve"]) >= 2]
    own = studies[0].trials[7].user_attrs
    rivals = [e.user_attrs for e in others if all(e.user_attrs[n] <= own[n] for n in ("macs", "params"))]
    better = sum(rival["curve"][1] > 0.5 for rival in rivals)
    assert kept.standing(studies[0], studies[0].trials[7], 2, 0.5) == (better, len(rivals))


def test_wrong_arguments_are_refused_in_one_line() -> None:
    for names, rungs, message in (
        ("macs", [1], r"cost_names takes a list of names, such as \['macs'\]; got 'macs'"),
        (["macs"], 3, r"rungs takes a list of epochs from 1, such as \[3, 9\]; got 3"),
        (["macs"], [0], "rungs takes a list of epochs from 1"),
        (["macs"], ["3"], "rungs takes a list of epochs from 1"),
    ):
        with pytest.raises(TypeError, match=message):
            FrontPruner(names, rungs)  # type: ignore[arg-type]
    pruner = FrontPruner(["macs"], np.arange(1, 3))
    trial = optuna.create_study(directions=["maximize", "minimize"]).ask()
    pruner.report(trial, 0.5)
    with pytest.raises(ValueError, match=r"costs as user attributes; trial 0 has no 'macs'; call trial\.set_user"):
        pruner.should_prune(trial)


def test_the_sampler_learns_from_stopped_trials() -> None:
    sampler = FrontSampler(lambda params: {"macs": params["width"]}, ["macs"], seed=0)
    pruner = FrontPruner(["macs"], rungs=[1])

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        width, shape = trial.suggest_float("width", 1, 8, step=0.5), trial.suggest_float("shape", 0, 1, step=0.125)
        trial.set_user_attr("macs", width)
        for epoch in (1, 2):
            accuracy = (0.5 + 0.1 * math.log(width) - 0.2 * abs(shape - 0.5)) * epoch / 2
            pruner.report(trial, accuracy)
            if pruner.should_prune(trial):
                raise optuna.TrialPruned
        return accuracy, width

    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler, pruner=pruner)
    for width, shape in ((2, 0.5), (3, 0.5), (4, 0.5), (5, 0.5), (6, 0.0), (7, 0.0), (8, 0.0)):
        study.enqueue_trial({"width": width, "shape": shape})
    study.optimize(objective, n_trials=9)
    assert [trial.state for trial in study.trials[4:7]] == [TrialState.PRUNED] * 3
    seen = [entry for trial in study.trials[:7] if (entry := sampler._read(trial, 1.0)) is not None]
    assert [len(entry.curve) for entry in seen] == [2, 2, 2, 2, 1, 1, 1]
    belief = Belief(sampler._axes, seen, 1, [], None, (8.0,), np.random.default_rng(0))
    bad, good = belief.model.predict(
        belief.inputs([seen[6].point, sampler._axes.point({"width": 8, "shape": 0.5})], [(8.0,)] * 2)
    )[0]
    assert bad < good - 0.03
