"""The command `lrnas retrain`."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from lrnas.cli.options import WORKERS, add_settings
from lrnas.cli.output import INTERRUPTED, NARROW, make_console, make_table, print_json
from lrnas.errors import MissingExtra

if TYPE_CHECKING:
    from lrnas.searching.retrain import Retraining
    from lrnas.study.location import Whereabouts
    from lrnas.study.retrained import Final, Retrained
    from lrnas.study.study import Study
    from lrnas.study.verdicts import Verdict


def add_retrain_command(commands: Any) -> argparse.ArgumentParser:
    """Add it to the parser; it takes --json."""
    retrain: argparse.ArgumentParser = commands.add_parser(
        "retrain",
        help="train networks of a study in full, over several seeds, and test them",
        description="Train networks of a study and the paper's networks of its space in full, over several seeds, test "
        "each once, and say which of the paper's are beaten beyond noise (see docs/retrain.md). The same command "
        "continues one that was stopped; more seeds extend it. STUDY@RECIPE shows what there is and trains nothing.",
    )
    retrain.add_argument("study", metavar="STUDY", help="as in `lrnas studies`")
    retrain.add_argument("--front", action="store_true", help="the networks on its front (default without --trials)")
    retrain.add_argument(
        "--trials", type=_numbers, default=[], metavar="N,N", help="these networks, by their numbers in the study"
    )
    retrain.add_argument(
        "--points",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the paper's networks of its space (default: yes)",
    )
    retrain.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each network (default: 3)")
    add_settings(retrain, "recipe", default="paper")
    add_settings(retrain, "epochs", help="Train for N epochs (default: the recipe's).")
    add_settings(retrain, "data", help="The study's data set, to say where its images are now (default: as searched).")
    add_settings(retrain, "set", "data_dir", "studies", "storage", *WORKERS)
    retrain.set_defaults(run=_retrain)
    return retrain


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"numbers of trials, like 12,40; got {text!r}")
    return list(dict.fromkeys(map(int, parts)))


def _retrain(options: argparse.Namespace) -> int:
    try:
        import scipy  # noqa: F401  # what judges in the end is found missing at the beginning

        from lrnas.study.open import open_study
    except ImportError as error:
        raise MissingExtra("retraining", error.name, "search") from None
    from lrnas.study.location import Whereabouts
    from lrnas.study.retrained import read_retrained
    from lrnas.study.verdicts import judge

    where = Whereabouts(options.studies, options.storage)
    code = 0
    if "@" in options.study:
        record = open_study(options.study, storage=options.storage, studies=options.studies, allow_retraining=True)
        retrained = read_retrained(record)
        assert retrained is not None
        left, command = retrained.left, f"`{where.command('retrain', retrained.study)}` with its options"
    else:
        retraining = _train(options)
        record, left = retraining.study, retraining.left()
        code = INTERRUPTED if record.interrupted else 0
        retrained, command = read_retrained(record), "the same command"
        assert retrained is not None
    verdicts = judge(retrained.finals)
    if options.json:
        _print_json(record, retrained, verdicts, left)
    else:
        _print_finals(record, retrained, verdicts, f"{left}; {command} goes on with them" if left else "", where)
    return code


def _train(options: argparse.Namespace) -> Retraining:
    from lrnas.searching.progress import progress_view
    from lrnas.searching.retrain import retrain

    with progress_view() as events:
        return retrain(
            options.study,
            trials=options.trials,
            front=options.front or not options.trials,
            points=options.points,
            seeds=options.seeds,
            recipe=options.recipe,
            epochs=options.epochs,
            changes=options.set,
            data=options.data,
            data_dir=options.data_dir,
            storage=options.storage,
            studies=options.studies,
            events=events,
            **{name: getattr(options, name) for name in WORKERS},
        )


def _print_json(record: Study, retrained: Retrained, verdicts: list[Verdict], left: int) -> None:
    from lrnas.study.retrained import final_front
    from lrnas.study.verdicts import TEST

    print_json(
        {
            "retraining": record.name,
            "manifest": record.manifest,
            "counts": record.counts(),
            "left": left,
            "networks": [final.to_dict() for final in retrained.finals],
            "final_front": [final.identity for final in final_front(retrained.finals)],
            "test": TEST,
            "verdicts": [verdict.to_dict() for verdict in verdicts],
        }
    )


def _print_finals(record: Study, retrained: Retrained, verdicts: list[Verdict], left: str, where: Whereabouts) -> None:
    """With `left` in words, if there is anything left."""
    from lrnas.study.manifest import data_name
    from lrnas.study.retrained import front_marks
    from lrnas.study.verdicts import TEST

    console = make_console()
    manifest, finals = record.manifest, retrained.finals
    if left:
        console.print(f"Runs that are not done: {left}.", soft_wrap=True)
    for final in finals:
        if final.failed:
            console.print(f"{final.name}: runs that failed: {final.failed}, the last one: {final.reason or 'unknown'}")
    if not any(final.accuracies or final.diverged for final in finals):
        console.print(f"{record.name} has no network that was tested yet.")
        return
    whole = next((final for final in finals if final.name == record.baseline), None)
    front = front_marks(finals)
    epochs = manifest["recipe"]["epochs"]
    ending = "epoch" if epochs == 1 else "epochs"
    title = f"{record.name}: test images of {data_name(manifest)}, of a recipe of {epochs} {ending} at most"
    further = [name for name in ("diverged", "failed", "open") if any(getattr(final, name) for final in finals)]
    is_narrow = console.width < NARROW
    known = ("trial", "MACs", "share", *(() if is_narrow else ("parameters",)), "test accuracy", "n", "runs")
    table = make_table(title, ["network"], [*known, *further])
    table.add_column("", no_wrap=True)
    for final in finals:
        marks = [mark for mark in (front.get(final.identity), "paper" if final.point else None) if mark]
        table.add_row(
            final.name,
            "–" if final.trial is None else str(final.trial),
            f"{final.macs:,}",
            f"{final.macs / whole.macs:.3f}" if whole else "–",
            *(() if is_narrow else (f"{final.params:,}",)),
            _accuracy(final),
            str(len(final.accuracies)),
            ", ".join(map(str, final.runs)),
            *(str(getattr(final, name)) for name in further),
            ", ".join(marks),
        )
    console.print(table)
    console.print("Accuracy on the test images, looked at once per run, when it was trained; mean ± sd of n seeds.")
    console.print("The front is by these means, whatever the noise between seeds.")
    if "front by fewer runs" in front.values():
        console.print("By fewer runs than others have, one may be there, or another not, by luck: train it as often.")
    if not retrained.has_points:
        console.print(f"{manifest['source']} has no networks of the paper: there is nothing to compare these with.")
    for verdict in verdicts:
        console.print(str(verdict))
    if verdicts:
        console.print(f"Test: {TEST}.")
    if ":" not in record.name:  # else no NAME:NETWORK can be told from it
        source = shlex.quote(f"{record.name}:NETWORK") + where.options()
        line = f"Weights: lrnas export {source} (of its first seed; or the number of a run)"
        console.print(line, soft_wrap=True, markup=False)


def _accuracy(final: Final) -> str:
    if not final.accuracies:
        return "–"
    spread = "" if final.deviation is None else f" ± {100 * final.deviation:.2f}"
    return f"{100 * final.mean:.2f}{spread} %"
