"""Print what each parameter of a space is worth at given costs, from the short trainings of the table.

    python -m benchmarks.table.effects [FILES ...]

A linear model is fitted to the validation accuracies of the networks that are not set aside: a quadratic in log MACs,
log parameters, and the parameters of the space. The effect of a number is the change of accuracy from its lowest to its
highest value; that of another parameter is the difference from its first value. A parameter that has no effect in a
network, such as those of a layer that it does not have, counts there as if it had its mean value.

Then it prints what a join is worth after full training, beside what costs and the accuracy after short training say.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.table.analyse import FULL, SHORT, by_network, label
from benchmarks.table.networks import DENSE, get_space, read_networks
from benchmarks.table.records import Record, known_files, read_records

Values = npt.NDArray[np.float64]


class Effect(NamedTuple):
    """What a change of one parameter is worth, in percentage points, with its standard error."""

    name: str
    points: float
    error: float


def find_effects(space: str, records: Sequence[Record]) -> tuple[list[Effect], int, float]:
    """Return the effects, the number of networks, and the standard deviation of what the model does not explain."""
    values = {network["id"]: network["values"] for network in read_networks()[space]}
    own = [r for r in records if r["network"]["space"] == space and label(r) == SHORT and not r["network"]["held_out"]]
    runs = [found for i, found in by_network(own).items() if i in values]
    networks = [found[0]["network"] for found in runs]
    accuracies = np.array([100 * np.mean([r["curves"]["val"][-1] for r in found]) for found in runs])
    log_macs, log_params = (np.log([float(network[cost]) for network in networks]) for cost in ("macs", "params"))
    columns: dict[str, Values] = {"": np.ones(len(runs)), "macs": log_macs, "macs²": log_macs**2, "params": log_params}
    costs = len(columns)
    params = [values[network["id"]] for network in networks]
    idle = [get_space(space).idle_parameters(each) for each in params]
    for parameter in get_space(space).parameters:
        name, own_values = parameter.name, parameter.values
        if isinstance(own_values[0], str):
            for value in own_values[1:]:
                columns[f"{name} {value} instead of {own_values[0]}"] = np.array(
                    [each[name] == value for each in params], float
                )
        else:
            low, high = float(own_values[0]), float(own_values[-1])
            columns[f"{name} {low:g} to {high:g}"] = np.array([(each[name] - low) / (high - low) for each in params])
        for column in list(columns)[costs:]:
            if column.startswith(f"{name} "):
                rests = np.array([name in one for one in idle])
                columns[column][rests] = columns[column][~rests].mean()
    effects, rest = _fit(columns, accuracies)
    return effects[costs:], len(runs), rest


def _fit(columns: dict[str, Values], values: Values) -> tuple[list[Effect], float]:
    """Effects of all columns on some values, and the standard deviation of the rest."""
    matrix = np.array(list(columns.values())).T
    solution, _, rank, _ = np.linalg.lstsq(matrix, values, rcond=None)
    rest = values - matrix @ solution
    variance = float(rest @ rest) / (len(values) - int(rank))
    errors = np.sqrt(variance * np.diag(np.linalg.pinv(matrix.T @ matrix)))
    return [Effect(*row) for row in zip(columns, solution.tolist(), errors.tolist(), strict=True)], variance**0.5


def find_joins(space: str, records: Sequence[Record]) -> tuple[list[Effect], int, float]:
    """What the accuracy after short training and a join in each layer say about full training, at equal costs.

    All networks count that were trained in full, with the mean of validation and test accuracy over seeds.
    """
    own = [record for record in records if record["network"]["space"] == space]
    short = by_network([record for record in own if label(record) == SHORT])
    full = by_network([record for record in own if label(record) == FULL])
    both = [identity for identity in full if identity in short]
    networks = [full[identity][0]["network"] for identity in both]
    joins = [{name for name, layer in each["architecture"]["layers"].items() if layer.get("join")} for each in networks]
    log_macs, log_params = (np.log([float(network[cost]) for network in networks]) for cost in ("macs", "params"))
    columns: dict[str, Values] = {"": np.ones(len(both)), "macs": log_macs, "macs²": log_macs**2, "params": log_params}
    columns["accuracy after short training"] = np.array([100 * short[i][0]["curves"]["val"][-1] for i in both])
    for layer in sorted(set[str]().union(*joins)):
        columns[f"a join in {layer}"] = np.array([layer in each for each in joins], float)
    values = [[50 * (record["curves"]["val"][-1] + record["test"]) for record in full[i]] for i in both]
    effects, rest = _fit(columns, np.array([np.mean(each) for each in values]))
    return effects[4:], len(both), rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="records; by default all of results/table")
    options = parser.parse_args()
    records = read_records(options.files or known_files())
    for space in DENSE:
        effects, number, rest = find_effects(space, records)
        print(f"{space}: {number} networks; standard deviation of the rest {rest:.2f} points")
        for effect in effects:
            print(f"  {effect.points:+6.2f} ± {effect.error:.2f}  {effect.name}")
        effects, number, rest = find_joins(space, records)
        print(f"{space}, full training: {number} networks; standard deviation of the rest {rest:.2f} points")
        for effect in effects:
            print(f"  {effect.points:+6.2f} ± {effect.error:.2f}  {effect.name}")


if __name__ == "__main__":
    main()
