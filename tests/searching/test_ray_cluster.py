"""Options of workers, how they share a GPU, and the checks that they can load a function and share a folder."""

import logging
import os
import runpy
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from closed_ports import check_that_only_this_machine_can_connect
from mps_service import Service
from small_studies import make_proposals

import lrnas
from lrnas.cli.main import main
from lrnas.errors import LrnasError, UnfitMachine
from lrnas.searching import ray_cluster
from lrnas.searching.ray_cluster import (
    RayEnded,
    RayLife,
    Workers,
    follow_room,
    limit_to_room,
    marked_folder,
    pick_workers,
    running_ray,
)
from lrnas.training import worker
from lrnas.training.gpu_sharing import PIPES
from lrnas.training.worker import check_mark

SEARCH = ["search", "--space", "nin", "--budget", "1"]
RETRAIN = ["retrain", "nin-digits"]


@pytest.mark.parametrize("command", [SEARCH, RETRAIN])
def test_every_option_reaches_the_workers(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    picked = []

    def pick(*args: Any, **kwargs: Any) -> None:
        picked.append(pick_workers(*args, **kwargs))
        raise LrnasError("no more is needed")

    monkeypatch.setattr(f"lrnas.searching.{command[0]}.pick_workers", pick)
    given = ["--cpus-per-trial", "2", "--gpus-per-trial", "0.5", "--concurrency", "3", "--address", "head:6379"]
    given += ["--trial-timeout", "60"]
    assert main([*command, "--gpus-per-trial", "0"]) == main([*command, *given]) == 2
    assert picked == [Workers(), Workers(2, 0.5, 3, "head:6379", timeout=60)]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--cpus-per-trial=0", "--cpus-per-trial must be above 0; got 0"),
        ("--gpus-per-trial=-1", "--gpus-per-trial must be at least 0; got -1"),
        ("--concurrency=0", "--concurrency must be at least 1; got 0"),
    ],
)
@pytest.mark.parametrize("command", [SEARCH, RETRAIN])
def test_impossible_workers(command: list[str], option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, option]) == 2
    assert capsys.readouterr().err == f"lrnas: {message}; give a larger number\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_more_gpus_than_there_are_are_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrnas.searching.setup.load_set", lambda *_, **__: pytest.fail("data are loaded"))
    for call in (lrnas.search, lrnas.estimate):
        with pytest.raises(LrnasError, match="`gpus_per_trial` must be at most the number of GPUs, 0; got 1"):
            call("nin", budget=2, gpus_per_trial=1)
    with pytest.raises(LrnasError, match="must be at most the number of GPUs, 0; got 2"):
        lrnas.retrain("nin-digits", gpus_per_trial=2)


def test_more_cpus_than_there_are_are_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrnas.searching.setup.load_set", lambda *_, **__: pytest.fail("data are loaded"))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for call in (lrnas.search, lrnas.estimate):
        with pytest.raises(LrnasError, match="`cpus_per_trial` must be at most the number of CPUs, 2; got 8"):
            call("nin", budget=2, cpus_per_trial=8, progress=False)


def test_a_trial_must_fit_on_one_machine(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Three machines with 3 CPUs have room for three trials with 2, not for four."""
    machines = [{"CPU": 3.0}, {"CPU": 3.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 2.0}, {"memory": 1e9}]
    nodes = [{"Alive": True, "Resources": each} for each in machines] + [{"Alive": False, "Resources": {"CPU": 99.0}}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    caplog.set_level("INFO", "lrnas")
    cluster = Workers(2, 0.25, address="here:1")
    assert limit_to_room(cluster).concurrency == 2 and limit_to_room(replace(cluster, cpus=1)).concurrency == 6
    assert not caplog.messages
    assert limit_to_room(replace(cluster, gpus=0)).concurrency == 3
    assert caplog.messages == ["the cluster has 3 GPUs, which are not used; `gpus_per_trial` 0.25 uses them"]
    limited = limit_to_room(replace(cluster, cpus=1, concurrency=3))
    nodes.pop(2)
    assert limited.concurrency == 3 and follow_room(limited).concurrency == 3
    nodes.pop(1)
    assert follow_room(limited).concurrency == 1  # until another one joins
    found = r"got 4 CPUs and 0 GPUs for each trial, and machines with 0 and 0, 3 and 0; give less to a trial"
    with pytest.raises(LrnasError, match=found):
        limit_to_room(replace(cluster, cpus=4, gpus=0))


def test_from_python_the_options_are_keywords() -> None:
    with pytest.raises(LrnasError, match="`concurrency` must be at least 1; got -1"):
        lrnas.search("nin", budget=1, gpus_per_trial=0, concurrency=-1)
    with pytest.raises(LrnasError, match=r"unknown setting 'concurency'; did you mean concurrency\?"):
        lrnas.search("nin", budget=1, concurency=1)


@pytest.mark.parametrize(
    ("helper", "message"),
    [
        ("@functools.lru_cache\ndef helper(): ...", "functions with lru_cache; got helper; put both into"),
        ("helper = threading.Lock()", "this failed with TypeError: cannot pickle '_thread.lock' object; put it into"),
        ("def helper(): ...", "no more is needed"),
    ],
)
def test_a_script_is_told_at_once_what_workers_cannot_load(
    helper: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pick(*_: Any) -> None:
        raise LrnasError("no more is needed")

    monkeypatch.setattr("lrnas.searching.search.pick_workers", pick)
    script = tmp_path / "script.py"
    train = "def train(model, run):\n    helper"
    search = "lrnas.search('nin', budget=1, trainable=train)"
    script.write_text(f"import functools, threading, lrnas\n{helper}\n{train}\n{search}\n")
    with pytest.raises(LrnasError, match=message):
        runpy.run_path(str(script), run_name="__main__")


def test_a_machine_with_another_disk_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker, "MARK_PAUSE", 0.0)
    drivers = [make_proposals(tmp_path / "s").ledger for _ in range(2)]
    for driver in drivers:
        driver.sign()
    trials = tmp_path / "trials"
    with marked_folder(trials, drivers[0]) as mark, marked_folder(trials, drivers[1]) as another:
        check_mark(tmp_path / "trials", mark)
        check_mark(tmp_path / "trials", another)
        (tmp_path / "elsewhere").mkdir()
        with pytest.raises(UnfitMachine, match=r"does not see the same .*elsewhere; give a shared folder"):
            check_mark(tmp_path / "elsewhere", mark)
    assert not list((tmp_path / "trials").iterdir())


def test_marks_of_drivers_that_were_killed_are_removed(tmp_path: Path) -> None:
    (tmp_path / "trials").mkdir()
    host, _, own = make_proposals().ledger.driver.rsplit(":", 2)
    for name in (".search-0123456789abcdef", f".search-{host}:999999999:{own}"):
        (tmp_path / "trials" / name).touch()
    with marked_folder(tmp_path / "trials", make_proposals().ledger) as mark:
        assert [file.name for file in (tmp_path / "trials").iterdir()] == [mark]


def test_a_folder_that_cannot_be_written_ends_the_search(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("in the way")
    with pytest.raises(LrnasError, match=r"cannot write to .*trials: File exists; give another `studies`"):
        marked_folder(tmp_path / "trials", make_proposals().ledger).__enter__()


@pytest.mark.parametrize(
    ("workers", "is_used"),
    [
        (Workers(gpus=0.25), True),
        (Workers(gpus=1), False),
        (Workers(gpus=0), False),
        (Workers(gpus=0.25, address="head:6379"), False),
    ],
)
def test_mps_is_for_trials_that_share_a_gpu_of_this_machine(
    workers: Workers, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        assert (PIPES in os.environ) == is_used
        raise LrnasError("no more is needed")

    service = Service(tmp_path, monkeypatch)
    monkeypatch.setattr(ray_cluster, "started_ray", start)
    with pytest.raises(LrnasError, match="no more is needed"):
        running_ray(workers).__enter__()
    assert service.commands() == (["get_server_list", "start", "get_server_list", "quit"] if is_used else [])


def test_a_ray_that_does_not_start_is_explained_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup. The raylet may have failed.\nSee its logs.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(
        LrnasError, match=r"^Ray cannot start on this machine: The current node timed out .* tries again$"
    ):
        running_ray(Workers()).__enter__()


def test_ray_keeps_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def init(**_: object) -> None:
        kept.append(ray._private.utils.get_entrypoint_name())
        raise RuntimeError("no more is needed")

    monkeypatch.setattr(
        "psutil.Process.cmdline", lambda _: ["lrnas", "search", "--storage", "mysql://me:hidden@host/s"]
    )
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(LrnasError, match="no more is needed"):
        running_ray(Workers()).__enter__()
    assert kept == ["lrnas search --storage mysql://me:***@host/s"]


@pytest.mark.slow
@pytest.mark.ci
def test_workers_find_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def variable() -> str | None:
        return ray.get(ray.remote(lambda: os.environ.get(PIPES)).options(num_gpus=0.25).remote())

    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", '{"GPU": 1}')
    service = Service(tmp_path, monkeypatch)
    caplog.set_level(logging.INFO, "lrnas")
    handler = signal.getsignal(signal.SIGTERM)
    with running_ray(Workers(cpus=0.1, gpus=0.25)) as workers:
        assert workers.concurrency == 4 and workers.has_mps and variable() == os.environ[PIPES]
        check_that_only_this_machine_can_connect()
        assert signal.getsignal(signal.SIGTERM) is handler
        folder = Path(ray._private.worker.global_worker.node.get_session_dir_path()).parents[1]
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()
    assert service.commands()[-1] == "quit" and not caplog.messages
    service.write("#!/bin/sh\nexit 3\n")
    with running_ray(Workers(cpus=0.1, gpus=0.25)) as workers:
        assert variable() is None and not workers.has_mps
    (message,) = caplog.messages
    assert message == "trials on the same GPU take turns, which is slower: nvidia-cuda-mps-control ended with code 3"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_head_that_is_away_is_waited_for_on_a_cluster(
    is_alone: bool, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        life = RayLife(listener.getsockname(), head.getsockname(), is_alone)
        life.check()
    if not is_alone:
        life.check()
        monkeypatch.setattr(ray_cluster, "HEAD_PATIENCE", 0.0)
    with pytest.raises(RayEnded, match=f"its process at 127.0.0.1:{life.head[1]} has ended; nothing is lost"):
        life.check()
