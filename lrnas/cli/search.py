"""The commands about searches: search, studies, clean, front."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrnas._messages import file_size, percent
from lrnas.cli.dry_run import print_estimate
from lrnas.cli.options import add_command, add_option, add_settings, call, needs_extra, open_named
from lrnas.cli.output import complain, exit_code, make_console, make_table, print_result, say
from lrnas.errors import LrnasError
from lrnas.searching.settings import FREE, PINNED, PLACE, SETTINGS, TEXT, check_settings, gather_settings
from lrnas.study.location import Whereabouts

if TYPE_CHECKING:
    import pandas as pd

    from lrnas.study.levels import Outcome
    from lrnas.study.study import Study, Trial

ONLY_FIRST = "The front has only networks with which every search begins"
"""Remark on a front without networks that the sampler proposed."""


def add_commands(commands: Any) -> None:
    """Add the commands to the program."""
    search = add_command(
        commands,
        "search",
        _search,
        "search a space for networks that are accurate for their cost",
        "Search a space: Optuna proposes networks, Ray Tune trains them. The same command continues a search that was "
        "stopped; a larger budget extends one.",
    )
    text = "Study file with settings, e.g. studies/nin-cifar10.toml; options win over the file. Or a space, as --space."
    search.add_argument("source", nargs="?", metavar="FILE", help=text)
    text = "Show what the search would train, and estimate its time, memory and disk space. Nothing is written."
    search.add_argument("--dry-run", action="store_true", help=text)
    groups = {title: search.add_argument_group(title) for title in (PINNED, FREE, PLACE)}
    for name, item in SETTINGS.items():
        add_settings(groups[item.group], name, default=argparse.SUPPRESS)

    studies = add_command(
        commands,
        "studies",
        _studies,
        "list the studies, or delete one",
        "List the studies in a folder. With --delete, delete a study with its retrainings, weights and folder, without "
        "confirmation. A study is not deleted while a search works on it.",
        is_brief=True,
    )
    text = "Delete this study; or STUDY@RECIPE, one of its retrainings; or STUDY@finals"
    add_option(studies, "--delete", TEXT, "STUDY", text)
    text = "With --delete: database URL, or journal:FILE, that holds the study (default: SQLite in its folder)"
    add_settings(studies, "storage", help=text)
    add_settings(studies, "studies")

    clean = add_command(
        commands,
        "clean",
        _clean,
        "delete weights of a search that are not needed any more",
        "Show how much room the weights take that a search can do without: those of networks with short training that "
        "are not on the front. With --yes, delete them. Accuracies and curves stay in the study, and weights of "
        "networks trained in full stay too.",
    )
    clean.add_argument("study", metavar="STUDY", help="Name of the study, see `lrnas studies`.")
    clean.add_argument("--yes", action="store_true", help="Delete them.")
    add_settings(clean, "studies", "storage")

    text = "Show the front of a study: the networks that no other one beats. A network beats another one if it is at "
    text += "least as good in every objective and better in one. Networks are compared at one level of training only."
    help_text = "show the networks of a study that no other one beats"
    front = add_command(commands, "front", _front, help_text, text, is_brief=True)
    text = "Name of the study, see `lrnas studies` (default: the only study)."
    front.add_argument("study", nargs="?", metavar="STUDY", help=text)
    text = "Level of training: short, longer or full (default: full if any network was trained in full, else short)"
    add_option(front, "--level", TEXT, "NAME", text)
    add_settings(front, "studies", "storage")


def _search(options: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(options).items() if name in SETTINGS}
    settings = gather_settings(options.source, given)
    check_settings(settings)  # before anything heavy is imported
    with needs_extra("a search", "search"):
        from lrnas.searching.estimate import estimate
        from lrnas.searching.search import search
    if options.dry_run:
        found = estimate(settings)
        print_result(options, found.to_dict, lambda: print_estimate(found))
        return 0
    from lrnas.reporting.suggested_commands import retrain_line
    from lrnas.study.levels import pick_level, tell_unfinished  # with Optuna

    study = search(settings)
    level = pick_level(study)
    print_result(options, lambda: _front_as_data(study, level), lambda: _print_front(study, level))
    files = _write_files(study, Path(settings.studies) / study.name)
    if not options.json:
        spent = study.spent()
        is_done = spent >= settings.budget and not study.interrupted
        more = f" with a budget above {spent}" if is_done else ""
        again = study.where.command("front", study.name)
        console = make_console()
        console.print(f"Written: {', '.join(map(str, files))}")
        console.print(f"Look again: {again}", soft_wrap=True)
        if study.budget >= settings.budget:  # else the space has no more networks
            console.print(f"Continue:   the same command{more}")
        test = retrain_line(study, study.where)
        if test is not None and study.short_summary().front and not tell_unfinished(study):
            console.print(f"Test:       {test.line}", soft_wrap=True)
    return exit_code(study.interrupted)


def _studies(options: argparse.Namespace) -> None:
    from lrnas.study.folder import FIRST_SEARCH, disk_use, study_folder, study_names
    from lrnas.study.open import open_study

    if options.delete is not None:
        _delete(options)
        return
    if options.storage is not None:
        raise LrnasError("--storage goes with --delete; got it alone; `lrnas front STUDY --storage URL` shows a study")
    names, found = study_names(options.studies), []
    for name in names:
        try:
            size = disk_use(study_folder(options.studies, name))
            found.append({**_overview(open_study(name, studies=options.studies)), "bytes": size})
        except LrnasError as error:
            complain(error)
    if names or options.json:
        print_result(options, lambda: found, lambda: _print_studies(found, options.studies))
    else:
        say(f"There are no studies in {options.studies} yet; {FIRST_SEARCH}")


def _print_studies(studies: list[dict[str, Any]], folder: str) -> None:
    texts, columns = ["study", "space", "data"], ["trained", "stopped", "level", "on the front", "best", "disk"]
    table = make_table(f"Studies in {folder}", texts, columns, optional=["data", "space", "stopped", "level"])
    for row in studies:
        cells = {
            "study": row["study"],
            "space": row["space"],
            "data": row["data_name"],
            "trained": str(row["completed"]),
            "stopped": str(row["stopped"]),
            "level": row["level"],
            "on the front": str(row["front"]),
            "best": percent(row["best"]),
            "disk": file_size(row["bytes"]),
        }
        table.add_row(*(cells[column] for column in (*texts, *columns)))
    console = make_console()
    console.print(table)
    if names := [name for row in studies for name in row["retrainings"]]:
        command = f"lrnas retrain NAME{Whereabouts(folder).options()}"
        console.print(f"Retrainings, which `{command}` shows: {' '.join(names)}", soft_wrap=True)


def _delete(options: argparse.Namespace) -> None:
    from lrnas.study.folder import delete_study

    deleted = call(delete_study, options, name=options.delete)

    def show() -> None:
        for name, number in deleted.trials.items():
            say(f"Deleted: study {name}, {number:,} trial{'s' * (number != 1)}")
        if deleted.folder is not None:
            say(f"Deleted: folder {deleted.folder}")

    print_result(options, deleted.to_dict, show)


def _clean(options: argparse.Namespace) -> None:
    from lrnas.study.folder import delete_checkpoints, spare_checkpoints

    study = open_named(options, options.study)
    found = call(spare_checkpoints, options, study=study)
    if options.yes:
        delete_checkpoints(found)

    def show() -> None:
        many = f"weights of {len(found.folders):,} short trainings that are not on their front, {file_size(found.size)}"
        if not found.folders:
            say(f"{study.name} has no weights that it can do without")
        elif options.yes:
            say(f"Deleted: {many}")
        else:
            say(f"{study.name} can do without the {many}; nothing is deleted yet: add --yes")

    data = {"folders": [str(folder) for folder in found.folders], "bytes": found.size, "deleted": options.yes}
    print_result(options, lambda: data, show)


def _front(options: argparse.Namespace) -> None:
    study = open_named(options, options.study)
    from lrnas.study.levels import pick_level  # with Optuna

    study.skip_details()
    level = pick_level(study, options.level)
    print_result(options, lambda: _front_as_data(study, level), lambda: _print_front(study, level))


def _overview(study: Study) -> dict[str, Any]:
    from lrnas.study.levels import FULL, SHORT, read_level
    from lrnas.study.manifest import data_name
    from lrnas.study.retrained import final_front, retrained_recipes

    summary, finals = study.short_summary(), final_front(read_level(study))
    counts = summary.counts
    accuracies = [final.mean for final in finals] or [trial.accuracy or 0.0 for trial in summary.front]
    return {
        "study": study.name,
        "space": study.manifest["source"],
        "data": study.manifest["data"],
        "data_name": data_name(study.manifest),
        "completed": counts.get("completed", 0),
        "stopped": counts.get("stopped", 0),
        "level": FULL if finals else SHORT,
        "front": len(accuracies),
        "best": max(accuracies, default=None),
        "retrainings": [f"{study.name}@{recipe}" for recipe in retrained_recipes(study)],
    }


def _front_as_data(study: Study, level: str) -> dict[str, Any]:
    from lrnas.study.levels import SHORT, compare_with_references, read_level
    from lrnas.study.retrained import final_front

    if level != SHORT:
        finals = read_level(study, level)
        return {
            "study": study.name,
            "level": level,
            "front": [final.to_dict() for final in final_front(finals)],
            "references": [final.to_dict() for final in finals if final.point is not None],
            "networks": [final.to_dict() for final in finals],
            "outcomes": [outcome.to_dict() for outcome in compare_with_references(finals, study.beat)],
            "manifest": study.manifest,
        }
    summary = study.short_summary()
    return {
        "study": study.name,
        "level": level,
        "front": [_as_data(study, trial) for trial in summary.front],
        "references": [_as_data(study, trial) for trial in _reference_trials(study, summary.trials)],
        "counts": summary.counts,
        "hypervolume": summary.hypervolume,
        "outcomes": [outcome.to_dict() for outcome in _short_outcomes(study)],
        "manifest": study.manifest,
    }


def _as_data(study: Study, trial: Trial) -> dict[str, Any]:
    names = [name for name in study.columns_of([trial]) if name != "status"]
    return {**{name: getattr(trial, name) for name in names}, "architecture": trial.architecture.to_dict()}


def _short_outcomes(study: Study) -> list[Outcome]:
    """What short trainings say about each reference network, if the search looks below a share of its costs."""
    from lrnas.study.levels import compare_with_references, read_short

    return [] if study.beat is None else compare_with_references(read_short(study), study.beat)


def _reference_trials(study: Study, trials: list[Trial]) -> list[Trial]:
    points = study.manifest["space"]["points"]
    return [trial for trial in trials if trial.point in points and trial.status == "completed"]


def _optional(study: Study) -> list[str]:
    """Columns of a table of networks that a narrow terminal leaves out, the first ones first; no objectives."""
    from lrnas.study.retrained import COST_WORDS

    columns = ("parameters", "share", "latency share", "promised", "n", "MACs", "trial")
    return [column for column in columns if column not in {COST_WORDS.get(name) for name in study.costs}]


def _print_front(study: Study, level: str) -> None:
    from lrnas.study.levels import SHORT

    if level != SHORT:
        _print_level(study, level)
        return
    summary = study.short_summary()
    front = summary.front
    console = make_console()
    if not front:
        console.print(f"{study.name} has no trained network yet.")
        return
    references = _reference_trials(study, summary.trials)
    # costs of the dense network are known even if it was not trained because it is beyond a limit
    whole = next((trial for trial in summary.trials if trial.point and trial.point == study.baseline), None)
    dense = whole.macs if whole else study.dense_macs
    latency = study.manifest.get("latency")
    columns = ["trial", "accuracy", "MACs", "share", "parameters", "latency", "latency share"]
    beside = ", and the reference networks beside it" if references else ""
    table = make_table(f"{study.name}: the front{beside}", ["network"], columns, [""], _optional(study))
    for trial in sorted({trial.number: trial for trial in (*front, *references)}.values(), key=study.cheapest_first):
        timed = 0.0 if trial.latency is None else trial.latency
        cells = {
            "trial": str(trial.number),
            "accuracy": percent(trial.accuracy),
            "MACs": f"{trial.macs:,}",
            "share": f"{trial.macs / dense:.3f}" if dense else "–",
            "parameters": f"{trial.params:,}",
            "latency": f"{timed:.3f} ms" if timed else "–",
            "latency share": f"{timed / whole.latency:.3f}" if timed and whole and whole.latency else "–",
        }
        mark = ("front" if trial.on_front else "beaten") + (", reference" if trial in references else "")
        table.add_row(trial.point or trial.identity, *(cells[column] for column in columns), mark)
    console.print(table)
    if latency:
        threads = f", threads: {latency['threads']}" if latency["threads"] else ""
        batch = f"{latency['dtype']}, batch {latency['batch']}{threads}"
        console.print(f"Latency on {latency['hardware']}, {batch}: the sum of measured layers (docs/profile.md).")
    console.print("Accuracy on validation images, after the training of the search; `lrnas retrain` tests networks.")
    if all(trial.point for trial in front):
        console.print(f"{ONLY_FIRST}; {_tell_what_helps(study)} may find better ones.")
    for outcome in _short_outcomes(study):
        console.print(str(outcome))


def _print_level(study: Study, level: str) -> None:
    """Print the networks of a later level, with mean and deviation over seeds, and what was promised."""
    from lrnas.study.levels import FULL, NOT_DONE, compare_with_references, is_open, read_level, tell_left
    from lrnas.study.retrained import front_marks

    console = make_console()
    finals = [final for final in read_level(study, level) if final.accuracies or final.diverged]
    if not finals:
        console.print(f"{study.name} has no network trained at level {level} yet.")
        return
    dense = study.dense_macs
    columns = ["trial", "accuracy", "n", "promised", "MACs", "share", "parameters", "latency"]
    columns += ["diverged"] * any(final.diverged for final in finals)
    front = front_marks(finals)
    title = f"{study.name}: networks trained at level {level}"
    table = make_table(title, ["network"], columns, [""], _optional(study))
    for final in finals:
        cells = {
            "trial": "–" if final.trial is None else str(final.trial),
            "accuracy": percent(final.mean if final.accuracies else None, final.deviation),
            "n": str(len(final.accuracies)),
            "promised": percent(*final.promised) if final.promised else "–",
            "MACs": f"{final.macs:,}",
            "share": f"{final.macs / dense:.3f}" if dense else "–",
            "parameters": f"{final.params:,}",
            "latency": "–" if final.latency is None else f"{final.latency:.3f} ms",
            "diverged": str(final.diverged),
        }
        marks = [front.get(final.identity, "beaten"), *(["reference"] if final.point else [])]
        table.add_row(final.name, *(cells[column] for column in columns), ", ".join(marks))
    console.print(table)
    promised = "; promised: predicted when the network was chosen, ± standard deviation"
    promised += "" if all(final.promised for final in finals) else " (–: trained before anything could be predicted)"
    promised = promised if any(final.promised for final in finals) else ""
    seeds = f"mean ± standard deviation over n seeds{promised}"
    console.print(f"Accuracy on validation images, {seeds}. `lrnas retrain` tests networks.")
    if level != FULL:
        return
    if all(final.point or final.known_as for final in finals if final.identity in front):
        console.print(f"{ONLY_FIRST}; {_tell_what_helps(study)} may find better ones.")
    for outcome in compare_with_references(finals, study.beat):
        console.print(str(outcome))
    if is_open(study):
        console.print(NOT_DONE)
    elif left := tell_left(study, finals):
        chosen = "They were chosen by predicted accuracy after full training. " * any(
            final.promised for final in finals
        )
        where = f"see `{study.where.command('front', study.name)} --level short`"
        console.print(f"{chosen}Not among them: {left}, {where}; a larger --finals trains more.")


def _tell_what_helps(study: Study) -> str:
    """What may find better networks, in words."""
    from lrnas.study.levels import is_open

    if study.budget > study.spent() - study.running():
        return f"the rest of its {study.budget} trials"
    return "the full trainings that are left" if is_open(study) else "a larger --budget"


def _front_table(study: Study) -> pd.DataFrame:
    """The front of the finals, or without finals that of the short trainings."""
    import pandas as pd

    from lrnas.study.levels import SHORT, pick_level, read_level
    from lrnas.study.retrained import final_front

    if pick_level(study) == SHORT:
        table = study.to_pandas()
        return table[table["on_front"]].sort_values(study.costs[0])
    front = final_front(read_level(study))
    timed = "latency" in study.costs or any(final.latency is not None for final in front)
    names = ["name", "trial", "point", "identity", "mean", "sd", "n", "macs", "params"]
    names += [*(["latency"] * timed), "promised", "promised_sd", "accuracies", "architecture"]
    rows = []
    for final in front:
        promised, sd = final.promised or (None, None)
        texts = {"accuracies": " ".join(map(str, final.accuracies)), "architecture": final.description}
        rows.append({**final.to_dict(), "promised": promised, "promised_sd": sd, **texts})
    return pd.DataFrame(rows, columns=names)


def _write_files(study: Study, folder: Path) -> list[Path]:
    """Write the front as a table and, if matplotlib is installed, as a picture; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "front.csv"]
    _front_table(study).to_csv(files[0], index=False)
    try:
        from lrnas.reporting.figures.report_plots import plot_front
    except ImportError:
        complain("no picture without matplotlib; pip install 'lrnas[plot]'")
    else:
        from lrnas.reporting.report import make_report

        report = make_report([study])
        if report.studies[0].full or report.studies[0].stopped:
            files.append(folder / "front.png")
            plot_front(report, files[-1])
    return files
