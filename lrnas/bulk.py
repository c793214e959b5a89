"""Optuna's database storage, read and written in bulk: ten thousand trials in seconds.

Optuna makes an object of its ORM for every parameter and attribute of every trial, and parses every distribution twice.
When a study is opened, these are read here as plain rows instead, and each distribution once.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Container, Mapping
from typing import Any

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import select

__all__ = ["BulkStorage"]


class BulkStorage(RDBStorage):
    """A database of Optuna's whose studies open fast, and whose trials take several attributes at once."""

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        if states is not None or included_trial_ids or trial_id_greater_than > -1:  # a few of them
            return super()._get_trials(study_id, states, included_trial_ids, trial_id_greater_than)
        return self._read_study(study_id)

    def set_trial_user_attrs(self, trial_id: int, attributes: Mapping[str, Any]) -> None:
        """Several in one transaction."""
        with _create_scoped_session(self.scoped_session, True) as session:
            for key, value in attributes.items():
                self._set_trial_attr_without_commit(session, models.TrialUserAttributeModel, trial_id, key, value)

    def _read_study(self, study_id: int) -> list[FrozenTrial]:
        read_distribution = functools.cache(json_to_distribution)
        trial = models.TrialModel
        with _create_scoped_session(self.scoped_session) as session:
            # trials first: what belongs to a finished one was written before
            heads: list[Any] = session.query(trial).filter(trial.study_id == study_id).order_by(trial.trial_id).all()
            mine = select(trial.trial_id).where(trial.study_id == study_id)

            def rows(model: Any, *columns: Any) -> Any:
                """Of all trials, in the order they were written."""
                order = model.__mapper__.primary_key[0]
                return session.execute(select(model.trial_id, *columns).where(model.trial_id.in_(mine)).order_by(order))

            model: Any = models.TrialParamModel
            params: dict[int, dict[str, Any]] = defaultdict(dict)
            distributions: dict[int, dict[str, BaseDistribution]] = defaultdict(dict)
            for owner, name, value, text in rows(model, model.param_name, model.param_value, model.distribution_json):
                distributions[owner][name] = distribution = read_distribution(text)
                params[owner][name] = distribution.to_external_repr(value)

            model = models.TrialValueModel
            values: dict[int, dict[int, float]] = defaultdict(dict)
            for owner, objective, value, kind in rows(model, model.objective, model.value, model.value_type):
                values[owner][objective] = model.stored_repr_to_value(value, kind)

            model = models.TrialIntermediateValueModel
            steps: dict[int, dict[int, float]] = defaultdict(dict)
            columns = model.step, model.intermediate_value, model.intermediate_value_type
            for owner, step, value, kind in rows(model, *columns):
                steps[owner][step] = model.stored_repr_to_intermediate_value(value, kind)

            attributes: list[dict[int, dict[str, Any]]] = []
            for model in (models.TrialUserAttributeModel, models.TrialSystemAttributeModel):
                attributes.append(defaultdict(dict))
                for owner, key, text in rows(model, model.key, model.value_json):
                    attributes[-1][owner][key] = json.loads(text)
            user, system = attributes

            return [
                FrozenTrial(
                    number=head.number,
                    state=head.state,
                    value=None,
                    values=[values[head.trial_id][i] for i in sorted(values[head.trial_id])] or None,
                    datetime_start=head.datetime_start,
                    datetime_complete=head.datetime_complete,
                    params=params[head.trial_id],
                    distributions=distributions[head.trial_id],
                    user_attrs=user[head.trial_id],
                    system_attrs=system[head.trial_id],
                    intermediate_values=steps[head.trial_id],
                    trial_id=head.trial_id,
                )
                for head in heads
            ]
