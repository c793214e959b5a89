"""One training run as data: an architecture, a data set, a recipe and a seed.

`lrnas reproduce` runs jobs one after another. With several workers, every worker runs the same job on its share of each
batch (`lrnas.training.multi_gpu`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lrnas.arch.architecture import Architecture
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet
from lrnas.data.names import IMAGE_MEMORY, data_folder, with_absolute_paths
from lrnas.models.plan import built_id, make_plan
from lrnas.recipes import Recipe
from lrnas.training.custom import Run, Trainable, train_with
from lrnas.training.loop import Device, Report, Result, train

OWN_DATA = "own data"
"""Used as the name of the data set if the training function loads its own data."""


@dataclass(frozen=True, slots=True)
class Images:
    """The facts about a data set that a search needs, without its images."""

    name: str
    identity: str
    channels: int
    image_size: int
    num_classes: int

    @classmethod
    def of(cls, data: DataSet) -> Images:
        return cls(data.name, data.identity, data.channels, data.image_size, data.num_classes)


@dataclass(frozen=True)
class Job:
    """All settings that determine the outcome of a run. A job can be pickled, and loads its data where it runs."""

    architecture: Architecture
    data: str
    """Name of the data set, with absolute paths."""
    recipe: Recipe
    seed: int
    min_size: int = 1
    """Smaller images in memory are enlarged to at least this size."""
    data_dir: str | Path | None = None
    """Folder where data sets are kept, as an absolute path."""
    image_size: int | None = None
    """Rows and columns of images that are read from files."""
    image_memory: float = IMAGE_MEMORY
    """Largest share of a GPU's memory for images from files; it does not change the outcome."""
    pack: str | None = None
    """Kind of pack of images from files, as in `load_set`."""
    trainable: Trainable | None = None
    """The custom training function; None for the training loop of lrnas."""
    images: Images | None = None
    """Facts about the images for a custom training function, so that no data set has to be loaded."""

    def __post_init__(self) -> None:
        data, data_dir = with_absolute_paths(self.data, self.data_dir)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "data_dir", data_dir)

    def identity(self, data: DataSet | Images) -> dict[str, Any]:
        """Return the facts by which a checkpoint of this job is recognised."""
        return {
            **({} if self.trainable is None else {"trainable": self.trainable.name}),
            "architecture": built_id(self.architecture),
            "data": data.identity,
            "image_size": self.image_size,
            "min_size": self.min_size,
            "recipe": self.recipe.to_dict(),
            "seed": self.seed,
        }

    def load_data(self) -> DataSet:
        return load_set(
            self.data,
            self.data_dir,
            min_size=self.min_size,
            image_size=self.image_size,
            image_memory=self.image_memory,
            pack=self.pack,
        )

    def create_model(self, data: DataSet | Images) -> nn.Module:
        """Return the network with initial weights that depend on the seed."""
        from lrnas.models.build import create_model  # imports timm, which takes seconds

        torch.manual_seed(self.seed)
        return create_model(
            self.architecture,
            data.num_classes,
            data.channels,
            init=self.recipe.init,  # type: ignore[arg-type]  # checked by the recipe
            drop_rate=self.recipe.drop_rate,
        )

    def macs(self, data: DataSet) -> int:
        """Return the multiply-accumulates for one image as deployed, at the image size of the training."""
        size = self.recipe.crop or data.image_size
        shape = (size, data.num_classes, data.channels)
        return make_plan(self.architecture, *shape, deployed=True).cost.macs

    @property
    def cache(self) -> Path:
        return data_folder(self.data_dir)

    def run(
        self,
        model: nn.Module,
        data: DataSet,
        folder: Path | None,
        device: Device,
        *,
        compile_model: bool = False,
        report: Report | None = None,
    ) -> Result:
        """Train a model in this process, or continue from the checkpoint in the folder.

        Args:
            model: The network from `create_model`.
            data: The data set from `load_data`.
            folder: Where checkpoints are written; None to write none.
            device: Where to train.
            compile_model: Whether to use `torch.compile`.
            report: Callback after every epoch.

        Returns:
            The outcome.
        """
        return train(
            model,
            data,
            self.recipe,
            seed=self.seed,
            device=device,
            folder=folder,
            identity=self.identity(data),
            cache=self.cache,
            compile_model=compile_model,
            report=report,
        )

    def run_trainable(
        self, folder: Path, device: Device, load_data: Callable[[], DataSet], tell: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        """Train with the custom training function of the job, or continue from the checkpoint in the folder.

        Args:
            folder: Where checkpoints are written.
            device: Where to train.
            load_data: Function that returns the data set, called when the training function first uses `run.data`.
            tell: Callback after every epoch; it gets the result of `Run.progress`.

        Returns:
            The status, the accuracies of all epochs, the seconds they took and the last metrics.
        """
        assert self.trainable is not None and self.images is not None
        run = Run(
            self.create_model(self.images).to(device),
            self.recipe.epochs,
            folder,
            seed=self.seed,
            device=device,
            recipe=self.recipe,
            identity=self.identity(self.images),
            load_data=None if self.data == OWN_DATA else load_data,
            tell=tell,
        )
        return {"status": train_with(self.trainable, run), **run.progress()}
