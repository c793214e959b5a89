"""The folder where studies are kept: names and paths of studies, deleting one or some of its files, starting again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

from lrnas._messages import logger
from lrnas.data.names import first_few
from lrnas.errors import UnknownName, closest, is_command
from lrnas.study.ledger import living_drivers
from lrnas.study.location import DATABASE, Whereabouts
from lrnas.study.manifest import MANIFEST, OtherSettings, StudyError, has_results
from lrnas.study.objectives import Objective
from lrnas.study.optuna_internals import id_of_study, storage_of
from lrnas.study.storage import open_storage

if TYPE_CHECKING:
    from lrnas.study.study import Study

FIRST_SEARCH = "begin with `lrnas search --space nin --budget 20`"
LEVEL_FOLDERS = ("longer", "finals")
"""Names after the @ of the studies of a search's later levels, and of the folders with their checkpoints. All other
names after an @ are recipes of retrainings."""
MAX_NAMES = 16
"""Largest number of names of studies that an error message lists."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """Studies that were deleted."""

    trials: dict[str, int]
    """Number of trials per study: the search's own, and those of its later levels and retrainings."""
    folder: Path | None
    """The folder that was deleted, if there was one."""

    def to_dict(self) -> dict[str, Any]:
        return {"trials": self.trials, "folder": None if self.folder is None else str(self.folder)}


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """Checkpoints of trials."""

    folders: list[Path]
    size: int
    """Bytes of all their files."""


def study_names(studies: str | Path = "studies") -> list[str]:
    """Names of the studies in a folder."""
    return sorted(file.parent.name for file in Path(studies).glob(f"*/{DATABASE}"))


def only_study(studies: str | Path = "studies", storage: str | None = None) -> str:
    """The name of the only study in a folder, or in a storage; StudyError if there are none or several."""
    if storage is None:
        names, where = study_names(studies), str(studies)
    else:
        found = open_storage(storage, Path(studies), must_exist=True).get_all_studies()
        names, where = sorted(study.study_name for study in found if "@" not in study.study_name), "the storage"
    if not names:
        first = FIRST_SEARCH if is_command() else 'begin with lrnas.search("nin", budget=20)'
        raise StudyError(f"there is no study in {where} yet; got no name; {first}")
    if len(names) > 1:
        raise StudyError(
            f"the name of a study is needed if there are several; got none; give one of {first_few(names, MAX_NAMES)}"
        )
    return names[0]


def study_folder(studies: str | Path, name: str) -> Path:
    """The folder of a search: its checkpoints, reports and, by default, its database."""
    _check_name(name)
    return Path(studies) / name


def trials_folder(studies: str | Path, name: str) -> Path:
    """The folder with the checkpoints of a search's trials, of a later level, or of a retraining (SEARCH@RECIPE)."""
    search, at, part = name.partition("@")
    folder = study_folder(studies, search)
    if not at:
        return folder / "trials"
    _check_name(part)
    return folder / part if part in LEVEL_FOLDERS else folder / "retrained" / part


def _check_name(name: str) -> None:
    if not name or name != Path(name).name or name.startswith(".") or not name.isprintable():
        raise StudyError(
            f"a study's name, and the name after an @, must be the name of a folder; got {name!r}; leave out /, a "
            "leading dot and control characters"
        )


def trial_folder(trials: Path, number: int) -> Path:
    """The folder of one trial, within `trials_folder`."""
    return trials / f"{number:05d}"


def delete_study(name: str, *, storage: str | None = None, studies: str | Path = "studies") -> Deleted:
    """Delete a search with its later levels, its retrainings and its folder, or one of these levels or retrainings.

    Args:
        name: The name of the search, SEARCH@RECIPE for one retraining, SEARCH@finals or SEARCH@longer for one level.
        storage: A database URL or `journal:FILE`; by default the file in the study's folder.
        studies: The folder where studies are kept.

    Returns:
        What was deleted.
    """
    home = study_folder(studies, name.partition("@")[0])
    folder = trials_folder(studies, name) if "@" in name else home
    if not folder.resolve().is_relative_to(Path(studies).resolve()):
        raise StudyError(f"only folders in {studies} are deleted; got {folder}, which links elsewhere; remove the link")
    check_folder(home, storage)
    if storage is None and not (home / DATABASE).exists():
        where = Whereabouts(str(studies)).options()
        raise UnknownName("study", name, study_names(studies), f" (`lrnas studies{where}` lists all)")
    opened = open_storage(storage, home, must_exist=storage is not None)
    names = [study.study_name for study in opened.get_all_studies()]
    if name not in names and (names or storage is not None):  # a failed start leaves a database without studies
        raise no_such_study(name, names)
    found = [optuna.load_study(study_name=each, storage=opened) for each in names if name in (each, each.split("@")[0])]
    trials = {study.study_name: len(study.get_trials(deepcopy=False)) for study in found}
    for study in found:
        if MANIFEST not in study.user_attrs and trials[study.study_name]:
            raise StudyError(f"{study.study_name} is a study of Optuna, but not one of lrnas; give another")
    search = [each for each in names if "@" in name and each == name.split("@")[0] and folder.name in LEVEL_FOLDERS]
    for study in [*found, *(optuna.load_study(study_name=each, storage=opened) for each in search)]:
        _refuse_if_running(study, "deleted")
    for study in found:
        opened.delete_study(id_of_study(study))
    return Deleted(trials, folder if _remove(folder) else None)


def spare_checkpoints(study: Study, studies: str | Path = "studies", storage: str | None = None) -> Checkpoints:
    """The checkpoints of a search that it can do without: of networks with short training that are not on the front.

    A checkpoint without a trial is one of them, too. Unfinished trials keep theirs to continue from, and networks that
    were trained in full, in finals and retrainings, keep their weights.

    Args:
        study: The search.
        studies: The folder where studies are kept.
        storage: The storage of the study; None for the database in its folder.

    Raises:
        StudyError: If a search works on the study, or if its folder holds another study.
    """
    check_folder(study_folder(studies, study.name), storage)
    _refuse_if_running(study.optuna_study, "cleaned")
    for level in _levels_of(study.optuna_study):
        _refuse_if_running(level, "cleaned")
    kept = {trial.number for trial in study.trials if trial.on_front or trial.status in ("running", "waiting")}
    home, found = trials_folder(studies, study.name), []
    with suppress(FileNotFoundError), os.scandir(home) as entries:
        found = [home / entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name.isdigit()]
    folders = sorted(folder for folder in found if int(folder.name) not in kept)
    return Checkpoints(folders, sum(map(disk_use, folders)))


def delete_checkpoints(checkpoints: Checkpoints) -> None:
    """Delete checkpoints that `spare_checkpoints` found."""
    for folder in checkpoints.folders:
        _remove(folder)


def disk_use(folder: Path) -> int:
    """Bytes of all files in a folder and below. Links are not followed."""
    total = 0
    for home, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a search that is running replaces its files
                total += Path(home, name).lstat().st_size
    return total


def no_such_study(name: str, names: Sequence[str]) -> StudyError:
    """The error for a study that a storage does not have.

    Args:
        name: The name that was given.
        names: The names of the studies that the storage has.
    """
    search, at, _ = name.partition("@")
    own = [each for each in names if each.startswith(f"{search}@")] if at else []
    near = [each for each in own if each.startswith(name)]  # the recipe without its changes
    if own:
        hint = f"; did you mean {' or '.join(near[:3])}?" if near else f"; {search} has {first_few(own, MAX_NAMES)}"
    else:
        hint = closest(name, names) or f"; it has {first_few(names, MAX_NAMES) or 'none'}"
    return StudyError(f"the storage has no study {name!r}{hint}")


def is_trained(study: optuna.Study, studies: str | Path) -> bool:
    """Whether a study has results, or a trial that was trained for an epoch: it has a curve or a checkpoint.

    Args:
        study: The study.
        studies: The folder where studies are kept.
    """
    folder = trials_folder(studies, study.study_name)
    return has_results(study) or any(
        trial.user_attrs.get("curve") or any(trial_folder(folder, trial.number).glob("*"))
        for trial in study.get_trials(deepcopy=False)
    )


def check_untrained(study: optuna.Study, error: OtherSettings, where: Whereabouts) -> None:
    """Raise an error about other settings, unless nothing of a study was trained and no driver works on it.

    Args:
        study: The study.
        error: The error. If the study has no results yet, it says how to begin anew, too.
        where: The folder and the storage that hold the study.
    """
    if has_results(study) or living_drivers(study):
        raise error
    if is_trained(study, where.studies):
        delete = where.command("studies --delete", study.study_name)
        raise OtherSettings(error.name, error.found, f"{error.advice}; `{delete}` deletes it, to begin anew") from None


def begin_anew(
    study: optuna.Study, error: OtherSettings, where: Whereabouts, objectives: Sequence[Objective]
) -> optuna.Study:
    """Replace a study that was begun with other settings and in which nothing was trained by an empty one.

    Args:
        study: The study.
        error: What differs; as in `check_untrained`.
        where: The folder and the storage that hold the study.
        objectives: The objectives of the new study.

    Returns:
        The new study.
    """
    check_untrained(study, error, where)
    logger.info(
        f"{study.study_name} was begun with other settings ({error.found}), and nothing was trained: it begins anew"
    )
    storage = storage_of(study)
    if _delete_with_levels(study):
        _remove(trials_folder(where.studies, study.study_name))
    return create_optuna_study(study.study_name, storage, objectives)


def is_replaced(study: optuna.Study) -> bool:
    """Whether another driver has deleted a study since it was opened, to begin it anew."""
    try:
        storage_of(study).get_study_user_attrs(id_of_study(study))  # names would come from a cache
    except KeyError:
        return True
    return False


def create_optuna_study(
    name: str, storage: optuna.storages.BaseStorage, objectives: Sequence[Objective]
) -> optuna.Study:
    """Create an Optuna study with the directions of objectives, or load the one that exists."""
    directions = [objective.direction for objective in objectives]
    return optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)


def check_folder(home: Path, storage: str | None) -> None:
    """Refuse a folder that holds another study of the same name, in a database of its own: files would be mixed up.

    Args:
        home: The study's folder.
        storage: The storage of the study; None for the database in the folder.
    """
    if storage is None or not (home / DATABASE).exists():
        return
    file = storage.removeprefix("sqlite:///").partition("?")[0]
    if file == storage or Path(file).resolve() != (home / DATABASE).resolve():
        raise StudyError(
            f"the folder of a study must not hold another one; got {home / DATABASE}, and --storage; give another "
            "--studies, or leave out --storage"
        )


def delete_if_empty(study: optuna.Study, folder: Path) -> None:
    """Delete a study without trials, and its folder if nothing else is in it; not while a driver works on it.

    Args:
        study: The study.
        folder: Its folder, which `check_folder` has accepted.
    """
    if is_replaced(study) or study.get_trials(deepcopy=False) or living_drivers(study):
        return
    _delete_with_levels(study)
    if not storage_of(study).get_all_studies():
        for file in folder.glob(f"{DATABASE}*"):
            file.unlink()
    with suppress(OSError):  # there may be other files
        folder.rmdir()


def _delete_with_levels(study: optuna.Study) -> bool:
    """Delete a search in which nothing was trained from its storage, with its later levels.

    Returns:
        False if another driver has deleted it already; there may be a new study with its name.
    """
    if is_replaced(study):
        return False
    for each in (*_levels_of(study), study):  # the search last: then another driver may begin it anew at once
        storage_of(study).delete_study(id_of_study(each))
    return True


def _levels_of(study: optuna.Study) -> list[optuna.Study]:
    """The later levels of a search, as far as they have begun."""
    storage, names = storage_of(study), [f"{study.study_name}@{level}" for level in LEVEL_FOLDERS]
    return [
        optuna.load_study(study_name=each, storage=storage)
        for each in optuna.get_all_study_names(storage)
        if each in names
    ]


def _refuse_if_running(study: optuna.Study, what: str) -> None:
    if living := living_drivers(study):
        host, process, _ = min(living).rsplit(":", 2)
        raise StudyError(
            f"a study that is running cannot be {what}; got {study.study_name}, which process {process} on {host} "
            "works on; stop that first"
        )


def _remove(folder: Path) -> bool:
    """Delete a folder; False if there is none."""
    if not folder.exists():
        return False
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise StudyError(f"cannot delete {error.filename or folder}: {error.strerror or error}; remove it") from None
    return True
