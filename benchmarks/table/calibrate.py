"""Print how far the model of a search can be trusted when it predicts full trainings from short ones.

    python -m benchmarks.table.calibrate [FILES ...] [--part dev|held] [--short RECIPE]

The model that a search uses (`lrnas.sampling.accuracy_model`) learns from the short trainings of all networks and from
the full trainings of some, drawn at random, and predicts the full trainings of the others. "Inside" is the share of
these whose validation accuracy lies in the predicted 90 % interval, noise of one training included; "bias" is predicted
minus measured. Held-out networks are predicted only, from the full trainings of the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.table.analyse import FULL, SHORT, by_network, label, taus
from benchmarks.table.networks import DENSE, get_space, read_networks
from benchmarks.table.records import Record, known_files, read_records
from lrnas.sampling.accuracy_model import AccuracyModel, Inputs
from lrnas.sampling.axes import Axes
from lrnas.searching.proposals import distributions_of

QUANTILE = 1.645
"""Half the width of a 90 % interval, in standard deviations."""
ROUNDS = 12

Values = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Table(NamedTuple):
    """Networks of a space that were trained by both recipes."""

    log_costs: Values
    features: Values
    kinds: Sequence[int]
    short: Values
    full: Values
    """Validation accuracies: of one short training, and means over the seeds of full ones."""
    held_out: npt.NDArray[np.bool_]


def make_table(space: str, records: Sequence[Record], short_recipe: str = SHORT) -> Table:
    """The networks of a space that were trained by both recipes, as the model takes them."""
    values = {network["id"]: network["values"] for network in read_networks()[space]}
    some = [r for r in records if r["network"]["space"] == space and r["network"]["id"] in values]
    short = by_network(r for r in some if label(r) == short_recipe and r["seed"] == 0)  # as a search has it
    full = by_network(r for r in some if label(r) == FULL)
    ids = sorted(short.keys() & full.keys())
    networks = [full[i][0]["network"] for i in ids]
    axes = Axes(distributions_of(get_space(space)))
    return Table(
        np.log([[network["macs"], network["params"]] for network in networks]),
        axes.encode([axes.point(values[i]) for i in ids]),
        axes.kinds,
        *(np.array([np.mean([r["curves"]["val"][-1] for r in found[i]]) for i in ids]) for found in (short, full)),
        np.array([network["held_out"] for network in networks]),
    )


def predict(table: Table, known: Indices, wanted: Indices) -> tuple[Values, Values]:
    """Predicted accuracies after full training, and standard deviations with the noise of one training.

    Args:
        table: The networks; all short trainings are known.
        known: The networks whose full trainings are known.
        wanted: The networks to predict.
    """
    rows = np.concatenate([np.arange(len(table.full)), known])
    levels = np.repeat([0, 1], [len(table.full), len(known)])
    values = np.concatenate([table.short, table.full[known]])
    inputs = Inputs(table.log_costs[rows], table.features[rows], levels)
    model = AccuracyModel(inputs, values, np.zeros(len(rows)), table.kinds)
    ones = np.ones(len(wanted), dtype=np.int64)
    mean, deviation = model.predict(Inputs(table.log_costs[wanted], table.features[wanted], ones))
    return mean, np.hypot(deviation, model.noise[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="result files (default: all in results/table)")
    parser.add_argument("--part", choices=("dev", "held"), default="dev", help="networks to predict (default: dev)")
    parser.add_argument("--known", type=int, nargs="+", default=[4, 8, 16, 24], help="numbers of known full trainings")
    parser.add_argument("--short", default=SHORT, help=f"the short recipe, as analyse prints it (default: {SHORT!r})")
    args = parser.parse_args()
    records = read_records(args.files or known_files())
    random = np.random.default_rng(0)
    for space in DENSE:
        table = make_table(space, records, args.short)
        if not len(table.full):
            continue  # no network of this space was trained with this recipe
        usual = np.flatnonzero(~table.held_out)
        for number in (n for n in args.known if n <= len(usual) - 4 * (args.part == "dev")):
            errors, inside, orders = [], [], []
            for _ in range(ROUNDS):
                known = random.permutation(usual)[:number]
                wanted = np.setdiff1d(usual, known) if args.part == "dev" else np.flatnonzero(table.held_out)
                mean, deviation = predict(table, known, wanted)
                apart = mean - table.full[wanted]
                errors += apart.tolist()
                inside += (np.abs(apart) < QUANTILE * deviation).tolist()
                orders.append(taus(mean, table.full[wanted], table.log_costs[wanted, 0])[1])
            print(
                f"{space}: {number} full trainings known, {len(wanted)} predicted, {ROUNDS} rounds: inside "
                f"{np.mean(inside):.2f}, bias {100 * np.mean(errors):+.2f}, error {100 * np.std(errors):.2f} points, "
                f"tau given MACs {np.mean(orders):.2f}"
            )


if __name__ == "__main__":
    main()
