"""Manifest: the settings that a study is begun with and that all its trials share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from lrnas._differences import find_differences, list_differences
from lrnas._messages import logger
from lrnas.data.names import is_in_files, shown_name
from lrnas.errors import LrnasError

MANIFEST = "lrnas:manifest"
"""Study attribute that holds the manifest."""
LIMITS = "lrnas:limits"
"""Study attribute that holds the limits on costs, which may change."""
RETRAINS = "retrains"
"""Manifest key of a retraining: the search whose networks it trains. A search has no such key."""
LEVEL = "level"
"""Manifest key of a later level of a search: its name, `longer` or `full`. A search has no such key."""
DATA_NAME = "data_name"
"""Manifest key: the name of the data to show, if it differs from their identity."""
CLASSES = "classes"
"""Manifest key: the names of the classes, if the data are not one of lrnas's own sets."""
SETTINGS = "settings"
"""Manifest key: the settings that the search was begun with, for information only."""
FREE = ("source", DATA_NAME, CLASSES, SETTINGS)
"""Manifest keys that may change without a conflict."""
NEW_KEYS = frozenset(("channels", "num_classes"))
"""Manifest keys that studies of version 0.1.0 do not have."""
MEASURED = (("reference", "latency"), ("latency", "factor"))
"""Manifest entries that are measured: a study keeps those that were measured when it was begun."""


class StudyError(LrnasError):
    """A study cannot be used in the requested way."""


class OtherSettings(StudyError):
    """A study was begun with other settings."""

    def __init__(self, name: str, found: str, advice: str) -> None:
        super().__init__(f"{name} was begun with other settings: {found}; {advice}")
        self.found = found
        """The differences, in words."""


def read_manifest(study: optuna.Study) -> dict[str, Any]:
    """The manifest of a study; empty if the study has none.

    Raises:
        StudyError: The study was begun with version 0.1.0.
    """
    manifest: dict[str, Any] = study.user_attrs.get(MANIFEST, {})
    if manifest and not manifest.keys() >= NEW_KEYS:
        raise StudyError(
            "studies must hold the channels and the number of classes of their images; got "
            f"{study.study_name}, begun with lrnas 0.1.0, without them; open it with 0.1.0, or begin another study"
        )
    return manifest


def check_manifest(
    study: optuna.Study, manifest: Mapping[str, Any], advice: str = "give them, or another --name"
) -> dict[str, Any]:
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
        if key in stored.get(part, {}) and key in wanted.get(part, {}):
            wanted[part][key] = stored[part][key]
    compared = stored | {key: wanted.get(key) for key in FREE}
    if found := list_differences(compared, wanted):
        changed = {where for where, _, _ in find_differences(compared, wanted)}
        if "data" in changed:
            advice = f"it was begun with other images, those of {data_name(stored)}; {advice}"
        if RETRAINS not in stored and "space.divisor" in changed:
            divisor = stored["space"].get("divisor", 1)
            advice = f"--divisor {divisor} rounds filter counts as the study does; {advice}"
        raise OtherSettings(study.study_name, found, advice)
    return dict(wanted)


def names_of(data: str, classes: Sequence[str]) -> dict[str, Any]:
    """Manifest entries with the name of the data and of the classes; empty unless the data are read from files."""
    return {DATA_NAME: shown_name(data), CLASSES: list(classes)} if is_in_files(data) else {}


def data_name(manifest: Mapping[str, Any]) -> str:
    """The name of a study's data to show."""
    return str(manifest.get(DATA_NAME) or manifest["data"])


def has_results(study: optuna.Study) -> bool:
    """Whether some trial of a study has ended after training, or was imported from another study."""
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return any(trial.user_attrs.get("trained") or "imported_from" in trial.user_attrs for trial in ended)


def keep_limits(study: optuna.Study, limits: Mapping[str, float]) -> None:
    """Write the limits that a search continues with; a message says so if they changed."""
    before = study.user_attrs.get(LIMITS)
    if before == limits:
        return
    study.set_user_attr(LIMITS, dict(limits))
    if before is not None and has_results(study):
        logger.info(f"{study.study_name} had {_show_limits(before)}, and continues with {_show_limits(limits)}")


def _show_limits(limits: Mapping[str, float]) -> str:
    """Limits as options of the command line."""
    return " ".join(f"--{name.replace('_', '-')} {value:.12g}" for name, value in limits.items()) or "no limits"
