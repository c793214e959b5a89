"""Use the sampler of lrnas in your own Optuna study: `python examples/sampler_in_optuna.py`, seconds on a CPU.

The sampler knows the costs of each point before it is evaluated, and predicts only the accuracy. In this example, a
formula replaces training.
"""

import argparse
import math

import optuna

import lrnas

SIZE, CLASSES = 32, 10
MOST_MACS = 220e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=30, help="default: 30")
    options = parser.parse_args()

    space = lrnas.load_space("nin")
    distributions = lrnas.distributions_of(space)

    def costs_of(params: dict[str, object]) -> dict[str, float]:
        cost = lrnas.make_plan(space.architecture(params), SIZE, CLASSES, deployed=True).cost
        return {"macs": cost.macs, "params": cost.params}

    sampler = lrnas.FrontSampler(
        costs_of,
        ["macs"],
        distributions,
        is_allowed=lambda costs: costs["macs"] <= MOST_MACS,
        other_costs=["params"],  # no objective, but helps to predict the accuracy
        seed=0,
    )
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for _ in range(options.trials):
        trial = study.ask(distributions)
        macs = costs_of(trial.params)["macs"]
        accuracy = 1 - 0.6 * math.exp(-math.log10(macs / 1e6))  # your own code would train the network here
        study.tell(trial, [accuracy, macs])
    for best in sorted(study.best_trials, key=lambda trial: trial.values[1]):
        print(f"trial {best.number}: {100 * best.values[0]:.2f} % at {best.values[1]:,.0f} MACs")


if __name__ == "__main__":
    main()
