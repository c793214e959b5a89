"""Where a number comes from: the command, commit, versions and hardware that stand beside it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("lrnas", "torch", "timm", "numpy", "triton", "optuna", "ray")


def provenance(**facts: Any) -> dict[str, Any]:
    """What to write beside a result; `facts` are seeds, n and the like."""
    return {
        "command": _command(),
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version(), **_versions()},
        "hardware": hardware(),
        **facts,
    }


def _command() -> str:
    """As one would type it; of this machine's paths only the last part is told."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        name = "lrnas"
    elif program.suffix == ".py":
        name = f"python {program.parent.name}/{program.name}"
    else:
        name = program.name
    return " ".join([name, *map(_without_place, sys.argv[1:])])


def _without_place(part: str) -> str:
    """/data/images and folder:/data/images without the folders they lie in."""
    return re.sub(
        r"^(folder:|[a-z]+ds/|--?[a-z-]+=(?:folder:|[a-z]+ds/)?)?(?:~[^/]*)?/(?:.*/)?", r"\1", part.rstrip("/")
    )


def _commit() -> str:
    """The commit of the checkout this package runs from; marked where the package differs from it.

    A copy without its history says where it comes from through $LRNAS_COMMIT.
    """
    if given := os.environ.get("LRNAS_COMMIT"):
        return given
    root = Path(__file__).parents[2]
    commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    return (commit + ("-dirty" if _git(root, "status", "--porcelain", "--", "lrnas") else "")) if commit else "unknown"


def _git(root: Path, *arguments: str) -> str:
    try:
        result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return result.stdout.strip()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> str:
    """Of this machine, as far as it matters for a result."""
    cpu = f"{platform.machine()}, {os.cpu_count()} CPU cores"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {cpu}"
    return cpu
