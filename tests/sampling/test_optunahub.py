"""The packages for OptunaHub: complete, loaded as its users load them, and without lrnas."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import optunahub
import pytest

ROOT = Path(__file__).parents[2] / "package"
PACKAGES = {"samplers/known_cost_front": "FrontSampler", "pruners/known_cost_front": "FrontPruner"}
WITHOUT_LRNAS = """
import sys
for name in ("lrnas", "torch", "timm", "ray"):
    sys.modules[name] = None  # an import fails
import optunahub
module = optunahub.load_local_module(sys.argv[1], registry_root=sys.argv[2])
assert module.__all__ == [sys.argv[3]]
print(getattr(module, sys.argv[3]).__module__)
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_load_without_lrnas(package: str, tmp_path: Path) -> None:
    """A copy with the links resolved, as it is submitted."""
    shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-I", "-c", WITHOUT_LRNAS, package, str(tmp_path), PACKAGES[package]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"optunahub_registry.package.{package.replace('/', '.')}.")


@pytest.mark.parametrize("package", PACKAGES)
def test_examples_run(package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load(name: str) -> object:
        return optunahub.load_local_module(name, registry_root=str(ROOT))  # in place of a download

    monkeypatch.setattr(optunahub, "load_module", load)
    runpy.run_path(str(ROOT / package / "example.py"))
    assert ("weights: 0." if package.startswith("samplers") else "epochs were trained") in capsys.readouterr().out
    page = (ROOT / package / "README.md").read_text(encoding="utf-8")
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    assert blocks
    for block in blocks:
        exec(compile(block.replace("n_trials=40", "n_trials=8"), package, "exec"), {})


@pytest.mark.parametrize("package", PACKAGES)
def test_pages_have_what_the_registry_wants(package: str) -> None:
    page = (ROOT / package / "README.md").read_text(encoding="utf-8")
    _, front, text = page.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in front.splitlines())
    assert fields.keys() == {"author", "title", "description", "tags", "optuna_versions", "license"}
    assert package.split("/")[0].removesuffix("s") in fields["tags"] and fields["license"] == "MIT License"
    assert [line for line in text.splitlines() if line.startswith("## ")][:2] == ["## Abstract", "## APIs"]
    assert (ROOT / package / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")
