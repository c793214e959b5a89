"""Provenance of results."""

import sys

import pytest
import torch

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


def test_a_gpu_that_does_not_report_how_busy_it_is_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        """As in nvidia-ml-py."""

    def fail() -> int:
        raise NVMLError("Not Supported")

    monkeypatch.setattr(torch.cuda, "utilization", lambda: 97)
    assert gpu_busy() == 0.97
    monkeypatch.setattr(torch.cuda, "utilization", fail)
    assert gpu_busy() is None
