"""Networks of studies by name: STUDY:TRIAL, STUDY:best, and STUDY@RECIPE:RUN of those that were trained again.

In place of a number, a network's name as tables show it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lrnas.errors import LrnasError, MissingExtra, UnknownName
from lrnas.layouts import ImageShape, find_image_shape
from lrnas.plan import TIMM

if TYPE_CHECKING:
    from lrnas.record import Record
    from lrnas.trials import Trial

__all__ = ["StudyNetwork", "check_no_study", "find_network"]

FORM = re.compile(r"([^/:]+):([\w.+-]+)")


@dataclass(frozen=True, slots=True)
class StudyNetwork:
    """A trial of a search, or a run of a retraining."""

    record: Record
    trial: Trial

    @property
    def name(self) -> str:
        return f"{self.record.name}:{self.trial.number}"

    @property
    def image_shape(self) -> ImageShape:
        """What it was trained on."""
        manifest, trial = self.record.manifest, self.trial
        size = manifest["recipe"].get("crop") or manifest["image_size"]
        shape = find_image_shape(size, [(trial.architecture, trial.macs, trial.params)])
        if shape is None:
            raise LrnasError(
                f"the classes and channels of a study follow from its counts; those of {self.name} are not this "
                "lrnas's; give --size, --channels and --classes"
            )
        return shape


def find_network(source: str, studies: str | Path = "studies", storage: str | None = None) -> StudyNetwork | None:
    """What such a name means; None where it has another form."""
    found = None if source.startswith(TIMM) else FORM.fullmatch(source)
    if found is None:
        return None
    try:
        from lrnas.driver import open_record  # with ray and optuna: seconds others need not wait
        from lrnas.manifest import RETRAINS
    except ImportError as error:
        raise MissingExtra("a study", error.name, "search") from None
    name, which = found[1], found[2]
    record = open_record(name, storage=storage, studies=studies)
    pick = _pick_run if RETRAINS in record.manifest else _pick_trial
    return StudyNetwork(record, pick(record, which))


def check_no_study(source: str, studies: str | Path = "studies") -> None:
    """Refuse the name of a study where that of one of its networks is meant."""
    from lrnas.storage import DATABASE  # with optuna

    if source == Path(source).name and (Path(studies) / source.partition("@")[0] / DATABASE).exists():
        means = f"{source}:NETWORK, as in `lrnas retrain {source}`" if "@" in source else f"{source}:best"
        raise LrnasError(f"a network is wanted; got {source}, a study; did you mean {means}?")


def _pick_trial(record: Record, which: str) -> Trial:
    if which == "best":
        return record.best()
    trials = record.trials()
    if which.isdecimal():
        return _numbered(record, trials, int(which), f"front {record.name}` shows the best ones")
    named = [trial for trial in trials if which in (trial.point, trial.identity)]
    if not named:
        known = [trial.point or trial.identity for trial in trials]
        raise UnknownName(
            f"network of {record.name}", which, known, f"; `lrnas front {record.name}` shows the best ones"
        )
    return min(named, key=lambda trial: (trial.status != "completed", trial.number))


def _pick_run(record: Record, which: str) -> Trial:
    from lrnas.finals import read_finals

    name = record.name
    if which == "best":
        raise LrnasError(
            f"nothing is chosen by test accuracy; got {name}:best; name a network or the number of a run, `lrnas "
            f"retrain {name}` has them"
        )
    look = f"retrain {name}` has them"
    trials = record.trials()
    if which.isdecimal():
        return _numbered(record, trials, int(which), look)
    finals = read_finals(record)
    final = next((final for final in finals if which in (final.point, final.identity)), None)
    if final is None:
        raise UnknownName(f"network of {name}", which, [final.name for final in finals], f"; `lrnas {look}")
    if not final.runs:
        raise LrnasError(f"weights are those of a run that is done; {name} has none of {which}; name another network")
    return _numbered(record, trials, final.runs[0], look)


def _numbered(record: Record, trials: list[Trial], number: int, look: str) -> Trial:
    for trial in trials:
        if trial.number == number:
            return trial
    there = f"it has {len(trials)}, up to {max(trial.number for trial in trials)}" if trials else "it has none"
    raise LrnasError(f"{record.name} has no trial {number}; {there}; `lrnas {look}")
