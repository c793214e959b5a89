"""Searches that get signals at every stage of their work; `make faults` runs them."""

import signal
from pathlib import Path

import pytest
from aftermath import check_log, finish, run_until
from servers import running_postgres
from signalled import CHECKPOINT, POINTS, WORKER

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("no_processes_left")]

BUDGET = 6
END = "Ray is not stopped"
STAGES = [*((point, 1) for point in POINTS if point != END), (CHECKPOINT, 1)]
"""Points of a search, in the order in which they are reached, and how often each is reached before the signal."""
KILLS = [
    *STAGES,
    *(("a network is being proposed", 2), ("a network is proposed", 3), ("an epoch is recorded", 2), (CHECKPOINT, 2)),
]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_driver_is_killed_again_and_again(kind: str, tmp_path: Path, scratch: Path) -> None:
    with running_postgres() as server:
        storage = server.create("killed") if kind == "postgresql" else None
        options = ("--storage", storage) if storage else ()
        for point, number in KILLS:
            code, log = run_until(tmp_path, point, number, signal.SIGKILL, BUDGET, *options)
            assert code == -signal.SIGKILL, f"{point}: {log}"
        finish(tmp_path, scratch, BUDGET, storage=storage)


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_is_stopped_at_every_stage(which: signal.Signals, tmp_path: Path, scratch: Path) -> None:
    budget = BUDGET
    for point, number in [*STAGES, (END, 1)]:
        code, log = run_until(tmp_path, point, number, which, budget)
        assert code == 128 + which, f"{point}: {log}"
        check_log(log)
        budget += 1  # trials in their last epoch are completed, so each stage may use up one
    finish(tmp_path, scratch, budget)


def test_a_driver_is_stopped_at_once(tmp_path: Path, scratch: Path) -> None:
    """The second signal ends it in the middle of an epoch."""
    for point, number in STAGES[:-1]:
        code, log = run_until(tmp_path, point, number, signal.SIGINT, BUDGET, times=2)
        assert code == 128 + signal.SIGINT, f"{point}: {log}"
        check_log(log)
    finish(tmp_path, scratch, BUDGET)


def test_a_worker_is_killed_while_it_writes_a_checkpoint(tmp_path: Path, scratch: Path) -> None:
    code, log = run_until(tmp_path, WORKER, 3, signal.SIGKILL, BUDGET)
    assert code == 0 and log.count("a trial was lost (its worker was lost)") == 1, log
    finish(tmp_path, scratch, BUDGET)
