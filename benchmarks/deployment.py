"""Are the found networks faster than the paper's, in all ways to run them?

    python -m benchmarks.deployment --out results/deployment.json
    python -m benchmarks.deployment --device cpu --batches 1 --families nin

The networks of this repository with weights, and the paper's networks of the same family as the searches saw them, at
32×32 pixels, with channels last: in bf16 on a GPU, in fp32 with one thread on a CPU. All networks of a family and all
ways to run them are measured in alternating order, on a GPU without launches from Python (CUDA graphs). The ways:

- PyTorch: `create_model(...).eval()`. This is what the objective `latency` of a search and `lrnas profile` measure.
- folded: batch norms are parts of the convolutions.
- accelerated: `lrnas.accelerate`; also of the folded network.
- compiled: torch.compile of the folded network and of the last one.

All ways must give the same outputs, up to the rounding of bf16.
"""

from __future__ import annotations

import copy
import dataclasses
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.common import costs, make_parser, write_result
from lrnas import Architecture, accelerate, create_model, load_space
from lrnas.layers.fold import Folding, fold
from lrnas.layers.layout import fastest_layout
from lrnas.layers.norms import find_norms
from lrnas.models.found import found_networks
from lrnas.profiling.timing import Call, measure
from lrnas.training.provenance import provenance

FAMILIES = {"nin": "nin-deep", "vgg": "vgg-deep", "googlenet": "googlenet-deep"}
"""The spaces whose reference networks are compared, by the family in the names of the found networks."""
SIZE, CLASSES, CHANNELS = 32, 10, 3


def networks_of(family: str) -> dict[str, Architecture]:
    points = load_space(FAMILIES[family]).points
    paper = {name: dataclasses.replace(point, batch_norm=True) for name, point in points.items()}  # as in a search
    found = {name: one.architecture for name, one in found_networks().items() if name.split("-")[1] == family}
    return {**paper, **found}


@torch.inference_mode()
def run(model: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = model(x)
    return result


def calls_of(network: Architecture, device: torch.device, batch: int, compiled: bool) -> dict[str, Call]:
    """Functions that run a network once, by the way in which it is run."""
    torch.manual_seed(0)
    plain, images = create_model(network, CLASSES, CHANNELS), torch.randn(batch, CHANNELS, SIZE, SIZE)
    for norm in plain.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 1.0
    run(plain, torch.randn(32, CHANNELS, SIZE, SIZE))  # the norms take the statistics of these images
    plain.eval()
    models = {"PyTorch": plain, "folded": fold(copy.deepcopy(plain), Folding(find_norms(plain, images[:1])))}
    dtype, layout = torch.bfloat16 if device.type == "cuda" else torch.float32, fastest_layout(device)
    models = {way: model.to(device, dtype, memory_format=layout) for way, model in models.items()}  # type: ignore[call-overload]
    models["accelerated"] = accelerate(copy.deepcopy(models["PyTorch"]))
    models["folded, accelerated"] = accelerate(copy.deepcopy(models["folded"]))
    if compiled:
        best = ("folded", "folded, accelerated")
        models |= {f"{way}, compiled": torch.compile(copy.deepcopy(models[way])) for way in best}
    x = images.to(device, dtype).contiguous(memory_format=layout)
    wanted, other = run(models["PyTorch"], x), run(models["PyTorch"], x.flip(3))
    for way, model in models.items():
        error = (run(model, x) - wanted).norm() / (other - wanted).norm()
        assert error < 0.5, f"{way} computes something else: {error:.3f} of the effect of mirrored images"
    return {way: partial(run, model, x) for way, model in models.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--batches", nargs="+", type=int, default=[128, 1])
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    threads = 1 if device.type == "cpu" else None
    rows: list[dict[str, object]] = []
    torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000).__enter__()
    for family in options.families:
        networks = networks_of(family)
        for batch in options.batches:
            calls = {
                (name, way): call
                for name, network in networks.items()
                for way, call in calls_of(network, device, batch, not options.no_compile).items()
            }
            times = dict(zip(calls, measure(list(calls.values()), device, threads=threads), strict=True))
            for (name, way), seconds in times.items():
                dense = times[next(iter(networks)), way]
                macs = costs(networks[name], SIZE, CLASSES, CHANNELS)["macs"]
                rows.append({"network": name, "batch": batch, "way": way, "macs": macs, "ms": 1000 * seconds})
                share = f"{seconds / dense:6.3f} of {next(iter(networks))}"
                print(f"{batch:4} {name:22} {way:22} {1000 * seconds:8.3f} ms {share}", flush=True)
    write_result(options.out, provenance(seeds=[0], n=15, size=SIZE), times=rows)


if __name__ == "__main__":
    main()
