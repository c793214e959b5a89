"""Common parts of the benchmarks: their parser, the file they write, and the costs of a network."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from lrnas import Architecture, make_plan

RESULTS = Path(__file__).parent.parent / "results"


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the benchmark."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def write_result(file: Path | None, provenance: dict[str, Any], **data: Any) -> None:
    """Write a result with its provenance as JSON; with no file, do nothing."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"provenance": provenance, **data}, indent=1, ensure_ascii=False)
        file.write_text(f"{text}\n", encoding="utf-8")


def costs(network: Architecture, size: int, num_classes: int, channels: int) -> dict[str, float]:
    """Multiply-accumulates and parameters of a network as deployed, for images of a size."""
    total = make_plan(network, size, num_classes, channels, deployed=True).cost
    return {"macs": total.macs, "params": total.params}
