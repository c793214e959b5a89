"""The output of `lrnas search --dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lrnas._messages import duration
from lrnas._quantities import magnitude
from lrnas.cli.output import make_console, make_table

if TYPE_CHECKING:
    from lrnas.searching.estimate import Estimate


def print_estimate(estimate: Estimate) -> None:
    """Print what a search would train, and what that would take."""
    console = make_console()
    points = f"{estimate.num_parameters} parameters, {magnitude(estimate.num_points)} points"
    table = make_table(f"Space {estimate.space}: {points}", ["network"], ["MACs", "share", "parameters"], [""])
    for network in estimate.networks:
        marks = ["reference"] * network.is_reference
        limits = ", ".join(f"--{limit.replace('_', '-')}" for limit in network.beyond)
        marks += [f"left out: {limits}"] if limits else []
        marks += ["in the study already"] * network.is_known
        table.add_row(
            network.name, f"{network.macs:,}", f"{network.share:.3f}", f"{network.params:,}", ", ".join(marks)
        )
    console.print(table)
    images = f"{estimate.train_images:,} training and {estimate.val_images:,} validation images"
    columns = ["networks", "runs", "epochs", "batch size", "sum of training times"]
    table = make_table(f"{estimate.data}: {images}", ["level"], columns)
    for level in estimate.levels:
        numbers = (str(number) for number in (level.networks, level.runs, level.epochs, level.batch_size))
        table.add_row(level.name, *numbers, duration(level.training_seconds))
    console.print(table)
    console.print()
    for line in estimate.lines:
        console.print(line)
    if any(level.runs for level in estimate.levels):
        does = "continues" if estimate.exists else "starts"
        console.print(f"Nothing was written. Without --dry-run, the same command {does} the search.")
    else:
        console.print("Nothing was written, and nothing is left to train.")
