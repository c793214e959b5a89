"""Commands that read a study load nothing that only training or drawing needs, which would take seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from filled_studies import fill_study

HEAVY = ("torch", "timm", "ray")
FOR_TABLES_AND_FIGURES = ("matplotlib", "pandas", "scipy")
CODE = f"""
import json, sys
from lrnas.cli.main import main

code = main(sys.argv[1:])
found = [name for name in {HEAVY + FOR_TABLES_AND_FIGURES!r} if name in sys.modules]
print(json.dumps([code, found]), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    fill_study(folder, 30)
    return folder


def run(*command: str) -> list[str]:
    """The heavy modules that a command loads."""
    result = subprocess.run([sys.executable, "-c", CODE, *command], capture_output=True, text=True, check=True)
    code, found = json.loads(result.stderr.splitlines()[-1])
    assert not code
    return list(found)


@pytest.mark.parametrize("options", [["front", "s"], ["front", "s", "--json"], ["studies"], ["count", "s:0"]])
def test_a_study_is_shown_without_heavy_packages(options: list[str], studies: Path) -> None:
    assert run(*options, "--studies", str(studies)) == []


def test_a_report_loads_no_training_packages(studies: Path, tmp_path: Path) -> None:
    found = run("report", "s", "--studies", str(studies), "--out", str(tmp_path / "report"))
    assert set(found) <= set(FOR_TABLES_AND_FIGURES)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--space=nim", "unknown space 'nim'; did you mean nin?"),
        ("--recipe=fats", "unknown recipe 'fats'; did you mean fast?"),
        ("--set=learning_rate=0.1", "a recipe has no field 'learning_rate'; did you mean lr?"),
        ("--set=lr=x", "lr must be a number; got 'x'"),
        ("--epochs=0", "epochs must be from 1 to 100000; got 0"),
        ("--sampler=fron", "unknown sampler 'fron'; did you mean front?"),
        ("--objectives=accuracy,mac", "unknown objective 'mac'; did you mean macs?"),
        ("--granularity=x", "granularity must be one of network, stage, layer; got 'x'"),
        ("--data=digit", "unknown data set 'digit'; did you mean digits?"),
        ("--latency-device=gpu", "--latency-device must be cpu or cuda; got 'gpu'"),
        ("--image-size=32x64", "--image-size takes pixels of a side of a square image, up to 4096; got '32x64'"),
        ("--image-size=5000000", "--image-size takes pixels of a side of a square image, up to 4096; got '5000000'"),
    ],
)
def test_wrong_values_of_a_search_are_refused_at_once(option: str, message: str) -> None:
    check_refused(["search", "--space", "nin", "--budget", "3", option], message)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["retrain", "s", "--recipe=ful"], "unknown recipe 'ful'; did you mean full?"),
        (["retrain", "s", "--data=digit"], "unknown data set 'digit'; did you mean digits?"),
        (["reproduce", "nin", "--set=lrr=1"], "a recipe has no field 'lrr'; did you mean lr?"),
        (["reproduce", "nin", "--device=gpu"], "--device takes cpu, cuda or cuda:N; got 'gpu'"),
        (["export", "nin", "--device=gpu"], "--device takes cpu, cuda or cuda:N; got 'gpu'"),
        (["profile", "nin", "--device=gpu"], "--device takes cpu, cuda or cuda:N; got 'gpu'"),
    ],
)
def test_wrong_values_of_other_commands_are_refused_at_once(command: list[str], message: str) -> None:
    check_refused(command, message)


def check_refused(command: list[str], message: str) -> None:
    """Check that a command gives this message, and that it loads nothing heavy for it."""
    result = subprocess.run([sys.executable, "-c", CODE, *command], capture_output=True, text=True, check=True)
    *_, told, facts = result.stderr.splitlines()
    code, found = json.loads(facts)
    assert code == 2 and message in told and found == []
