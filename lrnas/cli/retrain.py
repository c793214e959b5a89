"""The command `lrnas retrain`."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from lrnas._messages import percent
from lrnas.cli.options import CHANGE_HELP, WORKERS, add_command, add_option, add_settings, call, needs_extra
from lrnas.cli.output import exit_code, make_console, make_table, print_result
from lrnas.errors import LrnasError
from lrnas.recipes import RECIPES
from lrnas.searching.settings import FLAG, WHOLE, Kind, check_training
from lrnas.study.location import Whereabouts

if TYPE_CHECKING:
    from lrnas.searching.retrain import RetrainingPlan
    from lrnas.study.retrained import Retrained
    from lrnas.study.study import Study
    from lrnas.study.verdicts import Verdict

SHOWING = ("--json", "--studies", "--storage")
"""Options that only concern showing results."""


def add_commands(commands: Any) -> None:
    """Add the command to the program."""
    retrain = add_command(
        commands,
        "retrain",
        _retrain,
        "train networks of a study in full, over several seeds, and test them",
        "Train networks of a study, and the reference networks of its space, in full and over several seeds. Test each "
        "run once, and show which reference networks are significantly worse (see docs/retrain.md). The same command "
        "continues a retraining that was stopped; more seeds extend it. With STUDY@RECIPE, only show the results so "
        "far.",
    )
    text = "Name of the study, see `lrnas studies`; or STUDY@RECIPE, one of its retrainings."
    retrain.add_argument("study", metavar="STUDY", help=text)
    retrain.add_argument(
        "--front",
        action="store_true",
        default=None,
        help="Train the networks on the front (default unless --trials is given). After a search with --beat SHARE, "
        "the default is: for each reference network, the most accurate one that costs at most this share.",
    )
    kind = Kind("numbers of trials separated by commas", "12,40", _numbers)
    text = "Train the networks of these trials, given by their numbers in the study (default: none)"
    add_option(retrain, "--trials", kind, "N,N", text, [])
    text = "Train the reference networks, too: the paper's in the spaces of lrnas, else the unchanged model"
    add_option(retrain, "--points", FLAG, "", text, True)
    add_option(retrain, "--seeds", WHOLE, "N", "Train each network N times, with different random seeds", 3)
    add_settings(retrain, "recipe", default="full")
    add_settings(retrain, "epochs", help="Train for N epochs (default: the recipe's)")
    text = "Data set of the search, if its images were moved (default: where the search read them)"
    add_settings(retrain, "data", help=text)
    add_settings(retrain, "set", help=CHANGE_HELP)
    text = "Show what would be trained, what is done already, and how long it would take. Nothing is written."
    retrain.add_argument("--dry-run", action="store_true", help=text)
    add_settings(retrain, "image_memory", "pack", "data_dir", "studies", "storage", *WORKERS)


def _numbers(text: str) -> list[int]:
    return list(dict.fromkeys(map(int, text.split(","))))


def _retrain(options: argparse.Namespace) -> int:
    if "@" in options.study:
        _check_only_shows(options)
    check_training(options.recipe, options.set, options.epochs, options.data)  # before anything heavy is imported
    with needs_extra("retraining", "search"):
        import scipy  # noqa: F401  # for the verdicts, after all training

        from lrnas.study.open import open_study
    from lrnas.study.retrained import read_retrained
    from lrnas.study.verdicts import judge

    if "@" in options.study:
        study = call(open_study, options, name=options.study)
    else:
        from lrnas.searching.retrain import plan_retraining, retrain

        if options.dry_run:
            plan = call(plan_retraining, options)
            print_result(options, plan.to_dict, lambda: _print_plan(plan))
            return 0
        study = call(retrain, options)
    retrained = read_retrained(study)
    assert retrained is not None
    verdicts = judge(retrained.finals)
    print_result(
        options,
        lambda: _as_data(study, retrained, verdicts),
        lambda: _print_finals(study, retrained, verdicts),
    )
    return exit_code(study.interrupted)


def _check_only_shows(options: argparse.Namespace) -> None:
    """Raise an error if there are options of a training: with STUDY@RECIPE, nothing is trained."""
    ignored = [name for name in options.given if not any(known.startswith(name) for known in SHOWING)]
    if ignored:
        study, _, label = options.study.partition("@")
        recipe, *changes = label.split(",")
        file = "" if recipe in RECIPES else ".toml"
        changed = "".join(f" --set {change}" for change in changes).replace("--set epochs=", "--epochs ")
        command = Whereabouts(options.studies, options.storage).command("retrain", study)
        raise LrnasError(
            f"STUDY@RECIPE only shows results; got {', '.join(ignored)}; leave that out, or extend the "
            f"retraining with `{command} --recipe {recipe}{file}{changed} --seeds N`"
        )


def _as_data(study: Study, retrained: Retrained, verdicts: list[Verdict]) -> dict[str, Any]:
    from lrnas.study.retrained import final_front
    from lrnas.study.verdicts import TEST

    return {
        "retraining": study.name,
        "manifest": study.manifest,
        "counts": study.counts(),
        "left": retrained.left,
        "networks": [final.to_dict() for final in retrained.finals],
        "final_front": [final.identity for final in final_front(retrained.finals)],
        "test": TEST,
        "verdicts": [verdict.to_dict() for verdict in verdicts],
    }


def _print_plan(plan: RetrainingPlan) -> None:
    """Print what a retraining would train, and how long that would take."""
    console = make_console()
    (_, *columns), *rows = plan.table()
    table = make_table(plan.title, ["network"], columns, optional=["parameters", "trial"])
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(plan.time)
    if plan.unfinished:
        console.print(f"{plan.unfinished}.", soft_wrap=True)
    console.print("Nothing was written. Without --dry-run, the same command starts the retraining.")


def _print_finals(study: Study, retrained: Retrained, verdicts: list[Verdict]) -> None:
    """Print the runs that are not done, the tested networks and the verdicts."""
    from lrnas.study.manifest import data_name
    from lrnas.study.retrained import front_marks
    from lrnas.study.verdicts import TEST

    console = make_console()
    manifest, finals = study.manifest, retrained.finals
    if retrained.left:
        again = f"`{study.where.command('retrain', retrained.study)}` with its options"
        console.print(f"Runs that are not done: {retrained.left}; {again} continues them.", soft_wrap=True)
    for final in finals:
        if final.failed:
            console.print(f"{final.name}: runs that failed: {final.failed}, the last one: {final.reason or 'unknown'}")
    if not any(final.accuracies or final.diverged for final in finals):
        console.print(f"{study.name} has no network that was tested yet.")
        return
    whole = next((final for final in finals if final.name == study.baseline), None)
    dense = whole.macs if whole else study.dense_macs
    front = front_marks(finals)
    epochs = manifest["recipe"]["epochs"]
    recipe = f"recipe of {epochs} epoch{'s' * (epochs != 1)} at most"
    title = f"{study.name}: test images of {data_name(manifest)}, {recipe}"
    further = [name for name in ("diverged", "failed", "open") if any(getattr(final, name) for final in finals)]
    timed = ["latency"] * all(final.latency is not None for final in finals)
    known = ("trial", "MACs", "share", "parameters", *timed, "test accuracy", "n", "runs")
    optional = ["parameters", "runs", *reversed(further), "MACs", "share"]  # not the trial: verdicts name it
    text = "runs: their numbers, one per seed; STUDY@RECIPE:RUN, with such a number, is also the name of a network."
    table = make_table(title, ["network"], [*known, *further], [""], optional, {"runs": text})
    for final in finals:
        marks = [mark for mark in (front.get(final.identity), "reference" if final.point else None) if mark]
        table.add_row(
            final.name,
            "–" if final.trial is None else str(final.trial),
            f"{final.macs:,}",
            f"{final.macs / dense:.3f}" if dense else "–",
            f"{final.params:,}",
            *(f"{final.latency:.3f} ms" for _ in timed),
            percent(final.mean if final.accuracies else None, final.deviation),
            str(len(final.accuracies)),
            ", ".join(map(str, final.runs)),
            *(str(getattr(final, name)) for name in further),
            ", ".join(marks),
        )
    console.print(table)
    console.print("Accuracy on the test images, measured once per run, after training; mean ± sd of n seeds.")
    console.print("The front compares these means and ignores the noise between seeds.")
    if "front by fewer runs" in front.values():
        console.print("A network with fewer runs may be on the front by luck: train all networks over as many seeds.")
    if not retrained.has_points:
        console.print(f"{manifest['source']} has no reference networks: there is nothing to compare these with.")
    for verdict in verdicts:
        console.print(str(verdict))
    if verdicts:
        console.print(f"Test: {TEST}.")
    if ":" not in study.name:  # else NAME:NETWORK would be ambiguous
        source = shlex.quote(f"{study.name}:NETWORK") + study.where.options()
        console.print(f"Weights: lrnas export {source} (the first seed of NETWORK)", soft_wrap=True)
