"""CUDA MPS, with a script in place of NVIDIA's program; on a GPU with the program itself."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from mps_service import SCRIPT, Service

from lrnas.training import gpu_sharing
from lrnas.training.gpu_sharing import CONTROL, PIPES, USE_GPU, shared_gpus

DRIVER = """
import signal, sys, time
import gpu_sharing

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it
gpu_sharing.USE_GPU = sys.argv[1]
with gpu_sharing.shared_gpus():
    time.sleep(60)
"""


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Service:
    return Service(tmp_path, monkeypatch)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen within 20 s"
        time.sleep(0.02)


def test_it_is_started_and_stopped(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with shared_gpus() as reason:
        folder = os.environ[PIPES]
        assert not reason and Path(folder, "control").exists()
    assert PIPES not in os.environ and not Path(folder).exists()
    usual = str(service.usual)
    assert service.calls() == [
        ["get_server_list", usual, "1"],
        ["start", folder, "all"],
        ["get_server_list", folder, "1"],
        ["quit", folder, "1"],
    ]


def test_it_is_stopped_after_an_error(service: Service) -> None:
    with pytest.raises(ZeroDivisionError), shared_gpus():
        raise ZeroDivisionError
    assert service.commands()[-1] == "quit" and PIPES not in os.environ


@pytest.mark.parametrize("is_usual", [True, False])
def test_a_service_of_somebody_else_is_used(
    is_usual: bool, service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not is_usual:
        monkeypatch.setenv(PIPES, str(tmp_path))
    place = service.usual if is_usual else tmp_path
    (place / "control").touch()
    before = dict(os.environ)
    with shared_gpus() as reason:
        assert not reason and dict(os.environ) == before
    assert service.commands() == ["get_server_list"]


def test_nothing_is_started_if_the_variable_names_a_folder_without_a_service(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PIPES, "/nowhere")
    with shared_gpus() as reason:
        assert reason == "no service answers at CUDA_MPS_PIPE_DIRECTORY=/nowhere (Cannot find the daemon)"
    assert service.commands() == ["get_server_list"] and os.environ[PIPES] == "/nowhere"


def test_the_program_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(PIPES, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with shared_gpus() as reason:
        assert reason == "nvidia-cuda-mps-control is not installed" and PIPES not in os.environ


@pytest.mark.parametrize(
    ("script", "probe", "expected"),
    [
        ("echo Unsupported; exit 1", "", "Unsupported"),
        ("exit 3", "", "nvidia-cuda-mps-control ended with code 3"),
        (SCRIPT, "raise SystemExit('CUDA_ERROR_NO_DEVICE')", "CUDA_ERROR_NO_DEVICE"),
    ],
)
def test_a_service_that_does_not_work_is_stopped_at_once(
    script: str, probe: str, expected: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sharing, "USE_GPU", probe)
    service.write(script if script == SCRIPT else SCRIPT.replace('touch "$folder/control"', script))
    with shared_gpus() as reason:
        assert reason == expected and PIPES not in os.environ
        wait_until(lambda: service.commands() == ["get_server_list", "start", "quit"])
    assert not Path(service.calls()[-1][1]).exists()


def test_a_program_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_sharing, "SECONDS", 0.2)
    assert gpu_sharing._run(["sleep", "20"]) == "sleep did not end within 0.2 s"


@pytest.mark.parametrize("is_starting", [True, False])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_program_that_is_killed(
    number: signal.Signals, is_starting: bool, service: Service, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    probe = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.02)"
    command = [sys.executable, "-c", DRIVER, probe if is_starting else ""]
    here = Path(gpu_sharing.__file__).parent
    with subprocess.Popen(command, cwd=here, start_new_session=True, stderr=subprocess.DEVNULL) as driver:
        wait_until(lambda: service.commands()[1:] == (["start"] if is_starting else ["start", "get_server_list"]))
        os.killpg(driver.pid, number)  # as Ctrl-C in a terminal, to all processes of the group
        assert driver.wait(20) == -number
    go.touch()
    wait_until(lambda: service.commands()[-1] == "quit")
    folder = Path(service.calls()[1][1])
    wait_until(lambda: not folder.exists())


def test_sigterm_to_all_processes_of_a_job(service: Service) -> None:
    """The service is needed until the program ends, which may take one more epoch."""
    with shared_gpus():
        (keeper,) = (
            int(file.parent.name)
            for file in Path("/proc").glob("[0-9]*/cmdline")
            if gpu_sharing.__file__.encode() in file.read_bytes()
            and f"\nPPid:\t{os.getpid()}\n" in (file.parent / "status").read_text()
        )
        os.kill(keeper, signal.SIGTERM)
        time.sleep(0.5)
        assert "quit" not in service.commands()
    assert service.commands()[-1] == "quit"


def processes() -> set[str]:
    """Numbers of all running processes of MPS."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"nvidia-cuda-mps" in file.read_bytes():
                found.add(file.parent.name)
        except OSError:  # the process has ended
            continue
    return found


def ask(command: str) -> list[str]:
    done = subprocess.run([CONTROL], input=command, text=True, capture_output=True, check=True)
    return done.stdout.split()


@pytest.mark.gpu
def test_two_processes_share_a_gpu() -> None:
    before = processes()
    client = [sys.executable, "-c", f"{USE_GPU}\nprint('ready', flush=True); input()"]
    with shared_gpus() as reason:
        assert not reason
        if PIPES not in os.environ:
            pytest.skip("MPS was running before")
        folder = os.environ[PIPES]
        pipe = subprocess.PIPE
        clients = [subprocess.Popen(client, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
        try:
            for process in clients:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
            (server,) = ask("get_server_list")
            assert len(ask(f"get_client_list {server}")) == 2
        finally:
            for process in clients:
                process.communicate("\n")
    assert PIPES not in os.environ and not Path(folder).exists()
    wait_until(lambda: processes() == before)
