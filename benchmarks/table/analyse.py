"""Print how well short trainings predict full ones.

    python -m benchmarks.table.analyse [FILES ...] [--part dev|held|all] [--epochs]

The truth of a network is the mean of the validation and the test accuracy of its full training, over seeds. Kendall's
tau compares the order of networks. "Given MACs" is tau after a quadratic in log MACs was subtracted from both sides:
the order among networks of equal cost, which is what a search needs. Errors are bootstrap standard errors over
networks. Short and full trainings are validated on the same images, often with the same seed: tau is a little too high.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.stats import kendalltau

from benchmarks.table.jobs import BASE
from benchmarks.table.records import Record, known_files, read_records

Values = npt.NDArray[np.float64]
SIGNS = {"val": 1, "val_loss": -1, "train_loss": -1}
"""Curves that predict, and whether more is better."""
FULL = "40 epochs, batch 512, lr 0.5, clip 2.0"
SHORT = "5 epochs, batch 128, lr 0.1, clip 2.0"
"""The recipes `full` and `fast`, as `label` writes them."""
FEWEST = 8
"""Networks that a tau is computed from, at least."""


def label(record: Record) -> str:
    """A recipe in words: epochs, batch size, learning rate, and what differs from BASE."""
    recipe = record["recipe"]
    main = ("epochs", "batch_size", "lr")
    parts = [f"{recipe['epochs']} epochs, batch {recipe['batch_size']}, lr {recipe['lr']:g}"]
    usual = BASE.to_dict()
    changes = {name: value for name, value in recipe.items() if name not in main and value != usual.get(name)}
    parts += [f"{name} {value}" for name, value in {**changes, **record.get("other", {})}.items()]
    return ", ".join(parts)


def residuals(values: Values, log_macs: Values) -> Values:
    """What a quadratic in log MACs does not explain."""
    design = np.vander(log_macs - log_macs.mean(), 3)
    return values - design @ np.linalg.lstsq(design, values, rcond=None)[0]


def taus(predicted: Values, truth: Values, log_macs: Values) -> tuple[float, float]:
    """Kendall's tau, and tau given MACs."""
    given = kendalltau(residuals(predicted, log_macs), residuals(truth, log_macs)).statistic
    return float(kendalltau(predicted, truth).statistic), float(given)


def taus_with_errors(predicted: Values, truth: Values, log_macs: Values, rounds: int = 400) -> str:
    """Both taus with bootstrap standard errors, as text."""
    random, drawn = np.random.default_rng(0), []
    for _ in range(rounds):
        some = random.integers(len(truth), size=len(truth))
        if len(set(some)) > 4:
            drawn.append(taus(predicted[some], truth[some], log_macs[some]))
    (tau, given), (error, given_error) = taus(predicted, truth, log_macs), np.nanstd(drawn, axis=0)
    return f"tau {tau:5.2f} ± {error:.2f}, given MACs {given:5.2f} ± {given_error:.2f}"


def by_network(records: Iterable[Record]) -> dict[str, list[Record]]:
    found = defaultdict(list)
    for record in records:
        if record["status"] == "completed":
            found[record["network"]["id"]].append(record)
    return dict(found)


def print_accuracies(recipes: dict[str, list[Record]]) -> None:
    """Print mean accuracies of every recipe, and of single networks where they are few."""
    for name, records in sorted(recipes.items(), key=lambda item: (item[1][0]["recipe"]["epochs"], item[0])):
        done = [record for record in records if record["status"] == "completed"]
        if not done:
            continue
        vals = [record["curves"]["val"][-1] for record in done if record["curves"]["val"]]
        tests = [record["test"] for record in done if "test" in record]
        parts = (("validation", vals), ("test", tests))  # no validation if its images were trained on
        means = "".join(f", {part} {100 * np.mean(values):.2f}" for part, values in parts if values)
        diverged = f", {len(records) - len(done)} diverged" if len(done) < len(records) else ""
        few = done if len(done) <= 3 else []
        each = [f"{r['network']['name']} {100 * (r['curves']['val'] or [r['test']])[-1]:.2f}" for r in few]
        print(f"  {name}: n {len(done)}{diverged}{means}", *each, sep="; ")


def print_taus(recipes: dict[str, list[Record]], with_epochs: bool) -> None:
    """Print tau of every short recipe with the full recipe that most networks have."""
    tested = {name: by_network(r for r in some if "test" in r) for name, some in recipes.items()}
    full = max(tested, key=lambda name: len(tested[name]))
    truths = tested[full]
    if len(truths) < FEWEST:
        print(f"  too few networks have a truth: {len(truths)}")
        return
    ids = list(truths)
    networks = [truths[i][0]["network"] for i in ids]
    log_macs = np.log([network["macs"] for network in networks])
    val = np.array([np.mean([r["curves"]["val"][-1] for r in truths[i]]) for i in ids])
    test = np.array([np.mean([r["test"] for r in truths[i]]) for i in ids])
    truth = (val + test) / 2
    spread = 100 * residuals(truth, log_macs).std(ddof=3)
    print(f"  truth: {full}; n {len(ids)}, {100 * truth.min():.2f} to {100 * truth.max():.2f} %,", end=" ")
    print(f"standard deviation at given MACs {spread:.2f} points")
    print_noise([truths[i] for i in ids])
    print(f"  {kendalltau(log_macs, truth).statistic:.2f} is the tau of MACs")
    print(f"  log parameters: {taus_with_errors(np.log([n['params'] for n in networks]), truth, log_macs)}")
    print(f"  validation against test: {taus_with_errors(val, test, log_macs)}")
    for name, records in sorted(recipes.items(), key=lambda item: (item[1][0]["recipe"]["epochs"], item[0])):
        short = {i: some for i, some in by_network(records).items() if i in truths}
        if len(short) < FEWEST or (name == full and not with_epochs):
            continue
        place = [ids.index(i) for i in short]
        some_truth, some_macs = truth[place], log_macs[place]
        print(f"  {name}, n {len(short)}")
        for curve, sign in SIGNS.items():
            values = np.array([np.mean([r["curves"][curve] for r in some], axis=0) for some in short.values()]).T
            if name != full:
                print(f"      by {curve:10} {taus_with_errors(sign * values[-1], some_truth, some_macs)}")
            if with_epochs and curve == "val":
                given = [f"{taus(epoch, some_truth, some_macs)[1]:.2f}" for epoch in values]
                print(f"      given MACs after every epoch: {' '.join(given)}")


def print_noise(truths: Sequence[Sequence[Record]]) -> None:
    """Print the standard deviation between seeds, if networks were trained with several."""
    several = [[(r["curves"]["val"][-1] + r["test"]) / 2 for r in some] for some in truths if len(some) > 1]
    if several:
        noise = 100 * np.sqrt(np.mean([np.var(some, ddof=1) for some in several]))
        print(f"  between seeds: {noise:.2f} points ({len(several)} networks)")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="result files (default: all in results/table)")
    parser.add_argument("--part", choices=("dev", "held", "all"), default="dev", help="networks to use (default: dev)")
    parser.add_argument("--epochs", action="store_true", help="print tau given MACs after every epoch too")
    args = parser.parse_args()
    recipes: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in read_records(args.files or known_files()):
        if args.part in ("all", "held" if record["network"]["held_out"] else "dev"):
            recipes[record["network"]["space"]][label(record)].append(record)
    for space, some in sorted(recipes.items()):
        print(f"\n{space}: accuracies in %, by recipe")
        print_accuracies(some)
        print(f"\n{space}: prediction of the full training")
        print_taus(some, args.epochs)


if __name__ == "__main__":
    main()
