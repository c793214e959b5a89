"""Training and costs of the networks of a search, the same for all trials of a study."""

from __future__ import annotations

import dataclasses
import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna

from lrnas._messages import logger
from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import smallest_input
from lrnas.data.catalog import load_set
from lrnas.data.in_memory import DataSet
from lrnas.data.names import Progress, data_folder, is_in_files, shown_name
from lrnas.errors import InvalidArchitecture, LrnasError
from lrnas.models.plan import TIMM, deployed_form, has_norms, make_plan, native_input_size, training_size
from lrnas.recipes import InvalidRecipe, Recipe, get_recipe, tell_small_batches
from lrnas.sampling.front_pruner import REDUCTION_FACTOR
from lrnas.searching.proposals import Proposal
from lrnas.searching.ray_cluster import Workers, tries_mps
from lrnas.searching.settings import SearchSettings
from lrnas.searching.trials_per_gpu import Measurement, share_gpus
from lrnas.spaces.space import SearchSpace
from lrnas.study.levels import FULL, LONGER, SHORT, Level
from lrnas.study.manifest import SETTINGS, START, check_manifest, names_of, read_manifest
from lrnas.study.objectives import Costs, Limits, pick_objectives
from lrnas.training.custom import Trainable
from lrnas.training.job import OWN_DATA, Images, Job, Start

if TYPE_CHECKING:
    from lrnas.profiling.latency_table import Conditions, Latency

FEW_IMAGES = 200
"""Number of validation or test images below which a remark says how coarse their accuracy is."""
QUICK_EPOCHS = {"digits": {"short": 3, "full": 9}}
"""Epochs in place of the recipe's, by data set and level, for data sets that are learned quickly."""
EARLY_CROPS = {"nin": {32: 24}}
"""Size of the crops in the first epochs of short trainings, by family of backbones and size of images. They take less
time, and predict full trainings as well as whole images do (docs/proxy.md)."""
LONGER_FACTOR, FULL_FACTOR = 3, 8
"""A training at level `longer` has 3 times the epochs of a short one, one at level `full` at most 8 times as many."""
FIRST_FINAL_SEED = 1000
"""Seeds of the later levels begin this far above the search's, so that retrainings, which begin at 1, have others."""
LITTLE = 0.1
"""A remark says so if no network of a space saves more than this share of the MACs."""
SAMPLED_NETWORKS, SAMPLING_SECONDS = 24, 20.0
"""Number of networks whose layers are measured before trials run on the same device, and seconds for that."""


SHORT_ONLY = ("epochs", "early_crop")
"""Fields of a recipe that are set for short trainings only: they make trainings shorter."""


class SearchTraining:
    """Training of every network of a study, and its cost before it is trained.

    Args:
        settings: Settings of the search.
        space: The space that is searched.
        data: Name of the data set; not used if the settings have images of the user's own.
        trainable: The user's own training function, or None.
    """

    def __init__(self, settings: SearchSettings, space: SearchSpace, data: str, trainable: Trainable | None) -> None:
        own = _own_images(trainable, settings)
        self.settings, self.space, self.trainable = settings, space, trainable
        self.smallest = max(smallest_input(backbone) for backbone in space.backbones)
        self.image_size = settings.image_size
        if self.image_size is None and own is None and is_in_files(data):
            self.image_size = training_size(space.backbones)
        self.conditions = self._latency_conditions()
        self.latency: Latency | None = None
        self.remarks: list[str] = []
        """Remarks about the data and the space, for people."""
        self.classes: tuple[str, ...] = ()
        self.num_images: tuple[int, ...] = ()
        """Numbers of training, validation and test images, including those that cannot be read."""
        self.max_latency: float | None = None
        """Highest latency of the named networks, measured when the study began."""
        if own is None:
            loaded = load_set(
                data,
                settings.data_dir,
                min_size=self.smallest,
                image_size=self.image_size,
                image_memory=settings.image_memory,
                pack=settings.pack,
            )
            self._loaded = loaded if trainable is None else None  # a function may use no images
            self.data_name = data
            self.data, num_images, own_crops = Images.of(loaded), len(loaded.train), loaded.own_crops
            self.remarks, self.classes = loaded.remarks(), tuple(loaded.classes)
            self.num_images = loaded.num_images
            origin = f" ({loaded.split})" if loaded.split else ""
            self.remarks += tell_few_images(len(loaded.val), f"validation images{origin}")
        else:
            self.data_name, self._loaded = OWN_DATA, None
            self.data, num_images, own_crops = own, sys.maxsize, True  # the number of images is unknown
            if own.image_size < self.smallest:
                raise LrnasError(
                    f"networks of this space need images of at least {self.smallest} rows and columns; got --input "
                    f"with {own.image_size}; enlarge them"
                )
        changes = dict(settings.set or {})
        if settings.epochs is not None:
            changes["epochs"] = settings.epochs
        elif self.data_name in QUICK_EPOCHS:
            changes.setdefault("epochs", QUICK_EPOCHS[self.data_name][SHORT])
        size, backbone = self.data.image_size, space.backbones[0]
        norms = has_norms(backbone, space.batch_norm)
        if settings.recipe == "fast" and norms and not own_crops and trainable is None:
            crops = next((found for family, found in EARLY_CROPS.items() if backbone.startswith(family)), {})
            changes.setdefault("early_crop", crops.get(size, 0))
        make_recipe = functools.partial(
            get_recipe,
            backbone=backbone,
            image_size=size,
            num_images=num_images,
            norms=norms,
            own_crops=own_crops,
        )
        self.recipe = make_recipe(settings.recipe, changes=changes)
        if trainable is None:  # a function makes batches of its own
            usual = make_recipe(settings.recipe, changes=changes, num_images=sys.maxsize)
            self.remarks += tell_small_batches(self.recipe, usual, num_images)
        if self.recipe.all_images:
            raise InvalidRecipe("a search chooses by the validation images; got all_images; set all_images=false")
        self._check_early_crop()
        self.start = None if settings.start_from is None else read_start(settings.start_from, space.backbones)
        if self.start is not None:
            has_classifier = self.start.num_classes == self.data.num_classes
            rest = (
                "" if has_classifier else f"; its classifier is for {self.start.num_classes} classes, so it starts anew"
            )
            self.remarks.append(f"networks start from the weights in {self.start.file}{rest}")
        self.input_size = self.recipe.crop or size
        self.remarks += self._tell_little(self._largest_saving())
        if settings.final_epochs is not None and not settings.finals:
            self.remarks.append(f"--final-epochs {settings.final_epochs} has no effect without finals (--finals 0)")
        first = settings.min_epochs
        if first is None and self.recipe.schedule == "one_cycle":
            # the learning rate is high until shortly before the end: accuracies rank networks only then (docs/proxy.md)
            first = self.recipe.epochs
        self.rungs = rung_epochs(first, self.recipe.epochs)
        self.objectives = pick_objectives(settings.objectives)
        self.levels = self._make_levels(make_recipe)

    def _check_early_crop(self) -> None:
        """Raise InvalidRecipe if a named network cannot take the crops of the first epochs."""
        if size := self.recipe.early_crop:
            dense = {backbone: Architecture(backbone) for backbone in self.space.backbones}
            for name, network in (self.space.points or dense).items():
                try:
                    make_plan(network, size, self.data.num_classes, self.data.channels)
                except InvalidArchitecture as error:
                    why = str(error).rpartition(";")[0]
                    raise InvalidRecipe(f"early_crop={size} is too small for {name}: {why}; set early_crop=0") from None

    def _make_levels(self, make_recipe: Callable[..., Recipe]) -> dict[str, Level]:
        """The levels by name, from the shortest training to the longest; `longer` only if it is clearly between."""
        settings, recipe = self.settings, self.recipe
        short = Level(SHORT, recipe, (settings.seed,))
        if not settings.finals:
            return {SHORT: short}
        first = settings.seed + FIRST_FINAL_SEED
        seeds = tuple(range(first, first + settings.final_seeds))
        changes = {name: value for name, value in (settings.set or {}).items() if name not in SHORT_ONLY}
        epochs = settings.final_epochs or QUICK_EPOCHS.get(self.data_name, {}).get(FULL)
        given = {} if epochs is None else {"epochs": epochs}
        try:
            full = make_recipe("full", changes=changes | given)
        except InvalidRecipe:  # for example changes of another schedule
            full = make_recipe("full", changes=given)
        if settings.final_epochs is None:
            full = dataclasses.replace(full, epochs=min(full.epochs, FULL_FACTOR * recipe.epochs))
            if full.epochs <= recipe.epochs:
                full = recipe  # the search trains in full already; the finals add seeds
        longer = dataclasses.replace(recipe, epochs=LONGER_FACTOR * recipe.epochs, early_crop=0)
        is_between = 2 * longer.epochs <= full.epochs
        levels = [short, *([Level(LONGER, longer, seeds[:1])] if is_between else []), Level(FULL, full, seeds)]
        return {level.name: level for level in levels}

    def _tell_little(self, saving: float) -> list[str]:
        """A remark if a search can save only a small share of the MACs, else none."""
        some = f"a search can save at most {100 * saving:.1f} % of the MACs of {self.space.name} (docs/choosing.md)"
        return [some] * (saving < LITTLE)

    def _largest_saving(self) -> float:
        """The largest share of MACs that a network of the space saves, for timm models; 1 for other backbones.

        Raises LrnasError if a model cannot take the images.
        """
        backbones, data = self.space.backbones, self.data
        if not all(backbone.startswith(TIMM) for backbone in backbones):
            return 1.0

        def find(*shape: int) -> float:
            savings = []
            for small in self.space.smallest():
                unchanged = dataclasses.replace(small, layers={}, divisor=None)
                costs = [make_plan(network, *shape).cost for network in (small, unchanged)]
                savings.append(1 - costs[0].macs / costs[1].macs)
            return max(savings)

        try:
            return find(self.input_size, data.num_classes, data.channels)
        except LrnasError as error:
            given, own, name = self.input_size, native_input_size(backbones[0]), self.space.name
            takes = f"{name} takes images of {own}×{own} pixels; those of {self.data_name} are {given}×{given} here"
            advice = f"give --image-size {own}" if is_in_files(self.data_name) else "choose images from files"
            little = "".join(f"; {remark}" for remark in self._tell_little(find()))
            raise LrnasError(f"{takes}; {advice}, or another model{little}") from error

    @property
    def loaded(self) -> DataSet:
        """The data set; only without a training function of the user's own."""
        assert self._loaded is not None
        return self._loaded

    def prepare_data(self, progress: Progress) -> int:
        """Pack images from files, unless they are packed; workers then find the pack.

        Args:
            progress: Callback that shows the progress.

        Returns:
            The number of images that cannot be read and are left out.
        """
        if self._loaded is None:
            return 0
        self._loaded.prepare(progress)
        return self._loaded.num_unreadable

    def measurement(self, workers: Workers, limits: Limits, feasible: Mapping[str, Any] | None) -> Measurement | None:
        """What decides how many trials share a GPU; None if they share none, or if the settings decide it.

        Args:
            workers: Resources of the workers. Their share of a GPU is used if nothing can be measured.
            limits: Limits of the search. Named networks within them are measured.
            feasible: A point within the limits, if no named network is.
        """
        if self.settings.gpus_per_trial is not None or self.trainable is not None or not tries_mps(workers):
            return None
        folder = data_folder(self.settings.data_dir)
        return Measurement(workers, self.networks_within(limits, feasible), self.recipe, self.loaded, folder)

    def share_gpus(self, measurement: Measurement) -> Workers:
        """Let as many trials share a GPU as train fastest together.

        Args:
            measurement: The result of `measurement`.

        Returns:
            The workers, with their share of a GPU and the number of trials that there is room for.
        """
        largest_batch = max(level.recipe.batch_size for level in self.levels.values())
        return share_gpus(measurement, image_memory=self.settings.image_memory, largest_batch=largest_batch)

    def named(self) -> dict[str, Architecture]:
        """The named networks of the space, as they are trained: first the reference networks, then the uniform ones."""
        return {**self.space.points, **self.space.uniform}

    def networks_within(self, limits: Limits, feasible: Mapping[str, Any] | None) -> list[Architecture]:
        """Named networks within the limits.

        Args:
            limits: Limits of the search.
            feasible: A point within the limits, which is used if no named network is.
        """
        networks = [network for network in self.named().values() if not limits.excess(self.guess(network))]
        return networks or [self.space.architecture(feasible) if feasible else Architecture(self.space.backbones[0])]

    def beyond(self, limits: Limits) -> dict[str, dict[str, float]]:
        """The named networks beyond the limits, and by how much, as `Limits.excess` returns it."""
        excess = {name: limits.excess(self.guess(network)) for name, network in self.named().items()}
        return {name: found for name, found in excess.items() if found}

    def study_name(self) -> str:
        """The default name of the study: the name of the space, of the data and of the user's own function."""
        data = self.data.name.replace("/", "-").replace("@", "-")
        if is_in_files(self.data_name) and (shown := shown_name(self.data_name)) != self.data.name:
            data = re.sub(r"[^\w.-]+", "-", re.sub(r"^\w+[:/]", "", shown))
        function = f"-{self.trainable.short_name}" if self.trainable and self.data_name != OWN_DATA else ""
        return f"{re.sub('[:@]', '-', Path(self.settings.space).stem)}-{data}{function}"

    def may_resize_to(self, image_size: int) -> bool:
        """Whether images have another size and may be resized to this one."""
        is_free = self.settings.image_size is None and is_in_files(self.data_name)
        return is_free and image_size != self.data.image_size

    def job_at(self, level: str, proposal: Proposal) -> Job:
        """The training of a proposed network at a level."""
        settings, recipe = self.settings, self.levels[level].recipe
        job = Job(
            proposal.architecture,
            self.data_name,
            recipe,
            settings.seed if proposal.seed is None else proposal.seed,
            self.smallest,
            settings.data_dir,
            self.image_size,
            settings.image_memory,
            settings.pack,
        )
        identity = None if self.data_name == OWN_DATA else self.data.identity
        job = dataclasses.replace(job, start=self.start, data_identity=identity)
        return job if self.trainable is None else dataclasses.replace(job, trainable=self.trainable, images=self.data)

    def pin(self, study: optuna.Study) -> dict[str, Any]:
        """Write the manifest of a new study, or check that an existing study was begun with the same settings.

        Args:
            study: The study.

        Returns:
            The manifest to use.
        """
        if stored := read_manifest(study):
            check_manifest(study, self.manifest())  # before anything is measured
        if self.conditions is not None:
            self._open_latency(self.conditions, stored)
        return check_manifest(study, self.manifest())

    def _latency_conditions(self) -> Conditions | None:
        """The conditions under which latency is measured on this machine; None if it is not needed."""
        settings = self.settings
        if "latency" not in settings.objectives and settings.max_latency is None:
            return None
        from lrnas.profiling.latency_table import Conditions  # imports timm
        from lrnas.profiling.timing import find_device

        threads = max(1, int(settings.cpus_per_trial))
        return Conditions.here(find_device(settings.latency_device), settings.latency_batch, threads=threads)

    def _open_latency(self, conditions: Conditions, manifest: Mapping[str, Any]) -> None:
        """Make latency on a device of this machine a cost; a study keeps the values measured when it was begun."""
        from lrnas.profiling import latency_table as tables
        from lrnas.profiling.timing import find_device

        file = tables.table_file(data_folder(self.settings.data_dir))
        logger.info(f"latency: measuring layers on {conditions}; kept in {file}")
        table = tables.LatencyTable(conditions, file, find_device(self.settings.latency_device))
        self.latency = tables.Latency(table, self.input_size, self.data.num_classes, self.data.channels)
        self.max_latency = manifest.get("reference", {}).get("latency")
        if self.max_latency is None:
            networks = self._deployed_networks()
            self.latency = self.latency.calibrated(networks[: tables.REFERENCES])
            if "latency" in self.settings.objectives:
                self.max_latency = max(map(self.latency.of, networks))

    def measure_latency(self, manifest: Mapping[str, Any]) -> None:
        """Measure the layers of some networks before trials run on the same device; do nothing without latency."""
        if self.latency is None:
            return
        if "latency" in manifest:
            self.latency = dataclasses.replace(self.latency, factor=manifest["latency"]["factor"])
        some = self.latency.some_networks(self.space, SAMPLED_NETWORKS)
        self.latency.prepare([*self._deployed_networks(), *map(self._deployed, some)], SAMPLING_SECONDS)

    def cost(self, architecture: Architecture) -> Costs:
        """Costs of a network as deployed: MACs, parameters and, if needed, latency.

        Layers that are not measured yet are measured now.
        """
        latency = {} if self.latency is None else {"latency": self.latency.of(self._deployed(architecture))}
        return self._count(architecture) | latency

    def guess(self, architecture: Architecture) -> Costs:
        """Fast estimate of `cost`, for which little or nothing is measured."""
        latency = {} if self.latency is None else {"latency": self.latency.guess(self._deployed(architecture))}
        return self._count(architecture) | latency

    def dense_macs(self) -> int:
        """Multiply-accumulates of the space's baseline for one image; without one, those of its unchanged backbone."""
        space = self.space
        network = Architecture(space.backbones[0]) if space.baseline is None else space.points[space.baseline]
        return int(self._count(network)["macs"])

    def _count(self, architecture: Architecture) -> dict[str, float]:
        data = self.data
        plan = make_plan(architecture, self.input_size, data.num_classes, data.channels, deployed=True)
        return {"macs": plan.cost.macs, "params": plan.cost.params}

    def _deployed(self, architecture: Architecture) -> Architecture:
        return deployed_form(architecture, self.input_size, self.data.channels)

    def manifest(self) -> dict[str, Any]:
        """The manifest: all settings that must stay the same for trials to be comparable.

        Before `pin`, entries that are measured are None.
        """
        objectives = [objective.name for objective in self.objectives]
        counts = [self._count(network) for network in self._deployed_networks()]
        reference: dict[str, float | None] = {name: max(count[name] for count in counts) for name in ("macs", "params")}
        latency: dict[str, Any] = {}
        if self.conditions is not None and "latency" in objectives:
            factor = None if self.latency is None else self.latency.factor
            latency["latency"] = {**self.conditions.to_dict(), "factor": factor}
            reference["latency"] = self.max_latency
        return {
            "source": self.settings.space,
            "space": self.space.to_dict(),
            "trainable": None if self.trainable is None else self.trainable.name,
            "data": self.data.identity,
            **names_of(self.data_name, self.classes, self.num_images),
            "image_size": self.data.image_size,
            "channels": self.data.channels,
            "num_classes": self.data.num_classes,
            "recipe": self.recipe.to_dict(),
            "rungs": list(self.rungs),
            "seed": self.settings.seed,
            "objectives": objectives,
            "reference": reference,  # the point up to which hypervolumes are computed
            **latency,
            **({} if self.start is None else {START: self.start.identity}),
            SETTINGS: self.settings.to_dict(),
        }

    def _deployed_networks(self) -> list[Architecture]:
        """The named networks of the space, as deployed; without any, its backbones."""
        return [*map(self._deployed, self.named().values())] or [
            Architecture(backbone) for backbone in self.space.backbones
        ]


def tell_few_images(number: int, what: str) -> list[str]:
    """A remark on images by which networks are compared, if there are few of them; else none.

    Args:
        number: Number of these images.
        what: Which images they are.
    """
    worth = f"each is {100 / number:.1f} points of accuracy"
    return [f"networks are compared by only {number} {what}: {worth}"] * (number < FEW_IMAGES)


def read_start(file: str, backbones: Sequence[str]) -> Start:
    """Read the weights that all networks of a space start from.

    Args:
        file: The file of weights.
        backbones: The backbones of the space.
    """
    if len(backbones) > 1 or not backbones[0].startswith(TIMM):
        raise LrnasError(
            f"networks start from weights only in spaces of one model of timm; got --start-from with "
            f"{', '.join(backbones)}; use --space timm:MODEL"
        )
    return Start.read(file, backbones[0].removeprefix(TIMM))


def rung_epochs(min_epochs: int | None, epochs: int) -> tuple[int, ...]:
    """Epochs after which trials may be stopped: `min_epochs`, 3 times as many, 9 times as many, ..., below `epochs`.

    `FrontPruner` decides which trials are stopped.

    Args:
        min_epochs: Epochs that every network is trained for; None: one ninth of `epochs`.
        epochs: Epochs of a full training.
    """
    rung = max(1, epochs // REDUCTION_FACTOR**2) if min_epochs is None else min_epochs
    if not 1 <= rung <= epochs:
        raise LrnasError(f"--min-epochs must be between 1 and the number of epochs, {epochs}; got {rung}; change it")
    rungs = []
    while rung < epochs:
        rungs.append(rung)
        rung *= REDUCTION_FACTOR
    return tuple(rungs)


def _own_images(trainable: Trainable | None, settings: SearchSettings) -> Images | None:
    """The images that the user's own function loads; None if the images are those of a data set."""
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
        raise LrnasError(f"images must be square; got --input with {rows}x{columns}; give as many rows as columns")
    if min(channels, rows, num_classes) < 1:
        raise LrnasError(
            f"channels, rows and classes must be at least 1; got {channels}, {rows} and {num_classes}; change them"
        )
    what = f"own data of {trainable.name}, {channels}x{rows}x{columns}, {num_classes} classes"
    return Images(trainable.short_name, what, channels, rows, num_classes)
