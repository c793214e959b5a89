"""Samplers of other projects for the comparison of samplers: qLogNEHVI of BoTorch, and ParEGO of SMAC3.

Both are ordinary Optuna samplers for the study of a search:

    record.sampler = OUTSIDE["qlognehvi"](proposals, seed)

They are no dependencies of this project. They were tried on Python 3.11 with these versions, and with PyTorch 2.15,
scikit-learn 1.9 and Optuna 5.0:

    pip install botorch==0.18.1 gpytorch==1.15.2 linear-operator==0.6.1
    pip install smac==2.4.1 ConfigSpace==1.2.2

The random forest of SMAC3 is made of scikit-learn's trees since version 2.4, so nothing has to be compiled. BoTorch
compiles a small extension when it is first used, which takes a minute; without a compiler or ninja, it is slower.

Both learn from trials that were trained in full, and only from these: neither knows curves or failures. qLogNEHVI knows
costs before training, so it proposes only networks within the limits; SMAC3 may propose others.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import tempfile
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import joblib
import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState

from lrnas.errors import LrnasError
from lrnas.sampling.axes import Array, Params, Point
from lrnas.sampling.pareto import front_indices
from lrnas.searching.proposals import Proposals

if TYPE_CHECKING:
    import torch
    from botorch.models import SingleTaskGP

    Score = Callable[[Sequence["Candidate"]], Array]

NUM_START = 10
"""Number of finished trials, named networks included, before a model is used; as for the samplers of Optuna."""
MANY = 1_000_000
"""A number of trials that no search reaches."""


class _OutsideSampler(BaseSampler):
    """A sampler that proposes all parameters at once, except for trials whose parameters were given beforehand."""

    def __init__(self, proposals: Proposals, seed: int) -> None:
        if [goal.name for goal in proposals.study.objectives] != ["accuracy", "macs"]:
            names = ", ".join(goal.name for goal in proposals.study.objectives)
            raise LrnasError(f"the objectives must be accuracy and macs; got {names}; choose another sampler")
        self.proposals, self.axes = proposals, proposals.axes
        self.random = np.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)

    @abstractmethod
    def propose(self, trials: Sequence[FrozenTrial]) -> Point:
        """The next point to train.

        Args:
            trials: All other trials of the study.
        """

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.proposals.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Params:
        if trial.system_attrs.get("fixed_params", {}).keys() >= search_space.keys():
            return {}  # the trial was enqueued
        others = [other for other in study.get_trials(deepcopy=False) if other.number != trial.number]
        return self.axes.params(self.propose(others))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._independent.sample_independent(study, trial, param_name, param_distribution)


# --- BoTorch

NUM_CANDIDATES = 300
"""Number of candidates in each of the two rounds."""
NUM_PARENTS = 10
"""Number of best candidates of the first round, from which those of the second are made."""
NUM_SCREENING = 16
"""Number of samples of the accuracies with which all candidates are scored."""
NUM_SAMPLES = 128
"""Number of samples with which the best candidates are scored again."""
NUM_BEST = 50
"""Number of candidates that are scored again."""
MAX_ATTEMPTS = 100
"""Number of attempts for each candidate to find a network within the limits."""
MAX_STEPS = 50
"""Number of steps of each fit, which starts from the last one, so that steps add up over proposals."""
MARGIN = 0.1
"""How far the reference point is below the lowest accuracy of the named networks, as a share of their range."""


class Candidate(NamedTuple):
    """A network that may be trained, or was."""

    point: Point
    costs: Mapping[str, float]


class BoTorchSampler(_OutsideSampler):
    """qLogNEHVI, with a Gaussian process for the accuracy and known costs.

    - Accuracy: `SingleTaskGP` with BoTorch's own kernel and priors. Its inputs are the encoded parameters, log MACs and
      log parameters. Noise is inferred.
    - Cost: MACs as a share of the dense network's, an objective that is a function of log MACs without uncertainty. It
      is no logarithm because the benchmark measures hypervolumes in MACs, too.
    - Reference point: the MACs of the most expensive named network, which is the dense one, since networks that cost
      more are of no use; and a little less than the lowest accuracy of the named networks, so that the cheap end of the
      front counts as well. The margin of a tenth of the range is that of BoTorch's `infer_reference_point`. As long as
      fewer than two named networks are trained, all trials stand in for them.
    - Trials in training are `X_pending`, trials that were trained in full are `X_baseline`, without those that are
      never on the front (`prune_baseline`, with fewer samples than by default to save time).
    - Costs are no differentiable function of the parameters, so the best of 600 candidates is proposed. The first
      round consists of random points and of changed points of the front, half of each; the second one of changed points
      among the best of the first. All are scored with a few samples, the best ones again with many.
    """

    def __init__(self, proposals: Proposals, seed: int) -> None:
        super().__init__(proposals, seed)
        named = proposals.space.points or proposals.space.uniform
        self._dense = max((proposals.cost_of(network)["macs"] for network in named.values()), default=None)
        self._last: dict[str, Any] = {}
        """Hyper-parameters of the last model."""

    def propose(self, trials: Sequence[FrozenTrial]) -> Point:
        trials = [trial for trial in trials if _is_trained(trial)]
        finished = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        if len(finished) < NUM_START:
            return self._candidates(self.axes.draw, 1)[0].point
        screen, score = self._make_scores(finished, [trial for trial in trials if not trial.state.is_finished()])
        front = front_indices([(-trial.values[0], trial.values[1]) for trial in finished])
        parents = [self.axes.point(finished[i].params) for i in front]
        pool = self._candidates(self.axes.draw, NUM_CANDIDATES // 2)
        pool += self._candidates(partial(self.axes.mutate, parents), NUM_CANDIDATES // 2)
        scores = screen(pool)
        parents = [pool[i].point for i in np.argsort(-scores)[:NUM_PARENTS]]
        more = self._candidates(partial(self.axes.mutate, parents), NUM_CANDIDATES)
        pool, scores = pool + more, np.concatenate([scores, screen(more)])
        known = {trial.user_attrs["id"] for trial in trials}
        new = (pool[i] for i in np.argsort(-scores) if self._identity(pool[i]) not in known)
        best = list(islice(new, NUM_BEST)) or pool
        return best[int(np.argmax(score(best)))].point

    def _candidates(self, make: Callable[[np.random.Generator], Point], number: int) -> list[Candidate]:
        """Different networks within the limits, at points that a function makes."""
        proposals = self.proposals
        cost_of = proposals.guess_of or proposals.cost_of
        found: dict[bytes, Candidate] = {}
        for _ in range(MAX_ATTEMPTS * number):
            point = make(self.random)
            if point.tobytes() not in found:
                try:
                    costs = cost_of(proposals.space.architecture(self.axes.params(point)))
                except LrnasError:  # there is no network at this point
                    continue
                if not proposals.limits.excess(costs):
                    found[point.tobytes()] = Candidate(point, costs)
            if len(found) == number:
                break
        if not found:
            raise LrnasError("candidates must be within the limits; got none that is; widen the limits")
        return list(found.values())

    def _identity(self, candidate: Candidate) -> str:
        return self.proposals.study.identify(self.proposals.space.architecture(self.axes.params(candidate.point)))

    def _inputs(self, candidates: Sequence[Candidate]) -> torch.Tensor:
        """(candidates, features): encoded parameters, log MACs, log parameters."""
        import torch

        logs = np.log([[candidate.costs["macs"], candidate.costs["params"]] for candidate in candidates])
        return torch.from_numpy(np.hstack([self.axes.encode([candidate.point for candidate in candidates]), logs]))

    def _read(self, trials: Sequence[FrozenTrial]) -> torch.Tensor:
        """The inputs of trials."""
        return self._inputs([Candidate(self.axes.point(trial.params), trial.user_attrs) for trial in trials])

    def _make_scores(self, finished: Sequence[FrozenTrial], pending: Sequence[FrozenTrial]) -> list[Score]:
        """Functions that return the acquisition values of candidates, from few samples and from many."""
        import torch
        from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
        from botorch.acquisition.multi_objective.objective import GenericMCMultiOutputObjective
        from botorch.acquisition.multi_objective.utils import prune_inferior_points_multi_objective
        from botorch.sampling import SobolQMCNormalSampler

        inputs = self._read(finished)
        accuracies = torch.tensor([trial.values[:1] for trial in finished], dtype=torch.float64)
        # about as large as costs, as the constants of qLogNEHVI expect
        outcomes = (accuracies - accuracies.mean()) / accuracies.std().clamp_min(1e-6)
        named = torch.tensor(["point" in trial.user_attrs for trial in finished])
        marks = outcomes[named] if named.sum() > 1 else outcomes
        floor = float(marks.min() - MARGIN * (marks.max() - marks.min()))
        dense = math.log(self._dense or max(trial.values[1] for trial in finished))

        def objectives(samples: torch.Tensor, X: torch.Tensor) -> torch.Tensor:  # noqa: N803, a name of BoTorch
            """(..., points, 2): sampled accuracies and known costs, both to be maximised."""
            return torch.cat([samples, -torch.exp(X[..., -2:-1] - dense).expand_as(samples)], dim=-1)

        seed = int(self.random.integers(2**31))
        aim = {
            "ref_point": torch.tensor([floor, -1.0], dtype=torch.float64),
            "objective": GenericMCMultiOutputObjective(objectives),
        }
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            model = self._fit(inputs, outcomes)
            with torch.no_grad():
                baseline = prune_inferior_points_multi_objective(model, inputs, num_samples=NUM_SAMPLES, **aim)
                gains = [
                    qLogNoisyExpectedHypervolumeImprovement(
                        model,
                        X_baseline=baseline if len(baseline) else inputs,
                        sampler=SobolQMCNormalSampler(torch.Size([number]), seed=seed),
                        X_pending=self._read(pending) if pending else None,
                        **aim,
                    )
                    for number in (NUM_SCREENING, NUM_SAMPLES)
                ]

        def score(gain: torch.nn.Module, candidates: Sequence[Candidate]) -> Array:
            with torch.no_grad():
                return gain(self._inputs(candidates)[:, None, :]).numpy()

        return [partial(score, gain) for gain in gains]

    def _fit(self, inputs: torch.Tensor, outcomes: torch.Tensor) -> SingleTaskGP:
        """A model of accuracies, from the hyper-parameters of the last one on."""
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import SingleTaskGP
        from botorch.models.transforms import Normalize
        from gpytorch.mlls import ExactMarginalLogLikelihood

        width = inputs.shape[-1]
        scale = Normalize(width, indices=[width - 2, width - 1])  # the parameters are from 0 to 1 already
        model = SingleTaskGP(inputs, outcomes, input_transform=scale)
        model.load_state_dict(model.state_dict() | self._last)
        likelihood = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll(likelihood, optimizer_kwargs={"options": {"maxiter": MAX_STEPS}})
        self._last = {name: value.detach().clone() for name, value in model.named_parameters()}
        return model


def make_botorch(proposals: Proposals, seed: int) -> BaseSampler:
    """qLogNEHVI of BoTorch with known costs."""
    _require("qlognehvi", "botorch", "gpytorch")
    return BoTorchSampler(proposals, seed)


# --- SMAC3


class SMACSampler(_OutsideSampler):
    """ParEGO of SMAC3 with its facade for hyper-parameters: a random forest and expected improvement.

    It does not know costs beforehand: accuracy and MACs are told together when a trial has ended.

    Settings are the defaults of the facade, with ParEGO as its algorithm for several objectives: every eighth proposal,
    the forest is fitted to the objectives with other random weights, and a fifth of the proposals is random. Fitting it
    for every proposal takes seconds each time. Only these differ from the defaults: networks are trained once, and the
    initial Sobol points are as many as the study lacks trials to have `NUM_START`.

    All that it does about trials in training is not to propose the same point again.
    """

    def __init__(self, proposals: Proposals, seed: int) -> None:
        super().__init__(proposals, seed)
        self._seed = seed
        logging.getLogger("smac").setLevel(logging.ERROR)
        self._folder = tempfile.TemporaryDirectory(prefix="smac-")
        self._facade: Any = None
        self._told: set[int] = set()
        self._instance_seed = 0

    def propose(self, trials: Sequence[FrozenTrial]) -> Point:
        from smac.runhistory import TrialInfo, TrialValue

        trials = [trial for trial in trials if _is_trained(trial)]
        if self._facade is None:
            self._facade = self._make_facade(max(0, NUM_START - len(trials)))
        for trial in trials:
            if trial.state == TrialState.COMPLETE and trial.number not in self._told:
                self._told.add(trial.number)
                info = TrialInfo(self._configuration(self.axes.point(trial.params)), seed=self._instance_seed)
                self._facade.tell(info, TrialValue([1 - trial.values[0], trial.values[1]]), save=False)
        with joblib.parallel_config("sequential"):  # threads cost more time than they save in a forest of ten trees
            info = self._facade.ask()
        self._instance_seed = info.seed  # one for all trials, because the scenario is deterministic
        return np.array([int(info.config[axis.name]) for axis in self.axes.axes])

    def _make_facade(self, num_initial: int) -> Any:
        from ConfigSpace import Categorical, ConfigurationSpace, Constant, Integer
        from smac import HyperparameterOptimizationFacade as Facade, Scenario
        from smac.intensifier.intensifier import Intensifier
        from smac.multi_objective.parego import ParEGO

        space = ConfigurationSpace(seed=self._seed)
        for axis in self.axes.axes:  # all values as indices
            size = len(axis.values)
            if size == 1:
                space.add(Constant(axis.name, 0))
            elif axis.ordered:
                space.add(Integer(axis.name, (0, size - 1)))
            else:
                space.add(Categorical(axis.name, list(range(size))))
        scenario = Scenario(
            space,
            objectives=["error", "macs"],
            deterministic=True,  # networks are not trained again with other seeds
            n_trials=MANY,
            output_directory=Path(self._folder.name),
            seed=self._seed,
        )
        return Facade(
            scenario,
            # trials that are told but were never asked for count as retries
            intensifier=Intensifier(scenario, max_config_calls=1, retries=MANY),
            initial_design=Facade.get_initial_design(scenario, n_configs=num_initial),
            multi_objective_algorithm=ParEGO(scenario),
            logging_level=False,
            overwrite=True,
        )

    def _configuration(self, point: Point) -> Any:
        from ConfigSpace import Configuration

        indices = {axis.name: int(i) for axis, i in zip(self.axes.axes, point, strict=True)}
        space = self._facade.scenario.configspace
        # by way of a vector, as SMAC3 makes its own, because it tells configurations apart by their text: types matter
        return Configuration(space, vector=Configuration(space, values=indices).get_array())


def make_smac(proposals: Proposals, seed: int) -> BaseSampler:
    """ParEGO of SMAC3."""
    _require("smac", "smac", "ConfigSpace")
    return SMACSampler(proposals, seed)


OUTSIDE: dict[str, Callable[[Proposals, int], BaseSampler]] = {"qlognehvi": make_botorch, "smac": make_smac}
"""Samplers by name; each is made from the proposals of a search and a seed."""


def _is_trained(trial: FrozenTrial) -> bool:
    """Whether a trial is or was in training; duplicates and points beyond a limit never are, lost ones do not count."""
    facts = trial.user_attrs
    return trial.state != TrialState.FAIL and bool(facts.get("trained") or "imported_from" in facts)


def _require(sampler: str, *modules: str) -> None:
    """Raise an error if packages of a sampler are missing."""
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        raise LrnasError(
            f"the sampler {sampler} needs packages from outside; got no {', '.join(missing)}; "
            f"install them as benchmarks/{Path(__file__).name} says"
        )
