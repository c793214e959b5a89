"""Convert a timm model to mixed-shape filters, train it and export it: `python examples/convert_and_export.py`.

In every 3×3 convolution, one half of the filters becomes 3×1 and the other half 1×3. Converted layers start with new
weights, so the model must be trained before the export; here only for a few steps on random images. The example takes
less than a minute on a CPU.
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

    # the export needs the weights and a description of the same network
    options.out.mkdir(parents=True, exist_ok=True)
    description = options.out / "network.json"
    description.write_text(lrnas.Architecture("timm:resnet10t", {"*": half}).to_json())
    save_file(model.state_dict(), options.out / "weights.safetensors")
    made = lrnas.export(
        str(options.out / "weights.safetensors"),
        "onnx",
        architecture=description,
        input=SIZE,
        classes=CLASSES,
        out=options.out / "model.onnx",
        force=True,
    )
    print(f"Written: {', '.join(str(file) for file in made.files)}")


if __name__ == "__main__":
    main()
