"""What is believed about a search at one moment: accuracies, possible outcomes of trials in training, and the front.

Expected gains are averaged over possible outcomes of the trials in training. After each outcome, the front consists of
the accuracies that the model would then believe in.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from .accuracy_model import AccuracyModel, Inputs
from .axes import Axes, Point
from .curves import CurveModel
from .gain import Boxes, expected_gain
from .pareto import closest_to_front, front_indices

Array = npt.NDArray[np.float64]
Costs = tuple[float, ...]

MAX_OBSERVED = 400
"""The model is conditioned on at most this many trials: half of them those closest to the front, half the latest."""
MAX_PENDING = 64
"""At most this many trials in training are taken into account, the latest ones."""
NUM_OUTCOMES = 32
"""Number of possible outcomes of the trials in training."""


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """A trial, as the model sees it."""

    point: Point
    identity: Hashable
    """The same for trials of the same network."""
    costs: Costs
    """All costs that are known, those that are objectives first."""
    curve: tuple[float, ...]
    """Accuracy after each epoch so far; larger is better."""
    final: float | None
    """Accuracy of the completed trial; None if it was stopped or is in training."""
    is_pending: bool
    """Whether the trial is in training or waits for it."""
    has_failed: bool = False
    """Whether training failed through a fault of the network; it counts as one with the lowest accuracy known."""

    def negated(self) -> Observation:
        """The same trial with negative accuracies, for studies that minimise them."""
        final = None if self.final is None else -self.final
        return dataclasses.replace(self, curve=tuple(-value for value in self.curve), final=final)


class Belief:
    """Predicted accuracies, possible outcomes of trials in training, and expected gains.

    Args:
        axes: The parameters of the search.
        seen: All trials, at least some of which were completed.
        num_costs: Number of costs that are objectives.
        named: Points that mark the part of the front that counts, with their costs; it may be empty.
        beat: Only networks count that cost at most this share of a named point and are more accurate; None: all between
            the lowest and the highest costs of the named points.
        dearest: High costs of some points; without named points, all networks count that cost no more.
        random: Generator of the possible outcomes.
        start: Hyperparameters of an earlier model, from which the fit starts.
    """

    def __init__(
        self,
        axes: Axes,
        seen: Sequence[Observation],
        num_costs: int,
        named: Sequence[tuple[Point, Costs]],
        beat: float | None,
        dearest: Costs,
        random: np.random.Generator,
        start: Array | None = None,
    ) -> None:
        self.axes, self.num_costs, self._num_known_costs = axes, num_costs, len(seen[0].costs)
        entries, values, variances = _measurements(_choose(seen))
        full = [i for i, entry in enumerate(entries) if entry.final is not None]
        pending = [entry for entry in seen if entry.is_pending][-MAX_PENDING:]
        self.model = AccuracyModel(self._inputs(entries), values, variances, axes.kinds, start)
        self.known = [*(entries[i] for i in full), *pending]
        """Networks that are on the front if they are good enough: those completed, and those in training."""
        self._pending, self._known = self._inputs(pending), self._inputs(self.known)
        self._draw_outcomes(random)
        self._accuracies = self._predict(self._known)[0]
        """(known networks, outcomes): their accuracies as they are believed after each outcome."""
        self._highest = self._known.log_costs[:, :num_costs].max(axis=0)
        self._costs = self._shares(self._known)
        self.front = front_indices(np.column_stack([-self._accuracies.mean(axis=1), self._costs]))
        """Indices of the known networks that are believed to be on the front, in the mean over outcomes."""
        self.boxes = self._make_boxes(named, beat, dearest)
        self._fronts = [front_indices(np.column_stack([-after, self._costs])) for after in self._accuracies.T]
        """For each outcome, the indices of the known networks that are then believed to be on the front."""

    def _inputs(self, entries: Sequence[Observation]) -> Inputs:
        return self.inputs([entry.point for entry in entries], [entry.costs for entry in entries])

    def inputs(self, points: Sequence[Point], costs: Sequence[Costs]) -> Inputs:
        """Points and all their costs, as the model takes them."""
        log_costs = np.log(np.array(costs)).reshape(len(points), self._num_known_costs)
        return Inputs(log_costs, self.axes.encode(points), np.zeros(len(points), dtype=np.int64))

    def _shares(self, inputs: Inputs) -> Array:
        """(networks, costs), costs that are objectives, as shares of the highest ones of known networks."""
        return np.asarray(np.exp(inputs.log_costs[:, : self.num_costs] - self._highest))

    # --- trials in training

    def _draw_outcomes(self, random: np.random.Generator) -> None:
        """Draw possible outcomes of the trials in training, in pairs that are opposites of each other."""
        self._noise = float(self.model.noise[0]) ** 2
        number = len(self._pending)
        covariance = self.model.covariance(self._pending, self._pending) + self._noise * np.eye(number)
        half = random.standard_normal((number, NUM_OUTCOMES // 2)) if number else np.zeros((0, 1))
        self._factor = np.linalg.cholesky(covariance)
        # (pending, outcomes), in units of the factor
        self._outcomes = np.concatenate([half, -half], axis=1) if number else half

    def _predict(self, inputs: Inputs) -> tuple[Array, Array]:
        """(networks, outcomes), accuracies that are believed after each outcome; (networks,), their variances."""
        mean, deviation = self.model.predict(inputs)
        between = solve_triangular(self._factor, self.model.covariance(self._pending, inputs), lower=True)
        variance = np.maximum(deviation**2 - (between**2).sum(axis=0), 1e-12)
        return mean[:, None] + between.T @ self._outcomes, variance

    # --- the part of the front that counts

    def _make_boxes(self, named: Sequence[tuple[Point, Costs]], beat: float | None, dearest: Costs) -> Boxes:
        if named:
            inputs = self.inputs([point for point, _ in named], [costs for _, costs in named])
            return Boxes.around(self._shares(inputs), self.model.predict(inputs)[0], beat)
        accuracies = self._accuracies.mean(axis=1)[self.front]
        floor = accuracies.min() - 0.1 * (np.ptp(accuracies) + 1e-3)
        edges = np.maximum(1.0, np.array(dearest[: self.num_costs]) / np.exp(self._highest))
        return Boxes(1.1 * edges[None], floor[None], np.zeros(self.num_costs))

    # --- gains

    def score(self, inputs: Inputs) -> Array:
        """(candidates,): expected gains in hypervolume from one more training of each candidate.

        A training tells the accuracy only up to its noise. So what is believed afterwards varies less than the accuracy
        itself. Candidates outside the part of the front that counts have scores below 0, the farther the lower.
        """
        costs = self._shares(inputs)
        scores = -self.boxes.excess(costs)
        inside = np.flatnonzero(scores == 0)
        if len(inside):
            scores[inside] = self._gains(inputs.take(inside), costs[inside])
        return scores

    def _gains(self, inputs: Inputs, costs: Array) -> Array:
        beliefs, variance = self._predict(inputs)
        deviation = variance / np.sqrt(variance + self._noise)
        gains = [
            expected_gain(belief, deviation, costs, accuracies[front], self._costs[front], self.boxes)
            for belief, accuracies, front in zip(beliefs.T, self._accuracies.T, self._fronts, strict=True)
        ]
        return np.asarray(np.mean(gains, axis=0))

    def repeat_gains(self) -> dict[int, float]:
        """Expected gains from training a network again that is on the front, by its index in `known`.

        What is believed of a network with a lucky measurement, and so the front, becomes more accurate.
        """
        variance = self._predict(self._known)[1]
        deviation = variance / np.sqrt(variance + self._noise)
        inside = self.boxes.excess(self._costs) == 0
        found = {}
        for i in {i for front in self._fronts for i in front if inside[i] and not self.known[i].is_pending}:
            others = np.array([entry.identity != self.known[i].identity for entry in self.known])
            gains = []
            for accuracies in self._accuracies.T:
                rest, costs = accuracies[others], self._costs[others]
                front = front_indices(np.column_stack([-rest, costs]))
                # with the deviation, and as if it were known exactly
                again, now = expected_gain(
                    accuracies[[i, i]], np.array([deviation[i], 1e-9]), self._costs[[i, i]],
                    rest[front], costs[front], self.boxes,
                )  # fmt: skip
                gains.append(again - now)
            found[i] = float(np.mean(gains))
        return found


def _choose(seen: Sequence[Observation]) -> list[Observation]:
    """The trials that the model is conditioned on, in their order."""
    useful = [entry for entry in seen if entry.final is not None or entry.curve or entry.has_failed]
    if len(useful) <= MAX_OBSERVED:
        return useful
    full = [i for i, entry in enumerate(useful) if entry.final is not None]
    accuracies, costs = zip(*((entry.final or 0.0, entry.costs[0]) for entry in (useful[i] for i in full)), strict=True)
    near = {full[i] for i in closest_to_front(accuracies, costs, MAX_OBSERVED // 2)}
    latest = [i for i in reversed(range(len(useful))) if i not in near][: MAX_OBSERVED - len(near)]
    return [useful[i] for i in sorted([*near, *latest])]


def _measurements(entries: Sequence[Observation]) -> tuple[list[Observation], Array, Array]:
    """Trials that say something about accuracies after full training, these accuracies, and their variances."""
    full = [entry for entry in entries if entry.final is not None]
    finals = np.array([entry.final for entry in full])
    curves = CurveModel([entry.curve for entry in full], np.log([entry.costs for entry in full]))
    fence = _Fence(np.log([entry.costs[0] for entry in full]), finals)
    used, values, variances = [], [], []
    for entry in entries:
        found = (entry.final, 0.0) if entry.final is not None else curves.predict(entry.curve, np.log(entry.costs))
        lowest = fence.at(entry.costs[0])
        if entry.has_failed or (found is not None and found[0] < lowest):
            found = (lowest, fence.variance)
        if found is not None:
            used.append(entry)
            values.append(found[0])
            variances.append(found[1])
    return used, np.array(values), np.array(variances)


class _Fence:
    """The lowest accuracy that is believed, by cost.

    The accuracy of a network that learned nothing would hide the differences between the others. So it is raised to the
    fence, and counts little.

    Args:
        log_costs: (networks,), logarithms of the first cost.
        accuracies: (networks,).
    """

    def __init__(self, log_costs: Array, accuracies: Array) -> None:
        kept = np.ones(len(accuracies), dtype=bool)
        for _ in range(3):  # without those below the fence of the time before
            self.cost, self.accuracy = float(log_costs[kept].mean()), float(accuracies[kept].mean())
            away = log_costs - self.cost
            self.slope = float((away * accuracies)[kept].sum() / ((away**2)[kept].sum() + 1e-6))
            apart = accuracies - self.accuracy - self.slope * away
            low, high = np.quantile(apart[kept], [0.25, 0.75])
            self.depth = float(max(3 * (high - low) - low, 2 * accuracies[kept].std()))
            kept = apart >= -self.depth
        self.variance = (self.depth / 3) ** 2

    def at(self, cost: float) -> float:
        return self.accuracy + self.slope * (math.log(cost) - self.cost) - self.depth
