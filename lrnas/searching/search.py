"""`lrnas search`: from settings to a study with a front.

`search` puts the parts together: the space, the training that every network gets, the study that records all trials,
and Ray Tune, which runs them.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import optuna

from lrnas._arguments import checked
from lrnas._messages import logger
from lrnas.errors import LrnasError
from lrnas.searching.feasible import find_feasible
from lrnas.searching.finals import open_levels, tell_end, train_levels, with_finals
from lrnas.searching.progress import SearchEvents, progress_view, tell_interrupted
from lrnas.searching.proposals import Proposals, is_tried
from lrnas.searching.ray_cluster import Workers, check_sendable, pick_workers, running_ray
from lrnas.searching.samplers import make_sampler
from lrnas.searching.settings import SearchSettings, check_settings, gather_settings, load_searched, takes_settings
from lrnas.searching.setup import SearchTraining
from lrnas.study.folder import (
    begin_anew,
    check_folder,
    check_untrained,
    create_optuna_study,
    delete_if_empty,
    is_replaced,
    is_trained,
    study_folder,
    trials_folder,
)
from lrnas.study.ledger import Ledger
from lrnas.study.levels import FULL, SHORT, keep_open, tell_below
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import (
    ADVICE,
    BUDGET,
    OtherSettings,
    StudyError,
    is_other_kind,
    keep_images,
    keep_limits,
    keep_unreadable,
    read_manifest,
    tell_other_images,
)
from lrnas.study.objectives import Limits
from lrnas.study.open import name_metrics, open_search
from lrnas.study.optuna_internals import storage_of
from lrnas.study.storage import open_storage
from lrnas.study.study import Study
from lrnas.training.custom import load_trainable
from lrnas.training.progress import telling_interrupts


@takes_settings
@checked
def search(
    space: str | Path | SearchSettings, *, events: SearchEvents | None = None, progress: bool = True, **settings: Any
) -> Study:
    """Search a space for the networks with the best accuracy for their cost.

    The same call continues a study that exists; a larger budget extends it. Every argument but the last two is an
    option of `lrnas search` and a key of study files, too (docs/search.md).

    Args:
        space: Search space: a name from `lrnas spaces`, FILE.toml, or timm:MODEL for any CNN of timm. Or a study file
            such as studies/nin-cifar10.toml, which sets all arguments that are not given here.
        {settings}
        events: Receiver of the events of the search, which replaces messages on stderr.
        progress: Whether to show messages and progress on stderr.

    Returns:
        The study, with all trials and the front. If the search was interrupted (Ctrl-C, or in a notebook "interrupt the
        kernel"), it stops after the current epochs, warns, and returns the study as it is; its attribute `interrupted`
        is then not 0. An interrupt before the first trial, or a second one, raises `KeyboardInterrupt`; the same call
        continues the search.
    """
    with telling_interrupts("search"), progress_view(events, progress) as view:
        gathered = gather_settings(space, settings)
        study = _search(gathered, view)
    tell_interrupted(study, is_complete=not gathered.finals and num_ended(study) >= gathered.budget)
    return study


class Preparation(NamedTuple):
    """The parts of a search, before anything is written."""

    name: str
    """Name of the study."""
    workers: Workers
    training: SearchTraining
    limits: Limits
    """Limits on the costs of networks, except that on the latency, which is not measured yet."""
    feasible: dict[str, Any] | None
    """A point within the limits, if no named network is."""


def prepare_search(settings: SearchSettings) -> Preparation:
    """Load the space and the data, and refuse what can be refused before anything is written.

    Args:
        settings: The settings of the search.
    """
    check_settings(settings)
    if settings.name is not None:
        _check_name(settings.name)
    trainable = None if settings.trainable is None else load_trainable(settings.trainable)
    if trainable is not None and trainable.function is not None:
        check_sendable(trainable.function)
    workers = pick_workers(
        settings.cpus_per_trial,
        settings.gpus_per_trial,
        settings.concurrency,
        settings.address,
        () if trainable is None else trainable.files,
        settings.trial_timeout,
    )
    space = load_searched(settings)
    data = settings.data or ("cifar10" if workers.gpus > 0 else "digits")
    if settings.name is not None and trainable is None:
        _refuse_other_data(settings, settings.name, data)
    training = SearchTraining(settings, space, data, trainable)
    for remark in training.remarks:
        logger.info(remark)
    name = settings.name or training.study_name()
    open_other(settings, name)
    limits = Limits(settings.max_macs, settings.min_macs, settings.max_params)
    return Preparation(name, workers, training, limits, find_feasible(space, limits, training.cost))


def _check_name(name: str) -> None:
    for sign, use in (("@", "marks retrainings"), (":", "marks trials")):
        if sign in name:
            raise StudyError(f"a study's name must not contain {sign}, which {use}; got {name!r}; give another")
    study_folder("", name)


def _refuse_other_data(settings: SearchSettings, name: str, data: str) -> None:
    """Raise OtherSettings if a study cannot continue with these data, before they are downloaded or read."""
    try:
        study = open_search(name, studies=settings.studies, storage=settings.storage)
    except LrnasError:  # a new study; other reasons are told where it is opened again
        return
    if is_other_kind(study.manifest, data):
        error = OtherSettings(name, tell_other_images(study.manifest, {}), ADVICE)
        check_untrained(study.optuna_study, error, study.where)


def continue_with(training: SearchTraining, study: optuna.Study) -> SearchTraining:
    """The training with which a study continues: images from files keep the size that it was begun with.

    Args:
        training: The training with the settings that are given now.
        study: The study; it may be new.
    """
    size = read_manifest(study).get("image_size")
    if size is None or not training.may_resize_to(size) or not is_trained(study, training.settings.studies):
        return training
    logger.info(f"{study.study_name} was begun with images of {size}×{size} pixels, and continues with this size")
    resized = dataclasses.replace(training.settings, image_size=size)
    return SearchTraining(resized, training.space, training.data_name, training.trainable)


def _search(settings: SearchSettings, events: SearchEvents) -> Study:
    name, workers, training, limits, feasible = prepare_search(settings)
    space = training.space
    folder, checkpoints = study_folder(settings.studies, name), trials_folder(settings.studies, name)

    where = Whereabouts(settings.studies, settings.storage)

    check_folder(folder, settings.storage)

    # the study, which pins what its trials have in common
    stored = create_optuna_study(name, open_storage(settings.storage, folder), training.objectives)
    present = ExitStack()
    try:
        continued, stored, manifest = _pin(training, stored, where)
        if continued is not training:
            training, feasible = continued, find_feasible(space, limits, continued.cost)
        study = Study(name, stored, training.objectives, manifest, where)
        ledger, has_finals = Ledger(study), settings.finals > 0
        # what follows may take minutes; a search with other settings must not take the study for an empty one meanwhile
        present.enter_context(ledger.alive())
        training.measure_latency(manifest)
        if settings.max_latency is not None:
            limits = dataclasses.replace(limits, max_latency=settings.max_latency)
            feasible = find_feasible(space, limits, training.guess, training.cost)
        keep_images(stored, training.data_name, settings.data_dir)
        keep_unreadable(stored, training.prepare_data(events.preparing))
        if beyond := training.beyond(limits):
            in_vain = settings.beat is not None and space.points.keys() <= set(beyond)
            why = "; so --beat has no network to compare with" if in_vain else ""
            logger.info(f"left out, because they are beyond the limits: {', '.join(beyond)}{why}")
        name_metrics(stored, training.objectives)
        proposals = Proposals(
            ledger, space, training.cost, limits, training.guess, settings.beat, has_finals=has_finals
        )
        if (other := open_other(settings, name)) is not None:
            logger.info(f"{proposals.import_from(other)} networks of {settings.warm_start} taken over")
        later = open_levels(study, training.levels, ledger.driver) if has_finals else {}

        # the trials
        measurement = training.measurement(workers, limits, feasible)
        with _loading(stored), measurement or nullcontext(), running_ray(workers) as running:
            # another seed each time the study continues: with the same one, the sampler would repeat its numbers
            seed = (settings.seed + 1_000_003 * len(stored.get_trials(deepcopy=False))) % 2**32
            stored.sampler = make_sampler(settings.sampler, seed, proposals)
            _enqueue_first(proposals, feasible)
            budget = max(settings.budget, study.spent())  # a study that has more trials is complete
            keep_limits(stored, {**limits.given(), "beat": settings.beat})  # from here on nothing is refused
            stored.set_user_attr(BUDGET, budget)
            keep_open(stored, bool(later))
            if measurement is not None:
                running = training.share_gpus(measurement) if running.has_mps else running
                measurement.end()
            events.started(proposals, budget, training.dense_macs())
            if later:
                others = "" if space.points.keys() <= set(beyond) else "; reference networks in any case"
                logger.info(
                    f"then the best networks are trained in full, if {100 * settings.finals:.0f} % of all training "
                    f"time is enough{others}; --finals 0 leaves this out"
                )
            from lrnas.searching.ray_tune import run_trials

            is_over, begun = False, num_ended(*later.values())
            present.close()  # from here on, `run_trials` gives signs of life
            while not is_over:
                is_exhausted = run_trials(
                    proposals,
                    functools.partial(training.job_at, SHORT),
                    checkpoints,
                    budget=budget,
                    rungs=training.rungs,
                    workers=running,
                    notify=events.changed,
                )
                if is_exhausted:
                    stored.set_user_attr(BUDGET, study.spent())  # there will never be more
                if later:
                    share = settings.finals
                    train_levels(
                        proposals, training, later, settings.studies, share=share, workers=running, events=events
                    )
                ledgers = [Ledger(each) for each in (later or {SHORT: study}).values()]
                is_over = bool(study.interrupted) or not any(ledger.wait_for_others() for ledger in ledgers)
            if not study.interrupted:
                keep_open(stored, False)
            if later and not study.interrupted and num_ended(*later.values()) == begun:
                logger.info(f"{name} was complete already: nothing was trained; a larger --budget extends it")
            if later and not study.interrupted and (line := tell_end(study, training.levels[FULL], settings.finals)):
                logger.info(line)
            if later and (line := tell_below(study)):
                logger.warning(line)
    except LrnasError:
        present.close()
        with suppress(LrnasError):  # the storage may be gone
            delete_if_empty(stored, folder)
        raise
    finally:
        present.close()
    return study


def _pin(
    training: SearchTraining, stored: optuna.Study, where: Whereabouts
) -> tuple[SearchTraining, optuna.Study, dict[str, Any]]:
    """Return the training with which a study continues, the study, another one if it begins anew, and its manifest."""
    name = stored.study_name
    while True:
        try:
            continued = continue_with(training, stored)
            try:
                return continued, stored, continued.pin(stored)
            except OtherSettings as error:
                study = Study(name, stored, training.objectives, read_manifest(stored), where)
                stored = begin_anew(stored, with_finals(error, study, continued), where, training.objectives)
        except KeyError:
            if not is_replaced(stored):
                raise
            stored = create_optuna_study(name, storage_of(stored), training.objectives)  # as another driver began it


def num_ended(*studies: Study) -> int:
    """Number of trials of studies that are over; those in training may have to be continued."""
    return sum(study.spent() - study.running() for study in studies)


def open_other(settings: SearchSettings, name: str) -> Study | None:
    """The study whose networks a search takes over; None if there is none.

    Args:
        settings: The settings of the search.
        name: The name of its study.
    """
    if settings.warm_start is None:
        return None
    if settings.warm_start == name:
        raise StudyError(f"--warm-start takes another study; got {name}, this one; leave it out")
    return open_search(settings.warm_start, storage=settings.storage, studies=settings.studies)


def _enqueue_first(proposals: Proposals, feasible: dict[str, Any] | None) -> None:
    """Enqueue the named networks, a point within the limits, and the trials of drivers that are gone."""
    study = proposals.study
    proposals.enqueue({**proposals.space.points, **proposals.space.uniform})
    # the sampler might not find one by itself
    if feasible is not None and not is_tried(study, proposals.space.architecture(feasible)):
        study.optuna_study.enqueue_trial(feasible)
    proposals.ledger.release_orphans()


@contextmanager
def _loading(study: optuna.Study) -> Iterator[None]:
    """Context in which a thread reads all trials and imports Ray Tune, while Ray starts; each takes seconds."""

    def load() -> None:
        with suppress(Exception):  # an error is raised again where the trials or the module are used
            study.get_trials(deepcopy=False)
        with suppress(Exception):
            import lrnas.searching.ray_tune  # noqa: F401

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()
