"""Networks that were trained again and tested, as data for a report: numbers over seeds, and verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from lrnas.arch.cost import Cost
from lrnas.study.retrained import Final, Retrained, front_marks
from lrnas.study.verdicts import Kind, Verdict


@dataclass(frozen=True, slots=True)
class Tested:
    """Networks of a study that were trained again with one recipe, and verdicts on the reference networks."""

    retrained: Retrained
    verdicts: tuple[Verdict, ...]
    dense_cost: Cost | None = None
    """Costs of the dense network for the images of this retraining; None if the space has no such network."""

    @property
    def finals(self) -> list[Final]:
        """Networks that have a mean accuracy."""
        return [final for final in self.retrained.finals if math.isfinite(final.mean)]

    @property
    def marks(self) -> dict[str, str]:
        """Remarks on the networks that are on the front by means; keys are identities of networks."""
        return front_marks(self.retrained.finals)

    @property
    def epochs(self) -> str:
        """Number of epochs of the recipe, in words."""
        number = self.retrained.fields["epochs"]
        return f"{number} epoch{'s' * (number != 1)}"

    @property
    def headline(self) -> str:
        """Sentence that counts the verdicts."""
        if not self.verdicts:
            why = "was trained in this retraining" if self.retrained.has_points else "is in the space"
            return f"No reference network {why}: there is nothing to compare with."
        kinds = Counter(verdict.kind for verdict in self.verdicts)
        counts = ", ".join(f"{kinds[kind]} {kind}" for kind in get_args(Kind) if kinds[kind])
        number = len(self.verdicts)
        return f"Of {number} reference network{'s' * (number != 1)}: {counts}."

    def to_dict(self) -> dict[str, Any]:
        finals = self.retrained.finals
        dense_macs = None if self.dense_cost is None else self.dense_cost.macs
        return {
            "name": self.retrained.name,
            "study": self.retrained.study,
            "recipe": self.retrained.recipe,
            "epochs": self.epochs,
            "head": str(self.retrained),
            "headline": self.headline,
            "left": self.retrained.left,
            "costs": list(dict.fromkeys(name for final in finals for name in final.known_costs)),
            "finals": finals_to_dicts(finals, dense_macs),
            "verdicts": [_verdict_to_dict(verdict) for verdict in self.verdicts],
        }


def finals_to_dicts(finals: Sequence[Final], dense_macs: int | None) -> list[dict[str, Any]]:
    """Networks with their numbers over seeds, for the page.

    Args:
        finals: Networks of one retraining or level.
        dense_macs: Multiply-accumulates of the dense network; None if there is none.
    """
    marks = front_marks(finals)
    return [_final_to_dict(final, dense_macs, marks.get(final.identity)) for final in finals]


def _final_to_dict(final: Final, dense_macs: int | None, mark: str | None) -> dict[str, Any]:
    names = ("trial", "macs", "params", "latency", "recipe", "deviation", "promised")
    further = ("diverged", "failed", "open", "reason")
    return {
        **{name: getattr(final, name) for name in (*names, *further)},
        **{name: list(getattr(final, name)) for name in ("seeds", "accuracies", "runs")},
        "name": final.title,
        "is_reference": final.point is not None,
        "mark": mark,
        "share": None if dense_macs is None else final.macs / dense_macs,
        "mean": final.mean if math.isfinite(final.mean) else None,
    }


def _verdict_to_dict(verdict: Verdict) -> dict[str, Any]:
    """A verdict as a sentence, and in parts for a table."""
    rival = verdict.rival
    over = verdict.corrected_over
    corrected = [] if over is None else [f"p is corrected over the {over} compared"]
    return {
        **{name: getattr(verdict, name) for name in ("point", "kind", "difference")},
        "sentence": str(verdict),
        "shares": dict(verdict.shares),
        "rival": None if rival is None else rival.title,
        "trial": None if rival is None else rival.trial,
        "interval": None if verdict.interval is None else list(verdict.interval),
        "p": verdict.shown_p,
        "note": "; ".join([verdict.why(), *corrected, *verdict.remarks()]),
    }
