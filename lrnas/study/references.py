"""Networks of studies by name: STUDY:TRIAL, STUDY:best, and STUDY@RECIPE:RUN of those that were trained again.

In place of a number, a network's name as tables show it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lrnas.errors import LrnasError, MissingExtra, UnknownName
from lrnas.models.plan import TIMM

if TYPE_CHECKING:
    from lrnas.study.study import Study, Trial

FORM = re.compile(r"([^/:]+):([^:]+)")


@dataclass(frozen=True, slots=True)
class StudyNetwork:
    """A trial of a search, or a run of a retraining."""

    study: Study
    trial: Trial

    @property
    def name(self) -> str:
        return f"{self.study.name}:{self.trial.number}"


def find_network(source: str, studies: str | Path = "studies", storage: str | None = None) -> StudyNetwork | None:
    """What such a name means; None where it has another form."""
    found = None if source.startswith(TIMM) else FORM.fullmatch(source)
    if found is None:
        return None
    try:
        from lrnas.study.manifest import RETRAINS
        from lrnas.study.open import open_study  # with ray and optuna: seconds others need not wait
    except ImportError as error:
        raise MissingExtra("a study", error.name, "search") from None
    name, which = found[1], found[2]
    study = open_study(name, storage=storage, studies=studies, allow_retraining=True)
    is_retraining = RETRAINS in study.manifest
    look = f"`{_command('retrain' if is_retraining else 'front', name, studies, storage)}` shows "
    if is_retraining:
        return StudyNetwork(study, _pick_run(study, which, f"{look}them"))
    return StudyNetwork(study, _pick_trial(study, which, f"{look}the best ones"))


def check_no_study(source: str, studies: str | Path = "studies", storage: str | None = None) -> None:
    """Refuse the name of a study where that of one of its networks is meant."""
    from lrnas.study.storage import DATABASE  # with optuna

    if source == Path(source).name and (Path(studies) / source.partition("@")[0] / DATABASE).exists():
        means = f"{source}:best"
        if "@" in source:
            means = f"{source}:NETWORK, as in `{_command('retrain', source, studies, storage)}`"
        raise LrnasError(f"a network is wanted; got {source}, a study; did you mean {means}?")


def _command(verb: str, name: str, studies: str | Path, storage: str | None) -> str:
    from lrnas.study.location import Whereabouts  # with torch

    return Whereabouts(str(studies), storage).command(verb, name)


def _pick_trial(study: Study, which: str, look: str) -> Trial:
    if which == "best":
        return study.best()
    trials = study.trials()
    if which.isdecimal():
        return _numbered(study, trials, int(which), look)
    named = [trial for trial in trials if which in (trial.point, trial.identity)]
    if not named:
        known = ["best", *(trial.point or trial.identity for trial in trials)]
        raise UnknownName(f"network of {study.name}", which, known, f"; {look}")
    return min(named, key=lambda trial: (trial.status != "completed", trial.number))


def _pick_run(study: Study, which: str, look: str) -> Trial:
    from lrnas.study.retrained import read_finals

    name = study.name
    if which == "best":
        raise LrnasError(
            f"nothing is chosen by test accuracy; got {name}:best; name a network or the number of a run, {look}"
        )
    trials = study.trials()
    if which.isdecimal():
        return _numbered(study, trials, int(which), look)
    finals = read_finals(study)
    final = next((final for final in finals if which in (final.name, final.identity)), None)
    if final is None:
        raise UnknownName(f"network of {name}", which, [final.name for final in finals], f"; {look}")
    if not final.runs:
        raise LrnasError(f"weights are those of a run that is done; {name} has none of {which}; name another network")
    return _numbered(study, trials, final.runs[0], look)


def _numbered(study: Study, trials: list[Trial], number: int, look: str) -> Trial:
    for trial in trials:
        if trial.number == number:
            return trial
    there = f"it has {len(trials)}, up to {max(trial.number for trial in trials)}" if trials else "it has none"
    raise LrnasError(f"{study.name} has no trial {number}; {there}; {look}")
