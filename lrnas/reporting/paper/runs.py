"""Records of training runs that were left in folders, put together: one network under one recipe, over its seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrnas.arch.architecture import Architecture
from lrnas.errors import DataError, LrnasError
from lrnas.models.plan import canonical_id
from lrnas.recipes import Recipe
from lrnas.training.seed_stats import OverSeeds

MOST_FIELDS = 3
"""That tell recipes of one name apart, where so many do."""


@dataclass(frozen=True, slots=True)
class Runs(OverSeeds):
    """One network on one set of images under one recipe."""

    network: str
    architecture: Architecture
    data: str
    """As the records have it: a name, or what identifies a folder of images."""
    recipe: str
    """Its name."""
    fields: Mapping[str, Any]
    """All of the recipe."""
    macs: int
    """At the size it was trained at."""
    accuracies: tuple[float, ...]
    """On the test images, one per seed that did not diverge."""
    diverged: int
    repeated: int
    """Further runs with seeds that are there already, which are in no mean."""
    commits: tuple[str, ...]
    hardware: tuple[str, ...]


def read_runs(folders: Iterable[Path]) -> list[Runs]:
    """What `lrnas reproduce` left in folders: networks of which a run came to its end, in the order of their files.

    Runs belong together if all but the seed is the same; of a seed the first run counts.
    """
    groups: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"records are read from a folder; got {folder}, which is none; give another --records")
        for file in sorted(folder.glob("*.json")):
            record = read_json(file)
            if not isinstance(record, dict) or not {"identity", "architecture", "test_accuracy"} <= record.keys():
                continue  # something else
            try:
                key, seed = _key(record)
                _together([[record]])  # what it lacks is said with the name of its file
                same = groups.setdefault(key, {}).setdefault(seed, [])
                if record not in same:  # else a copy
                    same.append(record)
            except (KeyError, TypeError, AttributeError, LrnasError) as error:
                raise DataError(f"{file} is no record of a run ({error}); move it away") from None
    found = (_together(list(records.values())) for records in groups.values())
    return [runs for runs in found if runs.accuracies]


def by_recipe(runs: Sequence[Runs]) -> dict[str, list[Runs]]:
    """Runs by the names of their recipes; recipes of one name with a few fields that tell them apart, or all."""
    groups: list[list[Runs]] = []
    for each in runs:
        same = (group for group in groups if (group[0].recipe, group[0].fields) == (each.recipe, each.fields))
        found = next(same, None)
        if found is None:
            groups.append(found := [])
        found.append(each)
    labels = [_label(group[0], runs, MOST_FIELDS) for group in groups]
    if len(set(labels)) < len(labels):
        labels = [_label(group[0], runs, None) for group in groups]
    return dict(zip(labels, groups, strict=True))


def _label(each: Runs, runs: Sequence[Runs], most: int | None) -> str:
    """A recipe's name, and fields in which it differs from others of that name."""
    others = [other.fields for other in runs if other.recipe == each.recipe]
    differ = [field for field, value in each.fields.items() if any(other[field] != value for other in others)]
    return ", ".join([each.recipe, *(f"{field} {each.fields[field]}" for field in differ[:most])])


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read ({error}); give a JSON file") from None


def _key(record: dict[str, Any]) -> tuple[str, int]:
    """What runs that belong together have in common, and the seed."""
    identity = record["identity"]
    network = canonical_id(Architecture.from_dict(record["architecture"]))
    same = [network, identity["data"], identity.get("image_size"), Recipe.complete(identity["recipe"])]
    return json.dumps(same, sort_keys=True), identity["seed"]


def _together(found: list[list[dict[str, Any]]]) -> Runs:
    """Of the runs of every seed."""
    records = [same[0] for same in found]
    first = records[0]
    accuracies = [record["test_accuracy"] for record in records if record["test_accuracy"] is not None]
    facts = [record.get("provenance", {}) for record in records]
    return Runs(
        first["network"],
        Architecture.from_dict(first["architecture"]),
        first["identity"]["data"],
        first.get("recipe_name", "?"),
        Recipe.complete(first["identity"]["recipe"]),
        first["macs"],
        tuple(accuracies),
        len(records) - len(accuracies),
        sum(len(same) - 1 for same in found),
        tuple(dict.fromkeys(str(fact.get("commit", "unknown"))[:7] for fact in facts)),
        tuple(dict.fromkeys(str(fact.get("hardware", "unknown")) for fact in facts)),
    )
