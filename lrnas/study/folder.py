"""The folder where studies are kept: their names and places, how one is deleted and how one begins anew."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from lrnas.errors import UnknownName, closest
from lrnas.study.ledger import living_drivers
from lrnas.study.manifest import MANIFEST, OtherSettings, StudyError, has_results
from lrnas.study.objectives import Objective
from lrnas.study.optuna_internals import id_of_study, storage_of
from lrnas.study.storage import DATABASE, open_storage

FIRST_SEARCH = "begin with `lrnas search --space nin --budget 20`"


@dataclass(frozen=True, slots=True)
class Deleted:
    """What is gone."""

    trials: dict[str, int]
    """Of every study, the search's and those of its networks trained again."""
    folder: Path | None

    def to_dict(self) -> dict[str, Any]:
        return {"trials": self.trials, "folder": None if self.folder is None else str(self.folder)}


def study_names(studies: str | Path = "studies") -> list[str]:
    """The studies kept in a folder."""
    return sorted(file.parent.name for file in Path(studies).glob(f"*/{DATABASE}"))


def only_study(studies: str | Path = "studies", storage: str | None = None) -> str:
    """The name of the one study there is, for who gives none."""
    if storage is None:
        names, where = study_names(studies), str(studies)
    else:
        found = open_storage(storage, Path(studies), lambda line: print(line, file=sys.stderr)).get_all_studies()
        names, where = sorted(study.study_name for study in found if "@" not in study.study_name), "the storage"
    if len(names) == 1:
        return names[0]
    if not names:
        raise StudyError(f"there is no study in {where} yet; got no name; {FIRST_SEARCH}")
    listed = ", ".join(names[:16]) + (", …" if len(names) > 16 else "")
    raise StudyError(f"a study is named where there are several; got none; give one of {listed}")


def study_folder(studies: str | Path, name: str) -> Path:
    """Where all is that belongs to a search, its storage too where nothing else is said."""
    if not name or name != Path(name).name or name.startswith("."):
        raise StudyError(f"a study's name is that of a folder; got {name!r}; leave out / and a leading dot")
    return Path(studies) / name


def trials_folder(studies: str | Path, name: str) -> Path:
    """Where a record's checkpoints are, each in a folder of its trial's number."""
    search, _, recipe = name.partition("@")
    folder = study_folder(studies, search)
    return folder / "retrained" / recipe if recipe else folder / "trials"


def trial_folder(trials: Path, number: int) -> Path:
    """Of one of a record's trials, within `trials_folder`."""
    return trials / f"{number:05d}"


def delete_study(
    name: str, *, storage: str | None = None, studies: str | Path = "studies", say: Callable[[str], None] = print
) -> Deleted:
    """Delete a search, its networks trained again and its folder; or SEARCH@RECIPE, that retraining alone."""
    search, _, recipe = name.partition("@")
    home = study_folder(studies, search)
    folder = trials_folder(studies, name) if recipe else home
    if storage is None and not (home / DATABASE).exists():
        raise UnknownName("study", name, study_names(studies), "; `lrnas studies` lists all")
    kept = open_storage(storage, home, say)
    there = [study.study_name for study in kept.get_all_studies()]
    found = [optuna.load_study(study_name=each, storage=kept) for each in there if _belongs(each, name)]
    if name not in there and (there or storage is not None):  # a database without any is what a start that failed left
        raise no_such_study(name, there)
    trials = {study.study_name: len(study.get_trials(deepcopy=False)) for study in found}
    for study in found:
        if MANIFEST not in study.user_attrs and trials[study.study_name]:
            raise StudyError(f"{study.study_name} is a study of Optuna's, but not one of lrnas's; give another")
        if living := living_drivers(study):
            host, process, _ = min(living).rsplit(":", 2)
            raise StudyError(
                f"a study that nobody works on can be deleted; got {study.study_name}, which process {process} on "
                f"{host} works on; stop that first"
            )
    for study in found:
        kept.delete_study(id_of_study(study))
    return Deleted(trials, folder if _remove(folder) else None)


def no_such_study(name: str, there: Sequence[str]) -> StudyError:
    """Where a storage has others."""
    listed = ", ".join(there[:16]) + (", …" if len(there) > 16 else "") or "none"
    return StudyError(f"the storage has no study {name!r}{closest(name, there)}; it has {listed}")


def _belongs(study: str, name: str) -> bool:
    """Whether a study is the one of a name, or of networks of it that were trained again."""
    return study == name or study.partition("@")[0] == name


def begin_anew(
    study: optuna.Study, error: OtherSettings, folder: Path, goals: Sequence[Objective], say: Callable[[str], None]
) -> optuna.Study:
    """An empty study in the place of one that has other settings and no results; the error where it has some.

    `folder` is where its checkpoints are.
    """
    if has_results(study) or living_drivers(study):
        raise error
    say(f"{study.study_name} was begun with other settings ({error.found}) and has no results: it begins anew")
    storage = storage_of(study)
    storage.delete_study(id_of_study(study))
    _remove(folder)
    directions = [goal.direction for goal in goals]
    return optuna.create_study(storage=storage, study_name=study.study_name, directions=directions)


def delete_if_empty(study: optuna.Study, folder: Path) -> None:
    """Leave nothing of a search that could not begin; one that has trials, or that others work on, stays."""
    if study.get_trials(deepcopy=False) or living_drivers(study):
        return
    storage = storage_of(study)
    storage.delete_study(id_of_study(study))
    if not storage.get_all_studies():
        for file in folder.glob(f"{DATABASE}*"):
            file.unlink()
    with suppress(OSError):  # others may have files there
        folder.rmdir()


def _remove(folder: Path) -> bool:
    """Whether there was something to remove."""
    if not folder.exists():
        return False
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise StudyError(f"cannot delete {error.filename or folder}: {error.strerror or error}; remove it") from None
    return True
