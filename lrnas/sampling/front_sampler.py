"""Optuna sampler that extends the front of accuracy against costs that are known before training.

Optuna's own samplers treat every objective as unknown. This one predicts only the accuracy, with a Gaussian process
that is fitted to all trials that were completed or stopped. Candidates are made from the networks on the front (a
few parameters changed, two networks mixed, all widths shifted), and the best of them are changed again for some rounds.
The candidate with the largest expected gain in hypervolume is proposed; since costs are known, this gain has a closed
form.

The front to be improved consists of the accuracies that the model believes in, not of the measured ones: the best of
many measurements is lucky. Trials in training count with several possible outcomes, so that trials that are proposed at
the same time differ.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from .arguments import check_functions, read_list, read_names
from .axes import Axes, Params, Point, last_part
from .belief import Belief, Costs, Observation
from .curves import CURVE
from .gain import Boxes

Array = npt.NDArray[np.float64]

ROUNDS = (160, 120, 120, 80)
"""Number of candidates in each round; those of later rounds are made from the best ones before."""
NUM_PARENTS = 4
"""Number of best candidates from which the next round is made."""
NUM_DRAWN = 100
"""Number of random points that tell how high costs can be."""
MIN_COMPLETED = 3
"""Number of trials that must be completed before accuracies are predicted."""
MAX_ATTEMPTS = 1000
"""Number of attempts to find a random point within the limits, as long as accuracies are not predicted."""


class FrontSampler(BaseSampler):
    """Sampler for multi-objective studies that proposes the point with the largest expected gain in hypervolume.

    The first objective of the study is the accuracy, or another value that only training can tell, maximised or
    minimised; the others are the costs, which are minimised. If trials have the user attribute `curve`, a list of the
    values of the first objective so far, the sampler also learns from trials in training and from stopped ones
    (`FrontPruner` writes it).

    Args:
        costs_of: Returns costs by name at a point, all above 0; None if there is no network at this point.
        cost_names: Names of the costs that are objectives, in the order of the study's objectives.
        distributions: All parameters by name; None: those that all trials so far have in common.
        is_allowed: Returns whether a point with these costs may be proposed; None: any may.
        other_costs: Names of further costs that `costs_of` returns, and that help to predict accuracies.
        named: Points that mark the part of the front that counts, from their lowest to their highest costs; without
            them, all of it counts.
        beat: Only points count that cost at most this share of a named point and are more accurate than it.
        kind_of: Returns the kind of a parameter, given its name; parameters of one kind share a length scale. By
            default the part of the name after its last dot.
        idle_at: Returns the names of the parameters that have no effect at a point; None: all have one everywhere.
        identity_of: Returns a value that is the same for points that mean the same network; None: all points differ.
        repeats: Whether a point may be proposed again, to be trained with another random seed, if a surer front is
            worth more than a new point.
        seed: Seed of the proposals.
    """

    def __init__(
        self,
        costs_of: Callable[[Params], Mapping[str, float] | None],
        cost_names: Sequence[str],
        distributions: Mapping[str, BaseDistribution] | None = None,
        *,
        is_allowed: Callable[[Mapping[str, float]], bool] | None = None,
        other_costs: Sequence[str] = (),
        named: Sequence[Params] = (),
        beat: float | None = None,
        kind_of: Callable[[str], str] = last_part,
        idle_at: Callable[[Params], Collection[str]] | None = None,
        identity_of: Callable[[Params], Hashable] | None = None,
        repeats: bool = False,
        seed: int | None = None,
    ) -> None:
        optional = {"is_allowed": is_allowed, "idle_at": idle_at, "identity_of": identity_of}
        check_functions(
            costs_of=costs_of, kind_of=kind_of, **{key: one for key, one in optional.items() if one is not None}
        )
        named = read_list("named", named, lambda point: isinstance(point, Mapping), "points, mappings of parameters")
        known = {} if distributions is None else distributions
        if not isinstance(known, Mapping) or not all(isinstance(one, BaseDistribution) for one in known.values()):
            raise TypeError(f"distributions takes a mapping of names to Optuna's distributions; got {known!r:.80}")
        if beat is not None and (beat <= 0 or not named):
            raise ValueError(f"beat is above 0 and needs named points; got {beat} and {len(named)} points; give both")
        self.costs_of, self.is_allowed = costs_of, is_allowed
        self.cost_names = read_names("cost_names", cost_names)
        self.other_costs = read_names("other_costs", other_costs)
        self.distributions = None if distributions is None else dict(distributions)
        self.named, self.beat = named, beat
        self.kind_of, self.idle_at = kind_of, idle_at
        self.identity_of = identity_of
        self.repeats = repeats
        self._random = np.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)
        self._common = IntersectionSearchSpace(include_pruned=True)
        self._space: dict[str, BaseDistribution] = {}
        self._axes = Axes({})
        self._dearest: Costs = ()
        """The highest costs of some random points, found if there are no named points."""
        # the rest saves time, and can be lost
        self._study: optuna.Study | None = None
        self._start: Array | None = None
        """Hyperparameters of the last model."""
        self._finished: dict[int, Observation | None] = {}
        """Observations of finished trials, by number."""
        self._ahead: Params | None = None
        """The next point, if it was found ahead."""

    def reseed_rng(self) -> None:
        self._random = np.random.default_rng()
        self._independent.reseed_rng()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._common.calculate(study) if self.distributions is None else self.distributions

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Params:
        if trial.system_attrs.get("fixed_params", {}).keys() >= search_space.keys():
            return {}  # all values were given when the trial was enqueued, or no parameter is known yet
        self._begin(study, search_space)
        ahead, self._ahead = self._ahead, None
        return self._propose(self._seen(trial.number)) if ahead is None else ahead

    def look_ahead(
        self, study: optuna.Study, search_space: Mapping[str, BaseDistribution]
    ) -> Callable[[], None] | None:
        """Return a function that finds the next point, which another thread can call while trials are in training.

        The next proposal is then this point, and takes no time. It rests on the trials that there are now. Until the
        function has returned, the sampler must not be used.

        Args:
            study: The study.
            search_space: The parameters, as in `sample_relative`.

        Returns:
            The function; None as long as accuracies are not predicted.
        """
        self._begin(study, dict(search_space))
        seen = self._seen()
        if not self._can_predict(seen):
            return None

        def find() -> None:
            self._ahead = self._propose(seen)

        return find

    def _begin(self, study: optuna.Study, search_space: dict[str, BaseDistribution]) -> None:
        """Forget what is known of another study, or of other parameters."""
        if study is self._study and search_space == self._space:
            return
        self._check(study)
        self._study, self._space, self._finished, self._ahead = study, search_space, {}, None
        self._axes = Axes(search_space, self.kind_of, self.idle_at)
        self._dearest = self._find_dearest()

    def _seen(self, asking: int | None = None) -> list[Observation]:
        """What is known about the trials so far, except the one that asks for a point."""
        assert self._study is not None
        sign = 1.0 if self._study.directions[0] == StudyDirection.MAXIMIZE else -1.0
        trials = self._study.get_trials(deepcopy=False)
        others = (self._read(other, sign) for other in trials if other.number != asking)
        return [entry for entry in others if entry is not None]

    def _can_predict(self, seen: Sequence[Observation]) -> bool:
        return sum(entry.final is not None for entry in seen) >= MIN_COMPLETED

    def _propose(self, seen: Sequence[Observation]) -> Params:
        """The point with the largest expected gain, given what is known."""
        if not self._can_predict(seen):
            return self._explore(seen)
        belief = Belief(
            self._axes, seen, len(self.cost_names), self._named(), self.beat, self._dearest, self._random, self._start
        )
        self._start = belief.model.hyperparameters
        known = {entry.identity for entry in seen}
        points, scores = self._candidates(belief, seen)
        new = next((i for i, point in enumerate(points) if self._identity(point) not in known), None)
        if self.repeats and (gains := belief.repeat_gains()):
            again = max(gains, key=lambda i: gains[i])
            if new is None or gains[again] > scores[new]:
                return self._axes.params(belief.known[again].point)
        return self._explore(seen) if new is None else self._axes.params(points[new])

    def _check(self, study: optuna.Study) -> None:
        """Raise an error if the objectives of a study are not those of the sampler."""
        wanted, found = [StudyDirection.MINIMIZE] * len(self.cost_names), study.directions[1:]
        if found != wanted:
            names, ways = ", ".join(self.cost_names), [direction.name.lower() for direction in study.directions]
            raise ValueError(f"objectives after the first must be the costs {names}, all minimised; got {ways}")

    # --- trials so far

    def observe(self, trial: FrozenTrial, point: Point) -> Observation | None:
        """What is known about a trial; None if nothing can be learned from it.

        Subclasses may read trials in other ways. Accuracies are as the study has them, also if they are minimised.

        Args:
            trial: A trial of the study that has not failed.
            point: Its parameters, for `Observation`.
        """
        names = {*self.cost_names, *self.other_costs}
        costs = trial.user_attrs if names <= trial.user_attrs.keys() else self.costs_of(trial.params)
        if costs is None:
            return None
        final = trial.values[0] if trial.state == TrialState.COMPLETE else None
        curve = tuple(trial.user_attrs.get(CURVE, ()))
        has_failed = not np.isfinite([*curve, final or 0.0]).all()
        return Observation(
            point,
            self.identify(trial, point),
            self._sort(costs),
            () if has_failed else curve,
            None if has_failed else final,
            is_pending=not trial.state.is_finished(),
            has_failed=has_failed,
        )

    def identify(self, trial: FrozenTrial, point: Point) -> Hashable:
        """The identity of a trial's network; subclasses may know it without `identity_of`."""
        return self._identity(point)

    def _read(self, trial: FrozenTrial, sign: float) -> Observation | None:
        """The observation of a trial, with accuracies that are better the larger they are."""
        if trial.number in self._finished:
            return self._finished[trial.number]
        known = trial.state != TrialState.FAIL and trial.params.keys() >= self._space.keys()
        observation = self.observe(trial, self._axes.point(trial.params)) if known else None
        if observation is not None and sign < 0:
            observation = observation.negated()
        if trial.state.is_finished():
            self._finished[trial.number] = observation
        return observation

    def _named(self) -> list[tuple[Point, Costs]]:
        """The points that mark the part of the front that counts; empty if all of them are beyond the limits."""
        named = [(params, costs) for params in self.named if (costs := self.costs_of(params)) is not None]
        is_reached = self.beat is not None or self.is_allowed is None or any(self.is_allowed(c) for _, c in named)
        return [(self._axes.point(params), self._sort(costs)) for params, costs in named] if is_reached else []

    def _find_dearest(self) -> Costs:
        """The highest costs of some random points, one by one."""
        drawn = [self._allowed_costs(self._axes.draw(self._random)) for _ in range(0 if self.named else NUM_DRAWN)]
        found = [costs for costs in drawn if costs is not None]
        return tuple(np.max(found, axis=0)) if found else (1.0,) * len(self.cost_names)

    def _allowed_costs(self, point: Point) -> Costs | None:
        """Costs of a point; None if it must not be proposed."""
        costs = self.costs_of(self._axes.params(point))
        if costs is None or (self.is_allowed is not None and not self.is_allowed(costs)):
            return None
        return self._sort(costs)

    def _sort(self, costs: Mapping[str, float]) -> Costs:
        """Costs as a tuple, those that are objectives first."""
        try:
            return tuple(float(costs[name]) for name in (*self.cost_names, *self.other_costs))
        except KeyError as error:
            raise ValueError(f"costs_of must return all costs; got {', '.join(costs)} without {error}") from None

    def _identity(self, point: Point) -> Hashable:
        return point.tobytes() if self.identity_of is None else self.identity_of(self._axes.params(point))

    # --- candidates

    def _explore(self, seen: Sequence[Observation]) -> Params:
        """A random point near a known one or anywhere, with costs between those of the named points if possible.

        Used while accuracies are not predicted.
        """
        known = {entry.point.tobytes() for entry in seen}
        parents = [entry.point for entry in seen]
        boxes = None
        if named := [costs[: len(self.cost_names)] for _, costs in self._named()]:
            boxes = Boxes.around(np.array(named), np.zeros(len(named)), self.beat)
        found: Point | None = None
        for _ in range(MAX_ATTEMPTS):
            near = parents and self._random.random() < 0.5
            point = self._axes.mutate(parents, self._random) if near else self._axes.draw(self._random)
            if point.tobytes() in known or (costs := self._allowed_costs(point)) is None:
                continue
            found = point
            if boxes is None or boxes.excess(np.array([costs[: len(self.cost_names)]]))[0] == 0:
                break
        return {} if found is None else self._axes.params(found)

    def _candidates(self, belief: Belief, seen: Sequence[Observation]) -> tuple[list[Point], Array]:
        """New points, those with the largest expected gains first, and their gains.

        Gains are below 0 for points outside the part of the front that counts, the farther the lower.
        """
        tried = {entry.point.tobytes() for entry in seen}
        parents = [belief.known[i].point for i in belief.front]
        points: list[Point] = []
        scores = np.zeros(0)
        for number in ROUNDS:
            new, costs = self._vary(parents, number, tried)
            if new:
                points += new
                scores = np.concatenate([scores, belief.score(belief.inputs(new, costs))])
            best = np.argsort(-scores, kind="stable")[:NUM_PARENTS]
            parents = [points[i] for i in best] or parents
        order = np.argsort(-scores, kind="stable")
        return [points[i] for i in order], scores[order]

    def _vary(self, parents: Sequence[Point], number: int, tried: set[bytes]) -> tuple[list[Point], list[Costs]]:
        """New points near the parents that are allowed, and their costs."""
        points: list[Point] = []
        costs: list[Costs] = []
        for _ in range(4 * number):
            point = self._axes.mutate(parents, self._random)
            key = point.tobytes()
            if key not in tried and (own := self._allowed_costs(point)) is not None:
                points.append(point)
                costs.append(own)
                if len(points) == number:
                    break
            tried.add(key)
        return points, costs
