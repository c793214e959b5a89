"""Private names of Optuna: the list of those that lrnas uses, all of them in one module."""

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.storages import RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import TrialState

import lrnas
from lrnas.study import optuna_internals
from lrnas.study.optuna_internals import BulkStorage, QuickCache, database_of, get_trial, id_of_study, storage_of
from lrnas.study.storage import _JournalFile, _PatientStorage

ROOT = Path(lrnas.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if "optuna" in path.read_text(encoding="utf-8"))
INTERNALS = Path(optuna_internals.__file__)

SIGNATURES = {
    _create_scoped_session: "scoped_session ignore_integrity_error",
    RDBStorage._create_new_trial: "self study_id template_trial",
    RDBStorage._get_trials: "self study_id states included_trial_ids trial_id_greater_than",
    RDBStorage._set_trial_param: "self trial_id param_name param_value_internal distribution previous_distribution",
    RDBStorage._set_trial_param_without_commit: (
        "self session trial_id param_name param_value_internal distribution previous_distribution"
    ),
    models.TrialValueModel.stored_repr_to_value: "value float_type",
    _CachedStorage._read_trials_from_remote_storage: "self study_id",
    _CachedStorage.get_all_trials: "self study_id deepcopy states",
}
"""Functions that are called or overridden, with their parameters."""
TABLES = {
    models.TrialModel: "trial_id number study_id state datetime_start datetime_complete",
    models.TrialParamModel: "param_id trial_id param_name param_value distribution_json",
    models.TrialValueModel: "trial_value_id trial_id objective value value_type",
    models.TrialUserAttributeModel: "trial_user_attribute_id trial_id key value_json",
    models.TrialSystemAttributeModel: "trial_system_attribute_id trial_id key value_json",
}
"""Tables that are read and written, with their columns."""
ATTRIBUTES = {"_storage", "_study_id", "_trial_id", "_backend", "_studies", "_lock"}
"""Attributes of studies, trials and the cache in front of a database."""
MODULES = {"_rdb", "_cached_storage", "_CachedStorage"}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__qualname__)
def test_arguments_of_private_functions(function: Any) -> None:
    assert " ".join(inspect.signature(function).parameters) == SIGNATURES[function]


@pytest.mark.parametrize("model", TABLES, ids=lambda model: model.__name__)
def test_columns_of_private_tables(model: Any) -> None:
    assert " ".join(column.name for column in model.__table__.columns) == TABLES[model]


def test_values_of_private_attributes(tmp_path: Path) -> None:
    storage = BulkStorage(f"sqlite:///{tmp_path}/s.db")
    study = optuna.create_study(storage=storage, study_name="s")
    trial = study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
    assert isinstance(study._storage, _CachedStorage) and storage_of(study)._backend is database_of(study) is storage
    assert id_of_study(study) == study._study_id == storage.get_study_id_from_name("s")
    assert get_trial(study, 0)._trial_id == trial._trial_id and get_trial(study, 0).params == trial.params
    with pytest.raises(KeyError):
        get_trial(study, 1)


def test_the_cache_lists_trials_as_optunas_own(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    study = optuna.create_study(storage=QuickCache(BulkStorage(url)), study_name="s")
    other = optuna.load_study(storage=url, study_name="s")
    for number in range(12):
        study.enqueue_trial({}) if number % 3 == 0 else study.ask()
    for number in (5, 1, 6):
        other.tell(number, 0.5)
    study.enqueue_trial({})
    for states in (None, (TrialState.WAITING,), (TrialState.COMPLETE, TrialState.RUNNING), ()):
        for deepcopy in (True, False):
            mine, theirs = (one.get_trials(deepcopy=deepcopy, states=states) for one in (study, other))
            assert [(trial.number, trial.state, trial.values) for trial in mine] == [
                (trial.number, trial.state, trial.values) for trial in theirs
            ]
    assert len(study.get_trials()) == 9 and study.get_trials(deepcopy=False)[1] is study.get_trials(deepcopy=False)[1]
    assert study.get_trials(deepcopy=True)[1] is not study.get_trials(deepcopy=True)[1]


def test_finished_trials_share_what_they_have_in_common(tmp_path: Path) -> None:
    """Each would otherwise take 1.4 times the memory; what they have is what Optuna reads."""
    url = f"sqlite:///{tmp_path}/s.db"
    study = optuna.create_study(storage=QuickCache(BulkStorage(url)), study_name="s")
    space = {"x": FloatDistribution(0, 1, step=0.5), "y": CategoricalDistribution(["max", "mean"])}
    for number, x in enumerate((0.5, 0.5, 1.0, 0.5)):
        study.enqueue_trial({"x": x, "y": "max"})
        trial = study.ask(space if number < 3 else {"x": space["x"]})
        if number != 2:
            study.tell(trial, 0.5)
    found = study.get_trials(deepcopy=False)
    theirs = optuna.load_study(storage=url, study_name="s").get_trials(deepcopy=False)
    assert [(one.params, one.distributions) for one in found] == [(one.params, one.distributions) for one in theirs]
    first, second, running, other = found
    assert first.distributions is second.distributions and first.params["x"] is second.params["x"]
    assert first.params is not second.params and running.distributions is not first.distributions
    assert other.distributions.keys() == {"x"}


def private_names(path: Path) -> set[str]:
    """Names with a leading underscore, and not two, that a module imports, reads or defines in a class."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)  # for getattr and setattr
        elif isinstance(node, ast.Import | ast.ImportFrom):
            paths = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found |= {part for name in paths for part in name.split(".")}
        elif isinstance(node, ast.ClassDef):
            found |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def defined_names(path: Path) -> set[str]:
    """What a module defines itself, also as attributes of instances."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def names_in_optuna() -> set[str]:
    """Every name with a leading underscore in the sources of Optuna."""
    return {name for path in Path(optuna.__file__).parent.rglob("*.py") for name in private_names(path)}


def test_the_list_is_complete() -> None:
    listed = ATTRIBUTES | MODULES | {function.__name__ for function in SIGNATURES}
    used = private_names(INTERNALS) & names_in_optuna()
    own = defined_names(INTERNALS) - {function.__name__ for function in SIGNATURES}
    assert used - own <= listed and used >= ATTRIBUTES | MODULES


def test_no_other_module_uses_them() -> None:
    optunas = names_in_optuna()
    assert {"_storage", "_rdb", "_contains", "_file_path"} <= optunas
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        if path != INTERNALS
        for name in (private_names(path) & optunas) - defined_names(path)
    }
    assert found == set()


def test_no_other_class_overrides_them() -> None:
    names = [".".join(["lrnas", *path.relative_to(ROOT).with_suffix("").parts]) for path in FILES if path != INTERNALS]
    classes = [
        item
        for name in names
        for item in vars(importlib.import_module(name)).values()
        if isinstance(item, type) and item.__module__ == name
    ]
    heirs = [(item, base) for item in classes for base in item.__mro__ if base.__module__.startswith("optuna.")]
    assert {_PatientStorage, _JournalFile} <= {item for item, _ in heirs}
    found = {f"{item.__name__}.{name}" for item, base in heirs for name in vars(item) if hasattr(base, name)}
    assert {name for name in found if "._" in name and ".__" not in name and "._abc" not in name} == set()
