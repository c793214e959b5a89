"""Lines for a shell that train a network of a study again, alone or beside the paper's, or export it."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lrnas.data.names import SETS
from lrnas.recipes import Recipe, named_recipes
from lrnas.study.folder import trial_folder, trials_folder
from lrnas.study.location import Whereabouts
from lrnas.study.study import Study, Trial
from lrnas.training.checkpoint import RECORD


@dataclass(frozen=True, slots=True)
class ShellLine:
    """What a line does, and the line."""

    title: str
    line: str


def shell_lines(record: Study, trial: Trial, where: Whereabouts) -> list[ShellLine]:
    """In the order in which one wants them."""
    file = shlex.quote(f"{_file_name(record.name)}-{trial.number}.json")
    lines = [ShellLine("Write its description to a file", f"echo {shlex.quote(trial.description)} > {file}")]
    if record.manifest.get("trainable") is None:  # else only a search can train it
        retrain = f"lrnas retrain {shlex.quote(record.name)} --trials {trial.number}{where.options()}"
        lines += _training_lines(record.manifest, file, retrain)
    if ":" not in record.name:
        lines += _export_lines(record.name, trial, where)
    return lines


def retrain_line(record: Study, where: Whereabouts) -> ShellLine | None:
    """What trains the front of a study again and tests it; nothing does where people's own code trained it."""
    if record.manifest.get("trainable") is not None:
        return None
    same, hint, beside = _retrain_parts(record.manifest)
    line = f"lrnas retrain {shlex.quote(record.name)}{where.options()}{same}"
    return ShellLine(f"Train its front{beside} by the paper's recipe, over three seeds, and test them{hint}", line)


def _file_name(name: str) -> str:
    """Of a study, for a file in any folder of any system."""
    return re.sub(r"[^\w.+-]+", "_", name).lstrip(".-") or "study"


def _training_lines(manifest: Mapping[str, Any], file: str, retrain: str) -> list[ShellLine]:
    data = manifest["data"]
    images = f"--data {data}" if data in SETS else f'--data "$DATA" --image-size {manifest["image_size"]}'
    same, hint, beside = _retrain_parts(manifest)
    compare = ", and compare them" if beside else ", and test it"
    again = "Train it again as the study did, and test it" + hint
    return [
        ShellLine(again, f"lrnas reproduce {file} {images} {_recipe_options(manifest)}"),
        ShellLine(
            f"Train it{beside} by the paper's recipe, over three seeds{compare}{hint}",
            f"{retrain}{same} --recipe paper --seeds 3",
        ),
    ]


def _retrain_parts(manifest: Mapping[str, Any]) -> tuple[str, str, str]:
    """The option that says where images are, a hint at it, and what is trained beside networks of the study."""
    known = manifest["data"] in SETS
    same = "" if known else ' --data "$DATA"'
    hint = "" if known else " (DATA is where the images are, as in the search)"
    return same, hint, " and the paper's networks" if manifest["space"]["points"] else ""


def _recipe_options(manifest: Mapping[str, Any]) -> str:
    """The study's recipe, as changes to the one called fast."""
    fast = dataclasses.replace(named_recipes()["fast"], pad=manifest["image_size"] // 8).to_dict()
    wanted = Recipe.complete(manifest["recipe"])
    # how large a batch `fast` takes depends on the data: it is always said
    changes = {name: value for name, value in wanted.items() if value != fast[name] or name == "batch_size"}
    settings = (
        f"--set {name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in changes.items()
    )
    return " ".join(["--recipe fast", *settings])


def _export_lines(name: str, trial: Trial, where: Whereabouts) -> list[ShellLine]:
    source = shlex.quote(f"{name}:{trial.number}") + where.options()
    if not (trial_folder(trials_folder(where.studies, name), trial.number) / RECORD).exists():
        return [ShellLine("Export it with random weights", f"lrnas export {source} --fresh")]
    return [
        ShellLine("Export it for timm", f"lrnas export {source}"),
        ShellLine("Export it as ONNX, in its fastest form", f"lrnas export {source} --format onnx --fuse"),
    ]
