"""A report as one HTML page that holds all it needs: it opens offline, and from a mail."""

from __future__ import annotations

import base64
import gc
import gzip
import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lrnas import __version__
from lrnas.reporting.layer_view import SHADES
from lrnas.reporting.report import PALETTE, Report

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("basics.js", "charts.js", "tested.js", "card.js", "table.js", "print.js", "page.js")
"""In the order in which they need each other."""
PLACE = re.compile(r"@@([A-Z]+)@@")
AT_A_TIME = 50
"""Networks whose texts are compressed together: to show those of one, a page reads them all."""


def make_page(report: Report) -> str:
    """The page as HTML."""
    with _no_collection():
        data, texts = take_apart(report.to_dict())
    parts = {
        "TITLE": html.escape(report.title),
        "SUBTITLE": html.escape(f"Made by lrnas {__version__}, {report.made}"),
        "STYLE": _asset("page.css"),
        "DATA": "\n".join(map(pack, [data | {"shades": SHADES, "palette": PALETTE}, *texts])),
        "PLOTLY": _asset("plotly-basic.min.js"),
        "SCRIPT": "\n".join(_asset(name) for name in SCRIPTS),
    }
    return PLACE.sub(lambda found: parts[found[1]], _asset("page.html"))


def take_apart(data: dict[str, Any]) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """What a page opens with, and apart from it the texts of networks, some at a time.

    Texts are most of the data, and few of them are looked at. What layers are is kept once, in `shapes`, for all
    networks that have the same: these have the places there, and what each of their layers costs.
    """
    places: dict[str, int] = {}
    shapes: list[dict[str, Any]] = []
    texts = []
    for network in (network for study in data["studies"] for network in study["networks"]):
        texts.append({name: network.pop(name) for name in ("architecture", "lines")})
        layers = network["layers"]
        costs = {name: [layer.pop(name) for layer in layers] for name in ("macs", "params")}
        for layer, key in zip(layers, keys := list(map(str, layers)), strict=True):
            if places.setdefault(key, len(shapes)) == len(shapes):
                shapes.append(layer)
        network["layers"] = {"shapes": [places[key] for key in keys], **costs}
    parts = [texts[first : first + AT_A_TIME] for first in range(0, len(texts), AT_A_TIME)]
    return data | {"shapes": shapes, "at_a_time": AT_A_TIME}, parts


def pack(data: object) -> str:
    """Data as letters that mean nothing to HTML: JSON, compressed, as a page of thousands of trials would be large.

    Numbers that JSON does not have become null, which the page shows as not known.
    """
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # rarely: to look for them takes longer than to write all the rest
        text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without looks for garbage: a page of thousands of trials is millions of objects, none of them to be given up."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _finite(value: Any) -> Any:
    """The same without infinities and what is not a number."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
