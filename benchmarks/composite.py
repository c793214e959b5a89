"""Is the time of the paper's VGG networks proportional to their multiply-accumulates, on a GPU?

    python benchmarks/composite.py layers          # single layers, forward with ReLU
    python benchmarks/composite.py networks        # whole networks: inference, and a training step

Each network is compared with the dense network that it replaces. Both run in bf16 with channels last and torch.compile;
ours is accelerated before that. Samples of a network and of the baseline alternate. The results are written to
results/composite_layers.json or composite_networks.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from common import RESULTS, make_parser, write_result
from torch import Tensor, nn

from lrnas import create_model, get_point
from lrnas.layers.accelerate import accelerate
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
from lrnas.models.plan import make_plan
from lrnas.profiling.timing import measure
from lrnas.training.provenance import provenance

BASELINE = "vgg-gmp"
NETWORKS = ["vgg-gmp-lr", "vgg-gmp-lr-2x", "vgg-gmp-lr-join", "vgg-gmp-lr-join-wfull", "vgg-gmp-sf"]
LAYERS = ["vgg-gmp-lr", "vgg-gmp-lr-join", "vgg-gmp-lr-join-wfull", "vgg-gmp-sf"]


def make_model(name: str, device: str) -> nn.Module:
    torch.manual_seed(0)
    model = create_model(get_point(name).architecture, 1000)
    return model.to(device, memory_format=torch.channels_last)


def images(batch: int, channels: int, size: int, device: str) -> Tensor:
    return torch.randn(batch, channels, size, size, device=device).contiguous(memory_format=torch.channels_last)


def compiled(call: Callable[..., Tensor], on: bool) -> Callable[..., Tensor]:
    return torch.compile(call, dynamic=False) if on else call


# --- single layers


def convolutions(model: nn.Module, size: int, device: str) -> Iterator[tuple[nn.Module, tuple[int, ...]]]:
    """Convolutions of a VGG in order, each with the shape of its input without the batch."""
    features = model.get_submodule("features")
    x = images(1, 3, size, device)
    with torch.no_grad():
        for module in features.children():
            if isinstance(module, nn.Conv2d | CompositeConv2d | SeparableConv2d):
                yield module, tuple(x.shape[1:])
            x = module(x)


def macs_of(conv: nn.Module) -> int:
    """Multiply-accumulates for one output position; all strides are 1 here."""
    return sum(weight.numel() for name, weight in conv.named_parameters() if name.endswith("weight"))


def layers(batch: int, size: int, device: str, compile_both: bool) -> list[dict[str, Any]]:
    half = torch.bfloat16 if device == "cuda" else torch.float32
    found = [list(convolutions(make_model(name, device), size, device)) for name in (BASELINE, *LAYERS)]
    rows = []
    for number, (dense, *others) in enumerate(zip(*found, strict=True)):
        if number == 0:
            continue
        calls = []
        for conv, shape in (dense, *others):
            block = nn.Sequential(conv, nn.ReLU()).to(half).eval()
            run = compiled(block if conv is dense[0] else accelerate(block), compile_both)
            x = images(batch, shape[0], shape[1], device).to(half)
            calls.append(lambda run=run, x=x: run(x))
        with torch.no_grad():
            seconds = measure(calls, device)
        torch._dynamo.reset()
        for name, (conv, shape), ours in zip(LAYERS, others, seconds[1:], strict=True):
            macs, share = macs_of(conv) / macs_of(dense[0]), ours / seconds[0]
            row = {"network": name, "layer": number + 1, "input": shape, "macs_share": macs, "time_share": share}
            rows.append(row | {"dense_ms": seconds[0] * 1e3, "ms": ours * 1e3})
            print(f"{name:22s} conv{number + 1} {shape!s:16s} MACs {macs:.3f} time {share:.3f}", flush=True)
    return rows


# --- whole networks


def inference(name: str, x: Tensor, compile_both: bool) -> Callable[[], object]:
    model = make_model(name, x.device.type).eval().to(x.dtype)
    run = compiled(model if name == BASELINE else accelerate(model), compile_both)

    def call() -> None:
        with torch.no_grad():
            run(x)

    return call


def training(name: str, x: Tensor, labels: Tensor, compile_both: bool) -> Callable[[], object]:
    """A training step: forward in bf16, backward, SGD with momentum."""
    device = x.device.type
    model = make_model(name, device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=device == "cuda")
    run = compiled(model if name == BASELINE else accelerate(model), compile_both)

    def call() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda", cache_enabled=False):
            loss = F.cross_entropy(run(x).float(), labels)
        for parameter in model.parameters():
            parameter.grad = None
        loss.backward()
        optimizer.step()

    return call


def count_macs(name: str, size: int) -> int:
    return make_plan(get_point(name).architecture, size, 1000).cost.macs


def networks(
    batch: int, size: int, device: str, compile_both: bool, names: list[str], kinds: list[str]
) -> list[dict[str, Any]]:
    half = torch.bfloat16 if device == "cuda" else torch.float32
    x, labels = images(batch, 3, size, device), torch.arange(batch, device=device) % 1000
    rows = [{"network": name, "macs_share": count_macs(name, size) / count_macs(BASELINE, size)} for name in names]
    for kind in kinds:
        if kind == "inference":
            calls = [inference(name, x.to(half), compile_both) for name in (BASELINE, *names)]
        else:
            calls = [training(name, x, labels, compile_both) for name in (BASELINE, *names)]
        dense, *seconds = measure(calls, device)
        torch._dynamo.reset()
        for row, ours in zip(rows, seconds, strict=True):
            row |= {f"{kind}_dense_ms": dense * 1e3, f"{kind}_ms": ours * 1e3, f"{kind}_share": ours / dense}
            print(f"{row['network']:22s} MACs {row['macs_share']:.3f} {kind} {ours / dense:.3f}", flush=True)
    return rows


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("what", choices=["layers", "networks"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--networks", nargs="+", default=NETWORKS)
    parser.add_argument("--kinds", nargs="+", choices=["inference", "training"], default=["inference", "training"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="without torch.compile on either side")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    if args.what == "layers":
        rows = layers(args.batch, args.size, args.device, not args.eager)
    else:
        rows = networks(args.batch, args.size, args.device, not args.eager, args.networks, args.kinds)
    write_result(args.out / f"composite_{args.what}.json", provenance(seeds=[0], compiled=not args.eager), rows=rows)


if __name__ == "__main__":
    main()
