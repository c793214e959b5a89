"""The commands about searches: search, studies, front."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas.cli.options import (
    add_data_dir,
    add_image_size,
    add_recipe_options,
    add_space_options,
    add_studies_folder,
    add_worker_options,
    read_settings,
    worker_options,
)
from lrnas.cli.output import INTERRUPTED, NARROW, make_console, make_table, print_json
from lrnas.errors import LrnasError, MissingExtra

if TYPE_CHECKING:
    from lrnas.study.record import Record
    from lrnas.study.trials import Trial


def add_search_commands(commands: Any, data_help: str) -> list[argparse.ArgumentParser]:
    """Add them to the parser; they all take --json."""
    search = commands.add_parser(
        "search",
        help="search a space for networks that are accurate for their cost",
        description="Search a space: Optuna proposes networks, Ray Tune trains them. The same command continues a "
        "search that was stopped; a larger budget extends one.",
    )
    search.add_argument("--space", required=True, metavar="NAME", help="as in `lrnas spaces`, FILE.toml or timm:MODEL")
    search.add_argument("--budget", type=int, required=True, metavar="N", help="trials in all, the paper's included")
    search.add_argument("--name", metavar="STUDY", help="of the study (default: the space's and the data's)")
    search.add_argument("--data", metavar="NAME", help=f"{data_help} (default: cifar10 with a GPU, digits without)")
    add_data_dir(search)
    add_image_size(search)
    search.add_argument(
        "--trainable", metavar="MODULE:FUNCTION", help="train with a function of yours (see docs/own_training.md)"
    )
    search.add_argument("--input", type=_shape, metavar="CxHxW", help="with --trainable: the images it brings itself")
    search.add_argument("--classes", type=int, metavar="N", help="with --input: how many these have")
    add_recipe_options(search, "fast", "of a network trained in full (default: the recipe's; 3 on digits)")
    search.add_argument(
        "--min-epochs", type=int, metavar="N", help="before a network may be stopped early (default: a ninth of them)"
    )
    search.add_argument(
        "--batch-norm", action=argparse.BooleanOptionalAction, default=True, help="in every network (default: yes)"
    )
    add_space_options(search)
    search.add_argument(
        "--objectives",
        default="accuracy,macs",
        metavar="A,B",
        help="of accuracy, macs, params, latency (default: accuracy,macs)",
    )
    search.add_argument("--sampler", default="front", metavar="NAME", help="front (default), tpe, gp, nsga2 or random")
    for name, what, others in (
        ("max-macs", "multiply-accumulates at most", "dearer"),
        ("min-macs", "multiply-accumulates at least", "cheaper"),
        ("max-params", "parameters at most", "larger"),
    ):
        search.add_argument(
            f"--{name}", type=_number, metavar="N", help=f"{what}, 120M say; {others} networks are not trained"
        )
    search.add_argument("--max-latency", type=_milliseconds, metavar="MS", help="milliseconds for a batch at most")
    search.add_argument(
        "--latency-device", metavar="NAME", help="cpu or cuda: where latencies are measured (default: a GPU if any)"
    )
    search.add_argument("--latency-batch", type=int, default=1, metavar="N", help="images at a time (default: 1)")
    add_worker_options(search)
    search.add_argument("--storage", metavar="URL", help="a database, or journal:FILE (default: SQLite in the study)")
    search.add_argument("--warm-start", metavar="STUDY", help="take over what another study trained in full")
    search.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the sampler and of every training (default: 0)"
    )
    search.set_defaults(run=_search)

    studies = commands.add_parser(
        "studies",
        help="the studies there are; or delete one",
        description="The studies in a folder. With --delete, one of them goes, with its networks trained again, its "
        "weights and its folder; it does not ask back, but nothing goes that a search is working on.",
    )
    studies.add_argument("--delete", metavar="STUDY", help="delete this one, or STUDY@RECIPE, one of its retrainings")
    studies.add_argument("--storage", metavar="URL", help="where the one to delete is kept, if not in its folder")
    studies.set_defaults(run=_studies)

    front = commands.add_parser(
        "front",
        help="the networks of a study that no other one beats",
        description="The front of a study: networks trained in full that none beats in every objective.",
    )
    front.add_argument("study", nargs="?", metavar="STUDY", help="as in `lrnas studies` (default: the only one)")
    front.add_argument("--storage", metavar="URL", help="where it is kept, if not in its folder")
    front.set_defaults(run=_front)

    parsers = [search, studies, front]
    for command in parsers:
        add_studies_folder(command)
    return parsers


def _number(text: str) -> int:
    """A whole number, also as 120M or 1.5e8."""
    units = {"k": 1e3, "m": 1e6, "g": 1e9}
    unit = units.get(text[-1:].lower(), 1.0)
    try:
        number = round(float(text[:-1] if unit > 1 else text) * unit)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"a number, like 120M or 1.5e8; got {text!r}") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"a number above 0; got {text!r}")
    return number


def _milliseconds(text: str) -> float:
    try:
        number = float(text.removesuffix("ms"))
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"milliseconds above 0, like 2.5; got {text!r}")
    return number


def _shape(text: str) -> tuple[int, int, int]:
    """Channels, rows and columns."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"channels, rows and columns, like 3x64x64; got {text!r}")
    channels, rows, columns = map(int, parts)
    return channels, rows, columns


def _search(options: argparse.Namespace) -> int:
    try:
        from lrnas.searching.search import search
    except ImportError as error:
        raise MissingExtra("a search", error.name, "search") from None
    from lrnas.study.location import Whereabouts

    study = search(
        options.space,
        budget=options.budget,
        name=options.name,
        data=options.data,
        data_dir=options.data_dir,
        image_size=options.image_size,
        recipe=options.recipe,
        epochs=options.epochs,
        changes=read_settings(options.set, None),
        batch_norm=options.batch_norm,
        granularity=options.granularity,
        divisor=options.divisor,
        objectives=options.objectives.split(","),
        sampler=options.sampler,
        min_epochs=options.min_epochs,
        max_macs=options.max_macs,
        min_macs=options.min_macs,
        max_params=options.max_params,
        max_latency=options.max_latency,
        latency_device=options.latency_device,
        latency_batch=options.latency_batch,
        storage=options.storage,
        studies=options.studies,
        warm_start=options.warm_start,
        seed=options.seed,
        trainable=options.trainable,
        input_shape=options.input,
        num_classes=options.classes,
        **worker_options(options),
    )
    code = INTERRUPTED if study.interrupted else 0
    if options.json:
        print_json(_front_as_data(study))
    files = _write_files(study, Path(options.studies) / study.name)
    if options.json:
        return code
    _print_front(study)
    console = make_console()
    console.print(f"Written: {', '.join(str(file) for file in files)}")
    again = Whereabouts(options.studies, options.storage).command("front", study.name)
    console.print(f"Look again: {again}", soft_wrap=True)
    spent = study.spent()
    more = f" with a budget above {spent}" if spent >= options.budget else ""
    console.print(f"Go on:      the same command{more}")
    return code


def _studies(options: argparse.Namespace) -> None:
    from lrnas.study.folder import FIRST_SEARCH, study_names
    from lrnas.study.open import open_study

    if options.delete is not None:
        _delete(options)
        return
    if options.storage is not None:
        raise LrnasError("--storage goes with --delete; got it alone; `lrnas front STUDY --storage URL` shows a study")
    found = []
    for name in study_names(options.studies):
        try:
            found.append(_overview(open_study(name, studies=options.studies)))
        except LrnasError as error:
            print(f"lrnas: {error}", file=sys.stderr)
    if options.json:
        print_json(found)
        return
    if not study_names(options.studies):
        print(f"There are no studies in {options.studies} yet; {FIRST_SEARCH}")
        return
    columns = ("trained", "stopped", "on the front", "best")
    table = make_table(f"Studies in {options.studies}", ["study", "space", "data"], columns)
    for row in found:
        best = "–" if row["best"] is None else f"{100 * row['best']:.2f} %"
        numbers = (str(row["completed"]), str(row["stopped"]), str(row["front"]), best)
        table.add_row(row["study"], row["space"], row["data_name"], *numbers)
    make_console().print(table)


def _delete(options: argparse.Namespace) -> None:
    from lrnas.study.folder import delete_study

    deleted = delete_study(
        options.delete,
        storage=options.storage,
        studies=options.studies,
        say=lambda line: print(line, file=sys.stderr),
    )
    if options.json:
        print_json(deleted.to_dict())
        return
    for name, number in deleted.trials.items():
        print(f"Deleted: study {name}, {number:,} trials")
    if deleted.folder is not None:
        print(f"Deleted: folder {deleted.folder}")


def _front(options: argparse.Namespace) -> None:
    from lrnas.study.folder import only_study
    from lrnas.study.open import open_study

    name = options.study or only_study(options.studies, options.storage)
    study = open_study(name, storage=options.storage, studies=options.studies)
    if options.json:
        print_json(_front_as_data(study))
    else:
        _print_front(study)


def _overview(study: Record) -> dict[str, Any]:
    from lrnas.study.manifest import data_name

    summary = study.summary()
    counts, front = summary.counts, summary.front
    return {
        "study": study.name,
        "space": study.manifest["source"],
        "data": study.manifest["data"],
        "data_name": data_name(study.manifest),
        "completed": counts.get("completed", 0),
        "stopped": counts.get("stopped", 0),
        "front": len(front),
        "best": max((trial.accuracy or 0.0 for trial in front), default=None),
    }


def _front_as_data(study: Record) -> dict[str, Any]:
    summary = study.summary()
    return {
        "study": study.name,
        "manifest": study.manifest,
        "counts": summary.counts,
        "hypervolume": summary.hypervolume,
        "front": [_as_data(study, trial) for trial in summary.front],
        "paper": [_as_data(study, trial) for trial in _paper_trials(study, summary.trials)],
    }


def _as_data(study: Record, trial: Trial) -> dict[str, Any]:
    names = [name for name in study.columns if name != "status"]
    return {**{name: getattr(trial, name) for name in names}, "architecture": trial.architecture.to_dict()}


def _paper_trials(study: Record, trials: list[Trial]) -> list[Trial]:
    points = study.manifest["space"]["points"]
    return [trial for trial in trials if trial.point in points and trial.status == "completed"]


def _print_front(study: Record) -> None:
    summary = study.summary()
    front = summary.front
    console = make_console()
    if not front:
        console.print(f"{study.name} has no network trained in full yet.")
        return
    paper = _paper_trials(study, summary.trials)
    full = [trial for trial in summary.trials if trial.status == "completed"]
    whole = next((trial for trial in full if trial.point and trial.point == study.baseline), None)
    dense = whole.macs if whole else _baseline_macs(study, front[0])
    latency = study.manifest.get("latency")
    is_narrow = console.width < NARROW
    columns = {"trial": True, "accuracy": True, "MACs": True, "share": not (is_narrow and latency)}
    columns |= {"parameters": not is_narrow or "params" in study.costs}
    columns |= {"latency": bool(latency), "share of it": bool(latency)}
    kept = [column for column, is_kept in columns.items() if is_kept]
    beside = ", and the paper's networks beside it" if paper else ""
    table = make_table(f"{study.name}: the front{beside}", ["network"], kept)
    table.add_column("", no_wrap=True)
    for trial in sorted({trial.number: trial for trial in (*front, *paper)}.values(), key=study.cheapest_first):
        timed = 0.0 if trial.latency is None else trial.latency
        cells = {
            "trial": str(trial.number),
            "accuracy": f"{100 * (trial.accuracy or 0):.2f} %",
            "MACs": f"{trial.macs:,}",
            "share": f"{trial.macs / dense:.3f}" if dense else "–",
            "parameters": f"{trial.params:,}",
            "latency": f"{timed:.3f} ms" if timed else "–",
            "share of it": f"{timed / whole.latency:.3f}" if timed and whole and whole.latency else "–",
        }
        mark = ("front" if trial.on_front else "beaten") + (", paper" if trial in paper else "")
        table.add_row(trial.point or trial.identity, *(cells[column] for column in kept), mark)
    console.print(table)
    if latency:
        threads = f", threads: {latency['threads']}" if latency["threads"] else ""
        batch = f"{latency['dtype']}, batch {latency['batch']}{threads}"
        console.print(f"Latency on {latency['hardware']}, {batch}: the sum of measured layers (docs/profile.md).")
    console.print("Accuracy on validation images, after the study's own training; `lrnas retrain` tests them.")


def _baseline_macs(study: Record, trial: Trial) -> int | None:
    """Of the network that others are compared with, where it was not trained; None where that is not known.

    Any trial tells what images it would have been given.
    """
    from lrnas.arch.architecture import Architecture
    from lrnas.models.plan import make_plan
    from lrnas.study.references import StudyNetwork

    named = study.manifest["space"]["points"] | study.manifest["space"]["seeds"]
    if study.baseline is None:
        return None
    try:
        shape = StudyNetwork(study, trial).image_shape
    except LrnasError:  # counted by another lrnas, say
        return None
    network = Architecture.from_dict(named[study.baseline])
    return make_plan(network, shape.size, shape.num_classes, shape.channels, check_fit=False).cost.macs


def _write_files(study: Record, folder: Path) -> list[Path]:
    """The front as a table, and as a picture where matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "front.csv"]
    table = study.to_pandas()
    table[table["on_front"]].sort_values(study.costs[0]).to_csv(files[0], index=False)
    try:
        from lrnas.reporting.figures.study_plots import plot_front
    except ImportError:
        print("lrnas: no picture without matplotlib; pip install 'lrnas[plot]'", file=sys.stderr)
    else:
        plot_front(study, folder / "front.png")
        files += [folder / "front.png"] if (folder / "front.png").exists() else []
    return files
