"""The scripts and the notebook in examples/ run as they are."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from notebooks import run_notebook

EXAMPLES = Path(__file__).parent.parent / "examples"
ARGUMENTS = {
    "own_images.py": ["--folder", "{folder}/bars", "--studies", "{folder}/studies", "--budget", "3"],
    "own_training.py": ["--budget", "2", "--studies", "{folder}/studies"],
    "convert_and_export.py": ["--out", "{folder}/export"],
    "sampler_in_optuna.py": ["--trials", "12"],
}
PRINTED = {
    "own_images.py": "MACs",
    "own_training.py": "MACs",
    "convert_and_export.py": "model.onnx",
    "sampler_in_optuna.py": "MACs",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(ARGUMENTS)


@pytest.mark.slow
@pytest.mark.examples
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ci] * (name == "own_images.py")) for name in ARGUMENTS]
)
def test_example(name: str, tmp_path: Path) -> None:
    arguments = [argument.format(folder=tmp_path) for argument in ARGUMENTS[name]]
    done = subprocess.run([sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert PRINTED[name] in done.stdout


def test_the_notebook_is_executed() -> None:
    """Its outputs are complete, and name no folder of the machine that made them."""
    text = (EXAMPLES / "first_search.ipynb").read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells) and str(Path.home()) not in text and "/tmp" not in text


@pytest.mark.slow
@pytest.mark.examples
def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell shows results of the same kinds as those that are stored."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "first_search.ipynb").read_text(encoding="utf-8"))
    stored = [cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [_kinds(outputs) for outputs in run_notebook(notebook)] == [_kinds(outputs) for outputs in stored]


def _kinds(outputs: list[dict[str, Any]]) -> set[str]:
    """Types of data that a cell shows; messages are not among them."""
    return {kind for output in outputs for kind in output.get("data", {})}
