"""Settings of a search: the same from Python, from the command line and from a study file."""

import inspect
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_studies import make_finals, make_search

import lrnas
from lrnas.cli.main import main, make_parser
from lrnas.data.names import is_in_files
from lrnas.errors import LrnasError
from lrnas.recipes import get_recipe
from lrnas.searching import search as driver
from lrnas.searching.settings import (
    PLACE,
    SETTINGS,
    InvalidSettings,
    SearchSettings,
    check_sampler,
    gather_settings,
    load_searched,
)
from lrnas.spaces.space import load_space
from lrnas.study.manifest import keep_limits
from lrnas.study.objectives import pick_objectives
from lrnas.study.open import open_study

STUDIES = Path(lrnas.__file__).parent.parent / "studies"
EVERY_SETTING: dict[str, tuple[str, str, Any]] = {
    "space": ("vgg11", '"vgg11"', "vgg11"),
    "budget": ("7", "7", 7),
    "data": ("cifar10", '"cifar10"', "cifar10"),
    "image_size": ("64", "64", 64),
    "recipe": ("paper", '"paper"', "paper"),
    "epochs": ("4", "4", 4),
    "set": ("lr=0.5", '{ lr = "0.5" }', {"lr": "0.5"}),
    "final_epochs": ("30", "30", 30),
    "min_epochs": ("2", "2", 2),
    "start_from": ("/w.pth", '"/w.pth"', "/w.pth"),
    "batch_norm": ("", "false", False),
    "granularity": ("stage", '"stage"', "stage"),
    "divisor": ("4", "4", 4),
    "stem_stride": ("2", "2", 2),
    "objectives": ("accuracy,params", '["accuracy", "params"]', ("accuracy", "params")),
    "latency_device": ("cpu", '"cpu"', "cpu"),
    "latency_batch": ("8", "8", 8),
    "seed": ("3", "3", 3),
    "trainable": ("mine:train", '"mine:train"', "mine:train"),
    "input": ("3x64x64", "[3, 64, 64]", (3, 64, 64)),
    "classes": ("5", "5", 5),
    "sampler": ("tpe", '"tpe"', "tpe"),
    "beat": ("0.6", "0.6", 0.6),
    "max_macs": ("120M", '"120M"', 120_000_000),
    "min_macs": ("1.5e6", "1.5e6", 1_500_000),
    "max_params": ("2k", "2000", 2000),
    "max_latency": ("2.5ms", "2.5", 2.5),
    "warm_start": ("other", '"other"', "other"),
    "finals": ("0.25", "0.25", 0.25),
    "final_seeds": ("5", "5", 5),
    "concurrency": ("2", "2", 2),
    "cpus_per_trial": ("0.5", "0.5", 0.5),
    "gpus_per_trial": ("1", "1", 1.0),
    "trial_timeout": ("600s", "600", 600.0),
    "image_memory": ("0.25", "0.25", 0.25),
    "pack": ("jpeg", '"jpeg"', "jpeg"),
    "name": ("mine", '"mine"', "mine"),
    "studies": ("my studies", '"my studies"', "my studies"),
    "storage": ("sqlite:///x.db", '"sqlite:///x.db"', "sqlite:///x.db"),
    "data_dir": ("images", '"images"', "images"),
    "address": ("head:6379", '"head:6379"', "head:6379"),
}
"""For each setting: a value as an option, the same value in a study file, and as it is read."""


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[SearchSettings]:
    """The settings of every search that is started; no search runs."""
    settings: list[SearchSettings] = []

    def begin(given: SearchSettings, _: object) -> None:
        settings.append(given)
        raise LrnasError("begun")

    monkeypatch.setattr(driver, "_search", begin)
    monkeypatch.setattr("lrnas.cli.search.check_settings", lambda settings: None)  # they need not fit together
    return settings


def test_every_setting_is_an_option_an_argument_and_a_key(searched: list[SearchSettings], tmp_path: Path) -> None:
    assert EVERY_SETTING.keys() == SETTINGS.keys()
    options = []
    for name, (text, _, _) in EVERY_SETTING.items():
        option = f"--{name.replace('_', '-')}"
        options += [option, text] if text else [f"--no-{name.replace('_', '-')}"]
    assert main(["search", *options]) == 2
    file = tmp_path / "study.toml"
    file.write_text("\n".join(f"{name} = {value}" for name, (_, value, _) in EVERY_SETTING.items()))
    assert main(["search", str(file)]) == 2
    with pytest.raises(LrnasError, match="begun"):
        lrnas.search(**{name: value for name, (_, _, value) in EVERY_SETTING.items()})
    for settings in searched:
        assert {name: getattr(settings, name) for name in SETTINGS} == {
            name: value for name, (_, _, value) in EVERY_SETTING.items()
        }
    assert len(searched) == 3


def test_options_win_over_the_study_file(searched: list[SearchSettings], tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text('space = "nin"\nbudget = 20\nepochs = 2\n[set]\nlr = 0.1\nclip = 1.0\n')
    assert main(["search", str(file), "--budget", "50", "--set", "lr=0.2", "--set", "pad=3"]) == 2
    with pytest.raises(LrnasError, match="begun"):
        lrnas.search(str(file), budget=50, set={"lr": "0.2", "pad": "3"})
    for settings in searched:
        assert (settings.space, settings.budget, settings.epochs) == ("nin", 50, 2)
        assert settings.set == {"lr": "0.2", "clip": 1.0, "pad": "3"}
    assert len(searched) == 2


def test_a_space_may_be_named_instead_of_a_study_file(tmp_path: Path) -> None:
    assert gather_settings("timm:resnet18", {"budget": 3}).space == "timm:resnet18"
    file = tmp_path / "space.toml"
    file.write_text('[space]\nbackbone = "nin"\n')
    assert gather_settings(str(file), {"budget": 3}).space == str(file)
    settings = gather_settings("nin", {"budget": 3})
    assert gather_settings(settings, {"budget": "4"}) == gather_settings("nin", {"budget": 4})
    assert gather_settings(file, {"budget": 3}).space == str(file)
    with pytest.raises(LrnasError, match="unknown setting 'bugdet'; did you mean budget"):
        gather_settings(settings, {"bugdet": 4})


def test_only_a_study_file_may_come_with_another_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file.toml"
    file.write_text('[space]\nbackbone = "nin"\n')
    for source in ("nin", str(file)):
        assert main(["search", source, "--space", "vgg11", "--budget", "3"]) == 2
        message = f"a search has one space; got {source} and --space vgg11; give one of them"
        assert capsys.readouterr().err == f"lrnas: {message}\n"
    file.write_text('space = "nin"\nbudget = 3\n')
    assert gather_settings(str(file), {"space": "vgg11"}).space == "vgg11"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('space = "nin"\nbudget = 20\nnum_epochs = 3', "unknown setting in {} 'num_epochs'; did you mean min_"),
        ('space = "nin"\nbudget = "many"', "{}: budget takes a whole number; got 'many'; for example 20"),
        ('space = "nin"\nbudget = true', "{}: budget takes a whole number; got True"),
        ('space = "nin"\nbudget = 2\nbatch_norm = "maybe"', "{}: batch_norm takes True or False; got 'maybe'"),
        ('space = "nin"\nbudget = 2\nlr = 0.2', "{}: lr is a field of the recipe, not a setting; write lr = 0.2 below"),
        ('space = "nin"\nbudget = 2\nbeat = 1.5', "{}: beat takes a number above 0 and up to 1; got 1.5; for"),
        ('space = "nin"\nbudget = 2\nmax_macs = 0', "{}: max_macs takes a number of at least 1; got 0; for example"),
        ('space = "nin"\nbudget = 2\npack = "png"', "{}: pack takes pixels or jpeg; got 'png'; for example jpeg"),
        ('space = "nin"\nbudget = 2\nset = 3', "{}: set takes FIELD=VALUE; got 3; for example lr=0.05"),
        ('space = "nin"', "a search needs a budget; got none; give --budget, or a study file that sets it"),
        ("budget = 2", "a search needs a space; got none"),
        ('space = "nin"\nbudget = 0', "the budget must be at least 1 network; got 0"),
        ("space = nin", "{}: not TOML, "),
        ('space = "nin"\nbudget = ' + 6_000 * "9", "{}: not TOML, a number is too long"),
        ('space = "nin"\nbudget = 1' + 400 * "0", "{}: not TOML, a whole number has more than 64 bits; see studies"),
        ("space = " + 100_000 * "[", "{}: not TOML, a number is too long, or too many brackets are open"),
        (None, "cannot read {}: No such file or directory; give a study file or a space"),
    ],
)  # fmt: skip
def test_a_study_file_that_is_wrong_gets_one_line(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.toml"
    if content is not None:
        file.write_text(content)
    assert main(["search", str(file)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and message.format(file) in err


def test_a_study_is_not_taken_for_a_space(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_search(tmp_path / "s").optuna_study
    folder = str(tmp_path)
    assert main(["search", "s", "--budget", "8", "--studies", folder]) == 2
    told = "got s, a study; continue it with `lrnas search --space nin --data digits --name s --budget 8 --studies "
    assert capsys.readouterr().err.endswith(f"{told}{folder}`\n")
    assert main(["search", "s", "--budget", "1", "--studies", folder]) == 2
    assert " --name s --budget 4 --studies " in capsys.readouterr().err  # as many as it has
    study.set_user_attr("lrnas:budget", 6)
    assert main(["search", "s", "--studies", folder]) == 2
    assert " --name s --budget 6 --studies " in capsys.readouterr().err  # the last one
    study.set_user_attr("lrnas:budget", 4)
    begun = SearchSettings(
        space="nin", budget=4, data="folder:my images", batch_norm=False, set={"lr": 0.1}, objectives="accuracy,params"
    )
    manifest = study.user_attrs["lrnas:manifest"]
    study.set_user_attr("lrnas:manifest", manifest | {"data": "folder:ab12", "settings": begun.to_dict()})
    assert main(["search", "s", "--budget", "8", "--studies", folder]) == 2
    line = shlex.split(capsys.readouterr().err.partition("`lrnas search ")[2].rstrip("`\n"))
    options = make_parser().parse_args(["search", *line])
    given = gather_settings(options.source, {key: value for key, value in vars(options).items() if key in SETTINGS})
    assert given == replace(begun, name="s", budget=8, studies=folder, set={"lr": "0.1"})
    with pytest.raises(InvalidSettings) as caught:
        lrnas.search("s", budget=8, studies=tmp_path)
    call = str(caught.value).partition("`lrnas.search(")[2].removesuffix(")`")
    assert eval(f"SearchSettings({call})") == replace(given, set={"lr": 0.1})
    keep_limits(study, {"max_macs": 45000, "beat": None})  # those that it last had
    own = replace(begun, input="1x8x8", max_macs=223_000_000, beat=0.6).to_dict()
    study.set_user_attr("lrnas:manifest", manifest | {"data": "folder:ab12", "settings": own})
    assert main(["search", "s", "--budget", "8", "--studies", folder]) == 2
    told = capsys.readouterr().err
    assert " --input 1x8x8 " in told and " --max-macs 45000 " in told and "--beat" not in told
    keep_limits(study, {})
    make_finals(open_study("s", studies=tmp_path), {"nin-c3-lr": (0.95,)})  # with 9 epochs
    assert main(["search", "s", "--studies", folder]) == 2
    told = capsys.readouterr().err
    assert " --final-epochs 9 " in told and "--finals" not in told
    for finals, is_told in ((0.3, True), (0, False)):  # finals that exist were not begun with --finals 0
        settings = replace(begun, finals=finals).to_dict()
        study.set_user_attr("lrnas:manifest", manifest | {"data": "folder:ab12", "settings": settings})
        assert main(["search", "s", "--studies", folder]) == 2
        assert ("--finals 0.3" in (told := capsys.readouterr().err), "--finals" in told) == (is_told, is_told)


def test_batch_norm_is_that_of_the_file_of_a_space(tmp_path: Path) -> None:
    vary = '[[space.vary]]\nlayers = ["*"]\nsquare = [0, 1]\n'
    for key, given, expected in (("", None, True), ("", False, False), ("batch_norm = false", None, False)):
        (tmp_path / "own.toml").write_text(f'[space]\nbackbone = "nin"\n{key}\n{vary}')
        settings = SearchSettings(space=str(tmp_path / "own.toml"), budget=1, batch_norm=given)
        assert load_searched(settings).batch_norm is expected
    (tmp_path / "own.toml").write_text(f'[space]\nbackbone = "timm:resnet18"\n{vary}')
    settings = SearchSettings(space=str(tmp_path / "own.toml"), budget=1)
    assert load_searched(settings).batch_norm is None  # its own norms
    with pytest.raises(LrnasError, match="a timm model keeps its own norm; got batch_norm true"):
        load_searched(replace(settings, batch_norm=True))


def test_wrong_names_are_told_before_a_missing_budget(capsys: pytest.CaptureFixture[str]) -> None:
    for options, told in (
        (["--space", "nim", "--data", "folder:small"], "unknown space 'nim'; did you mean nin?"),
        (["--space", "nin", "--data", "digit"], "'digit'; did you mean digits"),
        (["--space", "nin", "--set", "lerning_rate=1"], "no field 'lerning_rate'; did you mean lr?"),
        (["--space", "nin"], "a search needs a budget"),
    ):
        assert main(["search", *options, "--dry-run"]) == 2
        assert told in capsys.readouterr().err


def test_errors_in_python_are_as_clear() -> None:
    for text, value in (("true", True), ("Yes", True), ("False", False), ("no", False)):
        assert gather_settings("nin", {"budget": 3, "batch_norm": text}).batch_norm is value
    for name in ("lr", "learning_rate"):
        with pytest.raises(InvalidSettings, match=rf"^{name} is a field of the recipe, .*; write set={{'lr': 0.3}}$"):
            lrnas.search("nin", budget=20, **{name: 0.3})
    assert "several times" not in (lrnas.search.__doc__ or "")
    settings = gather_settings("nin", {"budget": 3, "max_macs": "3M", "objectives": "accuracy, macs"})
    assert (settings.max_macs, settings.objectives) == (3_000_000, ("accuracy", "macs"))
    with pytest.raises(LrnasError, match=r"unknown setting 'num_epochs'; did you mean min_epochs or epochs\? \("):
        lrnas.search("nin", budget=20, num_epochs=3)
    with pytest.raises(InvalidSettings, match=r"^final_seeds takes a whole number; got 2.5; for example 3$"):
        SearchSettings(space="nin", budget=2, final_seeds=2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match=r"^epochs takes a whole number; got 2.5; for example 20$"):
        lrnas.search("nin", budget=20, epochs=2.5)
    with pytest.raises(LrnasError, match=r"^space takes text or a path or a SearchSettings; got 3; see help"):
        lrnas.search(3, budget=20)
    with pytest.raises(InvalidSettings, match=r"^recipe takes text in quotes; got 3; for example \"nin\"$"):
        lrnas.search("nin", budget=20, recipe=3)
    with pytest.raises(InvalidSettings, match=r"^seed takes a whole number; got None"):
        SearchSettings(space="nin", budget=20, seed=None)
    for name, value in {"input": "64x64", "max_latency": "soon", "cpus_per_trial": "nan", "data_dir": 3}.items():
        with pytest.raises(InvalidSettings, match=f"^{name} takes .*; got {value!r}; for example "):
            gather_settings("nin", {"budget": 3, name: value})


def test_python_explains_every_argument() -> None:
    signature = inspect.signature(lrnas.search)
    assert list(signature.parameters) == [*SETTINGS, "events", "progress"]
    assert signature.parameters["budget"].default is inspect.Parameter.empty
    assert signature.parameters["objectives"].default == ("accuracy", "macs")
    types = {name: one.annotation for name, one in signature.parameters.items()}
    assert types["objectives"] == "Sequence[str] | str" and types["max_macs"] == "int | str | None"
    assert types["studies"] == "str | Path" and types["data"] == "str | None" and types["budget"] == "int | str"
    text = inspect.getdoc(lrnas.search) or ""
    for name in signature.parameters:
        assert f"\n    {name}: " in text
    assert (
        "Round filter counts to multiples of N; 1: no rounding (default: set by the space)." in text
        and "--" not in text
    )
    assert "latency_batch: Measure latency for batches of N images (default: 1)." in text


def test_help_has_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "Put batch norm into every network (default: set by the file of the space, else yes; models" in words
    assert "latency (default: accuracy,macs)." in words


def test_a_manifest_has_the_given_settings_without_places() -> None:
    given = {name: value for name, (_, _, value) in EVERY_SETTING.items()}
    recorded = json.loads(json.dumps(gather_settings(None, given).to_dict()))
    assert recorded.keys() == {name for name, item in SETTINGS.items() if item.group != PLACE}
    assert recorded["input"] == [3, 64, 64] and recorded["set"] == {"lr": "0.5"}
    plain = gather_settings("nin", {"budget": 20, "seed": 0, "trainable": inspect.getdoc})
    assert plain.to_dict() == {"space": "nin", "budget": 20, "trainable": "inspect:getdoc"}


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.toml")), ids=lambda file: file.stem)
def test_presets_can_be_searched(file: Path) -> None:
    settings = gather_settings(str(file), {})
    shape = {name: getattr(settings, name) for name in ("granularity", "divisor", "stem_stride")}
    space = load_space(settings.space, **shape)
    assert space.dimension > 10 and is_in_files(settings.data or "") is False
    assert get_recipe(settings.recipe, space.backbones[0], 32, 45_000, settings.set).schedule == "one_cycle"
    cost = "latency" if "latency" in file.stem else "macs"
    assert [goal.name for goal in pick_objectives(settings.objectives)] == ["accuracy", cost]
    check_sampler(settings.sampler)


def test_there_are_presets() -> None:
    names = {file.stem for file in STUDIES.glob("*.toml")}
    assert names >= {"demo", "nin-cifar10", "vgg11-cifar10", "googlenet-cifar10", "resnet18-cifar10"}
    assert "lrnas search studies/demo.toml" in (STUDIES.parent / "Makefile").read_text()
    demo = gather_settings(str(STUDIES / "demo.toml"), {})
    assert (demo.space, demo.data, demo.max_macs) == ("nin", "digits", 8_000_000)


def test_the_study_file_in_the_docs_is_understood(tmp_path: Path) -> None:
    page = (STUDIES.parent / "docs" / "search.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    file = tmp_path / "mine.toml"
    file.write_text(text)
    settings = gather_settings(str(file), {})
    assert (settings.max_macs, settings.set) == (120_000_000, {"lr": 0.05})
