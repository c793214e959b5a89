"""Keep a network that a search found as a named model, and test it.

lrnas export nin-deep-cifar10@full:52 --out exports/a
python -m benchmarks.models keep exports/a lrnas-nin-a     # writes results/models/lrnas-nin-a, in half precision
python -m benchmarks.models test                           # accuracy of all of them on the test images
"""

from __future__ import annotations

import json
from pathlib import Path

import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import lrnas
from benchmarks.common import make_parser
from lrnas._resources import MODELS
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import ImageSet
from lrnas.models.found import CONFIG, WEIGHTS, found_networks


def keep(export: Path, name: str) -> None:
    """Write the weights in half precision, and the name of the data set in the configuration."""
    folder = MODELS / name
    folder.mkdir(parents=True, exist_ok=True)
    with safe_open(export / WEIGHTS, "pt") as file:
        metadata = file.metadata()
    tensors = {
        key: value.half() if value.is_floating_point() else value for key, value in load_file(export / WEIGHTS).items()
    }
    save_file(tensors, folder / WEIGHTS, metadata)
    (folder / WEIGHTS).chmod(0o644)
    content = {"data": "cifar10", **json.loads((export / CONFIG).read_text(encoding="utf-8"))}
    architecture = json.loads((export / "architecture.json").read_text(encoding="utf-8"))
    content |= {"architecture": "lrnas", "model_args": {**content["model_args"], "architecture": architecture}}
    (folder / CONFIG).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def accuracy(name: str, data_dir: Path | None, num: int | None = None) -> float:
    """Accuracy of a named model on the first test images of CIFAR-10."""
    data = load_set("cifar10", data_dir, min_size=8)
    assert isinstance(data, ImageSet)
    model = timm.create_model(name.replace("-", "_"), pretrained=True).eval()
    images, labels = data.test().images[:num], data.test().labels[:num]
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    right = 0
    for some, own in zip(images.split(500), labels.split(500), strict=True):
        pixels = some.permute(0, 3, 1, 2) / 255
        right += int((model((pixels - mean) / std).argmax(1) == own).sum())
    return right / len(images)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("action", choices=("keep", "test"))
    parser.add_argument("export", nargs="?", type=Path, help="folder that `lrnas export --format timm` wrote")
    parser.add_argument("name", nargs="?")
    parser.add_argument("--data-dir", type=Path, help="folder of CIFAR-10")
    options = parser.parse_args()
    if options.action == "keep":
        keep(options.export, options.name)
        return
    print("lrnas", lrnas.__version__, "torch", torch.__version__, "timm", timm.__version__)
    for name in found_networks():
        print(f"{name}: {100 * accuracy(name, options.data_dir):.2f} %", flush=True)


if __name__ == "__main__":
    main()
