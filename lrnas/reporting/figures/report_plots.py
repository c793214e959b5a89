"""Figures of a report for print: PDF, PNG or SVG, by the ending of the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lrnas.reporting.figures.labels import finish_costs
from lrnas.reporting.figures.style import (
    BEST,
    FRONT,
    LAYERS,
    Files,
    Place,
    add_rings,
    fit_text,
    label_text,
    make_figure,
    number_text,
    plain_text,
    save_figure,
    staircase,
)
from lrnas.reporting.layer_view import KINDS, SHADES, merge_orders
from lrnas.reporting.report import PALETTE
from lrnas.study.manifest import StudyError
from lrnas.study.objectives import Objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from lrnas.reporting.report import Network, Report, StudyReport

MOST_NETWORKS = 60
"""Along the front, in a picture of what their layers are made of."""
MOST_PARAMETERS = 20


def plot_fronts(report: Report, path: Files) -> None:
    """Accuracy against cost of several studies, each in its colour, each with its staircase; the paper's by name."""
    cost = report.axis
    some = _some(report.studies, lambda study: study.full)
    figure = make_figure(*FRONT)
    axes = figure.subplots()
    named: list[tuple[str, Place]] = []
    sizes = {"o": 22.0, "D": 40.0}
    rings: dict[str, list[Place]] = {"o": [], "D": []}
    for colour, study in some:
        full = [(network, place) for network in study.full for place in _places(network, cost)]
        for is_paper, marker in ((False, "o"), (True, "D")):
            marked = [(network, place) for network, place in full if network.is_paper == is_paper]
            x, y = [place[0] for _, place in marked], [place[1] for _, place in marked]
            axes.scatter(x, y, s=sizes[marker], color=colour, marker=marker, zorder=LAYERS[marker])
            rings[marker] += [place for network, place in marked if network.trial.on_front]
        steps = staircase(place for _, place in full)
        axes.step(*zip(*steps, strict=True), where="post", color=colour, lw=1.2, zorder=2, label=label_text(study.name))
        named += [(network.name, place) for network, place in full if network.is_paper]
    if named:
        axes.scatter([], [], s=sizes["D"], color="0.4", marker="D", label="the paper's")
    add_rings(axes, rings, sizes)
    finish_costs(axes, named, xlabel=cost.label, ylabel="validation accuracy, %")
    save_figure(figure, path)


def plot_history(studies: Sequence[StudyReport], path: Files) -> None:
    """How the front grew: hypervolume over trials, and over the time they took."""
    some = _some(studies, lambda study: study.history)
    figure = make_figure(9, 4)
    over_trials, over_time = figure.subplots(1, 2, sharey=True)
    for colour, study in some:
        volumes = [moment.volume for moment in study.history]
        trials, hours = zip(*((moment.trials, moment.seconds / 3600) for moment in study.history), strict=True)
        over_trials.step(trials, volumes, where="post", color=colour, label=label_text(study.name))
        over_time.step(hours, volumes, where="post", color=colour)
    over_trials.set(xlabel="trials that have ended", ylabel="hypervolume of the front")
    over_trials.xaxis.set_major_locator(MaxNLocator(integer=True))
    over_time.set(xlabel="hours of training, all trials added up")
    over_trials.legend(loc="lower right", fontsize=8)
    for axes in (over_trials, over_time):
        axes.grid(True, alpha=0.25)
    save_figure(figure, path)


def plot_curves(study: StudyReport, path: Files) -> None:
    """Accuracy after every epoch, and the rungs at which trials may be stopped."""
    trained = [network for network in study.networks if network.trial.curve and (network.is_full or network.is_partial)]
    if not trained:
        raise StudyError(f"{study.name} has no curve to show: no network was trained; let the search run")
    figure = make_figure(7, 4.5)
    axes = figure.subplots()
    looks = {
        "stopped early": ("0.75", 0.7, [one for one in trained if not one.is_full]),
        "trained in full": ("tab:blue", 0.9, [one for one in trained if one.is_full and not one.trial.on_front]),
        "on the front": ("tab:red", 1.4, [one for one in trained if one.trial.on_front]),
    }
    for label, (colour, width, some) in looks.items():
        if not some:
            continue
        curves = [[(epoch, 100 * value) for epoch, value in enumerate(one.trial.curve, 1)] for one in some]
        # thousands of lines at once, not one by one
        axes.add_collection(LineCollection(curves, colors=colour, linewidths=width, zorder=2))
        dots = [curve[0] for curve in curves if len(curve) == 1]
        axes.plot([x for x, _ in dots], [y for _, y in dots], ".", color=colour)
        axes.plot([], [], color=colour, label=label)
    axes.autoscale_view()
    for rung in study.rungs:
        axes.axvline(rung, color="0.5", lw=0.8, ls=":")
    if study.rungs:
        axes.plot([], [], color="0.5", ls=":", label="rungs")
    axes.set(xlabel="epoch", ylabel="validation accuracy, %", title=fit_text(study.name, 6, 12))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True, alpha=0.25)
    axes.legend(loc="lower right", fontsize=8)
    save_figure(figure, path)


def plot_allocation(study: StudyReport, path: Files, axis: Objective) -> None:
    """Of every network along the front, layer by layer, the shares of the shapes; a dot is a join."""
    front = [network for network in study.front if network.layers]
    if not front:
        raise StudyError(f"{study.name} has no front to show; let the search run until a network is trained in full")
    front.sort(key=lambda network: network.cost(axis.name) or 0.0)
    shown = front if len(front) <= MOST_NETWORKS else _spread(front, MOST_NETWORKS)
    layers = _varied_layers(shown)
    if not layers:
        raise StudyError(f"the networks of {study.name} have no layer with k×k filters: there is nothing to show")
    columns = 1 if len(layers) <= 10 else 2
    rows = -(-len(layers) // columns)
    size = (min(columns * max(5.0, 0.32 * len(shown) + 2), 16.0), 0.75 * rows + 1.6)
    figure = make_figure(*size)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel, name in zip(panels.T.flat, layers, strict=False):
        _draw_layer(panel, shown, name)
    for panel in list(panels.T.flat)[len(layers) :]:
        panel.set_axis_off()
    costs = [number_text((network.cost(axis.name) or 0) / axis.unit) for network in shown]
    for panel in panels[-1]:
        panel.set_xticks(range(len(shown)), costs, rotation=90, fontsize=7)
    number = "" if len(shown) == len(front) else f" ({len(shown)} of {len(front)} networks)"
    figure.supxlabel(f"{axis.label}, along the front{number}", fontsize=9)
    handles = [Patch(color=SHADES[kind]) for kind in KINDS]
    join = Line2D([], [], marker="o", ls="", color="k", ms=3)
    figure.legend(
        [*handles, join],
        [*(_spelt(kind) for kind in KINDS), "join"],
        loc="outside upper center",
        ncols=6,
        fontsize=8,
        title=fit_text(study.name, size[0] - 1, 10),
    )
    save_figure(figure, path)


def plot_importances(study: StudyReport, path: Files) -> None:
    """What decides: the parameters that tell networks that are good in an objective from others."""
    if not study.importances:
        raise StudyError(f"{study.name} has too few networks trained in full to tell which parameters matter")
    every = list(next(iter(study.importances.values())))  # those that matter most to any objective first
    names = every[:MOST_PARAMETERS][::-1]
    shown = f", {len(names)} of {len(every)} parameters" if len(names) < len(every) else ""
    figure = make_figure(7, 0.26 * len(names) + 1.4)
    axes = figure.subplots()
    height = 0.8 / len(study.importances)
    for i, (colour, (goal, values)) in enumerate(zip(cycle(PALETTE), study.importances.items(), strict=False)):
        places = [place - i * height + 0.4 - height / 2 for place in range(len(names))]
        axes.barh(places, [values.get(name, 0.0) for name in names], height, color=colour, label=goal)
    axes.set_yticks(range(len(names)), [plain_text(name) for name in names], fontsize=8)
    axes.set_ylim(-0.6, len(names) - 0.4)
    title = f"{study.name}: {len(study.full)} networks trained in full{shown}"
    axes.set(xlabel="importance (PED-ANOVA), share", title=fit_text(title, 6, 12))
    axes.legend(loc="lower right", fontsize=8)
    save_figure(figure, path)


def plot_finals(report: Report, path: Files) -> None:
    """Networks trained in full and tested: mean and standard deviation over seeds, a staircase for each retraining.

    Rings are around the front by means, which goes by all costs of the search, whichever is shown.
    """
    cost = report.axis if report.axis.name != "latency" else report.axes[0]
    shown = [one for one in report.tested if one.finals]
    if not shown:
        raise StudyError(f"{report.title}: no network was trained again and tested; `lrnas retrain` does")
    several = len(shown) > 1
    shades = dict(zip((study.name for study in report.studies), cycle(PALETTE), strict=False))
    rings: list[Place] = []
    named: list[tuple[str, Place]] = []
    lines = 0
    figure = make_figure(*FRONT)
    axes = figure.subplots()
    for one in shown:
        places = [(getattr(final, cost.name) / cost.unit, 100 * final.mean) for final in one.finals]
        colours = (shades[one.retrained.study],) * 3 if len(shades) > 1 else ("tab:blue", "tab:red", "0.5")
        for is_paper, marker, label in ((False, "o", "found"), (True, "D", "the paper's")):
            some = [k for k, final in enumerate(one.finals) if (final.point is not None) == is_paper]
            if some:
                x, y = zip(*(places[k] for k in some), strict=True)
                deviations = [one.finals[k].deviation for k in some]
                bars = [math.nan if deviation is None else 100 * deviation for deviation in deviations]
                label = label_text(f"{one.retrained.name}, {label}") if several else label
                axes.errorbar(x, y, bars, fmt=marker, color=colours[is_paper], capsize=3, ms=5, label=label)
        steps = staircase(places)
        is_line = len(steps) > 1
        lines += is_line
        best = BEST if is_line and not several else None
        axes.step(*zip(*steps, strict=True), where="post", color=colours[2], lw=1, zorder=1, label=best)
        marks = one.marks
        for final, place in zip(one.finals, places, strict=True):
            named += [] if final.point is None else [(final.point, place)]
            rings += [place] if final.identity in marks else []
    if several and lines:
        axes.plot([], [], color="0.5", lw=1, label=BEST)
    x, y = zip(*rings, strict=True)
    axes.scatter(x, y, s=110, facecolors="none", edgecolors="0.3", linewidths=0.8, zorder=2, label="front by means")
    title = "" if several else fit_text(shown[0].retrained.name, FRONT[0] - 1, 12)
    finish_costs(axes, named, xlabel=cost.label, ylabel="test accuracy, %, mean ± sd over seeds", title=title)
    save_figure(figure, path)


def _some(
    studies: Sequence[StudyReport], has: Callable[[StudyReport], Sequence[object]]
) -> list[tuple[str, StudyReport]]:
    """The studies that have something to show, each with the colour of its place among all."""
    found = [(colour, study) for colour, study in zip(cycle(PALETTE), studies, strict=False) if has(study)]
    if not found:
        listed = ", ".join(study.name for study in studies)
        raise StudyError(f"{listed}: no network is trained in full yet; let the search run, then try again")
    return found


def _places(network: Network, cost: Objective) -> Iterator[Place]:
    """Where a network is in a picture, if its cost is known."""
    value = network.cost(cost.name)
    if value is not None:
        yield value / cost.unit, 100 * (network.trial.accuracy or 0.0)


def _spread(networks: list[Network], number: int) -> list[Network]:
    """So many of them, evenly along the front, both ends included."""
    last = len(networks) - 1
    return [networks[round(i * last / (number - 1))] for i in range(number)]


def _varied_layers(networks: Sequence[Network]) -> list[str]:
    """Names of the layers whose filters could have other shapes, in their order."""
    return merge_orders([layer.name for layer in network.layers if layer.is_varied] for network in networks)


def _spelt(kind: str) -> str:
    return kind.replace("x", "×")


def _draw_layer(panel: Axes, networks: Sequence[Network], name: str) -> None:
    layers = [next((layer for layer in network.layers if layer.name == name), None) for network in networks]
    floor = [0.0] * len(networks)
    for kind in KINDS:
        shares = [0.0 if layer is None else layer.shares().get(kind, 0.0) for layer in layers]
        panel.bar(range(len(networks)), shares, 0.9, floor, color=SHADES[kind])
        floor = [low + share for low, share in zip(floor, shares, strict=True)]
    joined = [i for i, layer in enumerate(layers) if layer is not None and layer.join is not None]
    panel.plot(joined, [1.12] * len(joined), "o", color="k", ms=3)
    panel.set_ylim(0, 1.25)
    panel.set_yticks([0, 1])
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    panel.tick_params(labelsize=7)
    panel.set_ylabel(plain_text(name), rotation=0, ha="right", va="center", fontsize=8)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
