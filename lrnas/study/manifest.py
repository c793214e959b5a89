"""Manifest: the settings that a study is begun with and that all its trials share."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from lrnas._differences import find_differences, tell_differences
from lrnas._messages import logger
from lrnas.arch.architecture import Architecture
from lrnas.data.names import is_in_files, parse_name, shown_name, with_absolute_paths
from lrnas.errors import LrnasError
from lrnas.recipes import Recipe
from lrnas.study.objectives import RETRAINED, cost_objectives, pick_objectives

MANIFEST = "lrnas:manifest"
"""Study attribute that holds the manifest."""
LIMITS = "lrnas:limits"
"""Study attribute that holds the limits on costs and the share of --beat, which may change."""
BUDGET = "lrnas:budget"
"""Study attribute that holds the budget of the last search."""
UNREADABLE = "lrnas:unreadable_images"
"""Study attribute that holds the number of images that could not be read and were left out."""
IMAGES = "lrnas:images"
"""Study attribute that holds where the images were last read from, if they are in files: the value of --data."""
USED = "lrnas:used"
"""Study attribute of a retraining: the local time of the last command that used it."""
RETRAINS = "retrains"
"""Manifest key of a retraining: the search whose networks it trains. A search has no such key."""
LEVEL = "level"
"""Manifest key of a later level of a search: its name, `longer` or `full`. A search has no such key."""
DATA_NAME = "data_name"
"""Manifest key: the name of the data to show, if it differs from their identity."""
CLASSES = "classes"
"""Manifest key: the names of the classes, if the data are not one of lrnas's own sets."""
NUM_IMAGES = "num_images"
"""Manifest key: the numbers of training, validation and test images, if the data are not one of lrnas's own sets."""
START = "start_from"
"""Manifest key: hash of the weights that networks start from, if they do."""
SETTINGS = "settings"
"""Manifest key: the settings that the search was begun with, for information only."""
FREE = ("source", DATA_NAME, CLASSES, NUM_IMAGES, SETTINGS)
"""Manifest keys that may change without a conflict."""
NEW_KEYS = frozenset(("channels", "num_classes"))
"""Manifest keys that studies of version 0.1.0 do not have."""
WORDS = {
    "reference.macs": "the highest number of MACs of a named network",
    "reference.params": "the highest number of parameters of a named network",
    "reference.latency": "the highest latency of a named network",
    "rungs": "the list of epochs after which networks may be stopped",
}
"""Words for manifest entries that follow from several settings."""
OPTIONS = {
    "image_size": "--image-size",
    "seed": "--seed",
    "objectives": "--objectives",
    "trainable": "--trainable",
    START: "--start-from",
    "recipe.epochs": "--epochs",
    "space.granularity": "--granularity",
    "space.batch_norm": "--batch-norm",
    "space.divisor": "--divisor",
}
"""Options that manifest entries come from; other entries of the recipe come from --set."""
CAUSES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "space": (None, ("space.", "recipe.", "image_size")),
    "image_size": ("image_size", ("image_size", "recipe.")),
    "recipe": (None, ("recipe.",)),
    "epochs": ("recipe.epochs", ("recipe.epochs",)),
    "min_epochs": (None, ("rungs",)),
    "batch_norm": ("space.batch_norm", ("space.", "recipe.")),
    "granularity": ("space.granularity", ("space.",)),
    "divisor": ("space.divisor", ("space.",)),
    "stem_stride": (None, ("space.",)),
    "start_from": (START, (START,)),
    "objectives": ("objectives", ("objectives", "latency")),
    "latency_device": ("latency.device", ("latency",)),
    "latency_batch": ("latency.batch", ("latency",)),
}
"""Settings that change the manifest: their own entry, if there is one, and the beginnings of those that follow."""
FROM_DATA = ("data", "image_size", "channels", "num_classes", "recipe.")
"""Beginnings of the manifest entries that follow from the images."""
ADVICE = "give the earlier ones, or another --name"
"""What to do if a study was begun with other settings."""
MEASURED = (("reference", "latency"), ("latency", "factor"))
"""Manifest entries that are measured: a study keeps those that were measured when it was begun."""


class StudyError(LrnasError):
    """A study cannot be used in the requested way."""


class OtherSettings(StudyError):
    """A study was begun with other settings.

    Args:
        name: Name of the study.
        found: The differences, in words.
        advice: What to do.
    """

    def __init__(self, name: str, found: str, advice: str) -> None:
        super().__init__(f"{name} was begun with other settings: {found}; {advice}")
        self.name, self.found, self.advice = name, found, advice


def read_manifest(study: optuna.Study) -> dict[str, Any]:
    """The manifest of a study; empty if the study has none.

    Raises:
        StudyError: The study was begun with version 0.1.0, or its manifest was damaged, for example by hand.
    """
    manifest: dict[str, Any] = study.user_attrs.get(MANIFEST, {})
    if manifest == {}:
        return manifest
    if isinstance(manifest, dict) and not manifest.keys() >= NEW_KEYS:
        raise StudyError(
            "studies must hold the channels and the number of classes of their images; got "
            f"{study.study_name}, begun with lrnas 0.1.0, without them; open it with 0.1.0, or begin another study"
        )
    try:
        _check_entries(manifest)
    except (LrnasError, TypeError, RecursionError) as error:
        raise StudyError(
            f"the manifest of {study.study_name} is damaged: {error}; restore the study from a copy, or begin another"
        ) from None
    return manifest


def _check_entries(manifest: Any) -> None:
    """Raise an error that names the first entry of a manifest that is not as a search writes it."""
    is_retraining = RETRAINS in _table(manifest, "it")
    for key in ("source", "data"):
        _need(isinstance(manifest.get(key), str), key, "text", manifest)
    for key in ("trainable", RETRAINS, DATA_NAME):
        _need(isinstance(manifest.get(key), str | None), key, "text", manifest)
    for key in ("image_size", "channels", "num_classes"):
        _need(_is_whole(manifest.get(key)) and manifest[key] > 0, key, "a whole number from 1", manifest)
    _need(is_retraining or _is_whole(manifest.get("seed")), "seed", "a whole number", manifest)
    _need(_is_list(manifest.get("rungs"), _is_whole), "rungs", "a list of whole numbers", manifest)
    _need(_is_list(manifest.get(CLASSES, []), _is_text), CLASSES, "a list of names", manifest)
    numbers = manifest.get(NUM_IMAGES, [0, 0, 0])
    _need(_is_list(numbers, _is_whole) and len(numbers) == 3, NUM_IMAGES, "a list of three whole numbers", manifest)
    _need(manifest.get(LEVEL) in (None, "longer", "full"), LEVEL, "longer or full", manifest)
    _need(_is_list(manifest.get("objectives"), _is_text), "objectives", "a list of names", manifest)
    objectives = RETRAINED if is_retraining else pick_objectives(manifest["objectives"])
    reference = _table(manifest.get("reference"), "reference")
    for goal in cost_objectives(objectives):
        _need(_is_positive(reference.get(goal.name)), goal.name, "a number above 0", reference)
    recipe = _table(manifest.get("recipe"), "recipe")
    _need("epochs" in recipe, "epochs", "a whole number", recipe)
    Recipe(**Recipe.complete(recipe))
    space = _table(manifest.get("space"), "space")
    named = {part: _table(space.get(part), part) for part in ("points", "seeds")}
    for name, network in (item for networks in named.values() for item in networks.items()):
        Architecture.from_dict(network, name)
    _need(space.get("baseline") in (None, *named["points"], *named["seeds"]), "baseline", "a named network", space)
    _need(isinstance(space.get("batch_norm", 0), bool | None), "batch_norm", "true, false or null", space)
    backbones = _table(space.get("choices"), "choices").get("backbone")
    _need(bool(backbones) and _is_list(backbones, _is_text), "backbone", "a list of names", space["choices"])
    if "latency" in manifest:
        latency = _table(manifest["latency"], "latency")
        _need(_is_positive(latency.get("factor")), "factor", "a number above 0", latency)
        _need(latency.keys() >= {"threads", "dtype", "batch", "hardware"}, "latency", "complete", manifest)


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise StudyError(f"{name} must be a table; got {repr(value)[:60]}")
    return value


def _need(is_valid: bool, key: str, rule: str, table: Mapping[str, Any]) -> None:
    if not is_valid:
        raise StudyError(f"{key} must be {rule}; got {repr(table.get(key))[:60]}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _is_positive(value: Any) -> bool:
    return (isinstance(value, float) and 0 < value < math.inf) or (_is_whole(value) and value > 0)


def _is_list(value: Any, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(is_valid, value))


def check_manifest(study: optuna.Study, manifest: Mapping[str, Any], advice: str = ADVICE) -> dict[str, Any]:
    """Write the manifest of a new study, or check that an existing study has the same manifest.

    Args:
        study: The study.
        manifest: The settings to continue with.
        advice: What to do if the settings differ, for the error message.

    Returns:
        The manifest to use. Measured entries are those of the existing study.
    """
    wanted = json.loads(json.dumps(manifest))
    stored = study.user_attrs.get(MANIFEST)
    if stored is None:
        has_trials = bool(study.get_trials(deepcopy=False))
        stored = study.user_attrs.get(MANIFEST)  # another driver may have begun it meanwhile
    if stored is None:
        if has_trials:
            raise StudyError(f"{study.study_name} is a study of Optuna, but not one of lrnas; give another --name")
        study.set_user_attr(MANIFEST, wanted)
        return dict(wanted)
    for part, key in MEASURED:
        if isinstance(stored.get(part), dict) and key in stored[part] and key in wanted.get(part, {}):
            wanted[part][key] = stored[part][key]
    compared = stored | {key: wanted.get(key) for key in FREE}
    if isinstance(stored.get("recipe"), dict):  # fields that are newer than the study change nothing by default
        defaults = {name: value for name, value in Recipe().to_dict().items() if name in wanted.get("recipe", {})}
        compared["recipe"] = defaults | stored["recipe"]
    if found := list(find_differences(compared, wanted)):
        changed = {where for where, _, _ in found}
        if RETRAINS not in stored and "space.divisor" in changed:
            divisor = stored["space"].get("divisor", 1)
            advice = f"--divisor {divisor} rounds filter counts as the study does; {advice}"
        made, follow = _find_causes(found, stored, wanted)
        follow += FROM_DATA if "data" in changed else ()
        causes = made + [each for each in found if each[0] not in WORDS and not each[0].startswith(follow)]
        if "data" in changed:
            told = "; ".join(filter(None, [tell_other_images(stored, wanted), _tell(causes, stored)]))
        else:
            told = _tell(causes or found, stored)
        raise OtherSettings(study.study_name.partition("@")[0] if LEVEL in stored else study.study_name, told, advice)
    return dict(wanted)


def _find_causes(
    found: Sequence[tuple[str, Any, Any]], stored: Mapping[str, Any], wanted: Mapping[str, Any]
) -> tuple[list[tuple[str, Any, Any]], tuple[str, ...]]:
    """The settings of a search that the user changed, and the beginnings of the manifest entries that follow from them.

    Args:
        found: All differences of the two manifests.
        stored: The manifest of the study.
        wanted: The manifest to continue with.
    """
    if SETTINGS not in stored or LEVEL in stored:  # the manifest of the search itself was checked before its levels'
        return [], ()
    entries = {where: values for where, *values in found}
    before, now = stored[SETTINGS], wanted.get(SETTINGS, {})
    causes: list[tuple[str, Any, Any]] = []
    follow: list[str] = []
    for name, (own, some) in CAUSES.items():
        matters = any(where.startswith(some) for where in entries) if own is None else own in entries
        if matters and before.get(name) != now.get(name):
            old, new = entries.get(own or "", (_DEFAULT, _DEFAULT))
            causes.append((f"--{name.replace('_', '-')}", before.get(name, old), now.get(name, new)))
            follow += some
    fields, others = before.get("set") or {}, now.get("set") or {}
    for where in (f"recipe.{name}" for name in sorted(fields | others) if fields.get(name) != others.get(name)):
        if where in entries:
            causes.append((where, *entries[where]))
            follow.append("recipe.")
    return causes, tuple(follow)


class _Default:
    """Value of a setting that was not given, in messages."""

    def __repr__(self) -> str:
        return "the default"


_DEFAULT = _Default()


def _tell(found: Sequence[tuple[str, Any, Any]], stored: Mapping[str, Any]) -> str:
    return tell_differences([(_shown_entry(where, stored), *values) for where, *values in found])


def _shown_entry(where: str, manifest: Mapping[str, Any]) -> str:
    """The option or the words for an entry of a manifest, given by its dotted path."""
    if where == "recipe.epochs" and LEVEL in manifest:
        return "--final-epochs" if manifest[LEVEL] == "full" else f"the epochs of level {manifest[LEVEL]}"
    if where.startswith("recipe.") and where not in OPTIONS:
        return f"--set {where.removeprefix('recipe.')}"
    return OPTIONS.get(where) or WORDS.get(where, where)


def tell_other_images(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """How the images of a study differ from those that are given, in words, as far as their manifests tell."""
    before, now = (manifest.get(NUM_IMAGES) for manifest in (stored, wanted))
    told = f"the images were those of {data_name(stored)}"
    if not before or not now:
        return f"{told}, now others"
    if before == now:
        return f"{told}; now there are as many, but not the same"
    return "{}, {:,}, {:,} and {:,} for training, validation and test, now {:,}, {:,} and {:,}".format(
        told, *before, *now
    )


def name_start(manifest: Mapping[str, Any]) -> str:
    """The file of the weights that networks of a study start from, with a part of its hash; "" if there is none."""
    if START not in manifest:
        return ""
    file, identity = manifest.get(SETTINGS, {}).get(START), str(manifest[START])[:8]
    return f"{Path(file).name} ({identity})" if file else identity


def names_of(data: str, classes: Sequence[str], num_images: Sequence[int]) -> dict[str, Any]:
    """Manifest entries that describe the data for people; empty unless the data are read from files."""
    found = {DATA_NAME: shown_name(data), CLASSES: list(classes), NUM_IMAGES: list(num_images)}
    return found if is_in_files(data) else {}


def data_name(manifest: Mapping[str, Any]) -> str:
    """The name of a study's data to show."""
    return str(manifest.get(DATA_NAME) or manifest.get("data"))


def is_other_kind(manifest: Mapping[str, Any], data: str) -> bool:
    """Whether a data set cannot be that of a study, by its kind alone: nothing is read or downloaded.

    Args:
        manifest: The manifest of the study.
        data: Name of the data set, as in --data.
    """
    return parse_name(data)[0] != str(manifest["data"]).partition(":")[0]


def has_results(study: optuna.Study) -> bool:
    """Whether some trial of a study has ended after training, or was imported from another study.

    A trial that failed before its first epoch is no result.
    """

    def is_result(known: Mapping[str, Any]) -> bool:
        failed = known.get("status") == "faulty" and not known.get("curve")
        return "imported_from" in known or bool(known.get("trained") and not failed)

    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return any(is_result(trial.user_attrs) for trial in ended)


def keep_limits(study: optuna.Study, limits: Mapping[str, float | None]) -> None:
    """Write the limits and the share of --beat that a search continues with; a message says so if they changed."""
    if study.user_attrs.get(LIMITS) == limits:
        return
    if line := tell_limits(study, limits):
        logger.info(line)
    study.set_user_attr(LIMITS, dict(limits))


def tell_limits(study: optuna.Study, limits: Mapping[str, float | None]) -> str:
    """Other limits with which a search continues, in words; empty if they are the same, or if nothing was trained."""
    before, now = read_limits(study), {name: value for name, value in limits.items() if value is not None}
    if LIMITS not in study.user_attrs or now == before or not has_results(study):
        return ""
    return f"{study.study_name} had {_show_limits(before)}, and continues with {_show_limits(now)}"


def read_limits(study: optuna.Study) -> dict[str, float]:
    """The limits and the share of --beat that a search last had, by name, without those that it did not have."""
    attributes = study.user_attrs
    limits = attributes.get(LIMITS, {})
    if "beat" not in limits:  # it was first kept only among the settings that a search is begun with
        limits = {**limits, "beat": attributes.get(MANIFEST, {}).get(SETTINGS, {}).get("beat")}
    return {name: value for name, value in limits.items() if value is not None}


def keep_unreadable(study: optuna.Study, number: int) -> None:
    """Write the number of images that cannot be read and are left out."""
    if study.user_attrs.get(UNREADABLE, 0) != number:
        study.set_user_attr(UNREADABLE, number)


def keep_images(study: optuna.Study, data: str, data_dir: str | None = None) -> None:
    """Write where the images are read from, if they are in files, so that they are found again.

    Args:
        study: The study.
        data: Name of the data set, as in --data.
        data_dir: Folder of the data sets; None for the default one.
    """
    if is_in_files(data) and study.user_attrs.get(IMAGES) != (name := with_absolute_paths(data, data_dir)[0]):
        study.set_user_attr(IMAGES, name)


def _show_limits(limits: Mapping[str, float]) -> str:
    """Limits as options of the command line."""
    return (
        " ".join(f"--{name.replace('_', '-')} {_show_number(value)}" for name, value in limits.items()) or "no limits"
    )


def _show_number(value: float) -> str:
    """A number as people write it on a command line: 2.5M."""
    millions = f"{value / 1e6:.6g}"
    return f"{millions}M" if value >= 1e6 and float(millions) * 1e6 == value else f"{value:.12g}"
