"""`lrnas search`, from the name of a space to a study with a front.

`search` puts the parts together: the space, the data and recipe every network is trained with, the study that keeps the
record, and Ray Tune that runs the trials. The same call continues a study; a larger budget extends it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import optuna

from lrnas._messages import logger
from lrnas.data.names import is_stream
from lrnas.errors import LrnasError
from lrnas.models.plan import TIMM
from lrnas.searching.early_stopping import rung_epochs
from lrnas.searching.feasible import find_feasible
from lrnas.searching.progress import SearchEvents, progress_view
from lrnas.searching.proposals import Proposals
from lrnas.searching.ray_cluster import pick_workers, running_ray
from lrnas.searching.samplers import check_sampler, make_sampler
from lrnas.searching.settings import SearchSettings, gather_settings, takes_settings
from lrnas.searching.setup import SearchTraining, own_images
from lrnas.spaces.space import load_space
from lrnas.study.folder import (
    begin_anew,
    delete_if_empty,
    study_folder,
    trials_folder,
)
from lrnas.study.ledger import Ledger
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
from lrnas.study.study import Study
from lrnas.training.custom import load_trainable


@takes_settings
def search(
    space: str | SearchSettings, *, events: SearchEvents | None = None, progress: bool = True, **settings: Any
) -> Study:
    """Search a space for the networks with the best accuracy for their cost.

    The same call continues a study that exists; a larger budget extends it. Every argument but the last two is an
    option of `lrnas search` and a key of study files, too (docs/search.md).

    Args:
        space: Search space: a name from `lrnas spaces`, FILE.toml, or timm:MODEL for any CNN of timm. Or a study file
            such as studies/nin-cifar10.toml: it then sets what is not given here.
        {settings}
        events: Receiver of what happens during the search, instead of messages on stderr.
        progress: Whether to show messages and progress on stderr.

    Returns:
        The study, with all trials and the front.
    """
    with progress_view(events, progress) as view:
        return _search(gather_settings(space, settings), view)


def _search(settings: SearchSettings, events: SearchEvents) -> Study:
    storage, studies = settings.storage, settings.studies
    own = None if settings.trainable is None else load_trainable(settings.trainable)
    workers = pick_workers(
        settings.cpus_per_trial,
        settings.gpus_per_trial,
        settings.concurrency,
        settings.address,
        () if own is None else own.files,
    )
    norm = None if settings.space.startswith(TIMM) else settings.batch_norm
    found = load_space(settings.space, granularity=settings.granularity, batch_norm=norm, divisor=settings.divisor)
    images = own_images(own, settings)
    source = settings.data or ("cifar10" if workers.gpus > 0 else "digits")

    training = SearchTraining(settings, found, source, own, images)
    for line in training.remarks:
        logger.info(line)
    rungs = rung_epochs(settings.min_epochs, training.recipe.epochs)
    name = settings.name or training.default_name()
    if "@" in name:
        raise StudyError(f"a study's name has no @, which marks networks trained again; got {name!r}; give another")
    folder = study_folder(studies, name)
    goals = pick_objectives(settings.objectives)
    check_sampler(settings.sampler)
    limits = Limits(settings.max_macs, settings.min_macs, settings.max_params)
    reachable = find_feasible(found, limits, training.cost)  # before anything is written
    record = optuna.create_study(
        storage=open_storage(storage, folder, logger.info),
        study_name=name,
        directions=[goal.direction for goal in goals],
        load_if_exists=True,
    )

    def settle(record: optuna.Study) -> dict[str, Any]:
        """What is the same for all trials, of this search or as it was begun."""
        if "latency" in settings.objectives or settings.max_latency is not None:
            begun = record.user_attrs.get(MANIFEST, {})
            training.open_latency(int(workers.cpus), begun, logger.info)
        return check_manifest(record, training.manifest([goal.name for goal in goals], rungs))

    try:
        size = record.user_attrs.get(MANIFEST, {}).get("image_size", training.data.image_size)
        if (
            settings.image_size is None
            and is_stream(source)
            and size != training.data.image_size
            and has_results(record)
        ):
            logger.info(f"{name} was begun with images of {size}×{size} pixels, and goes on with these")
            training = SearchTraining(dataclasses.replace(settings, image_size=size), found, source, own, images)
            reachable = find_feasible(found, limits, training.cost)

        try:
            manifest = settle(record)
        except OtherSettings as error:
            record = begin_anew(record, error, trials_folder(studies, name), goals, logger.info)
            manifest = settle(record)
        training.measure_latency(manifest)
        name_metrics(record, goals)
        if settings.max_latency is not None:
            limits = dataclasses.replace(limits, max_latency=settings.max_latency)
            reachable = find_feasible(found, limits, training.guess, training.cost)
    except LrnasError:  # it cannot begin
        delete_if_empty(record, folder)
        raise
    keep_limits(record, limits.given(), logger.info)
    study = Study(name, record, goals, manifest)
    proposals = Proposals(Ledger(study), found, training.cost, limits, training.guess)
    # each takes seconds, one of the processor, one of waiting
    with _read_ahead(record), running_ray(workers) as workers:
        # a study that goes on must not draw the numbers it began with again
        own_seed = (settings.seed + 1_000_003 * len(record.get_trials(deepcopy=False))) % 2**32
        record.sampler = make_sampler(settings.sampler, own_seed, proposals)
        if settings.warm_start is not None:
            taken = proposals.import_from(open_study(settings.warm_start, storage=storage, studies=studies))
            logger.info(f"{taken} networks of {settings.warm_start} taken over")
        _line_up(proposals, reachable, settings.budget)
        events.started(proposals, settings.budget, training.dense_macs())
        from lrnas.searching.ray_tune import run_trials

        run_trials(
            proposals,
            lambda proposal: training.job(proposal.architecture),
            trials_folder(studies, name),
            budget=settings.budget,
            rungs=rungs,
            workers=workers,
            notify=events.changed,
        )
    return study


def _line_up(proposals: Proposals, reachable: dict[str, Any] | None, budget: int) -> None:
    """Have the named networks wait first, with one that keeps the limits, and what a driver that died left."""
    study = proposals.study
    proposals.enqueue({**proposals.space.points, **proposals.space.seeds})
    if reachable is not None and not study.spent():  # the sampler may not meet one by itself
        study.optuna_study.enqueue_trial(reachable)
    proposals.ledger.release_orphans()
    done = study.spent()
    if budget < done:
        raise StudyError(f"{study.name} has spent {done} trials already; got a budget of {budget}; give {done} or more")


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
