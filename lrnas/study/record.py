"""What a study holds: its trials, what they came to, and the front.

To look at a study takes no more than this. Everything is read from the Optuna study; trials that are finished do not
change any more and are read once.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from lrnas.study.manifest import StudyError
from lrnas.study.objectives import Limits, Objective, cost_objectives
from lrnas.study.pareto import front_indices, hypervolume
from lrnas.study.trials import Trial, read_trial

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "number",
    "status",
    "point",
    "identity",
    "accuracy",
    "macs",
    "params",
    "latency",
    "epochs",
    "seconds",
    "on_front",
)
"""Of a trial, in a table."""
FAULTS = ("diverged", "faulty", "lost")
"""Of statuses, those of trials that came to nothing without being stopped."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A study at one moment."""

    trials: list[Trial]
    """Every one that has a network, in order; those on the front say so."""
    front: list[Trial]
    """Those of full fidelity that no other one dominates, cheapest first."""
    counts: dict[str, int]
    """Number of trials by status."""
    hypervolume: float
    """Of the front, as a share of what lies above accuracy 0 and below the costs of the dearest named network."""


@dataclass
class Record:
    """See the module."""

    name: str
    study: optuna.Study
    objectives: tuple[Objective, ...]
    manifest: dict[str, Any]
    costs: list[str] = field(init=False, repr=False)
    """The names of the objectives that cost."""
    _finished: dict[int, Trial] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.costs = [objective.name for objective in cost_objectives(self.objectives)]

    @property
    def columns(self) -> list[str]:
        """What a table of trials has: the latency where it is known."""
        known = "latency" in self.costs
        return [name for name in COLUMNS if known or name != "latency"]

    @property
    def baseline(self) -> str | None:
        """The network that costs are shares of, by name: the space's, else the seed that is the backbone as it is."""
        space = self.manifest["space"]
        as_it_is = (name for name in ("baseline", "dense-x1") if name in space.get("seeds", ()))
        return space.get("baseline") or next(as_it_is, None)

    def summary(self) -> Summary:
        """All that can be said about the trials there are, from one look at them."""
        # "params" comes last: another driver may just be writing a row
        trials = [self._read(trial) for trial in self._trials() if "params" in trial.user_attrs]
        full = [trial for trial in trials if trial.status == "completed" and trial.values is not None]
        small = [self.as_costs(trial.values or ()) for trial in full]
        best = front_indices(small)
        on_front = {full[i].number for i in best}
        trials = [dataclasses.replace(trial, on_front=True) if trial.number in on_front else trial for trial in trials]
        front = sorted((trial for trial in trials if trial.on_front), key=self.cheapest_first)
        volume = hypervolume([small[i] for i in best], [1.0] * len(self.objectives))
        return Summary(trials, front, dict(Counter(trial.status for trial in trials)), volume)

    def cheapest_first(self, trial: Trial) -> tuple[float, int]:
        """By the first of the objectives that cost."""
        return getattr(trial, self.costs[0]), trial.number

    def trials(self) -> list[Trial]:
        """Every trial that has a network, in order; those on the front say so."""
        return self.summary().trials

    def front(self) -> list[Trial]:
        """Trials of full fidelity that no other one dominates, cheapest first."""
        return self.summary().front

    def hypervolume(self) -> float:
        """Of the front, as a share of what lies above accuracy 0 and below the costs of the dearest named network."""
        return self.summary().hypervolume

    def counts(self) -> dict[str, int]:
        """Number of trials by status."""
        return self.summary().counts

    def best(
        self, *, max_macs: int | None = None, max_params: int | None = None, max_latency: float | None = None
    ) -> Trial:
        """The most accurate network trained in full within limits."""
        limits = Limits(max_macs=max_macs, max_params=max_params, max_latency=max_latency)
        if max_latency is not None and "latency" not in self.costs:
            raise StudyError(f"{self.name} knows no latencies; got max_latency {max_latency:g}; leave it out")
        fits = [trial for trial in self.trials() if trial.status == "completed" and not limits.excess(trial.costs)]
        if not fits:
            raise StudyError(f"no network of {self.name} that is trained in full is within these limits; raise them")
        return max(fits, key=lambda trial: (trial.accuracy or 0.0, -trial.macs))

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial: what the network is and what it came to."""
        import pandas as pd

        names = self.columns
        rows = [[*(getattr(trial, name) for name in names), trial.description] for trial in self.trials()]
        return pd.DataFrame(rows, columns=[*names, "architecture"])

    def spent(self) -> int:
        """Trials that cost budget: those whose training began, but for lost ones."""
        free = (TrialState.FAIL, TrialState.WAITING)  # one that waits will be asked for, and counted, again
        return sum(bool(trial.user_attrs.get("trained")) and trial.state not in free for trial in self._trials())

    def running(self) -> int:
        """Trials that are being trained, by whomever."""
        return sum(bool(trial.user_attrs.get("trained")) for trial in self._trials((TrialState.RUNNING,)))

    def waiting(self) -> int:
        """Trials whose training began and that nobody trains now."""
        return sum(bool(trial.user_attrs.get("trained")) for trial in self._trials((TrialState.WAITING,)))

    def faults(self, summary: Summary) -> dict[str, int]:
        """Trials that came to nothing, by status."""
        return {status: summary.counts.get(status, 0) for status in FAULTS}

    def waiting_macs(self) -> list[int]:
        """Multiply-accumulates of the networks that wait to be trained, as far as they are known, in their order."""
        rows = (trial.user_attrs for trial in self._trials((TrialState.WAITING,)))
        return [row["macs"] for row in rows if "macs" in row]

    def at_epoch(self, number: int, epoch: int) -> tuple[list[float], list[tuple[float, list[float]]]]:
        """A trial's costs, and the accuracy and costs of all others after so many epochs."""
        costs: list[float] = []
        others = []
        for trial in self._trials():
            known = trial.user_attrs
            if trial.number == number:
                costs = [known[name] for name in self.costs]
            elif len(known.get("curve", ())) >= epoch:
                others.append((known["curve"][epoch - 1], [known[name] for name in self.costs]))
        return costs, others

    def is_protected(self, number: int) -> bool:
        """Whether a trial is one of the paper's networks, which are always trained in full."""
        return self._frozen(number).user_attrs.get("point") in self.manifest["space"]["points"]

    def as_costs(self, values: Sequence[float]) -> list[float]:
        """Objectives as shares that are to be made small."""
        reference = self.manifest["reference"]
        return [
            1 - value if objective.maximise else value / reference[objective.name]
            for value, objective in zip(values, self.objectives, strict=True)
        ]

    def _read(self, trial: FrozenTrial) -> Trial:
        if trial.number not in self._finished:
            read = read_trial(trial)
            if not trial.state.is_finished():
                return read
            self._finished[trial.number] = read
        return self._finished[trial.number]

    def _frozen(self, number: int) -> FrozenTrial:
        storage = self.study._storage
        return storage.get_trial(storage.get_trial_id_from_study_id_trial_number(self.study._study_id, number))

    def _trials(self, states: tuple[TrialState, ...] | None = None) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states)
