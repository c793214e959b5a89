"""How fast are the kernels for first layers with a large window, as in GoogLeNet, on a GPU?

    python benchmarks/first_layers.py

Filters of all shapes over images of three channels, then batch norm and ReLU: a forward pass and a training step in
bf16 with channels last. The kernels are compared with PyTorch's convolutions, and with the kernels applied to each
group of filters separately. The results are written to results/first_layers.json.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common import RESULTS, make_parser, write_result

from lrnas.arch.architecture import Filters, Mix
from lrnas.arch.backbone_shapes import Step
from lrnas.layers.kernels import composite
from lrnas.profiling.step_modules import Setting, layer_call
from lrnas.profiling.timing import Call, measure
from lrnas.training.provenance import provenance

LAYERS = [(7, 2, (16, 16, 32)), (11, 4, (16, 16, 64)), (7, 1, (16, 16, 32))]
"""Kernel size, stride, and numbers of k×1, 1×k and k×k filters."""
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
    parser = make_parser(__doc__)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS)
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
    facts = provenance(batch=args.batch, input=args.size, dtype=str(half))
    write_result(args.out / "first_layers.json", facts, rows=rows)


if __name__ == "__main__":
    main()
