"""Searches whose database fails; `make faults` runs them."""

import contextlib
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from aftermath import check_log, check_nothing_lost, finish, run_until
from searches import SMALL, Search, all_trials
from servers import Postgres, running_postgres

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("no_processes_left")]

BUDGET = 6
AWAY, BACK = "cannot be reached (", "is back after"


def wait_for_results(search: Search, storage: str | Path, number: int) -> None:
    """Wait until this many trials of a search have ended."""
    search.wait_for("trials in all")
    deadline = time.monotonic() + 180
    while sum(row.state.is_finished() for row in all_trials(storage)) < number:
        assert time.monotonic() < deadline and search.process.poll() is None, search.log.read_text()
        time.sleep(0.2)


@contextlib.contextmanager
def is_down(end: Callable[[Postgres], None], server: Postgres) -> Iterator[None]:
    """The server is ended in this way, and started again later."""
    end(server)
    try:
        yield
    finally:
        server.start()


@contextlib.contextmanager
def has_no_connection_left(server: Postgres) -> Iterator[None]:
    """All connections that the server allows are taken; those of the search are cut."""
    import psycopg2

    with contextlib.ExitStack() as ends:
        first = server.connect("postgres")
        ends.callback(first.close)
        cursor = first.cursor()
        is_full = False
        while not is_full:  # the search may connect again before the last free place is taken
            cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 's'")
            with contextlib.suppress(psycopg2.OperationalError):
                while True:
                    ends.callback(server.connect("postgres").close)
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = 's'")
            is_full = cursor.fetchone() == (0,)
        yield


@contextlib.contextmanager
def is_locked(server: Postgres) -> Iterator[None]:
    """Another program holds a lock for which the search waits."""
    with contextlib.closing(server.connect("s")) as locking, contextlib.closing(server.connect("s")) as looking:
        locking.autocommit = False
        locking.cursor().execute("LOCK TABLE trial_user_attributes, trials IN ACCESS EXCLUSIVE MODE")
        cursor, deadline, waiting = looking.cursor(), time.monotonic() + 60, 0
        while not waiting:
            assert time.monotonic() < deadline
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            (waiting,) = cursor.fetchone()
        yield


def test_a_server_fails_again_and_again(tmp_path: Path, scratch: Path) -> None:
    with running_postgres() as server:
        url = server.create("s")
        search = Search(tmp_path, "--budget", str(BUDGET), *SMALL, "--storage", url)
        faults = (partial(is_down, Postgres.stop), partial(is_down, Postgres.kill), has_no_connection_left)
        for number, fault in enumerate(faults, 1):
            wait_for_results(search, url, number)
            with fault(server):
                search.wait_for(AWAY, number)
            search.wait_for(BACK, number)
        wait_for_results(search, url, 4)
        with is_locked(server):
            time.sleep(2)
        log = search.end()
        # without a free connection, it may connect once more before the last place is taken
        assert search.process.returncode == 0 and log.count(AWAY) == log.count(BACK) in (3, 4), log
        check_log(log)
        check_nothing_lost(tmp_path, scratch, BUDGET, url)


def test_a_file_is_locked(tmp_path: Path, scratch: Path) -> None:
    search = Search(tmp_path, "--budget", str(BUDGET), *SMALL)
    wait_for_results(search, tmp_path, 1)
    with contextlib.closing(
        sqlite3.connect(tmp_path / "studies/s/study.db", isolation_level=None, timeout=60)
    ) as other:
        other.execute("BEGIN EXCLUSIVE")
        time.sleep(8)  # the search has more epochs to write in the meantime, and has to wait
    log = search.end()
    assert search.process.returncode == 0, log
    check_log(log)
    check_nothing_lost(tmp_path, scratch, BUDGET)


def test_a_journal_ends_in_half_a_line(tmp_path: Path, scratch: Path) -> None:
    journal = tmp_path / "journal.log"
    for number in (1, 2):
        code, log = run_until(
            tmp_path, "a result is recorded", number, signal.SIGKILL, BUDGET, "--storage", f"journal:{journal}"
        )
        assert code == -signal.SIGKILL, log
        text = journal.read_bytes()
        journal.write_bytes(text + text.splitlines()[-1][:20])
    log = finish(tmp_path, scratch, BUDGET, storage=f"journal:{journal}")
    assert "was incomplete, and is removed" in log
