"""The command `lrnas profile`, which measures times."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lrnas._quantities import check_dtype
from lrnas.cli.options import FILE, add_command, add_device, add_option, add_settings, call, needs_extra
from lrnas.cli.output import make_console, make_table, print_result, say
from lrnas.errors import LrnasError
from lrnas.searching.settings import FEW, SIDE, TEXT, WHOLE

if TYPE_CHECKING:
    from lrnas.profiling.profile import Check, LayerTime, Profile, Profiled


def add_commands(commands: Any) -> None:
    """Add the command to the program."""
    profile = add_command(
        commands,
        "profile",
        _profile,
        "measure the time that networks and their layers take on this machine",
        "Measure the time of networks and their layers on this machine, forward and in training, and compare it with "
        "the dense networks that they are derived from (see docs/profile.md).",
    )
    text = "As in `lrnas count`, or STUDY:TRIAL; TRIAL is a number, the name of a network, or best (most accurate)."
    profile.add_argument("sources", nargs="*", metavar="NETWORK", help=text)
    add_device(profile, "Measure")
    add_option(profile, "--batch", WHOLE, "N", "Measure batches of N images (default: 128 on a GPU, 8 on a CPU)")
    text = "Rows and columns of images (default: those in training, or the paper's)"
    add_option(profile, "--input", SIDE, "PIXELS", text)
    add_option(profile, "--channels", FEW, "N", "Channels of images (default: those in training, or 3)")
    text = "Number of classes (default: that in training, or the paper's)"
    add_option(profile, "--classes", WHOLE, "N", text)
    text = "Number format: bf16, fp16 or fp32 (default: bf16 on a GPU, fp32 on a CPU)"
    add_option(profile, "--dtype", TEXT, "NAME", text)
    text = "Use N threads of a CPU (default: as many as PyTorch uses, or, without --check-table, 1 if that is faster)"
    add_option(profile, "--threads", FEW, "N", text)
    text = "Compile all networks with torch.compile, the baselines too."
    profile.add_argument("--compile", action="store_true", help=text)
    text = "Compare all networks with this one (default: each with the dense network of its family)"
    add_option(profile, "--baseline", TEXT, "NETWORK", text)
    profile.add_argument("--no-training", action="store_false", dest="training", help="Measure forward passes only.")
    profile.add_argument("--no-layers", action="store_false", dest="layers", help="Measure whole networks only.")
    text = "Draw time against multiply-accumulates into this file: .png, .svg or .pdf"
    add_option(profile, "--plot", FILE, "FILE", text)
    text = "Compare the latency that a search uses, a sum over layers, with measured times of networks of this space"
    add_option(profile, "--check-table", TEXT, "SPACE", text)
    add_option(profile, "--number", WHOLE, "N", "With --check-table: measure N networks", 12)
    text = "Folder that holds the table of latencies (default: $LRNAS_DATA or ~/.cache/lrnas)"
    add_settings(profile, "data_dir", help=text)
    add_settings(profile, "studies", "storage")


def _profile(options: argparse.Namespace) -> None:
    if bool(options.sources) == bool(options.check_table):
        got = "both; leave out one" if options.sources else "neither; try vgg-gmp-lr-join"
        raise LrnasError(f"give networks to measure, or --check-table SPACE; got {got}")
    check_dtype(options.dtype)  # before anything heavy is imported
    if options.plot is not None:
        with needs_extra("--plot", "plot"):
            from lrnas.reporting.figures.panels import plot_times
            from lrnas.reporting.figures.style import check_format
        check_format(options.plot)  # before anything is measured
    if options.check_table:
        _check(options)
        return
    from lrnas.profiling.profile import profile

    result = call(profile, options, networks=options.sources)
    print_result(options, result.to_dict, lambda: _print_profile(result))
    if options.plot is not None:
        plot_times(result, options.plot)
        if not options.json:
            say(f"Written: {options.plot}")


def _check(options: argparse.Namespace) -> None:
    from lrnas.data.names import data_folder
    from lrnas.profiling.latency_table import table_file
    from lrnas.profiling.profile import check_table

    file = table_file(data_folder(options.data_dir))
    result = call(check_table, options, space=options.check_table, file=file)
    print_result(options, result.to_dict, lambda: _print_check(result))


def _short(names: list[str]) -> list[str]:
    """Names of columns without what a share is of: it follows that number."""
    return [name.split(" of ")[0] for name in names]


def _print_layers(result: Profile, network: Profiled) -> None:
    from lrnas.profiling.profile import time_cells, time_columns

    base = result.baseline(network)
    trained = network.training is not None
    title = f"{network.name}, layer by layer, {network.input_size}×{network.input_size}"
    table = make_table(title, ["layer", "filters"], _short(time_columns(trained)))
    others = {layer.name: layer for layer in base.layers}
    for layer in network.layers:
        table.add_row(layer.name, layer.filters, *time_cells(layer, others.get(layer.name), trained))
    table.add_row("sum of layers", "", *time_cells(_sum(network.layers), _sum(base.layers), trained))
    make_console().print(table)


def _sum(layers: list[LayerTime]) -> LayerTime:
    from lrnas.profiling.profile import LayerTime

    macs, forward = sum(layer.macs for layer in layers), sum(layer.forward for layer in layers)
    return LayerTime("sum of layers", "", macs, forward, sum(layer.training or 0 for layer in layers))


def _print_profile(result: Profile) -> None:
    for network in result.networks:
        if network.layers:
            _print_layers(result, network)
    (_, *names, last), *rows = result.table()
    table = make_table(result.title, ["network"], _short(names), [last])
    for row in rows:
        table.add_row(*row)
    console = make_console()
    console.print(table)
    for line in result.lines:
        console.print(line)


def _print_check(result: Check) -> None:
    title = f"Networks of {result.space} at {result.input_size}×{result.input_size}; times in ms"
    table = make_table(title, ["network"], ["MACs", "by the table", "measured", "error"])
    for (name, macs, predicted, whole), error in zip(result.rows, result.errors, strict=True):
        table.add_row(name, f"{macs:,}", f"{predicted:.3f}", f"{whole:.3f}", f"{100 * error:+.1f} %")
    console = make_console()
    console.print(table)
    console.print(
        f"{result.conditions}. Mean error {100 * result.mean_error:.1f} %, largest "
        f"{100 * max(result.errors, key=abs):+.1f} %; Kendall's tau {result.rank_agreement:.3f}; "
        f"whole networks take {result.factor:.3f} times the sum of their layers."
    )
