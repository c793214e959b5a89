"""Costs of the networks of a search, and the rungs of early stopping."""

from pathlib import Path

import pytest
import timm
import torch
from pictures import write_set
from safetensors.torch import save_file

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.errors import LrnasError, in_users_words
from lrnas.models.plan import make_plan
from lrnas.profiling.latency_table import Conditions, Latency, LatencyTable
from lrnas.recipes import InvalidRecipe
from lrnas.searching.proposals import Proposal
from lrnas.searching.settings import SearchSettings
from lrnas.searching.setup import SearchTraining, rung_epochs
from lrnas.spaces.space import load_space
from lrnas.study.levels import SHORT
from lrnas.training.custom import Trainable


def test_costs_are_those_of_the_deployed_form(tmp_path: Path) -> None:
    training = SearchTraining(SearchSettings(space="nin", budget=1), load_space("nin", batch_norm=True), "digits", None)
    joined = Architecture("nin", {"conv1": Allocation(width=0.75, join=0.5)}, batch_norm=True)
    plain = Architecture("nin", {"conv1": Allocation(width=0.5)}, batch_norm=True)
    counted = make_plan(plain, 8, 10, 1).cost
    assert training.cost(joined) == training.guess(joined) == {"macs": counted.macs, "params": counted.params}
    # with times of the layers as deployed in the table, nothing has to be measured
    table = LatencyTable(Conditions.here(torch.device("cpu"), 1), tmp_path / "latency.db")
    training.latency = Latency(table, 8, 10, 1)
    steps = training.latency.steps(plain)
    table.store({step.key: 0.001 * (i + 1) for i, step in enumerate({step.key: step for step in steps}.values())})
    assert training.cost(joined)["latency"] == training.guess(joined)["latency"] == training.latency.of(plain)
    assert training.latency.steps(joined) != steps


def test_crops_of_the_first_epochs_must_fit_all_networks() -> None:
    def training(space: str, size: int) -> SearchTraining:
        settings = SearchSettings(space=space, budget=1, set={"early_crop": size, "epochs": 5}, final_epochs=40)
        return SearchTraining(settings, load_space(space), "digits", None)

    levels = training("nin", 4).levels
    assert [level.recipe.early_crop for level in levels.values()] == [4, 0, 0]
    with pytest.raises(InvalidRecipe, match=r"early_crop=16 is too small for vgg-11: a 2×2 pool .*; set early_crop=0$"):
        training("vgg11", 16)


def test_short_trainings_of_nins_begin_with_smaller_crops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrnas.searching.setup.EARLY_CROPS", {"nin": {8: 6}})  # as on images of 32×32 pixels

    def crop(recipe: str = "fast", batch_norm: bool = True, **changes: int) -> list[int]:
        settings = SearchSettings(space="nin", budget=1, recipe=recipe, set=changes, epochs=5, final_epochs=40)
        training = SearchTraining(settings, load_space("nin", batch_norm=batch_norm), "digits", None)
        return [level.recipe.early_crop for level in training.levels.values()]

    assert crop() == [6, 0, 0]
    assert crop(early_crop=0) == crop("full")[:1] * 3 == crop(batch_norm=False) == [0, 0, 0]


@pytest.mark.parametrize(
    ("model", "share"), [("vit_tiny_patch16_224", "2.2 %"), ("efficientnet_b0", "1.9 %"), ("resnet18", "")]
)
def test_a_remark_says_if_a_space_can_save_little(model: str, share: str, tmp_path: Path) -> None:
    write_set(tmp_path, {"train": 34, "val": 70, "test": 1})
    settings = SearchSettings(space=f"timm:{model}", budget=1)
    remarks = SearchTraining(settings, load_space(settings.space), f"folder:{tmp_path}", None).remarks
    told = f"a search can save at most {share} of the MACs of timm:{model} (docs/choosing.md)"
    assert remarks[1:] == [told] * bool(share)


def test_which_images_a_model_takes_depends_on_the_stride_of_its_first_layer(tmp_path: Path) -> None:
    write_set(tmp_path, {"train": 34, "val": 70, "test": 1})

    def set_up(stem_stride: int | None) -> SearchTraining:
        settings = SearchSettings(space="timm:inception_v3", budget=1, image_size=64, stem_stride=stem_stride)
        space = load_space(settings.space, stem_stride=stem_stride)
        return SearchTraining(settings, space, f"folder:{tmp_path}", None)

    assert set_up(1).input_size == 64
    for stride in (None, 4):
        with pytest.raises(LrnasError, match=r"inception_v3 takes images of 299×299 pixels; .* are 64×64 here"):
            set_up(stride)


def test_a_remark_says_that_epochs_of_finals_have_no_effect() -> None:
    for finals, told in ((0.5, []), (0.0, ["--final-epochs 9 has no effect without finals (--finals 0)"])):
        settings = SearchSettings(space="nin", budget=1, finals=finals, final_epochs=9)
        remarks = SearchTraining(settings, load_space("nin"), "digits", None).remarks
        assert [remark for remark in remarks if "final" in remark] == told


def test_a_remark_says_if_batches_are_smaller_than_the_recipe_s(tmp_path: Path) -> None:
    write_set(tmp_path, {"train": 100, "val": 70, "test": 1})

    def remarks(trainable: Trainable | None = None, norms: bool = True, **changes: float) -> list[str]:
        settings = SearchSettings(space="nin", budget=1, set=changes)
        space = load_space("nin", batch_norm=norms)
        return SearchTraining(settings, space, f"folder:{tmp_path}", trainable).remarks

    few = "because there are only 300 training images; --set batch_size=… changes that"
    assert remarks() == [f"images per step: 8 instead of the recipe's 128, learning rate 0.025 instead of 0.1, {few}"]
    assert remarks(lr=0.2) == remarks(norms=False) == [f"images per step: 8 instead of the recipe's 128, {few}"]
    assert in_users_words(remarks()[0]).endswith('; `set={"batch_size": …}` changes that')
    assert remarks(batch_size=16) == []
    assert remarks(trainable=Trainable("mine:train", str(tmp_path))) == []


@pytest.mark.parametrize(
    ("first", "epochs", "wanted"),
    [
        (None, 10, (1, 3, 9)),
        (None, 30, (3, 9, 27)),
        (1, 10, (1, 3, 9)),
        (1, 9, (1, 3)),
        (2, 20, (2, 6, 18)),
        (4, 4, ()),
        (1, 1, ()),
    ],
)
def test_rungs(first: int | None, epochs: int, wanted: tuple[int, ...]) -> None:
    assert rung_epochs(first, epochs) == wanted


def test_impossible_rungs() -> None:
    for first in (0, 11):
        with pytest.raises(LrnasError, match=f"between 1 and the number of epochs, 10; got {first}"):
            rung_epochs(first, 10)


def make_training(start_from: str, space: str = "timm:test_resnet") -> SearchTraining:
    settings = SearchSettings(space=space, budget=1, start_from=start_from, granularity="network")
    return SearchTraining(settings, load_space(space, granularity="network"), "digits", None)


def test_networks_start_from_weights(tmp_path: Path) -> None:
    torch.manual_seed(1)
    dense = timm.create_model("test_resnet", num_classes=10, in_chans=1)
    save_file(dense.state_dict(), tmp_path / "dense.safetensors")
    torch.save(dense.state_dict(), tmp_path / "dense.pth")
    images = torch.randn(8, 1, 32, 32)
    manifests = []
    for name in ("dense.safetensors", "dense.pth"):
        training = make_training(str(tmp_path / name))
        baseline, lr = training.named()["test_resnet"], training.named()["lr"]
        models = []
        for network in (baseline, lr):
            job = training.job_at(SHORT, Proposal(0, network, None, {"macs": 1}))
            models.append(job.create_model(training.data).eval())
            assert job.identity(training.data)["start_from"] == training.manifest()["start_from"]
        manifests.append(training.manifest())
        with torch.no_grad():
            old, same, near = (model.eval()(images) for model in (dense, *models))
        torch.testing.assert_close(same, old)  # the baseline has all of the weights, its classifier too
        assert near.shape == old.shape and not torch.allclose(near, old)
        assert torch.equal(models[1].fc.weight, dense.fc.weight)
    assert manifests[0]["start_from"] != manifests[1]["start_from"]
    other = timm.create_model("test_resnet", num_classes=3)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    assert training.remarks[-1].endswith("dense.pth")
    training = make_training(str(tmp_path / "other.safetensors"))  # of other images: all but the classifier is used
    assert training.remarks[-1].endswith("other.safetensors; its classifier is for 3 classes, so it starts anew")
    model = training.job_at(SHORT, Proposal(0, training.named()["test_resnet"], None, {"macs": 1})).create_model(
        training.data
    )
    assert model.fc.weight.shape == (10, other.fc.weight.shape[1])
    assert torch.equal(model.layer1[0].conv1.weight, other.layer1[0].conv1.weight)


def test_weights_that_networks_cannot_start_from(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    dense = timm.create_model("test_resnet", num_classes=10, in_chans=1).state_dict()
    save_file({**dense, "extra": torch.zeros(1)}, tmp_path / "larger.safetensors")
    (tmp_path / "text.pth").write_text("no weights")
    save_file({**dense, "layer1.0.conv1.weight": torch.zeros(8, 32, 3, 3)}, tmp_path / "narrow.safetensors")
    for name, message in (
        ("missing", "cannot read .*missing: No such file"),
        ("text.pth", "text.pth contains no weights"),
        ("other.safetensors", "other.safetensors contains no conv1.0.weight, so these are not the weights of test_"),
        (
            "narrow.safetensors",
            "has layer1.0.conv1.weight of 8×32×3×3, and test_resnet of .*: these are weights of a n",
        ),
        ("larger.safetensors", "larger.safetensors contains extra, so these are not the weights of test_resnet"),
    ):
        with pytest.raises(LrnasError, match=message):
            make_training(str(tmp_path / name))
    with pytest.raises(LrnasError, match="only in spaces of one model of timm; got `start_from` with nin"):
        make_training("any", "nin")
