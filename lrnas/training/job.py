"""One training run as data: an architecture, a data set, a recipe and a seed.

`lrnas reproduce` runs jobs one after another. With several workers, every worker runs the same job on its share of each
batch (`lrnas.training.multi_gpu`).
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lrnas.arch.architecture import Architecture
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet
from lrnas.data.names import IMAGE_MEMORY, data_folder, shown_name, with_absolute_paths
from lrnas.errors import LrnasError, UnfitMachine
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


@dataclass(frozen=True, slots=True)
class Start:
    """Trained weights of a timm model, from which networks start that have other filters."""

    file: Path
    identity: str
    """Hash of the file."""
    num_classes: int
    """Classes that the weights were trained for."""

    @classmethod
    def read(cls, file: str | Path, model: str) -> Start:
        """Read the weights of a timm model. Raises LrnasError if they are not its weights.

        Args:
            file: The file: safetensors, or a state dict written by `torch.save`.
            model: Name of the model in timm.
        """
        import timm  # takes seconds
        from timm.models import load_state_dict

        path, config = Path(file).absolute(), timm.get_pretrained_cfg(model)
        try:
            with path.open("rb") as stream:
                identity = hashlib.file_digest(stream, "sha256").hexdigest()[:16]
            weights = load_state_dict(str(path), use_ema=False)
        except OSError as error:
            raise LrnasError(f"cannot read {file}: {error.strerror}; give a file of weights") from None
        except Exception:  # torch.load and safetensors raise all kinds of errors
            raise LrnasError(
                f"{file} contains no weights; give a state dict in safetensors or from torch.save"
            ) from None
        classifiers = getattr(config, "classifier", None) or "fc"
        classifier = f"{_listed(classifiers)[0]}.weight"
        with torch.device("meta"):
            own = timm.create_model(model).state_dict()
        needed = [name for name in own if not name.endswith("num_batches_tracked")]  # PyTorch adds what is missing
        if wrong := [*(name for name in needed if name not in weights), *(name for name in weights if name not in own)]:
            first = f"no {wrong[0]}" if wrong[0] in own else wrong[0]
            raise LrnasError(f"{file} contains {first}, so these are not the weights of {model}; give another file")
        free = {f"{name}.{part}" for name in _listed(classifiers) for part in ("weight", "bias")}
        inputs = {f"{name}.weight" for name in _listed(getattr(config, "first_conv", None))}
        for name in (name for name in needed if name not in free):
            shapes = [list(tensors[name].shape) for tensors in (weights, own)]
            if name in inputs:  # images may have another number of channels
                shapes = [[shape[0], *shape[2:]] for shape in shapes]
            if shapes[0] != shapes[1]:
                got, wanted = ("×".join(map(str, tensors[name].shape)) for tensors in (weights, own))
                raise LrnasError(
                    f"{file} has {name} of {got}, and {model} of {wanted}: these are weights of a network with other "
                    "filters; give those of the unchanged model"
                )
        return cls(path, identity, len(weights[classifier]))

    def arguments(self) -> dict[str, Any]:
        """Arguments of `create_model` for a network that starts from these weights."""
        overlay = {"file": str(self.file), "num_classes": self.num_classes}
        return {"init": "pretrained", "pretrained": True, "pretrained_cfg_overlay": overlay}


def _listed(names: str | Sequence[str] | None) -> list[str]:
    """Names of modules as timm gives them: one, several or none."""
    return [names] if isinstance(names, str) else list(names or ())


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
    start: Start | None = None
    """Weights to start from; None for random weights."""
    data_identity: str | None = None
    """Identity of the images that the search, or another driver, has found; None: whatever images are there."""

    def __post_init__(self) -> None:
        data, data_dir = with_absolute_paths(self.data, self.data_dir)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "data_dir", data_dir)

    def identity(self, data: DataSet | Images) -> dict[str, Any]:
        """Return the facts by which a checkpoint of this job is recognised."""
        return {
            **({} if self.trainable is None else {"trainable": self.trainable.name}),
            **({} if self.start is None else {"start_from": self.start.identity}),
            "architecture": built_id(self.architecture),
            "data": data.identity,
            "image_size": self.image_size,
            "min_size": self.min_size,
            "recipe": self.recipe.to_dict(),
            "seed": self.seed,
        }

    def load_data(self) -> DataSet:
        data = load_set(
            self.data,
            self.data_dir,
            min_size=self.min_size,
            image_size=self.image_size,
            image_memory=self.image_memory,
            pack=self.pack,
        )
        return self.check_images(data)

    def check_images(self, data: DataSet) -> DataSet:
        """Return the data set, as it was loaded on this machine. Raises UnfitMachine if it has other images."""
        if self.data_identity not in (None, data.identity):
            raise UnfitMachine(
                f"{shown_name(self.data)} on {socket.gethostname()} has other images than those that the study began "
                "with; give every machine the same images, and do not change them"
            )
        return data

    def create_model(self, data: DataSet | Images) -> nn.Module:
        """Return the network with initial weights that depend on the seed, or on those that it starts from."""
        from lrnas.models.build import create_model  # imports timm, which takes seconds

        if size := self.recipe.early_crop:
            make_plan(self.architecture, size, data.num_classes, data.channels)  # raises if it is too small
        torch.manual_seed(self.seed)
        how: dict[str, Any] = {"init": self.recipe.init} if self.start is None else self.start.arguments()
        return create_model(self.architecture, data.num_classes, data.channels, drop_rate=self.recipe.drop_rate, **how)

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
        report: Report | None = None,
    ) -> Result:
        """Train a model in this process, or continue from the checkpoint in the folder.

        Args:
            model: The network from `create_model`.
            data: The data set from `load_data`.
            folder: Where checkpoints are written; None to write none.
            device: Where to train.
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
