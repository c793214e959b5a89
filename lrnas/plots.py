"""Pictures of a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

if TYPE_CHECKING:
    from lrnas.record import Record

__all__ = ["plot_front"]


def plot_front(study: Record, path: Path) -> None:
    """Accuracy against multiply-accumulates: trained networks, the front as a staircase, the paper's by name."""
    matplotlib.use("Agg", force=False)
    from matplotlib import pyplot as plt

    trials = study.trials()
    points = study.manifest["space"]["points"]
    full = [trial for trial in trials if trial.status == "completed"]
    stopped = [trial for trial in trials if trial.status == "stopped" and trial.accuracy is not None]
    front = sorted((trial for trial in full if trial.on_front), key=lambda trial: trial.macs)
    if not (full or stopped):
        return
    figure, axes = plt.subplots(figsize=(7.5, 5), layout="constrained")

    def scatter(some: list, **style: object) -> None:  # type: ignore[type-arg]
        axes.scatter([t.macs / 1e6 for t in some], [100 * t.accuracy for t in some], **style)  # type: ignore[arg-type]

    scatter(stopped, s=12, color="0.8", label="stopped early", zorder=1)
    scatter([t for t in full if t.point not in points], s=26, color="tab:blue", label="trained in full", zorder=3)
    paper = [t for t in full if t.point in points]
    scatter(paper, s=48, color="tab:red", marker="D", label="the paper's", zorder=4)
    if front:
        edge = [t.macs / 1e6 for t in front], [100 * (t.accuracy or 0) for t in front]
        axes.step(*edge, where="post", color="tab:blue", lw=1.2, zorder=2, label="front")
    for trial in paper:
        axes.annotate(
            str(trial.point),
            (trial.macs / 1e6, 100 * (trial.accuracy or 0)),
            xytext=(6, -10),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_xscale("log")
    axes.set_xlabel("multiply-accumulates, millions")
    axes.set_ylabel("validation accuracy, %")
    axes.set_title(study.name)
    if full:  # early accuracies reach far down: the picture is about the others
        low = min(100 * (trial.accuracy or 0) for trial in full)
        axes.set_ylim(low - 0.15 * (100 - low) - 0.5, 100.3)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)
