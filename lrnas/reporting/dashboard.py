"""Optuna's own dashboard for the storage of a study."""

from __future__ import annotations

import copy
import threading
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from lrnas._messages import logger
from lrnas.errors import LrnasError, MissingExtra
from lrnas.study.optuna_internals import id_of_study, storage_of

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

    from lrnas.study.study import Study

HOST = "127.0.0.1"
"""Address that only this machine can reach, because the dashboard can change studies and asks for no password."""


class _QuietHandler(WSGIRequestHandler):
    """Request handler that writes no line for each request."""

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - its name in the base class
        pass


def open_dashboard(study: Study, port: int = 8080) -> WSGIServer:
    """Make the server of the dashboard; it answers requests only after `serve_forever`.

    Args:
        study: A study; the dashboard also shows the other studies in its storage.
        port: Port to listen on; 0: any free port.

    Returns:
        The server; close it after use.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise MissingExtra("the dashboard", "optuna-dashboard", "dashboard") from None
    application = wsgi(_list_constraints(storage_of(study.optuna_study)))
    try:
        return make_server(HOST, port, application, handler_class=_QuietHandler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LrnasError(f"the dashboard cannot use port {port}: {reason}; give another --port") from None


def serve_dashboard(study: Study, port: int, *, browser: bool) -> None:
    """Show a study in the dashboard until Ctrl-C.

    Args:
        study: The study.
        port: Port to listen on; 0: any free port.
        browser: Whether to open the study in the web browser.
    """
    with open_dashboard(study, port) as server:
        address = address_of(server, study)
        logger.info("%s: %s (stop with Ctrl-C)", study.name, address)
        if browser:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def address_of(server: WSGIServer, study: Study) -> str:
    """Web address of a study in the dashboard."""
    return f"http://{HOST}:{server.server_port}/dashboard/studies/{id_of_study(study.optuna_study)}"


def _list_constraints(storage: BaseStorage) -> BaseStorage:
    """Make a storage return constraints as a list, as the dashboard expects them; Optuna stores them by name."""
    get_all_trials = storage.get_all_trials

    def get_listed(*arguments: Any, **named: Any) -> list[FrozenTrial]:
        trials = list(map(copy.copy, get_all_trials(*arguments, **named)))
        for trial in trials:
            if trial.constraints:
                trial.system_attrs = {**trial.system_attrs, "constraints": list(trial.constraints.values())}
        return trials

    storage.get_all_trials = get_listed  # type: ignore[method-assign]
    return storage
