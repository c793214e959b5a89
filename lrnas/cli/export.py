"""The command that writes a network for use elsewhere: export."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from lrnas.cli.options import add_settings, add_source_options
from lrnas.cli.output import make_console, make_table, print_json

if TYPE_CHECKING:
    from lrnas.exporting.export import Export
    from lrnas.exporting.fastest_form import Choice, Fusion


def add_export_command(commands: Any) -> argparse.ArgumentParser:
    """Add it to the parser; it takes --json."""
    export: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write a network for use elsewhere: timm, ONNX or torch.export",
        description="Write a network for use elsewhere, and check what was written against it (see docs/export.md).",
    )
    export.add_argument(
        "--format", default="timm", metavar="NAME", help="timm (safetensors), onnx or torch-export (default: timm)"
    )
    export.add_argument("--out", metavar="PATH", help="folder (timm) or file to write (default: in exports/)")
    export.add_argument("--force", action="store_true", help="replace what is there")
    export.add_argument(
        "--fuse",
        action="store_true",
        help="fold batch norms, and have every mixed-shape layer in the form that is measured to be the fastest",
    )
    export.add_argument(
        "--device", metavar="NAME", help="where to measure: cpu or cuda (default: cuda if there is one)"
    )
    export.add_argument(
        "--batch", type=int, default=1, metavar="N", help="images at a time, for measuring (default: 1)"
    )
    export.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="of a CPU, for measuring (default: PyTorch's, or 1 where that is faster)",
    )
    add_settings(export, "data", help="Data set whose images check the result (default: the one trained on).")
    add_settings(export, "data_dir")
    export.add_argument(
        "--input",
        type=int,
        metavar="PIXELS",
        help="rows and columns of an image (default: as trained, or the network's own)",
    )
    export.add_argument("--classes", type=int, metavar="N", help="of a network that is not trained")
    add_source_options(export)
    export.set_defaults(run=_export)
    return export


def _export(options: argparse.Namespace) -> None:
    from lrnas.exporting.export import export

    result = export(
        options.source,
        options.format,
        out=options.out,
        fuse=options.fuse,
        device=options.device,
        batch=options.batch,
        threads=options.threads,
        data=options.data,
        data_dir=options.data_dir,
        input_size=options.input,
        num_classes=options.classes,
        architecture=options.architecture,
        studies=options.studies,
        storage=options.storage,
        fresh=options.fresh,
        force=options.force,
        say=lambda line: print(line, file=sys.stderr),
    )
    if options.json:
        print_json(result.to_dict())
        return
    if result.fusion is not None:
        _print_fusion(result.fusion, result)
    _print_export(result)


def _print_fusion(fusion: Fusion, result: Export) -> None:
    columns = list(dict.fromkeys(name for choice in fusion.layers for name in choice.seconds))
    title = f"Forms of every layer, milliseconds {_conditions(result)}"
    table = make_table(title, ["layer", "filters"], columns)
    for column in ("chosen", ""):
        table.add_column(column, no_wrap=True)
    for choice in fusion.layers:
        table.add_row(choice.name, choice.filters, *_times(choice, columns), choice.chosen, choice.remark)
    console = make_console()
    if fusion.layers:
        console.print(table)
    if fusion.folding.norms:
        console.print(f"{len(fusion.folding.norms)} batch norms folded into the convolutions before them.")
    if fusion.network is None:
        console.print("Nothing to fold: no batch norm follows a convolution, no layer has mixed shapes.")
        return
    listed = ", ".join(f"{name} {1000 * seconds:.3f}" for name, seconds in fusion.network.seconds.items())
    why = f" ({fusion.network.remark})" if fusion.network.remark else ""
    console.print(f"The whole network, likewise: {listed}; kept: {fusion.network.chosen}{why}.", soft_wrap=True)


def _conditions(result: Export) -> str:
    """Under which forms were measured."""
    where = "in onnxruntime" if result.format == "onnx" else "in PyTorch"
    return f"{where} for {result.batch} at a time on {result.device}{_threads(result)}"


def _threads(result: Export) -> str:
    return f", {result.threads} thread{'s' * (result.threads != 1)}" if result.device == "cpu" else ""


def _size(number: int) -> str:
    return f"{number / 1e6:,.2f} MB" if number >= 10_000 else f"{number:,} bytes"


def _times(choice: Choice, columns: list[str]) -> list[str]:
    return [f"{1000 * choice.seconds[name]:.3f}" if name in choice.seconds else "–" for name in columns]


def _print_export(result: Export) -> None:
    console = make_console()
    check = result.check
    console.print(f"\n{result.name}: {result.origin}")
    for file, size in result.files.items():
        console.print(f"Written:  {file}, {_size(size)}")
    console.print(
        f"Checked:  {check.images}: outputs differ by {check.max_difference:.2g} at most (largest output "
        f"{check.largest_output:.3g}), {check.same_class} of {check.number} in the same class"
    )
    listed = ", ".join(f"{name} {1000 * seconds:.2f} ms" for name, seconds in result.seconds.items())
    console.print(f"Takes:    {listed} for {result.batch} at a time on {result.device}{_threads(result)}")
    console.print(f"Load:     {result.load}", soft_wrap=True)
    if result.also:
        console.print(f"          {result.also}", soft_wrap=True)
