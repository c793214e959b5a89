"""Retrainings with made-up results: as data, and as a driver records them."""

from dataclasses import replace

import optuna

from lrnas.searching.proposals import Proposal, Queue
from lrnas.searching.runs import Chosen, Runs
from lrnas.study.ledger import Ledger
from lrnas.study.manifest import MANIFEST, RETRAINS
from lrnas.study.objectives import RETRAINED
from lrnas.study.retrained import Final, Retrained
from lrnas.study.study import Study


def some_finals(record: Study, recipe: str = "paper", point: str | None = None, **fields: object) -> Retrained:
    """Made-up results of networks of a study, over three seeds, one seed or none."""
    finals = [
        Final(
            trial.identity,
            trial.description,
            point or trial.point,
            trial.number,
            trial.macs,
            trial.params,
            recipe,
            (0, 1, 2)[:seeds],
            (0.9, 0.91, 0.95)[:seeds],
            open=3 - seeds,
        )
        for trial, seeds in zip(record.front(), (3, 1, 3, 0), strict=False)
    ]
    return Retrained(record.name, recipe, {"epochs": 160, **fields}, "cifar10", tuple(finals), others=("s@other",))


FOUND = 7


def retrain_by_hand(record: Study, name: str | None = None) -> Retrained:
    """Made-up results: the paper's networks, a found one that beats `nin`, and one that is not tested yet."""
    trials = {trial.number: trial for trial in record.trials}
    chosen = [trial for trial in trials.values() if trial.point in record.manifest["space"]["points"]]
    results = {"nin": (0.90, 0.91, 0.905), "nin-c3": (0.94, 0.95), "nin-c3-lr": (0.93,)}
    finals = [
        Final(
            trial.identity,
            trial.description,
            trial.point if trial.number != FOUND else None,
            trial.number,
            trial.macs,
            trial.params,
            "paper",
            tuple(range(len(accuracies))),
            accuracies,
            tuple(10 * trial.number + seed for seed in range(len(accuracies))),
        )
        for trial in [*chosen, trials[FOUND]]
        for accuracies in [results.get(trial.point or "", (0.948, 0.946, 0.947))]
    ]
    finals[2] = replace(finals[2], diverged=1, failed=2, open=3, reason="out of memory")
    finals.append(replace(finals[-1], identity="other", trial=None, seeds=(), accuracies=(), runs=(), open=3))
    finals.sort(key=lambda final: final.macs)
    return Retrained(name or record.name, "paper", {"epochs": 160}, "cifar10", tuple(finals))


def retraining(study: Study, label: str = "fast") -> Runs:
    """The retraining of a study, as a driver opens it."""
    name = f"{study.name}@{label}"
    record = optuna.create_study(
        storage=study.optuna_study._storage,
        study_name=name,
        directions=[goal.direction for goal in RETRAINED],
        load_if_exists=True,
    )
    manifest = {**study.manifest, RETRAINS: study.name, "rungs": []}
    record.set_user_attr(MANIFEST, manifest)
    return Runs(Ledger(Study(name, record, RETRAINED, manifest)))


def enqueue(runs: Runs, networks: list[Chosen], seeds: range) -> None:
    runs.enqueue(networks, seeds, {network.identity: {"macs": 5, "params": 2} for network in networks})


def ask(runs: Queue) -> Proposal:
    proposal = runs.ask()
    assert proposal is not None
    return proposal


def finish(runs: Runs, accuracy: float) -> Proposal:
    proposal = ask(runs)
    runs.ledger.report_epoch(proposal.number, [None, None], 1.0)  # type: ignore[list-item]  # trained on the validation images too
    runs.ledger.complete(proposal.number, accuracy)
    return proposal
