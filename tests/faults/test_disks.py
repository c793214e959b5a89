"""Searches, reports and packs on a disk that is full; `make faults` runs them."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aftermath import check_log, check_nothing_left, finish
from pictures import write_set
from searches import PROGRAM, SMALL, Search, all_trials

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("no_processes_left")]

BUDGET = 4
MEGABYTE = 10**6


class Disk:
    """A small disk in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as stream:
            while stream.write(bytes(4096)):
                pass

    def clear(self) -> None:
        self._ballast.unlink()


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Disk]:
    """A disk of `size` bytes, mounted in a new folder; skips the test where this is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount a disk")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # this process may have a file open


def wait_until(found: Callable[[], bool], search: Search) -> None:
    deadline = time.monotonic() + 180
    while not found():
        assert time.monotonic() < deadline and search.process.poll() is None, search.log.read_text()
        time.sleep(0.02)


def wait_for_an_epoch(search: Search, storage: str | Path) -> None:
    search.wait_for("trials in all")
    wait_until(lambda: any(row.user_attrs.get("epochs") for row in all_trials(storage)), search)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *map(str, arguments)], check=False, capture_output=True, text=True)


def test_no_room_for_checkpoints_and_the_report(tmp_path: Path, scratch: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    with small_disk(tmp_path / "disk", 50 * MEGABYTE) as disk:
        search = Search(disk.folder, "--budget", str(BUDGET), *SMALL, "--storage", url, log="../log.txt")
        wait_for_an_epoch(search, url)
        disk.fill()
        log = search.end()
        assert search.process.returncode == 2, log
        assert "No space left on device" in log.splitlines()[-1] and "the same command" in log.splitlines()[-1], log
        check_log(log)
        disk.clear()
        finish(disk.folder, scratch, BUDGET, storage=url)

        where = ("--storage", url, "--studies", disk.folder / "studies", "--out", disk.folder / "report")
        command = ("report", "s", *where)
        assert run(*command).returncode == 0
        before = {file: file.read_bytes() for file in (disk.folder / "report").iterdir()}
        disk.fill()
        shown = run(*command)
        assert shown.returncode == 2 and "No space left on device" in shown.stderr, shown.stderr
        check_log(shown.stderr)
        assert {file: file.read_bytes() for file in (disk.folder / "report").iterdir()} == before
        disk.clear()
        assert run(*command).returncode == 0
        check_nothing_left(disk.folder, scratch)


def test_no_room_for_the_study(tmp_path: Path, scratch: Path) -> None:
    with small_disk(tmp_path / "disk", 50 * MEGABYTE) as disk:
        url = f"sqlite:///{disk.folder}/study.db"
        search = Search(tmp_path, "--budget", str(BUDGET), *SMALL, "--storage", url)
        wait_for_an_epoch(search, url)
        disk.fill()
        log = search.end()
        assert search.process.returncode == 2, log
        assert "disk is full" in log.splitlines()[-1] and "the same command continues" in log.splitlines()[-1], log
        check_log(log)
        disk.clear()
        finish(tmp_path, scratch, BUDGET, storage=url)


def test_no_room_for_a_pack(tmp_path: Path, scratch: Path) -> None:
    images = write_set(tmp_path / "set", {"train": 400, "val": 10}, size=20)
    options = ("--budget", "1", "--max-macs", "3M", "--epochs", "1", "--data", f"folder:{images}", "--image-size", "16")
    with small_disk(tmp_path / "disk", 5 * MEGABYTE) as disk:
        search = Search(tmp_path, *options, LRNAS_DATA=str(disk.folder))
        wait_until(lambda: bool(list(disk.folder.rglob("*.part"))), search)
        disk.fill()
        log = search.end()
        assert search.process.returncode == 2 and "No space left on device" in log, log
        check_log(log)
        disk.clear()
        search = Search(tmp_path, *options, LRNAS_DATA=str(disk.folder))
        log = search.end()
        assert search.process.returncode == 0, log
        assert not list(disk.folder.rglob("*.part"))
        check_nothing_left(tmp_path, scratch)
