"""The output of `lrnas search --dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrnas._messages import duration
from lrnas.cli.output import file_size, magnitude, make_console, make_table

if TYPE_CHECKING:
    from lrnas.searching.estimate import Estimate


def print_estimate(estimate: Estimate) -> None:
    """Print what a search would train, and what that would take."""
    console = make_console()
    points = f"{estimate.num_parameters} parameters, {magnitude(estimate.num_points)} points"
    table = make_table(f"Space {estimate.space}: {points}", ["network"], ["MACs", "share", "parameters"], [""])
    for network in estimate.networks:
        marks = ["paper"] * network.is_paper
        marks += [f"left out: {', '.join(network.beyond)}"] if network.beyond else []
        table.add_row(
            network.name, f"{network.macs:,}", f"{network.share:.3f}", f"{network.params:,}", ", ".join(marks)
        )
    console.print(table)
    images = f"{estimate.train_images:,} training and {estimate.val_images:,} validation images"
    columns = ["networks", "runs", "epochs", "batch size", "training time"]
    table = make_table(f"{estimate.data}: {images}", ["level"], columns)
    for level in estimate.levels:
        numbers = (str(number) for number in (level.networks, level.runs, level.epochs, level.batch_size))
        table.add_row(level.name, *numbers, duration(level.training_seconds))
    console.print(table)
    where = "on a GPU" if estimate.device == "cuda" else "on this machine"
    console.print(f"\n{estimate.hardware}; {estimate.at_a_time} at a time {where} ({estimate.at_a_time_reason})")
    for number, seconds in estimate.seconds.items():
        gpus = f" on {number} GPU{'s' * (number > 1)}" if number else ""
        console.print(f"Time{gpus}: about {duration(seconds)}")
    packing = f", {duration(estimate.packing_seconds)} of it for packing" if estimate.packing_seconds else ""
    console.print(f"{'GPU' if estimate.device == 'cuda' else 'CPU'}-hours: about {estimate.hours:.2g}{packing}")
    if estimate.gpu_memory is not None:
        console.print(f"GPU memory: about {file_size(estimate.gpu_memory)} for each network in training")
    parts = ", ".join(f"{name} {file_size(size)}" for name, size in estimate.disk.items() if size)
    console.print(f"Disk: about {parts}")
    for remark in estimate.remarks:
        console.print(f"Note: {remark}.")
    console.print("Nothing was written. Without --dry-run, the same command starts the search.")
