"""What would the current model have promised about networks of four kept studies, and what was measured?

    python -m benchmarks.promises --out results/promises.json

For each found network that was trained in full, accuracies are predicted from what was known when its first full
training began. Then they are predicted once more from all that is known of other networks, if two found networks, the
most expensive and the cheapest one, had been trained in full before (`promotion.pick_first`), with one seed. These
studies are older than this rule. Those of deep networks are also older than the rule that some of the paper's networks
are trained at level `longer`; such runs, trained later, are read from results/longer_of_paper.json.
"""

from __future__ import annotations

import json
import lzma
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from benchmarks.common import make_parser, write_result
from lrnas.sampling.axes import Axes
from lrnas.sampling.promotion import Measured, believe
from lrnas.searching.proposals import distributions_of, kind_of
from lrnas.spaces.space import load_space
from lrnas.training.provenance import provenance

RESULTS = Path(__file__).parents[1] / "results"
STUDIES = {
    "nin": "search/nin-cifar10.db.xz",
    "vgg11": "studies/vgg11-cifar10/study.db.xz",
    "nin-deep": "studies/nin-deep-cifar10/study.db.xz",
    "vgg-deep": "studies/vgg-deep-cifar10/study.db.xz",
}
"""Kept studies by space."""
OUTSIDE = {("nin-deep-cifar10", 13), ("nin-deep-cifar10", 20)}
"""Trials outside the part of the front that was searched. A search does not promote such networks any more."""
LEVELS = {"short": "", "longer": "@longer", "full": "@finals"}


def replay(space_name: str, later_runs: dict[str, list[float]]) -> Iterator[dict[str, Any]]:
    """Predictions for the found networks of a study that were trained in full.

    Args:
        space_name: The space; its study is SPACE-cifar10.
        later_runs: Accuracies of the paper's networks at level `longer`, by name.
    """
    space, name = load_space(space_name, batch_norm=True), f"{space_name}-cifar10"
    axes = Axes(distributions_of(space), kind_of, space.idle_parameters)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.db"
        file.write_bytes(lzma.decompress((RESULTS / STUDIES[space_name]).read_bytes()))
        runs = {
            level: [
                run
                for run in optuna.load_study(study_name=name + suffix, storage=f"sqlite:///{file}").get_trials()
                if run.user_attrs.get("status") == "completed"
            ]
            for level, suffix in LEVELS.items()
        }
    first: dict[str, FrozenTrial] = {}
    for trial in runs["short"]:
        first.setdefault(trial.user_attrs["id"], trial)

    full = {
        identity: some
        for identity, trial in first.items()
        if (some := [run for run in runs["full"] if run.user_attrs["id"] == identity])
        and not trial.user_attrs.get("point")
        and (name, trial.number) not in OUTSIDE
    }
    by_cost = sorted(full, key=lambda identity: first[identity].user_attrs["macs"])
    pilots = {by_cost[0], by_cost[-1]}

    def measured(identity: str, known: dict[str, list[FrozenTrial]]) -> Measured:
        trial = first[identity]
        accuracies = {
            level: tuple(run.user_attrs["accuracy"] for run in some if run.user_attrs["id"] == identity)
            for level, some in known.items()
        }
        accuracies["longer"] += tuple(later_runs.get(trial.user_attrs.get("point"), ()))
        costs = float(trial.user_attrs["macs"]), float(trial.user_attrs["params"])
        return Measured(axes.encode([axes.point(trial.params)])[0], costs, tuple(accuracies.values()))

    def predict(identity: str, known: dict[str, list[FrozenTrial]]) -> tuple[float, float]:
        mean, deviation, _ = believe([measured(each, known) for each in first], axes.kinds)
        place = list(first).index(identity)
        return 100 * float(mean[place]), 100 * float(deviation[place])

    others = [run for run in runs["full"] if run.user_attrs["id"] not in full]
    after_two = {**runs, "full": others + [full[identity][0] for identity in pilots]}
    for identity, own in full.items():
        begun = min(run.datetime_start for run in own if run.datetime_start)
        known = {level: [run for run in some if run.datetime_complete < begun] for level, some in runs.items()}
        promised, deviation = predict(identity, known)
        result = 100 * float(np.mean([run.user_attrs["accuracy"] for run in own]))
        row = {
            "study": name,
            "trial": first[identity].number,
            "promised then": round(100 * own[0].user_attrs["promised"][0], 2),
            "promised": round(promised, 2),
            "deviation": round(deviation, 2),
            "measured": round(result, 2),
            "seeds": len(own),
            "difference": round(promised - result, 2),
        }
        if identity not in pilots:
            row["difference after two"] = round(predict(identity, after_two)[0] - result, 2)
        yield row


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kept = json.loads((RESULTS / "longer_of_paper.json").read_text())
    rows = []
    for space in STUDIES:
        later = {run["point"]: [run["accuracy"]] for run in kept["runs"] if run["space"] == space and run["chosen"]}
        found = list(replay(space, later))
        for row in found:
            print(*(f"{key} {value}" for key, value in row.items()), sep=", ")
        for key in ("difference", "difference after two"):
            values = [row[key] for row in found if key in row]
            print(f"{space}: {key} {np.mean(values):+.2f} points on average, n {len(values)}", flush=True)
        rows += found
    if options.out:
        write_result(options.out, provenance(n=len(rows)), networks=rows)


if __name__ == "__main__":
    main()
