"""Pictures of a study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize

from lrnas.reporting.figures.labels import add_legend, finish_costs, name_points
from lrnas.reporting.figures.style import (
    BEST,
    FRONT,
    LAYERS,
    Files,
    add_footer,
    add_rings,
    fit_text,
    label_text,
    label_ticks,
    make_figure,
    save_figure,
    settle,
    staircase,
)
from lrnas.study.objectives import OBJECTIVES, cost_objectives

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lrnas.profiling.profile import Profile
    from lrnas.study.study import Study, Trial

SIZES = {"o": 26.0, "D": 48.0}
"""Of the marks of networks, in square points; larger where they have colours."""


def plot_front(study: Study, path: Files, axis: str | None = None) -> None:
    """Accuracy against a cost: trained networks, the front ringed, a staircase, the paper's by name.

    The cost is that of the objectives, multiply-accumulates before others, if no `axis` names another; a second one
    gives the colours.
    """
    costs = sorted(cost_objectives(study.objectives), key=lambda objective: objective.name != (axis or "macs"))
    if axis is not None and costs[0].name != axis:
        costs.insert(0, OBJECTIVES[axis])
    cost, second = costs[0], costs[1] if len(costs) > 1 else None
    trials = study.trials()
    points = study.manifest["space"]["points"]
    full = [trial for trial in trials if trial.status == "completed"]
    stopped = [trial for trial in trials if trial.status == "stopped" and trial.accuracy is not None]
    if not (full or stopped):
        return
    figure = make_figure(*FRONT)
    axes = figure.subplots()

    def place(trial: Trial) -> tuple[float, float]:
        return getattr(trial, cost.name) / cost.unit, 100 * (trial.accuracy or 0)

    def colour(trials: list[Trial]) -> list[float]:
        assert second is not None
        return [getattr(trial, second.name) / second.unit for trial in trials]

    def scatter(some: list[Trial], colours: Normalize | None = None, **style: Any) -> None:
        if colours is not None:
            edges = {"edgecolors": style.pop("color"), "linewidths": 0.8}
            style |= {"c": colour(some), "norm": colours, **edges}
        if some:  # or the legend would have what is nowhere to be seen
            axes.scatter(*zip(*map(place, some), strict=True), **style)

    colours: Normalize | None = None
    if second is not None and full:
        low, high = min(colour(full)), max(colour(full))
        colours = (LogNorm if high > 10 * low else Normalize)(low, max(high, 1.001 * low))
        bar = figure.colorbar(ScalarMappable(colours), ax=axes, label=second.label)
        if isinstance(colours, LogNorm):
            label_ticks(bar.ax.yaxis)
    bottom = _limit_accuracies(axes, full, stopped)
    seen = [trial for trial in stopped if place(trial)[1] >= bottom]
    if below := len(stopped) - len(seen):
        note = f"Not shown: {below} of {len(stopped)} networks stopped early, whose accuracies are below."
        add_footer(figure, [note])
    scatter(seen, s=12, color="0.8", label="stopped early", zorder=1)
    sizes = {marker: size if colours is None else 1.6 * size for marker, size in SIZES.items()}
    others = [trial for trial in full if trial.point not in points]
    scatter(others, colours, s=sizes["o"], color="tab:blue", label="trained in full", zorder=LAYERS["o"])
    paper = [trial for trial in full if trial.point in points]
    scatter(paper, colours, s=sizes["D"], color="tab:red", marker="D", label="the paper's", zorder=LAYERS["D"])
    marked = {"o": others, "D": paper}
    front = {marker: [place(trial) for trial in some if trial.on_front] for marker, some in marked.items()}
    add_rings(axes, front, sizes)
    steps = staircase(map(place, full))
    if len(steps) > 1 and second is None:  # in three dimensions there is no staircase
        axes.step(*zip(*steps, strict=True), where="post", color="tab:blue", lw=1.2, zorder=2, label=BEST)
    named = [(str(trial.point), place(trial)) for trial in paper]
    title = fit_text(study.name, FRONT[0] - 1, 12)
    finish_costs(axes, named, xlabel=cost.label, ylabel="validation accuracy, %", title=title)
    save_figure(figure, path)


def _limit_accuracies(axes: Axes, full: list[Trial], stopped: list[Trial]) -> float:
    """Early accuracies reach far down: the picture is about the others. Tells where it ends below, in percent."""
    if not full:
        return 0.0
    low = 100 * min(trial.accuracy or 0 for trial in full)
    high = 100 * max(trial.accuracy or 0 for trial in [*full, *stopped])
    margin = 0.12 * (high - low) + 0.3
    axes.set_ylim(low - margin, min(high + margin, 100.3))
    return low - margin


def plot_times(profile: Profile, path: Files) -> None:
    """Time of a forward pass against multiply-accumulates: of layers, as in the paper, and of whole networks."""
    networks = profile.networks
    layered = any(network.layers for network in networks)
    width = 6 + 5.5 * layered
    figure = make_figure(width, 4.8)
    figure.suptitle(fit_text(str(profile.conditions), width, 9), fontsize=9)
    panels = figure.subplots(1, 1 + layered, squeeze=False)[0]
    for axes in panels:
        axes.set(xlabel="multiply-accumulates of an image, millions", ylabel="forward pass, ms", title="networks")
        axes.grid(True, which="both", alpha=0.25)
    if layered:
        axes = panels[0]
        for i, network in enumerate(networks):
            convs = [layer for layer in network.layers if layer.macs]
            x, y = [layer.macs / 1e6 for layer in convs], [layer.forward for layer in convs]
            size = max(90 - 25 * i, 20)  # layers that networks share are seen below each other
            axes.scatter(x, y, size, color=f"C{i % 10}", label=label_text(network.name), zorder=3)
        axes.set(xscale="log", yscale="log", title="layers")
        for axis in (axes.xaxis, axes.yaxis):
            label_ticks(axis)
    axes = panels[-1]
    for base in networks:
        if base.baseline == base.name:  # where time goes with multiply-accumulates
            axes.plot([0, base.macs / 1e6], [0, base.forward], color="0.7", lw=1, zorder=1)
    places = [(network.macs / 1e6, network.forward) for network in networks]
    for i, place in enumerate(places):
        axes.scatter(*place, color=f"C{i % 10}", s=40, zorder=3)
    axes.set_xlim(0, 1.1 * max(x for x, _ in places))
    axes.set_ylim(0, 1.12 * max(y for _, y in places))
    settle(figure)
    if layered:
        add_legend(panels[0])
    name_points(axes, zip((network.name for network in networks), places, strict=True))
    save_figure(figure, path)
