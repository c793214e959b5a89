"""`lrnas search --dry-run`: what a search would train, and how long it would take; nothing is written.

The speed of training is measured on random images, for a cheap, a middling and an expensive named network, in as many
processes as there would be trials at a time. What the sampler proposes, and how long it takes, is found by a rehearsal:
the sampler runs in memory, with made-up accuracies. Which networks would be trained in full is decided by the rules of
the search itself (`lrnas.sampling.promotion`), with the same accuracies.
"""

from __future__ import annotations

import heapq
import math
import os
import shutil
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import torch
from optuna.trial import FrozenTrial, TrialState

from lrnas._arguments import checked
from lrnas._field_docs import in_help
from lrnas._messages import duration, file_size, logger
from lrnas._notebook import NotebookView
from lrnas.arch.architecture import Architecture
from lrnas.data.cache import without_writing
from lrnas.data.names import data_folder
from lrnas.data.packed import PackedSet
from lrnas.errors import LrnasError, in_users_words
from lrnas.recipes import Recipe
from lrnas.sampling.promotion import MAX_MEASURED, Contender, pick_full, pick_longer
from lrnas.searching.feasible import find_feasible
from lrnas.searching.finals import LONGER_SHARE, SLACK, Ladder, check_levels, why_none, with_finals
from lrnas.searching.progress import progress_view
from lrnas.searching.proposals import Proposals, check_conditions, is_tried, tried_names, waiting_names
from lrnas.searching.samplers import make_sampler
from lrnas.searching.search import Preparation, continue_with, num_ended, open_other, prepare_search
from lrnas.searching.settings import SearchSettings, gather_settings, takes_settings
from lrnas.searching.trials_per_gpu import Measurement, Sharing, decide
from lrnas.study.folder import check_untrained, study_folder
from lrnas.study.ledger import Ledger
from lrnas.study.levels import FULL, LONGER, SHORT, Level, level_study
from lrnas.study.location import DATABASE
from lrnas.study.manifest import OtherSettings, StudyError, check_manifest, read_manifest, tell_limits
from lrnas.study.objectives import Costs, Limits, pick_objectives
from lrnas.study.open import open_search
from lrnas.study.storage import check_address
from lrnas.study.study import Study
from lrnas.training.gpu_sharing import CONTROL
from lrnas.training.job import Images
from lrnas.training.progress import telling_interrupts
from lrnas.training.provenance import hardware
from lrnas.training.speed import Speed, measure_speeds

REHEARSED, REHEARSAL_SECONDS = 12, 6.0
"""Number of proposals in a rehearsal, and seconds after which it ends."""
MOST_NETWORKS = 100_000
"""Largest budget of a dry run, which takes a minute or two then."""
MOST_PROCESSES = 8
"""Largest number of processes that measure at the same time, even if more trials would run at a time."""
START, END, TRIAL = 1.8, 1.4, 0.06
"""Times that a search needs besides training, relative to the time in which a training process starts, which is
measured: until the first trial, with Ray; from the last trial to the end; and for each trial. All three depend on the
same things, the speed of a core and of the disk. Each level starts its own processes."""
STOPPED_EPOCHS = 0.7
"""Mean share of the epochs that networks are trained for with early stopping (results/search: 0.68 and 0.70)."""
ATTRIBUTE_BYTES = 15_000
"""Bytes that a trial takes in the database, about."""
TRAINED = ("completed", "stopped", "diverged")
"""Status of trials that are over and were trained."""
BUSY = 0.15
"""If other programs take a larger share of the cores than this, the estimate says so."""
SHOWN_GPUS = (1, 2, 4, 8)
"""Numbers of GPUs that the time is estimated for, if there is a GPU."""


@in_help
@dataclass(frozen=True, slots=True)
class NamedNetwork:
    """A named network of the space."""

    name: str
    is_reference: bool
    """Whether it is a reference network, that is, one of the space's points."""
    macs: int
    """Multiply-accumulates as deployed, for one image."""
    share: float
    """The same, relative to the dense network."""
    params: int
    """Number of parameters as deployed."""
    beyond: tuple[str, ...]
    """The limits that leave it out; budget if other named networks come first."""
    is_known: bool = False
    """Whether the study has it already."""


@in_help
@dataclass(frozen=True, slots=True)
class LevelEstimate:
    """What a search would train at one level."""

    name: str
    """short, longer or full."""
    networks: int
    """Number of networks."""
    runs: int
    """Number of trainings: one for each network and seed."""
    seeds: int
    """Largest number of runs of a network."""
    epochs: int
    """Number of epochs of each training; early stopping may end some before."""
    batch_size: int
    """Images in a batch."""
    training_seconds: float
    """Training time of all runs together, if as many train at a time as in the search."""


@in_help
@dataclass(frozen=True, slots=True)
class Estimate(NotebookView):
    """What a search would train, and what that would take."""

    study: str
    """Name that the study would have."""
    space: str
    """Name or file of the space."""
    num_parameters: int
    """Number of parameters of the space."""
    num_points: int
    """Number of points of the space; several of them can be the same network."""
    networks: tuple[NamedNetwork, ...]
    """The named networks of the space: reference networks and uniform ones."""
    data: str
    """Name of the data set."""
    train_images: int
    """Number of training images, each of which is trained once per epoch. Unreadable ones are left out if they are
    known, that is, if the images are packed."""
    val_images: int
    """Number of validation images, counted in the same way."""
    levels: tuple[LevelEstimate, ...]
    """What would be trained, level by level."""
    hardware: str
    """The processors of this machine."""
    device: str
    """Where networks would train: cpu or cuda."""
    at_a_time: int
    """Number of trials at a time, on each GPU or on all CPU cores."""
    at_a_time_reason: str
    """Why it is this number, in words."""
    seconds: dict[int, float]
    """Time to wait, from the command to the front, by the number of GPUs; with a CPU, there is one entry, for 0."""
    busy: float
    """Share of the CPU cores that other programs took from the trainings during the measurement; 0 with a GPU."""
    start_seconds: float
    """Time in which a training process starts."""
    idle_seconds: float
    """Time to wait if other programs took nothing, on the GPUs of this machine."""
    device_hours: float
    """GPU-hours on one GPU, or hours of CPU cores: what is paid for, not the time to wait, which is `seconds`."""
    packing_seconds: float
    """Part of the time to wait in which images from files are packed."""
    gpu_memory: int | None
    """Bytes of GPU memory that each trial needs; None without a GPU."""
    image_memory: int
    """Bytes of a GPU's memory for images that all trials share."""
    disk: dict[str, int]
    """Bytes on the disk by purpose: checkpoints, study, and pack unless it exists."""
    remarks: tuple[str, ...]
    """What else to know, in words."""
    exists: bool = False
    """Whether the study exists and would be continued; the estimate is for what is left of it."""

    @property
    def lines(self) -> list[str]:
        """Where it would be trained, and the time, memory and disk that it would take, in words."""
        where = "on a GPU" if self.device == "cuda" else "on this machine"
        found = [f"{self.hardware}; {self.at_a_time} at a time {where} ({self.at_a_time_reason})"]
        for number, seconds in self.seconds.items():
            gpus = f" on {number} GPU{'s' * (number > 1)}" if number else ""
            found.append(f"Time{gpus}: about {duration(seconds)}")
        packing = f", {duration(self.packing_seconds)} of it for packing" if self.packing_seconds else ""
        hours = f"about {float(f'{self.device_hours:.2g}'):,.10g}"  # without a power of ten
        hours = hours if self.device_hours >= 0.001 else "less than 0.001"
        of_what = " (the sum of the training times, without the time that other programs take)"
        kind, of_what = ("GPU", "") if self.device == "cuda" else ("CPU", of_what)
        found.append(f"{kind}-hours: {hours}{packing}{of_what}")
        if self.gpu_memory is not None:
            images = f", and {file_size(self.image_memory)} for the images" if self.image_memory else ""
            found.append(f"GPU memory: about {file_size(self.gpu_memory)} for each network in training{images}")
        parts = ", ".join(f"{name} {file_size(size)}" for name, size in self.disk.items() if size)
        disk = f"Disk: about {file_size(sum(self.disk.values()))}" + (f" ({parts})" if parts else "")
        return [*found, disk, *(f"Note: {in_users_words(remark)}." for remark in self.remarks)]

    def __str__(self) -> str:
        return "\n".join([f"Estimate of {self.study}: {_trainings(self.levels)}", *self.lines])

    def __repr__(self) -> str:
        times = [f"{duration(time)}{f' on {number} GPU' if number else ''}" for number, time in self.seconds.items()]
        return f"<Estimate of {self.study}: {_trainings(self.levels)}, about {' or '.join(times)}>"

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON values."""
        return asdict(self)


@takes_settings
@checked
def estimate(space: str | Path | SearchSettings, *, progress: bool = True, **settings: Any) -> Estimate:
    """Estimate what a search would train and how long it would take; nothing is written.

    It takes the arguments of `lrnas.search`, and a few seconds to measure how fast networks train here.

    Args:
        space: Search space, or study file, as in `lrnas.search`.
        {settings}
        progress: Whether to show messages on stderr.

    Returns:
        The estimate.
    """
    with telling_interrupts("estimate", "nothing was written"), progress_view(None, progress), without_writing():
        return _estimate(gather_settings(space, settings))


def _estimate(settings: SearchSettings) -> Estimate:
    if settings.budget > MOST_NETWORKS:
        raise LrnasError(
            f"a dry run takes at most {MOST_NETWORKS:,} networks; got {settings.budget:,}; give a smaller --budget"
        )
    if settings.trainable is not None:
        raise LrnasError(
            "a dry run measures the training of lrnas; got a function of your own, whose speed it cannot know; leave "
            "out --trainable"
        )
    if settings.address is not None:
        raise LrnasError("a dry run is about this machine; got the address of a cluster; leave out --address")
    prepared, study, remarks = _continued(prepare_search(settings), settings)
    if study is not None:
        settings = replace(settings, budget=max(settings.budget, num_ended(study)))  # as in a search
    training = prepared.training
    if (other := open_other(settings, prepared.name)) is not None:
        check_conditions(other, training.manifest())
    data = training.loaded
    pack = data.pack.expected() if isinstance(data, PackedSet) else None
    packing = 0.0 if pack is None else pack.seconds
    if isinstance(data, PackedSet) and not packing:
        data.check_readable()
    logger.info("measuring how fast networks train here, for some seconds")
    machine = _measure(prepared, settings, None if pack is None else pack.gpu_bytes)
    done, ended = ([], 0) if study is None else (_done(study), num_ended(study))
    rest, ask_seconds = _rehearse(prepared, settings, max(1, machine.gpus) * machine.at_a_time, study)
    trials = done + rest
    planned = _plan(trials, machine, training.levels, settings.finals, prepared.limits)
    runs = planned if study is None else _left(planned, rest, prepared, settings, study)
    train_images, val_images, _ = (len(data.train), len(data.val), 0) if packing else data.counts
    remarks += data.unreadable() if isinstance(data, PackedSet) and not packing else []
    if study is not None and not any(runs.values()):
        remarks.append(f"{study.name} exists and is complete: nothing would be trained; a larger --budget extends it")
    elif study is not None:
        left = f"{len(rest)} of {ended + len(rest)} trials left"
        remarks.append(f"{study.name} exists: the search would continue it, with {left}; the estimate is for the rest")
    if "latency" in settings.objectives or settings.max_latency is not None:
        remarks.append("latency is not measured in a dry run: no network is left out for its latency")
    if ended + len(rest) < settings.budget:
        networks = "more " * (ended > 0) + "network" + "s" * (len(rest) != 1)
        remarks.append(f"the space has only {len(rest)} {networks} within the limits that the sampler finds")
    if not planned.get(FULL, [None]):
        is_any_within = not trials or any(not prepared.limits.excess(trial.costs) for trial in trials)
        why = why_none(training.levels[FULL], settings.finals, is_any_within)
        remarks.append(f"no network would be trained in full: {why}")
    idle = replace(machine, slowdown=(1 - machine.busy) * machine.slowdown, start=(1 - machine.busy) * machine.start)
    idle_seconds = packing + idle.wall_seconds(runs, training.levels, ask_seconds, max(1, machine.gpus))
    if machine.busy > BUSY and any(runs.values()):
        remarks.append(
            f"other programs use the CPU: trainings get {100 * (1 - machine.busy):.0f} % of the time of their cores; "
            f"without them, the search would take about {duration(idle_seconds)}"
        )
    counts = [machine.gpus] if machine.device == "cpu" else sorted({*SHOWN_GPUS, machine.gpus})
    seconds = {
        number: packing + machine.wall_seconds(runs, training.levels, ask_seconds, max(1, number)) for number in counts
    }
    levels = tuple(_level(training.levels[name], some, machine) for name, some in runs.items())
    used = sum(level.training_seconds for level in levels)
    hours = used * (1 - machine.busy) * settings.cpus_per_trial / 3600 if machine.device == "cpu" else seconds[1] / 3600
    weights = sum(4 * round(run.params) for some in runs.values() for run in some)
    rows = sum(map(len, runs.values()))
    return Estimate(
        study=prepared.name,
        space=settings.space,
        num_parameters=training.space.dimension,
        num_points=training.space.size,
        networks=_named_networks(prepared, study),
        data=training.data.name,
        train_images=train_images,
        val_images=val_images,
        levels=levels,
        hardware=hardware(),
        device=machine.device,
        at_a_time=machine.at_a_time,
        at_a_time_reason=machine.reason,
        seconds=seconds,
        busy=machine.busy,
        start_seconds=machine.start,
        idle_seconds=idle_seconds,
        device_hours=hours,
        packing_seconds=packing,
        gpu_memory=None if machine.memory is None else round(machine.memory),
        image_memory=machine.image_memory,
        disk={
            "checkpoints": weights,
            "study": ATTRIBUTE_BYTES * rows,
            "pack": pack.num_bytes if pack and packing else 0,
        },
        remarks=tuple(remarks),
        exists=study is not None,
    )


def _continued(prepared: Preparation, settings: SearchSettings) -> tuple[Preparation, Study | None, list[str]]:
    """A search as a study that exists would continue it; the study, if there is one; and remarks about it.

    Raises StudyError where the search would.
    """
    if settings.storage is not None:
        check_address(settings.storage)
    elif not (study_folder(settings.studies, prepared.name) / DATABASE).exists():
        return prepared, None, []
    try:
        study = open_search(prepared.name, studies=settings.studies, storage=settings.storage)
    except LrnasError:
        return prepared, None, []
    training = continue_with(prepared.training, study.optuna_study)
    try:
        manifest = check_manifest(study.optuna_study, training.manifest())
    except OtherSettings as error:
        check_untrained(study.optuna_study, with_finals(error, study, training), study.where)
        found = f"{study.name} was begun with other settings ({error.found}), and nothing was trained"
        return prepared, None, [f"{found}: it would begin anew"]
    if settings.finals:
        check_levels(study, manifest, training.levels)
    limits = replace(prepared.limits, max_latency=settings.max_latency).given() | {"beat": settings.beat}
    line = tell_limits(study.optuna_study, limits)
    feasible = find_feasible(training.space, prepared.limits, training.cost)
    continued = Preparation(prepared.name, prepared.workers, training, prepared.limits, feasible)
    return continued, study, [line] if line else []


def _trainings(levels: Iterable[LevelEstimate]) -> str:
    number = sum(level.runs for level in levels)
    return f"{number} training{'s' * (number != 1)}" if number else "complete, nothing to train"


def _left(
    planned: dict[str, list[_Trial]],
    rest: list[_Trial],
    prepared: Preparation,
    settings: SearchSettings,
    study: Study,
) -> dict[str, list[_Trial]]:
    """The runs that are left of a study that exists: the `rest` of its trials, and later ones less those that ended."""
    training, studies = prepared.training, {SHORT: study}
    for level in planned:
        if level != SHORT and (stored := level_study(study, level)) is not None:
            studies[level] = Study(stored.study_name, stored, study.objectives, read_manifest(stored), study.where)
    ended = {name: num_ended(each) for name, each in studies.items() if name != SHORT}
    left = {name: some[ended.get(name, 0) :] for name, some in planned.items()} | {SHORT: rest}
    if FULL in studies:  # reference networks are trained in full in any case
        done = {trial.macs for trial in studies[FULL].trials if trial.is_reference}
        references = [run for run in planned[FULL] if run.is_reference and run.macs not in done]
        left[FULL] = max(left[FULL], references, key=len)
    if left[SHORT] or len(studies) < len(planned) or "latency" in settings.objectives:  # not measured here
        return left
    # the finals end by their own rules, not after a number of runs
    proposals = Proposals(Ledger(study), training.space, training.cost, prepared.limits, beat=settings.beat)
    ladder = Ladder(proposals, training.levels, studies, settings.finals)
    within = [trial for trial in planned[SHORT] if not prepared.limits.excess(trial.costs)]
    for level in (name for name in studies if name != SHORT):
        running, networks = studies[level].optuna_trials((TrialState.RUNNING,)), dict[str, _Trial]()
        begun = [networks.setdefault(run.user_attrs["id"], _known(run, study)) for run in running]
        new = [] if ladder.queue(level).is_over(None) else left[level] or within[-1:]
        left[level] = max(begun, new, key=len)
    return left


def _done(study: Study) -> list[_Trial]:
    """The trials of a study that exists that are over and were trained, by this search or by another one."""
    ended = (trial for trial in study.optuna_trials() if trial.state.is_finished())
    return [_known(trial, study) for trial in ended if trial.user_attrs.get("status") in TRAINED]


def _known(trial: FrozenTrial, search: Study) -> _Trial:
    """A trial of a search, or of one of its later levels, that was begun."""
    known = trial.user_attrs
    return _Trial(
        known["macs"],
        known["params"],
        known.get("point") in search.manifest["space"]["points"],
        asks=False,
        is_imported="imported_from" in known,
    )


def _left_to_train(named: Mapping[str, Architecture], study: Study | None) -> dict[str, Architecture]:
    """The named networks that a search would train, in this order: first those that wait in the study's queue."""
    if study is None:
        return dict(named)
    tried, order = tried_names(study), dict.fromkeys([*waiting_names(study), *named])
    return {name: named[name] for name in order if name in named and name not in tried}


def _named_networks(prepared: Preparation, study: Study | None) -> tuple[NamedNetwork, ...]:
    training, limits = prepared.training, prepared.limits
    named = training.named()
    costs = {name: training.cost(network) for name, network in named.items()}
    queue = _left_to_train(named, study)
    new = [name for name in queue if not limits.excess(costs[name])]
    left = training.settings.budget - (0 if study is None else num_ended(study))
    late, dense, found = set(new[max(0, left) :]), training.dense_macs(), []
    for name in named:
        macs, params = int(costs[name]["macs"]), int(costs[name]["params"])
        is_known = name not in queue
        beyond = () if is_known else tuple(limits.excess(costs[name])) or ("budget",) * (name in late)
        is_reference = name in training.space.points
        found.append(NamedNetwork(name, is_reference, macs, macs / dense, params, beyond, is_known))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Trial:
    """A training of a search that is expected."""

    macs: float
    params: float
    is_reference: bool
    """Whether it is one of the space's points, which are never stopped early."""
    asks: bool
    """Whether a sampler proposes it, which takes time."""
    is_imported: bool = False
    """Whether another search has trained it, so that this one spends no time on it."""

    @property
    def costs(self) -> Costs:
        """Costs by name, without the latency."""
        return {"macs": self.macs, "params": self.params}


@dataclass(frozen=True)
class _Machine:
    """Measured speeds of the machine, and the number of trials at a time."""

    device: str
    gpus: int
    """Number of GPUs; 0 on a CPU."""
    at_a_time: int
    slowdown: float
    """Factor by which a trial is slower than measured, because others share its GPU."""
    reason: str
    memory: float | None
    image_memory: int
    macs: tuple[float, ...]
    """Multiply-accumulates of the networks that were measured, in ascending order."""
    speeds: dict[tuple[int, int], list[Speed]]
    """Measured speeds by batch size, and by rows and columns of the crops."""
    image_size: int
    """Rows and columns of the images."""
    images: tuple[int, int]
    """Numbers of training and of validation images."""
    start: float
    """Seconds in which a training process starts."""
    measuring: float
    """Seconds in which the search will measure how many trials share a GPU; 0 if that is known."""
    busy: float
    """Share of the CPU cores that other programs used during the measurement."""
    early_stopping: bool

    def seconds(self, trial: _Trial, level: Level) -> float:
        """Training time of a run, without the time in which its process starts."""
        recipe = level.recipe
        is_stopped = level.name == SHORT and self.early_stopping and not trial.is_reference
        train, val = self.images
        num_images = max(1, train // recipe.batch_size) * min(train, recipe.batch_size)
        total = 0.0
        for size, epochs in recipe.num_epochs(self.image_size).items():
            build, step, _ = self._speed(trial, recipe, size)
            _, _, evaluation = self._speed(trial, recipe, recipe.crop or self.image_size)
            share = STOPPED_EPOCHS if is_stopped else 1.0
            total += build + self.slowdown * share * epochs * (num_images * step + val * evaluation)
        return total

    def _speed(self, trial: _Trial, recipe: Recipe, size: int) -> tuple[float, ...]:
        """Seconds for building a network, for training on an image and for evaluating one."""
        speeds = self.speeds.get((recipe.batch_size, size)) or next(iter(self.speeds.values()))
        names = ("build", "step", "evaluation")
        return tuple(_interpolate(trial.macs, self.macs, [getattr(speed, name) for speed in speeds]) for name in names)

    def wall_seconds(
        self, runs: dict[str, list[_Trial]], levels: dict[str, Level], ask_seconds: float, gpus: int
    ) -> float:
        """Time from the command to the front."""
        if not any(runs.values()):
            return 0.0
        total = self.measuring + (START + END + len(runs)) * self.start
        for name, some in runs.items():
            asks = [ask_seconds if trial.asks or name != SHORT else 0.0 for trial in some]
            costs = [
                self.seconds(trial, levels[name]) + ask + TRIAL * self.start
                for trial, ask in zip(some, asks, strict=True)
            ]
            total += max(_makespan(costs, gpus * self.at_a_time), sum(asks))
        return total


def _interpolate(macs: float, known: Sequence[float], values: Sequence[float]) -> float:
    """The value between measured ones; beyond the most expensive network, it grows with the multiply-accumulates."""
    return float(np.interp(macs, known, values)) * max(1.0, macs / known[-1])


def _makespan(seconds: Iterable[float], workers: int) -> float:
    """Time until all trainings are done, if each worker takes the next one as soon as it is free."""
    ends = [0.0] * workers
    for one in seconds:
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)


def _measure(prepared: Preparation, settings: SearchSettings, num_bytes: int | None) -> _Machine:
    """Measure how fast networks train on this machine, and find the number of trials at a time."""
    training, workers = prepared.training, prepared.workers
    data = training.loaded
    networks = training.networks_within(prepared.limits, prepared.feasible)
    chosen = _spread(networks, [training.cost(network)["macs"] for network in networks])
    macs = tuple(training.cost(network)["macs"] for network in chosen)
    images, eval_batch = Images.of(data), min(data.eval_batch, len(data.val))
    levels = list(training.levels.values())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = max(1, int(cores / workers.cpus))
    room = min(room, workers.concurrency or room)
    threads = max(1, int(workers.cpus))
    common: dict[str, Any] = {
        "macs": macs,
        "images": (len(data.train), len(data.val)),
        "early_stopping": bool(training.rungs),
        "image_size": images.image_size,
    }
    if not workers.gpus:
        processes = min(room, MOST_PROCESSES)
        measured, start = _measure_sizes(
            chosen, levels[:1], images, "cpu", eval_batch=eval_batch, processes=processes, threads=threads
        )
        speeds = [speed for some in measured.values() for speed in some]
        return _Machine(
            device="cpu",
            gpus=0,
            at_a_time=room,
            slowdown=1.0,
            reason=f"{workers.cpus:g} of {cores} CPU cores each",
            memory=None,
            image_memory=0,
            speeds=measured,
            start=start,
            measuring=0.0,
            busy=sum(speed.busy for speed in speeds) / len(speeds),
            **common,
        )
    gpus = torch.cuda.device_count()
    measured, start = _measure_sizes(chosen, levels, images, "cuda", eval_batch=eval_batch, threads=threads)
    most = max(1, math.ceil(room / gpus))
    sharing, reason, measuring = _share(networks, prepared, settings, most, num_bytes)
    number = min(sharing.number, most)
    return _Machine(
        device="cuda",
        gpus=gpus,
        at_a_time=number,
        slowdown=number / sharing.speedup,
        reason=reason,
        memory=sharing.memory,
        image_memory=sharing.shared,
        speeds=measured,
        start=start,
        measuring=measuring,
        busy=0.0,
        **common,
    )


def _measure_sizes(
    networks: Sequence[Architecture], levels: Sequence[Level], images: Images, device: str, **how: Any
) -> tuple[dict[tuple[int, int], list[Speed]], float]:
    """Measured speeds by batch size and by size of the crops, and the seconds in which a process starts."""
    found: dict[tuple[int, int], list[Speed]] = {}
    start = 0.0
    for recipe in (level.recipe for level in levels):
        for size in recipe.num_epochs(images.image_size):
            if (recipe.batch_size, size) not in found:
                key = (recipe.batch_size, size)
                found[key], start = measure_speeds(networks, recipe.with_size(size), images, device, **how)
    return found, start


def _share(
    networks: Sequence[Architecture], prepared: Preparation, settings: SearchSettings, most: int, num_bytes: int | None
) -> tuple[Sharing, str, float]:
    """How trials would share a GPU, why, and for how many seconds the search will measure it."""
    training = prepared.training
    data, recipe = training.loaded, training.recipe
    largest = max(level.recipe.batch_size for level in training.levels.values())
    measurement = Measurement(prepared.workers, networks, recipe, data, data_folder(settings.data_dir))
    kept = measurement.kept()
    record = measurement.make() if kept is None else kept  # a new one is not kept
    sharing = decide(
        record,
        recipe,
        data,
        image_memory=settings.image_memory,
        largest_batch=largest,
        most=most,
        num_bytes=num_bytes,
    )
    origin = "measured now" if kept is None else "measured by an earlier search"
    if shutil.which(CONTROL) is None:
        number = min(most, max(1, int(1 / prepared.workers.gpus)))
        return replace(sharing, number=number, speedup=1.0), "they take turns: CUDA MPS is not installed", 0.0
    if settings.gpus_per_trial is not None:
        number = min(most, max(1, int(1 / settings.gpus_per_trial)))
        known = {rate["number"]: rate["speedup"] for rate in record["rates"]}
        speedup = float(np.interp(number, list(known), list(known.values())))
        return replace(sharing, number=number, speedup=speedup), f"as --gpus-per-trial says; speed {origin}", 0.0
    seconds = record["seconds"] if kept is None else 0.0
    return sharing, f"{sharing.speedup:.1f} times the images per second of one alone, {origin}", seconds


def _spread(networks: Sequence[Architecture], macs: Sequence[float]) -> list[Architecture]:
    """The cheapest, a middling and the most expensive of some networks, or fewer, in ascending order."""
    order = np.argsort(macs)
    different = [int(i) for n, i in enumerate(order) if n == 0 or macs[i] > macs[order[n - 1]]]
    first, last = different[0], different[-1]
    middle = macs[first] + (macs[last] - macs[first]) / 3  # most networks are cheaper than the mean of the two
    between = sorted(different[1:-1], key=lambda i: abs(macs[i] - middle))[:1]
    return [networks[i] for i in dict.fromkeys((first, *between, last))]


def _accuracy(macs: float, lowest: float) -> float:
    """A made-up accuracy, which grows with the cost, more and more slowly."""
    return 0.95 - 0.2 * math.sqrt(lowest / max(macs, lowest))


def _rehearse(
    prepared: Preparation, settings: SearchSettings, at_a_time: int, begun: Study | None = None
) -> tuple[list[_Trial], float]:
    """The trials of a search as they are expected, and the seconds that a proposal takes.

    The sampler proposes some networks; others are expected to cost the same.

    Args:
        prepared: The search.
        settings: Its settings.
        at_a_time: Number of trials at a time: the sampler does not know the outcome of those in training.
        begun: The study that the search continues; None: it begins anew. Only what is left to train is returned.
    """
    training, goals = prepared.training, pick_objectives(("accuracy", "macs"))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    record = optuna.create_study(directions=[goal.direction for goal in goals])
    study = Study(prepared.name, record, goals, training.manifest())
    proposals = Proposals(
        Ledger(study), training.space, training.cost, prepared.limits, training.guess, beat=settings.beat
    )
    record.sampler = make_sampler(settings.sampler, settings.seed, proposals)
    proposals.enqueue(_left_to_train(training.named(), begun))
    budget = settings.budget - (0 if begun is None else num_ended(begun))
    feasible = prepared.feasible
    if feasible is not None and (begun is None or not is_tried(begun, training.space.architecture(feasible))):
        record.enqueue_trial(feasible)
    trials: list[_Trial] = []
    proposed: list[_Trial] = []
    running: deque[tuple[int, float]] = deque()
    lowest = min(
        training.cost(network)["macs"] for network in training.networks_within(prepared.limits, prepared.feasible)
    )
    asked = 0.0
    while len(trials) < budget and len(proposed) < REHEARSED and asked < REHEARSAL_SECONDS:
        started = time.perf_counter()
        try:
            found = proposals.ask(budget)
        except StudyError:  # the space has no more to offer
            return trials, asked / max(1, len(proposed))
        if found is None:
            break
        trial = _Trial(
            found.costs["macs"],
            found.costs["params"],
            found.point in training.space.points,
            found.point is None,
        )
        trials.append(trial)
        if found.point is None:
            asked += time.perf_counter() - started
            proposed.append(trial)
        running.append((found.number, _accuracy(trial.macs, lowest)))
        if len(running) == at_a_time:
            number, accuracy = running.popleft()
            proposals.ledger.report_epoch(number, [accuracy], 1.0)
            proposals.ledger.complete(number, accuracy)
    trials += islice(cycle(proposed), budget - len(trials))
    return trials, asked / max(1, len(proposed))


def _plan(
    trials: list[_Trial], machine: _Machine, levels: dict[str, Level], share: float, limits: Limits
) -> dict[str, list[_Trial]]:
    """The runs of all levels, in the order in which they would be trained; those of later levels are within limits."""
    found = {SHORT: trials}
    if FULL not in levels:
        return found
    short = sum(machine.seconds(trial, levels[SHORT]) for trial in trials if not trial.is_imported)
    later = share / (1 - share) * short
    left = later
    within = [trial for trial in trials if not limits.excess(trial.costs)]
    kept = [within[i] for i in np.linspace(0, len(within) - 1, min(MAX_MEASURED, len(within)), dtype=int)]
    lowest = min((trial.macs for trial in kept), default=0.0)

    def contenders(level: str) -> list[Contender]:
        return [
            Contender(
                str(i),
                trial.is_reference,
                (trial.macs * (1 + 1e-6 * i),),  # the same networks do not come twice
                _accuracy(trial.macs, lowest),
                0.005,
                machine.seconds(trial, levels[level]),
            )
            for i, trial in enumerate(kept)
        ]

    def run(level: str, rivals: list[Contender], seconds: float) -> float:
        """Choose runs of a level until nothing is left to train; returns the seconds that are left."""
        found[level] = []
        while True:
            if level == LONGER:
                picked = pick_longer(rivals, seconds)
            else:
                picked = pick_full(rivals, seconds, len(levels[FULL].seeds), SLACK * later)
            if picked is None:
                return seconds
            found[level].append(kept[int(picked.identity)])
            rivals[int(picked.identity)] = replace(picked, begun=picked.begun + 1)
            seconds -= picked.seconds

    if LONGER in levels:
        most = LONGER_SHARE * later
        left -= most - run(LONGER, contenders(LONGER), most)
    run(FULL, contenders(FULL), left)
    return found


def _level(level: Level, runs: list[_Trial], machine: _Machine) -> LevelEstimate:
    numbers = [sum(run is other for other in runs) for run in {id(run): run for run in runs}.values()]
    if level.name == SHORT:
        numbers = [1] * len(runs)
    recipe = level.recipe
    seconds = sum(machine.seconds(run, level) for run in runs)
    return LevelEstimate(
        level.name, len(numbers), len(runs), max(numbers, default=0), recipe.epochs, recipe.batch_size, seconds
    )
