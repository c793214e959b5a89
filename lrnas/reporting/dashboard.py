"""Optuna's own dashboard on the storage of a study."""

from __future__ import annotations

import copy
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from lrnas.errors import LrnasError, MissingExtra
from lrnas.study.optuna_internals import id_of_study, storage_of

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from lrnas.study.study import Study

HOST = "127.0.0.1"
"""The dashboard may change studies and asks for no password: it is for this machine alone."""


class _QuietHandler(WSGIRequestHandler):
    """Without a line for each request."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name in the base class
        pass


def open_dashboard(study: Study, port: int = 8080) -> WSGIServer:
    """A server of the dashboard, not yet answering; port 0 takes any that is free."""
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise MissingExtra("the dashboard", "optuna-dashboard", "dashboard") from None
    try:
        return make_server(
            HOST, port, wsgi(_with_constraints(storage_of(study.optuna_study))), handler_class=_QuietHandler
        )
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LrnasError(f"the dashboard cannot have port {port}: {reason}; give another --port") from None


def _with_constraints(storage: BaseStorage) -> BaseStorage:
    """Have trials tell their constraints as the dashboard reads them: a list, where Optuna has kept them by name."""
    read = storage.get_all_trials

    def read_and_list(study_id: int, *arguments: Any, **named: Any) -> list[FrozenTrial]:
        return [_list_constraints(trial) for trial in read(study_id, *arguments, **named)]

    storage.get_all_trials = read_and_list  # type: ignore[method-assign]
    return storage


def _list_constraints(trial: FrozenTrial) -> FrozenTrial:
    if not trial.constraints:
        return trial
    trial = copy.copy(trial)
    trial.system_attrs = {**trial.system_attrs, "constraints": list(trial.constraints.values())}
    return trial


def serve_dashboard(study: Study, port: int, *, browser: bool, say: Callable[[str], object]) -> None:
    """Answer until Ctrl-C."""
    with open_dashboard(study, port) as server:
        address = address_of(server, study)
        say(f"{study.name}: {address} (Ctrl-C ends it)")
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def address_of(server: WSGIServer, study: Study) -> str:
    """Where the study is shown."""
    return f"http://{HOST}:{server.server_port}/dashboard/studies/{id_of_study(study.optuna_study)}"
