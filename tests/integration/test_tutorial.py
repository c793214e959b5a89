"""The tutorial, run like a reader would: every block of commands and of Python, in order, in one folder."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
VARIES = re.compile(r"(nin|lr-|dense-|shapes:|\d+/\d+ |\{)")
"""Start of lines about single networks: which ones are on the front, and their outputs, may vary."""


@dataclass(frozen=True)
class Step:
    """A block of code, and the output that the tutorial shows below it."""

    language: str
    code: str
    shown: tuple[str, ...]


def read_steps(text: str) -> Iterator[Step]:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for (language, code), (following, lines) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        assert language in ("sh", "python", "text"), f"a block of {language} is neither run nor shown"
        if language != "text":
            yield Step(language, code, tuple(lines.splitlines()) if following == "text" else ())


def run(step: Step, folder: Path) -> str:
    """Run a step, which must succeed; returns its output."""
    command = ["bash", "-euo", "pipefail", "-c"] if step.language == "sh" else [sys.executable, "-c"]
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    wide = {"COLUMNS": "200"}
    result = subprocess.run(
        [*command, step.code], cwd=folder, env=os.environ | path | wide, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, f"{step.code}\n{result.stdout}\n{result.stderr}"
    return result.stderr + result.stdout


def as_pattern(line: str) -> str:
    """Pattern of lines that are equal except for numbers; … matches anything."""
    words = " ".join(line.split())
    parts = re.split(r"(\d[\d.,]*(?:e[-+]?\d+)?|…| )", words)
    kinds = {"…": ".*", " ": r"\s+", "thread": "threads?"}
    return "".join(
        kinds.get(part) or (r"\d[\d.,]*(e[-+]?\d+)?" if part[:1].isdigit() else re.escape(part)) for part in parts
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_processes_left")
def test_every_step(tmp_path: Path) -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    outputs = {}
    for step in read_steps(text):
        outputs[step.code] = output = run(step, tmp_path)
        found = [line.strip() for line in output.splitlines()]
        found += [f"{line} {following}" for line, following in pairwise(found)]  # a long path may have broken one
        shown = [line.strip() for line in step.shown if not VARIES.match(line) and line.strip() != "…"]
        missing = [line for line in shown if not any(re.fullmatch(as_pattern(line), other) for other in found)]
        assert missing == [], f"shown in the tutorial, but not by\n{step.code}\n{output}"
    assert len(outputs) >= 12
    named = set(re.findall(r"`((?:studies|exports|figures)/[^`\s]+)`", text)) | {"exports/retrained/config.json"}
    assert len(named) >= 4 and [name for name in named if not (tmp_path / name).exists()] == []
    if (ROOT / ".git").exists():  # in a clone, nothing of this is taken for the project's
        made = [f"{entry.name}/{next(entry.iterdir()).name}/" for entry in tmp_path.iterdir()]
        ignored = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, capture_output=True, text=True).stdout
        assert ignored.split() == made
    (data,) = (output for code, output in outputs.items() if code.startswith("lrnas data"))
    assert any("as deployed          55,603,200" in output for output in outputs.values())
    assert "160 training, 80 validation and 200 test images, 4 classes: bars, lines, rings, slopes" in data
    onnx, by_timm = (ast.literal_eval(output) for code, output in outputs.items() if "logits" in code)
    assert list(onnx) == list(by_timm) == ["bars", "lines", "rings", "slopes"]
    assert list(onnx.values()) == pytest.approx(list(by_timm.values()), abs=1e-3)  # the same network, the same image
