"""Search networks for a folder of images: `python examples/own_images.py`, some minutes on a CPU.

The folder contains train/CLASS/*.png and test/CLASS/*.png. If it does not exist, the example first makes one with two
classes of images: vertical bars ("standing") and horizontal bars ("lying").
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

import lrnas


def make_images(folder: Path, number: int = 60, size: int = 16) -> None:
    """Write images of two classes, vertical and horizontal bars, with noise."""
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in ("standing", "lying"):
            place = folder / split / label
            place.mkdir(parents=True, exist_ok=True)
            for i in range(number):
                image = random.integers(0, 96, (size, size, 3), dtype=np.uint8)
                at = int(random.integers(2, size - 4))
                image[:, at : at + 3] = 200
                Image.fromarray(image if label == "standing" else image.swapaxes(0, 1)).save(place / f"{i}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/bars"), help="default: build/bars")
    parser.add_argument("--budget", type=int, default=6, help="networks to train (default: 6)")
    parser.add_argument("--studies", default="studies", help="where the study is kept (default: studies)")
    options = parser.parse_args()
    if not options.folder.exists():
        make_images(options.folder)

    study = lrnas.search(
        "nin",
        data=f"folder:{options.folder}",
        image_size=16,
        epochs=2,
        set={"batch_size": 32},
        budget=options.budget,
        finals=0,  # only short trainings; by default, the best networks are then trained in full
        studies=options.studies,
        name="bars",
    )
    for trial in study.front():
        print(f"{trial.point or trial.identity}: {100 * (trial.accuracy or 0):.1f} %, {trial.macs:,} MACs")


if __name__ == "__main__":  # workers import this file
    main()
