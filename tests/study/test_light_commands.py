"""Commands that read a study: they load nothing that only training or drawing needs, and answer fast."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from filled_studies import fill_study

HEAVY = ("torch", "timm", "ray")
FOR_TABLES_AND_FIGURES = ("matplotlib", "pandas", "scipy")
CODE = f"""
import json, sys, time
from lrnas.cli.main import main

code = main(sys.argv[1:])
found = [name for name in {HEAVY + FOR_TABLES_AND_FIGURES!r} if name in sys.modules]
print(json.dumps([code, found, time.process_time()]), file=sys.stderr)
"""
MAX_SECONDS = 2.4
"""Processor time; 1 s on a machine that has nothing else to do, and twice as much on one that is busy."""


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    fill_study(folder, 200)
    return folder


def run(*command: str) -> tuple[list[str], float]:
    """The heavy modules that a command loads, and its processor time."""
    result = subprocess.run([sys.executable, "-c", CODE, *command], capture_output=True, text=True, check=True)
    code, found, seconds = json.loads(result.stderr.splitlines()[-1])
    assert not code
    return found, seconds


@pytest.mark.parametrize("options", [["front", "s"], ["front", "s", "--json"], ["studies"]])
def test_a_study_is_shown_fast(options: list[str], studies: Path) -> None:
    found, seconds = run(*options, "--studies", str(studies))
    assert found == [] and seconds < MAX_SECONDS


def test_a_report_loads_no_training_packages(studies: Path, tmp_path: Path) -> None:
    found, _ = run("report", "s", "--studies", str(studies), "--out", str(tmp_path / "report"))
    assert set(found) <= set(FOR_TABLES_AND_FIGURES)
