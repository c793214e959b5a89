"""What `lrnas doctor` finds wrong, and what it advises."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from small_studies import make_search

from lrnas.cli import doctor
from lrnas.cli.main import main


def options(folder: Path, storage: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(studies=folder / "studies", storage=storage, data_dir=folder / "data")


def test_packages_that_are_missing_or_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"torch {torch.__version__.split('+')[0]}" in doctor._packages(options(tmp_path))
    needed = ["torch>=99", "no-such-package>=1 ; extra == 'search'", "another-one ; extra == 'docs'", "timm>=1.0.29"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: needed)
    found = doctor._find("packages", doctor._packages, options(tmp_path))
    assert not found.is_ok and "pip install" in found.advice
    assert found.text.endswith("which is not >=99, no-such-package is not installed")


def test_a_driver_without_a_gpu_for_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "DRIVER", tmp_path / "version")
    assert "CPU cores" in doctor._gpu(options(tmp_path))
    doctor.DRIVER.write_text("NVRM version: 580.1\nGCC version")
    found = doctor._find("GPU", doctor._gpu, options(tmp_path))
    assert not found.is_ok and "NVRM version: 580.1)" in found.text and "nvidia-smi" in found.advice


def test_folders_and_storages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for check in (doctor._storage, doctor._data, doctor._disk):
        assert doctor._find("folders", check, options(tmp_path)).is_ok
    assert not list(tmp_path.iterdir())  # nothing is made
    (tmp_path / "file").write_text("")
    for check in (doctor._storage, doctor._data):
        found = doctor._find("folders", check, options(tmp_path / "file"))
        assert not found.is_ok and found.text.startswith("cannot write to") and "--" in found.advice
    found = doctor._find("storage", doctor._storage, options(tmp_path, "nonsense"))
    assert not found.is_ok and "a storage is a database URL" in found.text
    new = tmp_path / "new.db"
    make_search(tmp_path / "one" / "studies" / "s")
    assert doctor._storage(options(tmp_path / "one")) == f"1 study in {tmp_path / 'one' / 'studies'}"
    assert "has 0 studies" in doctor._storage(options(tmp_path, f"sqlite:///{new}")) and not new.exists()
    monkeypatch.setattr(doctor, "LITTLE_ROOM", 10**18)
    found = doctor._find("disk", doctor._disk, options(tmp_path))
    assert not found.is_ok and "free for studies" in found.text and "lrnas clean" in found.advice


def test_a_broken_package(tmp_path: Path) -> None:
    def fail(options: argparse.Namespace) -> str:
        raise ImportError("libcudart.so: cannot open shared object file")

    found = doctor._find("GPU", fail, options(tmp_path))
    assert not found.is_ok and "ImportError: libcudart.so" in found.text and found.advice.startswith("reinstall")


@pytest.mark.slow
def test_the_whole_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--studies", str(tmp_path / "studies"), "--data-dir", str(tmp_path / "data")]
    assert main(["doctor", "--json", *folders]) == 0
    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert len(found) == 8 and found["Ray"]["text"].startswith("starts, with ")
    assert main(["doctor", *folders, "--storage", "nonsense"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("WRONG")] == ["storage"]
