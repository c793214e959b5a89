"""Networks of studies by name: STUDY:TRIAL or STUDY:best, STUDY@RECIPE:RUN for a run of a retraining, STUDY@finals:RUN.

TRIAL and RUN are a number, or a network's name as tables show it. A TRIAL whose network was also trained in full is the
first run of that training. STUDY:best is the most accurate network on validation images, after full training if the
search has finals. If several are, it is one that the search found; if it is a reference network, a message says so.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lrnas._messages import logger
from lrnas.errors import LrnasError, MissingExtra, UnknownName
from lrnas.models.plan import TIMM
from lrnas.study.location import DATABASE, Whereabouts

if TYPE_CHECKING:
    from lrnas.study.retrained import Final
    from lrnas.study.study import Study, Trial

FORM = re.compile(r"([^/:]+):([^:]+)")


@dataclass(frozen=True, slots=True)
class StudyNetwork:
    """A trial of a search, or a run of a later level or of a retraining."""

    study: Study
    trial: Trial

    @property
    def name(self) -> str:
        """How to refer to it; of a run, which tables do not list by its number, with the name of its network."""
        name = f" ({self.trial.title})" if "@" in self.study.name else ""
        return f"{self.study.name}:{self.trial.number}{name}"

    @property
    def label(self) -> str:
        """The same for files: `nin-digits-74`, and of a run `nin-digits-trial-74-finals-3`."""
        search, at, part = self.study.name.partition("@")
        own = re.sub(r"[^\w.+-]", "-", f"{self.trial.title}-") + f"{part}-" if at else ""
        return f"{search}-{own}{self.trial.number}"


def find_network(source: str, studies: str | Path = "studies", storage: str | None = None) -> StudyNetwork | None:
    """The network of a study that a name refers to.

    Args:
        source: The name, such as `nin-digits:best`.
        studies: The folder where studies are kept.
        storage: A database URL or `journal:FILE`; by default the file in the study's folder.

    Returns:
        The network; None if the name does not have the form STUDY:NETWORK.
    """
    found = None if source.startswith(TIMM) else FORM.fullmatch(source)
    if found is None:
        return None
    try:
        from lrnas.study.levels import FULL, SUFFIXES, read_level  # with Optuna
        from lrnas.study.open import open_study
    except ImportError as error:
        raise MissingExtra("a study", error.name, "search") from None
    name, which = found[1], found[2]
    study = open_study(name, storage=storage, studies=studies)
    finals = [] if "@" in name else [final for final in read_level(study) if final.accuracies]
    if finals and which == "best":
        name = f"{name}@{SUFFIXES[FULL]}"
        study = open_study(name, storage=storage, studies=studies)
    is_retraining = _is_retraining(study)
    where = Whereabouts(str(studies), storage)
    look = f"{where.front(name.partition('@')[0])} shows the best ones"
    if is_retraining:
        look = f"`{where.command('retrain', name)}` shows them, in Python lrnas.read_retraining"
    trial = (_find_run if "@" in name else _find_trial)(study, which, look)
    if full := next((final for final in finals if final.identity == trial.identity and which != "best"), None):
        study = open_study(f"{name}@{SUFFIXES[FULL]}", storage=storage, studies=studies)
        trial = _find_number(study, full.runs[0], look)
    if which == "best" and trial.is_reference:
        logger.info(f"{source} is {trial.point}, a reference network: {_best_found(study)}")
    return StudyNetwork(study, trial)


def check_no_study(source: str, studies: str | Path = "studies", storage: str | None = None) -> None:
    """Refuse the name of a study where the name of one of its networks is needed."""
    if source.partition("@")[0] in {file.parent.name for file in Path(studies).glob(f"*/{DATABASE}")}:
        means = f"{source}:best"
        if "@" in source:
            command = Whereabouts(str(studies), storage).command("retrain", source)
            means = f"{source}:NETWORK, as in `{command}`"
        raise LrnasError(f"a network is needed; got {source}, a study; did you mean {means}?")


def _best_found(study: Study) -> str:
    """The best network of a search or its finals that is not a reference network, in words."""
    if "@" in study.name:
        finals = [final for final in _finals_of(study) if final.point is None]
        known = [(final.mean, -final.macs, f"{study.name}:{final.name}") for final in finals]
    else:
        done = [trial for trial in study.trials if trial.status == "completed" and not trial.is_reference]
        known = [(trial.accuracy or 0.0, -trial.macs, f"{study.name}:{trial.number}") for trial in done]
    accuracy, _, name = max((one for one in known if math.isfinite(one[0])), default=(0.0, 0, ""))
    return (
        f"the best that the search found, {name}, has {100 * accuracy:.2f} %" if name else "the search found no other"
    )


def _finals_of(study: Study) -> list[Final]:
    """The networks of a retraining or of a later level of a search."""
    from lrnas.study.retrained import gather_runs, open_searched

    search, _, part = study.name.partition("@")
    return gather_runs(study.optuna_study, part, open_searched(study, search))


def _find_trial(study: Study, which: str, look: str) -> Trial:
    if which == "best":
        return study.best()
    if which.isdecimal():
        return _find_number(study, int(which), look)
    trials = study.trials
    named = [trial for trial in trials if which in (trial.point, trial.identity)]
    if not named:
        known = ["best", *(trial.point or trial.identity for trial in trials)]
        raise UnknownName(f"network of {study.name}", which, known, f" ({look})")
    return min(named, key=lambda trial: (trial.status != "completed", trial.number))


def _is_retraining(study: Study) -> bool:
    from lrnas.study.manifest import RETRAINS  # with Optuna

    return RETRAINS in study.manifest


def _find_run(study: Study, which: str, look: str) -> Trial:
    name = study.name
    is_retraining = _is_retraining(study)
    if which == "best" and is_retraining:
        raise LrnasError(
            f"nothing is chosen by test accuracy; got {name}:best; name a network or the number of a run, {look}"
        )
    if which.isdecimal():
        return _find_number(study, int(which), look)
    finals = _finals_of(study)
    if which == "best":
        done = [final for final in finals if math.isfinite(final.mean)]
        which = max(done, key=lambda final: (final.mean, final.point is None)).identity if done else which
    final = next((final for final in finals if which in (final.name, final.identity)), None)
    if final is None:
        raise UnknownName(f"network of {name}", which, [final.name for final in finals], f" ({look})")
    if not final.runs:
        raise LrnasError(
            f"only finished runs have weights; {name} has no finished run of {which}; name another network"
        )
    return _find_number(study, final.runs[0], look)


def _find_number(study: Study, number: int, look: str) -> Trial:
    trials = {trial.number: trial for trial in study.trials}
    if number not in trials:
        what = "run" if "@" in study.name else "trial"
        found = f"its last {what} is {max(trials)}" if trials else "it has none"
        if what == "run":
            named = (final for final in _finals_of(study) if final.trial == number)
            found += "".join(f"; trial {number} is {study.name}:{final.name}" for final in named)
        raise LrnasError(f"{study.name} has no {what} {number}; {found}; {look}")
    return trials[number]
