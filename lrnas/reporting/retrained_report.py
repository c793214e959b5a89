"""What a report shows of networks that were trained again and tested: numbers over seeds, and the paper's judged."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, get_args

from lrnas.study.retrained import Final, Retrained, front_marks
from lrnas.study.verdicts import Kind, Verdict


@dataclass(frozen=True, slots=True)
class Tested:
    """Networks of a study that are trained again with one recipe and tested, and what that says of the paper's."""

    retrained: Retrained
    verdicts: tuple[Verdict, ...]
    baseline: str | None = None
    """The name of the network that shares of multiply-accumulates are of."""

    @property
    def finals(self) -> list[Final]:
        """Those that have a mean to show."""
        return [final for final in self.retrained.finals if math.isfinite(final.mean)]

    @property
    def marks(self) -> dict[str, str]:
        """What is said of those on the front by means, by identity."""
        return front_marks(self.retrained.finals)

    @property
    def headline(self) -> str:
        """How many of the paper's networks came to which verdict."""
        if not self.verdicts:
            why = "was trained again" if self.retrained.has_points else "is in the space"
            return f"No network of the paper {why}: there is nothing to compare with."
        kinds = Counter(verdict.kind for verdict in self.verdicts)
        counts = ", ".join(f"{kinds[kind]} {kind}" for kind in get_args(Kind) if kinds[kind])
        return f"Of {len(self.verdicts)} networks of the paper: {counts}."

    def to_dict(self) -> dict[str, Any]:
        finals = self.retrained.finals
        marks = self.marks
        dense = next((final.macs for final in finals if final.name == self.baseline), None)
        return {
            "name": self.retrained.name,
            "study": self.retrained.study,
            "recipe": self.retrained.recipe,
            "head": str(self.retrained),
            "headline": self.headline,
            "left": self.retrained.left,
            "costs": list(dict.fromkeys(name for final in finals for name in final.known_costs)),
            "finals": [_final_as_data(final, dense, marks.get(final.identity)) for final in finals],
            "verdicts": [_verdict_as_data(verdict) for verdict in self.verdicts],
        }


def _final_as_data(final: Final, dense: int | None, mark: str | None) -> dict[str, Any]:
    """With the multiply-accumulates of the network that its own are to be a share of, and the mark of the front."""
    return {
        "name": final.name,
        "is_paper": final.point is not None,
        "mark": mark,
        "trial": final.trial,
        "macs": final.macs,
        "share": None if dense is None else final.macs / dense,
        "params": final.params,
        "recipe": final.recipe,
        "seeds": list(final.seeds),
        "accuracies": list(final.accuracies),
        "runs": list(final.runs),
        "mean": final.mean if math.isfinite(final.mean) else None,
        "deviation": final.deviation,
        "diverged": final.diverged,
        "failed": final.failed,
        "open": final.open,
        "reason": final.reason,
    }


def _verdict_as_data(verdict: Verdict) -> dict[str, Any]:
    """As a sentence, and in parts for a table."""
    rival = verdict.rival
    return {
        "point": verdict.point,
        "kind": verdict.kind,
        "sentence": str(verdict),
        "rival": None if rival is None else rival.name,
        "trial": None if rival is None else rival.trial,
        "share": verdict.share,
        "difference": verdict.difference,
        "interval": None if verdict.interval is None else list(verdict.interval),
        "p": verdict.told_p,
        "note": _note(verdict),
    }


def _note(verdict: Verdict) -> str:
    """What its numbers do not tell."""
    over = verdict.corrected_over
    corrected = [] if over is None else [f"p is corrected over the {over} compared"]
    return "; ".join([verdict.why(), *corrected, *verdict.remarks()])
