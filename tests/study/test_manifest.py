"""Manifests that were damaged, for example by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_studies import SPACE, make_search

from lrnas.cli.main import main
from lrnas.reporting.report import make_report
from lrnas.study.manifest import MANIFEST, StudyError, check_manifest, read_manifest

WRONG = (None, True, -1, 0.5, float("nan"), 10**30, "", "x", [], ["x"], [None], {}, {"x": 1})
"""Values that at least one kind of entry must refuse."""


def damaged(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Copies of a table without each of its keys, and with each wrong value in place of each value, also in tables."""
    for key, value in table.items():
        yield {name: other for name, other in table.items() if name != key}
        yield from ({**table, key: wrong} for wrong in WRONG)
        if isinstance(value, dict):
            yield from ({**table, key: inner} for inner in damaged(value))


def test_what_is_accepted_can_be_reported() -> None:
    study = make_search()
    space = {**SPACE.to_dict(), "parameters": [], "groups": []}
    space |= {part: dict(list(space[part].items())[:1]) for part in ("points", "seeds")}
    whole: dict[str, Any] = {**study.manifest, "space": space}
    messages: list[str] = []
    for manifest in (whole, *damaged(whole), *WRONG):
        study.optuna_study.set_user_attr(MANIFEST, manifest)
        try:
            study.manifest = read_manifest(study.optuna_study)
        except StudyError as error:
            messages += str(error).splitlines()
        else:
            assert not study.manifest or make_report([study]).to_dict()["title"] == "s"
        assert not messages or manifest is not whole
    assert len(messages) > 500
    assert all(
        line.startswith("the manifest of s is damaged: ") or "begun with lrnas 0.1.0" in line for line in messages
    )


CHANGES = (
    ({"space": "nin"}, "space must be a table; got 'nin'"),
    ({"objectives": ["accuracy", "speed"]}, "unknown objective 'speed'"),
    ({"recipe": {"epochs": "many"}}, "epochs must be a whole number; got 'many'"),
    ({"reference": {"macs": 0}}, "macs must be a number above 0; got 0"),
    ({"image_size": None}, "image_size must be a whole number from 1; got None"),
    ({"num_images": [325]}, "num_images must be a list of three whole numbers; got [325]"),
)


def test_every_command_tells_what_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = make_search(tmp_path / "s")
    search = ["search", "--space", "nin", "--data", "digits", "--budget", "4", "--name", "s"]
    for change, message in CHANGES:
        study.optuna_study.set_user_attr(MANIFEST, {**study.manifest, **change})
        for command in (["front", "s"], ["report", "s"], search):
            assert main([*command, "--studies", str(tmp_path)]) == 2
            out, err = capsys.readouterr()
            assert out == "" and f"lrnas: the manifest of s is damaged: {message}" in err
            assert err.splitlines()[-1].endswith("; restore the study from a copy, or begin another")


def test_what_follows_from_a_changed_setting_is_not_told() -> None:
    study = make_search()
    timed = {"device": "cpu", "hardware": "a" * 80, "batch": 1, "factor": 1.0}
    begun = {**study.manifest, "settings": {"objectives": ["accuracy", "latency"]}, "latency": timed}
    begun |= {"objectives": ["accuracy", "latency"], "reference": {"macs": 1, "params": 1, "latency": 3.8}}
    study.optuna_study.set_user_attr(MANIFEST, begun)

    def told(**changes: Any) -> str:
        with pytest.raises(StudyError) as caught:
            check_manifest(study.optuna_study, {**begun, **changes})
        return str(caught.value).partition(": ")[2].partition("; give the earlier")[0]

    without = {key: value for key, value in begun.items() if key != "latency"}
    with pytest.raises(StudyError) as caught:
        check_manifest(
            study.optuna_study,
            {**without, "settings": {}, "objectives": ["accuracy", "macs"], "reference": {"macs": 1, "params": 1}},
        )
    change = "`objectives` was accuracy,latency, now accuracy,macs"
    assert str(caught.value) == f"s was begun with other settings: {change}; give the earlier ones, or another `name`"
    batch = told(settings={**begun["settings"], "latency_batch": 8}, latency={**timed, "batch": 8})
    assert batch == "`latency_batch` was 1, now 8"
    start = told(settings={**begun["settings"], "start_from": "b.pth"}, start_from="0123")
    assert start == "`start_from` was not given, now 'b.pth'"
    assert told(latency={**timed, "hardware": "b"}) == f"latency.hardware was '{'a' * 59}…, now 'b'"
    images = told(data="others", image_size=99, recipe={**begun["recipe"], "lr": 9.0})
    assert images == "the images were those of digits, now others"


def test_fields_of_a_recipe_that_are_newer_than_a_study_have_their_defaults() -> None:
    study = make_search()
    recipe = {key: value for key, value in study.manifest["recipe"].items() if key != "early_crop"}
    study.optuna_study.set_user_attr(MANIFEST, {**study.manifest, "recipe": recipe})

    def check(crop: int) -> object:
        return check_manifest(study.optuna_study, {**study.manifest, "recipe": {**recipe, "early_crop": crop}})

    assert check(0)
    with pytest.raises(StudyError, match=r"early_crop.* was 0, now 24"):
        check(24)
