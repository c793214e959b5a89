"""Where a number comes from: the command, commit, versions and hardware that stand beside it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def provenance(*packages: str, **facts: Any) -> dict[str, Any]:
    """What to write into a results file; `facts` are seeds, n and the like."""
    return {
        "command": " ".join(["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *sys.argv[1:]]),
        "commit": _git("rev-parse", "HEAD") + ("-dirty" if _git("status", "--porcelain", "--", "lrnas") else ""),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "hardware": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        **facts,
    }


def _git(*arguments: str) -> str:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else "unknown"
