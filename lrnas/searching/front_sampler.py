"""Optuna sampler that extends the front. Costs are known before training, so only the accuracy is predicted.

Optuna's own samplers treat every objective as unknown. This one makes candidates from the networks on the front: it
changes a few parameters, mixes two networks, or scales all widths. A Gaussian process, fitted to all trials that were
trained in full or in part, predicts their accuracies. The candidate with the largest expected gain in hypervolume is
proposed; since costs are known, this gain has a closed form.
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

from lrnas.searching.gaussian_process import Hyperparameters, fit
from lrnas.searching.mutate import is_width, mutate
from lrnas.spaces.parameters import Parameter
from lrnas.study.pareto import front_indices, hypervolume

Array = npt.NDArray[np.float64]
Params = dict[str, Any]

NUM_CANDIDATES = 200
"""Number of candidates that are compared for one proposal."""
MAX_OBSERVED = 200
"""The Gaussian process is fitted to the front and to this many of the latest other trials."""
MIN_COMPLETED = 3
"""Number of trials that must be trained in full before accuracies are predicted."""
MAX_ATTEMPTS = 1000
"""Number of attempts to find a random point within the limits, as long as accuracies are not predicted."""


@dataclass(frozen=True, slots=True, eq=False)
class _Observation:
    """Parameters, costs and accuracies of a trial."""

    params: Params
    key: tuple[Any, ...]
    """The values of all parameters that vary."""
    costs: tuple[float, ...]
    curve: tuple[float, ...]
    """Validation accuracy after each epoch so far."""
    is_full: bool


class FrontSampler(BaseSampler):
    """Sampler for `optuna.Study` that proposes the candidate with the largest expected gain in hypervolume.

    Args:
        parameters: The parameters of the search space.
        distributions: The same parameters as Optuna's distributions, by name.
        cost_names: Names of the cost objectives; trials have user attributes with these names.
        costs_of: Returns the values of the cost objectives at a point; None if the point is no valid network or is
            beyond a limit.
        seed: Seed of the proposals.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        distributions: Mapping[str, BaseDistribution],
        cost_names: Sequence[str],
        costs_of: Callable[[Params], tuple[float, ...] | None],
        seed: int | None = None,
    ) -> None:
        self.parameters = [parameter for parameter in parameters if len(parameter.values) > 1]
        self.fixed = {parameter.name: parameter.values[0] for parameter in parameters if len(parameter.values) == 1}
        self.distributions = dict(distributions)
        self.cost_names = tuple(cost_names)
        self.costs_of = costs_of
        self.random = np.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)
        self._settings: Hyperparameters | None = None
        self._finished: dict[int, _Observation | None] = {}
        """Observations of finished trials, by number."""

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
            return {}  # all values were given when the trial was enqueued
        others = [self._observe(other) for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        seen = [entry for entry in others if entry is not None]
        full = [entry for entry in seen if entry.is_full]
        front = [full[i] for i in front_indices([[-entry.curve[-1], *entry.costs] for entry in full])]
        candidates = self._candidates([entry.params for entry in front], seen) if len(full) >= MIN_COMPLETED else []
        if not candidates:
            return self._explore(seen)
        costs = np.log([cost for _, cost in candidates])
        points = np.array([self._encode(params) for params, _ in candidates])
        mean, deviation = self._predict(front, seen, costs, points)
        accuracies, front_costs = np.array([entry.curve[-1] for entry in front]), np.log([e.costs for e in front])
        gains = expected_gain(mean, deviation, costs, accuracies, front_costs)
        return candidates[int(np.argmax(gains))][0]

    # --- trials so far

    def _observe(self, trial: FrozenTrial) -> _Observation | None:
        """The observation of a trial that was or is being trained, or was imported; None for any other."""
        if trial.number in self._finished:
            return self._finished[trial.number]
        observation = self._read(trial)
        if trial.state.is_finished():
            self._finished[trial.number] = observation
        return observation

    def _read(self, trial: FrozenTrial) -> _Observation | None:
        attributes = trial.user_attrs
        if not (attributes.get("trained") or "imported_from" in attributes) or trial.state == TrialState.FAIL:
            return None
        costs = tuple(float(attributes[name]) for name in self.cost_names)
        curve = (0.0,) if attributes.get("status") in ("diverged", "faulty") else tuple(attributes.get("curve", ()))
        is_full = trial.state == TrialState.COMPLETE and bool(curve)
        return _Observation(trial.params, self._key(trial.params), costs, curve, is_full)

    def _key(self, params: Params) -> tuple[Any, ...]:
        return tuple(params[parameter.name] for parameter in self.parameters)

    def _encode(self, params: Params) -> Array:
        """Features of a point: a number from 0 to 1 for each ordered parameter, one-hot for the others."""
        features: list[float] = []
        for parameter in self.parameters:
            index = parameter.values.index(parameter.match(params[parameter.name]))
            if parameter.ordered:
                features.append(index / (len(parameter.values) - 1))
            else:
                features += [math.sqrt(0.5) * (i == index) for i in range(len(parameter.values))]
        return np.array(features)

    def _predict(
        self, front: list[_Observation], seen: list[_Observation], costs: Array, points: Array
    ) -> tuple[Array, Array]:
        """Mean and standard deviation of the accuracies that candidates are expected to reach after full training.

        Args:
            front: Networks on the front.
            seen: All observed networks.
            costs: (candidates, costs), logarithms.
            points: (candidates, features), encoded parameters.
        """
        full = [entry for entry in seen if entry.is_full]
        on_front = {id(entry) for entry in front}
        measured = [entry for entry in seen if entry.curve and id(entry) not in on_front][-MAX_OBSERVED:] + front
        values, variances = zip(*(_final_accuracy(entry, full[-MAX_OBSERVED:]) for entry in measured), strict=True)
        known_costs = np.log([entry.costs for entry in measured])
        center, scale = known_costs.mean(axis=0), known_costs.std(axis=0) + 1e-6

        def stack(entries: list[_Observation]) -> tuple[Array, Array]:
            scaled = (np.log([entry.costs for entry in entries]) - center) / scale
            return scaled, np.array([self._encode(entry.params) for entry in entries])

        process = fit(*stack(measured), np.array(values), np.array(variances), self.random, self._settings)
        self._settings = process.settings
        if started := [entry for entry in seen if not entry.curve]:
            process = process.with_expected(*stack(started))
        return process.predict((costs - center) / scale, points)

    # --- candidates

    def _explore(self, seen: list[_Observation]) -> Params:
        """A random point within the limits, near a known one or anywhere. Used while accuracies are not predicted."""
        known = {entry.key for entry in seen}
        parents = [entry.params for entry in seen]
        for _ in range(MAX_ATTEMPTS):
            near = parents and self.random.random() < 0.5
            params = mutate(self.parameters, parents, self.random) if near else self._draw()
            if self._key(params) not in known and self.costs_of(params) is not None:
                return params
        return {}

    def _draw(self) -> Params:
        """A random point whose widths are close to each other, so that small networks are drawn too."""
        size = self.random.random()
        params = dict(self.fixed)
        for parameter in self.parameters:
            position = self.random.random()
            if is_width(parameter):
                position = min(max(size + 0.2 * (position - 0.5), 0.0), 0.999)
            params[parameter.name] = parameter.values[int(position * len(parameter.values))]
        return params

    def _candidates(self, parents: list[Params], seen: list[_Observation]) -> list[tuple[Params, tuple[float, ...]]]:
        """New points near the front, with their costs."""
        known = {entry.key for entry in seen}
        candidates = []
        for _ in range(4 * NUM_CANDIDATES):
            params = mutate(self.parameters, parents, self.random)
            key = self._key(params)
            if key not in known and (costs := self.costs_of(params)) is not None:
                candidates.append((params, costs))
                if len(candidates) == NUM_CANDIDATES:
                    break
            known.add(key)
        return candidates


def _final_accuracy(entry: _Observation, full: list[_Observation]) -> tuple[float, float]:
    """Accuracy of a network after all epochs, and the variance of this value.

    If the network was trained in part, the mean gain of fully trained networks over the remaining epochs is added.
    """
    epoch = len(entry.curve)
    longer = [] if entry.is_full else [other.curve for other in full if len(other.curve) >= epoch]
    gains = np.array([curve[-1] - curve[epoch - 1] for curve in longer] or [0.0])
    return entry.curve[-1] + float(gains.mean()), float(gains.var())


def expected_gain(mean: Array, deviation: Array, costs: Array, accuracies: Array, front: Array) -> Array:
    """Expected gain in hypervolume of candidates with normally distributed accuracies and known costs.

    Between two neighbouring accuracies of the front, a candidate gains the volume of costs that it dominates and that
    no network of the front with a higher accuracy does.

    Args:
        mean: (candidates,), expected accuracies.
        deviation: (candidates,), standard deviations of the accuracies.
        costs: (candidates, costs).
        accuracies: (networks,), accuracies of the networks on the front.
        front: (networks, costs), their costs.

    Returns:
        (candidates,), expected gains.
    """
    both = np.concatenate([costs, front])
    reference = both.max(axis=0) + 0.1 * (np.ptp(both, axis=0) + 1e-9)
    order = np.argsort(accuracies)
    accuracies, front = accuracies[order], front[order]
    floor = accuracies[0] - 0.1 * (np.ptp(accuracies) + 1e-3)
    levels = np.concatenate([[floor], accuracies])
    total = np.zeros(len(mean))
    for i, low in enumerate(levels):
        rivals = front[i:]  # networks on the front with accuracies above this level
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
    """Area of two costs that each candidate dominates and no rival does, up to the reference point."""
    rivals = rivals[np.argsort(rivals[:, 0], kind="stable")]
    # in each strip along the first cost, the area below `heights` is not dominated by any rival
    lefts = np.concatenate([[-math.inf], rivals[:, 0]])
    heights = np.minimum(np.minimum.accumulate(np.concatenate([[reference[1]], rivals[:, 1]])), reference[1])
    rights = np.append(rivals[:, 0], reference[0])
    widths = np.minimum(rights, reference[0]) - np.maximum(lefts, costs[:, :1])
    return np.asarray((np.maximum(0.0, widths) * np.maximum(0.0, heights - costs[:, 1:])).sum(axis=1))


def _mean_above(mean: Array, deviation: Array, level: float) -> Array:
    """Expected excess of normally distributed values over a level."""
    z = (mean - level) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return np.asarray((mean - level) * below + deviation * density)
