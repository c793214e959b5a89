"""Tests of lrnas.searching.mps."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lrnas.searching import mps
from lrnas.searching.mps import CONTROL, FOLDERS, PIPES, gpu_sharing


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(mps, "USUAL", tmp_path / "none")


def put_on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    program = folder / CONTROL
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_the_reason_is_told_where_the_service_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with gpu_sharing() as reason:
        assert reason == "nvidia-cuda-mps-control is not installed"
        assert PIPES not in os.environ


def test_a_service_that_fails_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_on_path(monkeypatch, tmp_path, f'echo "$@ ${PIPES}" >> {tmp_path}/calls; cat; test "$1" != -d')
    with gpu_sharing() as reason:
        assert reason == "CUDA MPS cannot be used here (1)"
        assert PIPES not in os.environ
    start, stop = (tmp_path / "calls").read_text().splitlines()
    assert start.split()[0] == "-d"
    folder = stop.strip()
    assert start.split()[1] == folder
    assert not Path(folder).exists()


def test_a_service_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mps, "SECONDS", 0.2)
    put_on_path(monkeypatch, tmp_path, "exec sleep 5")
    with gpu_sharing() as reason:
        assert reason == "nvidia-cuda-mps-control did not end within 0.2 s"


@pytest.mark.parametrize("is_usual", [False, True])
def test_a_service_of_somebody_else_is_used_and_not_stopped(
    is_usual: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_on_path(monkeypatch, tmp_path, f"touch {tmp_path}/called")
    if is_usual:
        (tmp_path / "none").mkdir()
        (tmp_path / "none" / "control").touch()
    else:
        monkeypatch.setenv(PIPES, "theirs")
    with gpu_sharing() as reason:
        assert not reason
    assert os.environ.get(PIPES) == (None if is_usual else "theirs")
    assert not (tmp_path / "called").exists()


@pytest.mark.gpu
def test_the_service_is_started_and_stopped() -> None:
    with gpu_sharing() as reason:
        assert not reason
        folder = os.environ[PIPES]
        asked = subprocess.run([CONTROL], input="get_server_list\n", text=True, capture_output=True, check=True)
        assert asked.stdout.strip().isdigit()  # the process that serves the GPU
    assert PIPES not in os.environ
    assert not Path(folder).exists()
    environment = {**os.environ, PIPES: folder}
    asked = subprocess.run([CONTROL], input="get_server_list\n", text=True, capture_output=True, env=environment)
    assert asked.returncode or "Cannot find" in asked.stdout + asked.stderr
