"""Figures of studies: the front, its growth, training curves, layers, importances and test accuracies."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from lrnas.reporting.figures import style
from lrnas.reporting.figures.labels import add_legend, name_positions
from lrnas.reporting.headline import best_few
from lrnas.reporting.layer_view import SHADES, merge_orders
from lrnas.reporting.report import PALETTE
from lrnas.study.manifest import StudyError
from lrnas.study.objectives import Objective
from lrnas.study.retrained import front_marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lrnas.reporting.report import Network, Report, StudyReport
    from lrnas.study.retrained import Final

FRONT_SIZE = (7.5, 5.0)
"""Width and height of figures of accuracy against cost, in inches."""
BEST = "best for the cost shown"
"""Label of the staircase in the legend. With several costs, the staircase is not the front."""
MARKERS = {"o": 26.0, "D": 48.0}
"""Sizes in square points of the marks of networks found (o) and of reference networks (D)."""
LAYERS = {"o": 3.0, "D": 4.0}
"""Order of drawing (zorder): reference networks are above the others."""
MAX_NETWORKS = 60
"""Largest number of networks in a figure of their layers; if there are more, some are left out evenly."""
MAX_NAMED = 8
"""Largest number of networks trained over several seeds that all have names; if there are more, the best few have."""
FEWEST = 3
"""Fewest networks that fill a figure; if there are fewer, all grey networks are in it too."""
SAME_COST = 0.01
"""Costs that differ by at most this share are one dotted line."""
MAX_JOINED = 100
"""Largest number of training curves that are drawn as one line with gaps."""
HATCHES = ("", "", "///", "...")
"""Hatches of the bars of importances, one for each objective, since colours have other meanings."""
MAX_ROWS = 24
"""Largest number of layers in a figure of layers; if there are more, those of 1×1 filters are left out."""
MAX_PARAMETERS = 20
"""Largest number of parameters in a figure of importances."""


@dataclass(frozen=True, slots=True)
class _Dot:
    """A network in a figure of accuracy against cost."""

    position: style.Position
    reference_name: str | None
    """Name of a reference network; None for a network that was found."""
    on_front: bool
    label: str | None = None
    """Name of a network that was found, if the figure has it."""
    deviation: float | None = None
    """Standard deviation of the accuracy in percent; None if unknown."""
    second_cost: float = 0.0
    """Cost that is shown by colour."""


_Group = tuple[str, str | None, list[_Dot]]
"""Name of a study, its colour (None: blue, and red for reference networks), and its networks."""


@style.in_own_style
def plot_front(report: Report, path: style.Files) -> Figure:
    """Draw accuracy against cost, with the front ringed, and reference networks and the best few of one study named.

    The costs of the dense network, and of reference networks beyond a limit of the search, are marked. If all studies
    have networks trained in full over several seeds, these are drawn, with error bars; the short trainings of a single
    study are shown faintly. Otherwise short trainings are drawn: for one study, networks stopped early are shown in
    grey and a second cost is shown by colour. If there are several studies, each has its own colour.

    Args:
        report: Report on one or several studies.
        path: File or files to write, or none; the suffix of each gives its format.
    """
    several = len(report.studies) > 1
    cost = report.axis
    shown = _with_colours(report.studies, lambda study: study.full or (not several and study.stopped))
    if all(study.finals for _, study in shown):
        return _plot_final_front(shown, cost, path)
    first = shown[0][1]
    second = next((each for each in first.study.objectives if each.name not in ("accuracy", cost.name)), None)
    few = [] if several else best_few(first, cost.name)
    groups: list[_Group] = []
    for colour, study in shown:
        dots = [
            _Dot(
                (value / cost.unit, 100 * (network.trial.accuracy or 0.0)),
                network.name if network.is_reference else None,
                network.trial.on_front,
                network.name if network.trial.number in few else None,
                second_cost=0.0 if second is None else (network.cost(second.name) or 0.0) / second.unit,
            )
            for network in study.full
            if (value := network.cost(cost.name)) is not None
        ]
        groups.append((study.name, colour if several else None, dots))
    figure = style.make_figure(*FRONT_SIZE)
    axes = figure.subplots()
    colours: Normalize | None = None
    if not several:
        dots = groups[0][2]
        if second is not None and dots:
            low, high = min(dot.second_cost for dot in dots), max(dot.second_cost for dot in dots)
            colours = (LogNorm if high > 10 * low else Normalize)(low, max(high, 1.001 * low))
            bar = figure.colorbar(ScalarMappable(colours), ax=axes, label=second.label)
            if isinstance(colours, LogNorm):
                style.label_ticks(bar.ax.yaxis)
        full = [(network.trial.accuracy or 0.0,) * 2 for network in first.full]
        _draw_faintly(axes, first.stopped, full, cost, "stopped early")
    axes.set(xlabel=cost.label, ylabel="validation accuracy, %")
    _mark_costs(axes, [(study, dots) for (_, study), (_, _, dots) in zip(shown, groups, strict=True)], cost)
    _draw_networks(axes, groups, (first.training, "on the front"), colours)
    return style.save_figure(figure, path)


def _plot_final_front(studies: Sequence[tuple[str, StudyReport]], cost: Objective, path: style.Files) -> Figure:
    """Draw the networks that searches trained in full; never in one line with those trained shortly."""
    several = len(studies) > 1
    is_named = sum(len(study.finals) for _, study in studies) <= MAX_NAMED
    groups: list[_Group] = []
    for colour, study in studies:
        few = [final.trial for final in study.finals] if is_named else [] if several else best_few(study, cost.name)
        dots = _final_dots(study.finals, set(front_marks(study.finals)), cost, few)
        groups.append((study.name, colour if several else None, dots))
    figure = style.make_figure(*FRONT_SIZE)
    axes = figure.subplots()
    if not several:
        study = studies[0][1]
        bars = [(final.mean, final.deviation or 0.0) for final in study.finals]
        ends = [(mean - deviation, mean + deviation) for mean, deviation in bars]
        _draw_faintly(axes, study.full, ends, cost, "after short training")
    axes.set(xlabel=cost.label, ylabel="validation accuracy, %, mean ± sd over seeds")
    _mark_costs(axes, [(study, dots) for (_, study), (_, _, dots) in zip(studies, groups, strict=True)], cost)
    _draw_networks(axes, groups, ("found, trained in full", "front by means"))
    return style.save_figure(figure, path)


def _final_dots(
    finals: Sequence[Final], on_front: Container[str], cost: Objective, few: Sequence[int | None]
) -> list[_Dot]:
    """Networks with means over seeds, as dots; without those whose cost is unknown. Trials in `few` have names."""
    return [
        _Dot(
            (value / cost.unit, 100 * final.mean),
            final.point,
            final.identity in on_front,
            final.title if final.trial in few else None,
            None if final.deviation is None else 100 * final.deviation,
        )
        for final in finals
        if (value := getattr(final, cost.name)) is not None
    ]


@style.in_own_style
def plot_tested(report: Report, path: style.Files) -> Figure:
    """Draw test accuracy against cost of networks trained again: mean and standard deviation over seeds.

    Rings mark the front by means, which takes all costs of the search into account, not only the one shown.

    Args:
        report: Report with tested networks.
        path: File or files to write, or none; the suffix of each gives its format.
    """
    every = [final for tested in report.tested for final in tested.finals]
    cost = report.axis if all(getattr(final, report.axis.name) is not None for final in every) else report.axes[0]
    several = len(report.tested) > 1
    colours = {study.name: (colour, study) for colour, study in zip(cycle(PALETTE), report.studies, strict=False)}
    groups: list[_Group] = []
    drawn: dict[str, tuple[StudyReport, list[_Dot]]] = {}
    for tested in report.tested:
        named = [
            final.trial
            for final in tested.finals
            if len(every) <= MAX_NAMED or (not several and final.identity in tested.marks)
        ]
        if dots := _final_dots(tested.finals, tested.marks, cost, named):
            colour, study = colours[tested.retrained.study]
            groups.append((tested.retrained.name, colour if len(colours) > 1 else None, dots))
            drawn.setdefault(study.name, (study, []))[1].extend(dots)
    if not groups:
        raise StudyError(f"{report.title}: no network was trained again and tested yet; run `lrnas retrain` first")
    figure = style.make_figure(*FRONT_SIZE)
    axes = figure.subplots()
    axes.set(xlabel=cost.label, ylabel="test accuracy, %, mean ± sd over seeds")
    _mark_costs(axes, list(drawn.values()), cost, "not trained again")
    _draw_networks(axes, groups, ("found", "front by means"))
    return style.save_figure(figure, path)


@style.in_own_style
def plot_history(studies: Sequence[StudyReport], path: style.Files) -> Figure:
    """Draw how the front grew: its hypervolume over trials, and over hours of training.

    Args:
        studies: Studies to draw, each in its own colour.
        path: File or files to write, or none; the suffix of each gives its format.
    """
    figure = style.make_figure(9, 4)
    over_trials, over_time = figure.subplots(1, 2, sharey=True)
    for colour, study in _with_colours(studies, lambda study: study.history):
        volumes = [moment.volume for moment in study.history]
        trials, hours = zip(*((moment.trials, moment.seconds / 3600) for moment in study.history), strict=True)
        over_trials.step(trials, volumes, where="post", color=colour, label=style.legend_text(study.name))
        over_time.step(hours, volumes, where="post", color=colour)
    level = ", short training" if any(study.finals for study in studies) else ""
    over_trials.set(xlabel="finished trials", ylabel=f"hypervolume of the front{level}")
    over_trials.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    over_time.set(xlabel="hours of training, sum over all trials")
    over_trials.legend(loc="lower right", fontsize=8)
    for axes in (over_trials, over_time):
        axes.grid(True, alpha=0.25)
    return style.save_figure(figure, path)


@style.in_own_style
def plot_curves(study: StudyReport, path: style.Files) -> Figure:
    """Draw the validation accuracy of every network after every epoch, and the rungs of early stopping.

    Args:
        study: Study to draw.
        path: File or files to write, or none; the suffix of each gives its format.
    """
    trained = [network for network in study.full + study.stopped if network.trial.curve]
    if not trained:
        raise StudyError(f"{study.name} has no training curve to show; let the search run until a network is trained")
    front = {network.name for network in study.full if network.trial.on_front}  # by these trainings, not by the finals
    special = front | {network.name for network in trained if network.is_reference}
    figure = style.make_figure(7, 4.5)
    axes = figure.subplots()
    for label, colour, width, some in (
        ("stopped early", "0.75", 0.7, [one for one in trained if not one.is_full]),
        ("completed", "tab:blue", 0.9, [one for one in trained if one.is_full and one.name not in special]),
        ("on the front", "0.15", 1.4, [one for one in trained if one.name in front and not one.is_reference]),
        ("reference", "tab:red", 1.4, [one for one in trained if one.is_full and one.is_reference]),
    ):
        if not some:
            continue
        curves = [[(epoch, 100 * value) for epoch, value in enumerate(one.trial.curve, 1)] for one in some]
        # thousands of single lines would be slow, and one line of all of them is too much for Matplotlib
        parts = [curves[first : first + MAX_JOINED] for first in range(0, len(curves), MAX_JOINED)]
        lines = [[point for curve in part for point in (*curve, (math.nan, math.nan))] for part in parts]
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=width, zorder=2))
        dots = [curve[0] for curve in curves if len(curve) == 1]
        axes.plot([x for x, _ in dots], [y for _, y in dots], ".", color=colour)
        axes.plot([], [], color=colour, label=label)
    axes.autoscale_view()
    for rung in study.rungs:
        axes.axvline(rung, color="0.5", lw=0.8, ls=":")
    if study.rungs:
        axes.plot([], [], color="0.5", ls=":", label="rungs")
    epoch = "epoch of the short training" if study.finals else "epoch"
    axes.set(xlabel=epoch, ylabel="validation accuracy, %", title=style.wrap_text(study.name, 6, 12))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(True, alpha=0.25)
    axes.legend(loc="lower right", fontsize=8)
    return style.save_figure(figure, path)


@style.in_own_style
def plot_allocation(study: StudyReport, path: style.Files, axis: Objective) -> Figure:
    """Draw the numbers of filters of each shape in the layers of the networks on the front.

    Layers are drawn that have filters larger than 1×1, or a width that is not the same everywhere. A dotted line is the
    width in the dense network, or in the unchanged backbone for layers that it does not have; a dot marks a join.

    Args:
        study: Study to draw.
        path: File or files to write, or none; the suffix of each gives its format.
        axis: Cost by which networks are ordered.
    """
    front = sorted(study.front, key=lambda network: network.cost(axis.name) or 0.0)
    if not front:
        raise StudyError(f"{study.name} has no front to show; let the search run until a network is trained")
    number = min(len(front), MAX_NETWORKS)  # evenly along the front, with both ends
    shown = [front[round(i * (len(front) - 1) / max(number - 1, 1))] for i in range(number)]
    layers = _varied_layers(shown, study.dense_widths)
    if not layers:
        raise StudyError(f"the networks of {study.name} have no layer that differs; there is nothing to show")
    columns = 1 if len(layers) <= 10 else 2
    rows = -(-len(layers) // columns)
    size = (min(columns * max(5.0, 0.32 * len(shown) + 2), 16.0), 0.75 * rows + 1.6)
    figure = style.make_figure(*size)
    panels = figure.subplots(rows, columns, sharex=True, squeeze=False)
    widths = {name: study.dense_widths[name] for name in layers if name in study.dense_widths}
    for panel, name in zip(panels.T.flat, layers, strict=False):
        _draw_layer(panel, shown, name, widths[name][0] if name in widths else None)
    for panel in list(panels.T.flat)[len(layers) :]:
        panel.set_axis_off()
    figure.align_ylabels()
    costs = [style.number_text((network.cost(axis.name) or 0) / axis.unit) for network in shown]
    for panel in panels[-1]:
        panel.set_xticks(range(len(shown)), costs, rotation=90, fontsize=7)
    thinned = "" if len(shown) == len(front) else f" ({len(shown)} of {len(front)} networks)"
    figure.supxlabel(f"{axis.label}, along the front{thinned}", fontsize=9)
    drawn = [layer for network in shown for layer in network.layers if layer.name in layers]
    used = {kind for layer in drawn for kind in layer.counts()}
    keys: dict[str, Any] = {
        kind.replace("x", "×"): Patch(color=shade) for kind, shade in SHADES.items() if kind in used
    }
    if any(layer.join is not None for layer in drawn):
        keys["join"] = Line2D([], [], marker="o", ls="", color="k", ms=3)
    if widths:
        names = dict.fromkeys(name for _, name in widths.values())
        keys[f"width in {' or '.join(names)}"] = Line2D([], [], color="0.5", lw=0.8, ls=":")
    figure.legend(
        list(keys.values()),
        list(keys),
        loc="outside upper center",
        ncols=4 if size[0] < 7 else 7,
        fontsize=8,
        title=style.wrap_text(study.name, size[0] - 1, 10),
    )
    return style.save_figure(figure, path)


@style.in_own_style
def plot_importances(study: StudyReport, path: style.Files) -> Figure:
    """Draw how much each parameter decides whether a network is good in an objective.

    Args:
        study: Study to draw.
        path: File or files to write, or none; the suffix of each gives its format.
    """
    if not study.importances:
        raise StudyError(f"{study.name} has too few trained networks to tell which parameters matter")
    every = list(next(iter(study.importances.values())))  # ordered by the highest importance in any objective
    names = every[:MAX_PARAMETERS][::-1]
    shown = f", {len(names)} of {len(every)} parameters" if len(names) < len(every) else ""
    figure = style.make_figure(7, 0.26 * len(names) + 1.4)
    axes = figure.subplots()
    height = 0.8 / len(study.importances)
    for i, (goal, values) in enumerate(study.importances.items()):
        look: dict[str, Any] = {"color": "white" if i else "0.15", "edgecolor": "0.15", "hatch": HATCHES[i]}
        centres = [place - i * height + 0.4 - height / 2 for place in range(len(names))]
        axes.barh(centres, [values.get(name, 0.0) for name in names], height, **look, label=goal)
    axes.set_yticks(range(len(names)), [style.escape_text(name) for name in names], fontsize=8)
    axes.set_ylim(-0.6, len(names) - 0.4)
    title = f"{study.name}: {len(study.full)} networks after {study.training}{shown}"
    axes.set(xlabel="importance (PED-ANOVA), share", title=style.wrap_text(title, 6, 12))
    axes.legend(loc="lower right", fontsize=8)
    return style.save_figure(figure, path)


def find_staircase(positions: Iterable[style.Position]) -> list[style.Position]:
    """Corners of the staircase of the best accuracy for every cost, from the lowest to the highest cost."""
    best: list[style.Position] = []
    ordered = sorted(positions, key=lambda position: (position[0], -position[1]))
    for position in ordered:
        if not best or position[1] > best[-1][1]:
            best.append(position)
    if best and ordered[-1][0] > best[-1][0]:
        best.append((ordered[-1][0], best[-1][1]))
    return best


def _with_colours(
    studies: Sequence[StudyReport], has_content: Callable[[StudyReport], object]
) -> list[tuple[str, StudyReport]]:
    """Studies with something to show, each with the colour of its place in the report."""
    shown = [(colour, study) for colour, study in zip(cycle(PALETTE), studies, strict=False) if has_content(study)]
    if not shown:
        listed = ", ".join(study.name for study in studies)
        raise StudyError(f"{listed}: no network is trained yet; let the search run, then try again")
    return shown


def _mark_costs(
    axes: Axes,
    studies: Sequence[tuple[StudyReport, Sequence[_Dot]]],
    cost: Objective,
    why: str = "beyond the limit",
) -> None:
    """Mark the costs of dense networks and of reference networks beyond a limit.

    A text names the studies to which the line belongs, unless it belongs to all. Networks are not marked if they are
    drawn by name: for the same study, or at the same cost.

    Call it before `_draw_networks`: it can widen the axis, and the legend and names are placed around its texts.

    Args:
        axes: Axes to draw on.
        studies: Studies, each with its networks in the figure.
        cost: Cost on the axis.
        why: Why networks beyond the limit of the search are not drawn.
    """
    drawn = [(dot.reference_name, dot.position[0]) for _, dots in studies for dot in dots if dot.reference_name]
    lines: dict[tuple[str, float], dict[str, list[str]]] = {}
    for study, dots in studies:
        own = {dot.reference_name for dot in dots}
        for name, (value, remark) in _costs_to_mark(study, cost, why).items():
            if value is None or name in own:
                continue
            line = (name, value / cost.unit)
            if not any(_is_same(line, other) for other in drawn):
                same = next((other for other in lines if _is_same(line, other)), line)
                lines.setdefault(same, {}).setdefault(remark, []).append(study.name)
    for (name, place), owners in lines.items():
        axes.axvline(place, color="0.6", lw=0.8, ls=":", zorder=1)
        remarks = "; ".join(remark + _tell_owners(names, len(studies)) for remark, names in owners.items())
        text = style.legend_text(f"{name}, {remarks}")
        look: dict[str, Any] = {"rotation": 90, "ha": "right", "va": "top", "size": 8, "color": "0.4"}
        axes.text(place, 0.98, text, transform=axes.get_xaxis_transform(), **look)


def _costs_to_mark(study: StudyReport, cost: Objective, why: str) -> dict[str, tuple[float | None, str]]:
    """Costs of the dense network and of reference networks beyond a limit, by name, each with a remark."""
    networks = {network.name: network for network in study.networks}
    marks = {
        name: (network.cost(cost.name), why)
        for name, network in networks.items()
        if network.is_reference and network.trial.status == "limit"
    }
    dense = study.study.baseline
    if dense is not None and dense not in marks:
        of_space = getattr(study.study.dense_cost, cost.name, None)
        marks[dense] = (networks[dense].cost(cost.name) if dense in networks else of_space, "the dense network")
    return marks


def _is_same(line: tuple[str, float], other: tuple[str, float]) -> bool:
    """Whether two names at a cost are the same, and so are the costs."""
    return line[0] == other[0] and math.isclose(line[1], other[1], rel_tol=SAME_COST)


def _tell_owners(names: Sequence[str], number: int) -> str:
    """Names of studies in brackets, if they are not all; of many, their number."""
    if len(names) == number:
        return ""
    return f" ({len(names)} of {number} studies)" if len(names) > 2 else f" ({', '.join(names)})"


def _draw_faintly(
    axes: Axes, networks: Sequence[Network], shown: Sequence[tuple[float, float]], cost: Objective, label: str
) -> None:
    """Draw networks in grey, and set the range of accuracies to that of the networks that the figure shows.

    Args:
        axes: Axes to draw on.
        networks: Networks to draw, as far as their accuracies are in the range.
        shown: The ends of the error bars of the networks that the figure shows. If they are few, the range is also
            that of the grey networks.
        cost: Cost on the other axis.
        label: What the grey networks are.
    """
    accuracies = [network.trial.accuracy or 0.0 for network in networks]
    bottom = 0.0
    if shown:
        lows, highs = zip(*shown, strict=True)
        low = 100 * min([*lows, *accuracies] if len(shown) < FEWEST else lows)
        high = 100 * max([*highs, *accuracies])
        margin = 0.12 * (high - low) + 0.3
        bottom = low - margin
        axes.set_ylim(bottom, high + margin)
    seen = [
        ((network.cost(cost.name) or 0.0) / cost.unit, 100 * accuracy)
        for network, accuracy in zip(networks, accuracies, strict=True)
        if 100 * accuracy >= bottom
    ]
    if below := len(networks) - len(seen):
        note = f"Not shown: {below} of {len(networks)} networks {label}, whose accuracies are lower."
        style.add_footer(style.figure_of(axes), [note])
    if seen:
        x, y = zip(*seen, strict=True)
        axes.scatter(x, y, s=12, color="0.8", label=label, zorder=1)


def _draw_networks(
    axes: Axes, groups: Sequence[_Group], labels: tuple[str, str], colours: Normalize | None = None
) -> None:
    """Draw networks, rings around the front, staircases, a legend and names of reference networks.

    Args:
        axes: Axes to draw on.
        groups: Networks by study.
        labels: Legend labels of the networks found and of the rings.
        colours: Colour scale of the second cost, for which marks are larger; None if it is not shown.
    """
    several = len(groups) > 1
    found, front = labels
    scale = 1.0 if colours is None else 1.6
    for marker, own_colour, label in (("o", "tab:blue", found), ("D", "tab:red", "reference")):
        place: dict[str, Any] = {"marker": marker, "s": scale * MARKERS[marker], "zorder": LAYERS[marker]}
        rings: list[style.Position] = []
        for _, colour, dots in groups:
            some = [dot for dot in dots if (dot.reference_name is not None) == (marker == "D")]
            if not some:
                continue
            x, y = zip(*(dot.position for dot in some), strict=True)
            look: dict[str, Any] = {"color": colour or own_colour}
            if colours is not None:
                look = {"c": [dot.second_cost for dot in some], "norm": colours, "edgecolors": own_colour}
            axes.scatter(x, y, **place, **look, linewidths=0.8, label=None if several else label)
            if any(dot.deviation is not None for dot in some):
                bars = [math.nan if dot.deviation is None else dot.deviation for dot in some]
                axes.errorbar(x, y, bars, fmt="none", color=colour or own_colour, capsize=3)
            rings += [dot.position for dot in some if dot.on_front]
        if rings:
            x, y = zip(*rings, strict=True)
            if colours is not None:  # around the mark: on a dark one, a ring could not be seen
                place["s"] *= 2.2
            axes.scatter(x, y, **place, facecolors="none", edgecolors="0.15", linewidths=1.2, label=front)
            front = ""  # one entry in the legend
    every = [dot for _, _, dots in groups for dot in dots]
    named = [(name, dot.position) for dot in every if (name := dot.reference_name or dot.label) is not None]
    steps = [find_staircase(dot.position for dot in dots) for _, _, dots in groups]
    if colours is None:  # else two costs are shown, and there is no staircase
        for (name, colour, _), corners in zip(groups, steps, strict=True):
            if corners and (several or len(corners) > 1):
                look = {"color": colour or "0.15", "lw": 1.2, "zorder": 2}
                label = style.legend_text(name) if several else BEST
                axes.step(*zip(*corners, strict=True), where="post", **look, label=label)
    if several and any(dot.reference_name is not None for dot in every):
        axes.plot([], [], "D", color="0.4", label="reference")
    if several and any(len(corners) > 1 for corners in steps):
        axes.plot([], [], color="0.5", lw=1.2, label=BEST)
    if not several:
        axes.set_title(style.wrap_text(groups[0][0], FRONT_SIZE[0] - 1, 12))
    axes.set_ylim(top=min(axes.get_ylim()[1], 100.3))  # an error bar may go beyond 100 %
    axes.set_xscale("log")
    style.label_ticks(axes.xaxis)
    axes.grid(True, which="both", alpha=0.25)
    style.settle_layout(style.figure_of(axes))
    add_legend(axes, below=True)
    barred = [dot.position for dot in every if dot.deviation is not None and (dot.reference_name or dot.label) is None]
    name_positions(axes, named, barred)  # a name beside an error bar would be read as its name


def _varied_layers(networks: Sequence[Network], dense: Mapping[str, tuple[int, str]]) -> list[str]:
    """Names of the layers that can have mixed shapes, or whose widths differ between networks or from the dense one.

    In `widths`, layers that can have mixed shapes also have the width 0.
    """
    orders = [[layer.name for layer in network.layers if layer.groups] for network in networks]
    widths = {name: {width} for name, (width, _) in dense.items()}
    for layer in (layer for network in networks for layer in network.layers):
        widths.setdefault(layer.name, set()).update([0, layer.num_filters] if layer.is_varied else [layer.num_filters])
    found = [name for name in merge_orders(orders) if len(widths[name]) > 1]
    return found if len(found) <= MAX_ROWS else [name for name in found if 0 in widths[name]]


def _draw_layer(panel: Axes, networks: Sequence[Network], name: str, dense: int | None) -> None:
    """Draw the filters of the layer with a given name, by shape, one bar for each network; dotted: the dense width."""
    layers = [next((layer for layer in network.layers if layer.name == name), None) for network in networks]
    floor = [0] * len(networks)
    for kind in SHADES:
        numbers = [0 if layer is None else layer.counts().get(kind, 0) for layer in layers]
        if not any(numbers):
            continue  # bars without height would take as long to draw as others
        panel.bar(range(len(networks)), numbers, 0.9, floor, color=SHADES[kind])
        floor = [low + number for low, number in zip(floor, numbers, strict=True)]
    most = max(*floor, dense or 0)
    joined = [i for i, layer in enumerate(layers) if layer is not None and layer.join is not None]
    panel.plot(joined, [floor[i] + 0.12 * most for i in joined], "o", color="k", ms=3)
    if dense is not None:
        panel.axhline(dense, color="0.5", lw=0.8, ls=":")
    panel.set_ylim(0, 1.25 * most)
    panel.set_yticks([0, most if dense is None else dense])
    panel.tick_params(labelsize=7)
    panel.set_ylabel(style.escape_text(name), rotation=0, ha="right", va="center", fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
