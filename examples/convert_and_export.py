"""Give a model of timm mixed-shape filters, train it a little, and export it: `python examples/convert_and_export.py`.

Every 3×3 convolution becomes half 3×1 and half 1×3 filters. Converted layers start with new weights, so the model is
trained before the export; here for a few steps on made-up images, to show the way. Under a minute on a CPU.
"""

import argparse
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import lrnas

SIZE, CLASSES = 64, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("exports/resnet10t_lr"), help="default: exports/resnet10t_lr")
    options = parser.parse_args()
    half = lrnas.Allocation.composite(vertical=0.5, horizontal=0.5)

    model = timm.create_model("resnet10t", num_classes=CLASSES)
    before = lrnas.count_model(model, SIZE).macs
    report = lrnas.convert(model, half)
    after = lrnas.count_model(model, SIZE).macs
    print(f"{len(report.replaced)} convolutions replaced, {len(report.left)} left as they were")
    print(f"{after:,} instead of {before:,} multiply-accumulates: {after / before:.2f}")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(3):
        images, labels = torch.rand(8, 3, SIZE, SIZE), torch.randint(CLASSES, (8,))
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    # the same network as a description, which an export is told together with the weights
    options.out.mkdir(parents=True, exist_ok=True)
    description = options.out / "network.json"
    description.write_text(lrnas.Architecture("timm:resnet10t", {"*": half}).to_json())
    save_file(model.state_dict(), options.out / "weights.safetensors")
    made = lrnas.export(
        str(options.out / "weights.safetensors"),
        "onnx",
        architecture=description,
        input_size=SIZE,
        num_classes=CLASSES,
        out=options.out / "model.onnx",
        force=True,
    )
    print(f"Written: {', '.join(str(file) for file in made.files)}")


if __name__ == "__main__":
    main()
