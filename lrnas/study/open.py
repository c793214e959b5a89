"""Opening studies that exist."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import optuna

from lrnas._arguments import checked
from lrnas.errors import UnknownName, is_command
from lrnas.study.folder import no_such_study, only_study, study_folder, study_names
from lrnas.study.location import DATABASE, Whereabouts
from lrnas.study.manifest import LEVEL, RETRAINS, StudyError, read_manifest
from lrnas.study.objectives import RETRAINED, Objective, pick_objectives
from lrnas.study.storage import open_storage
from lrnas.study.study import Study


def name_metrics(study: optuna.Study, objectives: Sequence[Objective]) -> None:
    """Name the values of trials, for Optuna's own tools."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that this is experimental
        study.set_metric_names([objective.name for objective in objectives])


def _has_trials(name: str, storage: optuna.storages.BaseStorage) -> bool:
    return bool(optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False))


@checked
def open_study(
    name: str | Study | None = None,
    *,
    studies: str | Path = "studies",
    storage: str | None = None,
) -> Study:
    """Open a study that exists, to read it.

    Args:
        name: The name of the search; SEARCH@RECIPE for a retraining; SEARCH@longer or SEARCH@finals for a later level;
            None for the only study there is. A study that is open is returned as it is.
        studies: The folder where studies are kept.
        storage: A database URL or `journal:FILE`; by default the file in the study's folder.

    Returns:
        The study.
    """
    if isinstance(name, Study):
        return name
    name = only_study(studies, storage) if name is None else name
    if not isinstance(name, str):
        raise StudyError(f"a study, or its name, is needed; got {name!r}; `lrnas studies` lists names")
    folder = study_folder(studies, name.partition("@")[0])
    where = Whereabouts(str(studies), storage)
    if storage is None and not (folder / DATABASE).exists():
        lists = f" (`lrnas studies{where.options()}` lists all)"
        hint = lists if Path(studies).is_dir() else f"; there is no folder {studies}; give --studies"
        raise UnknownName("study", name, study_names(studies), hint)
    kept = open_storage(storage, folder, must_exist=True)
    try:
        optuna_study = optuna.load_study(study_name=name, storage=kept)
    except KeyError:
        names = optuna.get_all_study_names(kept)
        raise no_such_study(name, [each for each in names if "@" not in each or _has_trials(each, kept)]) from None
    manifest = read_manifest(optuna_study)
    if not manifest:
        raise StudyError(f"{name} is a study of Optuna, but not one of lrnas; give another")
    objectives = RETRAINED if RETRAINS in manifest else pick_objectives(manifest["objectives"])
    return Study(name, optuna_study, objectives, manifest, where)


def open_search(
    name: str | Study | None = None, *, studies: str | Path = "studies", storage: str | None = None
) -> Study:
    """Open a search. The arguments are those of `open_study`; a retraining or a later level is refused."""
    study = open_study(name, studies=studies, storage=storage)
    study.check_front()
    if LEVEL in study.manifest:
        search = study.name.partition("@")[0]
        front = f"; `{study.where.command('front', search)} --level {study.manifest[LEVEL]}` shows this level"
        further = front if is_command() else f": `{study.where.call(search)}`"
        raise StudyError(f"this needs a search; got {study.name}, a later level; give its search, {search}{further}")
    return study
