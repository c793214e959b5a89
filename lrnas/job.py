"""One training run as data: an architecture, a data set, a recipe, a seed.

A reproduction runs such jobs one after another; with several workers each of them runs the same job on its share of
every batch (`lrnas.workers`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lrnas.arch import Architecture
from lrnas.batches import DataSet
from lrnas.build import create_model
from lrnas.data import data_folder, load_set
from lrnas.plan import canonical_id, make_plan
from lrnas.recipes import Recipe
from lrnas.train import EpochReport, Result, train

__all__ = ["Job"]


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

    def identity(self, data: DataSet) -> dict[str, Any]:
        """What must be the same for a checkpoint to be this job's."""
        return {
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

    def create_model(self, data: DataSet) -> nn.Module:
        """The network with the weights it starts from, which follow from the seed."""
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
