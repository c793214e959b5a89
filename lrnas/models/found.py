"""The networks that searches found and that are part of lrnas, with their weights: `lrnas-nin-a` and so on.

Each has a folder in `results/models`, in the format of `lrnas export --format timm`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lrnas._resources import MODELS
from lrnas.arch.architecture import Architecture

CONFIG = "config.json"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class FoundNetwork:
    """A network that a search found, and its weights."""

    name: str
    architecture: Architecture
    weights: Path
    """The safetensors file."""
    data: str
    """The data set that it was trained on."""
    config: dict[str, Any]
    """timm's `pretrained_cfg`: the size and normalisation of the images, the number of classes and so on."""
    arguments: dict[str, Any]
    """Arguments of `lrnas.create_model` with which it is built."""


@cache
def found_networks() -> dict[str, FoundNetwork]:
    """The networks that searches found, by name."""
    found = {}
    for file in sorted(MODELS.glob(f"*/{CONFIG}")):
        content = json.loads(file.read_text(encoding="utf-8"))
        config = {**content["pretrained_cfg"], "label_names": tuple(content["label_names"])}
        arguments = content["model_args"]
        network = Architecture.from_dict(arguments.pop("architecture"))
        name = file.parent.name
        found[name] = FoundNetwork(name, network, file.parent / WEIGHTS, content["data"], config, arguments)
    return found


def find_found(name: str) -> FoundNetwork | None:
    """The network with this name, which may have underscores as in timm; None if there is none."""
    return found_networks().get(name.replace("_", "-"))
