"""Small sets of pictures on disk, for tests."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 40), "red": (220, 30, 20)}


def write_set(root: Path, counts: Mapping[str, int], size: int = 10, classes: tuple[str, ...] = tuple(COLOURS)) -> Path:
    """Write noisy images in one colour per class, `counts` per class in each split; every other image is wide."""
    rng = np.random.default_rng(0)
    for split, number in counts.items():
        for name in classes:
            folder = root / split / name
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(number):
                shape = (size, size + 2, 3) if i % 2 else (size + 2, size, 3)
                pixels = np.clip(np.array(COLOURS.get(name, (128,) * 3)) + rng.normal(0, 25, shape), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i:03}.png")
    return root


def spoil(file: Path) -> Path:
    """Cut an image file off in the middle."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return file
