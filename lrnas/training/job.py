"""One training run as data: an architecture, a data set, a recipe, a seed.

A reproduction runs such jobs one after another; with several workers each of them runs the same job on its share of
every batch (`lrnas.training.multi_gpu`).
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
from lrnas.data.names import data_folder, with_absolute_paths
from lrnas.models.plan import canonical_id, make_plan
from lrnas.recipes import Recipe
from lrnas.training.custom import Run, Trainable, train_with
from lrnas.training.loop import EpochReport, Result, train

OWN_DATA = "own data"
"""In place of a set's name, where a function brings its own."""


@dataclass(frozen=True, slots=True)
class Images:
    """What a network is given, as far as a search must know it."""

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
    """Everything that decides what a run comes to. It pickles, and loads its data where it runs."""

    architecture: Architecture
    data: str
    recipe: Recipe
    seed: int
    min_size: int = 1
    """Smaller images are enlarged to this."""
    data_dir: str | None = None
    image_size: int | None = None
    """What images that are read as needed are brought to."""
    loaders: int | None = None
    """Processes that read them; this changes nothing but the time it takes."""
    trainable: Trainable | None = None
    """What trains, if not lrnas."""
    images: Images | None = None
    """With it: what the network is given, so that no data set need be loaded to tell."""

    def __post_init__(self) -> None:
        data, data_dir = with_absolute_paths(self.data, self.data_dir)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "data_dir", data_dir)

    def identity(self, data: DataSet | Images) -> dict[str, Any]:
        """What must be the same for a checkpoint to be this job's."""
        trainable = {} if self.trainable is None else {"trainable": self.trainable.name}
        return {
            **trainable,
            "architecture": canonical_id(self.architecture),
            "data": data.identity,
            "image_size": self.image_size,
            "min_size": self.min_size,
            "recipe": self.recipe.to_dict(),
            "seed": self.seed,
        }

    def load_data(self) -> DataSet:
        return load_set(
            self.data, self.data_dir, min_size=self.min_size, image_size=self.image_size, loaders=self.loaders
        )

    def create_model(self, data: DataSet | Images) -> nn.Module:
        """The network with the weights it starts from, which follow from the seed."""
        from lrnas.models.build import create_model  # with timm: seconds that who only drives a search need not wait

        torch.manual_seed(self.seed)
        return create_model(
            self.architecture,
            data.num_classes,
            data.channels,
            init=self.recipe.init,  # type: ignore[arg-type]  # checked by the recipe
            drop_rate=self.recipe.drop_rate,
        )

    def macs(self, data: DataSet) -> int:
        """Multiply-accumulates for one image as the network is trained on it."""
        size = self.recipe.crop or data.image_size
        return make_plan(self.architecture, size, data.num_classes, data.channels, check_fit=False).cost.macs

    @property
    def cache(self) -> Path:
        return data_folder(self.data_dir)

    def run(
        self,
        model: nn.Module,
        data: DataSet,
        folder: Path | None,
        device: torch.device | str,
        *,
        compile_model: bool = False,
        report: Callable[[EpochReport], None] | None = None,
    ) -> Result:
        """Train the model in this process, or go on from the checkpoint in `folder`."""
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
        self,
        folder: Path,
        device: torch.device | str,
        load_data: Callable[[], DataSet],
        tell: Callable[[dict[str, Any]], object],
    ) -> dict[str, Any]:
        """Have the job's own function train, or go on; `tell` hears of every epoch. What came of it is returned."""
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
        status = train_with(self.trainable, run)
        return {"status": status, **run.progress()}
