"""A study in a PostgreSQL database: every command that reads it works, and none shows the password."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import read_data
from searches import SMALL, Search, trials
from servers import running_postgres

from lrnas.study.open import open_study
from lrnas.study.storage import StorageError, open_storage

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_processes_left")]

PASSWORD = "not-to-be-seen"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_postgres() as server:
        yield server.create("one").replace("postgres@", f"postgres:{PASSWORD}@")


@pytest.mark.parametrize(
    ("user", "database", "reason"),
    [
        ("postgres", "nowhere", 'database "nowhere" does not exist'),
        ("nobody", "one", 'role "nobody" does not exist'),
        ("locked", "one", 'password authentication failed for user "locked"'),
    ],
)
def test_a_wrong_address_is_refused_at_once(
    url: str, user: str, database: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = url.replace("postgres:", f"{user}:").replace("/one", f"/{database}")
    with pytest.raises(StorageError, match=f"cannot be opened: .*{reason}; check `storage`") as caught:
        open_storage(wrong, tmp_path)
    assert not caplog.messages and PASSWORD not in str(caught.value)


def test_reading_creates_no_tables(url: str, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(
            StorageError, match=r"a storage that is read must hold studies; got postgresql.*/one, which"
        ):
            open_study("s", storage=url, studies=tmp_path)


def run(folder: Path, *arguments: str) -> str:
    """Run a command that must succeed and not show the password; returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "lrnas", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and PASSWORD not in done.stdout + done.stderr, done.stderr
    return done.stdout


def check_dashboard(folder: Path, url: str) -> None:
    pytest.importorskip("optuna_dashboard")
    command = [sys.executable, "-m", "lrnas", "dashboard", "s", "--storage", url, "--no-browser", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "http://" in line)
        root, _, number = re.findall(r"http://\S+", line)[0].replace("/dashboard", "/api").rpartition("/studies/")

        def read(path: str) -> Any:
            with urllib.request.urlopen(f"{root}/{path}", timeout=60) as answer:
                return json.loads(answer.read())

        listed = {found["study_name"]: found["study_id"] for found in read("studies")["study_summaries"]}
        assert list(listed) == ["s", "s@fast,epochs=1"] and str(listed["s"]) == number
        search = read(f"studies/{number}?after=0")
        retraining = read(f"studies/{listed['s@fast,epochs=1']}?after=0")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0 and PASSWORD not in line
    assert search["objective_names"] == ["accuracy", "macs"]
    assert retraining["objective_names"] == ["test_accuracy", "macs"]
    attributes = [{item["key"]: item["value"] for item in row["user_attrs"]} for row in search["trials"]]
    kept = {row.number: row.user_attrs for row in trials(url)}
    for trial, known in kept.items():
        shown = attributes[trial]
        assert shown["architecture"] == known["architecture"] and json.loads(shown["curve"]) == known["curve"]
    beyond = [
        row["constraints"]
        for row, known in zip(search["trials"], attributes, strict=True)
        if known.get("point") == "nin"
    ]
    assert beyond and all(share > 0 for shares in beyond for share in shares)  # of the limit in SMALL
    assert [row["state"] for row in retraining["trials"]] == ["Complete"] * 2


def test_a_study_in_a_database_from_search_to_page(tmp_path: Path, url: str) -> None:
    search = Search(tmp_path, "--budget", "2", *SMALL, "--storage", url)
    log = search.end()
    assert search.process.returncode == 0 and PASSWORD not in log, log
    assert 'Look again: lrnas front s --storage "$STORAGE"' in log
    (full, *_) = [row.number for row in trials(url) if row.user_attrs["status"] == "completed"]
    front = json.loads(run(tmp_path, "front", "s", "--storage", url, "--json"))
    assert front["counts"] == open_study("s", storage=url).counts() and front["front"]

    options = ["--trials", str(full), "--no-points", "--recipe", "fast", "--epochs", "1", "--seeds", "2"]
    again = json.loads(run(tmp_path, "retrain", "s", "--storage", url, *options, "--json"))
    (network,) = again["networks"]
    assert (network["trial"], network["n"], again["left"]) == (full, 2, 0)
    told = run(tmp_path, "retrain", again["retraining"], "--storage", url)
    assert 'Weights: lrnas export s@fast,epochs=1:NETWORK --storage "$STORAGE"' in told

    check_dashboard(tmp_path, url)

    written = json.loads(run(tmp_path, "report", "s", "--storage", url, "--json"))
    files = [tmp_path / file for file in written["files"]]
    assert not any(PASSWORD.encode() in file.read_bytes() for file in files)
    data = read_data(files[0].read_text(encoding="utf-8"))  # compressed in the page
    assert PASSWORD not in json.dumps(data)
    (shown,) = data["tested"][0]["finals"]
    assert shown["accuracies"] == network["accuracies"]
    assert any('--storage "$STORAGE"' in line for _, line in data["studies"][0]["networks"][0]["lines"])
