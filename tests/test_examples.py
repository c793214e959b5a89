"""The scripts in examples/ run as they are."""

import subprocess
import sys
from pathlib import Path

import pytest

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
@pytest.mark.ci
@pytest.mark.examples
@pytest.mark.parametrize("name", ARGUMENTS)
def test_example(name: str, tmp_path: Path) -> None:
    arguments = [argument.format(folder=tmp_path) for argument in ARGUMENTS[name]]
    done = subprocess.run([sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert PRINTED[name] in done.stdout
