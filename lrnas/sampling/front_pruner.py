"""Optuna pruner for several objectives: stops trials for which others offer more accuracy at no more cost.

Optuna's `trial.report` and `trial.should_prune` refuse studies with several objectives; `FrontPruner` has methods in
their place. Certain epochs are called rungs. At a rung, a trial continues only if it is among the best third of the
trials that reached the rung and cost no more. So a trial is stopped if cheaper ones are more accurate, never because it
is small.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import optuna
from optuna.pruners import BasePruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from .arguments import read_list, read_names
from .curves import CURVE

Table = npt.NDArray[np.float64]

REDUCTION_FACTOR = 3
"""The best third of the trials at a rung continues."""


class Standing(NamedTuple):
    """A trial among those at its rung that cost no more."""

    better: int
    """Number of others that are more accurate."""
    rivals: int
    """Number of others."""

    @property
    def is_competitive(self) -> bool:
        """Whether the trial is among the best third, or there are fewer than two others."""
        number = self.rivals + 1
        return number < REDUCTION_FACTOR or self.better < number / REDUCTION_FACTOR


def compare(accuracy: float, costs: Sequence[float], others: Iterable[tuple[float, Sequence[float]]]) -> Standing:
    """Compare a trial with the other trials at its rung.

    Args:
        accuracy: Accuracy of the trial at this rung.
        costs: All costs of the trial.
        others: Accuracy and costs of the other trials that reached this rung.
    """
    return _compare(accuracy, costs, _table([(other, *theirs) for other, theirs in others], 1 + len(costs)))


def _compare(accuracy: float, costs: Sequence[float], others: Table) -> Standing:
    """The same with a row for each of the other trials: its accuracy and its costs."""
    rivals = others[(others[:, 1:] <= costs).all(axis=1), 0]
    own = -math.inf if math.isnan(accuracy) else accuracy
    return Standing(int((rivals > own).sum()), len(rivals))


def _table(rows: Sequence[Sequence[float]], columns: int) -> Table:
    return np.array(rows, dtype=np.float64).reshape(len(rows), columns)


class _Ended(NamedTuple):
    """The trials of a study before the first one that is not finished. They do not change any more."""

    trials: int
    """Number of these trials."""
    last: FrozenTrial | None
    """The last of these trials; None if there are none."""
    table: Table
    """A row for each of them that reached a rung: number, value at the rung, costs."""


def _is_epoch(number: object) -> bool:
    return isinstance(number, Integral) and int(number) > 0


class FrontPruner(BasePruner):
    """Pruner for multi-objective studies: the first objective is known epoch by epoch, the costs before training.

    In the objective function:

        trial.set_user_attr("macs", macs)
        for epoch in range(30):
            ...
            pruner.report(trial, accuracy)
            if pruner.should_prune(trial):
                raise optuna.TrialPruned()
        return accuracy, macs

    The reported values become the user attribute `curve` of the trial; `FrontSampler` learns from it, too.

    Args:
        cost_names: Names of the costs; trials have user attributes with these names.
        rungs: Epochs, counted from 1, after which trials may be stopped.
    """

    def __init__(self, cost_names: Sequence[str], rungs: Iterable[int]) -> None:
        self.cost_names = read_names("cost_names", cost_names)
        self.rungs = read_list("rungs", rungs, _is_epoch, "epochs from 1, such as [3, 9]")
        self._ended: dict[int, _Ended] = {}
        """By epoch. Studies may have thousands of trials, so these are read only once."""

    def report(self, trial: optuna.Trial, value: float) -> None:
        """Record the first objective after one more epoch.

        Args:
            trial: The trial that is evaluated.
            value: Value of the first objective after this epoch.
        """
        trial.set_user_attr(CURVE, [*trial.user_attrs.get(CURVE, ()), float(value)])

    def should_prune(self, trial: optuna.Trial) -> bool:
        """Whether the trial should be stopped after its last epoch; if so, raise `optuna.TrialPruned`.

        Args:
            trial: The trial that is evaluated.
        """
        return self.prune(trial.study, trial.study.get_trials(deepcopy=False)[trial.number])

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether a trial should be stopped after its last epoch.

        Args:
            study: The study.
            trial: One of its trials.
        """
        curve = trial.user_attrs.get(CURVE, ())
        return len(curve) in self.rungs and not self.standing(study, trial, len(curve), curve[-1]).is_competitive

    def standing(self, study: optuna.Study, trial: FrozenTrial, epoch: int, value: float) -> Standing:
        """Compare a trial with all others of its study that were trained for at least as many epochs.

        Args:
            study: The study.
            trial: One of its trials.
            epoch: The epoch, counted from 1, at which values are compared.
            value: The trial's own value of the first objective after this epoch.
        """
        sign = 1.0 if study.directions[0] == StudyDirection.MAXIMIZE else -1.0
        trials = study.get_trials(deepcopy=False)
        ended = self._read_ended(trials, epoch)
        table = np.vstack([ended.table, self._rows(trials[ended.trials :], epoch)])
        others = table[table[:, 0] != trial.number, 1:]
        others[:, 0] *= sign
        return _compare(sign * value, self._costs(trial), others)

    def _read_ended(self, trials: Sequence[FrozenTrial], epoch: int) -> _Ended:
        """The trials before the first that is not finished; those that were there at the last call are not read."""
        before = self._ended.get(epoch)
        if before is None or not (0 < before.trials <= len(trials) and trials[before.trials - 1] is before.last):
            before = _Ended(0, None, self._rows([], epoch))  # the first call, or another study
        new = list(itertools.takewhile(lambda trial: trial.state.is_finished(), trials[before.trials :]))
        if new:
            table = np.vstack([before.table, self._rows(new, epoch)])
            self._ended[epoch] = before = _Ended(before.trials + len(new), new[-1], table)
        return before

    def _rows(self, trials: Sequence[FrozenTrial], epoch: int) -> Table:
        """Number, value after the epoch and costs of the trials that reached it."""
        reached = [trial for trial in trials if len(trial.user_attrs.get(CURVE, ())) >= epoch]
        rows = [(trial.number, trial.user_attrs[CURVE][epoch - 1], *self._costs(trial)) for trial in reached]
        return _table(rows, 2 + len(self.cost_names))

    def _costs(self, trial: FrozenTrial) -> list[float]:
        try:
            return [trial.user_attrs[name] for name in self.cost_names]
        except KeyError as error:
            raise ValueError(
                f"trials must have their costs as user attributes; trial {trial.number} has no {error}; call "
                "trial.set_user_attr before the first report"
            ) from None
