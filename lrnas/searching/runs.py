"""`Runs`: a queue of networks that are trained over several seeds, one trial per network and seed, called a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from optuna.trial import FrozenTrial, TrialState

from lrnas.arch.architecture import Architecture
from lrnas.searching.proposals import FAULTS, Proposal, Queue
from lrnas.study.folder import trial_folder
from lrnas.study.ledger import starting_facts
from lrnas.study.objectives import Costs
from lrnas.study.retrained import counting_runs, has_failed, is_done, is_duplicate, run_key
from lrnas.study.study import Summary
from lrnas.training.checkpoint import CheckpointError, load_checkpoint


@dataclass(frozen=True, slots=True)
class Chosen:
    """A network that is trained over all seeds."""

    identity: str
    architecture: Architecture
    point: str | None
    """Its name, if it is a reference network."""
    trial: int | None
    """Its number in the search, if it is one of its trials."""


@dataclass
class Runs(Queue):
    """Runs of networks: of a retraining, all known from the start, or of a later level of a search, chosen one by one.

    Args:
        ledger: The ledger of the driver that trains them.
        wanted: The runs to train now, as pairs of a network's identity and a seed; the study may have more runs.
    """

    retries_faulty: ClassVar[bool] = True
    wanted: list[tuple[str, int]] = field(default_factory=list)

    def enqueue(self, networks: Sequence[Chosen], seeds: Sequence[int], costs: Mapping[str, Costs]) -> None:
        """Put the runs of networks over seeds into the queue, the first seed of all networks first.

        Args:
            networks: The networks.
            seeds: The seeds.
            costs: Costs of each network, by identity.
        """
        self.wanted = [(network.identity, seed) for seed in seeds for network in networks]
        runs = self.study.optuna_trials()
        known = {run_key(run) for run in runs if not has_failed(run)}
        failed = {run_key(run): run.number for run in runs if has_failed(run) and not is_duplicate(run)}  # the last
        chosen = {network.identity: network for network in networks}
        for identity, seed in self.wanted:
            if (identity, seed) not in known:
                # "after" is the number of a run that was given up, which may have a checkpoint
                self._enqueue_run(chosen[identity], seed, costs[identity], after=failed.get((identity, seed)))

    def _enqueue_run(self, network: Chosen, seed: int, costs: Costs, **facts: Any) -> None:
        """Put one run into the queue; facts that are None are left out."""
        names = {"point": network.point, "trial": network.trial, **facts}
        attributes = {
            "id": network.identity,
            "seed": seed,
            "architecture": network.architecture.to_json(),
            **{key: value for key, value in names.items() if value is not None},
            **costs,
        }
        self.study.optuna_study.enqueue_trial({}, user_attrs=attributes)

    def parts(self) -> str:
        networks = len({network for network, _ in self.wanted})
        seeds = len(self.wanted) // max(1, networks)
        return f"{networks} networks × {seeds} seeds" if networks > 1 and seeds > 1 else ""

    def take_over(self, folder: Path) -> None:
        """Move the checkpoints of runs that were given up to the runs that replace them.

        Args:
            folder: The folder with the checkpoints of the retraining.
        """
        for run in self.study.optuna_trials((TrialState.WAITING,)):
            if (before := run.user_attrs.get("after")) is None:
                continue
            old, new = trial_folder(folder, before), trial_folder(folder, run.number)
            with suppress(CheckpointError, OSError):  # another driver may have moved it already
                if not new.exists() and load_checkpoint(old) is not None:
                    old.rename(new)
                    known = self.study.optuna_trial(before).user_attrs
                    self.ledger.write(
                        run.number, {key: known[key] for key in ("curve", "epochs", "seconds") if key in known}
                    )

    def waiting_macs(self) -> list[int]:
        """Multiply-accumulates of the wanted runs that wait, in the order of the queue."""
        waiting = self.study.optuna_trials((TrialState.WAITING,))
        return [run.user_attrs["macs"] for run in waiting if run_key(run) in self.wanted]

    def faults(self, summary: Summary) -> dict[str, int]:
        """Number of wanted runs that diverged or were given up, per status."""
        runs = counting_runs(self.study.optuna_trials())
        wanted = [runs[key] for key in self.wanted if key in runs]
        ended = [run.user_attrs.get("status", "") for run in wanted if run.state.is_finished()]
        return {status: ended.count(status) for status in FAULTS}

    def spent(self) -> int:
        """Number of wanted runs that are done or being trained."""
        found = {
            run_key(run)
            for run in self.study.optuna_trials()
            if run.state != TrialState.WAITING and not has_failed(run)
        }
        return len(found & set(self.wanted))

    def left(self) -> int:
        """Number of wanted runs that are not done; a diverged run is done."""
        return len(set(self.wanted) - self._done())

    def running(self) -> int:
        """Number of wanted runs that some driver is training."""
        found = {run_key(run) for run in self.study.optuna_trials((TrialState.RUNNING,))}
        return len((found & set(self.wanted)) - self._done())

    def _done(self) -> set[tuple[str, int]]:
        return {run_key(run) for run in self.study.optuna_trials() if is_done(run)}

    def ask(self, budget: int | None = None) -> Proposal | None:
        """The next run; None if all wanted runs are done or taken by other drivers."""
        self.ledger.sign()
        wanted = set(self.wanted)
        for run in self.study.optuna_trials((TrialState.WAITING,)):
            if run_key(run) not in wanted or not self.ledger.claim(run):
                continue
            self.ledger.write(run.number, {"owner": self.ledger.driver, **starting_facts(run.user_attrs)})
            if self._is_known(run):
                continue
            known = run.user_attrs
            costs: Costs = {name: known[name] for name in ("macs", "params", "latency") if name in known}
            network = Architecture.from_json(known["architecture"])
            return Proposal(run.number, network, known.get("point"), costs, known["seed"])
        return None

    def end_duplicates(self) -> None:
        """End waiting runs that are done already: drivers that started together may have queued them twice."""
        done = self._done()
        for run in self.study.optuna_trials((TrialState.WAITING,)):
            if run_key(run) in done and self.ledger.claim(run):
                self.ledger.write(run.number, {"owner": self.ledger.driver})
                self._is_known(run)

    def _is_known(self, run: FrozenTrial) -> bool:
        """Whether another trial is the same run and counts; if so, this one is ended as a duplicate."""
        for other in self.study.optuna_trials():
            is_first = is_done(other) or (other.number < run.number and not has_failed(other))
            if is_first and run_key(other) == run_key(run):
                reason = f"the same run as trial {other.number}"
                self.ledger.end(run.number, TrialState.FAIL, "duplicate", reason, trained=False)
                return True
        return False
