"""Samplers in a search: their proposals are in the space, within the limits, and different from each other."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from optuna.trial import TrialState
from small_studies import SPACE, cost, make_proposals

from lrnas.arch.architecture import Architecture
from lrnas.errors import LrnasError
from lrnas.sampling.front_sampler import MIN_COMPLETED
from lrnas.searching.proposals import Proposals
from lrnas.searching.samplers import make_sampler
from lrnas.searching.settings import SAMPLERS, SETTINGS, check_sampler
from lrnas.study.objectives import Limits


@pytest.fixture(autouse=True)
def _few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposals in a quarter of the time."""
    monkeypatch.setattr("lrnas.sampling.front_sampler.ROUNDS", (50, 40, 30))


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


def test_it_beats_chance_and_trains_nothing_twice() -> None:
    number = len(SPACE.points) + len(SPACE.uniform) + 25
    volumes = {}
    for sampler in ("front", "random"):
        proposals = make_seeded(sampler)
        train(proposals, number)
        volumes[sampler] = proposals.study.hypervolume()
        identities = [trial.identity for trial in proposals.study.trials if trial.status == "completed"]
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
    known = [sampler._read(trial, 1.0) for trial in proposals.study.optuna_trials()]
    seen = [entry for entry in known if entry is not None]
    assert sum(entry.is_pending for entry in seen) == 3
    assert sum(entry.has_failed for entry in seen) == 3
    assert sum(not entry.is_pending and entry.final is None and len(entry.curve) == 1 for entry in seen) == 3


def ask_at_once(beat: float | None, number: int) -> list[float]:
    """MACs of networks that are proposed, five at a time, after the named networks were trained."""
    proposals = make_proposals()
    proposals.beat = beat
    proposals.study.optuna_study.sampler = make_sampler("front", 0, proposals)
    proposals.enqueue({**SPACE.points, **SPACE.uniform})
    asked, running = [], []
    for i in range(len(SPACE.points) + len(SPACE.uniform) + number):
        proposal = proposals.ask()
        assert proposal is not None
        running.append(proposal)
        if proposal.point is None:
            asked.append(proposal.macs)
        if i >= 5:
            done = running.pop(0)
            params = proposals.study.optuna_trials()[done.number].params
            accuracy = float(np.log10(done.macs) / 10 - 0.02 * params["conv1.square"])
            proposals.ledger.report_epoch(done.number, [accuracy], 1.0)
            proposals.ledger.complete(done.number, accuracy)
    return asked


def test_proposals_cost_as_much_as_the_named_networks() -> None:
    named = [cost(network)["macs"] for network in (*SPACE.points.values(), *SPACE.uniform.values())]
    asked = ask_at_once(None, 20)
    assert np.mean([min(named) <= macs <= max(named) for macs in asked]) >= 0.8


def test_proposals_cost_less_than_a_share_of_the_papers_networks() -> None:
    """And most are not much smaller than that: they are to be as accurate as the paper's."""
    points = sorted(cost(network)["macs"] for network in SPACE.points.values())
    asked = ask_at_once(0.4, 20)
    assert np.mean([macs <= 0.4 * points[-1] for macs in asked]) >= 0.8
    assert np.median(asked) > 0.4 * points[0]
    assert max(asked) > 0.4 * points[0]  # not only the cheapest of the paper's networks is to be beaten


def test_beat_needs_the_front_sampler() -> None:
    check_sampler("front", 0.6)
    with pytest.raises(LrnasError, match="`beat` needs the sampler front; got `sampler` tpe"):
        check_sampler("tpe", 0.6)


def test_beat_needs_named_networks() -> None:
    proposals = make_proposals()
    proposals.space, proposals.beat = dataclasses.replace(SPACE, points={}, uniform={}), 0.6
    with pytest.raises(LrnasError, match="`beat` needs a space with named networks; got nin, which has none"):
        make_sampler("front", 0, proposals)


def test_three_objectives() -> None:
    proposals = make_seeded(objectives="accuracy,macs,params")
    train(proposals, len(SPACE.points) + len(SPACE.uniform) + 3)
    assert any(trial.point is None for trial in proposals.study.trials)


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
    full = [trial for trial in proposals.study.trials if trial.status == "completed"]
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
        found.append([trial.identity for trial in proposals.study.trials])
    assert found[0] == found[1]


def test_samplers_are_found_by_their_names() -> None:
    kinds = {name: type(make_sampler(name, 0, make_proposals())).__name__ for name in SAMPLERS}
    assert kinds == {
        "front": "_SearchSampler",
        "tpe": "TPESampler",
        "gp": "GPSampler",
        "nsga2": "NSGAIISampler",
        "random": "RandomSampler",
    }
    assert SETTINGS["sampler"].help.endswith(f": {', '.join(SAMPLERS[:-1])} or {SAMPLERS[-1]}.")


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_proposes(name: str) -> None:
    check_sampler(name)
    proposals = make_seeded(name)
    train(proposals, len(SPACE.points) + len(SPACE.uniform) + 2)
    assert proposals.study.counts()["completed"] == len(SPACE.points) + len(SPACE.uniform) + 2
