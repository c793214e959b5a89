"""The commands about single networks: models, count, reproduce."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lrnas._messages import percent
from lrnas.cli.options import CHANGE_HELP, add_command, add_device, add_option, add_settings, call
from lrnas.cli.output import make_console, make_table, print_result
from lrnas.errors import InvalidArchitecture, UnknownName
from lrnas.searching.settings import PATH, SIDE, WHOLE, check_training

if TYPE_CHECKING:
    from lrnas.models.summary import Summary
    from lrnas.training.reproduce import Reproduction

SOURCES = "A name from `lrnas models`, a backbone such as vgg16, googlenet or nin, an architecture FILE.json, or "
SOURCES += "timm:MODEL for any model of timm"
COUNTS = ("multiply_acc", "params")
DEPLOYED = "MACs as\ndeployed"


def add_commands(commands: Any) -> None:
    """Add the commands to the program."""
    text = "List every network of the paper's tables 1, 3 and 4, with the published counts and the counts of lrnas."
    add_command(commands, "models", _models, "list the paper's networks, with their published and counted costs", text)

    text = "Count the multiply-accumulates and parameters of one network, exactly, without training it."
    count = add_command(commands, "count", _count, "count multiply-accumulates and parameters of one network", text)
    count.add_argument(
        "source",
        metavar="NETWORK",
        help=f"{SOURCES}; or STUDY:TRIAL, a network of a study, for its images (TRIAL: a number, a name, or best).",
    )
    text = "Rows and columns of the image (default: the paper's, the timm model's or the study's)"
    add_option(count, "--input", SIDE, "PIXELS", text)
    text = "Number of classes (default: the paper's, the timm model's or the study's)"
    add_option(count, "--classes", WHOLE, "N", text)
    count.add_argument("--layers", action="store_true", help="Show every layer.")
    add_settings(count, "studies", "storage")

    reproduce = add_command(
        commands,
        "reproduce",
        _reproduce,
        "train a network and compare it with the published results",
        "Train a network in full and compare it with the published results, and with the baseline of its family.",
    )
    reproduce.add_argument("source", metavar="NETWORK", help=f"{SOURCES}.")
    text = "Data set, named as in `lrnas search` (default: cifar10 with a GPU, digits without)"
    add_settings(reproduce, "data", help=text)
    add_settings(reproduce, "image_size", "image_memory", "pack", "data_dir", "address")
    add_settings(reproduce, "set", help=CHANGE_HELP)
    add_settings(reproduce, "recipe", default="paper")
    add_settings(reproduce, "epochs", help="Train for N epochs (default: the recipe's)")
    add_option(reproduce, "--seeds", WHOLE, "N", "Train each network N times, with random seeds from 0", 1)
    add_option(reproduce, "--out", PATH, "FOLDER", "Folder for the records", "results/reproduce")
    add_device(reproduce, "Train")
    add_option(reproduce, "--workers", WHOLE, "N", "Train one network on N GPUs or, without a GPU, in N processes", 1)


def _models(options: argparse.Namespace) -> None:
    from lrnas.models.found import found_networks
    from lrnas.models.summary import summarise, summarise_points

    summaries = summarise_points()

    def data() -> list[dict[str, Any]]:
        rows = [summary.to_dict() for summary in summaries]
        for name, network in found_networks().items():
            about = {"timm": name.replace("-", "_"), "data": network.data}
            rows.append({**summarise(name, network.architecture).to_dict(), "found": about})
        return rows

    print_result(options, data, lambda: _print_models(summaries))


def _count(options: argparse.Namespace) -> None:
    from lrnas.models.summary import read_source, summarise
    from lrnas.study.references import check_no_study, find_network

    size, classes, channels = options.input, options.classes, 3
    is_file = options.source.endswith(".json")
    if not is_file and (found := call(find_network, options, source=options.source)) is not None:
        name, architecture, shape = found.name, found.trial.architecture, found.study.image_shape
        size, channels = shape.size if size is None else size, shape.channels
        classes = shape.num_classes if classes is None else classes
    else:
        try:
            name, architecture = read_source(options.source)
        except UnknownName:
            call(check_no_study, options, source=options.source)
            raise
    try:
        summary = summarise(name, architecture, size, classes, channels)
    except InvalidArchitecture as error:
        where = f"{options.source}: " if is_file else ""
        raise InvalidArchitecture(f"{where}{error}") from None
    print_result(options, summary.to_dict, lambda: _print_count(summary, options.layers))


def _reproduce(options: argparse.Namespace) -> None:
    check_training(options.recipe, options.set, options.epochs, options.data)  # before anything heavy is imported
    from lrnas.training.reproduce import reproduce

    changes = (options.set or {}) | ({} if options.epochs is None else {"epochs": options.epochs})
    result = call(reproduce, options, changes=changes)
    print_result(options, result.to_dict, lambda: _print_reproduction(result))


def _print_models(summaries: list[Summary]) -> None:
    from lrnas.models.found import found_networks

    titles = list(dict.fromkeys(summary.point.table.title for summary in summaries if summary.point))
    columns = [f"{count}\n{kind}" for count in COUNTS for kind in ("published", "counted", "difference")]
    optional = [columns[1], columns[4], DEPLOYED, columns[5], columns[2]]
    text = "MACs as deployed: multiply-accumulates without biases and auxiliary heads, with joins folded if that saves "
    text += "MACs, for the same sizes of feature maps in all networks of one of the paper's tables."
    title = f"The paper's networks ({'; '.join(titles)})"
    table = make_table(title, ["network"], [*columns, DEPLOYED], (), optional, {DEPLOYED: text})
    notes = []
    for title in titles:
        if title != titles[0]:
            table.add_row()
        for summary in summaries:
            point = summary.point
            if point is None or point.table.title != title:
                continue
            difference = summary.difference()
            row = []
            for count in COUNTS:
                row += [getattr(point.published, count), getattr(summary.paper, count), difference[count]]
            table.add_row(summary.name, *(f"{value:,}" for value in (*row, summary.cost.macs)))
            if any(difference.values()):
                notes.append(f"{summary.name}: {point.note if point.explained else 'the difference is not explained'}")
    console = make_console()
    console.print(table)
    console.print(f"{len(summaries) - len(notes)} of {len(summaries)} networks have exactly the published counts.")
    console.print(f"Found by searches, with weights: {', '.join(found_networks())} (docs/networks.md).")
    for note in notes:
        console.print(note)
    console.print("Counts are by the rules of the paper, which adds one for every bias (docs/counting.md).")


def _print_count(summary: Summary, with_layers: bool) -> None:
    console = make_console()
    cost, size = summary.cost, summary.input_size
    if with_layers:
        texts, numbers = ("layer", "kind", "filters", "output"), ("MACs", "%", "parameters")
        table = make_table(f"{summary.name}, layer by layer", texts, numbers, optional=("kind", "output"))
        for layer in summary.to_dict()["layers"]:
            share = f"{100 * layer['macs'] / cost.macs:.1f}" if cost.macs else ""
            output = "×".join(map(str, layer["output"]))
            counts = (f"{layer['macs']:,}", share, f"{layer['params']:,}")
            table.add_row(layer["name"], layer["kind"], layer["filters"] or "", output, *counts)
        console.print(table)
    title = f"{summary.name}, input {size}×{size}, {summary.num_classes} classes"
    table = make_table(title, [""], ["MACs", "parameters"])
    table.add_row("as deployed", f"{cost.macs:,}", f"{cost.params:,}")
    if folded := summary.folded:
        table.add_row("as built", f"{summary.built.cost.macs:,}", f"{summary.built.cost.params:,}")
    table.add_row("as the paper counts", f"{summary.paper.multiply_acc:,}", f"{summary.paper.params:,}")
    if (point := summary.point) is not None:
        difference = summary.difference()
        table.add_row("published", f"{point.published.multiply_acc:,}", f"{point.published.params:,}")
        table.add_row("difference", f"{difference['multiply_acc']:,}", f"{difference['params']:,}")
    console.print(table)
    if folded:
        filters = ", ".join(f"{name} (built as {mix})" for name, mix in folded.items())
        console.print(f"A single convolution as deployed: {filters}.")
    if point is not None and point.note:
        console.print(point.note)


def _print_reproduction(result: Reproduction) -> None:
    _print_count(result.summary, with_layers=False)
    console = make_console()
    epochs, size, counted = result.recipe.epochs, result.input_size, result.summary.input_size
    if size != counted:
        console.print(f"Counts above: {counted}×{counted} pixels. Training, and MACs below: {size}×{size} pixels.")
    trained = f"{size}×{size} pixels, recipe of {epochs} epoch{'s' * (epochs != 1)} at most"
    title = f"Measured on the test images of {result.data}, {trained}"
    table = make_table(title, ["network"], ("MACs", "share", "published", "measured", "sd", "n", "diverged"))
    for network in result.networks:
        table.add_row(
            network.name,
            f"{network.macs:,}",
            f"{network.share:.3f}",
            percent(network.published),
            percent(network.mean if network.accuracies else None),
            "–" if network.deviation is None else f"{100 * network.deviation:.2f}",
            str(len(network.accuracies)),
            str(network.diverged),
        )
    console.print(table)
    if reuse := result.reuse():
        console.print(reuse, soft_wrap=True)
    console.print(result.verdict())
    console.print(f"Records: {result.files[0].parent}/")
