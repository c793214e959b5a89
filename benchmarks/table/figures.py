"""Draw how well short trainings predict full ones, for docs/proxy.md.

python -m benchmarks.table.figures results/table/trainings.json.xz --out docs/figures
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import numpy as np

from benchmarks.table.analyse import FULL, SHORT, Values, by_network, label, residuals, taus
from benchmarks.table.records import Record, read_records

mpl.use("agg")
from matplotlib import pyplot as plt

COLORS = {"nin": "#0b7a75", "vgg11": "#c2571a"}


def get_pairs(recipes: dict[str, list[Record]]) -> tuple[Values, Values, Values, Values]:
    """Of networks trained by both recipes: log MACs, full accuracy, short accuracy, and short accuracy by epoch."""
    short, full = by_network(recipes[SHORT]), by_network(recipes[FULL])
    ids = [i for i in full if i in short]
    log_macs = np.log([full[i][0]["network"]["macs"] for i in ids])
    truth = np.array([np.mean([(r["curves"]["val"][-1] + r["test"]) / 2 for r in full[i]]) for i in ids])
    curves = np.array([np.mean([r["curves"]["val"] for r in short[i]], axis=0) for i in ids])
    return log_macs, truth, curves[:, -1], curves


def draw(recipes: dict[str, dict[str, list[Record]]], out: Path) -> None:
    """Draw short against full accuracies, raw and at given MACs, and tau given MACs after every epoch."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for space, some in sorted(recipes.items()):
        log_macs, truth, short, curves = get_pairs(some)
        tau, given = taus(short, truth, log_macs)
        style = {"color": COLORS[space], "s": 18, "alpha": 0.8}
        axes[0].scatter(100 * short, 100 * truth, label=f"{space}: tau {tau:.2f}", **style)
        pair = (100 * residuals(values, log_macs) for values in (short, truth))
        axes[1].scatter(*pair, label=f"{space}: tau {given:.2f}", **style)
        by_epoch = [taus(epoch, truth, log_macs)[1] for epoch in curves.T]
        axes[2].plot(range(1, len(by_epoch) + 1), by_epoch, "o-", color=COLORS[space], label=f"{space}, n {len(truth)}")
    axes[0].set(xlabel="after 5 epochs, validation, %", ylabel="after 40 epochs, %", title="accuracy")
    axes[1].set(xlabel="after 5 epochs, points", ylabel="after 40 epochs, points", title="accuracy at given MACs")
    axes[2].set(xlabel="epoch of 5", ylabel="tau given MACs", title="tau given MACs, after every epoch", ylim=(-0.2, 1))
    axes[2].set_xticks(range(1, 6))
    for axis in axes:
        axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(out / "proxy.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="result files")
    parser.add_argument("--out", type=Path, required=True, help="folder for proxy.png")
    args = parser.parse_args()
    recipes: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in read_records(args.files):
        if not record["network"]["held_out"]:
            recipes[record["network"]["space"]][label(record)].append(record)
    draw(recipes, args.out)


if __name__ == "__main__":
    main()
