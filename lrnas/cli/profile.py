"""The command about times: profile."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas.cli.options import add_settings
from lrnas.cli.output import make_console, make_table, print_json
from lrnas.errors import LrnasError, MissingExtra, UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lrnas.arch.architecture import Architecture
    from lrnas.profiling.profile import Check, LayerTime, Profile, Profiled
    from lrnas.study.references import ImageShape


def add_profile_command(commands: Any) -> argparse.ArgumentParser:
    """Add it to the parser; it takes --json."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "profile",
        help="what networks and their layers take on this machine",
        description="Measure networks and their layers on this machine, forward and in training, beside the dense "
        "networks that they are derived from (see docs/profile.md).",
    )
    parser.add_argument(
        "sources", nargs="*", metavar="NETWORK", help="as in `lrnas count`, or STUDY:TRIAL (a number, a name, or best)"
    )
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: cuda if there is one)")
    parser.add_argument("--batch", type=int, metavar="N", help="images at a time (default: 128 on a GPU, 8 on a CPU)")
    parser.add_argument(
        "--size", type=int, metavar="PIXELS", help="rows and columns of images (default: the study's, or the paper's)"
    )
    parser.add_argument("--channels", type=int, metavar="N", help="of images (default: the study's, or 3)")
    parser.add_argument("--classes", type=int, metavar="N", help="number of classes (default: as the size)")
    parser.add_argument("--dtype", metavar="NAME", help="bf16, fp16 or fp32 (default: bf16 on a GPU, fp32 on a CPU)")
    parser.add_argument("--threads", type=int, metavar="N", help="of a CPU (default: as many as PyTorch takes)")
    parser.add_argument("--compile", action="store_true", help="torch.compile everything, the baselines too")
    parser.add_argument("--baseline", metavar="NETWORK", help="for all of them, instead of the one of their family")
    parser.add_argument("--no-training", action="store_true", help="forward alone")
    parser.add_argument("--no-layers", action="store_true", help="whole networks alone")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture: time against multiply-accumulates")
    parser.add_argument(
        "--check-table", metavar="SPACE", help="how well sums of layers, a search's latencies, tell whole networks"
    )
    parser.add_argument("--number", type=int, default=12, metavar="N", help="of networks for that (default: 12)")
    add_settings(parser, "data_dir", help="Folder of the table of latencies (default: $LRNAS_DATA or ~/.cache/lrnas).")
    add_settings(parser, "studies", "storage")
    parser.set_defaults(run=_profile)
    return parser


def _profile(options: argparse.Namespace) -> None:
    if bool(options.sources) == bool(options.check_table):
        raise LrnasError("give networks to measure, or --check-table SPACE; got both or neither; try vgg-gmp-lr-join")
    if options.plot is not None:
        try:
            from lrnas.reporting.figures.panels import plot_times
            from lrnas.reporting.figures.style import check_format
        except ImportError as error:
            raise MissingExtra("--plot", error.name, "plot") from None
        check_format(options.plot)  # not only when all is measured
    if options.check_table:
        _check(options)
        return
    from lrnas.profiling.profile import profile

    found = [_find(source, options) for source in (*options.sources, *filter(None, [options.baseline]))]
    _take_shape([shape for _, _, shape in found], options)
    networks = [(name, network) for name, network, _ in found]
    result = profile(
        networks[: len(options.sources)],
        **_setting(options),
        compile_networks=options.compile,
        baseline=networks[-1] if options.baseline else None,
        training=not options.no_training,
        layers=not options.no_layers,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if options.plot is not None:
        plot_times(result, options.plot)
    if options.json:
        print_json(result.to_dict())
        return
    for network in result.networks:
        if network.layers:
            _print_layers(result, network)
    _print_networks(result)


def _find(source: str, options: argparse.Namespace) -> tuple[str, Architecture, ImageShape | None]:
    """A network by name or file, or one of a study, with the shape of its images."""
    from lrnas.models.summary import read_source
    from lrnas.study.references import check_no_study, find_network

    if (found := find_network(source, options.studies, options.storage)) is not None:
        given = None not in (options.size, options.channels, options.classes)
        return found.name, found.trial.architecture, None if given else found.image_shape
    try:
        return *read_source(source), None
    except UnknownName:
        check_no_study(source, options.studies, options.storage)
        raise


def _take_shape(shapes: Iterable[ImageShape | None], options: argparse.Namespace) -> None:
    """Have what no option says be as in the studies, which must agree: networks are measured side by side."""
    for option, name in (("size", "size"), ("channels", "channels"), ("classes", "num_classes")):
        found = {getattr(shape, name) for shape in shapes if shape is not None}
        if getattr(options, option) is not None or not found:
            continue
        if len(found) > 1:
            raise LrnasError(
                f"networks of studies are measured as they were trained; got studies of {option} "
                f"{' and '.join(map(str, sorted(found)))}; give --{option}"
            )
        setattr(options, option, found.pop())


def _setting(options: argparse.Namespace) -> dict[str, Any]:
    """How networks are run, be it for a profile or to check the table."""
    return {
        "device": options.device,
        "batch": options.batch,
        "input_size": options.size,
        "in_chans": options.channels,
        "num_classes": options.classes,
        "dtype": options.dtype,
        "threads": options.threads,
    }


def _check(options: argparse.Namespace) -> None:
    from lrnas.data.names import data_folder
    from lrnas.profiling.latency_table import table_file
    from lrnas.profiling.profile import check_table

    result = check_table(
        options.check_table,
        number=options.number,
        **_setting(options),
        file=table_file(data_folder(options.data_dir)),
    )
    if options.json:
        print_json(result.to_dict())
    else:
        _print_check(result)


def _share(own: float | None, base: float | None) -> str:
    return f"{own / base:.3f}" if own is not None and base else "–"


def _time(milliseconds: float | None) -> str:
    return "–" if milliseconds is None else f"{milliseconds:.3f}"


def _columns(trained: bool) -> list[str]:
    """Of numbers, each with its share of the baseline's."""
    return ["MACs", "share", "forward", "share", *(["training", "share"] if trained else [])]


def _cells(own: LayerTime | Profiled, base: LayerTime | Profiled | None, trained: bool) -> list[str]:
    """What stands in these columns."""
    cells = []
    for name in ("macs", "forward", *(("training",) if trained else ())):
        value, other = getattr(own, name), None if base is None else getattr(base, name)
        cells += [f"{value:,}" if name == "macs" else _time(value), _share(value, other)]
    return cells


def _print_layers(result: Profile, network: Profiled) -> None:
    base = result.baseline(network)
    trained = network.training is not None
    title = f"{network.name}, layer by layer, {network.input_size}×{network.input_size}; times in ms"
    table = make_table(title, ["layer", "filters"], _columns(trained))
    others = {layer.name: layer for layer in base.layers}
    for layer in network.layers:
        table.add_row(layer.name, layer.filters, *_cells(layer, others.get(layer.name), trained))
    table.add_row("sum of layers", "", *_cells(_sum(network.layers), _sum(base.layers), trained))
    make_console().print(table)


def _sum(layers: list[LayerTime]) -> LayerTime:
    from lrnas.profiling.profile import LayerTime

    macs, forward = sum(layer.macs for layer in layers), sum(layer.forward for layer in layers)
    return LayerTime("sum of layers", "", macs, forward, sum(layer.training or 0 for layer in layers))


def _print_networks(result: Profile) -> None:
    trained = any(network.training is not None for network in result.networks)
    compiled = ", compiled" if result.compiled else ""
    title = f"Whole networks on {result.conditions}{compiled}; times in ms for a batch"
    table = make_table(title, ["network"], _columns(trained))
    table.add_column("beside", no_wrap=True)
    for network in result.networks:
        base = result.baseline(network)
        table.add_row(network.name, *_cells(network, base, trained), "" if base is network else base.name)
    console = make_console()
    console.print(table)
    console.print("Medians of rounds in which all are measured. MACs are of one image.")


def _print_check(result: Check) -> None:
    title = f"Networks of {result.space} at {result.input_size}×{result.input_size}; times in ms"
    table = make_table(title, ["network"], ["MACs", "by the table", "measured", "error"])
    for (name, macs, predicted, whole), error in zip(result.rows, result.errors, strict=True):
        table.add_row(name, f"{macs:,}", _time(predicted), _time(whole), f"{100 * error:+.1f} %")
    console = make_console()
    console.print(table)
    console.print(
        f"{result.conditions}. Mean error {100 * result.mean_error:.1f} %, largest "
        f"{100 * max(result.errors, key=abs):+.1f} %; Kendall's tau {result.rank_agreement:.3f}; "
        f"whole networks take {result.factor:.3f} times the sum of their layers."
    )
