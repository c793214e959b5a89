"""Which sampler finds the best networks with a number of trials?

Training is replaced by a stand-in that was made from real trainings on CIFAR-10 (`benchmarks.table.stand_in`), so that
every sampler can be run for many seeds. All else is the code of a search: proposals, ledger, study and samplers. A
trial gives the accuracy of the stand-in after short training, plus noise as between seeds; costs are exact. With
`--at-a-time 10`, ten trials are in training at once, and the time that each takes grows with its MACs. All samplers
start with the named networks of the space, and propose networks between 0.1 and 1 of the dense network's MACs, which is
where networks were trained.

    python -m benchmarks.samplers --evaluator table:nin --out results/samplers.jsonl
    python -m benchmarks.samplers --evaluator table:nin --out results/samplers.jsonl --show

Runs are appended to the file one by one, and the same command goes on where it ended. After a number of finished
trials, networks are chosen by the accuracies that lrnas believes in (`promotion.believe`), as it does for finals with
any sampler. They are valued by the accuracies after full training, in percent and without noise: luck does not count.

- `at 60 %`: the chosen network that costs at most 60 % of one of the paper's networks, mean over these (as far as 60 %
  of their cost are above 0.1 of the dense network's MACs: no cheaper networks were trained);
- `volume`: the chosen front between 0.1 and 1 of the dense network's MACs: the mean accuracy over these costs.
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.common import costs as count_costs, make_parser, write_result
from benchmarks.table.networks import DENSE, LOWEST, dense_macs
from benchmarks.table.records import STAND_IN_FILES, read_records
from benchmarks.table.stand_in import StandIn
from lrnas.arch.architecture import Architecture
from lrnas.sampling.promotion import Measured, believe
from lrnas.searching.proposals import Proposals
from lrnas.searching.samplers import make_sampler
from lrnas.study.ledger import Ledger
from lrnas.study.objectives import Limits, pick_objectives
from lrnas.study.study import Study
from lrnas.training.provenance import provenance

NOISE = 0.003
"""Standard deviation of accuracies between seeds of short trainings."""
LOOKS = (20, 40, 80, 160)
"""Numbers of finished trials after which networks are chosen."""
SHARE = 0.6
SAMPLERS = ("front", "tpe", "gp", "nsga2", "random", "qlognehvi", "smac")


class Replay:
    """A search whose trainings are replaced by a stand-in.

    Args:
        stand_in: Accuracies of networks.
        space: The name of the space.
        sampler: The name of a sampler, of lrnas or of `benchmarks.outside_samplers`.
        seed: Seed of the sampler and of the noise.
    """

    def __init__(self, stand_in: StandIn, space: str, sampler: str, seed: int) -> None:
        self.stand_in, self.dense = stand_in, dense_macs(space)
        goals = pick_objectives(["accuracy", "macs"])
        record = optuna.create_study(directions=[goal.direction for goal in goals])
        manifest = {
            "space": stand_in.space.to_dict(),
            "reference": {"macs": self.dense, "params": 1},
            "recipe": {},
            "image_size": 32,
            "channels": 3,
            "num_classes": 10,
        }
        self.study = Study("benchmark", record, goals, manifest)
        limits = Limits(min_macs=round(LOWEST * self.dense), max_macs=self.dense)
        self.proposals = Proposals(Ledger(self.study), stand_in.space, _costs, limits)
        record.sampler = _make_sampler(sampler, seed, self.proposals)
        self.proposals.enqueue({**stand_in.space.points, **stand_in.space.uniform})
        self.noise = np.random.default_rng(seed)
        most = (SHARE * _costs(network)["macs"] for network in stand_in.space.points.values())
        self.most = [macs for macs in most if macs > LOWEST * self.dense]
        """MACs of the networks to be chosen, at most."""
        self.found: list[tuple[float, Measured, float]] = []
        """MACs, what was measured, and the true accuracy after full training, of every finished trial."""

    def run(self, trials: int, at_a_time: int) -> Iterator[int]:
        """Run the search; yields the number of finished trials after each.

        Args:
            trials: How many trials to run.
            at_a_time: How many of them are in training at once.
        """
        running: list[tuple[float, int]] = []  # when each training ends, and its trial
        now = 0.0
        self.seconds: list[float] = []
        for started in range(trials + at_a_time):
            if started >= at_a_time:
                now, number = heapq.heappop(running)
                self._finish(number)
                yield len(self.found)
            if started < trials:
                before = time.perf_counter()
                proposal = self.proposals.ask()
                self.seconds.append(time.perf_counter() - before)
                assert proposal is not None
                heapq.heappush(running, (now + 0.3 + proposal.macs / self.dense, proposal.number))

    def _finish(self, number: int) -> None:
        trial = self.study.optuna_trial(number)
        macs, params = trial.user_attrs["macs"], trial.user_attrs["params"]
        short, full = self.stand_in.predict(trial.params, macs, params)
        measured = min(0.999, max(0.1, short + NOISE * self.noise.standard_normal()))
        self.proposals.ledger.report_epoch(number, [measured], 1.0)
        self.proposals.ledger.complete(number, measured)
        axes = self.proposals.axes
        features = axes.encode([axes.point(trial.params)])[0]
        self.found.append((macs, Measured(features, (macs, params), ((measured,),)), full))

    def inside(self) -> float:
        """Share of the proposed points whose networks are within the limits; others are refused, and cost no trial."""
        trials = [trial for trial in self.study.optuna_trials() if "point" not in trial.user_attrs]
        return 1 - float(np.mean([trial.user_attrs.get("status") == "limit" for trial in trials]))

    def measures(self) -> dict[str, float]:
        """The two measures, in percent of accuracy."""
        believed = believe([measured for _, measured, _ in self.found], self.proposals.axes.kinds)[0]

        def chosen(most: float) -> float:
            """The true accuracy of the network that is believed to be best among those with at most these MACs."""
            allowed = [(own, full) for own, (macs, _, full) in zip(believed, self.found, strict=True) if macs <= most]
            return max(self.stand_in.lowest, max(allowed)[1]) if allowed else self.stand_in.lowest

        shares = np.linspace(LOWEST, 1.0, 901)
        return {
            "at 60 %": 100 * float(np.mean([chosen(most) for most in self.most])),
            "volume": 100 * float(np.mean([chosen(share * self.dense) for share in shares])),
        }


def _costs(architecture: Architecture) -> dict[str, float]:
    return count_costs(architecture, 32, 10, 3)


def _make_sampler(name: str, seed: int, proposals: Proposals) -> optuna.samplers.BaseSampler:
    if name in ("qlognehvi", "smac"):
        from benchmarks.outside_samplers import OUTSIDE

        make: Callable[[Proposals, int], optuna.samplers.BaseSampler] = OUTSIDE[name]
        return make(proposals, seed)
    return make_sampler(name, seed, proposals)


Job = tuple[str, int, str, int]
"""Sampler, trials at a time, space, seed."""


def run_job(job: Job, trials: int) -> dict[str, Any]:
    """One search with a number of trials, as a line of the file."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    sampler, at_a_time, space, seed = job
    replay = Replay(_stand_in(space), space, sampler, seed)
    found = {finished: replay.measures() for finished in replay.run(trials, at_a_time) if finished in LOOKS}
    seconds = round(float(np.mean(replay.seconds)), 4)
    line = {"sampler": sampler, "at_a_time": at_a_time, "space": space, "seed": seed, "inside": replay.inside()}
    return {**line, "seconds_per_ask": seconds, "after": found}


_STAND_INS: dict[str, StandIn] = {}


def _stand_in(space: str) -> StandIn:
    if space not in _STAND_INS:
        _STAND_INS[space] = StandIn(space, read_records(STAND_IN_FILES))
    return _STAND_INS[space]


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The runs in a file; of runs with the same settings and seed, the first."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        run = json.loads(line)
        found.setdefault(key_of(run), run)
    return list(found.values())


def key_of(run: dict[str, Any]) -> tuple[Any, ...]:
    return run["sampler"], run["at_a_time"], run["space"], run["seed"]


def summarise(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and standard errors over seeds, for every sampler, number of trials at a time, and number of trials."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["space"], line["at_a_time"], line["sampler"]].append(line)
    table = []
    for (space, at_a_time, sampler), some in sorted(groups.items()):
        entry = {"space": space, "at_a_time": at_a_time, "sampler": sampler, "seeds": len(some)}
        entry["seconds_per_ask"] = round(float(np.median([line["seconds_per_ask"] for line in some])), 3)
        entry["inside"] = round(float(np.mean([line["inside"] for line in some])), 3)
        for measure in ("at 60 %", "volume"):
            for look in LOOKS:
                values = [line["after"][str(look)][measure] for line in some if str(look) in line["after"]]
                if not values:
                    continue
                error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
                entry[f"{measure} after {look}"] = [round(float(np.mean(values)), 3), round(float(error), 3)]
        table.append(entry)
    return table


def show(table: Sequence[dict[str, Any]]) -> None:
    for entry in table:
        print(f"{entry['space']}, {entry['at_a_time']:2d} at a time, {entry['sampler']:10s} n {entry['seeds']}", end="")
        for measure in ("at 60 %", "volume"):
            found = (entry.get(f"{measure} after {look}") for look in LOOKS)
            parts = ("–" if pair is None else "{:.2f} ± {:.2f}".format(*pair) for pair in found)
            print(f"; {measure}: {', '.join(parts)}", end="")
        print(f"; {entry['seconds_per_ask']:.2f} s per ask, {entry['inside']:.0%} inside")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--evaluator", required=True, help=f"table:SPACE, one of {', '.join(DENSE)}")
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[10, 1])
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds (default: 20)")
    parser.add_argument("--trials", type=int, default=max(LOOKS), help="trials of each search (default: 160)")
    parser.add_argument("--processes", type=int, default=1, help="searches at the same time (default: 1)")
    parser.add_argument("--out", type=Path, required=True, help="file of lines of JSON that runs are appended to")
    parser.add_argument("--show", action="store_true", help="only print what the file has")
    parser.add_argument("--summary", type=Path, help="JSON file to write the means to, with provenance")
    options = parser.parse_args()
    space = options.evaluator.removeprefix("table:")
    if not options.show:
        _run_all(options, space)
    lines = read_lines(options.out)
    table = summarise(lines)
    show(table)
    facts = provenance(seeds=sorted({line["seed"] for line in lines}), n=len(lines))
    if options.summary:
        spaces = sorted({line["space"] for line in lines})
        errors = {name: _stand_in(name).errors() for name in spaces}
        write_result(options.summary, facts, stand_in_errors=errors, noise=NOISE, table=table)


def _run_all(options: argparse.Namespace, space: str) -> None:
    done = {key_of(line) for line in read_lines(options.out)}
    jobs = [
        (sampler, at_a_time, space, seed)
        for seed in range(options.seeds)
        for at_a_time in options.at_a_time
        for sampler in options.samplers
    ]
    left = [job for job in jobs if job not in done]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    _stand_in(space)  # before the processes are forked, which then share it
    with multiprocessing.get_context("fork").Pool(options.processes) as pool, options.out.open("a") as file:
        for line in pool.imap_unordered(partial(run_job, trials=options.trials), left):
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
