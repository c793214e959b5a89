"""A study of the space nin at 8x8 pixels, for tests of what a search records and proposes."""

from pathlib import Path

import optuna
from optuna.samplers import RandomSampler

from lrnas.arch.architecture import Architecture
from lrnas.models.plan import make_plan
from lrnas.recipes import Recipe
from lrnas.searching.proposals import Study
from lrnas.searching.samplers import make_sampler
from lrnas.spaces.space import load_space
from lrnas.study.manifest import check_manifest
from lrnas.study.objectives import Limits, pick_objectives
from lrnas.study.storage import open_storage

SPACE = load_space("nin", batch_norm=True)


def cost(architecture: Architecture) -> dict[str, float]:
    total = make_plan(architecture, 8, 10, 1, check_fit=False).cost
    return {"macs": total.macs, "params": total.params}


def make_study(
    folder: Path | None = None,
    limits: Limits | None = None,
    objectives: str = "accuracy,macs",
    sampler: str | None = None,
) -> Study:
    """In a folder, or in memory; with points drawn at random, or a sampler of lrnas's."""
    goals = pick_objectives(objectives.split(","))
    record = optuna.create_study(
        study_name="s",
        storage=None if folder is None else open_storage(None, folder, print),
        directions=[goal.direction for goal in goals],
        load_if_exists=True,
        sampler=RandomSampler(seed=0),
    )
    manifest = {
        "source": "nin",
        "recipe": Recipe().to_dict(),
        "space": SPACE.to_dict(),
        "data": "digits",
        "image_size": 8,
        "seed": 0,
        "objectives": objectives.split(","),
        "reference": {"macs": 2e7, "params": 2e6},
    }
    check_manifest(record, manifest)
    study = Study("s", record, goals, manifest, SPACE, cost, limits or Limits())
    if sampler is not None:
        record.sampler = make_sampler(sampler, 0, study)
    return study


def make_search(folder: Path | None = None, objectives: str = "accuracy,macs") -> Study:
    """A search that is over, with four networks, one of them the paper's; all but the last are on the front."""
    study = make_study(folder, objectives=objectives)
    accuracies = {"lr-x0.25": 0.7, "dense-x0.25": 0.8, "nin-c3-lr": 0.9, "dense-x0.5": 0.75}
    named = {**SPACE.points, **SPACE.seeds}
    study.enqueue({name: named[name] for name in accuracies})
    for accuracy in accuracies.values():
        proposal = study.ask()
        assert proposal is not None
        study.record(proposal.number, [accuracy], 1.0)
        study.complete(proposal.number, accuracy)
    return study
