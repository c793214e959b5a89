"""Functions for Python have the names and the behaviour of the commands."""

import inspect
from argparse import _SubParsersAction
from pathlib import Path

import pytest
from filled_studies import fill_study

import lrnas
from lrnas.cli.main import make_parser

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
    for arguments, message in (
        (("s", "paretto"), "unknown picture 'paretto'; did you mean pareto?"),
        (("t",), "study"),
    ):
        with pytest.raises(lrnas.LrnasError, match=message):
            lrnas.plot(*arguments, studies=tmp_path)


def test_profile_takes_trials_architectures_and_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lrnas.profiling import profile as module

    monkeypatch.setattr(module, "measure", lambda calls, device, **more: [0.001] * len(calls))
    trial = fill_study(tmp_path, 2).trials[1]
    for networks in (trial, [trial], "s:1", trial.architecture, [("nin-c3", trial.architecture)]):
        options = {} if networks in (trial, [trial], "s:1") else {"size": 32}
        result = lrnas.profile(networks, layers=False, training=False, batch=1, studies=tmp_path, **options)
        base, found = result.networks
        assert (base.name, base.macs) == ("nin, batch norm", 222_486_528)
        assert (found.input_size, found.macs) == (32, trial.macs)
