"""What would the current model have promised about networks of the kept studies, and what was measured?

    python -m benchmarks.promises --out results/promises.json

For each found network that was trained in full, accuracies are predicted from what was known when its first full
training began. The kept studies are older than the rule that some of the paper's networks are trained at level `longer`
too; such runs, trained later, are read from results/longer_of_paper.json.
"""

from __future__ import annotations

import json
import lzma
import tempfile
from collections.abc import Iterator
from datetime import datetime
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
SPACES = ("nin-deep", "vgg-deep")
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
        file.write_bytes(lzma.decompress((RESULTS / "studies" / name / "study.db.xz").read_bytes()))
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

    def measured(identity: str, before: datetime | None) -> Measured:
        trial = first[identity]
        known = {
            level: tuple(
                run.user_attrs["accuracy"]
                for run in some
                if run.user_attrs["id"] == identity and (before is None or run.datetime_complete < before)
            )
            for level, some in runs.items()
        }
        known["longer"] += tuple(later_runs.get(trial.user_attrs.get("point"), ()))
        costs = float(trial.user_attrs["macs"]), float(trial.user_attrs["params"])
        return Measured(axes.encode([axes.point(trial.params)])[0], costs, tuple(known.values()))

    for identity, trial in first.items():
        full = [run for run in runs["full"] if run.user_attrs["id"] == identity]
        is_found = not trial.user_attrs.get("point") and (name, trial.number) not in OUTSIDE
        if not full or not is_found:
            continue
        begun = min(run.datetime_start for run in full if run.datetime_start)
        mean, deviation, _ = believe([measured(each, begun) for each in first], axes.kinds)
        place = list(first).index(identity)
        result = 100 * float(np.mean([run.user_attrs["accuracy"] for run in full]))
        promised = 100 * float(mean[place])
        yield {
            "study": name,
            "trial": trial.number,
            "promised then": round(100 * full[0].user_attrs["promised"][0], 2),
            "promised": round(promised, 2),
            "deviation": round(100 * float(deviation[place]), 2),
            "measured": round(result, 2),
            "seeds": len(full),
            "difference": round(promised - result, 2),
        }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kept = json.loads((RESULTS / "longer_of_paper.json").read_text())
    rows = []
    for space in SPACES:
        later = {run["point"]: [run["accuracy"]] for run in kept["runs"] if run["space"] == space and run["chosen"]}
        found = list(replay(space, later))
        for row in found:
            print(*(f"{key} {value}" for key, value in row.items()), sep=", ")
        print(f"{space}: {np.mean([row['difference'] for row in found]):+.2f} points on average")
        rows += found
    if options.out:
        write_result(options.out, provenance(n=len(rows)), networks=rows)


if __name__ == "__main__":
    main()
