"""Optuna's dashboard shows names, values, attributes and constraints of a study, from every kind of storage."""

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filled_studies import fill_study
from optuna.trial import TrialState

from lrnas.errors import LrnasError
from lrnas.reporting.dashboard import HOST, address_of, open_dashboard
from lrnas.study.open import open_study
from lrnas.study.study import Study

pytest.importorskip("optuna_dashboard")


@contextmanager
def serving(study: Study) -> Iterator[str]:
    with open_dashboard(study, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield address_of(server, study)
        server.shutdown()
        thread.join()


def read(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return answer.read()


@pytest.mark.parametrize("storage", [None, "journal:{}/studies.journal", "sqlite:///{}/shared.db"])
def test_the_dashboard_shows_a_study(tmp_path: Path, storage: str | None) -> None:
    where = None if storage is None else storage.format(tmp_path)
    fill_study(tmp_path, 4, name="<s>", storage=where)
    study = open_study("<s>", storage=where, studies=tmp_path)
    late = study.optuna_study.ask()
    late.set_constraint("max_macs", 0.5)
    study.optuna_study.tell(late, state=TrialState.PRUNED)
    with serving(study) as address:
        root, _, number = address.replace("/dashboard", "/api").rpartition("/studies/")
        assert b"<html" in read(address).lower()
        listed = json.loads(read(f"{root}/studies"))["study_summaries"]
        assert [found["study_name"] for found in listed] == ["<s>"]
        detail = json.loads(read(f"{root}/studies/{number}?after=0"))
    assert detail["directions"] == ["maximize", "minimize"]
    assert detail["objective_names"] == ["accuracy", "macs"]
    assert len(detail["trials"]) == 5
    first = {item["key"]: item["value"] for item in detail["trials"][0]["user_attrs"]}
    assert first["point"] == "nin" and "nin" in first["architecture"] and "curve" in first
    assert detail["trials"][-1]["constraints"] == [0.5]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    study = fill_study(tmp_path, 0, storage=f"journal:{tmp_path / 'journal'}")
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LrnasError, match=f"cannot use port {port}: .* in use; give another `port`"):
            open_dashboard(study, port)
    with pytest.raises(LrnasError, match="cannot use port 99999"):
        open_dashboard(study, 99999)
