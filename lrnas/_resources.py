"""Finds the data files that come with lrnas: search spaces and the paper's tables."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
_ROOT = _PACKAGE / "_data" if (_PACKAGE / "_data").is_dir() else _PACKAGE.parent
"""In an installed package they lie inside it, in a checkout beside it."""

SEARCH_SPACES = _ROOT / "search_spaces"
PAPER_TABLES = _ROOT / "results" / "paper"
