"""Paths of the data files that are part of lrnas: search spaces, the paper's tables and found networks."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_ROOT = _PACKAGE / "_data" if (_PACKAGE / "_data").is_dir() else _PACKAGE.parent
"""Folder of the data files: inside an installed package, or beside the package in a checkout."""

SEARCH_SPACES = _ROOT / "search_spaces"
PAPER_TABLES = _ROOT / "results" / "paper"
MODELS = _ROOT / "results" / "models"
