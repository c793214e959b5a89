"""Provenance of results."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lrnas.training import provenance as provenance_module
from lrnas.training.provenance import gpu_busy, provenance


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("/data/sets/imagenet", "imagenet"),
        ("/data/sets/imagenet/", "imagenet"),
        ("~/imagenet", "imagenet"),
        ("folder:/data/imagenet", "folder:imagenet"),
        ("--data=folder:~me/imagenet", "--data=folder:imagenet"),
        ("--out=/data/out", "--out=out"),
        ("wds//data/shards", "wds/shards"),
        ("hfds/someone/something", "hfds/someone/something"),
        ("folder:images", "folder:images"),
        ("results/out", "results/out"),
        ("lr=0.1", "lr=0.1"),
        ("--storage=postgresql://me:secret@host/db", "--storage=postgresql://me:***@host/db"),
    ],
)
def test_paths_on_this_machine_are_reduced_to_their_last_part(
    typed: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lrnas", "reproduce", typed])
    assert provenance()["command"] == f"lrnas reproduce {told}"


def test_the_commit_of_the_checkout_that_lrnas_is_installed_in_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = shutil.copytree(provenance_module.ROOT / "lrnas", tmp_path / "venv" / "site-packages" / "lrnas")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.delenv("LRNAS_COMMIT", raising=False)
    monkeypatch.setattr(provenance_module, "ROOT", package.parent)
    assert provenance()["commit"] == "unknown"
    monkeypatch.setattr(provenance_module, "ROOT", tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", provenance()["commit"])


def test_a_gpu_that_does_not_report_how_busy_it_is_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        """As in nvidia-ml-py."""

    def fail() -> int:
        raise NVMLError("Not Supported")

    monkeypatch.setattr(torch.cuda, "utilization", lambda: 97)
    assert gpu_busy() == 0.97
    monkeypatch.setattr(torch.cuda, "utilization", fail)
    assert gpu_busy() is None
