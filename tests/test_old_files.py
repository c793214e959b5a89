"""Files of earlier versions are read as before. `tests/assets/make_assets.py` made them."""

import hashlib
import logging
import lzma
import shutil
from pathlib import Path

import pytest
import torch

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.data.catalog import load_set
from lrnas.data.packed import PackedSet
from lrnas.exporting.sources import find_source
from lrnas.models.plan import canonical_id, make_plan
from lrnas.recipes import Recipe
from lrnas.reporting.report import make_report
from lrnas.study.levels import read_level
from lrnas.study.open import open_study
from lrnas.training.job import Job

ASSETS = Path(__file__).parent / "assets" / "formats-1"
NETWORK = Architecture.load(ASSETS / "architecture.json")


def test_an_architecture() -> None:
    plan = make_plan(NETWORK, 8, 10, 1)
    assert canonical_id(NETWORK, 8, 1) == "nin-6531b1a7522b" and (plan.cost.macs, plan.cost.params) == (14_096, 882)
    layers = ["5x1,2 || 1x5,2 || 3x3,4 > 1x1,6", "1x1,4", "1x1,2", "1x5,4 > 5x1,6"]
    assert [str(conv.mix) for conv in plan.convs][:4] == layers
    assert Architecture.from_json(NETWORK.to_json()) == NETWORK


def test_a_checkpoint_is_exported_and_continued(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(ASSETS / "checkpoint", folder)
    model, channels = find_source(str(folder)).create_model()
    assert channels == 1 and sum(float(each.double().sum()) for each in model.state_dict().values()) == pytest.approx(
        153.610814
    )
    job = Job(NETWORK, "digits", Recipe(epochs=2, batch_size=128), seed=7, min_size=8)
    data = job.load_data()
    result = job.run(job.create_model(data), data, folder, "cpu")
    assert [entry.epoch for entry in result.curve] == [1, 2] and result.curve[0].val_accuracy == 0.09722222222222222


def test_a_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "study.db").write_bytes(lzma.decompress((ASSETS / "study.db.xz").read_bytes()))
    study = open_study("s", studies=tmp_path)
    front = [(trial.point, trial.accuracy, trial.macs) for trial in study.front("short")]
    assert front == [("lr-x0.25", 0.7, 404_352), ("dense-x0.25", 0.8, 889_728), ("nin-c3-lr", 0.9, 7_417_344)]
    finals = {final.name: (final.accuracies, final.seeds, final.promised) for final in read_level(study)}
    assert finals == {
        "dense-x0.25": ((0.85,), (1000,), (0.9, 0.01)),
        "nin-c3-lr": ((0.91, 0.93), (1000, 1001), (0.9, 0.01)),
    }
    assert make_report([study]).to_dict()["title"] == "s"
    assert main(["front", "s", "--studies", str(tmp_path)]) == 0
    assert "92.00 ± 1.41 %" in capsys.readouterr().out


def test_a_pack_is_not_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copytree(ASSETS, tmp_path, dirs_exist_ok=True)
    data = load_set(f"folder:{tmp_path / 'pictures'}", tmp_path, image_size=8)
    assert isinstance(data, PackedSet)
    with caplog.at_level(logging.INFO, "lrnas"):
        data.prepare()
    assert not caplog.messages
    assert hashlib.sha256(data.pack.open().pixels).hexdigest()[:16] == "6d626583c5d3b7a9"
    assert data.first_images(3).shape == torch.Size((3, 3, 8, 8))
