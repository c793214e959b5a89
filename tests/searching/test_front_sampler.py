"""The front sampler: expected gains compared with simulation, and its proposals."""

from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState
from small_studies import SPACE, cost, make_proposals

from lrnas.arch.architecture import Architecture
from lrnas.searching.front_sampler import MIN_COMPLETED, expected_gain
from lrnas.searching.gaussian_process import GaussianProcess, Hyperparameters, fit
from lrnas.searching.proposals import Proposals
from lrnas.searching.samplers import SAMPLERS, check_sampler, make_sampler
from lrnas.study.objectives import Limits
from lrnas.study.pareto import front_indices, hypervolume


def make_seeded(sampler: str = "front", objectives: str = "accuracy,macs", limits: Limits | None = None) -> Proposals:
    proposals = make_proposals(None, limits, objectives, sampler)
    proposals.enqueue({**SPACE.points, **SPACE.uniform})
    return proposals


def accuracy_of(params: dict[str, Any], macs: int) -> float:
    """Made-up accuracy: larger is better, square filters in the first layer are worse."""
    return float(np.clip(0.4 + 0.08 * np.log10(macs) - 0.1 * params["conv1.square"], 0, 1))


def train(proposals: Proposals, number: int) -> None:
    for _ in range(number):
        proposal = proposals.ask()
        assert proposal is not None
        params = proposals.study.optuna_trials()[proposal.number].params
        accuracy = accuracy_of(params, proposal.macs)
        proposals.ledger.report_epoch(proposal.number, [accuracy / 2, accuracy], 1.0)
        proposals.ledger.complete(proposal.number, accuracy)


@pytest.mark.parametrize("num_costs", [1, 2])
def test_expected_gains_agree_with_simulation(num_costs: int) -> None:
    random = np.random.default_rng(0)
    points = np.concatenate([-random.random((12, 1)), random.random((12, num_costs))], axis=1)
    front = points[front_indices(points)]
    costs, mean, deviation = random.random((5, num_costs)), random.random(5), np.full(5, 0.2)
    gains = expected_gain(mean, deviation, costs, -front[:, 0], front[:, 1:])
    both = np.concatenate([costs, front[:, 1:]])
    accuracies = -front[:, 0]
    floor = accuracies.min() - 0.1 * (np.ptp(accuracies) + 1e-3)
    reference = [-floor, *(both.max(axis=0) + 0.1 * (np.ptp(both, axis=0) + 1e-9))]
    before = hypervolume(front, reference)
    for i in range(5):
        drawn = mean[i] + deviation[i] * random.standard_normal(2000)
        simulated = [hypervolume([*front, [-value, *costs[i]]], reference) - before for value in drawn]
        error = np.std(simulated) / np.sqrt(len(simulated))
        assert gains[i] == pytest.approx(np.mean(simulated), abs=4 * error + 1e-4)


def test_a_gaussian_process_learns_a_function() -> None:
    random = np.random.default_rng(0)
    costs, points = random.standard_normal((80, 1)), random.random((80, 4))
    values = 0.7 + 0.1 * costs[:, 0] - 0.2 * points[:, 0]
    process = fit(costs[:60], points[:60], values[:60], np.zeros(60), random)
    mean, deviation = process.predict(costs[60:], points[60:])
    assert np.abs(mean - values[60:]).max() < 0.02
    far = process.predict(np.array([[9.0]]), points[:1])[1]
    assert far[0] > 2 * deviation.max()  # far from the data it is less sure
    updated = process.with_expected(np.array([[9.0]]), points[:1])
    assert updated.predict(np.array([[9.0]]), points[:1])[1][0] < far[0] / 2


def test_a_gaussian_process_agrees_with_the_textbook() -> None:
    random = np.random.default_rng(0)
    costs, points, values = random.random((9, 1)), random.random((9, 4)), random.random(9)
    process = GaussianProcess(costs, points, values, 0.1 * random.random(9), Hyperparameters())
    kernel = process._kernel(costs, points)
    whole = kernel + np.diag(0.2**2 + process.variances / values.var() + 1e-8)
    targets = (values - values.mean()) / values.std()
    mean, deviation = process.predict(costs, points)
    assert np.allclose(mean, values.mean() + values.std() * kernel @ np.linalg.solve(whole, targets))
    left = np.diag(kernel - kernel @ np.linalg.solve(whole, kernel))
    assert np.allclose(deviation, values.std() * np.sqrt(left))
    likelihood = -0.5 * targets @ np.linalg.solve(whole, targets) - 0.5 * np.linalg.slogdet(whole)[1]
    assert process.log_likelihood() == pytest.approx(likelihood)


def test_measurements_that_are_less_sure_count_less() -> None:
    costs, points, values = np.zeros((2, 1)), np.zeros((2, 3)), np.array([0.0, 1.0])
    settings = Hyperparameters()
    sure, unsure = (GaussianProcess(costs, points, values, np.array([0.0, v]), settings) for v in (0.0, 4.0))
    assert sure.predict(costs[:1], points[:1])[0][0] == pytest.approx(0.5)
    assert unsure.predict(costs[:1], points[:1])[0][0] < 0.1


def test_it_beats_chance_and_trains_nothing_twice() -> None:
    number = len(SPACE.points) + len(SPACE.uniform) + 25
    volumes = {}
    for sampler in ("front", "random"):
        proposals = make_seeded(sampler)
        train(proposals, number)
        volumes[sampler] = proposals.study.hypervolume()
        identities = [trial.identity for trial in proposals.study.trials() if trial.status == "completed"]
        assert len(set(identities)) == len(identities) == number
    assert volumes["front"] > volumes["random"]
    assert any(trial.point is None for trial in proposals.study.front())


def test_proposals_keep_to_the_limits_and_the_space() -> None:
    proposals = make_seeded(limits=Limits(max_macs=3_000_000))
    train(proposals, 16)
    proposed = [
        trial
        for trial in proposals.study.optuna_trials()
        if trial.user_attrs.get("trained") and "point" not in trial.user_attrs
    ]
    assert proposed and all(trial.user_attrs["macs"] <= 3_000_000 for trial in proposed)
    rejected = proposals.study.optuna_trials((TrialState.PRUNED,))
    assert all("point" in trial.user_attrs for trial in rejected)  # only named networks break a limit
    for trial in proposed:
        SPACE.architecture(trial.params)


def test_tight_limits_are_kept_from_the_first_proposal_on() -> None:
    """They are kept even before accuracies can be predicted."""
    proposals = make_seeded(limits=Limits(max_macs=600_000))
    named = sum(cost(network)["macs"] <= 600_000 for network in {**SPACE.points, **SPACE.uniform}.values())
    asked = [proposals.ask() for _ in range(named + 4)]
    assert {proposal.point for proposal in asked[named:]} == {None}
    assert all("point" in trial.user_attrs for trial in proposals.study.optuna_trials((TrialState.PRUNED,)))


def test_stopped_and_running_trials_are_observed() -> None:
    proposals = make_seeded()
    train(proposals, MIN_COMPLETED + 5)
    for _ in range(3):
        stopped = proposals.ask()
        proposals.ledger.report_epoch(stopped.number, [0.01], 1.0)
        proposals.ledger.prune(stopped.number, "stopped", "not competitive")
        diverged = proposals.ask()
        proposals.ledger.prune(diverged.number, "diverged", "the loss became infinite")
    running = [proposals.ask() for _ in range(3)]
    assert len({proposal.number for proposal in running}) == 3
    sampler = proposals.study.optuna_study.sampler
    known = [sampler._observe(trial) for trial in proposals.study.optuna_trials()]
    assert sum(entry is not None and not entry.curve for entry in known) == 3
    assert sum(entry is not None and entry.curve == (0.0,) for entry in known) == 3


def test_three_objectives() -> None:
    proposals = make_seeded(objectives="accuracy,macs,params")
    train(proposals, len(SPACE.points) + len(SPACE.uniform) + 3)
    assert any(trial.point is None for trial in proposals.study.trials())


@pytest.mark.parametrize("objectives", ["accuracy,latency", "accuracy,macs,latency"])
def test_latency_is_estimated_for_candidates_and_measured_for_proposals(objectives: str) -> None:
    proposals = make_seeded(objectives=objectives)
    measured: list[Architecture] = []

    def with_latency(architecture: Architecture) -> dict[str, float]:
        measured.append(architecture)
        return cost(architecture) | {"latency": 0.1 + cost(architecture)["macs"] / 1e7}

    def guessed(architecture: Architecture) -> dict[str, float]:
        return cost(architecture) | {"latency": 0.11 + cost(architecture)["macs"] / 1e7}

    proposals.cost_of, proposals.guess_of, proposals.limits = with_latency, guessed, Limits(max_latency=0.5)
    proposals.study.optuna_study.sampler = make_sampler("front", 0, proposals)
    proposals.study.manifest["reference"]["latency"] = 2.0
    train(proposals, 12)
    full = [trial for trial in proposals.study.trials() if trial.status == "completed"]
    assert len(full) == 12 and all(trial.latency is not None and trial.latency <= 0.5 for trial in full)
    assert any(trial.point is None for trial in full)
    assert len(measured) < 40  # only the proposed networks, not the hundreds of candidates
    assert 0 < proposals.study.hypervolume() < 1
    assert [trial.latency for trial in proposals.study.front()] == sorted(
        trial.latency or 0 for trial in proposals.study.front()
    )


def test_the_same_seed_proposes_the_same() -> None:
    found = []
    for _ in range(2):
        proposals = make_seeded()
        train(proposals, len(SPACE.points) + len(SPACE.uniform) + 3)
        found.append([trial.identity for trial in proposals.study.trials()])
    assert found[0] == found[1]


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_every_sampler_proposes(name: str) -> None:
    check_sampler(name)
    proposals = make_seeded(name)
    train(proposals, len(SPACE.points) + len(SPACE.uniform) + 2)
    assert proposals.study.counts()["completed"] == len(SPACE.points) + len(SPACE.uniform) + 2
