"""A report on studies as data: networks, the front and its growth, importances of parameters, tested networks.

The page (`html`) and the figures (`figures.report_plots`) draw this data and compute nothing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from lrnas.arch.cost import Cost
from lrnas.errors import LrnasError
from lrnas.models.plan import make_plan
from lrnas.recipes import Recipe
from lrnas.reporting.layer_view import Layer, lay_out
from lrnas.reporting.retrained_report import Tested, finals_to_dicts
from lrnas.reporting.suggested_commands import ShellLine, retrain_line, shell_lines
from lrnas.sampling.pareto import add_to_front, hypervolume
from lrnas.study.levels import FULL, NOT_DONE, SHORT, SUFFIXES, is_open, level_study, read_level, tell_below
from lrnas.study.manifest import StudyError, data_name, name_start
from lrnas.study.objectives import OBJECTIVES, Objective
from lrnas.study.retrained import Final, Retrained, final_front
from lrnas.study.study import COLUMNS, ImageShape, Study, Summary, Trial
from lrnas.study.verdicts import TEST, judge

MAX_DIFFERENCES = 4
"""Number of differences between studies or retrainings that a remark lists."""
MIN_NETWORKS = 20
"""Number of trained networks that importances need: the best tenth of 20 is two networks."""
PALETTE = (
    *("#2a7fd0", "#d1495b", "#2f9e62", "#c8a415", "#ff78b4", "#6900ff", "#006900", "#ff00ff", "#96a5ff", "#4bc300"),
    *("#9600c3", "#f00fa5", "#b40078", "#0f4bd2", "#e07b2c", "#b35cc4", "#3aa6b0", "#8a6d5a", "#694b96", "#006978"),
)
"""Colours of studies, by their place in a report. Each differs clearly from those before it, also on dark pages; the
first 14 differ clearly from the colours of filters."""
STATUSES = {
    "completed": "trained",
    "stopped": "stopped early",
    "diverged": "diverged",
    "faulty": "failed",
    "limit": "not trained: beyond a limit",
    "duplicate": "not trained: known already",
    "lost": "lost",
    "running": "in training",
    "waiting": "waits",
}
"""Words for the status of a trial."""
LIMITS = {
    "max_macs": "more MACs than the limit",
    "min_macs": "fewer MACs than the limit",
    "max_params": "more parameters than the limit",
    "max_latency": "slower than the limit",
}
"""Words for the limits that a network is beyond."""


@dataclass(frozen=True)
class Network:
    """A trial of a study with everything that can be shown about it."""

    trial: Trial
    is_reference: bool
    """Whether it is a reference network."""
    shape: ImageShape
    """Shape of the study's images."""
    lines: tuple[ShellLine, ...]
    """Suggested commands."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The network's layers."""
        return lay_out(self.trial.architecture, self.shape)

    @property
    def name(self) -> str:
        """Its own name, or `trial 74`."""
        return self.trial.title

    @property
    def status(self) -> str:
        """Status in words; of a network beyond limits, with these limits."""
        beyond = [words for name, words in LIMITS.items() if name in self.trial.reason]
        if self.trial.status == "limit" and beyond:
            return f"not trained: {', '.join(beyond)}"
        return STATUSES[self.trial.status]

    @property
    def is_full(self) -> bool:
        """Whether its short training was not stopped early."""
        return self.trial.status == "completed"

    @property
    def is_partial(self) -> bool:
        """Whether it was stopped early, with an accuracy."""
        return self.trial.status == "stopped" and self.trial.accuracy is not None

    def cost(self, name: str) -> float | None:
        """A cost by the name of its objective; None if unknown."""
        value = getattr(self.trial, name)
        return None if value is None else float(value)

    @property
    def macs_as_built(self) -> int:
        """MACs of the network as it was trained. They differ from those as deployed in named networks only."""
        if self.trial.point is None:
            return self.trial.macs
        shape = (self.shape.size, self.shape.num_classes, self.shape.channels)
        return make_plan(self.trial.architecture, *shape).cost.macs

    def to_dict(self) -> dict[str, Any]:
        """Everything but its layers."""
        trial = self.trial
        return {
            **{name: getattr(trial, name) for name in (*COLUMNS, "reason")},
            **{name: getattr(self, name) for name in ("name", "is_reference", "is_full", "is_partial")},
            "macs_as_built": self.macs_as_built,
            "share": trial.share,
            "status_words": self.status,
            "curve": [round(value, 5) for value in trial.curve],
            "metrics": dict(trial.metrics),
            "architecture": trial.description,
            "lines": [[line.title, line.line] for line in self.lines],
        }


@dataclass(frozen=True, slots=True)
class Moment:
    """The front after a trial has ended."""

    trials: int
    """Number of trained trials that have ended."""
    seconds: float
    """Sum of their training times."""
    volume: float
    """Hypervolume of the front."""


@dataclass(frozen=True)
class StudyReport:
    """One study in a report."""

    name: str
    rungs: tuple[int, ...]
    summary: Summary
    networks: tuple[Network, ...]
    history: tuple[Moment, ...]
    retrain: ShellLine | None
    """Command that trains the front again and tests it."""
    finals: tuple[Final, ...]
    """Networks trained in full over several seeds by the search itself, as far as a run is done, cheapest first."""
    study: Study = field(repr=False)

    @cached_property
    def importances(self) -> dict[str, dict[str, float]]:
        """Importances of parameters by objective, which sum to 1; empty if too few networks are trained.

        Parameters are ordered by their highest importance in any objective.
        """
        return _find_importances(self.study) if len(self.full) >= MIN_NETWORKS else {}

    @property
    def training(self) -> str:
        """The training that all networks of the search get, in words; it is short if there are later levels."""
        number = self.study.manifest["recipe"]["epochs"]
        epochs = f"{number} epoch{'s' * (number != 1)}"
        return f"short training, {epochs}" if self._later else f"{epochs} of training"

    @cached_property
    def _later(self) -> dict[str, optuna.Study]:
        """The later levels of the search, by name."""
        levels = {level: level_study(self.study, level) for level in SUFFIXES}
        return {level: found for level, found in levels.items() if found is not None}

    @cached_property
    def seconds(self) -> dict[str, float]:
        """Training time of all networks together, by level; without levels at which nothing was trained."""
        later = {
            level: sum(run.user_attrs.get("seconds", 0.0) for run in found.get_trials(deepcopy=False))
            for level, found in self._later.items()
        }
        short = self.history[-1].seconds if self.history else 0.0
        return {level: seconds for level, seconds in {SHORT: short, **later}.items() if seconds}

    @property
    def full(self) -> list[Network]:
        """Networks whose short training was not stopped early."""
        return [network for network in self.networks if network.is_full]

    @property
    def stopped(self) -> list[Network]:
        """Networks stopped early, with an accuracy."""
        return [network for network in self.networks if network.is_partial]

    @property
    def level(self) -> str:
        """The level whose front is shown: that of the finals if there are any."""
        return FULL if self.finals else SHORT

    @cached_property
    def hypervolume(self) -> float:
        """Hypervolume of the front, see `Summary`."""
        return self.study.hypervolume() if self.finals else self.summary.hypervolume

    @property
    def best(self) -> float | None:
        """The highest accuracy, of the finals if there are any; None if no network is trained."""
        accuracies = [final.mean for final in self.finals] or [one.trial.accuracy or 0.0 for one in self.full]
        return max(accuracies, default=None)

    @property
    def front(self) -> list[Network]:
        """The front, that of the finals if there are any, cheapest first."""
        finals = {final.trial for final in final_front(self.finals)}
        found = [
            network
            for network in self.networks
            if (network.trial.number in finals if self.finals else network.trial.on_front)
        ]
        return sorted(found, key=lambda network: self.study.cheapest_first(network.trial))

    @cached_property
    def dense_widths(self) -> dict[str, tuple[int, str]]:
        """Width of every layer, and the network with this width; empty if the space has no dense network.

        This is the dense network, or, for layers that it does not have, another backbone of the space, unchanged.
        """
        if (network := self.study.dense_network) is None:
            return {}
        named = {self.study.baseline or "": network}
        for backbone in self.study.manifest["space"]["choices"]["backbone"]:
            named.setdefault(backbone, replace(network, backbone=backbone, layers={}))
        widths: dict[str, tuple[int, str]] = {}
        for name, each in named.items():
            with suppress(LrnasError):  # for example, a model that this version of timm does not have
                for layer in lay_out(each, self.study.image_shape):
                    if layer.groups:
                        widths.setdefault(layer.name, (layer.num_filters, name))
        return widths

    def to_dict(self) -> dict[str, Any]:
        manifest, dense = self.study.manifest, self.study.dense_cost
        attributes = [trial.user_attrs for trial in self.study.optuna_trials()]
        final = {final.trial for final in final_front(self.finals)}
        return {
            "name": self.name,
            "space": manifest["source"],
            "data": data_name(manifest),
            "epochs": manifest["recipe"]["epochs"],
            "training": self.training,
            "seconds": {level: round(seconds, 3) for level, seconds in self.seconds.items()},
            "rungs": list(self.rungs),
            "objectives": [objective.name for objective in self.study.objectives],
            "hardware": sorted({known["hardware"] for known in attributes if "hardware" in known}),
            "counts": self.summary.counts,
            "level": self.level,
            "hypervolume": self.hypervolume,
            # `on_front` is the front by accuracies in the search, with which it must be shown
            "networks": [each.to_dict() | {"on_final_front": each.trial.number in final} for each in self.networks],
            "dense": dense and {"name": self.study.baseline, "macs": dense.macs, "params": dense.params},
            "dense_widths": self.dense_widths,
            "history": [[moment.trials, round(moment.seconds, 3), round(moment.volume, 6)] for moment in self.history],
            "importances": self.importances,
            "finals": finals_to_dicts(self.finals, self.study.dense_macs),
            "retrain": None if self.retrain is None else [self.retrain.title, self.retrain.line],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that one page shows."""

    studies: tuple[StudyReport, ...]
    axis: Objective
    """Cost that accuracies are shown against at first."""
    tested: tuple[Tested, ...]
    made: str
    """Date and time."""

    @property
    def title(self) -> str:
        return ", ".join(study.name for study in self.studies)

    @property
    def axes(self) -> list[Objective]:
        """Costs that can be shown: MACs, parameters and, if it is known for any network, latency."""
        timed = any(network.trial.latency is not None for study in self.studies for network in study.networks)
        return [OBJECTIVES[name] for name in ("macs", "params", *(("latency",) if timed else ()))]

    def remarks(self) -> list[str]:
        """Sentences that warn about missing results and about comparisons that are not fair."""
        found = []
        for study in self.studies:
            if not study.full:
                found.append(f"{study.name} has no trained network yet: there is no front to show.")
            if number := study.study.unreadable_images:
                left_out = f"{number:,} (`lrnas data` lists them)"
                found.append(f"{study.name}: images that could not be read and were left out: {left_out}.")
            if start := name_start(study.study.manifest):
                found.append(f"{study.name}: networks start from the trained weights in {start}.")
            if is_open(study.study):
                found.append(f"{study.name}: {NOT_DONE[0].lower()}{NOT_DONE[1:]}")
            if below := tell_below(study.study):
                found.append(f"{study.name}: {below}.")
        names = [study.name for study in self.studies]
        manifests = [study.study.manifest for study in self.studies]
        conditions = [
            {
                "image_size": manifest["image_size"],
                "trained by": manifest.get("trainable") or "lrnas",
                "starts from": name_start(manifest) or "random weights",
            }
            | Recipe.complete(manifest["recipe"])
            for manifest in manifests
        ]
        data = [(manifest["data"], data_name(manifest)) for manifest in manifests]
        if listed := _list_differences(names, conditions, data):
            found.append(f"The studies were trained under different conditions; compare with care ({listed}).")
        bounds = [
            {"level": each.level} | {name: each.study.manifest["reference"][name] for name in each.study.costs}
            for each in self.studies
        ]
        if listed := _list_differences(names, bounds):
            why = "their levels of training, or the largest costs of their named networks, differ"
            found.append(f"The hypervolumes of the studies cannot be compared: {why} ({listed}).")
        again = [tested.retrained for tested in self.tested]
        data = [(each.data, each.data_name or each.data) for each in again]
        recipes = [Recipe.complete(each.fields) for each in again]
        if listed := _list_differences([each.name for each in again], recipes, data):
            found.append(f"Networks were trained again with different recipes or data; compare with care ({listed}).")
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "made": self.made,
            "axis": self.axis.name,
            "axes": [{"name": axis.name, "label": axis.label, "unit": axis.unit} for axis in self.axes],
            "remarks": self.remarks(),
            "studies": [study.to_dict() for study in self.studies],
            "statuses": STATUSES,
            "tested": [tested.to_dict() for tested in self.tested],
            "test": TEST,
        }


def make_report(
    studies: Sequence[Study],
    *,
    axis: str | None = None,
    retrained: Sequence[Retrained] = (),
) -> Report:
    """Read studies once and collect everything that a report shows.

    Args:
        studies: The studies, in the order of the report.
        axis: Cost to show accuracies against: macs, params or latency; None: the first one that is an objective of all
            studies.
        retrained: Networks of these studies that were trained again and tested.

    Returns:
        The report. Layers and importances are computed when they are first used.
    """
    reports = tuple(map(_report_study, studies))
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    named = {study.name: study for study in studies}
    tested = tuple(
        Tested(each, tuple(judge(each.finals)), _dense_cost(named[each.study], each.fields)) for each in retrained
    )
    return Report(reports, OBJECTIVES[_pick_axis(studies, axis)], tested, made)


def _dense_cost(study: Study, recipe: Mapping[str, Any]) -> Cost | None:
    """Costs of a study's dense network for the images of another recipe, which may be crops."""
    return replace(study, manifest=study.manifest | {"recipe": recipe}).dense_cost


def _pick_axis(studies: Sequence[Study], wanted: str | None) -> str:
    """Name of the cost to show accuracies against."""
    timed = all("latency" in study.costs for study in studies)
    known = ["macs", "params", *(["latency"] if timed else [])]
    if wanted is None:
        return next((name for name in known if all(name in study.costs for study in studies)), "macs")
    if wanted not in known:
        raise StudyError(f"--axis must be one of {', '.join(known)} for these studies; got {wanted!r}; choose another")
    return wanted


def _list_differences(
    owners: Sequence[str], settings: Sequence[Mapping[str, Any]], data: Sequence[tuple[str, str]] = ()
) -> str:
    """The first differences between the settings of several studies or retrainings, as text; empty if there are none.

    Args:
        owners: Names of the studies or retrainings.
        settings: Settings of each of them.
        data: Identity and name of the data set of each of them; data sets are compared by identity.
    """
    if data:
        names = dict(reversed(data))
        shown = [identity if names[identity] == identity else f"{names[identity]} ({identity})" for identity, _ in data]
        settings = [{"data": words, **each} for words, each in zip(shown, settings, strict=True)]
    keys = [key for key in dict.fromkeys(chain(*settings)) if any(s.get(key) != settings[0].get(key) for s in settings)]
    more = f", {len(keys) - MAX_DIFFERENCES} more" if len(keys) > MAX_DIFFERENCES else ""
    listed = (
        f"{owner}: {', '.join(f'{key} {_format_value(each.get(key))}' for key in keys[:MAX_DIFFERENCES])}{more}"
        for owner, each in zip(owners, settings, strict=True)
    )
    return "; ".join(listed) if keys else ""


def _format_value(value: Any) -> str:
    if value is None:
        return "–"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,.0f}" if is_number and value == int(value) else f"{value:.5g}" if is_number else str(value)


def _report_study(study: Study) -> StudyReport:
    summary, where = study.summary(), study.where
    manifest = study.manifest
    points = manifest["space"]["points"]
    shape, lines = study.image_shape, shell_lines(study, summary.trials, where)
    networks = [
        Network(trial, trial.point in points, shape, own) for trial, own in zip(summary.trials, lines, strict=True)
    ]
    return StudyReport(
        study.name,
        tuple(manifest["rungs"]),
        summary,
        tuple(networks),
        tuple(_find_history(study, summary)),
        retrain_line(study, where),
        tuple(final for final in read_level(study) if math.isfinite(final.mean)),
        study,
    )


def _find_history(study: Study, summary: Summary) -> list[Moment]:
    """Hypervolume of the front after every trained trial, in the order in which they ended."""
    ended = {row.number: row.datetime_complete for row in study.optuna_trials() if row.datetime_complete is not None}
    trained = [trial for trial in summary.trials if trial.number in ended and trial.epochs]
    front = np.empty((0, len(study.objectives)))
    volume, seconds = 0.0, 0.0
    moments = []
    for number, trial in enumerate(sorted(trained, key=lambda trial: (ended[trial.number], trial.number)), 1):
        seconds += trial.seconds
        if trial.status == "completed" and trial.values is not None:
            grown = add_to_front(front, study.as_costs(trial.values))
            if grown is not None:
                front, volume = grown, hypervolume(grown, [1.0] * len(study.objectives))
        moments.append(Moment(number, seconds, volume))
    return moments


def _find_importances(study: Study) -> dict[str, dict[str, float]]:
    """Optuna's importances (PED-ANOVA): how much each parameter decides whether a network is good in an objective."""
    found: dict[str, dict[str, float]] = {}
    for place, objective in enumerate(study.objectives):

        def target(row: FrozenTrial, place: int = place, sign: int = -1 if objective.maximise else 1) -> float:
            """The value to be minimised. It is NaN, so that Optuna ignores the trial, if it was stopped early."""
            return sign * float(row.values[place]) if row.user_attrs.get("status") == "completed" else math.nan

        with warnings.catch_warnings():
            # Optuna warns that low targets count as good, which is right here, and that `normalize` is experimental
            warnings.simplefilter("ignore")
            values = optuna.importance.get_param_importances(study.optuna_study, target=target, normalize=False)
        if total := sum(values.values()):  # if all are 0, Optuna would give every parameter the same importance
            found[objective.name] = {name: value / total for name, value in values.items()}
    highest = {name: max(values[name] for values in found.values()) for values in found.values() for name in values}
    order = sorted(highest, key=lambda name: (-highest[name], name))
    return {objective: {name: round(values[name], 5) for name in order} for objective, values in found.items()}
