"""Functions for Python have the names and the behaviour of the commands."""

import inspect
import random
import re
from argparse import _SubParsersAction
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from filled_studies import fill_study
from retrainings import some_finals

import lrnas
from lrnas.cli.main import main, make_parser
from lrnas.errors import OPTIONS, LrnasError
from lrnas.reporting.report import make_report
from lrnas.reporting.write import WrittenReport, _write_figures

ONLY_IN_PYTHON = {
    "search": {"space", "events", "progress"},
    "retrain": {"study", "events", "progress"},
    "report": {"study"},
    "plot": {"study", "picture"},
    "profile": {"networks"},
    "export": {"source", "format"},
}
"""Arguments that are no options: what is positional on the command line, and how progress is shown."""
ONLY_AS_OPTIONS = {
    "search": {"dry_run", "space"},
    "retrain": {"dry_run"},
    "profile": {"plot", "check_table", "number", "data_dir"},
}
"""Options that are other functions in Python."""


@pytest.mark.parametrize("name", ONLY_IN_PYTHON)
def test_arguments_have_the_names_of_options(name: str) -> None:
    (commands,) = (action for action in make_parser()._actions if isinstance(action, _SubParsersAction))
    options = {
        option[2:].removeprefix("no-").replace("-", "_")
        for option in commands.choices[name]._option_string_actions
        if option.startswith("--")
    }
    arguments = inspect.signature(getattr(lrnas, name)).parameters
    assert all(one.kind is not one.VAR_KEYWORD for one in arguments.values())
    wanted = options - {"help", "json"} - ONLY_AS_OPTIONS.get(name, set())
    assert set(arguments) - ONLY_IN_PYTHON[name] == wanted - ONLY_IN_PYTHON[name]


def test_a_plan_takes_the_arguments_of_a_retraining() -> None:
    plan, train = (inspect.signature(one).parameters for one in (lrnas.plan_retraining, lrnas.retrain))
    assert plan.keys() < train.keys()
    assert all(plan[name].default == train[name].default for name in plan)


def test_messages_know_all_options() -> None:
    (commands,) = (action for action in make_parser()._actions if isinstance(action, _SubParsersAction))
    found = {option for command in commands.choices.values() for option in command._option_string_actions}
    names = {option.removeprefix("--").removeprefix("no-") for option in found if option.startswith("--")}
    assert names - {"help", "json"} == OPTIONS


def test_report_and_plot(tmp_path: Path) -> None:
    study = fill_study(tmp_path, 3)
    written = lrnas.report([study, study])
    assert written.page == tmp_path / "s" / "report" / "report.html" and written.page.exists()
    assert tmp_path / "s" / "report" / "front.png" in written.figures
    assert written.studies == (study,)
    figure = lrnas.plot(study, "curves", out=tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").exists() and figure._repr_png_().startswith(b"\x89PNG")
    before = sorted(tmp_path.rglob("*"))
    lrnas.plot("s", axis="params", studies=tmp_path)
    assert sorted(tmp_path.rglob("*")) == before, "a figure without a file"
    with pytest.raises(lrnas.LrnasError, match="unknown study 's'; there is no folder nowhere; give `studies`"):
        lrnas.open_study("s", studies="nowhere")
    for arguments, message in (
        (("s", "paretto"), "unknown picture 'paretto'; did you mean pareto?"),
        (("t",), "study"),
    ):
        with pytest.raises(lrnas.LrnasError, match=message):
            lrnas.plot(*arguments, studies=tmp_path)


def test_the_figure_of_tested_networks_is_not_called_like_finals(tmp_path: Path) -> None:
    study = fill_study(tmp_path, 3)
    files = _write_figures(make_report([study], retrained=[some_finals(study)]), tmp_path)
    assert {"tested.png", "tested.svg"} < {file.name for file in files} and all(
        "finals" not in file.name for file in files
    )


def test_a_report_removes_the_figures_that_only_an_earlier_one_had(tmp_path: Path) -> None:
    study, folder = fill_study(tmp_path, 3), tmp_path / "out"
    folder.mkdir()
    for name in ("tested.png", "tested.svg", "finals.png", "finals.svg", "mine.png"):
        (folder / name).touch()
    lrnas.report(study, out=folder)
    assert (folder / "tested.png").exists()  # no report wrote it
    written = lrnas.report(study, out=folder)
    assert set(folder.iterdir()) == {written.page, folder / "mine.png", *written.figures}


def test_profile_takes_trials_architectures_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lrnas.profiling import profile as module

    monkeypatch.setattr(module, "measure", lambda calls, device, **more: [0.001] * len(calls))
    trial = fill_study(tmp_path, 2).trials[1]
    for networks in (trial, [trial], "s:1", trial.architecture, [("nin-c3", trial.architecture)]):
        options = {} if networks in (trial, [trial], "s:1") else {"input": 32}
        result = lrnas.profile(networks, layers=False, training=False, batch=1, studies=tmp_path, **options)
        base, found = result.networks
        assert (base.name, base.macs) == ("nin, batch norm", 222_486_528)
        assert (found.input_size, found.macs) == (32, trial.macs)
    for network in ("lrnas-nin-a", "lrnas_nin_a"):
        result = lrnas.profile([network, "nin-c3"], layers=False, training=False, batch=1)
        assert {one.input_size for one in result.networks} == {32}, "as it was trained, not the 30 pixels of the paper"


NETWORK = lrnas.get_point("nin-c3").architecture
SPACE = lrnas.load_space("nin")
WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("accelerate", (3,), {}, "model takes a model of PyTorch; got 3"),
    (
        "canonical_id",
        ("nin",),
        {},
        "takes an Architecture; got 'nin'; for a network of the paper, give lrnas.get_point('nin').architecture",
    ),
    ("canonical_id", (3,), {}, "architecture takes an Architecture; got 3; see help(lrnas.canonical_id)"),
    ("retrain", ("s",), {"trials": 3}, "a whole number or a Trial; got 3; put it into a list"),
    ("plan_retraining", ("s",), {"seeds": "two"}, "seeds takes a whole number; got 'two'"),
    ("canonical_id", (NETWORK,), {"input_size": -1}, "the input size must be a whole number above 0; got -1"),
    ("compare_with_references", (["x"],), {}, "finals takes a list, each of them a Final; got ['x']"),
    ("convert", (NETWORK,), {}, "model takes a model of PyTorch; got Architecture("),
    ("convert", (torch.nn.Conv2d(1, 1, 3), "half"), {}, "allocation takes an Allocation or a mapping; got 'half'"),
    (
        "convert",
        (torch.nn.Conv2d(1, 1, 3), {"*": "lr"}),
        {},
        "allocation takes Allocations by path; got '*': 'lr'; see",
    ),
    ("convert", (torch.nn.Conv2d(1, 1, 3),), {"init": "pretraind"}, "must be one of pretrained, "),
    ("convert", (torch.nn.Conv2d(1, 1, 3),), {"divisor": "8"}, "divisor takes a whole number; got '8'"),
    ("count_model", ("nin",), {}, "model takes a model of PyTorch; got 'nin'"),
    ("count_model", (torch.nn.Conv2d(3, 1, 3), "32"), {}, "input_size takes a whole number or a list"),
    ("count_model", (torch.nn.Conv2d(3, 1, 3), -1), {}, "the model cannot be counted with an input of 3×-1×-1"),
    ("create_model", (), {}, "lrnas.create_model needs architecture; got none; see help(lrnas.create_model)"),
    ("create_model", (NETWORK, -1), {}, "the number of classes must be at least 0; got -1"),
    ("create_model", (NETWORK,), {"classes": 10}, "unexpected keyword argument 'classes'; did you mean num_classes?"),
    ("create_model", (NETWORK,), {"colour": 1}, "unexpected keyword argument 'colour'; leave this argument out"),
    ("deployed_form", (None,), {}, "architecture takes an Architecture; got None"),
    ("distributions_of", ("nin",), {}, "space takes a SearchSpace; got 'nin'"),
    ("estimate", (3,), {"budget": 2}, "space takes text or a path or a SearchSettings; got 3"),
    ("estimate", ("nin",), {}, "a search needs a budget; got none; give `budget`, or a study file"),
    ("estimate", ("nin",), {"budget": 2, "seed": -1}, "the seed must be at least 0; got -1"),
    ("export", (3,), {}, "source takes text or a path or a Trial; got 3"),
    ("export", (torch.nn.Conv2d(1, 1, 3),), {}, "with `architecture`, as examples/convert_and_export.py does"),
    ("export", ("nin", "onxx"), {}, "unknown format 'onxx'; did you mean onnx?"),
    ("export", ("nin", 3), {}, "format takes 'timm' or 'onnx' or 'torch-export'; got 3"),
    ("export", ("nin",), {"batch": "one"}, "batch takes a whole number; got 'one'"),
    ("export", ("nin",), {"fuse": "yes"}, "fuse takes True or False; got 'yes'"),
    ("final_front", ({"x": 1},), {}, "finals takes a list, each of them a Final; got {'x': 1}"),
    ("fused", (None,), {}, "model takes a model of PyTorch; got None"),
    ("get_point", (3,), {}, "name takes text; got 3"),
    ("initialise", (None,), {}, "model takes a model of PyTorch; got None"),
    ("judge", ("s@fast",), {}, "finals takes a list, each of them a Final; got 's@fast'; see help(lrnas.judge)"),
    ("load_model", (NETWORK,), {}, "source takes text or a path or a Trial; got Architecture("),
    ("load_space", (3,), {}, "source takes text; got 3"),
    ("make_plan", (lrnas.get_point("nin-c3"),), {}, "got <Point nin-c3: published 143,093,450 MACs, "),
    ("make_plan", (lrnas.get_point("nin-c3"),), {}, "; give its .architecture"),
    ("make_plan", (NETWORK, 32, 10, 3, True), {}, "lrnas.make_plan takes at most 4 arguments without a name; got 5"),
    ("make_plan", (NETWORK,), {"architecture": NETWORK}, "lrnas.make_plan takes architecture once; got it twice"),
    ("make_plan", (NETWORK,), {"num_classes": "ten"}, "num_classes takes a whole number or None; got 'ten'"),
    ("open_study", (3,), {}, "name takes text or a Study or None; got 3"),
    ("open_study", ("s",), {"folder": "x"}, "unknown argument of lrnas.open_study 'folder'; known: name, studies"),
    ("plot", (None, 3), {}, "picture takes 'pareto' or 'history' or 'allocation' or 'curves'; got 3"),
    ("profile", (3,), {}, "a network is a trial, an Architecture, text, or a name and an Architecture; got 3"),
    ("profile", ([],), {}, "at least one network is needed to measure times; got none"),
    ("profile", ("nin",), {"threads": -1}, "the number of threads must be at least 1; got -1"),
    ("profile", ("nin",), {"batch": 0}, "a batch must have at least one image; got 0"),
    ("read_retraining", ("s",), {}, "study takes a Study; got 's'"),
    ("read_level", (None,), {}, "search takes a Study; got None"),
    ("report", ([],), {}, "a report needs a study; got none"),
    ("report", (3,), {}, "study takes text or a Study or a list"),
    ("retrain", ("s",), {"num_epochs": 3}, "unknown argument of lrnas.retrain 'num_epochs'; did you mean epochs?"),
    ("search", ("nin",), {}, "a search needs a budget; got none; give `budget`, or a study file"),
    ("search", ("nin",), {"budget": 2, "num_epochs": 1}, "did you mean min_epochs or epochs"),
    ("search", ("nin",), {"budget": 2, "progress": "no"}, "progress takes True or False; got 'no'"),
    ("search", ("nin",), {"budget": 2, "beat": 0.5, "sampler": "tpe"}, "`beat` needs the sampler front; got `sampler`"),
    (
        "search",
        ("nin",),
        {"budget": 2, "set": ["lr=0.05"]},
        "set takes a mapping; got ['lr=0.05']; for example {\"lr\": 0",
    ),
    ("search", ("nin",), {"budget": [2]}, "budget takes a whole number; got [2]; for example 20"),
    ("search", ("nin",), {"budget": 2, "trainable": torch.nn.Conv2d(1, 1, 3)}, "must be a function or its name; got C"),
]
"""Function, arguments, and a part of the error."""


@pytest.mark.parametrize(("name", "values", "named", "message"), WRONG, ids=lambda one: str(one)[:20])
def test_wrong_arguments_are_refused_in_one_line(
    name: str, values: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(lrnas.LrnasError, match=re.escape(message)) as caught:
        getattr(lrnas, name)(*values, **named)
    assert "\n" not in str(caught.value) and "--" not in str(caught.value) and len(str(caught.value)) < 300


def test_wrong_arguments_about_a_study(tmp_path: Path) -> None:
    study = fill_study(tmp_path, 3)
    calls: dict[str, Callable[[], object]] = {
        "unknown argument of lrnas.Trial.load 'device' (see help(lrnas.Trial.load))": lambda: study.trials[0].load(
            device="cuda"  # type: ignore[call-arg]
        ),
        "seeds takes a whole number; got 'two'; see help(lrnas.retrain)": lambda: lrnas.retrain(study, seeds="two"),  # type: ignore[arg-type]
        "trials takes a list, each of them a whole number or a Trial; got 'all'": lambda: lrnas.retrain(
            study,
            trials="all",  # type: ignore[arg-type]
        ),
        "the number of seeds must be at least 1; got -1": lambda: lrnas.retrain(study, seeds=-1),
        "trial_timeout takes seconds above 0; got -1": lambda: lrnas.retrain(study, trial_timeout=-1),
        "memory for images must be from 0 to 1; got 2": lambda: lrnas.retrain(study, data="cifar10", image_memory=2),
        "packed as pixels or jpeg; got `pack` png": lambda: lrnas.retrain(study, data="cifar10", pack="png"),
        "accuracy, macs>; give lrnas.read_retraining(study), or lrnas.read_level(study)": lambda: lrnas.judge(study),  # type: ignore[arg-type]
        'yet; got no name; begin with lrnas.search("nin", budget=20)': lambda: lrnas.open_study(
            studies=tmp_path / "no"
        ),
        "got <Study s: nin on cifar10, accuracy, macs>; give for example study.best()": lambda: lrnas.profile(study),  # type: ignore[arg-type]
        "level takes text or None; got 3; see help(lrnas.Study.front)": lambda: study.front(level=3),  # type: ignore[arg-type]
        "lrnas.Study.best takes at most 0 arguments without a name; got 1": lambda: study.best(10_000_000),  # type: ignore[call-arg,misc]
        "unknown argument of lrnas.Study.best 'max_mac'; did you mean max_macs": lambda: study.best(max_mac=1),  # type: ignore[call-arg]
        "unknown argument of lrnas.Trial.export 'file'": lambda: study.trials[1].export(file="x"),  # type: ignore[call-arg]
        "they were deleted, or are on another machine); only networks whose training was completed have them; name "
        "another trial": study.trials[1].load,
        "name another trial, or add `fresh=True` for random weights": lambda: lrnas.export(study.trials[1]),
        "`axis` must be one of macs, params for these studies; got 'mac'": lambda: lrnas.plot(study, axis="mac"),
        "params takes a mapping; got 'x'; see help(lrnas.SearchSpace.architecture)": lambda: SPACE.architecture("x"),  # type: ignore[arg-type]
        "lrnas.SearchSpace.architecture takes at most 1 argument without a name; got 2": lambda: SPACE.architecture(
            {},
            3,  # type: ignore[call-arg]
        ),
        "lrnas.SearchSpace.params_of needs architecture; got none": lambda: SPACE.params_of(),  # type: ignore[call-arg]
        "architecture takes an Architecture; got 'nin'": lambda: SPACE.params_of("nin"),  # type: ignore[arg-type]
        "chance takes a Random; got 3; see help(lrnas.SearchSpace.draw)": lambda: SPACE.draw(3),  # type: ignore[arg-type]
        "not a text file; give a JSON file": lambda: lrnas.Architecture.load(3),  # type: ignore[arg-type]
        "unknown argument of lrnas.Allocation.composite 'vert'; did you mean vertical": lambda: (
            lrnas.Allocation.composite(vert=0.5)  # type: ignore[call-arg]
        ),
        "groups must be FilterGroups; got 3": lambda: lrnas.Allocation("composite", 3),  # type: ignore[arg-type]
    }
    for message, call in calls.items():
        with pytest.raises(lrnas.LrnasError, match=re.escape(message)) as caught:
            call()
        assert "\n" not in str(caught.value)
    with pytest.raises(lrnas.LrnasError, match="or add `fresh=True` for random weights"):
        study.trials[1].export()
    assert study.best(max_macs=1e9) == study.best()
    written = study.trials[1].export(fresh=True, data="digits", device=torch.device("cpu"), out=tmp_path / "made")
    assert written.check.same_class == written.check.number
    with pytest.raises(lrnas.LrnasError, match=r"name another trial$"):  # `load` has no argument for random weights
        study.trials[1].load()


def test_every_public_function_checks_its_arguments() -> None:
    names = [name for name in lrnas.__all__ if inspect.isfunction(getattr(lrnas, name))]
    assert set(names) == {name for name, *_ in WRONG} | {"retrain"}
    assert [name for name in names if "checked" not in getattr(lrnas, name).__code__.co_qualname] == []


def test_messages_name_options_in_commands_and_arguments_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    from lrnas._messages import logger, show_messages

    error = lrnas.LrnasError("lower --image-size, or see `lrnas search --help` (a--b)")
    assert str(error) == "lower `image_size`, or see `lrnas search --help` (a--b)"
    assert str(lrnas.LrnasError("add --force, or --set lr=…")) == 'add `force=True`, or `set={"lr": …}`'
    assert (
        str(lrnas.LrnasError("try --no-points, or `lrnas x --no-points`"))
        == "try `points=False`, or `lrnas x --no-points`"
    )
    path = "my --photos --data/2024 --epochs-1"
    assert (
        str(lrnas.LrnasError(f"{path} is no folder; give another --data"))
        == f"{path} is no folder; give another `data`"
    )
    show_messages()
    logger.info("%s or lower --final-epochs", "raise --budget")
    assert capsys.readouterr().err == "raise `budget` or lower `final_epochs`\n"
    assert main(["search", "--space", "nin", "--budget", "2", "--beat", "0.5", "--sampler", "tpe"]) == 2
    assert "--beat needs the sampler front; got --sampler tpe" in capsys.readouterr().err


class Batches:
    """Batches that are read by their numbers, as those of a data set of torch."""

    def __getitem__(self, number: int) -> torch.Tensor:
        if number == 2:
            raise IndexError
        return torch.rand(2, 3, 32, 32)


def test_values_that_are_as_good_as_the_annotated_ones_are_accepted() -> None:
    network = lrnas.Architecture("nin")
    assert lrnas.make_plan(network, np.int64(32), deployed=np.True_).cost == lrnas.make_plan(network, 32).cost
    model = lrnas.create_model(network, np.int64(10))
    assert lrnas.count_model(model, [3, 32, 32]) == lrnas.count_model(model, 32)
    lrnas.convert(
        model, lrnas.Allocation.composite(vertical=0.5, horizontal=0.5), init="pretrained", calibration=Batches()
    )


def test_a_point_of_a_space_is_drawn() -> None:
    assert SPACE.architecture(SPACE.draw(chance=random.Random(0))).backbone in SPACE.backbones


def test_objects_of_optuna_are_not_taken_for_those_of_lrnas() -> None:
    study = optuna.create_study()
    for function in (lrnas.read_retraining, lrnas.report, lrnas.compare_with_references):
        with pytest.raises(LrnasError, match="takes "):
            function(study)


def test_a_model_has_the_classes_of_its_backbone() -> None:
    for backbone, number in {"nin": 10, "vgg11": 1000, "timm:resnet18": 1000}.items():
        network = lrnas.Architecture(backbone)
        model = lrnas.create_model(network, device="meta")
        assert model.num_classes == number and f"{number} classes" in network._repr_html_()


def test_what_is_unknown_is_a_type_error_as_in_python() -> None:
    with pytest.raises(TypeError, match=r"unknown argument of lrnas\.open_study 'studys'; did you mean studies"):
        lrnas.open_study("s", studys="x")
    with pytest.raises(LrnasError, match="'classes'; did you mean num_classes"):
        lrnas.create_model(lrnas.Architecture("timm:resnet18"), classes=10)


def test_a_report_links_to_its_page_in_a_notebook(tmp_path: Path) -> None:
    study = fill_study(tmp_path, 3)
    written = WrittenReport(Path("a & b/s.html"), (), make_report([study]), (study,))
    assert '<a href="a &amp; b/s.html">a &amp; b/s.html</a>' in written._repr_html_()
    assert repr(written) == "<WrittenReport a & b/s.html, 0 figures>"
