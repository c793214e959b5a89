"""Small studies of the space nin at 8x8 pixels."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import optuna
from optuna.samplers import RandomSampler

from lrnas.arch.architecture import Architecture
from lrnas.models.plan import make_plan
from lrnas.recipes import Recipe
from lrnas.searching.finals import Promotion, Promotions, open_levels
from lrnas.searching.proposals import Proposals
from lrnas.searching.runs import Chosen
from lrnas.searching.samplers import make_sampler
from lrnas.spaces.space import SearchSpace, load_space
from lrnas.study.ledger import Ledger
from lrnas.study.levels import Level
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import check_manifest
from lrnas.study.objectives import Limits, pick_objectives
from lrnas.study.storage import open_storage
from lrnas.study.study import Study

SPACE = load_space("nin", batch_norm=True)


def cost(architecture: Architecture) -> dict[str, float]:
    total = make_plan(architecture, 8, 10, 1, deployed=True).cost
    return {"macs": total.macs, "params": total.params}


def make_proposals(
    folder: Path | None = None,
    limits: Limits | None = None,
    objectives: str = "accuracy,macs",
    sampler: str | None = None,
    space: SearchSpace = SPACE,
) -> Proposals:
    """The proposals of a search in a folder or in memory, with random points or a sampler of lrnas."""
    goals = pick_objectives(objectives.split(","))
    optuna_study = optuna.create_study(
        study_name="s",
        storage=None if folder is None else open_storage(None, folder),
        directions=[goal.direction for goal in goals],
        load_if_exists=True,
        sampler=RandomSampler(seed=0),
    )
    manifest = {
        "source": "nin",
        "recipe": Recipe().to_dict(),
        "space": space.to_dict(),
        "data": "digits",
        "image_size": 8,
        "channels": 1,
        "num_classes": 10,
        "rungs": [],
        "seed": 0,
        "objectives": objectives.split(","),
        "reference": {"macs": 2e7, "params": 2e6, **({"latency": 20} if "latency" in objectives else {})},
    }
    check_manifest(optuna_study, manifest)
    where = Whereabouts() if folder is None else Whereabouts(str(folder.parent))
    study = Study("s", optuna_study, goals, manifest, where)

    def cost_of(architecture: Architecture) -> dict[str, float]:
        known = cost(architecture)
        return known | ({"latency": known["macs"] / 1e6} if "latency" in objectives else {})

    proposals = Proposals(Ledger(study), space, cost_of, limits or Limits())
    if sampler is not None:
        optuna_study.sampler = make_sampler(sampler, 0, proposals)
    return proposals


def make_search(folder: Path | None = None, objectives: str = "accuracy,macs") -> Study:
    """A finished search with four networks, one of them a reference network; all but the last are on the front."""
    return train_some(make_proposals(folder, objectives=objectives)).study


def make_limited_search() -> Study:
    """A search with two networks; all reference networks are beyond its limit of 3 million multiply-accumulates."""
    proposals = make_proposals(limits=Limits(max_macs=3_000_000))
    proposals.enqueue({**SPACE.points, **SPACE.uniform})
    for accuracy in (0.5, 0.6):
        proposal = proposals.ask()
        assert proposal is not None
        proposals.ledger.report_epoch(proposal.number, [accuracy], 1.0)
        proposals.ledger.complete(proposal.number, accuracy)
    return proposals.study


ACCURACIES = {"lr-x0.25": 0.7, "dense-x0.25": 0.8, "nin-c3-lr": 0.9, "dense-x0.5": 0.75}
"""Made-up accuracies of four named networks."""


def train_some(proposals: Proposals, accuracies: Mapping[str, float] = ACCURACIES) -> Proposals:
    """Train some named networks of a search, with made-up accuracies."""
    named = {**SPACE.points, **SPACE.uniform}
    proposals.enqueue({name: named[name] for name in accuracies})
    for accuracy in accuracies.values():
        proposal = proposals.ask()
        assert proposal is not None
        proposals.ledger.report_epoch(proposal.number, [accuracy], 1.0)
        proposals.ledger.complete(proposal.number, accuracy)
    proposals.ledger.sign_off()
    return proposals


LEVELS = {
    "short": Level("short", Recipe(epochs=1), (0,)),
    "longer": Level("longer", Recipe(epochs=3), (1000,)),
    "full": Level("full", Recipe(epochs=9), (1000, 1001, 1002)),
}


def make_finals(
    search: Study, results: Mapping[str, Sequence[float]], promised: tuple[float, float] | None = (0.9, 0.01)
) -> Study:
    """The finals of a search: networks by name, with made-up accuracies, one per seed; 0 stands for a diverged run."""
    study = open_levels(search, LEVELS)["full"]
    trials = {trial.point: trial for trial in search.trials}
    chosen = []
    for name, accuracies in results.items():
        trial = trials[name]
        point = name if name in SPACE.points else None
        network = Chosen(trial.identity, trial.architecture, point, trial.number)
        chosen += [Promotion(network, 1000 + i, trial.costs, promised) for i in range(len(accuracies))]
    order = iter(chosen)
    runs = Promotions(Ledger(study), choose=lambda _: next(order, None))
    for accuracy in (accuracy for accuracies in results.values() for accuracy in accuracies):
        run = runs.ask()
        assert run is not None
        if accuracy:
            runs.ledger.report_epoch(run.number, [accuracy], 2.0)
            runs.ledger.complete(run.number, accuracy)
        else:
            runs.ledger.prune(run.number, "diverged", "the loss became infinite")
    runs.ledger.sign_off()
    return study
