"""First layers with a large window, as in GoogLeNet: the kernels beside PyTorch's convolutions, on a GPU.

    python benchmarks/first_layers.py

Filters of all shapes over images of three channels, then batch norm and ReLU: a forward pass and a training step, in
bf16 with channels last, side by side in one run. The third way is how the kernels would do it with every group by
itself, which they did before such layers were merged. Writes results/first_layers.json.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from lrnas.arch.architecture import Filters, Mix
from lrnas.arch.backbone_shapes import Step
from lrnas.layers.kernels import composite
from lrnas.profiling.step_modules import Setting, layer_call
from lrnas.profiling.timing import Call, measure
from lrnas.training.provenance import provenance

ROOT = Path(__file__).parent.parent
LAYERS = [(7, 2, (16, 16, 32)), (11, 4, (16, 16, 64)), (7, 1, (16, 16, 32))]
"""Window, stride, and numbers of k×1, 1×k and k×k filters."""
WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "pytorch": lambda: mock.patch.dict(os.environ, LRNAS_KERNELS="off"),
    "groups apart": lambda: mock.patch.object(composite, "_merged", lambda layer, channels: layer),
    "kernels": nullcontext,
}


def make_call(way: str, step: Step, setting: Setting, training: bool) -> Call:
    with WAYS[way]():
        call = layer_call(step, setting, training=training, is_first=True)

    def run() -> object:
        with WAYS[way]():
            return call()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    args = parser.parse_args()
    device = torch.device(args.device)
    half = torch.bfloat16 if device.type == "cuda" else torch.float32
    setting = Setting(device, half, args.batch, False)
    rows = []
    for window, stride, (tall, wide, square) in LAYERS:
        mix = Mix((Filters(window, 1, tall), Filters(1, window, wide), Filters(window, window, square)))
        side = (args.size - 1) // stride + 1
        output = (mix.out_channels, side, side)
        step = Step("first", "conv", (3, args.size, args.size), output, (mix, window, stride, True), 0, 0)
        for training in (False, True):
            calls = [make_call(way, step, setting, training) for way in WAYS]
            times = dict(zip(WAYS, (1000 * seconds for seconds in measure(calls, device)), strict=True))
            rows.append({"filters": str(mix), "stride": stride, "training": training, "ms": times})
            listed = ", ".join(f"{way} {time:.3f} ms" for way, time in times.items())
            print(f"{mix}, stride {stride}, {'training' if training else 'forward'}: {listed}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    record = {"provenance": provenance(batch=args.batch, input=args.size, dtype=str(half)), "rows": rows}
    (args.out / "first_layers.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
