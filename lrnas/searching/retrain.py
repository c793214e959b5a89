"""Retraining: networks of a search, trained in full over several seeds, beside reference networks, and tested.

A search chooses networks by their validation accuracy after short trainings. Here the chosen networks and the reference
networks of the space are trained in the same way. Their seeds differ from the search's, so that the luck that brought a
network to the front does not count twice. At the end of each training, the test images are used once. Every run is a
trial of Ray Tune and of the Optuna study SEARCH@RECIPE. Retrainings survive the same failures as searches.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from lrnas._arguments import checked
from lrnas._field_docs import in_help
from lrnas._messages import duration, logger
from lrnas._notebook import NotebookView
from lrnas.arch.architecture import Architecture
from lrnas.arch.backbone_shapes import smallest_input
from lrnas.data.cache import without_writing
from lrnas.data.catalog import load_set
from lrnas.data.names import IMAGE_MEMORY, SETS, data_folder, is_in_files, shown_name
from lrnas.errors import DataError, LrnasError
from lrnas.models.plan import deployed_form, has_norms, make_plan
from lrnas.recipes import InvalidRecipe, get_recipe, tell_small_batches
from lrnas.searching.progress import SearchEvents, Work, progress_view, seconds_left, tell_interrupted
from lrnas.searching.proposals import Proposal
from lrnas.searching.ray_cluster import pick_workers, running_ray, tries_mps
from lrnas.searching.runs import Chosen, Runs
from lrnas.searching.settings import SECONDS, read_value
from lrnas.searching.setup import read_start, tell_few_images
from lrnas.searching.trials_per_gpu import Measurement, share_gpus
from lrnas.study.folder import LEVEL_FOLDERS, create_optuna_study, trials_folder
from lrnas.study.ledger import Ledger
from lrnas.study.levels import (
    FULL,
    LONGER,
    compare_with_references,
    level_study,
    read_level,
    read_short,
    tell_unfinished,
)
from lrnas.study.manifest import (
    RETRAINS,
    SETTINGS,
    START,
    USED,
    StudyError,
    check_manifest,
    data_name,
    is_other_kind,
    keep_images,
    keep_unreadable,
    names_of,
    tell_other_images,
)
from lrnas.study.objectives import RETRAINED, Costs
from lrnas.study.open import name_metrics, open_search
from lrnas.study.optuna_internals import storage_of
from lrnas.study.retrained import counting_runs, final_front, is_done, retrained_recipes
from lrnas.study.study import Study, Trial
from lrnas.study.throughput import measure_throughput
from lrnas.training.job import Job
from lrnas.training.progress import telling_interrupts

ADVICE = "give the earlier ones, or another name to the recipe's file"
"""What to do if a retraining was begun with other settings."""


@checked
def retrain(
    study: str | Study,
    *,
    trials: Sequence[int | Trial] = (),
    front: bool | None = None,
    points: bool = True,
    seeds: int = 3,
    recipe: str = "full",
    epochs: int | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  # the option's name
    data: str | None = None,
    data_dir: str | Path | None = None,
    image_memory: float = IMAGE_MEMORY,
    pack: str | None = None,
    studies: str | Path = "studies",
    storage: str | None = None,
    cpus_per_trial: float = 1,
    gpus_per_trial: float | None = None,
    concurrency: int | None = None,
    address: str | None = None,
    trial_timeout: float | None = None,
    events: SearchEvents | None = None,
    progress: bool = True,
) -> Study:
    """Train networks of a search in full, over several seeds, and test them.

    The same call continues a retraining that exists; more seeds or other networks extend it.

    Args:
        study: The search, or its name.
        trials: Trials whose networks are trained, or their numbers in the search; also `study.front()`.
        front: Whether to train the networks on the front, that of the finals if there are any. None: if no trials are
            given; after a search with `beat`, train instead, for each reference network, the most accurate one that
            costs at most this share.
        points: Whether to train the reference networks, too: the paper's in the spaces of lrnas, else the unchanged
            model.
        seeds: Number of runs of each network.
        recipe: `full`, `paper`, `fast` or a TOML file of a recipe.
        epochs: Number of epochs; None: the recipe's.
        set: Fields of the recipe to change, by name.
        data: The data set of the search, if its images were moved; None: where the search read them.
        data_dir: Folder for data sets; None: $LRNAS_DATA or ~/.cache/lrnas.
        image_memory: Largest share of a GPU's memory for images from files, which all runs share.
        pack: How images from files are packed: pixels or jpeg; None: as the pack that exists, else as pixels, or as
            jpeg if the disk has no room for pixels.
        studies: Folder of all studies; not needed for a search that is open.
        storage: Database URL or `journal:FILE` of the study; None: the file in the study's folder.
        cpus_per_trial: CPUs for each run.
        gpus_per_trial: GPUs for each run; None: with CUDA MPS, the share with which runs train fastest together, as
            measured before the first run; else 0.25; 0 without a GPU.
        concurrency: Number of runs at a time; None: as many as there is room for.
        address: Address of a Ray cluster; None: this machine.
        trial_timeout: Seconds without a finished epoch after which a run is ended and tried again; None: wait.
        events: Receiver of what happens, instead of messages on stderr.
        progress: Whether to show messages and progress on stderr.

    Returns:
        The retraining, a study with the name SEARCH@RECIPE; `lrnas.read_retraining` reads its results. Interrupts are
        handled as in `lrnas.search`.
    """
    _check_seeds(seeds)
    if trial_timeout is not None:
        trial_timeout = read_value(SECONDS, trial_timeout, "trial_timeout")
    workers = pick_workers(cpus_per_trial, gpus_per_trial, concurrency, address, timeout=trial_timeout)
    given = dict(set or {}) | ({} if epochs is None else {"epochs": epochs})
    with telling_interrupts("retraining"), progress_view(events, progress) as view, ExitStack() as present:
        search = open_search(study, storage=storage, studies=studies)
        networks = _choose(search, trials, front, points)
        training = _Training(search, data, data_dir, recipe, given, image_memory, pack)
        retraining = _open(search, training)
        present.enter_context(retraining.ledger.alive())  # what follows may take minutes
        if unfinished := _tell_unfinished(search, trials, front):
            logger.warning(unfinished)
        keep_images(retraining.study.optuna_study, training.named, training.data_dir)
        folder = trials_folder(search.where.folder, retraining.study.name)
        costs: dict[str, Costs] = {network.identity: training.cost(network.architecture) for network in networks}
        for identity, milliseconds in training.measure_latency(search, networks).items():
            costs[identity] = {**costs[identity], "latency": milliseconds}
        retraining.enqueue(networks, _seeds(search, seeds), costs)
        retraining.take_over(folder)
        retraining.ledger.release_orphans()
        budget = len(retraining.wanted)
        view.started(retraining, budget)
        for remark in training.remarks:
            logger.info(remark)
        plan = _plan(search, networks, training, retraining.study.optuna_study, _seeds(search, seeds))
        if plan.left and plan.seconds is not None:
            logger.info(plan.time)
        if number := sum(network.point is not None for network in networks):
            one, it = ("is a reference network", "it") if number == 1 else ("are reference networks", "them")
            logger.info(f"{number} of the {len(networks)} networks {one}; --no-points leaves {it} out")
        is_over = retraining.spent() >= budget and not retraining.ledger.wait_for_others()
        if not is_over:
            training.data.prepare(view.preparing)
            keep_unreadable(retraining.study.optuna_study, training.data.num_unreadable)
        while not is_over:
            from lrnas.searching.ray_tune import run_trials

            measurement = None
            if gpus_per_trial is None and tries_mps(workers):
                architectures = [network.architecture for network in networks]
                place = data_folder(data_dir)
                measurement = Measurement(workers, architectures, training.recipe, training.data, place)
            with measurement or nullcontext(), running_ray(workers) as running:
                if measurement is not None:
                    running = share_gpus(measurement, image_memory=image_memory) if running.has_mps else running
                    measurement.end()
                present.close()  # from here on, `run_trials` gives signs of life
                run_trials(
                    retraining, training.job, folder, budget=budget, workers=running, notify=view.changed, test=True
                )
            is_over = bool(retraining.study.interrupted) or not retraining.ledger.wait_for_others()
        retraining.end_duplicates()
    tell_interrupted(retraining.study, is_complete=retraining.spent() - retraining.running() >= budget)
    return retraining.study


@dataclass(frozen=True, slots=True)
class PlannedNetwork:
    """A network of a retraining, before it is trained."""

    name: str
    trial: int | None
    """Its number in the search, if it is one of its trials."""
    macs: int
    params: int
    done: int
    """Number of runs that are done."""
    left: int
    """Number of runs that would be trained, or continued."""


@in_help
@dataclass(frozen=True, slots=True)
class RetrainingPlan(NotebookView):
    """What a retraining would train, and how long that would take."""

    retraining: str
    """Its name, SEARCH@RECIPE."""
    networks: tuple[PlannedNetwork, ...]
    seeds: tuple[int, ...]
    epochs: int
    seconds: float | None
    """Time in which all runs would be trained, with Ray running; None if too little was measured to know."""
    larger: int = 0
    """Number of networks to train that have more MACs than all that were trained so far: `seconds` may be too low."""
    unfinished: str = ""
    """A sentence about what the search itself has still to do, if its front is trained; empty if it is complete."""

    @property
    def done(self) -> int:
        """Number of runs that are done."""
        return sum(network.done for network in self.networks)

    @property
    def left(self) -> int:
        """Number of runs that would be trained, or continued."""
        return sum(network.left for network in self.networks)

    @property
    def title(self) -> str:
        """The retraining, and the numbers of networks, seeds and epochs, in words."""
        number, seeds, epochs = len(self.networks), len(self.seeds), self.epochs
        what = f"{number} network{'s' * (number != 1)} × {seeds} seed{'s' * (seeds != 1)}"
        return f"{self.retraining}: {what}, {epochs} epoch{'s' * (epochs != 1)} at most"

    @property
    def time(self) -> str:
        """How long it would take, in words."""
        if not self.left:
            return "All runs are done: nothing would be trained."
        if self.seconds is None:
            return "Time: not known, because this study measured too few trainings."
        about = f"Time: about {duration(self.seconds)} of training, at the speed of the study's trainings so far"
        more = f"; {self.larger} of the networks have more MACs than all of those, so it may take much longer"
        return f"{about}{more * (self.larger > 0)}."

    def table(self) -> list[list[str]]:
        """The networks as rows of texts, below a row with the names of the columns."""
        rows = [["network", "trial", "MACs", "parameters", "runs done", "runs to train"]]
        for one in self.networks:
            trial = "–" if one.trial is None else str(one.trial)
            rows.append([one.name, trial, f"{one.macs:,}", f"{one.params:,}", str(one.done), str(one.left)])
        return rows

    def __str__(self) -> str:
        return f"{self.title}. {self.time}{f' {self.unfinished}.' * bool(self.unfinished)}"

    def __repr__(self) -> str:
        return f"<RetrainingPlan {self}>"

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {**asdict(self), "done": self.done, "left": self.left}


@checked
def plan_retraining(
    study: str | Study,
    *,
    trials: Sequence[int | Trial] = (),
    front: bool | None = None,
    points: bool = True,
    seeds: int = 3,
    recipe: str = "full",
    epochs: int | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  # the option's name
    data: str | None = None,
    data_dir: str | Path | None = None,
    studies: str | Path = "studies",
    storage: str | None = None,
) -> RetrainingPlan:
    """Tell what `retrain` would train, and how long that would take; nothing is written.

    The time is estimated from the trainings of the search, of its later levels and of the retraining so far: from the
    seconds of their epochs by MACs, and from how many were trained at a time.

    Args:
        study: The search, or its name.
        trials: Trials whose networks would be trained, or their numbers in the search.
        front: Whether the networks on the front would be trained; None: as in `retrain`.
        points: Whether the reference networks would be trained, too.
        seeds: Number of runs of each network.
        recipe: `full`, `paper`, `fast` or a TOML file of a recipe.
        epochs: Number of epochs; None: the recipe's.
        set: Fields of the recipe to change, by name.
        data: The data set of the search, if its images were moved; None: where the search read them.
        data_dir: Folder for data sets; None: $LRNAS_DATA or ~/.cache/lrnas.
        studies: Folder of all studies; not needed for a search that is open.
        storage: Database URL or `journal:FILE` of the study; None: the file in the study's folder.

    Returns:
        The networks, with the numbers of runs that are done and that are left, and the time.
    """
    _check_seeds(seeds)
    given = dict(set or {}) | ({} if epochs is None else {"epochs": epochs})
    with without_writing():
        search = open_search(study, storage=storage, studies=studies)
        networks = _choose(search, trials, front, points)
        training = _Training(search, data, data_dir, recipe, given)
    existing = None
    if training.label in retrained_recipes(search):
        name = f"{search.name}@{training.label}"
        existing = optuna.load_study(study_name=name, storage=storage_of(search.optuna_study))
        check_manifest(existing, training.manifest(search), ADVICE)
    unfinished = _tell_unfinished(search, trials, front)
    return _plan(search, networks, training, existing, _seeds(search, seeds), unfinished)


def _plan(
    search: Study,
    networks: Sequence[Chosen],
    training: _Training,
    existing: optuna.Study | None,
    seeds: range,
    unfinished: str = "",
) -> RetrainingPlan:
    """Return the plan of a retraining, which may exist already: the runs that are left and their estimated time."""
    runs = {} if existing is None else counting_runs(existing.get_trials(deepcopy=False))
    planned, left = [], []
    for network in networks:
        cost = training.cost(network.architecture)
        own = [runs.get((network.identity, seed)) for seed in seeds]
        to_train = [run for run in own if run is None or not is_done(run)]
        begun = [0 if run is None else run.user_attrs.get("epochs", 0) for run in to_train]
        left += [Work(cost["macs"], training.recipe.epochs - number) for number in begun]
        shown = network.point or search.uniform_names.get(network.identity) or network.identity
        planned.append(PlannedNetwork(shown, network.trial, **cost, done=len(seeds) - len(begun), left=len(begun)))
    sources = [existing, level_study(search, FULL), level_study(search, LONGER), search.optuna_study]
    measured = [trial for source in sources if source is not None for trial in source.get_trials(deepcopy=False)]
    seconds = _time_for(left, measured)
    known = max((trial.user_attrs["macs"] for trial in measured if trial.user_attrs.get("epochs")), default=0)
    larger = sum(network.left > 0 and network.macs > known for network in planned)
    name = f"{search.name}@{training.label}"
    return RetrainingPlan(name, tuple(planned), tuple(seeds), training.recipe.epochs, seconds, larger, unfinished)


def _time_for(left: Sequence[Work], measured: Sequence[FrozenTrial]) -> float | None:
    """Seconds that trainings would take at the pace of other ones, as many at a time; None if too few were measured."""
    trials = [trial for trial in measured if trial.user_attrs.get("images")]
    throughput = measure_throughput(trials)
    if throughput is None:
        return None
    facts = [trial.user_attrs for trial in trials if "imported_from" not in trial.user_attrs]
    own = sum(known["seconds"] - known.get("seconds_before", 0.0) for known in facts)
    trained = [Work(known["macs"], known["epochs"], known["seconds"]) for known in facts]
    return seconds_left(trained, left, min(own / throughput.seconds, max(1, len(left))))


def _check_seeds(number: int) -> None:
    if number < 1:
        raise LrnasError(f"the number of seeds must be at least 1; got {number}; give 3, for example")


def _seeds(search: Study, number: int) -> range:
    """Seeds of the runs of each network: those that follow the search's."""
    first = search.manifest["seed"] + 1
    return range(first, first + number)


def _open(search: Study, training: _Training) -> Runs:
    """The retraining of a search with these settings, new or as it exists."""
    name = f"{search.name}@{training.label}"
    optuna_study = create_optuna_study(name, storage_of(search.optuna_study), RETRAINED)
    manifest = check_manifest(optuna_study, training.manifest(search), ADVICE)
    optuna_study.set_user_attr(USED, datetime.now().isoformat())
    name_metrics(optuna_study, RETRAINED)
    return Runs(Ledger(Study(name, optuna_study, RETRAINED, manifest, search.where)))


def _wants_best(trials: Sequence[int | Trial], front: bool | None) -> bool:
    """Whether the best networks of the search are to be trained."""
    return not trials if front is None else front


def _tell_unfinished(search: Study, trials: Sequence[int | Trial], front: bool | None) -> str:
    """Return such a sentence about the search if its best networks are to be trained; it may be empty."""
    return tell_unfinished(search) if _wants_best(trials, front) else ""


def _choose(search: Study, trials: Sequence[int | Trial], front: bool | None, points: bool) -> list[Chosen]:
    """The networks to train, each once, with all its names; reference networks first."""
    wants_best = _wants_best(trials, front)
    name, manifest = search.name, search.manifest
    command = search.where.front(name)
    if manifest.get("trainable") is not None:
        raise StudyError(
            f"only networks that lrnas trained can be retrained, because it knows their test images; {name} was "
            f"trained by {manifest['trainable']}; {command} lists its networks; test them there"
        )
    summary = search.summary()
    by_number = {trial.number: trial for trial in summary.trials}
    if wants_best and not summary.front:
        raise StudyError(f"the front has only networks whose training was completed; {name} has none yet; continue it")
    wanted = [by_number.get(trial) if not isinstance(trial, Trial) else trial for trial in trials]
    for given, trial in zip(trials, wanted, strict=True):
        if trial is None:
            known = f"its last trial is {max(by_number)}" if by_number else "it has none yet"
            raise StudyError(f"{name} has no network of trial {given}; {known}; {command} shows the best ones")
        if trial.study.name.partition("@")[0] != name:
            raise StudyError(f"trials must be of {name}; got {trial!r}, one of {trial.study.name}; give that study")
    references = {point: Architecture.from_dict(value, point) for point, value in manifest["space"]["points"].items()}
    names = {search.identify(network): point for point, network in reversed(references.items())}
    numbers = {trial.identity: trial.number for trial in reversed(summary.trials) if trial.status == "completed"}
    networks = {search.identify(network): network for network in references.values()} if points else {}
    best = _best(search, front) if wants_best else []
    kept = [by_number[number] for number in best if number in by_number]
    for trial in [*filter(None, wanted), *(kept or summary.front if wants_best else ())]:
        identity = search.identify(trial.architecture)
        networks.setdefault(identity, trial.architecture)
        if trial.study.name == name:  # runs of later levels have other numbers
            numbers.setdefault(identity, trial.number)
    return [Chosen(key, network, names.get(key), numbers.get(key)) for key, network in networks.items()]


def _best(search: Study, front: bool | None) -> list[int | None]:
    """The trials on the front of the finals or, after a search with `beat`, those that beat reference networks."""
    finals = read_level(search)
    if front is None and search.beat is not None:
        rivals: dict[str, int | None] = {}
        for level in (finals, read_short(search)):  # a reference network may have no rival in the finals yet
            for outcome in compare_with_references(level, search.beat):
                if outcome.rival is not None:
                    rivals.setdefault(outcome.point.name, outcome.rival.trial)
        if rivals:
            return list(dict.fromkeys(rivals.values()))
    return [final.trial for final in final_front(finals)]


def _other_data(search: Study, name: str, given: Mapping[str, Any]) -> StudyError:
    """The error about data that are not those of a search; `given` is as much of their manifest as is known."""
    told = tell_other_images(search.manifest, given)
    return StudyError(f"{search.name} cannot be retrained on {shown_name(name)}: {told}; give the same --data")


class _Training:
    """Training of the networks: on the data of the search, in the same way as `lrnas reproduce`.

    Args:
        search: The search.
        data: Data set to find the search's images in; None: where the search read them.
        data_dir: Folder for data sets.
        recipe: Name or file of the recipe.
        changes: Fields of the recipe to change.
        image_memory: Largest share of a GPU's memory for images from files.
        pack: Kind of pack of images from files.
    """

    def __init__(
        self,
        search: Study,
        data: str | None,
        data_dir: str | Path | None,
        recipe: str,
        changes: Mapping[str, Any],
        image_memory: float = IMAGE_MEMORY,
        pack: str | None = None,
    ) -> None:
        searched, hint = search.manifest, search.images
        backbones = searched["space"]["choices"]["backbone"]
        self.smallest = max(smallest_input(backbone) for backbone in backbones)
        self.data_dir = None if data_dir is None else str(data_dir)
        self.image_memory, self.pack = image_memory, pack
        if data is None and hint is None and searched["data"] not in SETS:
            raise StudyError(
                f"the study {search.name} does not know where its images, {data_name(searched)}, are; got no --data; "
                "give the same --data as in the search"
            )
        self.named = name = data or hint or searched["data"]
        self.image_size = searched["image_size"] if is_in_files(name) else None
        if is_other_kind(searched, name):
            raise _other_data(search, name, {})
        try:
            self.data = load_set(
                name,
                data_dir,
                min_size=self.smallest,
                image_size=self.image_size,
                image_memory=image_memory,
                pack=pack,
            )
        except DataError as error:
            if data is not None or hint is None:
                raise
            place = f"{search.name} cannot read its images from {hint} any more"
            raise StudyError(f"{place}; if they were moved, say with --data where they are now ({error})") from None
        if self.data.identity != searched["data"]:
            raise _other_data(search, name, names_of(name, self.data.classes, self.data.num_images))
        self.start = None
        if START in searched:
            file = str((searched.get(SETTINGS) or {}).get("start_from"))
            try:
                self.start = read_start(file, backbones)
            except LrnasError as error:
                raise StudyError(f"{search.name} started from {file}, but now: {error}; restore it") from None
            if self.start.identity != searched[START]:
                raise StudyError(f"{search.name} started from {file}, which has changed since; restore it")
        size, number, own_crops = self.data.image_size, len(self.data.train), self.data.own_crops
        norms = has_norms(backbones[0], searched["space"]["batch_norm"])
        make_recipe = functools.partial(
            get_recipe, recipe, backbones[0], size, num_images=number, norms=norms, own_crops=own_crops
        )
        self.recipe = make_recipe(changes=changes)
        self.remarks = tell_small_batches(self.recipe, make_recipe(changes=changes, num_images=sys.maxsize), number)
        self.remarks += tell_few_images(self.data.num_images[2], "test images")
        fields = self.recipe.to_dict()
        try:
            unchanged = make_recipe().to_dict()
        except InvalidRecipe:  # the recipe fits these data only with the changes
            unchanged = {key: value for key, value in fields.items() if key not in changes}
        changed = [f"{key}={str(fields[key]).lower()}" for key in fields if unchanged.get(key, ...) != fields[key]]
        self.label = ",".join([re.sub(r"[^\w.+-]", "-", Path(recipe).stem), *changed])
        """The recipe's name, and the fields that differ from it."""
        if self.label in LEVEL_FOLDERS:
            raise StudyError(
                f"{' and '.join(LEVEL_FOLDERS)} are levels of a search, not recipes of a retraining; got {recipe}; "
                "rename the file"
            )

    def job(self, proposal: Proposal) -> Job:
        assert proposal.seed is not None
        network, seed = proposal.architecture, proposal.seed
        data = (self.smallest, self.data_dir, self.image_size, self.image_memory, self.pack)
        return Job(network, self.named, self.recipe, seed, *data, start=self.start, data_identity=self.data.identity)

    def cost(self, architecture: Architecture) -> dict[str, int]:
        """Costs of a network as deployed, for the images or crops that it is trained on.

        Their size may differ from the search.
        """
        size, classes, channels = self.recipe.crop or self.data.image_size, self.data.num_classes, self.data.channels
        cost = make_plan(architecture, size, classes, channels, deployed=True).cost
        return {"macs": cost.macs, "params": cost.params}

    def measure_latency(self, search: Study, networks: Sequence[Chosen]) -> dict[str, float]:
        """Milliseconds of networks as deployed, each measured as a whole, by identity, before runs use the device.

        It is empty if latency is no objective of the search, or if the search measured it on another machine.
        """
        before = search.manifest.get("latency")
        if before is None:
            return {}
        from lrnas.profiling.latency_table import Conditions, Latency, LatencyTable, table_file
        from lrnas.profiling.timing import find_device

        try:
            device = find_device(before["device"])
        except LrnasError as error:
            here = str(error)
        else:
            conditions = Conditions.here(device, before["batch"], before["dtype"], before["threads"] or None)
            if conditions.hardware == before["hardware"]:
                table = LatencyTable(conditions, table_file(data_folder(self.data_dir)), device)
                size = self.recipe.crop or self.data.image_size
                latency = Latency(table, size, self.data.num_classes, self.data.channels)
                deployed = [deployed_form(each.architecture, size, self.data.channels) for each in networks]
                return dict(zip((each.identity for each in networks), latency.measure(deployed), strict=True))
            here = f"this is {conditions.hardware}"
        logger.warning(f"latency is not measured: {search.name} measured it on {before['hardware']}; {here}")
        return {}

    def manifest(self, search: Study) -> dict[str, Any]:
        """Everything that must stay the same for runs to be comparable."""
        space = search.manifest["space"]
        named = [Architecture.from_dict(each) for part in ("points", "seeds") for each in space[part].values()]
        counts = [self.cost(network) for network in named or map(Architecture, space["choices"]["backbone"])]
        return {
            RETRAINS: search.name,
            "source": search.manifest["source"],
            "space": space,
            "data": self.data.identity,
            **names_of(self.named, self.data.classes, self.data.num_images),
            "image_size": self.data.image_size,
            "channels": self.data.channels,
            "num_classes": self.data.num_classes,
            "recipe": self.recipe.to_dict(),
            **({} if self.start is None else {START: self.start.identity}),
            "rungs": [],
            "objectives": [goal.name for goal in RETRAINED],
            "reference": {key: max(count[key] for count in counts) for key in ("macs", "params")},
        }
