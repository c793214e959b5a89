"""Figures of studies: formats, contents, and errors if there is nothing to show."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib.style
import numpy as np
import optuna
import pytest
from filled_studies import fill_study
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.markers import MarkerStyle
from matplotlib.text import Annotation
from optuna.trial import create_trial
from PIL import Image
from retrainings import some_finals
from small_studies import SPACE, cost, make_finals, make_limited_search, make_search

from lrnas.errors import LrnasError
from lrnas.reporting.figures.report_plots import (
    plot_allocation,
    plot_curves,
    plot_front,
    plot_history,
    plot_importances,
    plot_tested,
)
from lrnas.reporting.figures.style import Files, figure_of, save_figure
from lrnas.reporting.headline import best_few
from lrnas.reporting.report import PALETTE, Report, make_report
from lrnas.study.study import Study, Trial, _read_trial


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Study]:
    folder = tmp_path_factory.mktemp("studies")
    where = f"journal:{folder / 'journal'}"
    first = fill_study(folder, 20, name="net $a_$ b <script>", storage=where, stopped=0.0)
    return [first, fill_study(folder, 8, name="_two", storage=where, seed=1)]


@pytest.fixture(scope="module")
def report(records: list[Study]) -> Report:
    return make_report(records, retrained=[some_finals(records[0])])


def all_drawn_by(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], None]) -> list[Axes]:
    """All axes of the figure that a function writes."""
    drawn: list[Axes] = []
    monkeypatch.setattr(
        "lrnas.reporting.figures.style.save_figure",
        lambda figure, path: drawn.extend(figure.axes) or save_figure(figure, path),
    )
    draw()
    return drawn


def drawn_by(monkeypatch: pytest.MonkeyPatch, draw: Callable[[], None]) -> Axes:
    """The only axes of the figure that a function writes."""
    (axes,) = all_drawn_by(monkeypatch, draw)
    return axes


def legend_of(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def rings_of(axes: Axes) -> list[PathCollection]:
    """Marks that are not filled."""
    return [one for one in axes.collections if isinstance(one, PathCollection) and not len(one.get_facecolor())]


def with_trials(record: Study, change: Callable[[Trial], Trial | None]) -> Study:
    """The same study with other results; None leaves a trial out."""
    found = [(row, change(_read_trial(record, row))) for row in record.optuna_study.get_trials(deepcopy=False)]
    study = optuna.create_study(directions=record.optuna_study.directions)
    for row, trial in ((row, trial) for row, trial in found if trial is not None):
        facts = {"status": trial.status, "accuracy": trial.accuracy, "macs": trial.macs, "point": trial.point}
        study.add_trial(
            create_trial(
                state=row.state,
                values=None if row.values is None else [trial.accuracy, trial.macs],
                user_attrs=row.user_attrs | facts,
            )
        )
    return Study(record.name, study, record.objectives, record.manifest)


def test_reference_networks_beyond_a_limit_are_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = make_limited_search()
    beyond = {name: cost(network)["macs"] for name, network in SPACE.points.items()}
    assert min(beyond.values()) > 3_000_000
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([search]), tmp_path / "front.svg"))
    marks = {
        text.get_text().partition(",")[0]: text.get_position()[0] for text in axes.texts if "limit" in text.get_text()
    }
    assert marks == {name: pytest.approx(macs / 1e6) for name, macs in beyond.items()}
    assert axes.get_xlim()[1] > max(marks.values())
    tested = make_report([search], retrained=[some_finals(search)])
    axes = drawn_by(monkeypatch, lambda: plot_tested(tested, tmp_path / "tested.svg"))
    remarks = {text.get_text() for text in axes.texts if not isinstance(text, Annotation)}
    assert remarks == {f"{name}, not trained again" for name in beyond}
    # one study that was retrained twice, beside another one
    both = make_report([search, replace(make_search(), name="b")], retrained=[some_finals(search)] * 2)
    both = replace(both, tested=(*both.tested, replace(both.tested[0], retrained=some_finals(both.studies[1].study))))
    axes = drawn_by(monkeypatch, lambda: plot_tested(both, tmp_path / "tested.svg"))
    remarks = {text.get_text() for text in axes.texts if text.get_rotation()}
    assert remarks == {"nin, not trained again (s); the dense network (b)", "nin-c3, not trained again (s)"}


def test_lines_at_costs_say_to_which_studies_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of the same name has other costs for other images."""
    limited = replace(make_limited_search(), name="a")
    same = replace(make_search(), name="b")
    larger = with_trials(same, lambda trial: replace(trial, macs=4 * trial.macs))
    larger = replace(larger, name="c", manifest=larger.manifest | {"image_size": 16})
    macs = {name: cost(network)["macs"] / 1e6 for name, network in SPACE.points.items()}
    assert larger.dense_macs is not None and larger.dense_macs > 3e6 * macs["nin"]

    def lines_of(*studies: Study) -> dict[str, float]:
        axes = drawn_by(monkeypatch, lambda: plot_front(make_report(studies), tmp_path / "front.svg"))
        return {text.get_text(): text.get_position()[0] for text in axes.texts if not isinstance(text, Annotation)}

    alone = {f"{name}, beyond the limit": pytest.approx(place) for name, place in macs.items()}
    assert lines_of(limited) == alone == lines_of(limited, replace(limited, name="b"))
    assert lines_of(limited, same) == {  # nin-c3-lr has a mark at this cost
        "nin, beyond the limit (a); the dense network (b)": pytest.approx(macs["nin"]),
        "nin-c3, beyond the limit (a)": pytest.approx(macs["nin-c3"]),
    }
    assert lines_of(limited, larger) == {
        **{f"{name}, beyond the limit (a)": pytest.approx(place) for name, place in macs.items()},
        "nin, the dense network (c)": pytest.approx(larger.dense_macs / 1e6),
    }
    many = [replace(larger, name=str(i)) for i in range(3)]
    assert "nin, the dense network (3 of 4 studies)" in lines_of(limited, *many)


def test_axes_of_several_studies_stop_just_above_100_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = [make_search(), replace(make_search(), name="other")]
    for search in searches:
        make_finals(search, {"dense-x0.25": (0.9, 1.0), "dense-x0.5": (0.95, 0.96)})
    for studies in (searches[:1], searches):
        axes = drawn_by(monkeypatch, lambda studies=studies: plot_front(make_report(studies), tmp_path / "front.svg"))
        assert axes.get_ylim()[1] == pytest.approx(100.3)


@pytest.mark.parametrize("number", [2, 3])
def test_short_trainings_are_all_shown_beside_one_or_two_finals(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the figure would be nearly empty."""
    search = make_search()  # with accuracies from 0.7 to 0.9
    finals = {"lr-x0.25": (0.99, 0.98), "dense-x0.25": (0.99, 0.995), "nin-c3-lr": (0.99, 0.999)}
    make_finals(search, dict(list(finals.items())[:number]))
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([search]), tmp_path / "front.svg"))
    assert (axes.get_ylim()[0] < 70) == ("after short training" in legend_of(axes)) == (number == 2)
    assert ("Not shown" in (tmp_path / "front.svg").read_text(encoding="utf-8")) == (number == 3)


@pytest.mark.parametrize("axis", ["macs", "params"])
def test_the_cost_of_the_dense_network_is_marked(axis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the search has not trained it, at either level."""
    short, full = make_search(), make_search()
    make_finals(full, {"nin-c3-lr": (0.95, 0.96)})
    for search in (short, full):
        report = make_report([search], axis=axis)
        axes, *_ = all_drawn_by(monkeypatch, lambda report=report: plot_front(report, tmp_path / "front.svg"))
        (mark,) = (text for text in axes.texts if "the dense network" in text.get_text())
        assert mark.get_text() == "nin, the dense network"
        assert mark.get_position()[0] == pytest.approx(cost(SPACE.points["nin"])[axis] / report.axis.unit)


def test_finals_and_short_trainings_are_never_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search = make_search()
    make_finals(search, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.91,), "dense-x0.5": (0.88, 0.89)})
    report = make_report([search])
    axes = drawn_by(monkeypatch, lambda: plot_front(report, tmp_path / "front.png"))
    assert {"after short training", "found, trained in full", "front by means"} <= set(legend_of(axes))
    (steps,) = (line for line in axes.lines if line.get_drawstyle() == "steps-post")
    assert steps.get_ydata().tolist() == [91.0, 95.5]  # the short trainings have at most 90 %
    assert sum(len(ring.get_offsets()) for ring in rings_of(axes)) == 2
    assert "mean ± sd over seeds" in axes.get_ylabel()
    bars = [one for one in axes.collections if isinstance(one, LineCollection)]
    assert sum(len(bar) > 1 for one in bars for bar in one.get_segments()) == 2
    (shown,) = (one for one in axes.collections if one.get_label() == "after short training")
    assert shown.get_offsets()[:, 1].tolist() == [90.0]  # the others are below the finals
    other = make_search()
    mixed = make_report([search, other])
    axes = drawn_by(monkeypatch, lambda: plot_front(mixed, tmp_path / "both.png"))
    assert max(max(line.get_ydata()) for line in axes.lines if len(line.get_ydata())) == 90.0  # short, both


@pytest.mark.parametrize("most", [2, 8])
def test_a_few_networks_with_finals_all_have_names(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a network that is not on the front would seem to have the name of its neighbour."""
    search, other = make_search(), replace(make_search(), name="other")
    for each in (search, other):
        make_finals(each, {"nin-c3-lr": (0.95, 0.96), "lr-x0.25": (0.91,), "dense-x0.5": (0.88, 0.89)})
    monkeypatch.setattr("lrnas.reporting.figures.report_plots.MAX_NAMED", most)
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([search]), tmp_path / "front.svg"))
    names = {text.get_text() for text in axes.texts if isinstance(text, Annotation)}
    assert names == {"nin-c3-lr", "lr-x0.25"} | ({"dense-x0.5"} if most == 8 else set())
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([search, other]), tmp_path / "fronts.svg"))
    notes = [text.get_text() for text in axes.texts if isinstance(text, Annotation)]
    assert sorted(notes) == sorted(2 * (["nin-c3-lr", "lr-x0.25", "dense-x0.5"] if most == 8 else ["nin-c3-lr"]))


@pytest.mark.parametrize("reach", ["all", "some", "none"])
def test_the_legend_lists_only_what_is_visible(
    reach: str, records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped networks far below the others are outside the axes; a note gives their number."""
    record = records[1]
    stopped = [trial.number for trial in record.trials if trial.status == "stopped"]
    best = max(trial.accuracy or 0 for trial in record.trials if trial.status == "completed")
    near = {"all": stopped, "some": stopped[:1], "none": []}[reach]

    def change(trial: Trial) -> Trial:
        return replace(trial, accuracy=best if trial.number in near else 0.1) if trial.number in stopped else trial

    changed = with_trials(record, change)
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([changed]), tmp_path / "front.svg"))
    assert ("stopped early" in legend_of(axes)) == bool(near)
    assert axes.get_ylim()[0] > 50
    text = (tmp_path / "front.svg").read_text(encoding="utf-8")
    below = len(stopped) - len(near)
    assert len(stopped) > 1 and (f">Not shown: {below} of {len(stopped)} networks stopped early" in text) == (below > 0)
    assert ("Not shown" in text) == (below > 0)


def test_the_legend_does_not_list_missing_networks(
    records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = records[1]
    file = tmp_path / "front.svg"
    early = with_trials(record, lambda trial: None if trial.status == "completed" else trial)
    assert legend_of(drawn_by(monkeypatch, lambda: plot_front(make_report([early]), file))) == ["stopped early"]
    unnamed = with_trials(record, lambda trial: replace(trial, point=None) if trial.status == "completed" else None)
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([unnamed]), file))
    assert legend_of(axes) == ["9 epochs of training", "on the front", "best for the cost shown"]
    paper = with_trials(record, lambda trial: trial if trial.point in record.manifest["space"]["points"] else None)
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([paper]), file))
    assert legend_of(axes) == ["reference", "on the front", "best for the cost shown"]


def test_the_legend_does_not_list_missing_curves(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = report.studies[0]
    assert all(network.is_full for network in study.networks)
    axes = drawn_by(monkeypatch, lambda: plot_curves(replace(study, rungs=()), tmp_path / "curves.svg"))
    assert legend_of(axes) == ["completed", "on the front", "reference"]


def test_trainings_of_one_epoch_have_one_tick(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = report.studies[0]
    brief = [replace(each, trial=replace(each.trial, curve=each.trial.curve[:1])) for each in study.networks]
    shown = replace(study, networks=tuple(brief), rungs=())
    axes = drawn_by(monkeypatch, lambda: plot_curves(shown, tmp_path / "curves.svg"))
    left, right = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if left <= tick <= right] == [1]


def test_curves_after_finals_are_those_of_the_short_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, full = make_search(), make_search()
    make_finals(full, {"nin-c3-lr": (0.95, 0.96)})
    for search, label in ((short, "epoch"), (full, "epoch of the short training")):
        (study,) = make_report([search]).studies
        axes = drawn_by(monkeypatch, lambda study=study: plot_curves(study, tmp_path / "curves.svg"))
        assert axes.get_xlabel() == label


def test_thousands_of_curves_are_few_lines(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = report.studies[0]
    some = [network for network in study.full if not network.is_reference and not network.trial.on_front]
    many = replace(study, networks=tuple(some[i % len(some)] for i in range(1050)))
    axes = drawn_by(monkeypatch, lambda: plot_curves(many, tmp_path / "curves.svg"))
    (lines,) = axes.collections
    assert isinstance(lines, LineCollection) and len(lines.get_paths()) == 11
    drawn = np.concatenate([np.asarray(path.vertices) for path in lines.get_paths()])
    assert np.isnan(drawn[:, 0]).sum() == 1050  # a gap after every curve
    expected = [value for network in many.networks for value in network.trial.curve]
    assert drawn[~np.isnan(drawn[:, 0])][:, 1] == pytest.approx(100 * np.array(expected))


def test_layers_are_drawn_with_their_widths(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = report.studies[0]
    axes = all_drawn_by(monkeypatch, lambda: plot_allocation(study, tmp_path / "layers.svg", report.axis))
    panels = {panel.get_ylabel(): panel for panel in axes if panel.axison}
    assert {"conv1", "cccp1", "conv3"} <= set(panels)  # 1×1 layers have widths too
    front = sorted(study.front, key=lambda network: network.trial.macs)
    for name in ("conv1", "cccp1"):
        layers = [next(layer for layer in network.layers if layer.name == name) for network in front]
        tops = [0.0] * len(front)
        for bar in panels[name].patches:
            tops[round(bar.get_x() + 0.45)] += bar.get_height()
        assert tops == [layer.num_filters for layer in layers]
    assert len(panels["cccp1"].patches) == len(front)  # no bars for shapes that the layer does not have
    (dense,) = (line for line in panels["conv1"].lines if line.get_linestyle() == ":")
    assert set(dense.get_ydata()) == {192}


def test_names_of_layers_are_aligned(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = report.studies[0]
    axes = all_drawn_by(monkeypatch, lambda: plot_allocation(study, tmp_path / "layers.svg", report.axis))
    panels = [panel for panel in axes if panel.get_ylabel()]
    assert len({len(str(panel.get_yticks()[-1])) for panel in panels}) > 1  # ticks of different widths
    ends = [panel.yaxis.label.get_window_extent().x1 for panel in panels]
    assert ends == pytest.approx([ends[0]] * len(ends))


def test_layers_that_the_dense_network_does_not_have_show_the_width_in_their_own_backbone(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = report.studies[0]

    def draw(*names: str) -> tuple[dict[str, set[int]], list[str]]:
        """The dotted lines of every layer, and the legend, if the front is these networks."""
        some = [
            replace(each, trial=replace(each.trial, on_front=True)) for each in study.networks if each.name in names
        ]
        shown = replace(study, networks=tuple(some))
        axes = all_drawn_by(monkeypatch, lambda: plot_allocation(shown, tmp_path / "layers.svg", report.axis))
        (legend,) = figure_of(axes[0]).legends
        lines = {
            panel.get_ylabel(): {
                int(y) for line in panel.lines if line.get_linestyle() == ":" for y in line.get_ydata()
            }
            for panel in axes
            if panel.axison
        }
        return lines, [text.get_text() for text in legend.get_texts()]

    lines, legend = draw("nin", "nin-c3-lr")
    assert lines["conv2"] == lines["conv2_1"] == lines["conv2_2"] == {192}
    assert legend == ["k×1", "1×k", "k×k", "width in nin or nin_3x3"]  # no join, because no network has one
    lines, legend = draw("nin")
    assert "conv2_1" not in lines and legend == ["k×k", "width in nin"]


def test_the_best_few_are_named(records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = make_report(records[:1])
    axes = drawn_by(monkeypatch, lambda: plot_front(report, tmp_path / "front.svg"))
    (study,) = report.studies
    few = {network.name for network in study.networks if network.trial.number in best_few(study, "macs")}
    assert len(few) > 2 and few <= {text.get_text() for text in axes.texts}


@pytest.mark.parametrize("axis", ["macs", "params"])
def test_the_front_is_ringed(axis: str, records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings mark the front of the objectives, whichever cost is shown."""
    record = records[0]
    axes, *bar = all_drawn_by(monkeypatch, lambda: plot_front(make_report([record], axis=axis), tmp_path / "front.svg"))
    assert len(bar) == (axis == "params")
    front = sorted((getattr(trial, axis) / 1e6, 100 * trial.accuracy) for trial in record.front())
    ringed = sorted(tuple(place) for rings in rings_of(axes) for place in rings.get_offsets())
    assert len(front) > 2 and ringed == [pytest.approx(place) for place in front]
    assert legend_of(axes).count("on the front") == 1


@pytest.mark.parametrize("objectives", ["accuracy,latency", "accuracy,macs,latency", "accuracy,params,macs"])
def test_fronts_of_other_objectives(objectives: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second cost is shown by colour, with a bar beside the figure."""
    report = make_report([fill_study(tmp_path, 6, objectives=objectives)])
    axes, *bar = all_drawn_by(monkeypatch, lambda: plot_front(report, tmp_path / "front.png"))
    costs = objectives.split(",")[1:]
    assert len(bar) == len(costs) - 1 and axes.get_xlabel() == report.axis.label
    assert (tmp_path / "front.png").stat().st_size > 10_000


@pytest.mark.parametrize("is_known", [True, False])
def test_latencies_of_retrained_networks_are_shown_if_all_are_known(
    is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = fill_study(tmp_path, 12, objectives="accuracy,latency")
    retrained = some_finals(record)
    times = [0.5 + i for i in range(len(retrained.finals))] if is_known else [None] * len(retrained.finals)
    finals = [replace(one, latency=time) for one, time in zip(retrained.finals, times, strict=True)]
    report = make_report([record], retrained=[replace(retrained, finals=tuple(finals))])
    axes = drawn_by(monkeypatch, lambda: plot_tested(report, tmp_path / "tested.svg"))
    assert axes.get_xlabel() == ("latency, ms" if is_known else "multiply-accumulates, millions")


def test_the_fronts_of_several_studies_are_ringed(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = drawn_by(monkeypatch, lambda: plot_front(report, tmp_path / "fronts.svg"))
    front = [network.trial.macs / 1e6 for study in report.studies for network in study.front]
    assert sorted(x for rings in rings_of(axes) for x, _ in rings.get_offsets()) == pytest.approx(sorted(front))


def test_a_legend_hides_nothing_if_the_dense_network_widens_the_axis(
    records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(trial: Trial) -> Trial | None:  # two networks far below the cost of the dense one
        places = {"nin-c3": (5_000_000, 0.8), "nin-c3-lr": (4_000_000, 0.9)}
        cost, accuracy = places.get(trial.point or "", (0, 0.0))
        return replace(trial, macs=cost, accuracy=accuracy) if cost else None

    file = tmp_path / "front.svg"
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([with_trials(records[0], change)]), file))
    box = axes.get_legend().get_window_extent()
    places = axes.transData.transform([(5, 80), (4, 90)])
    assert not any(box.contains(*place) for place in places)
    (text,) = [one for one in axes.texts if "the dense network" in one.get_text()]
    assert not box.overlaps(text.get_window_extent())


def test_figures_have_their_own_style(records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report(records[:1]), tmp_path / "plain.png"))
    with matplotlib.style.context("ggplot"):  # as Optuna's figures set it
        plot_front(make_report(records[:1]), tmp_path / "after.png")
        shown = figure_of(axes)._repr_png_()  # type: ignore[attr-defined]
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "after.png").read_bytes()
    assert shown == figure_of(axes)._repr_png_()  # type: ignore[attr-defined]


def test_the_line_of_a_front_of_one_network_ends_at_the_highest_cost(
    records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = sorted((trial.macs, trial.number) for trial in records[0].trials)
    (least, first), (most, _) = full[0], full[-1]

    def change(trial: Trial) -> Trial:
        return replace(trial, accuracy=0.9 if trial.number == first else 0.8)

    file = tmp_path / "front.svg"
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([with_trials(records[0], change)]), file))
    (line,) = axes.lines
    assert line.get_xdata() == pytest.approx([least / 1e6, most / 1e6]) and list(line.get_ydata()) == [90, 90]
    alone = with_trials(records[0], lambda trial: change(trial) if trial.number == first else None)
    axes = drawn_by(monkeypatch, lambda: plot_front(make_report([alone]), file))  # one network has no line at all
    (mark,) = axes.lines  # the cost of the dense network
    assert mark.get_linestyle() == ":" and "best for the cost shown" not in legend_of(axes)


@pytest.mark.slow
def test_figures_have_names_and_labels(report: Report, records: list[Study], tmp_path: Path) -> None:
    study = report.studies[0]
    texts = {}
    for name, draw in {
        "fronts": lambda file: plot_front(report, file),
        "history": lambda file: plot_history(report.studies, file),
        "curves": lambda file: plot_curves(study, file),
        "allocation": lambda file: plot_allocation(study, file, report.axis),
        "importances": lambda file: plot_importances(study, file),
        "tested": lambda file: plot_tested(report, file),
    }.items():
        draw(tmp_path / f"{name}.svg")
        texts[name] = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    plot_front(make_report(records[:1], axis="params"), tmp_path / "one.svg")
    texts["one"] = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert all("net $a_$ b &lt;script&gt;" in text for text in texts.values())
    assert all("> _two</text>" in texts[name] for name in ("fronts", "history")) and "nin-c3-lr" in texts["fronts"]
    assert "hours of training" in texts["history"] and "rungs" in texts["curves"]
    assert all(name in texts["allocation"] for name in ("conv1", "conv3", "k×k", "join"))
    assert "accuracy" in texts["importances"] and "conv1.width" in texts["importances"]
    assert "20 networks after 9 epochs of training,<" in texts["importances"]  # continued on a second line
    assert "mean ± sd over seeds" in texts["tested"]
    assert "parameters, millions" in texts["one"]


def test_every_retrained_network_has_its_own_mark_and_name(
    records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two retrainings of the same networks; one seed has no error bar, and dollar signs in names are plain text."""
    first = some_finals(records[0], point="$x$ and $y$")
    lower = [replace(final, accuracies=tuple(value / 2 for value in final.accuracies)) for final in first.finals]
    two = make_report(records, retrained=[first, replace(first, study="_two", finals=tuple(lower))])
    axes = drawn_by(monkeypatch, lambda: plot_tested(two, tmp_path / "tested.svg"))
    tested = [final for final in first.finals if final.accuracies]
    places = [(final.macs / 1e6, share * final.mean) for share in (100, 50) for final in tested]
    notes = [text for text in axes.texts if isinstance(text, Annotation)]
    assert [tuple(note.xy) for note in sorted(notes, key=lambda note: (-note.xy[1] // 60, note.xy[0]))] == [
        pytest.approx(place) for place in places
    ]
    bars = [bar for container in axes.containers for bar in container.lines[2][0].get_segments()]
    assert [len(bar) for bar in bars] == [2, 0, 2, 2, 0, 2]
    assert len([line for line in axes.lines if line.get_drawstyle() == "steps-post"]) == 2
    text = (tmp_path / "tested.svg").read_text(encoding="utf-8")
    assert text.count("$x$ and $y$") == len(places) and "two@paper<" in text


def test_the_front_of_two_costs_differs_from_the_line_of_one_cost(
    records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network with fewer parameters and more multiply-accumulates is on the front, but not the best for MACs."""
    first = some_finals(records[0]).finals[0]
    first = replace(first, costs=("macs", "params"))
    small = replace(first, identity="small", macs=2 * first.macs, params=first.params // 2, accuracies=(0.8,) * 3)
    beaten = replace(small, identity="beaten", macs=3 * first.macs, params=first.params)
    retrained = replace(some_finals(records[0]), finals=(first, small, beaten))
    for axis, best in (("macs", [first, beaten]), ("params", [small, first])):  # the line continues to the highest cost
        report = make_report(records[:1], retrained=[retrained], axis=axis)
        axes = drawn_by(monkeypatch, lambda report=report: plot_tested(report, tmp_path / "tested.svg"))
        shown = {text.get_text() for text in axes.get_legend().get_texts()}
        assert shown == {"best for the cost shown", "front by means", "reference"}
        (line,) = (line for line in axes.lines if line.get_drawstyle() == "steps-post")
        assert list(line.get_xdata()) == pytest.approx([getattr(final, axis) / 1e6 for final in best])
        (rings,) = (one for one in axes.collections if one.get_label() == "front by means")
        assert [x for x, _ in rings.get_offsets()] == pytest.approx(
            [getattr(final, axis) / 1e6 for final in (first, small)]
        )


def test_a_study_has_one_colour_in_all_figures(
    report: Report, records: list[Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colours do not depend on how many other studies there are or what these have to show."""
    empty = replace(report.studies[0], name="empty", networks=(), history=())
    names = [f"s{i}" for i in range(12)]
    some = [empty, *(replace(report.studies[1], name=name) for name in names)]
    tested = [replace(report.tested[0], retrained=replace(some_finals(records[0]), study=name)) for name in names[1:]]
    many = replace(report, studies=tuple(some), tested=tuple(tested))
    file = tmp_path / "figure.svg"
    fronts = drawn_by(monkeypatch, lambda: plot_front(many, file))
    finals = drawn_by(monkeypatch, lambda: plot_tested(many, file))
    history, _ = all_drawn_by(monkeypatch, lambda: plot_history(many.studies, file))
    colours = [
        [line.get_color() for line in axes.lines if line.get_drawstyle() == "steps-post"]
        for axes in (fronts, history, finals)
    ]
    assert colours == [list(PALETTE[1:13]), list(PALETTE[1:13]), list(PALETTE[2:13])]
    assert len(set(PALETTE)) == 20
    alone = drawn_by(monkeypatch, lambda: plot_tested(replace(many, tested=many.tested[:1]), file))
    assert {line.get_color() for line in alone.lines if line.get_linestyle() != ":"} == {PALETTE[2]}


def test_reference_networks_look_different_in_every_study(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axes = drawn_by(monkeypatch, lambda: plot_front(report, tmp_path / "fronts.svg"))
    full = [network for study in report.studies for network in study.full]
    papers = sorted((network.name, network.trial.macs / 1e6) for network in full if network.is_reference)
    assert len(papers) == 6 and sorted((note.get_text(), note.xy[0]) for note in axes.texts) == [
        (name, pytest.approx(macs)) for name, macs in papers
    ]
    diamond = MarkerStyle("D").get_path().transformed(MarkerStyle("D").get_transform()).vertices
    points: dict[bool, list[float]] = {True: [], False: []}
    for collection in (one for one in axes.collections if one not in rings_of(axes)):
        (path,) = collection.get_paths()
        points[np.array_equal(path.vertices, diamond)] += [x for x, _ in collection.get_offsets()]
    others = [network.trial.macs / 1e6 for network in full if not network.is_reference]
    assert sorted(points[True]) == pytest.approx(sorted(macs for _, macs in papers))
    assert sorted(points[False]) == pytest.approx(sorted(others))
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"reference", "on the front", "best for the cost shown"} < set(shown) and len(shown) == 5


def test_parameters_that_matter_for_any_objective_are_shown(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = report.studies[0]
    values = study.importances
    wanted = sorted(values["accuracy"], key=lambda name: -max(each[name] for each in values.values()))
    first = sorted(wanted, key=lambda name: -values["accuracy"][name])
    assert wanted[:3] != first[:3]  # not those of the first objective
    for number, note in ((3, f"training, 3 of {len(wanted)} parameters"), (len(wanted), "9 epochs of training")):
        monkeypatch.setattr("lrnas.reporting.figures.report_plots.MAX_PARAMETERS", number)
        axes = drawn_by(monkeypatch, lambda: plot_importances(study, tmp_path / "importances.svg"))
        assert [label.get_text() for label in axes.get_yticklabels()] == wanted[:number][::-1]
        assert axes.get_title().replace("\n", " ").endswith(note)
        bars = {bar.get_width() for bar in axes.patches}
        assert bars == {each[name] for each in values.values() for name in wanted[:number]}


def test_figures_can_be_png_svg_or_pdf(report: Report, tmp_path: Path) -> None:
    plot_history(report.studies, tmp_path / "history.pdf")
    assert (tmp_path / "history.pdf").read_bytes().startswith(b"%PDF")
    plot_history(report.studies, tmp_path / "history.png")
    with Image.open(tmp_path / "history.png") as image:
        assert image.size == (1350, 600)
    with pytest.raises(LrnasError, match=r"must be png, svg, pdf; got '.*x\.gif'; choose one of these"):
        plot_history(report.studies, [tmp_path / "x.svg", tmp_path / "x.gif"])
    assert not (tmp_path / "x.svg").exists()


@pytest.mark.parametrize(
    "draw", [plot_front, lambda report, file: plot_front(replace(report, studies=report.studies[:1]), file)]
)
def test_figures_of_the_same_study_are_the_same_files(
    report: Report, tmp_path: Path, draw: Callable[[Report, Files], None]
) -> None:
    first, second = ([tmp_path / f"{number}.{form}" for form in ("png", "svg", "pdf")] for number in (1, 2))
    draw(report, first)
    for file in second:  # one after the other
        draw(report, file)
    assert [one.read_bytes() == other.read_bytes() for one, other in zip(first, second, strict=True)] == [True] * 3
    assert ">validation accuracy, %</text>" in first[1].read_text(encoding="utf-8")


def test_studies_with_nothing_to_show(tmp_path: Path) -> None:
    report = make_report([fill_study(tmp_path, 0, storage=f"journal:{tmp_path / 'journal'}")])
    file = tmp_path / "figure.png"
    for draw, message in (
        (lambda: plot_front(report, file), "no network is trained yet"),
        (lambda: plot_history(report.studies, file), "no network is trained yet"),
        (lambda: plot_curves(report.studies[0], file), "no training curve to show"),
        (lambda: plot_allocation(report.studies[0], file, report.axis), "no front to show"),
        (lambda: plot_importances(report.studies[0], file), "too few trained networks"),
    ):
        with pytest.raises(LrnasError, match=message):
            draw()
    assert not file.exists()
