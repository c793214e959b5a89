"""How fast are networks trained on a CPU, by the layout of their maps?

    python benchmarks/cpu_training.py --out results/cpu_training.json

Images per second of training steps with one thread, as a search uses for each network, on random images, in PyTorch's
default layout and in the channels-last layout, in alternating order. Batches have 64 images, or fewer if a step would
take longer than about a second. The ratios are medians of the rounds.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from common import make_parser, write_result

from lrnas import Architecture
from lrnas.recipes import get_recipe
from lrnas.spaces.space import load_space
from lrnas.training.job import Images
from lrnas.training.provenance import provenance
from lrnas.training.speed import measure_speed

BATCH = 64
LAYOUTS = {"default": torch.contiguous_format, "channels last": torch.channels_last}


def networks() -> dict[str, tuple[Architecture, int, int]]:
    """Networks, with the size and the channels of their images."""
    found = {}
    for name, points in (
        ("nin", ("nin", "nin-c3-lr", "lr-x0.25")),
        ("vgg11", ("vgg-gmp", "vgg-gmp-lr")),
        ("googlenet-small", ("googlenet", "googlenet-lr")),
    ):
        space = load_space(name, batch_norm=True)
        found |= {point: ({**space.points, **space.uniform}[point], 32, 3) for point in points}
    found["lr-x0.25, digits"] = (found["lr-x0.25"][0], 8, 1)
    found["timm:resnet18, 64×64"] = (Architecture("timm:resnet18"), 64, 3)
    return found


def images_per_second(network: Architecture, images: Images, layout: torch.memory_format) -> float:
    recipe = get_recipe("fast", network.backbone, images.image_size, 2048, {"batch_size": BATCH})
    with ExitStack() as changes:
        for module in ("training.loop", "data.crops"):
            changes.enter_context(patch(f"lrnas.{module}.fastest_layout", lambda _: layout))
        return 1 / measure_speed(network, recipe, images, "cpu", eval_batch=BATCH).step


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, (network, size, channels) in networks().items():
        images = Images("random", "", channels, size, 10)
        rounds = [
            [images_per_second(network, images, layout) for layout in LAYOUTS.values()] for _ in range(options.rounds)
        ]
        default, channels_last = (round(median(rates), 1) for rates in zip(*rounds, strict=True))
        ratios = [round(one[1] / one[0], 2) for one in rounds]
        rates = {"default": default, "channels_last": channels_last}
        rows.append({"network": name, "images_per_second": rates, "ratio": median(ratios), "ratios": ratios})
        print(f"{name:22} {default:8,.0f} and {channels_last:8,.0f} images/s, {median(ratios):.2f} ×", flush=True)
    write_result(options.out, provenance(n=options.rounds, largest_batch=BATCH, threads=1), rows=rows)


if __name__ == "__main__":
    main()
