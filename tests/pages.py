"""The data of a report page, read from its HTML."""

import base64
import gzip
import json
import re
from typing import Any


def read_data(page: str) -> dict[str, Any]:
    """All data of a page, with the texts that are stored separately."""
    found = re.search(r'<script id="data"[^>]*>([^<]*)</script>', page)
    assert found is not None
    data: dict[str, Any]
    data, *parts = (json.loads(gzip.decompress(base64.b64decode(part))) for part in found[1].split("\n"))
    networks = [network for study in data["studies"] for network in study["networks"]]
    for network, texts in zip(networks, (texts for part in parts for texts in part), strict=True):
        layers = network["layers"]
        network["layers"] = [
            data["shapes"][shape] | {"macs": macs, "params": params}
            for shape, macs, params in zip(layers["shapes"], layers["macs"], layers["params"], strict=True)
        ]
        network |= texts
    return data
