"""The names of the formats of exported networks. No torch, so that a wrong name is refused at once."""

from __future__ import annotations

from lrnas.errors import UnknownName

SUFFIX = {"timm": "", "onnx": ".onnx", "torch-export": ".pt2"}
"""Ending of the file of each format; empty for a folder."""


def check_format(name: str) -> None:
    """Raise an error if a network cannot be exported in this format."""
    if name not in SUFFIX:
        raise UnknownName("format", name, SUFFIX)
