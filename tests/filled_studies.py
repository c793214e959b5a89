"""Studies of real networks with made-up results, stored as a search stores them."""

import math
import warnings
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from lrnas.errors import LrnasError
from lrnas.models.plan import canonical_id, deployed_form, has_norms, make_plan
from lrnas.recipes import get_recipe
from lrnas.searching.proposals import distributions_of
from lrnas.spaces.space import SearchSpace, load_space
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import check_manifest
from lrnas.study.objectives import pick_objectives
from lrnas.study.storage import open_storage
from lrnas.study.study import Study

SIZE, CLASSES, EPOCHS = 32, 10, 9
BEGUN = datetime(2026, 1, 1)


def fill_study(
    folder: Path,
    trials: int,
    *,
    name: str = "s",
    space: str = "nin",
    objectives: str = "accuracy,macs",
    storage: str | None = None,
    stopped: float = 0.5,
    seed: int = 0,
) -> Study:
    """Make a study: the paper's networks, then random ones; a share of these is stopped after one or three epochs."""
    found = load_space(space, batch_norm=True)
    goals = pick_objectives(objectives.split(","))
    (folder / name).mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name=name,
        storage=open_storage(storage, folder / name),
        directions=[goal.direction for goal in goals],
    )
    norms = has_norms(found.backbones[0], found.batch_norm)
    recipe = get_recipe("fast", found.backbones[0], SIZE, 45_000, {"epochs": EPOCHS}, norms=norms)
    reference = {"macs": 2.5e8, "params": 1e6} | ({"latency": 3.0} if "latency" in objectives else {})
    manifest = {
        "source": space,
        "space": found.to_dict(),
        "trainable": None,
        "data": "cifar10",
        "image_size": SIZE,
        "channels": 3,
        "num_classes": CLASSES,
        "recipe": recipe.to_dict(),
        "rungs": [1, 3],
        "seed": 0,
        "objectives": objectives.split(","),
        "reference": reference,
    }
    check_manifest(study, manifest)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that journals are experimental
        study.set_metric_names(objectives.split(","))
    study.add_trials(_rows(found, trials, manifest["objectives"], stopped, seed))
    return Study(name, study, goals, manifest, Whereabouts(str(folder), storage))


def _rows(space: SearchSpace, number: int, objectives: list[str], stopped: float, seed: int) -> list[FrozenTrial]:
    random = np.random.default_rng(seed)
    named = {**space.points, **space.uniform}
    rows = []
    for i in range(number):
        name = list(named)[i] if i < len(named) else None
        params = _draw(space, random) if name is None else space.params_of(named[name])
        network = space.architecture(params)
        if name is None:
            network = deployed_form(network, SIZE)
        cost = make_plan(network, SIZE, CLASSES, 3, deployed=True).cost
        last = 0.55 + 0.06 * math.log10(cost.macs / 1e5) + 0.02 * random.standard_normal()
        epochs = EPOCHS if name in space.points or random.random() > stopped else int(random.choice([1, 3]))
        curve = [round(float(last * (1 - 0.6 * 0.6**epoch)), 4) for epoch in range(1, epochs + 1)]
        facts = {
            "architecture": network.to_json(),
            "id": canonical_id(network, SIZE),
            "macs": cost.macs,
            **({"latency": round(cost.macs / 1e8, 3)} if "latency" in objectives else {}),
            "trained": True,
            "params": cost.params,
            "curve": curve,
            "epochs": epochs,
            "seconds": 2.0 * epochs,
            "hardware": "made up",
            **({} if name is None else {"point": name}),
        }
        is_full = epochs == EPOCHS
        facts |= {"status": "completed", "accuracy": curve[-1]} if is_full else {"status": "stopped"}
        row = create_trial(
            state=TrialState.COMPLETE if is_full else TrialState.PRUNED,
            params=params,
            distributions=distributions_of(space),
            values=[facts[goal] for goal in objectives] if is_full else None,
            user_attrs=facts,
        )
        row.datetime_start = BEGUN + timedelta(seconds=10 * i)
        row.datetime_complete = row.datetime_start + timedelta(seconds=9)
        rows.append(row)
    return rows


def _draw(space: SearchSpace, random: np.random.Generator) -> dict[str, Any]:
    """Draw a point that is a valid network at this input size."""
    while True:
        params = {parameter.name: random.choice(list(parameter.values)).item() for parameter in space.parameters}
        try:
            make_plan(space.architecture(params), SIZE, CLASSES, 3)
        except LrnasError:
            continue
        return params
