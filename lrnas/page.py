"""A report as one HTML page that holds all it needs: it opens offline, and from a mail."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from pathlib import Path
from typing import Any

from lrnas import __version__
from lrnas.layouts import SHADES
from lrnas.report import Report

__all__ = ["make_page"]

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("basics.js", "charts.js", "card.js", "table.js", "page.js")
"""In the order in which they need each other."""
PLACE = re.compile(r"@@([A-Z]+)@@")


def make_page(report: Report) -> str:
    """The page as HTML."""
    parts = {
        "TITLE": html.escape(report.title),
        "SUBTITLE": html.escape(f"Made by lrnas {__version__}, {report.made}"),
        "STYLE": _asset("page.css"),
        "DATA": pack(report.to_dict() | {"shades": SHADES}),
        "PLOTLY": _asset("plotly-basic.min.js"),
        "SCRIPT": "\n".join(_asset(name) for name in SCRIPTS),
    }
    return PLACE.sub(lambda found: parts[found[1]], _asset("page.html"))


def pack(data: dict[str, Any]) -> str:
    """Data as letters that mean nothing to HTML: JSON, compressed, as a page of thousands of trials would be large.

    Numbers that JSON does not have become null, which the page shows as not known.
    """
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # rarely: to look for them takes longer than to write all the rest
        text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _finite(value: Any) -> Any:
    """The same without infinities and what is not a number."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
