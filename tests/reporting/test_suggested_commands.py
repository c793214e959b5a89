"""The commands that a report suggests are accepted by the command line and do what their titles say."""

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from filled_studies import SIZE, fill_study
from small_studies import LEVELS, make_finals, make_search

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import make_parser
from lrnas.data.catalog import load_set
from lrnas.models.plan import canonical_id
from lrnas.recipes import Recipe, get_recipe
from lrnas.reporting.suggested_commands import retrain_line, shell_lines
from lrnas.searching.finals import open_levels
from lrnas.study.folder import trial_folder, trials_folder
from lrnas.study.levels import Level, read_level
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import keep_images, keep_limits
from lrnas.study.study import Study
from lrnas.training.checkpoint import RECORD


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Study:
    folder = tmp_path_factory.mktemp("studies")
    return fill_study(folder, 6, name="it's <b>", storage=f"journal:{folder / 'journal'}")


def test_suggested_lines_are_valid_commands(record: Study, tmp_path: Path) -> None:
    trial = record.trials[4]
    write, again, full, export = shell_lines(record, [trial], Whereabouts("my studies", "journal:a b"))[0]
    subprocess.run(write.line, shell=True, cwd=tmp_path, check=True)
    (file,) = tmp_path.iterdir()
    assert canonical_id(Architecture.load(file)) == trial.identity
    for line in (again, full, export):
        assert make_parser().parse_args(shlex.split(line.line)[1:])
    options = make_parser().parse_args(shlex.split(again.line)[1:])
    assert (options.source, options.data) == (file.name, "cifar10")
    options = make_parser().parse_args(shlex.split(full.line)[1:])
    assert (options.study, options.trials, options.storage) == ("it's <b>", [4], "journal:a b")
    options = make_parser().parse_args(shlex.split(export.line)[1:])
    assert (options.source, options.studies, options.storage) == ("it's <b>:4", "my studies", "journal:a b")
    assert options.fresh  # its weights were not kept


def test_the_recipe_is_the_study_s(record: Study) -> None:
    again = shell_lines(record, [record.trials[0]], Whereabouts())[0][1]
    options = make_parser().parse_args(shlex.split(again.line)[1:])
    assert options.set.keys() == {"epochs", "batch_size", "lr"}
    norms = bool(record.manifest["space"]["batch_norm"])
    found = get_recipe(options.recipe, "nin", SIZE, 45_000, options.set, norms=norms)
    assert found.to_dict() == record.manifest["recipe"]
    odd = get_recipe("paper", "nin", 8, 1200, {"lr": 0.2, "nesterov": True, "mirror": False})
    record.manifest["recipe"], before = odd.to_dict(), record.manifest["recipe"]
    record.manifest["image_size"] = 8
    try:
        again = shell_lines(record, [record.trials[0]], Whereabouts())[0][1]
    finally:
        record.manifest |= {"recipe": before, "image_size": SIZE}
    options = make_parser().parse_args(shlex.split(again.line)[1:])
    digits = load_set("digits", min_size=8)
    assert get_recipe(options.recipe, "nin", 8, len(digits.train), options.set, norms=norms) == odd


def test_the_command_that_tests_the_front(record: Study) -> None:
    line = retrain_line(record, Whereabouts("my studies", "journal:a b"))
    assert line is not None and line.title.startswith("Train its front and the reference networks in full")
    options = make_parser().parse_args(shlex.split(line.line)[1:])
    assert (options.study, options.studies, options.storage) == ("it's <b>", "my studies", "journal:a b")
    assert (options.trials, options.points, options.recipe, options.seeds) == ([], True, "full", 3)
    record.manifest["data"] = "folder:0123456789abcdef"
    try:
        line = retrain_line(record, Whereabouts())
    finally:
        record.manifest["data"] = "cifar10"
    assert line is not None and line.line.endswith(' --data "$DATA"') and "DATA is where the images are" in line.title


@pytest.mark.parametrize(("epochs", "option"), [(9, " --epochs 9"), (40, ""), (None, "")])
def test_networks_are_tested_after_as_many_epochs_as_in_the_finals(epochs: int | None, option: str) -> None:
    """The recipe `full` has 40 epochs, and a search without finals has no others to compare with."""
    search = make_search()
    if epochs is not None:
        open_levels(search, {"short": LEVELS["short"], "full": Level("full", Recipe(epochs=epochs), (1000,))})
    line = retrain_line(search, search.where)
    assert line is not None and line.line == f"lrnas retrain s{option}"
    assert shell_lines(search, search.trials, search.where)[0][2].line.endswith(f"{option} --seeds 3")


def test_networks_are_tested_after_the_recipe_of_the_finals() -> None:
    search = make_search()
    search.manifest["settings"] = {"set": {"mirror": "false", "epochs": 3, "lr": "1.5"}}
    full = replace(get_recipe("full", "nin", 32, 500, {"mirror": False}), epochs=9)  # smaller batches: few images
    open_levels(search, {"short": LEVELS["short"], "full": Level("full", full, (1000,))})
    line = retrain_line(search, search.where)
    assert line is not None and line.line == f"lrnas retrain s --epochs 9 --set mirror=false --set lr={full.lr}"


def test_the_weights_after_full_training_are_exported(tmp_path: Path) -> None:
    """Those of the short training may be deleted, by `lrnas clean`."""
    search, where = make_search(), Whereabouts(str(tmp_path))
    make_finals(search, {"nin-c3-lr": (0.9,)})
    (final,) = read_level(search)
    assert final.trial is not None
    titles = [line.title for line in shell_lines(search, search.trials, where)[final.trial]]
    assert titles[-1] == "Export it with random weights"
    file = trial_folder(trials_folder(tmp_path, "s@finals"), final.runs[0]) / RECORD
    file.parent.mkdir(parents=True)
    file.touch()
    titles = [line.title for line in shell_lines(search, search.trials, where)[final.trial]]
    assert titles[-2:] == ["Export it for timm", "Export it as ONNX, in its fastest form"]


def test_networks_are_tested_after_the_training_of_the_finals_if_it_is_that_of_the_search() -> None:
    search = make_search()
    recipe = Recipe(**search.manifest["recipe"])
    open_levels(search, {"short": Level("short", recipe, (0,)), "full": Level("full", recipe, (1000,))})
    line = retrain_line(search, search.where)
    assert line is not None
    options = make_parser().parse_args(shlex.split(line.line)[1:])
    assert get_recipe(options.recipe, "nin", 32, 10**6, options.set) == recipe


def test_networks_that_start_from_weights_are_trained_from_them_again(record: Study) -> None:
    record.manifest["start_from"] = "0123456789"
    try:
        _, again, full, _ = shell_lines(record, [record.trials[4]], Whereabouts())[0]
    finally:
        del record.manifest["start_from"]
    assert (
        again.title
        == "Train it and the reference networks again as the study did, from the same weights, and compare them"
    )
    options = make_parser().parse_args(shlex.split(again.line)[1:])
    assert again.line.startswith("lrnas retrain ") and (options.trials, options.seeds, options.recipe) == (
        [4],
        1,
        "fast",
    )
    assert int(options.set["epochs"]) == record.manifest["recipe"]["epochs"]
    assert full.title.startswith("Train it and the reference networks in full") and full.line.endswith("--seeds 3")


def test_after_a_search_with_beat_its_command_trains_other_networks(record: Study) -> None:
    keep_limits(record.optuna_study, {"beat": 0.6})
    try:
        line = retrain_line(record, Whereabouts())
    finally:
        keep_limits(record.optuna_study, {})
    assert line is not None and line.title.startswith(
        "Train the networks that may beat a reference network and the reference networks in full"
    )


def test_images_whose_place_is_known_need_no_variable(tmp_path: Path) -> None:
    record = fill_study(tmp_path, 6)
    record.manifest["data"] = "folder:0123456789abcdef"
    keep_images(record.optuna_study, f"folder:{tmp_path}/my images")
    front, (_, again, full, _) = retrain_line(record, record.where), shell_lines(record, record.trials, record.where)[4]
    assert front is not None
    for line in (front, full):
        assert "--data" not in line.line and "DATA" not in line.title
    assert '--data "$DATA" --image-size' in again.line and "DATA is where" in again.title  # it does not know the study


def test_passwords_are_not_in_suggested_commands(record: Study) -> None:
    for url in (
        "postgresql://me:secret@host/db",
        "postgresql://me:se/secret@host/db",
        "postgresql://h/db?user=u&password=secret",
        "postgresql:///db?host=h&password=secret",
    ):
        lines = [line.line for line in shell_lines(record, [record.trials[0]], Whereabouts(storage=url))[0]]
        assert not any("secret" in line for line in lines) and any('--storage "$STORAGE"' in line for line in lines)
    lines = [line.line for line in shell_lines(record, [record.trials[0]], Whereabouts(storage="mysql://host/db"))[0]]
    assert any("--storage mysql://host/db" in line for line in lines)


def test_without_reference_networks_no_comparison_is_promised(record: Study) -> None:
    title = shell_lines(record, [record.trials[0]], Whereabouts())[0][2].title
    assert title == "Train it and the reference networks in full, over three seeds, and compare them"
    points, record.manifest["space"]["points"] = record.manifest["space"]["points"], {}
    try:
        title = shell_lines(record, [record.trials[0]], Whereabouts())[0][2].title
    finally:
        record.manifest["space"]["points"] = points
    assert title == "Train it in full, over three seeds, and test it"


def test_weights_that_are_kept_are_exported(record: Study, tmp_path: Path) -> None:
    folder = tmp_path / record.name / "trials" / "00002"
    folder.mkdir(parents=True)
    (folder / RECORD).write_text(json.dumps({}))
    lines = [line.line for line in shell_lines(record, [record.trials[2]], Whereabouts(str(tmp_path)))[0]]
    assert len([line for line in lines if line.startswith("lrnas export")]) == 2
    assert not any("--fresh" in line for line in lines)


def test_own_training_code_gets_no_reproduce_command(record: Study) -> None:
    record.manifest["trainable"] = "mine:train"
    try:
        lines = [line.line for line in shell_lines(record, [record.trials[0]], Whereabouts())[0]]
        assert retrain_line(record, Whereabouts()) is None
    finally:
        record.manifest["trainable"] = None
    assert not any("reproduce" in line for line in lines)
