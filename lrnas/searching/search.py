"""`lrnas search`, from the name of a space to a study with a front.

`search` puts the parts together: the space, the data and recipe every network is trained with, the study that keeps the
record, and Ray Tune that runs the trials. The same call continues a study; a larger budget extends it.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Unpack

import optuna

from lrnas._messages import logger
from lrnas.data.names import is_stream
from lrnas.errors import LrnasError
from lrnas.models.plan import TIMM
from lrnas.searching.early_stopping import rung_epochs
from lrnas.searching.feasible import find_within
from lrnas.searching.progress import SearchEvents, with_progress
from lrnas.searching.proposals import Study
from lrnas.searching.ray_cluster import WorkerOptions, pick_workers, running_ray
from lrnas.searching.samplers import check_sampler, make_sampler
from lrnas.searching.setup import SearchTraining, own_images
from lrnas.spaces.space import load_space
from lrnas.study.folder import (
    begin_anew,
    delete_if_empty,
    is_there,
    study_folder,
    trials_folder,
)
from lrnas.study.manifest import (
    MANIFEST,
    OtherSettings,
    StudyError,
    check_manifest,
    has_results,
    keep_limits,
)
from lrnas.study.objectives import Limits, pick_objectives
from lrnas.study.open import name_metrics, open_study
from lrnas.study.storage import open_storage
from lrnas.training.custom import load_trainable

FACTOR = 3
"""Of epochs from rung to rung, and of trials at a rung to those that go on."""


@with_progress
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
    divisor: int | None = None,
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
    progress: bool = True,  # see `with_progress`
    **worker_options: Unpack[WorkerOptions],
) -> Study:
    """Search a space for the networks with the best accuracy for their cost; the study that has them.

    The arguments are those of the command line, which explains them. `trainable` is also taken as a function itself.
    Progress is shown on stderr; with `events`, these are informed instead; with `progress=False`, nothing is shown.
    """
    events = events or SearchEvents()
    if budget < 1:
        raise LrnasError(f"the budget is a number of trials, at least 1; got {budget}")
    own = None if trainable is None else load_trainable(trainable)
    workers = pick_workers(**worker_options, files=() if own is None else own.files)
    is_timm = space.startswith(TIMM)
    norm = None if is_timm else batch_norm
    found = load_space(space, granularity=granularity, batch_norm=norm, divisor=divisor)
    images = own_images(own, input_shape, num_classes, data, image_size)
    source = data or ("cifar10" if workers.gpus > 0 else "digits")

    def prepare(size: int | None) -> SearchTraining:
        return SearchTraining(found, source, data_dir, size, seed, recipe, epochs, dict(changes or {}), own, images)

    training = prepare(image_size)
    for line in training.remarks:
        logger.info(line)
    first = max(1, training.recipe.epochs // FACTOR**2) if min_epochs is None else min_epochs
    rungs = rung_epochs(first, training.recipe.epochs, FACTOR)
    name = name or _default_name(space, training, storage, studies, logger.info)
    if "@" in name:
        raise StudyError(f"a study's name has no @, which marks networks trained again; got {name!r}; give another")
    folder = study_folder(studies, name)
    goals = pick_objectives(objectives)
    check_sampler(sampler)
    limits = Limits(max_macs, min_macs, max_params)
    reachable = find_within(found, limits, training.cost)  # before anything is written
    record = optuna.create_study(
        storage=open_storage(storage, folder, logger.info),
        study_name=name,
        directions=[goal.direction for goal in goals],
        load_if_exists=True,
    )

    def settle(record: optuna.Study) -> dict[str, Any]:
        """What is the same for all trials, of this search or as it was begun."""
        if "latency" in objectives or max_latency is not None:
            begun = record.user_attrs.get(MANIFEST, {})
            training.open_latency(latency_device, latency_batch, int(workers.cpus), begun, logger.info)
        return check_manifest(record, training.manifest(space, [goal.name for goal in goals], rungs))

    try:
        size = record.user_attrs.get(MANIFEST, {}).get("image_size", training.data.image_size)
        if image_size is None and is_stream(source) and size != training.data.image_size and has_results(record):
            logger.info(f"{name} was begun with images of {size}×{size} pixels, and goes on with these")
            training = prepare(size)
            reachable = find_within(found, limits, training.cost)

        try:
            manifest = settle(record)
        except OtherSettings as error:
            record = begin_anew(record, error, trials_folder(studies, name), goals, logger.info)
            manifest = settle(record)
        training.measure_latency(manifest)
        name_metrics(record, goals)
        if max_latency is not None:
            limits = dataclasses.replace(limits, max_latency=max_latency)
            reachable = find_within(found, limits, training.guess, training.cost)
    except LrnasError:  # it cannot begin
        delete_if_empty(record, folder)
        raise
    keep_limits(record, limits.given(), logger.info)
    study = Study(name, record, goals, manifest, found, training.cost, limits, training.guess)
    # each takes seconds, one of the processor, one of waiting
    with _read_ahead(record), running_ray(workers) as workers:
        # a study that goes on must not draw the numbers it began with again
        own_seed = (seed + 1_000_003 * len(record.get_trials(deepcopy=False))) % 2**32
        record.sampler = make_sampler(sampler, own_seed, study)
        if warm_start is not None:
            taken = study.import_from(open_study(warm_start, storage=storage, studies=studies))
            logger.info(f"{taken} networks of {warm_start} taken over")
        _line_up(study, reachable, budget)
        events.started(study, budget, training.dense_macs())
        from lrnas.searching.ray_tune import run_trials

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


def _line_up(study: Study, reachable: dict[str, Any] | None, budget: int) -> None:
    """Have the named networks wait first, with one that keeps the limits, and what a driver that died left."""
    study.enqueue({**study.space.points, **study.space.seeds})
    if reachable is not None and not study.spent():  # the sampler may not meet one by itself
        study.study.enqueue_trial(reachable)
    study.release_orphans()
    done = study.spent()
    if budget < done:
        raise StudyError(f"{study.name} has spent {done} trials already; got a budget of {budget}; give {done} or more")


def _default_name(
    space: str, training: SearchTraining, storage: str | None, studies: str | Path, say: Callable[[str], None]
) -> str:
    """Of the space and the data; where it is there, the one from before folders were called by their last part."""
    name, before = (f"{re.sub('[:@]', '-', Path(space).stem)}-{part}" for part in training.names())
    return before if name != before and is_there(before, storage, studies, say) else name


@contextmanager
def _read_ahead(study: optuna.Study) -> Iterator[None]:
    """Have Optuna read all trials while something else is waited for; who asks for them then waits for that alone."""

    def read() -> None:
        with suppress(Exception):  # it will come up again
            study.get_trials(deepcopy=False)
        with suppress(Exception):
            import lrnas.searching.ray_tune  # noqa: F401  # with Ray Tune, another second

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
