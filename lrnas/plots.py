"""Pictures of a study."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.text import Text
from matplotlib.transforms import Bbox

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    axes.set_xscale("log")
    axes.set_xlabel("multiply-accumulates, millions")
    axes.set_ylabel("validation accuracy, %")
    axes.set_title(study.name)
    if full:  # early accuracies reach far down: the picture is about the others
        low, high = (100 * best(trial.accuracy or 0 for trial in full) for best in (min, max))
        margin = 0.12 * (high - low) + 0.3
        axes.set_ylim(low - margin, min(high + margin, 100.3))
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(loc="lower right", fontsize=8)
    figure.draw_without_rendering()
    named = [(trial.macs / 1e6, 100 * (trial.accuracy or 0)) for trial in paper]
    taken = [Bbox.from_bounds(x - 7, y - 7, 14, 14) for x, y in map(axes.transData.transform, named)]
    for trial in sorted(paper, key=lambda trial: -trial.macs):
        _label(axes, str(trial.point), (trial.macs / 1e6, 100 * (trial.accuracy or 0)), taken)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _label(axes: Axes, text: str, point: tuple[float, float], taken: list[Bbox]) -> None:
    """Write a name beside a point, where no other name is."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    renderer = figure._get_renderer()  # type: ignore[attr-defined]
    for x, y in product((7, -7), (-10, 5, -21, 16, -32, 27, -43, 38)):
        side = "left" if x > 0 else "right"
        note = axes.annotate(
            text,
            point,
            xytext=(x, y),
            textcoords="offset points",
            fontsize=8,
            ha=side,
            arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.5, "shrinkB": 3} if abs(y) > 12 else None,
            zorder=5,
        )
        note.update_positions(renderer)
        box = Text.get_window_extent(note)  # without the line to the point
        inside = axes.get_window_extent()
        if inside.x0 < box.x0 and box.x1 < inside.x1 and not any(box.overlaps(other) for other in taken):
            break
        note.remove()
    else:
        note = axes.annotate(text, point, xytext=(7, -10), textcoords="offset points", fontsize=8)
        note.update_positions(renderer)
        box = Text.get_window_extent(note)
    taken.append(box)
