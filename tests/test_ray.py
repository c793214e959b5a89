"""Temporary folders for Ray's files, and a start of Ray that is interrupted."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private.node import Node

from lrnas import _ray
from lrnas._ray import SCRATCH, SIGN, SlowStart, scratch_folder, started_ray


def test_scratch_folders_of_programs_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, elsewhere = tmp_path / "tmp", tmp_path / "elsewhere" / "file"
    place.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(place))
    with scratch_folder() as folder:  # names of sockets would be too long
        assert folder.parent == Path("/tmp")
    monkeypatch.setattr(_ray, "LONGEST_PLACE", 1000)
    program = "import os, signal\nfrom lrnas import _ray\n_ray.LONGEST_PLACE = 1000\n"
    program += "with _ray.scratch_folder():\n    os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    (abandoned,) = place.iterdir()
    elsewhere.parent.mkdir()
    elsewhere.touch()
    link, stranger = place / "lrnas_link", place / "lrnas_stranger"
    results = place / f"{SCRATCH}results"
    link.symlink_to(elsewhere.parent)
    other_host = place / f"{SCRATCH}host"
    for folder in (stranger, results, other_host):
        folder.mkdir()
    for folder in (stranger, elsewhere.parent):
        (folder / SIGN).write_text(socket.gethostname())
    (other_host / SIGN).write_text("elsewhere")
    kept = {link, stranger, results, other_host}
    own = os.fstat
    monkeypatch.setattr(  # a folder of another user
        os, "fstat", lambda fd: SimpleNamespace(st_uid=-1) if own(fd).st_ino == stranger.stat().st_ino else own(fd)
    )
    with scratch_folder() as one, scratch_folder() as two:
        assert set(place.iterdir()) == {one, two} | kept and abandoned not in (one, two)
        assert one.stat().st_mode & 0o777 == 0o700
    assert set(place.iterdir()) == kept and elsewhere.exists()


@pytest.mark.parametrize("raylet_dies", [False, True])
def test_no_process_of_ray_is_left_if_its_start_is_interrupted(
    raylet_dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    start = Node.start_ray_processes

    def interrupt(node: Node) -> None:
        start(node)
        (raylet,) = node.all_processes["raylet"]
        seen.append((node.get_session_dir_path(), raylet.process.pid))
        deadline = time.monotonic() + 60
        while not _group(raylet.process.pid) - {raylet.process.pid}:  # its agents
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if raylet_dies:
            raylet.process.kill()
        raise KeyboardInterrupt

    monkeypatch.setattr(Node, "start_ray_processes", interrupt)
    with pytest.raises(KeyboardInterrupt), started_ray():
        pass
    ((session, raylet),) = seen
    assert not Path(session).exists()
    for _ in range(100):  # they were killed, which takes a moment
        if not (left := [*processes(session), *_group(raylet)]):
            break
        time.sleep(0.1)
    assert not left
    assert not Path(session).exists()


def _group(number: int) -> set[int]:
    """The processes of a process group that run."""
    rows = subprocess.run(["ps", "-eo", "pid,pgid,stat"], capture_output=True, text=True, check=True).stdout.split("\n")
    parts = [row.split() for row in rows[1:] if row]
    return {int(pid) for pid, group, state in parts if int(group) == number and not state.startswith("Z")}


def processes(session: str) -> list[str]:
    """The commands of all processes that belong to a session of Ray."""
    commands = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in commands if session in line]


def test_a_slow_start_is_tried_once_more(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """And Ray runs without processes that a search does not need."""
    caplog.set_level("INFO", "lrnas")
    failures, start = 1, ray.init

    def fail_first(**options: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise Exception("The current node timed out during startup. This could happen because of anything.")
        return start(**options)

    monkeypatch.setattr(ray, "init", fail_first)
    with started_ray():
        assert ray.get(ray.remote(os.getenv).remote("RAY_JOB_ID"))
        session = ray._private.worker._global_node.get_session_dir_path()
        running = processes(session)
    assert any("raylet" in line for line in running)
    assert not [line for line in running if "monitor.py" in line or "dashboard.py" in line]
    assert caplog.messages == [
        "Ray did not start in time, perhaps because other programs use all cores; trying once more"
    ]
    assert processes(session) == []
    failures = 2
    with pytest.raises(SlowStart, match="Ray cannot start on this machine: The current node timed out"), started_ray():
        pass
