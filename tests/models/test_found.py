"""The networks that searches found: named models with weights."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import lrnas
from benchmarks.models import accuracy
from lrnas._resources import MODELS
from lrnas.cli.main import main
from lrnas.data.names import data_folder
from lrnas.models.found import found_networks
from lrnas.models.plan import make_plan

TESTED = {
    "lrnas-googlenet-a": 91.07,
    "lrnas-googlenet-b": 92.05,
    "lrnas-googlenet-c": 92.89,
    "lrnas-nin-a": 92.20,
    "lrnas-nin-b": 92.77,
    "lrnas-nin-c": 93.26,
    "lrnas-vgg-a": 91.86,
}
"""Accuracy on the 10,000 test images of CIFAR-10, in percent (`python -m benchmarks.models test`)."""
MACS = {
    "lrnas-googlenet-a": 50_281_728,
    "lrnas-googlenet-b": 32_591_200,
    "lrnas-googlenet-c": 70_334_432,
    "lrnas-nin-a": 70_914_048,
    "lrnas-nin-b": 115_442_688,
    "lrnas-nin-c": 276_286_464,
    "lrnas-vgg-a": 40_602_752,
}
all_found = pytest.mark.parametrize("name", TESTED)
one_and_slowly_all = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "lrnas-nin-a")) for name in TESTED]
)


def test_all_are_tested() -> None:
    assert found_networks().keys() == TESTED.keys()


@all_found
def test_the_table_of_models(name: str) -> None:
    """Its numbers are those of the network, of the test below and of the kept study."""
    results = MODELS.parent
    rows = [line for line in (MODELS / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) == len(TESTED)
    (row,) = (line for line in rows if f"`{name.replace('-', '_')}`" in line)
    cost = make_plan(found_networks()[name].architecture, 32, 10, deployed=True).cost
    assert f" | {cost.macs:,} | {cost.params:,} | {TESTED[name]:.2f} % | " in row
    matched = re.search(r"trial (\d+) of \[?([\w-]+)", row)
    assert matched is not None
    kept = json.loads((results / "studies" / matched[2] / "retrained.json").read_text(encoding="utf-8"))
    (network,) = (one for one in kept["networks"] if one["trial"] == int(matched[1]))
    assert (network["macs"], network["params"], network["n"]) == (cost.macs, cost.params, 8)
    assert row.endswith(f"| {100 * network['mean']:.2f} ± {100 * network['sd']:.2f} % |")


@all_found
def test_a_named_model_has_its_weights_without_a_download(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = timm.create_model(name.replace("-", "_"), pretrained=True).eval()
    assert model.num_classes == 10 and model.pretrained_cfg["label_names"][3] == "cat"
    assert make_plan(model.architecture, 32, 10, deployed=True).cost.macs == MACS[name]
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        outputs = model(images)
        torch.testing.assert_close(lrnas.load_model(name)(images), outputs)
        assert not torch.allclose(timm.create_model(name.replace("-", "_")).eval()(images), outputs)
    other = timm.create_model(name.replace("-", "_"), pretrained=True, num_classes=3).eval()
    assert other(images).shape == (4, 3)
    torch.testing.assert_close(other.forward_features(images), model.forward_features(images))


@one_and_slowly_all
def test_a_named_model_is_exported_with_its_weights(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a"
    assert main(["export", name, "--out", str(folder), "--data-dir", str(tmp_path / "nothing")]) == 0
    assert "weights of a search" in capsys.readouterr().out
    exported = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    own = found_networks()[name].config
    for key in ("input_size", "mean", "std", "crop_pct"):
        assert list(np.atleast_1d(exported.pretrained_cfg[key])) == list(np.atleast_1d(own[key])), key
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(exported(images), lrnas.load_model(name.replace("-", "_"))(images))


def test_a_named_model_is_not_exported_with_the_classes_of_other_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "lrnas-nin-a", "--data", "digits", "--out", str(tmp_path / "a")]) == 2
    assert "lrnas-nin-a was trained on cifar10; got --data digits, which has other images" in capsys.readouterr().err
    export = ["export", "lrnas-nin-a", "--data-dir", str(tmp_path / "nothing"), "--out"]
    assert main([*export, str(tmp_path / "a")]) == 0
    assert main(["export", str(tmp_path / "a"), "--out", str(tmp_path / "b")]) == 0
    first, second = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("a", "b"))
    assert first == second and len(first["label_names"]) == 10


@all_found
def test_a_named_model_is_counted_for_its_own_images(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", name, "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert (counted["macs"], counted["input"], counted["num_classes"]) == (MACS[name], 32, 10)
    assert main(["models"]) == 0
    assert name in capsys.readouterr().out


@one_and_slowly_all
@pytest.mark.skipif(not (data_folder() / "cifar10.npz").exists(), reason="CIFAR-10 is not on this machine")
def test_accuracy(name: str) -> None:
    assert abs(100 * accuracy(name, None, 1000) - TESTED[name]) < 3  # of 1,000 images, 0.85 points are one deviation
