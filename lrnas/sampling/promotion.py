"""Which network a search trains next at a later level, judged by what is believed about all of them.

Nothing here reads a study or trains a network. `believe` predicts accuracies after full training from all levels
together; `mark_counting` says which networks count; `pick_first`, `pick_longer` and `pick_full` choose, one run at a
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .accuracy_model import AccuracyModel, Inputs
from .gain import Boxes, expected_gain
from .pareto import costs_no_more, front_indices

Array = npt.NDArray[np.float64]

MAX_MEASURED = 400
"""Accuracies are predicted from at most this many networks, and for these alone: those closest to the front."""

NUM_COMPARED = 3
"""Number of reference networks that are trained at level `longer`, so that other networks can be compared there."""
CHANCE = 2.0
"""A network may be promoted if it is on the front when it is this many standard deviations better than believed."""


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A network of a search with its accuracies at all levels."""

    features: Array
    """The encoded parameters."""
    costs: tuple[float, ...]
    """All costs that are known, those that are objectives first."""
    accuracies: tuple[tuple[float, ...], ...]
    """Accuracy of each training, by level, the shortest level first."""


def believe(networks: Sequence[Measured], kinds: Sequence[int]) -> tuple[Array, Array, bool]:
    """Mean and standard deviation of accuracies after training at the highest level that has been measured.

    One model is fitted to all levels, so that a lucky short training counts for little, and what is known about full
    trainings of some networks says what to expect of others.

    Args:
        networks: Networks, each measured at the shortest level at least.
        kinds: The kind of parameter that each feature belongs to, as numbers from 0.

    Returns:
        Means and deviations of all networks, and whether they are those of the last level.
    """
    levels = [level for level in range(len(networks[0].accuracies)) if any(each.accuracies[level] for each in networks)]
    rows = [
        (i, rank, accuracy)
        for i, each in enumerate(networks)
        for rank, level in enumerate(levels)
        for accuracy in each.accuracies[level]
    ]
    indices, ranks, values = (np.array(column) for column in zip(*rows, strict=True))
    log_costs = np.log([each.costs for each in networks])
    features = np.array([each.features for each in networks])
    model = AccuracyModel(Inputs(log_costs[indices], features[indices], ranks), values, np.zeros(len(rows)), kinds)
    wanted = np.full(len(networks), len(levels) - 1)
    mean, deviation = model.predict(Inputs(log_costs, features, wanted))
    return np.minimum(mean, 1.0), deviation, levels[-1] == len(networks[0].accuracies) - 1


@dataclass(frozen=True, slots=True)
class Contender:
    """A network that may be trained at a later level."""

    identity: str
    is_reference: bool
    """Whether it is a reference network."""
    costs: tuple[float, ...]
    """The costs that are objectives."""
    mean: float
    """Accuracy after full training, as it is believed now."""
    deviation: float
    seconds: float
    """Expected training time of one run at the level in question."""
    begun: int = 0
    """Number of runs at this level or, except for reference networks, above it, whatever became of them."""
    has_failed: bool = False
    """Whether a run at this level diverged or failed; it then gets no more runs, unless it is a reference network."""
    counts: bool = True
    """Whether it is in the part of the front that is searched; see `mark_counting`."""
    is_first: bool = False
    """Whether `pick_first` chose it, so that nothing was promised."""

    @property
    def best(self) -> float:
        """The accuracy that it may have if it is better than believed."""
        return self.mean + CHANCE * self.deviation


def mark_counting(contenders: Sequence[Contender], boxes: Boxes) -> list[Contender]:
    """Mark the networks that are in the part of the front that is searched; others are trained only as rivals.

    Args:
        contenders: All networks.
        boxes: The part of the front that counts. A network is inside if its costs are, and if it may be more accurate
            than the floor of the box.
    """

    def counts(network: Contender) -> bool:
        costs = np.array(network.costs)
        is_inside = (costs <= boxes.edges).all(axis=1) & (network.best > boxes.floors)
        return bool(is_inside.any() and not (costs < boxes.least).all())

    return [replace(each, counts=counts(each)) for each in contenders]


def pick_first(contenders: Sequence[Contender], seconds_left: float) -> Contender | None:
    """The network to train in full before accuracies are promised, beside the reference networks.

    At most two networks: the best of those that cost no more than the most expensive reference network, and the best of
    those that cost no more than the cheapest. What is left of their lead over the reference networks says how much to
    expect of others. A network that takes more than a quarter of the time is left out.

    Args:
        contenders: All networks.
        seconds_left: Training time that is left for level `full`.

    Returns:
        The network; None if there is none to train.
    """
    references = sorted((each for each in contenders if each.is_reference), key=lambda each: each.costs, reverse=True)
    for point in (*references[:1], *references[1:][-1:]):
        rivals = _rivals(contenders, point)
        fits = [each for each in rivals if not each.begun and each.seconds <= seconds_left / 4]
        if fits and not any(each.begun for each in rivals):
            return max(fits, key=lambda each: each.mean)
    return None


def pick_longer(contenders: Sequence[Contender], seconds_left: float) -> Contender | None:
    """The network to train next at level `longer`.

    First come some reference networks, those that train fastest, unless one of them takes more than a quarter of
    the time that is left. How much of a lead over them is left at this level says how much to expect of full
    trainings. Then come the networks from which the largest gain of the front is expected.

    Args:
        contenders: All networks.
        seconds_left: Training time that is left for this level.

    Returns:
        The network; None if the time is over.
    """
    references = [each for each in contenders if each.is_reference]
    unknown = [each for each in references if not each.begun and each.seconds <= seconds_left / 4]
    if unknown and sum(each.begun > 0 for each in references) < NUM_COMPARED:
        return min(unknown, key=lambda each: each.seconds)
    front = [each for each in contenders if each.is_reference or (each.begun and not each.has_failed)]
    new = [each for each in contenders if _is_new(each) and each.seconds <= seconds_left]
    return _largest_gain(new, front)


def pick_full(
    contenders: Sequence[Contender], seconds_left: float, num_seeds: int, slack: float = 0.0
) -> Contender | None:
    """The network to train next at level `full`, with its next seed.

    First come one run of each reference network, and one of the best network that costs no more than it, if the
    best one is not among the first networks; then, as long as there is time, the other seeds of the reference networks,
    and networks that may be on the front, those with the largest expected gain first. A network is promoted only while
    all seeds of what is on the believed front can still be trained.

    Args:
        contenders: All networks.
        seconds_left: Training time that is left for this level; negative if it was exceeded.
        num_seeds: Number of runs of a network on the front.
        slack: Seconds by which seeds of networks on the front may exceed the time, if runs were slower than expected.

    Returns:
        The network; None if nothing is left to train.
    """
    references = sorted((each for each in contenders if each.is_reference), key=lambda each: each.costs, reverse=True)
    if first := [point for point in references if not point.begun]:
        return first[0]
    for point in references:
        rivals = [each for each in _rivals(contenders, point) if not each.has_failed]
        is_tried = any(each.begun and not each.is_first for each in rivals)
        if rivals and not is_tried and not (best := max(rivals, key=lambda each: each.mean)).begun:
            return best
    if more := [point for point in references if point.begun < num_seeds and point.seconds <= seconds_left]:
        return min(more, key=lambda point: point.begun)
    finals = [each for each in contenders if each.begun and (each.is_reference or not each.has_failed)]
    front = _front(finals)
    unfinished = [each for each in front if each.begun < num_seeds]
    reserved = sum((num_seeds - each.begun) * each.seconds for each in unfinished)
    fits = [each for each in contenders if _is_new(each) and num_seeds * each.seconds <= seconds_left - reserved]
    if (promoted := _largest_gain(fits, finals)) is not None:
        return promoted
    affordable = [each for each in unfinished if each.seconds <= seconds_left + slack]
    return min(affordable, key=lambda each: each.begun, default=None)


def _rivals(contenders: Sequence[Contender], point: Contender) -> list[Contender]:
    """The found networks that cost no more than a reference network."""
    return [each for each in contenders if not each.is_reference and costs_no_more(each.costs, point.costs)]


def _is_new(network: Contender) -> bool:
    """Whether a network can still be promoted."""
    return network.counts and not (network.is_reference or network.begun)


def _has_chance(network: Contender, front: Sequence[Contender]) -> bool:
    rivals = [each.mean for each in front if costs_no_more(each.costs, network.costs)]
    return network.best > max(rivals, default=-np.inf)


def _front(contenders: Sequence[Contender]) -> list[Contender]:
    """The networks that are believed to be on the front."""
    return [contenders[i] for i in front_indices([[-each.mean, *each.costs] for each in contenders])]


def _largest_gain(new: Sequence[Contender], known: Sequence[Contender]) -> Contender | None:
    """The new network from which the largest gain in hypervolume over the known ones is expected.

    None if none of them has a chance to be more accurate than the known ones that cost no more.
    """
    front = _front(known)
    if not front:
        return max(new, key=lambda each: each.mean, default=None)
    new = [each for each in new if _has_chance(each, front)]
    if not new:
        return None
    costs, front_costs = (np.array([each.costs for each in some], dtype=np.float64) for some in (new, front))
    accuracies = np.array([each.mean for each in front])
    edges = np.concatenate([costs, front_costs]).max(axis=0)
    floor = accuracies.min() - 0.1 * (np.ptp(accuracies) + 1e-3)
    boxes = Boxes(1.1 * edges[None], np.array([floor]), np.zeros(len(edges)))
    mean, deviation = (np.array([getattr(each, name) for each in new]) for name in ("mean", "deviation"))
    return new[int(np.argmax(expected_gain(mean, deviation, costs, accuracies, front_costs, boxes)))]
