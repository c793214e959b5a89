"""Studies, trials, networks, costs, spaces, conversions, estimates, times and exports as HTML, for notebooks.

`as_html` is called by the method `_repr_html_` of these objects. Texts and lines take the colour of the page, so that
they can be read on dark pages too.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING, Any

from lrnas._messages import duration, percent
from lrnas._quantities import magnitude
from lrnas.arch.architecture import Architecture
from lrnas.arch.cost import Cost
from lrnas.errors import LrnasError
from lrnas.models.plan import TIMM, native_input_size, native_num_classes, resolve_backbone
from lrnas.reporting.layer_view import SHADES, Layer, kind_of, lay_out
from lrnas.spaces.parameters import format_values
from lrnas.spaces.space import SearchSpace
from lrnas.study.levels import FULL, SHORT, is_open, pick_level, read_level, tell_left
from lrnas.study.manifest import RETRAINS, data_name
from lrnas.study.retrained import Final, final_front, front_marks, read_retrained
from lrnas.study.study import STATUSES, ImageShape, Study, Trial, Trials
from lrnas.study.verdicts import TEST, judge

if TYPE_CHECKING:
    from lrnas.exporting.export import Export
    from lrnas.models.convert import Conversion
    from lrnas.profiling.profile import Profile
    from lrnas.searching.estimate import Estimate
    from lrnas.searching.retrain import RetrainingPlan

MAX_ROWS = 60
"""Largest number of rows of a table."""
BAR = 260
"""Width of the bar of the widest layer, in pixels."""
SHARE = "share of dense MACs"
"""Name of the column with MACs relative to those of the dense network."""
ROW = 18
"""Height of a layer in a picture, in pixels."""


@singledispatch
def as_html(shown: Any) -> str:
    """An object as HTML."""
    return _BY_NAME[type(shown).__name__](shown)


def _conversion(shown: Conversion) -> str:
    errors = {path: f"{error:.3f}" for path, error in shown.errors.items()}
    replaced = [
        (path, str(mix), "replaced", *[errors.get(path, "")] * bool(errors)) for path, mix in shown.replaced.items()
    ]
    left = [(path, "", f"left: {reason}", *[""] * bool(errors)) for path, reason in shown.left.items()]
    return _title(shown.title) + _table(("layer", "new filters", "", *["error"] * bool(errors)), [*replaced, *left])


def _profile(profile: Profile) -> str:
    from lrnas.profiling.profile import time_cells, time_columns  # with torch

    trained = any(network.training is not None for network in profile.networks)
    layers = []
    for network in profile.networks:
        base = profile.baseline(network)
        others = {layer.name: layer for layer in base.layers}
        cells = [
            (layer.name, layer.filters, *time_cells(layer, others.get(layer.name), trained)) for layer in network.layers
        ]
        table = _table(("layer", "filters", *time_columns(trained)), cells)
        title = f"{network.name}, layer by layer, compared with {base.name}"
        layers.append(f"<details><summary>{escape(title)}</summary>{table}</details>" if table else "")
    head, *rows = profile.table()
    return (
        f"{_title(profile.title)}{_table(head, rows)}<p>{'<br>'.join(map(escape, profile.lines))}</p>{''.join(layers)}"
    )


def _estimate(estimate: Estimate) -> str:
    networks = []
    for network in estimate.networks:
        marks = ["reference"] * network.is_reference
        marks += [f"left out: {', '.join(network.beyond)}"] if network.beyond else []
        marks += ["in the study already"] * network.is_known
        networks.append(
            (network.name, f"{network.macs:,}", f"{network.share:.3f}", f"{network.params:,}", ", ".join(marks))
        )
    levels = []
    for level in estimate.levels:
        numbers = map(str, (level.networks, level.runs, level.epochs, level.batch_size))
        levels.append((level.name, *numbers, duration(level.training_seconds)))
    data = f"{estimate.data}: {estimate.train_images:,} training and {estimate.val_images:,} validation images"
    points = f"{estimate.num_parameters} parameters, {magnitude(estimate.num_points)} points"
    tables = [
        f"<p>{escape(f'Named networks of the space {estimate.space} ({points}), which come first')}</p>",
        _table(("network", "MACs", SHARE, "parameters", ""), networks),
        f"<p>{escape(data)}</p>",
        _table(("level", "networks", "runs", "epochs", "batch size", "sum of training times"), levels),
    ]
    lines = "<br>".join(map(escape, estimate.lines))
    return f"{_title(f'Estimate of {estimate.study}')}{''.join(tables)}<p>{lines}</p>"


def _retraining_plan(plan: RetrainingPlan) -> str:
    head, *rows = plan.table()
    unfinished = f"<p>{escape(plan.unfinished)}.</p>" if plan.unfinished else ""
    return f"{_title(plan.title)}{_table(head, rows)}<p>{escape(plan.time)}</p>{unfinished}"


def _export(export: Export) -> str:
    rows = [(str(file), f"{size:,} bytes") for file, size in export.files.items()]
    check = f"Checked with {export.check}"
    times = [f"{name}: {1000 * seconds:.3f} ms {export.conditions}" for name, seconds in export.seconds.items()]
    forms, fused = "", ""
    if (fusion := export.fusion) is not None:
        head, *layers = fusion.table()
        table = f"<p>{escape(export.forms_title)}</p>{_table(head, layers)}" if layers else ""
        forms, fused = f"{table}<p>{'<br>'.join(map(escape, fusion.lines))}</p>", ", fused"
    lines = "<br>".join(map(escape, [check, *times]))
    title = _title(f"{export.name} as {export.format}{fused}")
    code = "\n".join(filter(None, [export.load, export.also]))
    return f"{title}{_table(('file', 'size'), rows)}<p>{lines}</p>{forms}<pre>{escape(code)}</pre>"


_BY_NAME: dict[str, Callable[[Any], str]] = {
    "Conversion": _conversion,
    "Profile": _profile,
    "Estimate": _estimate,
    "Export": _export,
    "RetrainingPlan": _retraining_plan,
}
"""What shows objects whose modules load torch, by the names of their classes."""


@as_html.register
def _(study: Study) -> str:
    if RETRAINS in study.manifest:
        return _retraining(study)
    summary = study.summary()
    counts = (
        ", ".join(f"{number} {STATUSES.get(status, status)}" for status, number in summary.counts.items()) or "none yet"
    )
    goals = ", ".join(objective.name for objective in study.objectives)
    state = "; full trainings are not complete" if is_open(study) else ""
    state = "; interrupted, not complete: the same call continues it" if study.interrupted else state
    about = f"{study.manifest['source']} on {data_name(study.manifest)}, {goals}; trials: {counts}{state}"
    level = pick_level(study)
    trained_later = [] if level == SHORT else read_level(study, level)
    finals = final_front(trained_later)
    table = as_html(summary.front) if summary.front and not finals else ""
    if finals:
        table = _finals_table(study, finals, "accuracy", front_marks(trained_later))
        left = tell_left(study, trained_later)
        others = escape(f'{left}, study.front("short")')
        table += f"<p>Not trained in full: {others}.</p>" if left else ""
    trained = "trained in full" if level == FULL else "after longer training"
    level = f"{trained}, mean ± standard deviation over n seeds" if finals else "after the training of the search"
    text = f"The front, {level}; accuracy on validation images." if finals or summary.front else "No front yet."
    return f"{_title(study.name)}<p>{escape(about)}</p>{_picture(study)}<p>{text}</p>{table}"


@as_html.register
def _(trials: Trials) -> str:
    timed = any(trial.latency is not None for trial in trials)
    is_tested = bool(trials) and RETRAINS in trials[0].study.manifest
    accuracy = "test accuracy" if is_tested else "accuracy"
    is_run = bool(trials) and "@" in trials[0].study.name
    head = ["trial", *["run"] * is_run, "network", accuracy, "MACs", SHARE, "parameters"]
    head += ["latency"] * timed
    rows = []
    for trial in trials[:MAX_ROWS]:
        latency = [_milliseconds(trial.latency)] * timed
        accuracy = percent(trial.test_accuracy if is_tested else trial.accuracy)
        places = ("–" if trial.trial is None else str(trial.trial), *[str(trial.number)] * is_run)
        numbers = (*places, trial.name, accuracy, *_costs(trial), *latency)
        rows.append([*numbers, "on the front" if trial.on_front else STATUSES.get(trial.status, trial.status)])
    more = f"<p>… {len(trials) - MAX_ROWS} more</p>" if len(trials) > MAX_ROWS else ""
    more = more if trials else "<p>No networks.</p>"
    about = (
        f"<p>Runs of {escape(trials[0].study.name)}, each one training; the study shows means over seeds.</p>"
        if is_run
        else ""
    )
    if not is_run and any(trial.on_front for trial in trials) and pick_level(trials[0].study) != SHORT:
        about = "<p>On the front: that of the short trainings; study.front() is that of the finals.</p>"
    return _table([*head, ""], rows) + more + about


@as_html.register
def _(trial: Trial) -> str:
    macs, share, params = _costs(trial)
    shape = _images(trial.study.image_shape)
    is_tested = trial.test_accuracy is not None
    status = STATUSES.get(trial.status, trial.status)
    accuracy, images = (trial.test_accuracy, "test") if is_tested else (trial.accuracy, "validation")
    latency = "" if trial.latency is None else f", {trial.latency:.3f} ms for a batch"
    facts = [
        f"{percent(accuracy)} on {images} images after {trial.epochs} epoch{'s' * (trial.epochs != 1)}",
        f"{macs} MACs ({share} of the dense network's), {params} parameters{latency}, for {shape}",
        f"{status}{', on the front' if trial.on_front else ''}{f': {trial.reason}' if trial.reason else ''}",
    ]
    title = f"{'' if '@' in trial.study.name else f'{trial.study.name}, '}{trial.place}: {trial.name}"
    picture = _layers_picture(lay_out(trial.architecture, trial.study.image_shape))
    return f"{_title(title)}<p>{'<br>'.join(map(escape, facts))}</p>{_curve(trial.curve)}{picture}"


@as_html.register
def _(cost: Cost) -> str:
    used = [layer for layer in cost.layers if layer.role != "auxiliary"]
    rows = []
    for layer in (layer for layer in used if layer.macs):
        share = f"{layer.macs / cost.macs:.1%}"
        rows.append(
            (layer.name, layer.kind, "×".join(map(str, layer.output)), f"{layer.macs:,}", share, f"{layer.params:,}")
        )
    more = f"{len(rows) - MAX_ROWS} more layers with MACs" if len(rows) > MAX_ROWS else ""
    others = [layer for layer in used if not layer.macs]
    without = (
        f"{len(others)} layers without MACs, {sum(layer.params for layer in others):,} parameters" if others else ""
    )
    end = "".join(f"<p>… {escape(line)}</p>" for line in (more, without) if line)
    table = _table(("layer", "kind", "output", "MACs", "share of MACs", "parameters"), rows[:MAX_ROWS])
    return f"{_title(f'{cost.macs:,} MACs and {cost.params:,} parameters for one image')}{table}{end}"


@as_html.register
def _(space: SearchSpace) -> str:
    rows = [(one.name, format_values(one), space.layers_of[one.name]) for one in space.parameters]
    lines = [f"Named points: {', '.join(space.points)}"] if space.points else []
    lines += [f"Uniform networks: {', '.join(space.uniform)}"] if space.uniform else []
    table = _table(("parameter", "values", "layers"), rows)
    return f"{_title(repr(space)[1:-1])}{table}<p>{'<br>'.join(map(escape, lines))}</p>"


@as_html.register
def _(architecture: Architecture) -> str:
    try:
        backbone = resolve_backbone(architecture)[0]
        shape = ImageShape(native_input_size(backbone), 3, native_num_classes(backbone))
        layers = lay_out(architecture, shape)
    except LrnasError as error:  # a network that cannot be built is shown as text
        return f"<p>{escape(repr(architecture))}</p><p>{escape(str(error))}</p>"
    macs, params = (f"{sum(getattr(layer, name) for layer in layers):,}" for name in ("macs", "params"))
    whose = "timm's" if backbone.startswith(TIMM) else "the paper's"
    facts = [
        f"{macs} MACs and {params} parameters as deployed, for {_images(shape)}, {whose} sizes",
        "Other sizes: lrnas.make_plan(architecture, input_size, num_classes, in_chans, deployed=True).cost; a trial "
        "shows the costs in its study",
    ]
    return f"{_title(architecture.backbone)}<p>{'<br>'.join(map(escape, facts))}</p>{_layers_picture(layers)}"


def _images(shape: ImageShape) -> str:
    channels = f"{shape.channels} channel{'s' * (shape.channels != 1)}"
    return f"images of {shape.size}×{shape.size} pixels in {channels}, {shape.num_classes} classes"


def _retraining(study: Study) -> str:
    """The networks of a retraining, cheapest first, and the verdicts."""
    retrained = read_retrained(study)
    assert retrained is not None
    marks = front_marks(retrained.finals)
    for final in (final for final in retrained.finals if final.point is not None):
        marks[final.identity] = ", ".join(filter(None, [marks.get(final.identity), "reference"]))
    table = _finals_table(study, retrained.finals, "test accuracy", marks)
    lines = ["Accuracy on test images, mean ± standard deviation over n seeds."] if table else []
    verdicts = judge(retrained.finals) if any(final.accuracies for final in retrained.finals) else []
    lines += [*map(str, verdicts), *([f"Test: {TEST}."] if verdicts else [])]
    return f"{_title(str(retrained))}{table}<p>{'<br>'.join(map(escape, lines))}</p>"


def _finals_table(study: Study, finals: Sequence[Final], measured: str, marks: Mapping[str, str]) -> str:
    """Networks with their accuracies over seeds; `marks` are the texts of a last column by identity."""
    timed = any(final.latency is not None for final in finals)
    rows = []
    for final in finals:
        accuracy = percent(final.mean if final.accuracies else None, final.deviation)
        share = "–" if study.dense_macs is None else f"{final.macs / study.dense_macs:.3f}"
        trial = "–" if final.trial is None else str(final.trial)
        numbers = [str(len(final.accuracies)), f"{final.macs:,}", share, f"{final.params:,}"]
        numbers += [_milliseconds(final.latency)] * timed
        rows.append((trial, final.name, accuracy, *numbers, marks.get(final.identity, "")))
    head = ("trial", "network", measured, "n", "MACs", SHARE, "parameters", *["latency"] * timed, "")
    return _table(head, rows)


def _milliseconds(latency: float | None) -> str:
    return "–" if latency is None else f"{latency:.3f} ms"


def _costs(trial: Trial) -> tuple[str, str, str]:
    """MACs, their share of the dense network's, and parameters."""
    return f"{trial.macs:,}", "–" if trial.share is None else f"{trial.share:.3f}", f"{trial.params:,}"


def _title(text: str) -> str:
    return f"<p><b>{escape(text)}</b></p>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    first = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>" if lines else ""


def _picture(study: Study) -> str:
    """The figure of the front, if there is one and matplotlib is installed."""
    from lrnas.reporting.write import plot

    try:
        figure: Any = plot(study)
    except LrnasError:
        return ""
    return f'<img alt="accuracy against cost" src="data:image/png;base64,{_encode(figure._repr_png_())}">'


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _curve(curve: Sequence[float]) -> str:
    """A small picture of the accuracy after each epoch; empty for fewer than two epochs, or if it was not measured."""
    if len(curve) < 2 or None in curve:  # a retraining may train on the validation images, too
        return ""
    low, high = min(curve), max(curve)
    height, step = 40, BAR / (len(curve) - 1)
    points = " ".join(
        f"{step * i:.1f},{height - (height - 4) * (value - low) / (high - low or 1) - 2:.1f}"
        for i, value in enumerate(curve)
    )
    line = f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/>'
    numbers = f"lowest {percent(low)}, highest {percent(high)}, last {percent(curve[-1])}"
    text = f"accuracy on validation images after each epoch; {numbers}"
    return f'<svg width="{BAR}" height="{height}">{line}</svg><p>{text}</p>'


def _layers_picture(layers: Sequence[Layer]) -> str:
    """A row for each layer: its name, the shape of its output, and a bar as long as it has filters, by their shapes."""
    widest = max((sum(group.num for group in layer.groups) for layer in layers), default=1) or 1
    outputs = ["×".join(map(str, layer.output)) for layer in layers]
    maps = _width_of(["layer", *(layer.name for layer in layers)]) + 8
    bars = maps + _width_of(["output", *outputs]) + 8
    parts = [_text(0, 0, "layer"), _text(maps, 0, "output"), _text(bars, 0, "filters and MACs")]
    kinds, right = set[str](), 0
    for i, layer in enumerate(layers):
        top, left = (i + 1) * ROW, float(bars)
        parts += [_text(0, top, layer.name), _text(maps, top, outputs[i])]
        for group in layer.groups:
            width, kind = BAR * group.num / widest, kind_of(group)
            kinds.add(kind)
            box = f'x="{left:.1f}" y="{top + 2}" width="{width:.1f}" height="{ROW - 4}" fill="{SHADES[kind]}"'
            parts.append(f"<rect {box}><title>{group.shape}, {group.num} filters</title></rect>")
            left += width
        text = f"{_describe(layer)}{layer.macs:,} MACs"
        parts.append(_text(left + 6, top, text))
        right = max(right, round(left) + 6 + _width_of([text]))
    shades = [(kind, shade) for kind, shade in SHADES.items() if kind in kinds]
    for i, (kind, shade) in enumerate(shades):
        top, left = (len(layers) + 1) * ROW + 4, bars + 60 * i
        parts.append(f'<rect x="{left}" y="{top + 3}" width="10" height="10" fill="{shade}"/>')
        parts.append(_text(left + 14, top, kind.replace("x", "×")))
    size = f'width="{max(right, bars + 300)}" height="{(len(layers) + 2) * ROW + 8}"'
    style = 'font-family="sans-serif" font-size="11" fill="currentColor"'
    return f"<svg {size} {style}>{''.join(parts)}</svg>"


def _width_of(texts: Iterable[str]) -> int:
    """Room for the longest text, in pixels."""
    return 7 * max(map(len, texts), default=0)


def _describe(layer: Layer) -> str:
    groups = " ‖ ".join(f"{group.num} {group.shape.replace('x', '×')}" for group in layer.groups)
    second = f", then {layer.second.num} {layer.second.shape.replace('x', '×')}" if layer.second is not None else ""
    return f"{groups}{second}; " if groups else "cannot vary; "


def _text(x: float, top: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{top + ROW - 5:.0f}">{escape(text)}</text>'
