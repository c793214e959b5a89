"""`Study`: a search or a retraining, read from its Optuna study: trials, counts and the front."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar, overload

import optuna
from optuna.trial import FrozenTrial, TrialState

from lrnas._arguments import checked
from lrnas._field_docs import in_help
from lrnas._notebook import NotebookView
from lrnas._quantities import read_quantity, read_time
from lrnas.arch.architecture import Architecture
from lrnas.arch.cost import Cost
from lrnas.errors import InvalidArchitecture
from lrnas.models.plan import canonical_id, deployed_form, make_plan
from lrnas.sampling.pareto import front_indices, hypervolume
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import (
    BUDGET,
    IMAGES,
    LEVEL,
    RETRAINS,
    SETTINGS,
    UNREADABLE,
    StudyError,
    data_name,
    read_limits,
)
from lrnas.study.objectives import Costs, Limits, Objective, cost_objectives
from lrnas.study.optuna_internals import LAST_ATTRIBUTE, database_of, get_trial, id_of_study
from lrnas.study.throughput import Throughput, measure_throughput

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch import nn

    from lrnas import Export

Number = TypeVar("Number", int, float)

MAX_PRINTED = 10
"""Largest number of trials that are printed of a list."""
STATUSES = {"limit": "beyond a limit", "duplicate": "known already"}
"""Words for the status of trials that were not trained; others are shown as they are."""
METRIC = "metric."
"""Prefix of the trial attributes that hold further metrics, which a user's own training code reports."""
COLUMNS = (
    "number", "trial", "status", "point", "identity", "accuracy", "test_accuracy", "macs", "params", "latency",
    "epochs", "seconds", "on_front",
)  # fmt: skip
"""Columns of a table of trials or runs; a study has those of them that it knows."""


@in_help
@dataclass(frozen=True, slots=True)
class Trial(NotebookView):
    """One network of a study and what is known about it."""

    number: int
    """Number in its study, from 0: of a run, not that of its network in the search, which is `trial`."""
    state: str
    """State of the Optuna trial, such as COMPLETE."""
    status: str
    """One of running, waiting, completed, stopped, diverged, faulty, limit, duplicate and lost."""
    description: str
    """The architecture as it was trained, as JSON."""
    identity: str
    """Canonical id of the architecture."""
    point: str | None
    """Its name, if it is a reference network or a uniform network of the space."""
    macs: int
    """Multiply-accumulates for one image, as deployed."""
    params: int
    """Number of parameters, as deployed."""
    latency: float | None
    """Milliseconds for a batch, as deployed; None if the study does not measure latency."""
    accuracy: float | None
    """Validation accuracy: the final one of a completed trial, else the last one reported."""
    epochs: int
    """Number of epochs trained so far."""
    curve: tuple[float, ...]
    """Validation accuracy after each epoch."""
    seconds: float
    """Training time of this trial."""
    reason: str
    """Why the trial was stopped, refused or lost."""
    values: tuple[float, ...] | None
    """Values of the study's objectives; None unless the training was completed."""
    study: Study = field(compare=False)
    """The study that the trial belongs to."""
    on_front: bool = False
    """Whether the network is on the front of its study; at a later level by its mean accuracy over seeds."""
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Further metrics that a user's own training code reported last."""
    trial: int | None = None
    """Number of its network in the search, as in `STUDY:TRIAL` and `lrnas.retrain(study, trials=[…])`; None for a run
    of a network that the search did not train."""

    @property
    def costs(self) -> Costs:
        """Costs by name."""
        latency = {} if self.latency is None else {"latency": self.latency}
        return {"macs": self.macs, "params": self.params, **latency}

    @property
    def test_accuracy(self) -> float | None:
        """Accuracy on test images, which only tested runs of a retraining have."""
        names = [objective.name for objective in self.study.objectives]
        return dict(zip(names, self.values or (), strict=False)).get("test_accuracy")

    @property
    def architecture(self) -> Architecture:
        """The architecture, parsed from its JSON."""
        return Architecture.from_json(self.description)

    @property
    def name(self) -> str:
        """Name in tables and messages: that of a named network, else the canonical id."""
        return self.point or self.identity

    @property
    def title(self) -> str:
        """Name in sentences and pictures: that of a named network, else `trial 74`."""
        return self.point or (self.identity if self.trial is None else f"trial {self.trial}")

    @property
    def place(self) -> str:
        """Its number and, of a run, its study and the trial of the search: `run 3 of nin-digits@finals, trial 4`."""
        if "@" not in self.study.name:
            return f"trial {self.number}"
        return f"run {self.number} of {self.study.name}" + ("" if self.trial is None else f", trial {self.trial}")

    @property
    def is_reference(self) -> bool:
        """Whether it is a reference network: one of the paper's in the spaces of lrnas, else the unchanged model."""
        return self.point in self.study.manifest["space"]["points"]

    @property
    def share(self) -> float | None:
        """MACs as a share of the dense network's; None if the space has no dense network."""
        return None if (dense := self.study.dense_macs) is None else self.macs / dense

    @checked
    def load(self) -> nn.Module:
        """The network with the weights of this trial, in evaluation mode on the CPU.

        If the search also trained the network in full, `lrnas.load_model("STUDY:TRIAL")` has those weights. Weights are
        kept of networks whose training was completed. `timm.data.resolve_model_data_config(model)` says how images must
        be prepared.
        """
        from lrnas import load_model

        return load_model(self)

    @checked
    def export(
        self,
        format: Literal["timm", "onnx", "torch-export"] = "timm",  # noqa: A002  # the option's name
        *,
        out: str | Path | None = None,
        fuse: bool = False,
        device: str | torch.device | None = None,
        batch: int = 1,
        threads: int | None = None,
        data: str | None = None,
        data_dir: str | Path | None = None,
        fresh: bool = False,
        force: bool = False,
    ) -> Export:
        """Write the network with the weights of this trial for use elsewhere, and check what was written.

        See `lrnas.export`. If the search also trained the network in full, `lrnas.export("STUDY:TRIAL")` has those
        weights.

        Args:
            format: "timm" (a folder), "onnx" or "torch-export" (a file each).
            out: Folder or file to write; None for one in `exports/`.
            fuse: Fold batch norms, and replace every mixed-shape layer by its fastest form, found by measurement.
            device: Where the network will run and is measured: cpu, cuda or cuda:N; None for the GPU if there is one.
            batch: Images in a batch, for the measurements.
            threads: CPU threads for the measurements; None for PyTorch's number, or for one if that is faster.
            data: Data set whose images are used for the check; None for the one that the network was trained on.
            data_dir: Folder of the data sets; None for the default one.
            fresh: Use random weights if the weights of the trial were not kept.
            force: Replace existing files.

        Returns:
            The written files, how to load them, the result of the check, and times.
        """
        from lrnas import export

        measured: Any = {"fuse": fuse, "device": device, "batch": batch, "threads": threads}
        return export(self, format, out=out, data=data, data_dir=data_dir, fresh=fresh, force=force, **measured)

    def __repr__(self) -> str:
        tested, known = self.test_accuracy, self.accuracy
        accuracy = "" if known is None else f", {100 * known:.2f} %"
        accuracy = accuracy if tested is None else f", {100 * tested:.2f} % on test images"
        front = ", on the front" if self.on_front else ""
        latency = "" if self.latency is None else f", {self.latency:.3f} ms"
        status = STATUSES.get(self.status, self.status)
        known_as = f"{self.place[0].upper()}{self.place[1:]}: {self.name}"
        return f"<{known_as}{accuracy}, {self.macs:,} MACs{latency}, {status}{front}>"


class Trials(list[Trial], NotebookView):
    """A list of trials that is short when it is printed, and a table in notebooks."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> Trial: ...
    @overload
    def __getitem__(self, index: slice) -> Trials: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Trial | Trials:
        return Trials(super().__getitem__(index)) if isinstance(index, slice) else super().__getitem__(index)

    def __repr__(self) -> str:
        most = len(self) if len(self) <= MAX_PRINTED + 1 else MAX_PRINTED  # "1 more" would take a line, too
        more = [f"… {len(self) - most} more"] * (len(self) > most)
        return "[" + ",\n ".join([*map(repr, self[:most]), *more]) + "]"


@in_help
@dataclass(frozen=True, slots=True)
class ImageShape:
    """Input and output of a study's networks."""

    size: int
    """Height and width of the images that networks are trained on."""
    channels: int
    """Channels of the images."""
    num_classes: int
    """Number of classes."""


@in_help
@dataclass(frozen=True, slots=True)
class Summary:
    """The state of a study at one moment."""

    trials: Trials
    """All trials that have a network, by number."""
    front: Trials
    """The front: completed networks that no other one dominates, cheapest first."""
    counts: dict[str, int]
    """Number of trials per status."""
    hypervolume: float
    """Hypervolume of the front, as a share of the box from accuracy 0 to 1 and from cost 0 to the highest cost of a
    named network."""


@dataclass(repr=False, eq=False)
class Study(NotebookView):
    """A search or a retraining, for reading: trials, counts and the front.

    Everything comes from the Optuna study. Finished trials do not change and are parsed once.

    Args:
        name: The name of the study; SEARCH@RECIPE for a retraining.
        optuna_study: The Optuna study that holds all data.
        objectives: The objectives, in the order of the trials' values.
        manifest: The settings that the study was begun with.
        where: The folder and the storage that hold the study.
        interrupted: Number of the signal that stopped the driver that returned this study, 2 for Ctrl-C; else 0.
    """

    name: str
    optuna_study: optuna.Study
    objectives: tuple[Objective, ...]
    manifest: dict[str, Any]
    where: Whereabouts = field(default_factory=Whereabouts)
    interrupted: int = 0
    _finished: dict[int, Trial] = field(default_factory=dict, init=False, repr=False)
    _counted: Counter[tuple[TrialState, bool]] = field(default_factory=Counter, init=False, repr=False)
    """Numbers of the trials before the first that is not finished, by state and by whether training has begun."""
    _by_network: dict[str, list[int]] = field(default_factory=dict, init=False, repr=False)
    """Numbers of the same trials by canonical id."""

    def __repr__(self) -> str:
        goals = ", ".join(objective.name for objective in self.objectives)
        state = ", interrupted" if self.interrupted else ""
        return f"<Study {self.name}: {self.manifest['source']} on {data_name(self.manifest)}, {goals}{state}>"

    @property
    def costs(self) -> list[str]:
        """Names of the objectives that are costs."""
        return [objective.name for objective in cost_objectives(self.objectives)]

    def columns_of(self, trials: Iterable[Trial]) -> list[str]:
        """Columns of a table of these trials or runs of this study.

        Latency is one of them if it is an objective, or known for a trial because the search has or had a limit on it.
        A retraining has test accuracies; its runs have no front.
        """
        has = {
            "trial": "@" in self.name,
            "test_accuracy": RETRAINS in self.manifest,
            "latency": "latency" in self.costs or any(trial.latency is not None for trial in trials),
            "on_front": RETRAINS not in self.manifest,
        }
        return [name for name in COLUMNS if has.get(name, True)]

    @property
    def baseline(self) -> str | None:
        """Name of the network that costs are compared with: the one the space names, else its unchanged backbone."""
        space = self.manifest["space"]
        unchanged = (name for name in ("baseline", "dense-x1") if name in space.get("seeds", ()))
        return space.get("baseline") or next(unchanged, None)

    @property
    def dense_macs(self) -> int | None:
        """MACs of the baseline, the dense network; None if the space has no such network."""
        return None if self.dense_cost is None else self.dense_cost.macs

    @property
    def dense_network(self) -> Architecture | None:
        """The baseline, the dense network; None if the space has no such network."""
        space = self.manifest["space"]
        if self.baseline is None:
            return None
        return Architecture.from_dict((space["points"] | space["seeds"])[self.baseline])

    @cached_property
    def dense_cost(self) -> Cost | None:
        """Costs of the dense network; None if the space has no such network."""
        network, shape = self.dense_network, self.image_shape
        if network is None:
            return None
        return make_plan(network, shape.size, shape.num_classes, shape.channels, deployed=True).cost

    @cached_property
    def uniform_names(self) -> dict[str, str]:
        """Names of the uniform networks of the space by canonical id; runs of later levels do not store them."""
        seeds = self.manifest["space"].get("seeds", {})
        return {self.identify(Architecture.from_dict(network)): name for name, network in seeds.items()}

    @property
    def image_shape(self) -> ImageShape:
        """Size and channels of the images that networks are trained on, and the number of classes."""
        size = self.manifest["recipe"].get("crop") or self.manifest["image_size"]
        return ImageShape(size, self.manifest["channels"], self.manifest["num_classes"])

    @property
    def unreadable_images(self) -> int:
        """Number of images that could not be read and were left out when the study was last continued."""
        return int(self.optuna_study.user_attrs.get(UNREADABLE, 0))

    @property
    def images(self) -> str | None:
        """Where the images were last read from, as a value of --data; None if they are not in files or not known."""
        return self.optuna_study.user_attrs.get(IMAGES)

    @property
    def beat(self) -> float | None:
        """Share of the costs of reference networks below which the search last looked (--beat); None: no limit."""
        return read_limits(self.optuna_study).get("beat")

    @property
    def limits(self) -> Limits:
        """Limits on the costs of networks that the search last had."""
        known: Mapping[str, Any] = read_limits(self.optuna_study)
        return Limits(**{each.name: known.get(each.name) for each in dataclasses.fields(Limits)})

    @property
    def budget(self) -> int:
        """Number of trials that the search was last to have in all, at least those that it has."""
        begun = self.manifest.get(SETTINGS, {}).get("budget", 0)
        last: int = self.optuna_study.user_attrs.get(BUDGET, begun)
        return max(self.spent(), last)

    def deployed(self, architecture: Architecture) -> Architecture:
        """The deployed form of a network for the images of this study."""
        return deployed_form(architecture, self.image_shape.size, self.image_shape.channels)

    def identify(self, architecture: Architecture) -> str:
        """The canonical id of a network for the images of this study."""
        try:
            return canonical_id(architecture, self.image_shape.size, self.image_shape.channels)
        except InvalidArchitecture:  # images of this size are too small for it
            return canonical_id(architecture, in_chans=self.image_shape.channels)

    def summary(self) -> Summary:
        """Trials, front, counts and hypervolume, from one reading of the storage."""
        # another driver may be in the middle of writing a trial
        trials = [self._read(trial) for trial in self.optuna_trials() if LAST_ATTRIBUTE in trial.user_attrs]
        counts = Counter(trial.status for trial in trials)
        if LEVEL in self.manifest:
            return self._summarise_level(trials, counts)
        full = [trial for trial in trials if trial.status == "completed" and trial.values is not None]
        full = [] if RETRAINS in self.manifest else full
        best, volume = self._find_front([trial.values or () for trial in full])
        return self._summarise(trials, {full[i].number for i in best}, counts, volume)

    def short_summary(self) -> Summary:
        """The same as `summary`, except for the trials: those on the front, and those with a name.

        Other trials are only counted, which takes a fifth of the time of reading them.
        """
        database = database_of(self.optuna_study)
        if database is None or RETRAINS in self.manifest or LEVEL in self.manifest:  # names of runs are not stored
            return self.summary()
        outlines = database.read_outlines(id_of_study(self.optuna_study))
        counts = Counter(_status(outline.state, outline.status) for outline in outlines)
        full = [one for one in outlines if one.state == TrialState.COMPLETE and one.status == "completed"]
        best, volume = self._find_front([outline.values for outline in full])
        on_front = {full[i].trial_id for i in best}
        shown = [one.trial_id for one in outlines if one.is_named or one.trial_id in on_front]
        rows = database.read_listed(shown)
        numbers = {row.number for row, trial_id in zip(rows, shown, strict=True) if trial_id in on_front}
        return self._summarise([self._read(row) for row in rows], numbers, counts, volume)

    def _find_front(self, values: Sequence[Sequence[float]]) -> tuple[list[int], float]:
        """Indices of the values on the front, and its hypervolume."""
        minimised = [self.as_costs(each) for each in values]
        best = front_indices(minimised)
        return best, hypervolume([minimised[i] for i in best], [1.0] * len(self.objectives))

    def _summarise(self, trials: list[Trial], on_front: set[int], counts: dict[str, int], volume: float) -> Summary:
        marked = Trials(
            dataclasses.replace(trial, on_front=True) if trial.number in on_front else trial for trial in trials
        )
        front = Trials(sorted((trial for trial in marked if trial.on_front), key=self.cheapest_first))
        return Summary(marked, front, dict(counts), volume)

    def _summarise_level(self, trials: list[Trial], counts: dict[str, int]) -> Summary:
        """The summary of a later level: networks are compared by mean accuracy, and the front has their first runs."""
        found = _levels().read_level(self, self.manifest[LEVEL])
        done = [final for final in found if math.isfinite(final.mean)]
        names = [objective.name for objective in self.objectives]
        best, volume = self._find_front([[{"accuracy": f.mean, **f.known_costs}[name] for name in names] for f in done])
        summary = self._summarise(trials, {number for i in best for number in done[i].runs}, counts, volume)
        first = {done[i].runs[0] for i in best}
        return dataclasses.replace(summary, front=Trials(run for run in summary.front if run.number in first))

    def cheapest_first(self, trial: Trial) -> tuple[float, int]:
        """Sort key: the first cost objective, then the number."""
        return getattr(trial, self.costs[0]), trial.number

    @property
    def trials(self) -> Trials:
        """All trials that have a network, by number; `on_front` marks those on the front of this study's own level."""
        return self.summary().trials

    def check_front(self) -> None:
        """Refuse a retraining, which has no front of trials: its networks are compared over seeds."""
        if (search := self.manifest.get(RETRAINS)) is not None:
            raise StudyError(
                f"this needs a search, which has a front; got {self.name}, a retraining of {search}; "
                f"`{self.where.command('retrain', self.name)}` shows its results, in Python lrnas.read_retraining does"
            )

    @checked
    def front(self, level: str | None = None) -> Trials:
        """The front: networks that no other one dominates, cheapest first.

        Args:
            level: Training that is compared: `full`, the finals; `longer`; or `short`, that of the search itself. None:
                `full` if there are finals, else `short`.

        Returns:
            Trials of the search for `short`. For later levels, whose networks are compared by their mean accuracy over
            seeds, the first run of each network, a trial of SEARCH@finals or SEARCH@longer.
        """
        self.check_front()
        if (found := self._later(level)) is None:
            return self.summary().front
        return Trials(run for _, run in found if run.on_front)

    def _later(self, level: str | None) -> list[tuple[float, Trial]] | None:
        """Mean accuracies of the networks of a later level, and their first runs; None for the level `short`."""
        levels = _levels()
        wanted, level = level, levels.pick_level(self, level)
        if wanted is not None and level != levels.SHORT and levels.level_study(self, level) is None:
            has = "ran without finals" if level == levels.FULL else f"has no level {level}"
            raise StudyError(f'{self.name} {has}; got level="{level}"; give "short", or leave it out')
        found: list[tuple[float, Trial]] = [] if level == levels.SHORT else levels.trained_networks(self, level)
        return None if level == levels.SHORT else found

    def hypervolume(self, level: str | None = None) -> float:
        """Hypervolume of the front, see `Summary`.

        Args:
            level: Training that is compared, as for `front`.
        """
        self.check_front()
        if (found := self._later(level)) is None:
            return self.summary().hypervolume
        names = [objective.name for objective in self.objectives]
        return self._find_front([[{**run.costs, "accuracy": mean}[name] for name in names] for mean, run in found])[1]

    def counts(self) -> dict[str, int]:
        """Number of trials per status."""
        return self.summary().counts

    def throughput(self) -> Throughput | None:
        """Images per second of all trials together; None if nothing was trained, or by functions of the user's own."""
        return measure_throughput(self.optuna_trials())

    @checked
    def best(
        self,
        *,
        max_macs: float | str | None = None,
        max_params: float | str | None = None,
        max_latency: float | str | None = None,
        level: str | None = None,
    ) -> Trial:
        """The most accurate network within limits; of equally accurate ones, one that the search found.

        Args:
            max_macs: Largest number of multiply-accumulates; also as text, such as "3M".
            max_params: Largest number of parameters; also as text.
            max_latency: Largest latency in milliseconds; only for studies with latencies, as an objective or a limit.
            level: Training that is compared, as for `front`.

        Returns:
            The trial of that network; at a later level its first run, as `front` returns it.
        """
        self.check_front()
        limits = Limits(
            max_macs=_read_limit("max_macs", max_macs, read_quantity),
            max_params=_read_limit("max_params", max_params, read_quantity),
            max_latency=_read_limit("max_latency", max_latency, functools.partial(read_time, "ms")),
        )
        later = self._later(level)
        short = [(trial.accuracy or 0.0, trial) for trial in self.trials if trial.status == "completed"]
        done = short if later is None else later
        if not done:
            raise StudyError(f"{self.name} has no trained network{' at this level' * bool(level)} yet; continue it")
        if limits.max_latency is not None:
            short, done = ([(mean, trial) for mean, trial in few if trial.latency is not None] for few in (short, done))
            if not done:
                raise StudyError(f"{self.name} has no latencies; got max_latency {limits.max_latency:g}; leave it out")
        fits = [(accuracy, trial) for accuracy, trial in done if not limits.excess(trial.costs)]
        if not fits:
            is_short = later is not None and any(not limits.excess(trial.costs) for _, trial in short)
            others = ', or give level="short" for networks without finals' if is_short else ""
            near = min((trial for _, trial in done), key=lambda trial: sum(limits.excess(trial.costs).values()))
            costs = f"{near.macs:,} multiply-accumulates and {near.params:,} parameters"
            latency = f" and takes {near.costs['latency']:.3f} ms" if "latency" in near.costs else ""
            raise StudyError(
                f"no trained network of {self.name} is within these limits; the closest one, {near.title}, has "
                f"{costs}{latency}; raise them{others}"
            )
        return max(fits, key=lambda fit: (fit[0], not fit[1].is_reference, -fit[1].macs))[1]

    def to_pandas(self) -> pd.DataFrame:
        """A table with one row per trial or run, and the architecture as JSON.

        In a search, `accuracy` and `on_front` are those of the short trainings, also if there are finals:
        `study.front()` is then another front. `accuracy` is always that on validation images.
        """
        import pandas as pd

        trials = self.trials
        names = self.columns_of(trials)
        rows = [[*(getattr(trial, name) for name in names), trial.description] for trial in trials]
        return pd.DataFrame(rows, columns=[*names, "architecture"])

    def spent(self) -> int:
        """Number of trials that count towards the budget: training has begun, and the trial is not lost or waiting."""
        return self._num_trained((TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED))

    def running(self) -> int:
        """Number of trials that some driver is training."""
        return self._num_trained((TrialState.RUNNING,))

    def waiting(self) -> int:
        """Number of trials whose training has begun and which no driver is training now."""
        return self._num_trained((TrialState.WAITING,))

    def _num_trained(self, states: tuple[TrialState, ...]) -> int:
        """Number of trials in these states whose training has begun."""
        _, rest = self._divide()
        of_rest = (trial for trial in rest if trial.state in states and trial.user_attrs.get("trained"))
        return sum(self._counted[state, True] for state in states) + sum(1 for _ in of_rest)

    def trials_of(self, identity: str) -> list[FrozenTrial]:
        """The Optuna trials of the network with this canonical id, by number. They are not copies."""
        trials, rest = self._divide()
        ended = [trials[number] for number in self._by_network.get(identity, ())]
        return ended + [trial for trial in rest if trial.user_attrs.get("id") == identity]

    def _divide(self) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
        """All Optuna trials, and those from the first that is not finished on. The others are counted and indexed.

        A search needs this several times for each trial, so every trial is counted only once.
        """
        trials, first = self.optuna_trials(), self._counted.total()
        while first < len(trials) and trials[first].state.is_finished():
            known = trials[first].user_attrs
            self._counted[trials[first].state, bool(known.get("trained"))] += 1
            if "id" in known:
                self._by_network.setdefault(known["id"], []).append(first)
            first += 1
        return trials, trials[first:]

    def losses(self) -> int:
        """How often trials were lost, summed over all trials."""
        return sum(trial.user_attrs.get("losses", 0) for trial in self.optuna_trials())

    def is_protected(self, number: int) -> bool:
        """Whether a trial is a reference network, which is never stopped early."""
        return self.optuna_trial(number).user_attrs.get("point") in self.manifest["space"]["points"]

    def as_costs(self, values: Sequence[float]) -> list[float]:
        """Objective values as numbers to minimise: 1 - accuracy, and costs as shares of the reference."""
        reference = self.manifest["reference"]
        return [
            1 - value if objective.maximise else value / reference[objective.name]
            for value, objective in zip(values, self.objectives, strict=True)
        ]

    def skip_details(self) -> None:
        """Let Optuna's trials have no parameters from now on, and not say where they were trained.

        This halves the time to read them from a database.
        """
        if (database := database_of(self.optuna_study)) is not None:
            database.reads_details = False

    def optuna_trial(self, number: int) -> FrozenTrial:
        """The Optuna trial with this number."""
        return get_trial(self.optuna_study, number)

    def optuna_trials(self, states: tuple[TrialState, ...] | None = None) -> list[FrozenTrial]:
        """All Optuna trials, or those in the given states. They are not copies: do not change them."""
        return self.optuna_study.get_trials(deepcopy=False, states=states)

    def _read(self, trial: FrozenTrial) -> Trial:
        if trial.number not in self._finished:
            read = _read_trial(self, trial)
            if not trial.state.is_finished():
                return read
            self._finished[trial.number] = read
        return self._finished[trial.number]


def _levels() -> Any:
    return importlib.import_module("lrnas.study.levels")  # it imports this module


def _read_limit(name: str, value: Any, read: Callable[[Any], Number]) -> Number | None:
    """A limit that a user gave, as text or as itself; None if there is none."""
    try:
        return None if value is None else read(value)
    except (ValueError, TypeError, OverflowError):
        raise StudyError(f"{name} takes a number above 0; got {value!r}; for example 3M or 1.5e8") from None


def _status(state: TrialState, status: str | None) -> str:
    """The status of a trial, from its state and its attribute."""
    return (status or "lost") if state.is_finished() else state.name.lower()


def _read_trial(study: Study, trial: FrozenTrial) -> Trial:
    attributes = trial.user_attrs
    curve = tuple(attributes.get("curve", ()))
    accuracy = attributes.get("accuracy", curve[-1] if curve else None)
    return Trial(
        number=trial.number,
        state=trial.state.name,
        status=_status(trial.state, attributes.get("status")),
        description=attributes["architecture"],
        identity=attributes["id"],
        point=attributes.get("point") or (study.uniform_names.get(attributes["id"]) if "seed" in attributes else None),
        macs=attributes["macs"],
        params=attributes["params"],
        latency=attributes.get("latency"),
        accuracy=accuracy,
        epochs=attributes.get("epochs", 0),
        curve=curve,
        seconds=attributes.get("seconds", 0.0),
        reason=attributes.get("reason", ""),
        values=tuple(trial.values) if trial.values is not None else None,
        study=study,
        trial=attributes.get("trial") if "@" in study.name else trial.number,
        metrics={key.removeprefix(METRIC): value for key, value in attributes.items() if key.startswith(METRIC)},
    )
