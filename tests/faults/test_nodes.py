"""Searches whose workers, nodes and Ray itself are killed, and clusters that grow; `make faults` runs them."""

import os
import signal
from pathlib import Path

import pytest
from aftermath import check_log, finish, signalled
from optuna.trial import FrozenTrial
from searches import SMALL, Search, commands, descendants, in_training, trials, wait_for
from servers import Node, running_head
from signalled import IDLE_WORKER

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("no_processes_left")]

LOST = "a trial was lost (its worker was lost); it is tried again, 3 times in all"
ENDED = "lrnas: Ray must run as long as the search; its process at "


def begun_on(node: Node, folder: Path, search: Search) -> FrozenTrial:
    """Wait until a node trains; returns the trial."""
    return wait_for(
        folder, lambda rows: [row for row in in_training(rows) if row.user_attrs["node"].endswith(node.name)], search
    )


def losses(folder: Path) -> int:
    return sum(row.user_attrs.get("losses", 0) for row in trials(folder))


def test_a_cluster_that_grows_and_falls_apart(tmp_path: Path, scratch: Path) -> None:
    """A node joins, gets a trial and is killed; a worker is killed; the head is killed. Then this machine goes on."""
    budget = 5
    with running_head() as cluster:
        options = ("--budget", str(budget), *SMALL, "--address", cluster.address)
        search = Search(tmp_path, *options, **cluster.environment)
        begun_on(cluster.head, tmp_path, search)
        (worker,) = cluster.head.workers()
        os.kill(worker, signal.SIGSTOP)  # so that the search cannot be over too soon
        cluster.join({})
        begun_on(cluster.other, tmp_path, search)
        cluster.other.kill()
        search.wait_for(LOST)
        os.kill(worker, signal.SIGCONT)
        begun_on(cluster.head, tmp_path, search)
        os.kill(worker, signal.SIGKILL)
        wait_for(tmp_path, lambda rows: [row for row in rows if losses(tmp_path) == 2], search)
        begun_on(cluster.head, tmp_path, search)
        cluster.head.kill()
        log = search.end()
        for node in (cluster.head, cluster.other):
            node.process.wait(timeout=60)
    assert search.process.returncode == 2 and log.splitlines()[-1].startswith(ENDED), log
    assert log.splitlines()[-1].endswith("nothing is lost: start the cluster again, and the same command continues")
    check_log(log)
    finish(tmp_path, scratch, budget)
    assert losses(tmp_path) == 2


def test_a_worker_between_two_trainings_and_then_ray_are_killed(tmp_path: Path, scratch: Path) -> None:
    budget = 4
    program = signalled(IDLE_WORKER, 2, signal.SIGKILL)
    search = Search(tmp_path, "--budget", str(budget), *SMALL, "--concurrency", "1", program=program)
    search.wait_for(LOST)
    wait_for(tmp_path, in_training, search)
    found = commands(descendants(search.process.pid))
    (raylet,) = (process for process, command in found.items() if "raylet/raylet " in command)
    os.kill(raylet, signal.SIGKILL)
    log = search.end()
    assert search.process.returncode == 2 and log.splitlines()[-1].startswith(ENDED), log
    check_log(log)
    finish(tmp_path, scratch, budget)
    assert losses(tmp_path) == 1
