"""`lrnas search`, from the name of a space to a study with a front.

`search` puts the parts together: the space, the data and recipe every network is trained with, the study that keeps the
record, and Ray Tune that runs the trials. The same call continues a study; a larger budget extends it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import optuna

from lrnas.arch import Architecture
from lrnas.cluster import WorkerOptions, pick_workers, running_ray
from lrnas.data import data_folder, is_stream, load_set, shown_name
from lrnas.errors import LrnasError, UnknownName, closest
from lrnas.events import SearchEvents
from lrnas.job import OWN_DATA, Images, Job
from lrnas.manifest import (
    DATA_NAME,
    MANIFEST,
    NAMES_ALONE,
    RETRAINS,
    OtherSettings,
    StudyError,
    check_manifest,
    has_results,
)
from lrnas.objectives import RETRAINED, Costs, Limits, Objective, pick_objectives
from lrnas.plan import TIMM, make_plan, training_size
from lrnas.recipes import InvalidRecipe, Recipe, get_recipe
from lrnas.record import Record
from lrnas.reproduce import SMALLEST_INPUT
from lrnas.rungs import rung_epochs
from lrnas.samplers import check_sampler, make_sampler
from lrnas.search_view import watched
from lrnas.shelf import begin_anew, is_there, study_folder, study_names, trials_folder
from lrnas.shell_lines import Whereabouts
from lrnas.space import SearchSpace, load_space
from lrnas.storage import DATABASE, open_storage
from lrnas.study import Study
from lrnas.trainable import Trainable, load_trainable
from lrnas.within import find_within

if TYPE_CHECKING:
    from lrnas.latency import Latency

__all__ = [
    "name_metrics",
    "open_record",
    "open_study",
    "search",
    "study_names",
    "trials_folder",
]

FACTOR = 3
"""Of epochs from rung to rung, and of trials at a rung to those that go on."""
QUICK_EPOCHS = {"digits": 3}
"""For sets that are learned in no time, instead of the recipe's epochs."""
SAMPLED, SAMPLING = 24, 20.0
"""Networks whose layers are measured before trials run on the same device, and the seconds for that."""


@watched
def search(
    space: str,
    *,
    budget: int,
    name: str | None = None,
    data: str | None = None,
    data_dir: str | Path | None = None,
    image_size: int | None = None,
    recipe: str = "fast",
    epochs: int | None = None,
    changes: Mapping[str, Any] | None = None,
    batch_norm: bool | None = True,
    granularity: str | None = None,
    objectives: Sequence[str] = ("accuracy", "macs"),
    sampler: str = "front",
    min_epochs: int | None = None,
    max_macs: int | None = None,
    min_macs: int | None = None,
    max_params: int | None = None,
    max_latency: float | None = None,
    latency_device: str | None = None,
    latency_batch: int = 1,
    storage: str | None = None,
    studies: str | Path = "studies",
    warm_start: str | None = None,
    seed: int = 0,
    trainable: str | Callable[..., object] | None = None,
    input_shape: tuple[int, int, int] | None = None,
    num_classes: int | None = None,
    events: SearchEvents | None = None,
    progress: bool = True,  # see `watched`
    **worker_options: Unpack[WorkerOptions],
) -> Study:
    """Search a space for the networks with the best accuracy for their cost; the study that has them.

    The arguments are those of the command line, which explains them. `trainable` is also taken as a function itself.
    How it goes is told on stderr, or to `events` of one's own, or with `progress=False` to nobody.
    """
    events = events or SearchEvents()
    if budget < 1:
        raise LrnasError(f"the budget is a number of trials, at least 1; got {budget}")
    own = None if trainable is None else load_trainable(trainable)
    workers = pick_workers(**worker_options, files=() if own is None else own.files)
    is_timm = space.startswith(TIMM)
    found = load_space(space, granularity=granularity, batch_norm=None if is_timm else batch_norm)
    images = _own_images(own, input_shape, num_classes, data, image_size)
    source = data or ("cifar10" if workers.gpus > 0 else "digits")

    def prepare(size: int | None) -> _Training:
        return _Training(found, source, data_dir, size, seed, recipe, epochs, dict(changes or {}), own, images)

    training = prepare(image_size)
    for line in training.remarks:
        events.say(line)
    first = max(1, training.recipe.epochs // FACTOR**2) if min_epochs is None else min_epochs
    rungs = rung_epochs(first, training.recipe.epochs, FACTOR)
    name = name or _default_name(space, training, storage, studies, events.say)
    if "@" in name:
        raise StudyError(f"a study's name has no @, which marks networks trained again; got {name!r}; give another")
    folder = study_folder(studies, name)
    goals = pick_objectives(objectives)
    check_sampler(sampler)
    limits = Limits(max_macs, min_macs, max_params)
    reachable = find_within(found, limits, training.cost)  # before anything is written
    kept = open_storage(storage, folder, events.say)
    record = optuna.create_study(
        storage=kept,
        study_name=name,
        directions=[goal.direction for goal in goals],
        load_if_exists=True,
    )
    begun = record.user_attrs.get(MANIFEST, {})
    size = begun.get("image_size", training.data.image_size)
    if image_size is None and is_stream(source) and size != training.data.image_size and has_results(record):
        events.say(f"{name} was begun with images of {size}×{size} pixels, and goes on with these")
        training = prepare(size)
        reachable = find_within(found, limits, training.cost)

    def pin(record: optuna.Study) -> dict[str, Any]:
        if "latency" in objectives or max_latency is not None:
            begun = record.user_attrs.get(MANIFEST, {})
            training.open_latency(latency_device, latency_batch, int(workers.cpus), begun, events.say)
        return check_manifest(record, training.manifest(space, [goal.name for goal in goals], rungs))

    try:
        manifest = pin(record)
    except OtherSettings as error:
        record = begin_anew(record, error, trials_folder(studies, name), goals, events.say)
        manifest = pin(record)
    if manifest["data"] != training.data.identity:
        events.say(NAMES_ALONE.format(name))
    training.measure_latency(manifest)
    name_metrics(record, goals)
    if max_latency is not None:
        limits = dataclasses.replace(limits, max_latency=max_latency)
        reachable = find_within(found, limits, training.guess, training.cost)
    study = Study(name, record, goals, manifest, found, training.cost, limits, training.guess)
    # each takes seconds, one of the processor, one of waiting
    with _read_ahead(record), running_ray(workers) as workers:
        # a study that goes on must not draw the numbers it began with again
        own_seed = (seed + 1_000_003 * len(record.get_trials(deepcopy=False))) % 2**32
        record.sampler = make_sampler(sampler, own_seed, study)
        if warm_start is not None:
            taken = study.import_from(open_study(warm_start, storage=storage, studies=studies))
            events.say(f"{taken} networks of {warm_start} taken over")
        study.enqueue({**found.points, **found.seeds})
        if reachable is not None and not study.spent():  # the sampler may not meet one by itself
            record.enqueue_trial(reachable)
        study.release_orphans()
        done = study.spent()
        if budget < done:
            raise StudyError(f"{name} has spent {done} trials already; got a budget of {budget}; give {done} or more")
        events.started(study, budget, training.dense_macs())
        from lrnas.tuning import run_trials

        run_trials(
            study,
            lambda proposal: training.job(proposal.architecture),
            trials_folder(studies, name),
            budget=budget,
            rungs=rungs,
            factor=FACTOR,
            workers=workers,
            notify=events.changed,
        )
    return study


def _default_name(
    space: str, training: _Training, storage: str | None, studies: str | Path, say: Callable[[str], None]
) -> str:
    """Of the space and the data; where it is there, the one from before folders were called by their last part."""
    name, before = (f"{re.sub('[:@]', '-', Path(space).stem)}-{part}" for part in training.names())
    return before if name != before and is_there(before, storage, studies, say) else name


def name_metrics(study: optuna.Study, objectives: Sequence[Objective]) -> None:
    """Tell Optuna's own tools what the values of trials are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental, by Optuna's own count
        study.set_metric_names([objective.name for objective in objectives])


@contextmanager
def _read_ahead(study: optuna.Study) -> Iterator[None]:
    """Have Optuna read all trials while something else is waited for; who asks for them then waits for that alone."""

    def read() -> None:
        with suppress(Exception):  # it will come up again
            study.get_trials(deepcopy=False)
        with suppress(Exception):
            import lrnas.tuning  # noqa: F401  # with Ray Tune, another second

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


class _Training:
    """How every network of a study is trained."""

    def __init__(
        self,
        space: SearchSpace,
        data: str,
        data_dir: str | Path | None,
        image_size: int | None,
        seed: int,
        recipe: str,
        epochs: int | None,
        changes: dict[str, Any],
        trainable: Trainable | None,
        own: Images | None,
    ) -> None:
        self.space = space
        self.smallest = max(SMALLEST_INPUT.get(backbone, 32) for backbone in space.backbones)
        self.data_dir = None if data_dir is None else str(data_dir)
        if image_size is None and own is None and is_stream(data):
            image_size = training_size(space.backbones)
        self.image_size = image_size
        self.seed = seed
        self.trainable = trainable
        self.latency: Latency | None = None
        self.remarks: list[str] = []
        """On the data."""
        self.dearest: float | None = None
        """The highest latency of a named network, as the study had it when it began."""
        if own is None:
            loaded = load_set(data, data_dir, min_size=self.smallest, image_size=image_size)
            self.data, num_images, own_crops = Images.of(loaded), len(loaded.train), loaded.own_crops
            self.remarks = loaded.remarks()
        else:
            self.data, num_images, own_crops = own, sys.maxsize, True  # as many as there may be
            data = OWN_DATA
            if own.image_size < self.smallest:
                raise LrnasError(
                    f"images have at least {self.smallest} pixels a side here; got --input with {own.image_size}; "
                    "enlarge them"
                )
        self.named = data
        if epochs is None and "epochs" not in changes:
            epochs = QUICK_EPOCHS.get(data)
        if epochs is not None:
            changes["epochs"] = epochs
        self.recipe: Recipe = get_recipe(
            recipe,
            space.backbones[0],
            self.data.image_size,
            num_images,
            changes,
            own_crops=own_crops,
        )
        if self.recipe.all_images:
            raise InvalidRecipe("a search chooses by the validation images; got all_images; set all_images=false")

    def names(self) -> tuple[str, str]:
        """What a study is called after that is given no name, now and once: by the whole path of a folder."""
        code = f"-{self.trainable.short_name}" if self.trainable and self.named != OWN_DATA else ""
        before = re.sub("[/@]", "-", self.data.name) + code
        shown = shown_name(self.named)
        if not is_stream(self.named) or shown == self.data.name:
            return before, before
        return re.sub(r"[^\w.-]+", "-", re.sub(r"^\w+[:/]", "", shown)) + code, before

    def job(self, architecture: Architecture) -> Job:
        job = Job(architecture, self.named, self.recipe, self.seed, self.smallest, self.data_dir, self.image_size)
        return job if self.trainable is None else dataclasses.replace(job, trainable=self.trainable, images=self.data)

    @property
    def input_size(self) -> int:
        return self.recipe.crop or self.data.image_size

    def open_latency(
        self,
        device: str | None,
        batch: int,
        threads: int,
        begun: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """Have costs include the latency, on a device of this machine; what a study that was begun measured stays."""
        from lrnas.latency import REFERENCES, Conditions, Latency, LatencyTable, find_device, table_file  # with timm

        found = find_device(device)
        conditions = Conditions.here(found, batch, threads=max(1, threads))
        file = table_file(data_folder(self.data_dir))
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

    def manifest(self, source: str, objectives: list[str], rungs: tuple[int, ...]) -> dict[str, Any]:
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
            "source": source,
            "space": self.space.to_dict(),
            "trainable": None if self.trainable is None else self.trainable.name,
            "data": self.data.identity,
            **({DATA_NAME: shown_name(self.named)} if is_stream(self.named) else {}),
            "image_size": self.data.image_size,
            "recipe": self.recipe.to_dict(),
            "rungs": list(rungs),
            "seed": self.seed,
            "objectives": objectives,
            "reference": reference,  # up to which hypervolumes are taken
            **latency,
        }

    def _named(self) -> list[Architecture]:
        named = [*self.space.points.values(), *self.space.seeds.values()]
        return named or [Architecture(backbone) for backbone in self.space.backbones]


def _own_images(
    trainable: Trainable | None,
    input_shape: tuple[int, int, int] | None,
    num_classes: int | None,
    data: str | None,
    image_size: int | None,
) -> Images | None:
    """What people's own code says of the data it brings; None where the data are those of a set."""
    if input_shape is None and num_classes is None:
        return None
    if input_shape is None or num_classes is None or trainable is None:
        got = {"--input": input_shape, "--classes": num_classes, "--trainable": trainable}
        missing = " and ".join(option for option, value in got.items() if value is None)
        raise LrnasError(f"data of your own need --input, --classes and --trainable; got no {missing}; give all three")
    if data is not None or image_size is not None:
        raise LrnasError("--input is for data of your own; got --data or --image-size with it; give one or the other")
    channels, rows, columns = input_shape
    if rows != columns:
        raise LrnasError(f"networks are counted for square images; got {rows}x{columns}; give the sides one length")
    if min(channels, rows, num_classes) < 1:
        raise LrnasError(f"channels, pixels and classes are above 0; got {channels}, {rows} and {num_classes}")
    what = f"own data of {trainable.name}, {channels}x{rows}x{columns}, {num_classes} classes"
    return Images(trainable.short_name, what, channels, rows, num_classes)


def open_study(name: str, *, storage: str | None = None, studies: str | Path = "studies") -> Record:
    """A search that exists, to look at."""
    record = open_record(name, storage=storage, studies=studies)
    if search := record.manifest.get(RETRAINS):
        raise StudyError(
            f"a search has a front to choose from; got {name}, networks of {search} that were trained again; "
            f"`{Whereabouts(str(studies), storage).command('retrain', name)}` shows these"
        )
    return record


def open_record(name: str, *, storage: str | None = None, studies: str | Path = "studies") -> Record:
    """The record of a search, or SEARCH@RECIPE for that of its networks trained again, to look at."""
    folder = study_folder(studies, name.partition("@")[0])
    listing = f"; `lrnas studies{Whereabouts(str(studies)).options()}` lists all"
    if storage is None and not (folder / DATABASE).exists():
        raise UnknownName("study", name, study_names(studies), listing)
    kept = open_storage(storage, folder, _say)
    try:
        record = optuna.load_study(study_name=name, storage=kept)
    except KeyError:
        there = closest(name, (study.study_name for study in kept.get_all_studies()))
        raise StudyError(f"the storage has no study {name!r}{there}{listing}") from None
    manifest = record.user_attrs.get(MANIFEST)
    if manifest is None:
        raise StudyError(f"{name} is a study of Optuna's, but not one of lrnas's; give another")
    goals = RETRAINED if RETRAINS in manifest else pick_objectives(manifest["objectives"])
    return Record(name, record, goals, manifest)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
