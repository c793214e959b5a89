"""Commands that a report suggests: train a network again, alone or with reference networks, or export it."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lrnas.data.names import SETS
from lrnas.models.plan import has_norms
from lrnas.recipes import get_recipe
from lrnas.study.folder import trials_folder
from lrnas.study.levels import FULL, SUFFIXES, level_study, read_level
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import SETTINGS, START, read_manifest
from lrnas.study.study import Study, Trial

CHECKPOINT = "checkpoint.json"
"""Copy of `training.checkpoint.RECORD`, the file that every checkpoint has; importing that module would load torch."""

HINT = " (DATA is where the images are, as in the search)"
"""Beside commands with `$DATA`: a page that is passed on should not name folders of its author's machine."""


@dataclass(frozen=True, slots=True)
class ShellLine:
    """A command for the shell, and a title that says what it does."""

    title: str
    line: str


def shell_lines(study: Study, trials: Iterable[Trial], where: Whereabouts) -> list[tuple[ShellLine, ...]]:
    """Suggested commands for networks of a study.

    Args:
        study: The study of the networks.
        trials: The trials of the networks.
        where: Where the study is kept.

    Returns:
        For each network, commands that write its description, train it again and export it, in this order.
    """
    manifest, options, quoted = study.manifest, where.options(), shlex.quote(study.name)
    data, file_name = manifest["data"], _file_name(study.name)
    images = f"--data {data}" if data in SETS else f'--data "$DATA" --image-size {manifest["image_size"]}'
    option, hint, beside = _retrain_parts(study)
    as_finals = _final_options(study)
    compare = ", and compare them" if beside else ", and test it"
    has_own_code = manifest.get("trainable") is not None  # then only a search can train its networks
    recipe = "" if has_own_code else _recipe_options(manifest)
    finals = [] if "@" in study.name else [final for final in read_level(study) if final.accuracies]
    full_runs = {final.identity: final.runs[0] for final in finals}
    own, full = _numbers_with_weights(study.name, where), _numbers_with_weights(f"{study.name}@{SUFFIXES[FULL]}", where)

    def suggest(trial: Trial) -> Iterator[ShellLine]:
        file = shlex.quote(f"{file_name}-{trial.number}.json")
        yield ShellLine("Write its description to a file", f"echo {shlex.quote(trial.description)} > {file}")
        again = f"lrnas retrain {quoted} --trials {trial.number}{options}{option}"
        if not has_own_code and START in manifest:  # `lrnas reproduce` has no weights to start from
            title = f"Train it{beside} again as the study did, from the same weights{compare}{hint}"
            yield ShellLine(title, f"{again} {recipe} --seeds 1")
        elif not has_own_code:
            where_images = "" if data in SETS else HINT
            title = f"Train it again as the study did, and test it{where_images}"
            yield ShellLine(title, f"lrnas reproduce {file} {images} {recipe}")
        if not has_own_code:
            yield ShellLine(
                f"Train it{beside} in full, over three seeds{compare}{hint}", f"{again}{as_finals} --seeds 3"
            )
        if ":" in study.name:  # `lrnas export` would read a part of it as the number of a trial
            return
        export = f"lrnas export {shlex.quote(f'{study.name}:{trial.number}')}{options}"
        run = full_runs.get(trial.identity)  # `lrnas export` takes the weights after full training, if there are any
        if trial.number in own if run is None else run in full:
            yield ShellLine("Export it for timm", export)
            yield ShellLine("Export it as ONNX, in its fastest form", f"{export} --format onnx --fuse")
        else:
            yield ShellLine("Export it with random weights", f"{export} --fresh")

    return [tuple(suggest(trial)) for trial in trials]


def _numbers_with_weights(name: str, where: Whereabouts) -> set[int]:
    """Numbers of the trials of a study whose weights are kept."""
    found = (file.parent.name for file in trials_folder(where.folder, name).glob(f"*/{CHECKPOINT}"))
    return {int(name) for name in found if name.isdecimal()}


def retrain_line(study: Study, where: Whereabouts) -> ShellLine | None:
    """Suggested command that trains the front of a study again, or the networks that it was to find, and tests them.

    Args:
        study: The study.
        where: Where the study is kept.

    Returns:
        The command; None if the study trains with the user's own code.
    """
    if study.manifest.get("trainable") is not None:
        return None
    option, hint, beside = _retrain_parts(study)
    line = f"{where.command('retrain', study.name)}{option}{_final_options(study)}"
    chosen = "its front" if study.beat is None else "the networks that may beat a reference network"
    return ShellLine(f"Train {chosen}{beside} in full, over three seeds, and test them{hint}", line)


def _file_name(name: str) -> str:
    """Name of a study as a part of a file name on any system."""
    return re.sub(r"[^\w.+-]+", "_", name).lstrip(".-") or "study"


def _retrain_parts(study: Study) -> tuple[str, str, str]:
    """Parts of suggestions: the option for the data set, a hint about it, and the other networks that are trained."""
    manifest = study.manifest
    known = manifest["data"] in SETS or study.images is not None
    option = "" if known else ' --data "$DATA"'
    hint = "" if known else HINT
    return option, hint, " and the reference networks" if manifest["space"]["points"] else ""


def _final_options(study: Study) -> str:
    """The options with which a retraining has the recipe of the finals; empty if this is the usual one."""
    if (finals := level_study(study, FULL)) is None:
        return ""
    recipe = read_manifest(finals)["recipe"]
    if recipe == study.manifest["recipe"]:  # which need not be the recipe `full`
        return f" {_recipe_options(study.manifest)}"
    usual = _usual_recipe(study.manifest, "full")
    epochs = "" if recipe["epochs"] == usual["epochs"] else f" --epochs {recipe['epochs']}"
    given = study.manifest.get(SETTINGS, {}).get("set") or {}  # other fields follow from the data
    changes = {name: recipe[name] for name in given if name != "epochs" and recipe.get(name) != usual[name]}
    return f"{epochs}{''.join(f' {option}' for option in _set_options(changes))}"


def _usual_recipe(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A recipe for the networks of a study, with the batch size for many images."""
    space, size = manifest["space"], manifest["image_size"]
    backbone = space["choices"]["backbone"][0]
    norms = has_norms(backbone, space["batch_norm"])
    return get_recipe(name, backbone, size, sys.maxsize, norms=norms).to_dict()


def _recipe_options(manifest: Mapping[str, Any]) -> str:
    """Options for the study's recipe, as changes to the recipe `fast`."""
    fast = _usual_recipe(manifest, "fast")
    always = ("batch_size", "lr")  # in `fast`, they depend on the number of images
    changes = {key: value for key, value in manifest["recipe"].items() if value != fast[key] or key in always}
    return " ".join(["--recipe fast", *_set_options(changes)])


def _set_options(changes: Mapping[str, Any]) -> list[str]:
    """Options that change fields of a recipe."""
    texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in changes.items()}
    return [f"--set {key}={text}" for key, text in texts.items()]
