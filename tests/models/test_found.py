"""The networks that searches found: named models with weights."""

import pytest
import timm
import torch

import lrnas
from benchmarks.models import accuracy
from lrnas.cli.main import main
from lrnas.data.names import data_folder
from lrnas.models.found import found_networks
from lrnas.models.plan import make_plan

TESTED = {"lrnas-nin-a": 92.20, "lrnas-nin-b": 92.77, "lrnas-vgg-a": 91.86}
"""Accuracy on the 10,000 test images of CIFAR-10, in percent (`python -m benchmarks.models test`)."""
MACS = {"lrnas-nin-a": 70_914_048, "lrnas-nin-b": 115_442_688, "lrnas-vgg-a": 40_602_752}
all_found = pytest.mark.parametrize("name", TESTED)


def test_all_are_tested() -> None:
    assert found_networks().keys() == TESTED.keys()


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


def test_a_named_model_is_exported_with_its_weights(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("export")
    assert main(["export", "lrnas-nin-a", "--out", str(folder / "a"), "--data-dir", str(folder)]) == 0
    assert "weights of a search" in capsys.readouterr().out
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        exported = timm.create_model(f"local-dir:{folder / 'a'}", pretrained=True).eval()(images)
        torch.testing.assert_close(exported, lrnas.load_model("lrnas_nin_a")(images))


@all_found
@pytest.mark.skipif(not (data_folder() / "cifar10.npz").exists(), reason="CIFAR-10 is not on this machine")
def test_accuracy(name: str) -> None:
    assert abs(100 * accuracy(name, None, 1000) - TESTED[name]) < 3  # of 1,000 images, 0.85 points are one deviation
