"""How the networks of a search are trained, and what each costs before it is: one for all trials of a study."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import smallest_input
from lrnas.data.catalog import load_set
from lrnas.data.names import data_folder, is_stream, shown_name
from lrnas.errors import LrnasError
from lrnas.models.plan import make_plan, training_size
from lrnas.recipes import InvalidRecipe, Recipe, get_recipe
from lrnas.searching.settings import SearchSettings
from lrnas.spaces.space import SearchSpace
from lrnas.study.manifest import SETTINGS, names_of
from lrnas.study.objectives import Costs
from lrnas.training.custom import Trainable
from lrnas.training.job import OWN_DATA, Images, Job

if TYPE_CHECKING:
    from lrnas.profiling.latency_table import Latency

FEW = 100
"""Validation images, below which it is said how coarse their accuracies are."""
QUICK_EPOCHS = {"digits": 3}
"""For sets that are learned in no time, instead of the recipe's epochs."""
SAMPLED, SAMPLING = 24, 20.0
"""Networks whose layers are measured before trials run on the same device, and the seconds for that."""


class SearchTraining:
    """How every network of a study is trained."""

    def __init__(
        self, settings: SearchSettings, space: SearchSpace, data: str, trainable: Trainable | None, own: Images | None
    ) -> None:
        self.settings = settings
        self.space = space
        self.smallest = max(smallest_input(backbone) for backbone in space.backbones)
        self.image_size = settings.image_size
        if self.image_size is None and own is None and is_stream(data):
            self.image_size = training_size(space.backbones)
        self.trainable = trainable
        self.latency: Latency | None = None
        self.remarks: list[str] = []
        """On the data."""
        self.classes: tuple[str, ...] = ()
        self.dearest: float | None = None
        """The highest latency of a named network, as the study had it when it began."""
        if own is None:
            loaded = load_set(data, settings.data_dir, min_size=self.smallest, image_size=self.image_size)
            self.data, num_images, own_crops = Images.of(loaded), len(loaded.train), loaded.own_crops
            self.remarks, self.classes = loaded.remarks(), tuple(loaded.classes)
            if (number := len(loaded.val)) < FEW:
                worth = f"one is {100 / number:.1f} points of accuracy"
                self.remarks.append(f"only {number} validation images choose among networks: {worth}")
        else:
            self.data, num_images, own_crops = own, sys.maxsize, True  # as many as there may be
            data = OWN_DATA
            if own.image_size < self.smallest:
                raise LrnasError(
                    f"images have at least {self.smallest} pixels a side here; got --input with {own.image_size}; "
                    "enlarge them"
                )
        self.named = data
        changes = dict(settings.set or {})
        if settings.epochs is not None:
            changes["epochs"] = settings.epochs
        elif data in QUICK_EPOCHS:
            changes.setdefault("epochs", QUICK_EPOCHS[data])
        self.recipe: Recipe = get_recipe(
            settings.recipe,
            space.backbones[0],
            self.data.image_size,
            num_images,
            changes,
            own_crops=own_crops,
        )
        if self.recipe.all_images:
            raise InvalidRecipe("a search chooses by the validation images; got all_images; set all_images=false")

    def default_name(self) -> str:
        """The name of a study that is given none: space, data and training code."""
        shown = shown_name(self.named)
        if is_stream(self.named) and shown != self.data.name:
            data = re.sub(r"[^\w.-]+", "-", re.sub(r"^\w+[:/]", "", shown))
        else:
            data = re.sub("[/@]", "-", self.data.name)
        code = f"-{self.trainable.short_name}" if self.trainable and self.named != OWN_DATA else ""
        return f"{re.sub('[:@]', '-', Path(self.settings.space).stem)}-{data}{code}"

    def job(self, architecture: Architecture) -> Job:
        seed, folder = self.settings.seed, self.settings.data_dir
        job = Job(architecture, self.named, self.recipe, seed, self.smallest, folder, self.image_size)
        return job if self.trainable is None else dataclasses.replace(job, trainable=self.trainable, images=self.data)

    @property
    def input_size(self) -> int:
        return self.recipe.crop or self.data.image_size

    def open_latency(self, threads: int, begun: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """Have costs include the latency, on a device of this machine; what a study that was begun measured stays."""
        from lrnas.profiling.latency_table import (  # with timm
            REFERENCES,
            Conditions,
            Latency,
            LatencyTable,
            find_device,
            table_file,
        )

        found = find_device(self.settings.latency_device)
        conditions = Conditions.here(found, self.settings.latency_batch, threads=max(1, threads))
        file = table_file(data_folder(self.settings.data_dir))
        say(f"latency: measuring layers on {conditions}; kept in {file}")
        table = LatencyTable(conditions, file, found)
        self.latency = Latency(table, self.input_size, self.data.num_classes, self.data.channels)
        self.dearest = begun.get("reference", {}).get("latency")
        if self.dearest is None:
            self.latency = self.latency.calibrated(self._named()[:REFERENCES])

    def measure_latency(self, manifest: Mapping[str, Any]) -> None:
        """Measure the layers of some networks, before trials run on the same device."""
        if self.latency is None:
            return
        if "latency" in manifest:
            self.latency = dataclasses.replace(self.latency, factor=manifest["latency"]["factor"])
        some = self.latency.some_networks(self.space, SAMPLED)
        self.latency.prepare([*self._named(), *some], SAMPLING)

    def cost(self, architecture: Architecture) -> Costs:
        """What is known before training, of the network as it is trained."""
        latency = {} if self.latency is None else {"latency": self.latency.of(architecture)}
        return self._count(architecture) | latency

    def guess(self, architecture: Architecture) -> Costs:
        """The same with nothing measured, or next to nothing."""
        latency = {} if self.latency is None else {"latency": self.latency.guess(architecture)}
        return self._count(architecture) | latency

    def dense_macs(self) -> int:
        """Of the space's backbone as it is, in one image of the size that is trained on."""
        return int(self._count(Architecture(self.space.backbones[0]))["macs"])

    def _count(self, architecture: Architecture) -> dict[str, float]:
        data = self.data
        cost = make_plan(architecture, self.input_size, data.num_classes, data.channels, check_fit=False).cost
        return {"macs": cost.macs, "params": cost.params}

    def manifest(self, objectives: list[str], rungs: tuple[int, ...]) -> dict[str, Any]:
        """What must stay the same for trials to be comparable."""
        counts = [self._count(network) for network in self._named()]
        reference = {name: max(count[name] for count in counts) for name in ("macs", "params")}
        latency: dict[str, Any] = {}
        if self.latency is not None and "latency" in objectives:
            latency["latency"] = {**self.latency.table.conditions.to_dict(), "factor": self.latency.factor}
            if self.dearest is None:
                self.dearest = max(map(self.latency.of, self._named()))
            reference["latency"] = self.dearest
        return {
            "source": self.settings.space,
            "space": self.space.to_dict(),
            "trainable": None if self.trainable is None else self.trainable.name,
            "data": self.data.identity,
            **names_of(self.named, self.classes),
            "image_size": self.data.image_size,
            "channels": self.data.channels,
            "num_classes": self.data.num_classes,
            "recipe": self.recipe.to_dict(),
            "rungs": list(rungs),
            "seed": self.settings.seed,
            "objectives": objectives,
            "reference": reference,  # up to which hypervolumes are taken
            **latency,
            SETTINGS: self.settings.to_dict(),
        }

    def _named(self) -> list[Architecture]:
        named = [*self.space.points.values(), *self.space.seeds.values()]
        return named or [Architecture(backbone) for backbone in self.space.backbones]


def own_images(trainable: Trainable | None, settings: SearchSettings) -> Images | None:
    """The images that a function of the user's own loads; None if the images are those of a data set."""
    input_shape, num_classes = settings.input, settings.classes
    if input_shape is None and num_classes is None:
        return None
    if input_shape is None or num_classes is None or trainable is None:
        got = {"--input": input_shape, "--classes": num_classes, "--trainable": trainable}
        missing = " and ".join(option for option, value in got.items() if value is None)
        raise LrnasError(f"data of your own need --input, --classes and --trainable; got no {missing}; give all three")
    if settings.data is not None or settings.image_size is not None:
        raise LrnasError("--input is for data of your own; got --data or --image-size with it; give one or the other")
    channels, rows, columns = input_shape
    if rows != columns:
        raise LrnasError(f"networks are counted for square images; got {rows}x{columns}; give the sides one length")
    if min(channels, rows, num_classes) < 1:
        raise LrnasError(f"channels, pixels and classes are above 0; got {channels}, {rows} and {num_classes}")
    what = f"own data of {trainable.name}, {channels}x{rows}x{columns}, {num_classes} classes"
    return Images(trainable.short_name, what, channels, rows, num_classes)
