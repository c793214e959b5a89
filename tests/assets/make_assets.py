"""Makes the files in this folder, in the formats of today. They stay as they are: later versions must read them.

    PYTHONPATH=tests python tests/assets/make_assets.py

Run it only when a format gets a new version, into a new folder, and keep the earlier one.
"""

import lzma
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from pictures import write_set
from small_studies import make_finals, make_search

from lrnas.arch.architecture import Allocation, Architecture, FilterGroup
from lrnas.data.catalog import load_set
from lrnas.recipes import Recipe
from lrnas.training.job import Job
from lrnas.training.loop import EpochReport

FOLDER = Path(__file__).parent / "formats-1"
GROUPS = (FilterGroup("kx1", 0.25), FilterGroup("1xk", 0.25), FilterGroup("3x3", 0.5))
NETWORK = Architecture(
    "nin",
    {
        "conv1": Allocation("composite", GROUPS, width=0.04, join=0.03),
        "conv2": Allocation("separable", width=0.03, middle=0.02),
        **{name: Allocation(width=0.03) for name in ("cccp1", "cccp2", "cccp3", "cccp4", "conv3", "cccp5")},
    },
    pool="max",
    batch_norm=True,
    divisor=2,
)
"""A small network with every kind of layer."""
JOB = Job(NETWORK, "digits", Recipe(epochs=2, batch_size=128), seed=7, min_size=8)


class Stopped(Exception):
    """Ends a training after its first epoch."""


def stop(report: EpochReport) -> None:
    raise Stopped


def main() -> None:
    FOLDER.mkdir()
    (FOLDER / "architecture.json").write_text(NETWORK.to_json(indent=1) + "\n")

    data = JOB.load_data()
    with suppress(Stopped):
        JOB.run(JOB.create_model(data), data, FOLDER / "checkpoint", "cpu", report=stop)

    with tempfile.TemporaryDirectory() as scratch:
        search = make_search(Path(scratch) / "s")
        make_finals(search, {"nin-c3-lr": (0.91, 0.93), "dense-x0.25": (0.85,)})
        database = (Path(scratch) / "s" / "study.db").read_bytes()
        (FOLDER / "study.db.xz").write_bytes(lzma.compress(database))

        pictures = write_set(Path(scratch) / "pictures", {"train": 2, "val": 1, "test": 1})
        load_set(f"folder:{pictures}", scratch, image_size=8).prepare()
        shutil.copytree(pictures, FOLDER / "pictures")
        shutil.copytree(Path(scratch) / "packs", FOLDER / "packs", ignore=shutil.ignore_patterns("*.lock"))


if __name__ == "__main__":
    main()
