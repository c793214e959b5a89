"""The command `lrnas export`, which writes a network for use in other programs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lrnas.cli.options import add_command, add_device, add_option, add_settings, add_source_options, call
from lrnas.cli.output import make_console, make_table, print_result
from lrnas.exporting.names import check_format
from lrnas.searching.settings import FEW, PATH, SIDE, TEXT, WHOLE

if TYPE_CHECKING:
    from lrnas.exporting.export import Export
    from lrnas.exporting.fastest_form import Fusion


def add_commands(commands: Any) -> None:
    """Add the command to the program."""
    export = add_command(
        commands,
        "export",
        _export,
        "write a network for other programs: timm, ONNX or torch.export",
        "Write a network for other programs: timm, ONNX or torch.export. The file is loaded again and must give "
        "the same outputs as the network (see docs/export.md).",
    )
    add_source_options(export)
    add_option(export, "--format", TEXT, "NAME", "Format: timm (safetensors), onnx or torch-export", "timm")
    add_option(export, "--out", PATH, "PATH", "Folder (timm) or file to write (default: in exports/)")
    export.add_argument("--force", action="store_true", help="Overwrite files that exist.")
    text = "Fold batch norms, and give every mixed-shape layer the form that is measured to be fastest."
    export.add_argument("--fuse", action="store_true", help=text)
    add_device(export, "Measure times")
    add_option(export, "--batch", WHOLE, "N", "Measure times for batches of N images", 1)
    text = "Measure times on a CPU with N threads (default: as many as PyTorch uses, or 1 if that is faster)"
    add_option(export, "--threads", FEW, "N", text)
    text = "Data set with images for the check, named as in `lrnas search` (default: that of the training)"
    add_settings(export, "data", help=text)
    add_settings(export, "data_dir")
    text = "Rows and columns of an image (default: as trained, or the network's own)"
    add_option(export, "--input", SIDE, "PIXELS", text)
    text = "Number of classes of a network that is not trained (default: the network's own)"
    add_option(export, "--classes", WHOLE, "N", text)


def _export(options: argparse.Namespace) -> None:
    check_format(options.format)  # before anything heavy is imported
    from lrnas.exporting.export import export

    result = call(export, options)
    print_result(options, result.to_dict, lambda: _print_export(result))


def _print_fusion(fusion: Fusion, result: Export) -> None:
    head, *rows = fusion.table()
    console = make_console()
    if rows:
        table = make_table(result.forms_title, head[:2], head[2:-2], head[-2:])
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in fusion.lines:
        console.print(line, soft_wrap=True)


def _print_export(result: Export) -> None:
    if result.fusion is not None:
        _print_fusion(result.fusion, result)
    console = make_console()
    console.print()
    for line in result.lines:
        console.print(line, soft_wrap=True)
