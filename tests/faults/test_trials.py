"""A search whose trainings raise, return NaN, hang and run out of memory; `make faults` runs it."""

import contextlib
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import faulty_training
import pytest
import torch
from aftermath import check_log, check_nothing_left, check_nothing_lost
from searches import SMALL, Search, trials

from lrnas.arch.architecture import Architecture
from lrnas.data.catalog import load_set
from lrnas.models.build import create_model
from lrnas.recipes import Recipe
from lrnas.study.open import open_study
from lrnas.training.custom import Run

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.usefixtures("no_processes_left")]

ROOM = 2**26
"""Bytes that a process in the group may take."""
TIMEOUT = 30


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A group of processes with little memory, in which the kernel kills who takes more."""
    groups = Path("/sys/fs/cgroup")
    is_first = (groups / "memory").is_dir()  # version 1 of control groups
    group = (groups / "memory" if is_first else groups) / f"lrnas-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no group of processes can be made here: {error.strerror}")
    try:
        try:
            (group / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(ROOM))
        except OSError as error:
            pytest.skip(f"the memory of processes cannot be limited here: {error.strerror}")
        swap, room = ("memory.memsw.limit_in_bytes", ROOM) if is_first else ("memory.swap.max", 0)
        if (group / swap).exists():  # a machine with swap would otherwise let it take more
            (group / swap).write_text(str(room))
        yield group
    finally:
        group.rmdir()


def kills(group: Path) -> int:
    """How many processes of a group the kernel has killed."""
    for name in ("memory.oom_control", "memory.events"):
        with contextlib.suppress(OSError):
            return dict(line.split() for line in (group / name).read_text().splitlines()).get("oom_kill", 0)
    raise AssertionError


def memory() -> tuple[int, int]:
    """Bytes of this machine's memory, and of them those in use."""
    known = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (1024 * int(known[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return total, total - free


def test_ray_ends_workers_for_lack_of_memory(tmp_path: Path, scratch: Path) -> None:
    total, used = memory()
    threshold = used + 5 * 2**30
    if threshold + 2**30 > total:
        pytest.skip("too little memory is free here")
    search = Search(tmp_path, "--budget", "4", *SMALL, RAY_memory_usage_threshold=f"{threshold / total:.4f}")
    search.wait_for("1/4 trials")
    script = f"import time; taken = bytearray({threshold - memory()[1] + 2**29}); print(flush=True); time.sleep(300)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as other:
        try:
            search.wait_for("a trial was lost (the machine had too little memory, ")
        finally:
            other.kill()
    log = search.end()
    assert search.process.returncode == 0, log
    check_log(log)
    check_nothing_lost(tmp_path, scratch, 4)
    assert "it is tried again\n" in log and "fewer trials at a time, --concurrency, need less" in log


def test_every_way_in_which_a_trial_can_fail(tmp_path: Path, scratch: Path, memory_group: Path) -> None:
    shutil.copy(faulty_training.__file__, tmp_path)
    options = ("--budget", "5", *SMALL, "--concurrency", "1", "--data", "digits", "--min-epochs", "3")
    options += ("--trainable", "faulty_training:train", "--trial-timeout", str(TIMEOUT))
    search = Search(tmp_path, *options, MEMORY_GROUP=str(memory_group))
    log = search.end()
    assert search.process.returncode == 0, log
    check_log(log)
    assert int(kills(memory_group)) == 1 and len(list(tmp_path.glob("call-*"))) == 7
    told = [
        "(faulty: TrainableError: ValueError: this network cannot be trained (faulty_training.py, line ",
        "(diverged: the loss became",
    ]
    told += [f"a trial was lost (no epoch within {TIMEOUT} s)", "a trial was lost (its worker was lost)"]
    assert [log.count(text) for text in told] == [1] * 4, log

    rows = trials(tmp_path)
    states = Counter((row.state.name, row.user_attrs["status"], row.user_attrs.get("losses", 0)) for row in rows)
    assert states == {
        ("COMPLETE", "completed", 0): 1,
        ("PRUNED", "faulty", 0): 1,
        ("PRUNED", "diverged", 0): 1,
        ("COMPLETE", "completed", 1): 2,
    }
    assert len({row.user_attrs["id"] for row in rows}) == 5
    manifest = open_study("s", studies=tmp_path / "studies").manifest
    data = load_set("digits")
    for row in rows:
        if row.user_attrs["status"] == "completed":
            torch.manual_seed(manifest["seed"])
            recipe = Recipe(**manifest["recipe"])
            network = Architecture.from_json(row.user_attrs["architecture"])
            model = create_model(network, data.num_classes, data.channels, init=recipe.init, drop_rate=recipe.drop_rate)
            run = Run(model, 3, tmp_path / "again" / str(row.number), seed=manifest["seed"], load_data=lambda: data)
            run._start_epoch()
            faulty_training.train_normally(model, run)
            assert run.progress()["curve"] == row.user_attrs["curve"] and row.values[0] == row.user_attrs["curve"][-1]
    check_nothing_left(tmp_path, scratch)
