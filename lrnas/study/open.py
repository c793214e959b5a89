"""Opens studies that exist."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import optuna

from lrnas.errors import UnknownName
from lrnas.study.folder import no_such_study, study_folder, study_names
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import MANIFEST, RETRAINS, StudyError
from lrnas.study.objectives import RETRAINED, Objective, pick_objectives
from lrnas.study.record import Record
from lrnas.study.storage import DATABASE, open_storage


def name_metrics(study: optuna.Study, objectives: Sequence[Objective]) -> None:
    """Tell Optuna's own tools what the values of trials are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental, by Optuna's own count
        study.set_metric_names([objective.name for objective in objectives])


def open_study(name: str, *, storage: str | None = None, studies: str | Path = "studies") -> Record:
    """A search that exists, to look at."""
    record = open_record(name, storage=storage, studies=studies)
    if search := record.manifest.get(RETRAINS):
        raise StudyError(
            f"a search has a front to choose from; got {name}, networks of {search} that were trained again; "
            f"`{Whereabouts(str(studies), storage).command('retrain', name)}` shows these"
        )
    return record


def open_record(name: str, *, storage: str | None = None, studies: str | Path = "studies") -> Record:
    """The record of a search, or SEARCH@RECIPE for that of its networks trained again, to look at."""
    folder = study_folder(studies, name.partition("@")[0])
    if storage is None and not (folder / DATABASE).exists():
        listing = f"; `lrnas studies{Whereabouts(str(studies)).options()}` lists all"
        raise UnknownName("study", name, study_names(studies), listing)
    kept = open_storage(storage, folder, _say)
    try:
        record = optuna.load_study(study_name=name, storage=kept)
    except KeyError:
        raise no_such_study(name, [study.study_name for study in kept.get_all_studies()]) from None
    manifest = record.user_attrs.get(MANIFEST)
    if manifest is None:
        raise StudyError(f"{name} is a study of Optuna's, but not one of lrnas's; give another")
    goals = RETRAINED if RETRAINS in manifest else pick_objectives(manifest["objectives"])
    return Record(name, record, goals, manifest)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
