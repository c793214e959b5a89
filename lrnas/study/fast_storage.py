"""Optuna's database storage, read and written in bulk: ten thousand trials in seconds, a new one in few transactions.

Optuna makes an object of its ORM for every parameter and attribute of every trial, and parses every distribution twice;
here these are read as plain rows, and each distribution once. It writes every parameter of a new trial in a transaction
of its own; here all of them can be written `together` with attributes.
"""

from __future__ import annotations

import functools
import gc
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import delete, insert, or_, select
from sqlalchemy.orm import Session

Write = Callable[[Session], None]
FEW = 500
"""Trials that a database is asked for one by one; beyond some number they refuse."""

_read_distribution = functools.lru_cache(maxsize=1024)(json_to_distribution)


class BulkStorage(RDBStorage):
    """A database of Optuna's whose trials are read fast, and take parameters and attributes together."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._held = threading.local()

    # --- writing

    @contextmanager
    def together(self) -> Iterator[None]:
        """Parameters, and attributes given as several, that this thread sets here are written at the end, at once.

        Until then nobody can read them. After an error, or a crash, none of them is there.
        """
        held: list[Write] = []
        self._held.writes = held
        try:
            yield
        finally:
            self._held.writes = None
        if held:
            self.write(held)

    def set_trial_user_attrs(self, trial_id: int, attributes: Mapping[str, Any]) -> None:
        """Several in one transaction."""
        table = models.TrialUserAttributeModel.__table__
        rows = [{"trial_id": trial_id, "key": key, "value_json": json.dumps(attributes[key])} for key in attributes]

        def set_all(session: Session) -> None:
            trial: Any = models.TrialModel.find_or_raise_by_id(trial_id, session)
            self.check_trial_is_updatable(trial_id, trial.state)
            session.execute(delete(table).where(table.c.trial_id == trial_id, table.c.key.in_(attributes)))
            session.execute(insert(table), rows)

        self._write_or_hold(set_all)

    def _set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
        previous_distribution: BaseDistribution | None,
    ) -> None:
        self._write_or_hold(
            lambda session: self._set_trial_param_without_commit(
                session, trial_id, param_name, param_value_internal, distribution, previous_distribution
            )
        )

    def _write_or_hold(self, write: Write) -> None:
        held: list[Write] | None = getattr(self._held, "writes", None)
        if held is None:
            self.write([write])
        else:
            held.append(write)

    def write(self, writes: Sequence[Write]) -> None:
        """In one transaction: a second try either finds all of it there, and leaves it, or nothing."""
        with _create_scoped_session(self.scoped_session, True) as session, session.no_autoflush:
            for write in writes:
                write(session)

    # --- reading

    def get_trial(self, trial_id: int) -> FrozenTrial:
        found = self._read(models.TrialModel.__table__.c.trial_id == trial_id)
        if not found:
            raise KeyError(models.NOT_FOUND_MSG)
        return found[0]

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        if states is not None or len(included_trial_ids) > FEW:
            return super()._get_trials(study_id, states, included_trial_ids, trial_id_greater_than)
        trial = models.TrialModel.__table__.c
        which = trial.study_id == study_id
        if trial_id_greater_than > -1:
            which &= or_(trial.trial_id > trial_id_greater_than, trial.trial_id.in_(included_trial_ids))
        return self._read(which)

    def _read(self, which: Any) -> list[FrozenTrial]:
        """All trials for which a condition holds, in order."""
        trial = models.TrialModel.__table__.c
        with _create_scoped_session(self.scoped_session) as session, _without_collecting():
            # trials first: what belongs to a finished one was written before
            columns = trial.trial_id, trial.number, trial.state, trial.datetime_start, trial.datetime_complete
            heads = session.execute(select(*columns).where(which).order_by(trial.trial_id)).all()
            mine = select(trial.trial_id).where(which)

            def rows(model: Any, *names: str) -> Any:
                """Of these trials, in the order they were written."""
                table = model.__table__
                columns = (table.c[name] for name in ("trial_id", *names))
                return session.execute(
                    select(*columns).where(table.c.trial_id.in_(mine)).order_by(*table.primary_key.columns)
                ).all()

            params: dict[int, dict[str, Any]] = defaultdict(dict)
            distributions: dict[int, dict[str, BaseDistribution]] = defaultdict(dict)
            for owner, name, value, text in rows(
                models.TrialParamModel, "param_name", "param_value", "distribution_json"
            ):
                distributions[owner][name] = distribution = _read_distribution(text)
                params[owner][name] = distribution.to_external_repr(value)

            model: Any = models.TrialValueModel
            values: dict[int, dict[int, float]] = defaultdict(dict)
            for owner, objective, value, kind in rows(model, "objective", "value", "value_type"):
                values[owner][objective] = model.stored_repr_to_value(value, kind)

            model = models.TrialIntermediateValueModel
            steps: dict[int, dict[int, float]] = defaultdict(dict)
            for owner, step, value, kind in rows(model, "step", "intermediate_value", "intermediate_value_type"):
                steps[owner][step] = model.stored_repr_to_intermediate_value(value, kind)

            attributes: list[dict[int, dict[str, Any]]] = []
            for model in (models.TrialUserAttributeModel, models.TrialSystemAttributeModel):
                attributes.append(defaultdict(dict))
                texts = rows(model, "key", "value_json")
                read = json.loads(f"[{','.join(text for _, _, text in texts)}]")  # one by one takes twice as long
                for (owner, key, _), value in zip(texts, read, strict=True):
                    attributes[-1][owner][key] = value
            user, system = attributes

            return [
                FrozenTrial(
                    number=head.number,
                    state=head.state,
                    value=None,
                    values=[values[head.trial_id][i] for i in sorted(values[head.trial_id])] or None,
                    datetime_start=_local(head.datetime_start),
                    datetime_complete=_local(head.datetime_complete),
                    params=params[head.trial_id],
                    distributions=distributions[head.trial_id],
                    user_attrs=user[head.trial_id],
                    system_attrs=system[head.trial_id],
                    intermediate_values=steps[head.trial_id],
                    trial_id=head.trial_id,
                )
                for head in heads
            ]


@contextmanager
def _without_collecting() -> Iterator[None]:
    """A third of the time for reading many trials goes into looking for garbage among them, and there is none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _local(moment: datetime | None) -> datetime | None:
    """Databases have universal time, trials that of the place."""
    return None if moment is None else moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)
