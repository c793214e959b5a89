"""A report as one self-contained HTML page, which opens offline and from an e-mail."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lrnas import __version__
from lrnas.reporting.headline import Headline, best_few, make_headlines
from lrnas.reporting.layer_view import SHADES
from lrnas.reporting.report import PALETTE, Report
from lrnas.study.manifest import data_name

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("basics.js", "charts.js", "tested.js", "card.js", "table.js", "print.js", "page.js")
"""The page's scripts; each may use those before it."""
PLACEHOLDER = re.compile(r"@@([A-Z]+)@@")
CHUNK = 50
"""Number of networks whose texts are compressed together. To show one network, the page unpacks the whole chunk."""


def make_page(report: Report) -> str:
    """The page as HTML.

    Args:
        report: The report to show.
    """
    headlines = make_headlines(report)
    data, texts = split_texts(report)
    for study, shown, headline in zip(report.studies, data["studies"], headlines, strict=True):
        trial = headline and headline.trial
        best = best_few(study, report.axis.name) + ([] if trial is None else [trial])
        shown |= {"best": list(dict.fromkeys(best)), "headline": trial}
    parts = {
        "TITLE": html.escape(report.title),
        "HEADLINES": "\n    ".join(_tell(dict(zip((study.name for study in report.studies), headlines, strict=True)))),
        "SUBTITLE": html.escape(f"{_subject(report)}. Made by lrnas {__version__}, {report.made}."),
        "STYLE": _asset("page.css"),
        "DATA": "\n".join(map(pack, [data | {"shades": SHADES, "palette": PALETTE}, *texts])),
        "PLOTLY": _asset("plotly-basic.min.js"),
        "SCRIPT": "\n".join(map(_asset, SCRIPTS)),
    }
    return PLACEHOLDER.sub(lambda found: parts[found[1]], _asset("page.html"))


def split_texts(report: Report) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Split the data of a report into data that the page needs at once and texts that are rarely shown.

    Args:
        report: The report.

    Returns:
        The data without texts, and the texts of networks in chunks. Layers that are equal in several networks are
        stored once, in `shapes`; each network has their indices and its own costs.
    """
    data = report.to_dict()
    indices: dict[tuple[object, ...], int] = {}
    shapes: list[dict[str, Any]] = []
    texts = []
    every = (network for study in report.studies for network in study.networks)
    shown = (network for study in data["studies"] for network in study["networks"])
    for layers, network in zip((one.layers for one in every), shown, strict=True):
        texts.append({name: network.pop(name) for name in ("architecture", "lines")})
        places = []
        for layer in layers:
            places.append(place := indices.setdefault(layer.shape, len(shapes)))
            if place == len(shapes):
                shapes.append(layer.shape_to_dict())
        costs = {name: [getattr(layer, name) for layer in layers] for name in ("macs", "params")}
        network["layers"] = {"shapes": places, **costs}
    chunks = [texts[first : first + CHUNK] for first in range(0, len(texts), CHUNK)]
    return data | {"shapes": shapes, "at_a_time": CHUNK}, chunks


def pack(data: object) -> str:
    """Data as compressed JSON, written with letters that have no special meaning in HTML.

    Args:
        data: Anything that JSON can hold; NaN and infinities become null, which the page shows as unknown.
    """
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:  # NaN or infinity, which is rare; always replacing them would be slow
        finite = json.loads(json.dumps(data), parse_constant=lambda name: None)
        text = json.dumps(finite, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _tell(headlines: Mapping[str, Headline | None]) -> Iterator[str]:
    """The result of each study in one sentence, with a link to the card of its network."""
    for study, headline in headlines.items():
        if headline is None:
            continue
        name, whose, part = html.escape(headline.network), "", ""
        if len(headlines) > 1:
            whose, part = f"{html.escape(study)}: ", quote(study, safe="!'()*") + "/"  # as `encodeURIComponent`
        if headline.trial is not None:
            name = f'<a href="#{html.escape(part)}trial-{headline.trial}">{name}</a>'
        claim, rest = html.escape(headline.claim), html.escape(headline.rest)
        yield f'<p class="headline">{whose}<b>{claim}</b> ({name}){rest}</p>'


def _subject(report: Report) -> str:
    """The spaces that were searched, and the data."""
    manifests = [study.study.manifest for study in report.studies]
    return "; ".join(dict.fromkeys(f"Search of {each['source']} on {data_name(each)}" for each in manifests))


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
