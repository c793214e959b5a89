"""What a study is about, pinned when it begins: space, data, recipe, objectives. Other settings make another study."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from lrnas._messages import logger
from lrnas.data.names import is_stream, shown_name
from lrnas.errors import LrnasError

MANIFEST = "lrnas:manifest"
"""The study's attribute that holds it."""
LIMITS = "lrnas:limits"
"""The one that holds what networks could cost at most, which may change."""
RETRAINS = "retrains"
"""In the manifest: the search whose networks are trained again, in full; a search has none."""

DATA_NAME = "data_name"
"""In the manifest: what people call the data, where that is not what they are known by."""

CLASSES = "classes"
"""In the manifest: what the classes are called, where no data set of lrnas's tells."""

SETTINGS = "settings"
"""In the manifest: the settings that the search was begun with, for information alone."""

FREE = ("source", DATA_NAME, CLASSES, SETTINGS)
"""In the manifest: keys that may change without a conflict."""
MEASURED = (("reference", "latency"), ("latency", "factor"))
"""In the manifest: what no two measurements agree on."""

Difference = tuple[str, Any, Any]


class StudyError(LrnasError):
    """A study that cannot be used as asked."""


class OtherSettings(StudyError):
    """A study that was begun with other settings."""

    def __init__(self, name: str, found: str, advice: str) -> None:
        super().__init__(f"{name} was begun with other settings: {found}; {advice}")
        self.found = found
        """What is not the same, in words."""


def check_manifest(
    study: optuna.Study, manifest: Mapping[str, Any], advice: str = "give them, or another --name"
) -> dict[str, Any]:
    """Pin what a study is about, or refuse to go on with something else, with advice; what holds is returned.

    What was measured when the study began stays as it was then, and is not compared.
    """
    wanted = json.loads(json.dumps(manifest))
    stored = study.user_attrs.get(MANIFEST)
    if stored is None:
        has_trials = bool(study.get_trials(deepcopy=False))
        stored = study.user_attrs.get(MANIFEST)  # another driver may just have started it
    if stored is None:
        if has_trials:
            raise StudyError(f"{study.study_name} is a study of Optuna, but not one of lrnas; give another --name")
        study.set_user_attr(MANIFEST, wanted)
        return dict(wanted)
    for part, key in MEASURED:
        if key in stored.get(part, {}) and key in wanted.get(part, {}):
            wanted[part][key] = stored[part][key]
    if found := list(differences(stored | {key: wanted.get(key) for key in FREE}, wanted)):
        changed = {where for where, _, _ in found}
        if "data" in changed:
            advice = f"its images, of {data_name(stored)}, were others; {advice}"
        if RETRAINS not in stored and "space.divisor" in changed:
            advice = f"--divisor {stored['space'].get('divisor', 1)} rounds numbers of filters as it did; {advice}"
        raise OtherSettings(study.study_name, list_differences(found), advice)
    return dict(wanted)


def names_of(data: str, classes: Sequence[str]) -> dict[str, Any]:
    """For a manifest, what people call images that are read from files, and their classes."""
    return {DATA_NAME: shown_name(data), CLASSES: list(classes)} if is_stream(data) else {}


def data_name(manifest: Mapping[str, Any]) -> str:
    """What people call the data of a study."""
    return str(manifest.get(DATA_NAME) or manifest["data"])


def has_results(study: optuna.Study) -> bool:
    """Whether a trial of a study was trained to an end, or taken over from another one."""
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return any(trial.user_attrs.get("trained") or "imported_from" in trial.user_attrs for trial in ended)


def keep_limits(study: optuna.Study, limits: Mapping[str, float]) -> None:
    """Write down the limits a search goes on with, and say so where they were others."""
    before = study.user_attrs.get(LIMITS)
    if before == limits:
        return
    study.set_user_attr(LIMITS, dict(limits))
    if before is not None and has_results(study):
        logger.info(f"{study.study_name} had {_show_limits(before)}, and goes on with {_show_limits(limits)}")


def _show_limits(limits: Mapping[str, float]) -> str:
    """As on the command line."""
    return " ".join(f"--{name.replace('_', '-')} {value:.12g}" for name, value in limits.items()) or "no limits"


def list_differences(found: list[Difference]) -> str:
    """The first few in words."""
    listed = "; ".join(f"{where} was {repr(old)[:60]}, now {repr(new)[:60]}" for where, old, new in found[:4])
    return listed + (f"; and {len(found) - 4} more" if len(found) > 4 else "")


def differences(old: Any, new: Any, where: str = "") -> Iterator[Difference]:
    """Where two nested mappings part, and what each has there."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from differences(old.get(key), new.get(key), f"{where}.{key}" if where else key)
    elif old != new:
        yield where, old, new
