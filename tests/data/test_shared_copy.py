"""One copy of a file in a GPU's memory: who starts the process that keeps it, who gets the memory, and when it ends."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from lrnas.data import shared_copy
from lrnas.data.shared_copy import CannotShare, can_share, share_file

HOLDER = """
import os, sys, time
from lrnas.data import shared_copy

def copy(file, gpu, share):
    with open(file + ".copies", "a") as log:
        log.write("x")
    time.sleep(0.3)
    return bytes([gpu]) * shared_copy.HANDLE

shared_copy.LINGER = 0.3
shared_copy._copy = copy
shared_copy._hold(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
"""
"""A process that keeps a file as one on a GPU does, but for the calls of CUDA."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, and processes that keep it without a GPU."""
    start = shared_copy._start

    def start_stand_in(command: list[str]) -> None:
        start([sys.executable, "-c", HOLDER, *command[-4:]])

    monkeypatch.setattr(shared_copy, "_start", start_stand_in)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "pixels").write_bytes(bytes(1000))
    return tmp_path / "pixels"


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_held(file: Path, gpu: str = "a GPU") -> bool:
    return shared_copy._address(file, gpu) in Path("/proc/net/unix").read_text()


def test_processes_that_ask_at_once_share_one_copy(file: Path) -> None:
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda _: shared_copy._ask(file, 7, "a GPU"), range(6)))
    assert {handle for _, handle in answers} == {bytes([7]) * 64}
    copies = Path(f"{file}.copies")
    assert copies.read_text() == "x"
    for connection, _ in answers[1:]:
        connection.close()
    time.sleep(0.6)  # one is left
    with shared_copy._ask(file, 7, "a GPU")[0]:
        assert copies.read_text() == "x"
    answers[0][0].close()
    wait_until(lambda: not is_held(file))
    shared_copy._ask(file, 7, "a GPU")[0].close()
    assert copies.read_text() == "xx"
    wait_until(lambda: not is_held(file))


def test_another_version_of_a_file_and_another_gpu_have_other_copies(file: Path) -> None:
    names = [shared_copy._address(file, "a GPU"), shared_copy._address(file, "another GPU")]
    os.utime(file, ns=(1, 1))
    names.append(shared_copy._address(file, "a GPU"))
    file.write_bytes(bytes(1001))
    names.append(shared_copy._address(file, "a GPU"))
    assert len(set(names)) == 4


def test_the_reason_is_told_if_a_file_cannot_be_copied(tmp_path: Path) -> None:
    (tmp_path / "pixels").write_bytes(bytes(1000))
    if not torch.cuda.is_available():
        with pytest.raises(CannotShare, match=r"libcuda\.so\.1: cannot open|CUDA_ERROR_NO_DEVICE"):
            shared_copy._ask(tmp_path / "pixels", 0, "a GPU")


def test_a_process_that_does_not_start_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(shared_copy, "_start", started.append)
    with pytest.raises(CannotShare, match="the process that keeps the memory has ended"):
        shared_copy._ask(file, 0, "a GPU")
    assert len(started) == shared_copy.ATTEMPTS


def test_memory_of_other_users_is_not_used(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_copy._ask(file, 0, "a GPU")[0]:
        monkeypatch.setattr(shared_copy, "_peer", lambda connection: os.getuid() + 1)
        with pytest.raises(CannotShare, match="another user keeps memory"):
            shared_copy._ask(file, 0, "a GPU")


def test_a_cpu_shares_nothing() -> None:
    assert not can_share(torch.device("cpu"))


OTHER = """
import sys
from pathlib import Path
import torch
from lrnas.data.shared_copy import share_file
shared = share_file(Path(sys.argv[1]), torch.device("cuda"))
print(int(shared[-1000:].long().sum()))
"""


@pytest.mark.gpu
def test_two_processes_see_one_copy_on_a_gpu(tmp_path: Path) -> None:
    content = torch.randint(256, (300_000_000,), dtype=torch.uint8)
    file, device = tmp_path / "pixels", torch.device("cuda")
    content.numpy().tofile(file)
    shared = share_file(file, device)
    assert shared.device.type == "cuda" and torch.equal(shared.cpu(), content)
    shared[-1000:] = 7  # it is seen by others, because it is the same memory
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OTHER, str(file)]
    other = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    assert int(other.stdout) == 7000
    graph, total = torch.cuda.CUDAGraph(), torch.zeros((), dtype=torch.int64, device=device)
    with torch.cuda.graph(graph):
        total += shared[:1000].long().sum()
    graph.replay()
    assert int(total) == int(content[:1000].long().sum())
    assert can_share(device)
    gpu = str(torch.cuda.get_device_properties(0).uuid)
    assert is_held(file, gpu)
    del shared, graph, total
    wait_until(lambda: not is_held(file, gpu))
