"""What a report on studies shows, as data: networks, the front, how it grew, which parameters matter.

The page (`html`) and the figures for print (`figures.report_plots`) draw this and compute nothing.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from lrnas.recipes import Recipe
from lrnas.reporting.layer_view import Layer, lay_out
from lrnas.reporting.retrained_report import Tested
from lrnas.reporting.suggested_commands import ShellLine, retrain_line, shell_lines
from lrnas.study.location import Whereabouts
from lrnas.study.manifest import StudyError, data_name
from lrnas.study.objectives import OBJECTIVES, Objective
from lrnas.study.pareto import add_to_front, hypervolume
from lrnas.study.references import ImageShape, find_image_shape
from lrnas.study.retrained import Retrained
from lrnas.study.study import Study, Summary, Trial
from lrnas.study.verdicts import TEST, judge

TRIED = 5
"""Networks whose counts are looked at to tell what images a study has."""
MOST_DIFFERENCES = 4
"""Between studies or retrainings, of which a remark tells."""
FEWEST = 20
"""Networks trained in full of which importances are told: the best tenth is then two of them."""
PALETTE = (
    *("#2a7fd0", "#e07b2c", "#2f9e62", "#b35cc4", "#c8a415", "#d1495b", "#3aa6b0", "#8a6d5a", "#6900ff", "#006900"),
    *("#ff00ff", "#ff78b4", "#96a5ff", "#694b96", "#006978", "#4bc300", "#9600c3", "#f00fa5", "#b40078", "#0f4bd2"),
)
"""Of studies by their place in a report, on the page and in print: each far from those before, on light and on dark."""


@dataclass(frozen=True)
class Network:
    """A trial of a study and all that can be shown of it."""

    trial: Trial
    is_paper: bool
    """Whether it is one of the paper's."""
    shape: ImageShape | None
    """Of the study's images."""
    lines: tuple[ShellLine, ...]

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """None where the study's counts are not those of this lrnas."""
        return () if self.shape is None else lay_out(self.trial.architecture, self.shape)

    @property
    def name(self) -> str:
        return self.trial.point or self.trial.identity

    @property
    def is_full(self) -> bool:
        return self.trial.status == "completed"

    @property
    def is_partial(self) -> bool:
        """Trained in part, and not on its way to more."""
        return self.trial.status == "stopped" and self.trial.accuracy is not None

    def cost(self, name: str) -> float | None:
        value = getattr(self.trial, name)
        return None if value is None else float(value)

    def to_dict(self) -> dict[str, Any]:
        trial = self.trial
        names = ("number", "status", "point", "identity", "macs", "params", "latency", "accuracy", "epochs", "seconds")
        return {
            **{name: getattr(trial, name) for name in names},
            "name": self.name,
            "is_paper": self.is_paper,
            "is_full": self.is_full,
            "is_partial": self.is_partial,
            "on_front": trial.on_front,
            "reason": trial.reason,
            "curve": [round(value, 5) for value in trial.curve],
            "metrics": dict(trial.metrics),
            "layers": [layer.to_dict() for layer in self.layers],
            "architecture": trial.description,
            "lines": [[line.title, line.line] for line in self.lines],
        }


@dataclass(frozen=True, slots=True)
class Moment:
    """The front after one more trial has ended."""

    trials: int
    """Whose training has ended by then."""
    seconds: float
    """Of their training, added up."""
    volume: float

    def to_list(self) -> list[float]:
        return [self.trials, round(self.seconds, 3), round(self.volume, 6)]


@dataclass(frozen=True)
class StudyReport:
    """What is shown of one study."""

    name: str
    space: str
    data: str
    epochs: int
    rungs: tuple[int, ...]
    objectives: tuple[str, ...]
    hardware: tuple[str, ...]
    """That trained its networks."""
    counts: dict[str, int]
    """Trials by status."""
    volume: float
    networks: tuple[Network, ...]
    history: tuple[Moment, ...]
    shape: ImageShape | None
    retrain: ShellLine | None
    """What trains its front again and tests it."""
    record: Study = field(repr=False)

    @cached_property
    def importances(self) -> dict[str, dict[str, float]]:
        """By objective, by parameter, they sum to 1; what matters most to some objective comes first.

        None where too few networks are trained in full to have a best tenth.
        """
        return _importances(self.record) if len(self.full) >= FEWEST else {}

    @property
    def conditions(self) -> dict[str, Any]:
        """What its accuracies hang on beside the data, by name."""
        manifest = self.record.manifest
        own = {"image_size": manifest["image_size"], "trained by": manifest.get("trainable") or "lrnas"}
        return own | Recipe.complete(manifest["recipe"])

    @property
    def bounds(self) -> dict[str, float]:
        """The costs up to which its hypervolume is taken, by objective."""
        return {name: self.record.manifest["reference"][name] for name in self.record.costs}

    @property
    def full(self) -> list[Network]:
        return [network for network in self.networks if network.is_full]

    @property
    def stopped(self) -> list[Network]:
        """Networks that early stopping ended, with an accuracy."""
        return [network for network in self.networks if network.is_partial]

    @property
    def front(self) -> list[Network]:
        """Cheapest first."""
        first = next(name for name in self.objectives if name != "accuracy")
        found = [network for network in self.networks if network.trial.on_front]
        return sorted(found, key=lambda network: (network.cost(first) or 0.0, network.trial.number))

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "space": self.space,
            "data": self.data,
            "epochs": self.epochs,
            "rungs": list(self.rungs),
            "objectives": list(self.objectives),
            "hardware": list(self.hardware),
            "counts": self.counts,
            "hypervolume": self.volume,
            "networks": [network.to_dict() for network in self.networks],
            "history": [moment.to_list() for moment in self.history],
            "importances": self.importances,
            "retrain": None if self.retrain is None else [self.retrain.title, self.retrain.line],
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on one page."""

    studies: tuple[StudyReport, ...]
    axis: Objective
    """The cost that accuracies are shown against, to begin with."""
    tested: tuple[Tested, ...]
    made: str

    @property
    def title(self) -> str:
        return ", ".join(study.name for study in self.studies)

    @property
    def axes(self) -> list[Objective]:
        """The costs that are known of networks."""
        timed = any(network.trial.latency is not None for study in self.studies for network in study.networks)
        return [OBJECTIVES[name] for name in ("macs", "params", *(("latency",) if timed else ()))]

    def remarks(self) -> list[str]:
        """What must be known to read the page rightly."""
        found = []
        for study in self.studies:
            if not study.full:
                found.append(f"{study.name} has no network trained in full yet: there is no front to show.")
            if study.networks and study.shape is None:
                found.append(f"{study.name} was counted by another version: its networks are shown without layers.")
        names = [study.name for study in self.studies]
        data = _spell_data([(study.record.manifest["data"], study.data) for study in self.studies])
        known = [{"data": words} | study.conditions for words, study in zip(data, self.studies, strict=True)]
        if listed := _list_differences(known, names):
            found.append(f"The studies were trained under different conditions; compare with care ({listed}).")
        if listed := _list_differences([study.bounds for study in self.studies], names):
            found.append(f"Hypervolumes of the studies do not compare: they are taken up to other costs ({listed}).")
        again = [one.retrained for one in self.tested]
        data = _spell_data([(one.data, one.data_name or one.data) for one in again])
        known = [{"data": words} | Recipe.complete(one.fields) for words, one in zip(data, again, strict=True)]
        if listed := _list_differences(known, [one.name for one in again]):
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
            "tested": [one.to_dict() for one in self.tested],
            "test": TEST,
            "fewest": FEWEST,
        }


def make_report(
    records: Sequence[Study],
    *,
    where: Whereabouts | None = None,
    axis: str | None = None,
    retrained: Sequence[Retrained] = (),
) -> Report:
    """Look at studies once and gather what there is to show; `retrained` are networks of theirs, trained again."""
    where = where or Whereabouts()
    studies = tuple(_report_study(record, where) for record in records)
    chosen = OBJECTIVES[pick_axis(records, axis)]
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")
    baselines = {record.name: record.baseline for record in records}
    tested = tuple(Tested(one, tuple(judge(one.finals)), baselines.get(one.study)) for one in retrained)
    return Report(studies, chosen, tested, made)


def pick_axis(records: Sequence[Study], wanted: str | None) -> str:
    """The cost to draw accuracies against: the one asked for, else one that all the studies make small."""
    timed = all("latency" in record.costs for record in records)
    known = ["macs", "params", *(["latency"] if timed else [])]
    if wanted is None:
        shared = [name for name in known if all(name in record.costs for record in records)]
        return shared[0] if shared else "macs"
    if wanted not in known:
        raise StudyError(f"the cost axis of these studies is one of {', '.join(known)}; got {wanted!r}; choose one")
    return wanted


def _list_differences(known: Sequence[Mapping[str, Any]], whose: Sequence[str]) -> str:
    """What studies do not have in common, in words, the first few of each; empty where they have all."""
    names = [name for name in dict.fromkeys(chain(*known)) if any(one.get(name) != known[0].get(name) for one in known)]
    if not names:
        return ""
    more = f", {len(names) - MOST_DIFFERENCES} more" if len(names) > MOST_DIFFERENCES else ""
    return "; ".join(
        f"{owner}: {', '.join(f'{name} {_spell(one.get(name))}' for name in names[:MOST_DIFFERENCES])}{more}"
        for owner, one in zip(whose, known, strict=True)
    )


def _spell_data(known: Sequence[tuple[str, str]]) -> list[str]:
    """Data sets in words, from pairs of identity and name: equal images have equal words, whatever their names."""
    names = dict(reversed(known))
    return [identity if names[identity] == identity else f"{names[identity]} ({identity})" for identity, _ in known]


def _spell(value: Any) -> str:
    if value is None:
        return "–"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,.0f}" if is_number and value == int(value) else f"{value:.5g}" if is_number else str(value)


def _report_study(record: Study, where: Whereabouts) -> StudyReport:
    summary = record.summary()
    manifest = record.manifest
    size = manifest["recipe"].get("crop") or manifest["image_size"]
    tried = [(trial.architecture, trial.macs, trial.params) for trial in summary.trials[:TRIED]]
    shape = find_image_shape(size, tried)
    points = manifest["space"]["points"]
    networks = [
        Network(
            trial,
            trial.point in points,
            shape,
            tuple(shell_lines(record, trial, where)),
        )
        for trial in summary.trials
    ]
    rows = record.optuna_study.get_trials(deepcopy=False)
    return StudyReport(
        record.name,
        manifest["source"],
        data_name(manifest),
        manifest["recipe"]["epochs"],
        tuple(manifest["rungs"]),
        tuple(goal.name for goal in record.objectives),
        tuple(sorted({row.user_attrs["hardware"] for row in rows if "hardware" in row.user_attrs})),
        summary.counts,
        summary.hypervolume,
        tuple(networks),
        tuple(_history(record, summary, rows)),
        shape,
        retrain_line(record, where),
        record,
    )


def _history(record: Study, summary: Summary, rows: Sequence[FrozenTrial]) -> list[Moment]:
    """The front's hypervolume whenever a trial ended that was trained, in the order in which they ended."""
    ended = {row.number: row.datetime_complete for row in rows if row.datetime_complete is not None}
    trained = [trial for trial in summary.trials if trial.number in ended and trial.epochs]
    front = np.empty((0, len(record.objectives)))
    volume, seconds = 0.0, 0.0
    moments = []
    for number, trial in enumerate(sorted(trained, key=lambda trial: (ended[trial.number], trial.number)), 1):
        seconds += trial.seconds
        if trial.status == "completed" and trial.values is not None:
            grown = add_to_front(front, record.as_costs(trial.values))
            if grown is not None:
                front, volume = grown, hypervolume(grown, [1.0] * len(record.objectives))
        moments.append(Moment(number, seconds, volume))
    return moments


def _importances(record: Study) -> dict[str, dict[str, float]]:
    """Optuna's (PED-ANOVA): how much each parameter decides whether a network is among the best in an objective."""
    found = {}
    study = _trained_in_full(record)
    rows = study.get_trials(deepcopy=False)
    for place, goal in enumerate(record.objectives):
        sign = -1.0 if goal.maximise else 1.0
        if len({row.values[place] for row in rows}) < 2:
            continue

        def target(row: FrozenTrial, place: int = place, sign: float = sign) -> float:
            return sign * float(row.values[place])

        with warnings.catch_warnings():
            # of small targets being the good ones, as they are here, and of an option that Optuna may change
            warnings.simplefilter("ignore")
            values = optuna.importance.get_param_importances(study, target=target, normalize=False)
        if total := sum(values.values()):  # Optuna would share it out evenly where nothing is known
            found[goal.name] = {name: value / total for name, value in values.items()}
    highest = {name: max(values[name] for values in found.values()) for values in found.values() for name in values}
    order = sorted(highest, key=lambda name: -highest[name])
    return {goal: {name: round(values[name], 5) for name in order} for goal, values in found.items()}


def _trained_in_full(record: Study) -> optuna.Study:
    """The networks trained in full alone: for Optuna a duplicate is complete too, by what another one came to."""
    study = optuna.create_study(directions=record.optuna_study.directions)
    for row in record.optuna_study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        if row.user_attrs.get("status") == "completed":
            study.add_trial(_Row(row))
    return study


class _Row(FrozenTrial):
    """What importances need of a row. Studies take rows as copies, and to copy what they share would take a second."""

    def __init__(self, row: FrozenTrial) -> None:
        super().__init__(
            number=row.number,
            trial_id=-1,
            state=row.state,
            value=None,
            values=row.values,
            datetime_start=row.datetime_start,
            datetime_complete=row.datetime_complete,
            params=row.params,
            distributions=row.distributions,
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> _Row:
        return copy.copy(self)
