"""Records of finished trainings, read from a folder and merged over seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrnas import _files
from lrnas.arch.architecture import Architecture
from lrnas.errors import DataError, LrnasError, error_line
from lrnas.models.plan import built_id
from lrnas.recipes import Recipe
from lrnas.training.seed_stats import OverSeeds


@dataclass(frozen=True, slots=True)
class Runs(OverSeeds):
    """Trainings of one network on one data set with one recipe, over one or several seeds."""

    network: str
    architecture: Architecture
    data: str
    """Identity of the data set: its name, or for images in files a hash."""
    data_name: str
    """Name of the data set."""
    recipe: str
    """Name of the recipe."""
    fields: Mapping[str, Any]
    """All fields of the recipe."""
    macs: int
    """Multiply-accumulates at the image size of the training."""
    accuracies: tuple[float, ...]
    """Test accuracy of every seed that did not diverge."""
    diverged: int
    """Number of seeds that diverged."""
    repeated: int
    """Number of runs that are not used, because another run with the same seed was read before."""
    commits: tuple[str, ...]
    hardware: tuple[str, ...]


def read_runs(folder: Path) -> list[Runs]:
    """Read the records that `lrnas reproduce` wrote to a folder.

    Runs that differ only in the seed are merged. If several runs have the same seed, the first one is used.

    Args:
        folder: Folder with one JSON file per run; it may be missing.

    Returns:
        The merged runs in the order of their files, without networks whose runs all diverged.
    """
    groups: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for file in sorted(folder.glob("*.json")):
        record = read_json(file)
        if not isinstance(record, dict) or not {"identity", "architecture", "test_accuracy"} <= record.keys():
            continue  # not a record of a run
        try:
            _merge({0: [record]})  # a missing entry is reported with the name of this file
            identity = record["identity"]
            network = built_id(Architecture.from_dict(record["architecture"]))
            fields = Recipe(**Recipe.complete(identity["recipe"])).to_dict()
            key = json.dumps([network, identity["data"], identity.get("image_size"), fields], sort_keys=True)
            same_seed = groups.setdefault(key, {}).setdefault(identity["seed"], [])
        except (KeyError, TypeError, AttributeError, ValueError, LrnasError) as error:
            raise DataError(f"{file} is not a valid record of a run ({error_line(error)}); move it away") from None
        if record not in same_seed:  # else a copy
            same_seed.append(record)
    return [runs for runs in map(_merge, groups.values()) if runs.accuracies]


def group_by_recipe(runs: Sequence[Runs]) -> dict[str, list[Runs]]:
    """Group runs by recipe.

    Args:
        runs: Runs with any recipes.

    Returns:
        Runs by label: the recipe's name, followed by the fields in which recipes of that name differ.
    """
    groups: dict[str, list[Runs]] = {}
    for each in runs:
        others = [other.fields for other in runs if other.recipe == each.recipe]
        differing = [(name, value) for name, value in each.fields.items() if any(o[name] != value for o in others)]
        label = ", ".join([each.recipe, *(f"{name} {value}" for name, value in differing)])
        groups.setdefault(label, []).append(each)
    return groups


def read_json(file: Path) -> Any:
    """Content of a JSON file. Raises DataError if it cannot be read."""
    try:
        return _files.read_json(file)
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}); give a JSON file") from None


def _merge(by_seed: Mapping[int, list[dict[str, Any]]]) -> Runs:
    """Merge the first record of every seed."""
    records = [same_seed[0] for same_seed in by_seed.values()]
    first = records[0]
    for each in (first["network"], first["identity"]["data"], first.get("recipe_name", "?")):
        if not isinstance(each, str):
            raise TypeError(f"a name must be text; got {repr(each)[:60]}")
    accuracies = [float(record["test_accuracy"]) for record in records if record["test_accuracy"] is not None]
    provenances = [record.get("provenance", {}) for record in records]
    return Runs(
        first["network"],
        Architecture.from_dict(first["architecture"]),
        first["identity"]["data"],
        str(first.get("data_name") or first["identity"]["data"]),
        first.get("recipe_name", "?"),
        Recipe.complete(first["identity"]["recipe"]),
        int(first["macs"]),
        tuple(accuracies),
        len(records) - len(accuracies),
        sum(len(same_seed) - 1 for same_seed in by_seed.values()),
        tuple(dict.fromkeys(str(facts.get("commit", "unknown"))[:7] for facts in provenances)),
        tuple(dict.fromkeys(str(facts.get("hardware", "unknown")) for facts in provenances)),
    )
