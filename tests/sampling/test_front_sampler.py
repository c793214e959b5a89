"""The front sampler in ordinary Optuna studies, with a formula in place of training."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial

from lrnas.sampling.axes import Point
from lrnas.sampling.belief import Belief, Observation
from lrnas.sampling.front_sampler import FrontSampler
from lrnas.sampling.pareto import hypervolume

LAYERS = range(4)
SPACE = {
    **{f"layer{i}.width": FloatDistribution(0.25, 2, step=0.25) for i in LAYERS},
    **{f"layer{i}.share": FloatDistribution(0, 1, step=0.125) for i in LAYERS},
    "pool": CategoricalDistribution(["max", "mean"]),
}
Params = dict[str, Any]


def costs_of(params: Params) -> dict[str, float]:
    macs = sum((0.5 + params[f"layer{i}.share"]) * params[f"layer{i}.width"] ** 2 for i in LAYERS)
    return {"macs": 1e6 * macs, "params": 1e3 * sum(params[f"layer{i}.width"] for i in LAYERS)}


def accuracy_of(params: Params) -> float:
    """Shares of 1/2 and growing widths are best."""
    shares = sum((params[f"layer{i}.share"] - 0.5) ** 2 for i in LAYERS)
    shape = params["layer3.width"] - params["layer0.width"]
    return 0.6 + 0.06 * math.log(costs_of(params)["macs"] / 1e6) - 0.04 * shares + 0.01 * shape


def uniform(width: float) -> Params:
    return {name: width if name.endswith("width") else 0.0 for name in SPACE} | {"pool": "max"}


NAMED = [uniform(width) for width in (0.5, 1.0, 1.5)]


def make_study(sampler: FrontSampler, directions: tuple[str, str] = ("maximize", "minimize")) -> optuna.Study:
    study = optuna.create_study(directions=directions, sampler=sampler)
    for params in NAMED:
        study.enqueue_trial(params)
    return study


def train(study: optuna.Study, number: int, noise: float = 0.0) -> None:
    random = np.random.default_rng(0)
    for _ in range(number):
        trial = study.ask(SPACE)
        study.tell(
            trial, [accuracy_of(trial.params) + noise * random.standard_normal(), costs_of(trial.params)["macs"]]
        )


def volume(study: optuna.Study) -> float:
    rows = [[-accuracy_of(trial.params), math.log(trial.values[1])] for trial in study.best_trials]
    return hypervolume(rows, [-0.5, math.log(40e6)])


class Forgetful(FrontSampler):
    """A sampler that does not know which trials are in training."""

    def observe(self, trial: FrozenTrial, point: Point) -> Observation | None:
        found = super().observe(trial, point)
        return None if found is None or found.is_pending else found


def ask_ten(kind: Callable[..., FrontSampler]) -> list[Params]:
    """Ten proposals at once, after 20 trials."""
    study = make_study(kind(costs_of, ["macs"], SPACE, other_costs=["params"], named=NAMED, seed=0))
    train(study, 20, noise=0.003)
    return [study.ask(SPACE).params for _ in range(10)]


def test_ten_proposals_at_once_are_ten_ideas() -> None:
    """Their costs are spread over the front, unlike those of a sampler that ignores the trials in training."""
    gaps = []
    for kind in (FrontSampler, Forgetful):
        asked = ask_ten(kind)
        costs = np.log([costs_of(params)["macs"] for params in asked])
        gaps.append(np.median(np.diff(np.sort(costs))))
        if kind is FrontSampler:
            assert len({tuple(params.values()) for params in asked}) == 10
    assert gaps[0] > 0.1 > 2 * gaps[1]


def test_a_point_that_is_found_ahead_is_the_next_proposal() -> None:
    def study_of_ten() -> tuple[optuna.Study, FrontSampler]:
        sampler = FrontSampler(costs_of, ["macs"], SPACE, other_costs=["params"], named=NAMED, seed=0)
        study = make_study(sampler)
        assert sampler.look_ahead(study, SPACE) is None  # nothing is known yet
        train(study, 10, noise=0.003)
        return study, sampler

    at_once, _ = study_of_ten()
    study, sampler = study_of_ten()
    find = sampler.look_ahead(study, SPACE)
    assert find is not None
    study.enqueue_trial(uniform(2.0))
    find()
    assert study.ask(SPACE).params == uniform(2.0)
    ahead = study.ask(SPACE).params
    assert ahead == at_once.ask(SPACE).params
    assert study.ask(SPACE).params != ahead  # it is proposed once


def observe(params: Params, accuracy: float | None, sampler: FrontSampler, is_pending: bool = False) -> Observation:
    point = sampler._axes.point(params)
    return Observation(point, point.tobytes(), sampler._sort(costs_of(params)), (), accuracy, is_pending)


def make_belief(noise: float = 0.004, pending: int = 0) -> Belief:
    """What is believed after 41 trials."""
    sampler = FrontSampler(costs_of, ["macs"], SPACE, other_costs=["params"], named=NAMED)
    study, random = make_study(sampler), np.random.default_rng(0)
    train(study, 4)
    points = [sampler._axes.draw(random) for _ in range(41)]
    drawn = [sampler._axes.params(point) for point in points]
    seen = [observe(params, accuracy_of(params) + noise * random.standard_normal(), sampler) for params in drawn]
    seen += [observe(NAMED[1], None, sampler, is_pending=True)] * pending
    return Belief(sampler._axes, seen, 1, sampler._named(), None, (), random)


def test_the_front_is_what_the_model_believes() -> None:
    """With much noise, the luckiest of 41 networks is believed to be about as good as it is, not as it was measured."""
    belief = make_belief(noise=0.02)
    truth = np.array([accuracy_of(belief.axes.params(entry.point)) for entry in belief.known])
    luck = np.array([entry.final for entry in belief.known]) - truth
    luckiest = int(np.argmax(luck))
    assert luck[luckiest] > 0.03 and abs(belief._accuracies[luckiest, 0] - truth[luckiest]) < 0.015


def test_trials_in_training_have_several_outcomes_and_make_the_model_surer() -> None:
    without, belief = make_belief(), make_belief(pending=1)
    assert len(without.known) == 41 and without._accuracies.shape[1] == 1
    assert len(belief.known) == 42 and belief._accuracies[-1].std() > 0.001
    assert belief._accuracies[-1].mean() == pytest.approx(accuracy_of(NAMED[1]), abs=0.02)
    at = belief.inputs([belief.known[-1].point], [belief.known[-1].costs])
    assert belief._predict(at)[1] < without._predict(at)[1]


def test_a_second_training_in_progress_is_worth_less() -> None:
    without, belief = make_belief(), make_belief(pending=3)
    at = without.inputs([belief.known[-1].point], [belief.known[-1].costs])
    assert belief.score(at)[0] < without.score(at)[0]


def test_later_rounds_find_candidates_with_larger_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    belief, means = make_belief(), []
    for rounds in ((40, 30, 30, 20), (120,)):
        monkeypatch.setattr("lrnas.sampling.front_sampler.ROUNDS", rounds)
        best = []
        for seed in range(8):
            sampler = FrontSampler(costs_of, ["macs"], SPACE, other_costs=["params"], named=NAMED, seed=seed)
            train(make_study(sampler), 4)
            best.append(sampler._candidates(belief, belief.known)[1][0])
        means.append(np.mean(best))
    assert means[0] > 1.05 * means[1]


def test_networks_with_lucky_measurements_may_be_trained_again() -> None:
    """In a small space with much noise, another look at the front is worth more than a new network."""
    space = {"width": FloatDistribution(1, 2, step=0.25), "share": FloatDistribution(0, 1, step=0.5)}
    found = []
    for repeats in (False, True):
        sampler = FrontSampler(lambda params: {"macs": params["width"]}, ["macs"], space, repeats=repeats, seed=0)
        study, random = (
            optuna.create_study(directions=["maximize", "minimize"], sampler=sampler),
            np.random.default_rng(0),
        )
        for _ in range(14):
            trial = study.ask(space)
            accuracy = 0.5 + 0.1 * math.log(trial.params["width"]) + 0.05 * random.standard_normal()
            study.tell(trial, [accuracy, trial.params["width"]])
        found.append(len({tuple(trial.params.values()) for trial in study.trials}))
    assert found[0] == 14 > found[1]


def test_the_gain_of_another_training_is_that_of_a_simulation() -> None:
    belief = make_belief(noise=0.02)
    gains = belief.repeat_gains()
    random = np.random.default_rng(0)
    best = max(gains, key=lambda i: gains[i])
    deviation = belief._predict(belief._known)[1][best] ** 0.5
    spread = deviation**2 / math.hypot(deviation, belief.model.noise[0])
    before, inside = belief._accuracies[:, 0], belief.boxes.excess(belief._costs) == 0
    edge, floor = belief.boxes.edges[0, 0], belief.boxes.floors[0]

    def volume_after(accuracies: np.ndarray) -> float:
        rows = np.column_stack([-accuracies, np.maximum(belief._costs[:, 0], belief.boxes.least[0])])
        return hypervolume(rows, [-floor, edge])

    drawn = []
    for z in random.standard_normal(2000):
        after = before.copy()
        after[best] += spread * z
        drawn.append(volume_after(after) - volume_after(before))
    assert inside[best] and gains[best] > 0
    assert gains[best] == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / math.sqrt(len(drawn)))


def test_beat_needs_named_points() -> None:
    for beat, named in ((0.6, []), (0.0, NAMED)):
        with pytest.raises(
            ValueError, match=f"beat is above 0 and needs named points; got {beat} and {len(named)} points"
        ):
            FrontSampler(costs_of, ["macs"], SPACE, named=named, beat=beat)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"cost_names": "macs"}, r"cost_names takes a list of names, such as \['macs'\]; got 'macs'"),
        ({"cost_names": 3}, "cost_names takes a list of names"),
        ({"other_costs": "params"}, "other_costs takes a list of names"),
        ({"costs_of": {"macs": 1}}, "costs_of takes a function; got {'macs': 1}"),
        ({"is_allowed": 3}, "is_allowed takes a function; got 3"),
        ({"distributions": ["x"]}, "distributions takes a mapping of names to Optuna's distributions; got"),
        ({"distributions": {"x": 1}}, "distributions takes a mapping of names to Optuna's distributions; got"),
        ({"named": NAMED[0]}, "named takes a list of points, mappings of parameters; got"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        FrontSampler(**{"costs_of": costs_of, "cost_names": ["macs"], "distributions": SPACE, **changed})


def test_a_study_with_other_objectives_is_refused() -> None:
    sampler = FrontSampler(costs_of, ["macs"], SPACE)
    message = "objectives after the first must be the costs macs, all minimised; got "
    for directions in (["maximize"], ["maximize", "maximize"], ["maximize", "minimize", "minimize"]):
        with pytest.raises(ValueError, match=re.escape(f"{message}{directions}")):
            optuna.create_study(directions=directions, sampler=sampler).ask(SPACE)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=FrontSampler(costs_of, ["mac"], SPACE))
    with pytest.raises(ValueError, match=r"costs_of must return all costs; got macs.* without 'mac'"):
        study.ask(SPACE)


def test_it_beats_chance() -> None:
    gains = []
    for sampler in (FrontSampler(costs_of, ["macs"], SPACE, seed=0), optuna.samplers.RandomSampler(seed=0)):
        study = make_study(sampler)
        train(study, len(NAMED))
        before = volume(study)
        train(study, 22, noise=0.003)
        gains.append(volume(study) - before)
    assert gains[0] > 1.2 * gains[1]


def test_parameters_may_be_suggested_one_by_one() -> None:
    """Without distributions, the parameters are those that the trials so far have in common."""

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        for i in LAYERS:
            trial.suggest_float(f"layer{i}.width", 0.25, 2, step=0.25)
            trial.suggest_float(f"layer{i}.share", 0, 1, step=0.125)
        return accuracy_of(trial.params), costs_of(trial.params)["macs"]

    asked: list[Params] = []

    def counted(params: Params) -> dict[str, float]:
        asked.append(params)
        return costs_of(params)

    study = optuna.create_study(directions=["maximize", "minimize"], sampler=FrontSampler(counted, ["macs"], seed=0))
    study.optimize(objective, n_trials=8)
    assert len(asked) > 100 and len({tuple(trial.params.values()) for trial in study.trials}) == 8


def test_the_first_objective_may_be_minimised() -> None:
    found = []
    for sign, directions in ((1, ("maximize", "minimize")), (-1, ("minimize", "minimize"))):
        study = make_study(FrontSampler(costs_of, ["macs"], SPACE, seed=0), directions)
        for _ in range(8):
            trial = study.ask(SPACE)
            trial.set_user_attr("curve", [sign * accuracy_of(trial.params) / 2, sign * accuracy_of(trial.params)])
            study.tell(trial, [sign * accuracy_of(trial.params), costs_of(trial.params)["macs"]])
        found.append([trial.params for trial in study.trials])
    assert found[0] == found[1]


def test_a_new_process_goes_on_as_well() -> None:
    """All state is in the study: what a sampler remembers changes predictions by a small part of their deviation."""
    old = FrontSampler(costs_of, ["macs"], SPACE, other_costs=["params"], named=NAMED, seed=0)
    study = make_study(old)
    train(study, 15, noise=0.003)
    new = FrontSampler(costs_of, ["macs"], SPACE, other_costs=["params"], named=NAMED, seed=0)
    new._axes, new._space, new._study = old._axes, old._space, study
    seen = [entry for trial in study.trials if (entry := new._read(trial, 1.0)) is not None]
    assert old._start is not None
    beliefs = [Belief(old._axes, seen, 1, old._named(), None, (), old._random, start) for start in (old._start, None)]
    inputs = beliefs[0]._known
    (warm, deviation), (cold, _) = (belief.model.predict(inputs) for belief in beliefs)
    assert np.abs(warm - cold).max() < 0.1 * deviation.max()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_no_numbers_are_failures(bad: float) -> None:
    study = make_study(FrontSampler(costs_of, ["macs"], SPACE, seed=0))
    train(study, 5)
    trial = study.ask(SPACE)
    trial.set_user_attr("curve", [0.5, bad])
    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    train(study, 1)
    if not math.isnan(bad):  # Optuna itself refuses this one
        study.tell(study.ask(SPACE), [bad, 1e6])
        train(study, 1)
    sampler = study.sampler
    assert isinstance(sampler, FrontSampler)
    failed = [entry for each in study.trials if (entry := sampler._read(each, 1.0)) is not None and entry.has_failed]
    assert len(failed) == (1 if math.isnan(bad) else 2) and all(entry.final is None for entry in failed)


def test_a_network_that_failed_counts_as_a_bad_one() -> None:
    """It does not hide the differences between the others, as an accuracy of 0 would."""
    sampler = FrontSampler(costs_of, ["macs"], SPACE, seed=0)
    train(make_study(sampler), 4)
    random = np.random.default_rng(0)
    drawn = [sampler._axes.params(sampler._axes.draw(random)) for _ in range(21)]
    seen = [observe(params, accuracy_of(params), sampler) for params in drawn]
    dead = [*seen[:20], observe(drawn[20], 0.0, sampler)]
    for entries in (seen, dead):
        belief = Belief(sampler._axes, entries, 1, [], None, (24e6,), random)
        wanted = [accuracy_of(params) for params in drawn[:20]]
        assert np.abs(belief._accuracies[:20, 0] - wanted).max() < 0.02
