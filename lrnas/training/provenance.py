"""Provenance of results: the command, commit, versions and hardware that produced them."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from lrnas._messages import hide_passwords

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, if this is one."""
_PACKAGES = ("lrnas", "torch", "timm", "numpy", "triton", "optuna", "ray")


def provenance(**facts: Any) -> dict[str, Any]:
    """Return the provenance of a result, to be stored with it.

    Args:
        facts: More values to store, for example seeds and the number of runs.

    Returns:
        Command, commit, date, versions, hardware and the facts, as JSON values.
    """
    return {
        "command": _command(),
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version(), **_versions()},
        "hardware": hardware(),
        **facts,
    }


def _command() -> str:
    """Return the command as a user would type it, without passwords; absolute paths are reduced to their last part."""
    program = Path(sys.argv[0])
    name = f"python {program.parent.name}/{program.name}" if program.suffix == ".py" else program.name
    if program.name == "__main__.py":
        name = "lrnas"
    return hide_passwords(" ".join([name, *map(_without_folders, sys.argv[1:])]))


def _without_folders(argument: str) -> str:
    """Remove the folders from an absolute path: `folder:/data/images` becomes `folder:images`."""
    return re.sub(
        r"^(folder:|[a-z]+ds/|--?[a-z-]+=(?:folder:|[a-z]+ds/)?)?(?:~[^/]*)?/(?:.*/)?", r"\1", argument.rstrip("/")
    )


def _commit() -> str:
    """Return the commit of the checkout that contains this package, with "-dirty" if the package was changed since.

    For a copy without git history, set $LRNAS_COMMIT to its commit.
    """
    if commit := os.environ.get("LRNAS_COMMIT"):
        return commit
    top = _git("rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != ROOT:  # installed in an environment, which may be inside of another checkout
        return "unknown"
    commit = _git("rev-parse", "--verify", "--quiet", "HEAD")
    return (commit + ("-dirty" if _git("status", "--porcelain", "--", "lrnas") else "")) if commit else "unknown"


def _git(*arguments: str) -> str:
    """Return the output of a git command in the checkout; "" if it fails."""
    with suppress(OSError):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def hardware() -> str:
    """Return a description of this machine: the GPU, if there is one, and the CPU."""
    cpu = f"{platform.machine()}, {os.cpu_count()} CPU cores"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {cpu}"
    return cpu


def gpu_busy() -> float | None:
    """Return the share of the last second in which the current GPU computed anything.

    None if it is not known: without the package nvidia-ml-py, or if the GPU does not report it.
    """
    import torch

    try:
        return torch.cuda.utilization() / 100
    except Exception:  # the errors of nvidia-ml-py have no other type in common
        return None
