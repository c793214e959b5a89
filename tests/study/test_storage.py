"""Storages that cannot be opened, databases that are away for a while, and operations with a broken connection."""

import contextlib
import os
import pickle
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import event

from lrnas.cli.main import main
from lrnas.study import storage
from lrnas.study.optuna_internals import database_of
from lrnas.study.storage import StorageError, open_storage

BROKEN = pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
"""When the connection breaks: the change is not made, or it is made and nobody hears of it."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(storage, "PAUSES", (0.01, 0.02))
    monkeypatch.setattr(storage, "LOCKED", 0.05)
    caplog.set_level("INFO", "lrnas")


class Kept:
    """A study in SQLite whose connection can be broken."""

    def __init__(self, folder: Path) -> None:
        directions = ["maximize", "minimize"]
        self.study = optuna.create_study(
            study_name="s", storage=open_storage(None, folder), directions=directions, load_if_exists=True
        )
        self.storage: Any = database_of(self.study)

    def break_down(self, moment: str, times: int = 1) -> Callable[[], None]:
        """Let the next changes fail; returns a function that ends this."""
        dialect = self.storage.engine.dialect
        commit, left = dialect.do_commit, [times]

        def fail(connection: Any) -> None:
            fails = left[0] > 0 and connection.in_transaction  # reading has nothing to commit
            if not fails or moment == "after_commit":
                commit(connection)
            if fails:
                left[0] -= 1
                raise sqlite3.OperationalError("it is gone")

        def mend() -> None:
            left[0] = 0

        dialect.do_commit = fail
        return mend

    def state(self, number: int) -> TrialState:
        return optuna.load_study(study_name="s", storage=self.storage).trials[number].state


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


@BROKEN
def test_a_result_is_recorded_once(kept: Kept, moment: str, caplog: pytest.LogCaptureFixture) -> None:
    trial = kept.study.ask({"x": optuna.distributions.FloatDistribution(0, 1)})
    kept.break_down(moment)
    kept.study.tell(trial, [0.5, 3.0])
    (found,) = kept.study.trials
    assert found.state == TrialState.COMPLETE and found.values == [0.5, 3.0]
    gone, back = caplog.messages
    assert "cannot be reached (it is gone); trying again for 300 s" in gone and "is back after 0 s" in back


@BROKEN
def test_attributes_and_parameters_are_set_once(kept: Kept, moment: str, caplog: pytest.LogCaptureFixture) -> None:
    trial = kept.study.ask()
    kept.break_down(moment)
    trial.suggest_float("x", 0, 1)
    kept.break_down(moment)
    trial.set_user_attr("curve", [0.1, 0.2])
    kept.break_down(moment)
    kept.study.set_user_attr("seen", 1.0)
    (found,) = kept.study.trials
    assert found.params.keys() == {"x"} and found.user_attrs == {"curve": [0.1, 0.2]}
    assert kept.study.user_attrs["seen"] == 1.0 and len(caplog.messages) == 6


@BROKEN
def test_a_transaction_is_written_once_or_not_at_all(kept: Kept, moment: str, caplog: pytest.LogCaptureFixture) -> None:
    trial = kept.study.ask()
    with kept.storage.together():
        for name in "xyz":
            trial.suggest_float(name, 0, 1)
        kept.storage.set_trial_user_attrs(trial._trial_id, {"curve": [0.1, 0.2]})
        assert not kept.study.trials[0].params
        kept.break_down(moment)
    (found,) = kept.study.trials
    assert found.params == trial.params and found.user_attrs == {"curve": [0.1, 0.2]} and len(caplog.messages) == 2
    with contextlib.suppress(ZeroDivisionError), kept.storage.together():
        kept.storage.set_trial_user_attrs(trial._trial_id, {"curve": []})
        raise ZeroDivisionError
    kept.storage.set_trial_user_attrs(trial._trial_id, {"epochs": 2})
    assert kept.study.trials[0].user_attrs == {"curve": [0.1, 0.2], "epochs": 2}


@BROKEN
def test_a_network_is_enqueued_once(kept: Kept, moment: str) -> None:
    kept.study.enqueue_trial({"x": 0.25}, user_attrs={"point": "nin"})
    kept.break_down(moment)
    kept.study.enqueue_trial({"x": 0.5}, user_attrs={"point": "nin-c3"})
    assert [trial.user_attrs["point"] for trial in kept.study.trials] == ["nin", "nin-c3"]


@BROKEN
def test_a_trial_without_an_owner_is_put_back(kept: Kept, moment: str) -> None:
    kept.break_down(moment)
    trial = kept.study.ask()
    running = [row.number for row in kept.study.get_trials(states=(TrialState.RUNNING,))]
    assert running == ([0] if moment == "before_commit" else [0, 1]) and trial.number == running[-1]
    kept.study.enqueue_trial({})
    waiting = kept.study.trials[-1].number
    kept.break_down(moment)
    assert (kept.study.ask().number == waiting) == (moment == "before_commit")


@BROKEN
def test_a_trial_that_another_driver_took_is_left_to_it(
    kept: Kept, moment: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A trial is put back, the connection breaks, another driver takes the trial, and the first one tries again."""
    trial, other = kept.study.ask(), Kept(tmp_path)
    taken: list[int] = []
    monkeypatch.setattr(kept.storage.patience, "wait", lambda reason: taken.append(other.study.ask().number))
    kept.break_down(moment)
    kept.storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
    assert taken == [1 if moment == "before_commit" else 0]
    assert kept.state(0) == (TrialState.WAITING if moment == "before_commit" else TrialState.RUNNING)


def test_two_drivers_never_take_the_same_trial(kept: Kept, tmp_path: Path) -> None:
    """Another driver takes a waiting trial just after the first one has seen that it waits."""
    kept.study.enqueue_trial({"x": 1})
    (trial,), other, taken = kept.study.trials, Kept(tmp_path), []

    def take(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE trials") and not taken:
            taken.append(0)
            taken[0] = other.storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)

    event.listen(kept.storage.engine, "before_cursor_execute", take)
    assert not kept.storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING) and taken == [True]
    other.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        kept.storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)


def test_patience_ends_with_a_clear_error(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.storage.patience.seconds = 0.1
    mend = kept.break_down("before_commit", times=10_000)
    with pytest.raises(StorageError, match="cannot be reached: it is gone; given up after 0 s; nothing is lost"):
        kept.study.ask()
    kept.storage.patience.seconds = 1000.0
    with pytest.raises(StorageError):  # later operations do not wait again
        kept.study.ask()
    mend()
    assert kept.study.ask().number == 0
    assert "is back" in caplog.messages[-1]


def test_ctrl_c_ends_waiting_in_all_threads(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> bool:
        raise KeyboardInterrupt

    kept.break_down("before_commit", times=10_000)
    with monkeypatch.context() as pressed:
        pressed.setattr(kept.storage.patience._over, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            kept.study.ask()
    with pytest.raises(StorageError):
        kept.study.ask()


def test_threads_wait_together_with_one_message(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.break_down("before_commit", times=12)
    threads = [threading.Thread(target=kept.study.set_user_attr, args=(f"key{i}", i)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept.study.user_attrs) == 4
    assert sum("cannot be reached" in line for line in caplog.messages) == sum(
        "is back" in line for line in caplog.messages
    )


def test_a_locked_database_is_waited_for(kept: Kept, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock = sqlite3.connect(tmp_path / storage.DATABASE, isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    threading.Timer(0.5, lock.rollback).start()
    kept.study.set_user_attr("seen", 1.0)
    assert "cannot be reached (database is locked)" in caplog.messages[0] and "is back" in caplog.messages[-1]
    lock.close()


def test_a_full_disk_ends_the_search(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    event.listen(kept.storage.engine, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count = 1"))
    kept.storage.engine.dispose()  # the file may not grow any more
    with pytest.raises(StorageError, match="cannot be used: database or disk is full; repair it, then the same"):
        kept.study.set_user_attr("long", "x" * 100_000)
    assert not caplog.messages


def test_a_database_that_may_not_be_written(kept: Kept, tmp_path: Path) -> None:
    readonly = open_storage(f"sqlite:///file:{tmp_path / storage.DATABASE}?mode=ro&uri=true", tmp_path)
    study = optuna.load_study(study_name="s", storage=readonly)
    with pytest.raises(StorageError, match="cannot be used: attempt to write a readonly database"):
        study.set_user_attr("seen", 1.0)


def test_a_storage_can_be_pickled(kept: Kept) -> None:
    again = pickle.loads(pickle.dumps(kept.storage))
    assert again.get_study_id_from_name("s") == kept.study._study_id


# --- what cannot be opened


def spoil(folder: Path, how: str) -> str:
    """Replace the database of a study by something else; returns the expected error."""
    file = folder / storage.DATABASE
    Kept(folder)
    if how == "garbage":
        file.write_text("none " * 1000)
        return "file is not a database"
    if how == "folder":
        file.unlink()
        file.mkdir()
        return "unable to open database file"
    if how == "half":
        file.write_bytes(file.read_bytes()[:9000])
        return "database disk image is malformed"
    with sqlite3.connect(file) as database:
        database.execute("UPDATE alembic_version SET version_num = 'v99.0.0'")
    return "Please try updating optuna"


@pytest.mark.parametrize("how", ["garbage", "folder", "half", "newer"])
def test_a_study_that_cannot_be_opened(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line with exit code 2; the list of studies shows the other studies."""
    Kept(tmp_path / "s")
    reason = spoil(tmp_path / "bad", how)
    search = ["search", "--space", "nin", "--data", "digits", "--budget", "1", "--name", "bad", "--set", "batch_size=8"]
    for command in (["front", "bad"], search):
        assert main([*command, "--studies", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("lrnas: the storage sqlite") and reason in error and error.count("\n") == 1
    assert main(["studies", "--studies", str(tmp_path)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert reason in lines[0] and lines[1] == "lrnas: s is a study of Optuna, but not one of lrnas; give another"


@pytest.mark.parametrize("content", [b"none", b"none\n", b"none\nnone\n", b'{"a": 1}\n', b"[1]\n", b"\xff\xfe\n\xff\n"])
def test_a_file_that_is_not_a_journal_is_not_changed(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(content)
    with pytest.raises(StorageError, match=r"cannot be read: it is not a journal of Optuna \(.*\); repair it, or"):
        open_storage(f"journal:{tmp_path / 'journal'}", tmp_path)
    assert (tmp_path / "journal").read_bytes() == content


def test_a_line_of_a_journal_that_could_not_be_finished_is_not_continued(tmp_path: Path) -> None:
    """The disk was full for a moment; every driver that goes on removes the line."""
    where = f"journal:{tmp_path / 'journal'}"
    one = optuna.create_study(study_name="s", storage=open_storage(where, tmp_path))
    two = optuna.load_study(study_name="s", storage=open_storage(where, tmp_path))
    for number, study in enumerate((one, two)):
        with (tmp_path / "journal").open("ab") as stream:
            stream.write(b'{"op_code":4,"wor')
        study.set_user_attr("later", number)
        assert one.user_attrs["later"] == two.user_attrs["later"] == number
    again = optuna.load_study(study_name="s", storage=open_storage(where, tmp_path))
    assert again.user_attrs == {"later": 1}


def test_a_journal_whose_last_line_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    study = optuna.create_study(study_name="s", storage=open_storage("journal:a/journal", tmp_path))
    study.ask()
    whole = Path("a/journal").read_bytes()
    Path("a/journal").write_bytes(whole + b'{"op_code":4,"wor')
    again = optuna.load_study(study_name="s", storage=open_storage("journal:a/journal", tmp_path))
    assert len(again.trials) == 1 and Path("a/journal").read_bytes() == whole
    assert caplog.messages == [f"the last line of {tmp_path / 'a' / 'journal'} was incomplete, and is removed"]
    shutil.rmtree("a")
    with pytest.raises(StorageError, match="cannot be read: No such file or directory"):
        again.ask()


def test_other_storages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for wrong in ("nonsense", "nonsense://u:secret@host/name", "postgresql+psycopg2://u:secret@host:port/name"):
        with pytest.raises(StorageError, match=r"a storage is a database URL, like .*; got ") as caught:
            open_storage(wrong, tmp_path)
        assert "secret" not in str(caught.value)
    with pytest.raises(StorageError, match=r"mysql://u:\*\*\*@host/name needs a package that is not here: MySQLdb"):
        open_storage("mysql://u:secret@host/name", tmp_path)
    monkeypatch.setenv("LRNAS_PATIENCE", "soon")
    with pytest.raises(StorageError, match="LRNAS_PATIENCE is a number of seconds, at least 0; got 'soon'"):
        open_storage(None, tmp_path)


@pytest.mark.parametrize(("port", "reason"), [("1", "Connection refused"), ("99999", 'invalid port number: "99999"')])
def test_a_database_that_does_not_answer_is_refused_at_once(
    port: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(
        StorageError, match=rf"u:\*\*\*@127.0.0.1:{port}/name cannot be opened: .*{reason}; check `storage`"
    ):
        open_storage(f"postgresql://u:secret@127.0.0.1:{port}/name", tmp_path)
    assert not caplog.messages


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=me&password=secret",
        "postgresql://127.0.0.1:1/db?sslpassword=secret",
        "postgresql://me:s@secret@127.0.0.1:1/db",
        "postgresql://me:secret@127.0.0.1:port/db",
        "postgresql://me:s ecret secret@127.0.0.1:port/db",
        "postgresql:me:secret@host/db",
        "postgresql//me:secret@host/db",
        "unknown://me:secret@host/db?password=secret",
    ],
)
def test_no_error_shows_a_password(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["front", "s", "--studies", str(tmp_path), "--storage", url]) == 2
    out, err = capsys.readouterr()
    assert "secret" not in out + err and err.count("\n") == 1 and err.startswith("lrnas: ")
    with pytest.raises(StorageError) as caught:
        open_storage(url, tmp_path)
    assert "secret" not in str(caught.value) and ("***" in str(caught.value) or "got postgresql:…" in str(caught.value))


@pytest.mark.parametrize("answer", ["the database system is starting up", "sorry, too many clients already"])
def test_a_server_that_is_busy_when_it_is_opened_is_waited_for(
    answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    psycopg2 = pytest.importorskip("psycopg2")

    def refuse(*_: Any, **__: Any) -> None:
        raise psycopg2.OperationalError(f'connection to server at "127.0.0.1", port 1 failed: FATAL:  {answer}')

    monkeypatch.setattr(psycopg2, "connect", refuse)
    monkeypatch.setattr(storage, "OPENING", 0.1)
    with pytest.raises(StorageError, match=rf"u:\*\*\*@127.0.0.1:1/name cannot be reached: .*{answer}; given up after"):
        open_storage("postgresql://u:secret@127.0.0.1:1/name", tmp_path)
    (line,) = caplog.messages
    assert answer in line and "secret" not in line


@pytest.mark.parametrize("kind", ["sqlite:///{}", "journal:{}"])
def test_commands_that_read_a_study_create_nothing(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = kind.format(tmp_path / "none" / "typo.db")
    for command in (["front", "s"], ["front"], ["report", "s"], ["studies", "--delete", "s"]):
        assert main([*command, "--storage", url, "--studies", str(tmp_path / "studies")]) == 2
        error = capsys.readouterr().err
        assert f"must hold studies; got {url}, which does not; check --storage" in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_database_of_another_program_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.db"
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE mine (one)")
    before = file.read_bytes()
    assert main(["front", "s", "--storage", f"sqlite:///{file}"]) == 2
    assert "must hold studies" in capsys.readouterr().err and file.read_bytes() == before


@pytest.mark.parametrize("kind", ["sqlite:///{}", "journal:{}"])
def test_pipes_and_devices_are_no_storages(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        with pytest.raises(StorageError, match=rf"must be a regular file; got .*{name}; give another `storage`"):
            open_storage(kind.format(tmp_path / name), tmp_path)


@pytest.mark.parametrize("kind", ["sqlite:///{}", "journal:{}", None])
def test_only_its_owner_can_read_a_new_storage(kind: str | None, tmp_path: Path) -> None:
    """Studies hold paths of data sets and names of machines."""
    file = tmp_path / storage.DATABASE
    open_storage(kind and kind.format(file), tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o660)  # somebody shares it
    open_storage(kind and kind.format(file), tmp_path)
    assert file.stat().st_mode & 0o777 == 0o660
