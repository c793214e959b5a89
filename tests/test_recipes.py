"""Recipes: rules, files, and settings that follow from the data."""

from pathlib import Path

import pytest

from lrnas._field_docs import field_docs
from lrnas.errors import LrnasError, UnknownName
from lrnas.recipes import InvalidRecipe, Recipe, get_recipe, named_recipes


def test_every_field_has_a_description() -> None:
    assert list(field_docs(Recipe)) == list(Recipe().to_dict())
    assert all(line.endswith(".") and "\n" not in line for line in field_docs(Recipe).values())


def test_the_papers_recipe_on_the_papers_images() -> None:
    recipe = get_recipe("paper", "nin_3x3", 32, 45_000)
    assert (recipe.crop, recipe.whiten, recipe.schedule, recipe.init) == (30, True, "paper", "composite")
    vgg = get_recipe("paper", "vgg11", 224, 1_000_000)
    assert (vgg.batch_size, vgg.lr, vgg.weight_decay, vgg.drop_rate) == (256, 0.01, 5e-4, 0.5)
    googlenet = get_recipe("paper", "googlenet", 224, 1_000_000)
    assert (googlenet.schedule, googlenet.power, googlenet.aux_weight) == ("polynomial", 0.5, 0.3)


def test_small_sets_get_small_batches_unless_told_otherwise() -> None:
    large, small = get_recipe("fast", "nin", 32, 45_000), get_recipe("fast", "nin", 8, 1_222)
    assert small.batch_size == 32 and (small.lr / large.lr) ** 2 == pytest.approx(small.batch_size / large.batch_size)
    assert [get_recipe("fast", "nin", 8, number).batch_size for number in (255, 256, 51, 8, 5)] == [8, 8, 8, 8, 4]
    told = get_recipe("fast", "nin", 8, 1_222, {"batch_size": 100})
    assert (told.batch_size, told.lr) == (100, large.lr)
    assert (large.pad, small.pad) == (2, 1)


def test_networks_without_norms_have_a_lower_learning_rate() -> None:
    for name in ("fast", "full"):
        with_norms, without = (get_recipe(name, "nin", 32, 45_000, norms=norms) for norms in (True, False))
        assert without.lr / without.batch_size < 0.5 * with_norms.lr / with_norms.batch_size
        assert get_recipe(name, "nin", 8, 1_222, norms=False).lr == without.lr
    assert get_recipe("paper", "nin", 8, 1_222, norms=True) == get_recipe("paper", "nin", 8, 1_222, norms=False)


def test_text_is_read_as_the_fields_type() -> None:
    recipe = get_recipe("fast", "nin", 32, 45_000, {"lr": "0.2", "mirror": "false", "epochs": "3", "schedule": "paper"})
    assert (recipe.lr, recipe.mirror, recipe.epochs, recipe.schedule) == (0.2, False, 3, "paper")


def test_files_change_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "paper"\nlr = 1\nepochs = 5\n')
    recipe = get_recipe(str(file), "nin", 32, 45_000, {"epochs": 7})
    assert (recipe.lr, recipe.epochs, recipe.whiten) == (1.0, 7, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lrr": "1"}, "a recipe has no field 'lrr'; did you mean lr?"),
        ({"epochs": "many"}, "epochs must be a whole number; got 'many'; for example 5"),
        ({"epochs": 0}, "epochs must be from 1 to 100000; got 0"),
        ({"epochs": 2.5}, "epochs must be a whole number; got 2.5"),
        ({"batch_size": 0}, "batch_size must be from 1"),
        ({"batch_size": 50_000}, "batch_size must be at most 45000, the number of training images; got 50000"),
        ({"lerning_rate": 1}, "no field 'lerning_rate'; did you mean lr? ("),
        ({"Drop-out": 1}, "no field 'Drop-out'; did you mean drop_rate? ("),
        ({"batchsize": 1}, "no field 'batchsize'; did you mean batch_size? ("),
        ({"lr": "0"}, "lr must be above 0"),
        ({"lr": "nan"}, "lr must be above 0"),
        ({"momentum": "1"}, "momentum must be at least 0 and below 1"),
        ({"lr": "fast"}, "lr must be a number; got 'fast'; for example 0."),
        ({"mirror": "maybe"}, "mirror must be true or false; got 'maybe'; for example True"),
        ({"schedule": "cosine"}, "schedule must be one of paper, polynomial, one_cycle; got 'cosine'"),
        ({"crop": 41, "pad": 4}, "crop must be at most the padded image, 32 + 2·4; got 41"),
        ({"early_crop": 37}, "early_crop must be at most the padded image, 32 + 2·2; got 37; set early_crop to 0"),
    ],
)
def test_bad_settings(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRecipe) as caught:
        get_recipe("fast", "nin", 32, 45_000, changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="unknown recipe 'papre'; did you mean paper"):
        get_recipe("papre", "nin", 32, 45_000)
    for content, message in (
        ("lr =", "is not a TOML file"),
        ("lrr = 1", "no field 'lrr'"),
        ('base = "slow"', "base recipe"),
        ("base = []", r"unknown base recipe in .*bad.toml '\[\]'; known: paper, fast, full"),
        (
            "lr = 1" + 400 * "0",
            "is not a TOML file: a whole number has more than 64 bits; see `lrnas recipes`",
        ),
        ("epochs = " + 6_000 * "9", "is not a TOML file: a number is too long"),
        ("lr = " + 100_000 * "[", "too many brackets are open"),
    ):
        (tmp_path / "bad.toml").write_text(content)
        with pytest.raises(LrnasError, match=message) as caught:
            get_recipe(str(tmp_path / "bad.toml"), "nin", 32, 45_000)
        assert "bad.toml" in str(caught.value)
    with pytest.raises(InvalidRecipe, match="cannot read"):
        get_recipe(str(tmp_path / "missing.toml"), "nin", 32, 45_000)


def test_named_recipes_are_valid_as_they_stand() -> None:
    short = {"fast", "fast, without norms", "full", "full, without norms"}
    assert set(named_recipes()) == {*short, "paper, nin", "paper, googlenet", "paper, vgg"}


@pytest.mark.parametrize(("epochs", "early"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (7, 5), (40, 30)])
def test_crops_of_the_first_epochs(epochs: int, early: int) -> None:
    recipe = Recipe(epochs=epochs, early_crop=16)
    assert [recipe.size_in(epoch, 32) for epoch in range(epochs)] == [16] * early + [32] * (epochs - early)
    assert recipe.num_epochs(32) == {size: number for size, number in ((16, early), (32, epochs - early)) if number}
    assert recipe.with_size(24).num_epochs(32) == {24: epochs}
    assert Recipe(epochs=epochs, crop=30).num_epochs(32) == {30: epochs}
