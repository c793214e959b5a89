"""A sampler that grows the front: what a network costs is known before it is trained, only its accuracy is predicted.

Optuna's samplers treat every objective as unknown. Here candidates are made from the networks on the front, by changing
a few parameters, by mixing two of them and by scaling all widths; a Gaussian process predicts their accuracy from what
was trained so far, in full or in part; and the one is proposed with the largest expected gain in hypervolume, which
with known costs is a closed formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from lrnas.searching.gaussian_process import GaussianProcess, Hyperparameters, fit
from lrnas.searching.mutate import is_width, step_away
from lrnas.spaces.parameters import Parameter
from lrnas.study.pareto import front_indices, hypervolume

Array = npt.NDArray[np.float64]
Params = dict[str, Any]

CANDIDATES = 200
"""Looked at for one proposal."""
MOST_KNOWN = 200
"""Trials that are learned from: those on the front and the latest others."""
ENOUGH = 3
"""Trials in full before anything can be learned."""
TRIES = 1000
"""At a point within the limits, before that."""


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """A trial as the sampler sees it."""

    params: Params
    key: tuple[Any, ...]
    costs: tuple[float, ...]
    curve: tuple[float, ...]
    is_full: bool


class FrontSampler(BaseSampler):
    """See the module."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        distributions: Mapping[str, BaseDistribution],
        cost_names: Sequence[str],
        costs_of: Callable[[Params], tuple[float, ...] | None],
        seed: int | None = None,
    ) -> None:
        """`costs_of` gives the cost objectives of a point, or None where it is no network or beyond a limit.

        Trials have theirs as user attributes, by `cost_names`.
        """
        self.parameters = [parameter for parameter in parameters if len(parameter.values) > 1]
        self.fixed = {parameter.name: parameter for parameter in parameters if len(parameter.values) == 1}
        self.distributions = dict(distributions)
        self.cost_names = tuple(cost_names)
        self.costs_of = costs_of
        self.random = np.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)
        self._settings: Hyperparameters | None = None
        self._read: dict[int, _Known | None] = {}

    def reseed_rng(self) -> None:
        self.random = np.random.default_rng()
        self._independent.reseed_rng()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.distributions

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Params:
        if trial.system_attrs.get("fixed_params", {}).keys() >= self.distributions.keys():
            return {}  # it was enqueued
        known = [self._known(other) for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        seen = [entry for entry in known if entry is not None]
        full = [entry for entry in seen if entry.is_full]
        if len(full) < ENOUGH:
            return self._begin(seen)
        front = [full[i] for i in front_indices([[-entry.curve[-1], *entry.costs] for entry in full])]
        candidates = self._candidates([entry.params for entry in front], seen)
        if not candidates:
            return self._begin(seen)
        costs = np.log([cost for _, cost in candidates])
        points = np.array([self._encode(params) for params, _ in candidates])
        mean, deviation = self._predict(front, seen, costs, points)
        gains = expected_gain(
            mean, deviation, costs, np.array([entry.curve[-1] for entry in front]), np.log([e.costs for e in front])
        )
        return candidates[int(np.argmax(gains))][0]

    # --- what is known

    def _known(self, trial: FrozenTrial) -> _Known | None:
        if trial.number in self._read:
            return self._read[trial.number]
        known = self._see(trial)
        if trial.state.is_finished():
            self._read[trial.number] = known
        return known

    def _see(self, trial: FrozenTrial) -> _Known | None:
        """Trials that were, or are being, trained; and those known from elsewhere."""
        attributes = trial.user_attrs
        if not (attributes.get("trained") or "imported_from" in attributes) or trial.state == TrialState.FAIL:
            return None
        costs = tuple(float(attributes[name]) for name in self.cost_names)
        is_full = trial.state == TrialState.COMPLETE
        curve = tuple(attributes.get("curve", ()))
        if attributes.get("status") in ("diverged", "faulty"):
            curve = (0.0,)
        return _Known(trial.params, self._key(trial.params), costs, curve, is_full and bool(curve))

    def _key(self, params: Params) -> tuple[Any, ...]:
        return tuple(params[parameter.name] for parameter in self.parameters)

    def _encode(self, params: Params) -> Array:
        """Numbers from 0 to 1 for what has an order, one of several for choices."""
        found: list[float] = []
        for parameter in self.parameters:
            index = parameter.values.index(parameter.match(params[parameter.name]))
            if parameter.ordered:
                found.append(index / (len(parameter.values) - 1))
            else:
                found += [math.sqrt(0.5) * (i == index) for i in range(len(parameter.values))]
        return np.array(found)

    def _predict(self, front: list[_Known], seen: list[_Known], costs: Array, points: Array) -> tuple[Array, Array]:
        """Expected accuracies in full, and their deviations."""
        full = [entry for entry in seen if entry.is_full]
        on_front = {id(entry) for entry in front}
        measured = [entry for entry in seen if entry.curve and id(entry) not in on_front][-MOST_KNOWN:] + front
        values, variances = zip(*(_in_full(entry, full[-MOST_KNOWN:]) for entry in measured), strict=True)
        known_costs = np.log([entry.costs for entry in measured])
        center, scale = known_costs.mean(axis=0), known_costs.std(axis=0) + 1e-6

        def stack(entries: list[_Known]) -> tuple[Array, Array]:
            own = np.log(np.array([entry.costs for entry in entries]).reshape(-1, costs.shape[1]))
            return (own - center) / scale, np.array([self._encode(entry.params) for entry in entries]).reshape(
                -1, points.shape[1]
            )

        process: GaussianProcess = fit(
            *stack(measured), np.array(values), np.array(variances), self.random, self._settings
        )
        self._settings = process.settings
        process = process.with_believed(*stack([entry for entry in seen if not entry.curve]))
        return process.predict((costs - center) / scale, points)

    # --- what could be next

    def _begin(self, seen: list[_Known]) -> Params:
        """A point within the limits where nothing can be predicted yet: next to a known one, or anywhere."""
        taken = {entry.key for entry in seen}
        parents = [entry.params for entry in seen]
        for _ in range(TRIES):
            near = parents and self.random.random() < 0.5
            params = step_away(self.parameters, parents, self.random) if near else self._anywhere()
            if self._key(params) not in taken and self.costs_of(params) is not None:
                return params
        return {}

    def _anywhere(self) -> Params:
        """All values at random, the widths around a common one: so that small networks come up too."""
        random = self.random
        size = random.random()
        params = {name: one.values[0] for name, one in self.fixed.items()}
        for parameter in self.parameters:
            number = len(parameter.values)
            at = random.random()
            if is_width(parameter):
                at = min(max(size + 0.2 * (at - 0.5), 0.0), 0.999)
            params[parameter.name] = parameter.values[int(at * number)]
        return params

    def _candidates(self, parents: list[Params], seen: list[_Known]) -> list[tuple[Params, tuple[float, ...]]]:
        """New points near the front, with their costs."""
        taken = {entry.key for entry in seen}
        found = []
        for _ in range(4 * CANDIDATES):
            params = step_away(self.parameters, parents, self.random)
            key = self._key(params)
            if key in taken:
                continue
            taken.add(key)
            if (costs := self.costs_of(params)) is not None:
                found.append((params, costs))
                if len(found) == CANDIDATES:
                    break
        return found


def _in_full(entry: _Known, full: list[_Known]) -> tuple[float, float]:
    """A network's accuracy after all epochs, or what others gained after the epoch it was stopped at; its variance."""
    if entry.is_full:
        return entry.curve[-1], 0.0
    epoch = len(entry.curve)
    gains = np.array([other.curve[-1] - other.curve[epoch - 1] for other in full if len(other.curve) >= epoch])
    if not len(gains):
        return entry.curve[-1], 0.0
    return entry.curve[-1] + float(gains.mean()), float(gains.var())


def expected_gain(mean: Array, deviation: Array, costs: Array, accuracies: Array, front: Array) -> Array:
    """Expected gain in hypervolume of candidates with normal accuracies and known costs.

    `accuracies` and `front` are those of the networks on the front: (networks,) and (networks, costs). At every level
    of accuracy a candidate gains the volume of costs that it has below all networks of the front that reach it.
    """
    both = np.concatenate([costs, front])
    reference = both.max(axis=0) + 0.1 * (np.ptp(both, axis=0) + 1e-9)
    order = np.argsort(accuracies)
    accuracies, front = accuracies[order], front[order]
    floor = accuracies[0] - 0.1 * (np.ptp(accuracies) + 1e-3)
    levels = np.concatenate([[floor], accuracies])
    total = np.zeros(len(mean))
    for i, low in enumerate(levels):
        rivals = front[i:]  # on the front with accuracies above this level
        if costs.shape[1] == 1:
            edge = min(rivals.min(initial=math.inf), float(reference[0]))
            volume = np.maximum(0.0, edge - costs[:, 0])
        elif costs.shape[1] == 2:
            volume = _areas_below(costs, rivals, reference)
        else:
            before = hypervolume(rivals, reference.tolist())
            volume = np.array([hypervolume([*rivals, own], reference.tolist()) - before for own in costs])
        share = _mean_above(mean, deviation, low)
        if i + 1 < len(levels):
            share = share - _mean_above(mean, deviation, levels[i + 1])
        total += volume * share
    return total


def _areas_below(costs: Array, rivals: Array, reference: Array) -> Array:
    """For two costs: the area that each candidate dominates and no rival does, up to the reference point."""
    rivals = rivals[np.argsort(rivals[:, 0], kind="stable")]
    lefts = np.concatenate([[-math.inf], rivals[:, 0]])  # of strips, in each of which the rivals leave what lies below
    heights = np.minimum(np.minimum.accumulate(np.concatenate([[reference[1]], rivals[:, 1]])), reference[1])
    rights = np.append(rivals[:, 0], reference[0])
    widths = np.minimum(rights, reference[0]) - np.maximum(lefts, costs[:, :1])
    found: Array = (np.maximum(0.0, widths) * np.maximum(0.0, heights - costs[:, 1:])).sum(axis=1)
    return found


def _mean_above(mean: Array, deviation: Array, level: float) -> Array:
    """The expected excess of normal variables over a level."""
    z = (mean - level) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return np.asarray((mean - level) * below + deviation * density)
