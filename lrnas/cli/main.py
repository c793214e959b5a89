"""The command line: parse, call one function, print. Results go to stdout, all else to stderr."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lrnas import __version__
from lrnas.cli.export import add_export_command
from lrnas.cli.figures import add_figure_commands
from lrnas.cli.options import add_settings
from lrnas.cli.output import INTERRUPTED, make_console, make_table, print_json
from lrnas.cli.profile import add_profile_command
from lrnas.cli.report import add_report_commands
from lrnas.cli.retrain import add_retrain_command
from lrnas.cli.search import add_search_commands
from lrnas.errors import InvalidArchitecture, LrnasError

if TYPE_CHECKING:
    from lrnas.models.summary import Summary
    from lrnas.spaces.space import SearchSpace
    from lrnas.training.reproduce import Reproduction

DATA = "digits, cifar10, folder:PATH, or hfds/NAME, wds/FOLDER, tfds/NAME as in timm"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 success, 2 usage or bad input, 1 failure, 130 stopped by hand."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # × on a terminal that has none
    code = 0
    try:
        options = _parser().parse_args(arguments)
        code = options.run(options) or 0
        sys.stdout.flush()
    except LrnasError as error:
        print(f"lrnas: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # a full disk behind stdout, say
        print(f"lrnas: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lrnas: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lrnas", description="Neural architecture search over convolution filters of mixed shapes."
    )
    parser.add_argument("--version", action="version", version=f"lrnas {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    models = commands.add_parser(
        "models",
        help="the paper's networks: published counts beside ours",
        description="Every network of the paper's tables 1, 3 and 4: published counts beside ours.",
    )
    models.set_defaults(run=_models)

    count = commands.add_parser(
        "count",
        help="multiply-accumulates and parameters of one network",
        description="Multiply-accumulates and parameters of one network, exact and before any training.",
    )
    count.add_argument(
        "source",
        metavar="NETWORK",
        help="a name from `lrnas models`, a backbone (vgg16, googlenet, nin), an architecture FILE.json, "
        "or timm:MODEL for any model of timm",
    )
    count.add_argument(
        "--input",
        type=int,
        metavar="PIXELS",
        help="rows and columns of the image (default: the paper's, or the timm model's)",
    )
    count.add_argument("--classes", type=int, metavar="N", help="number of classes (default: likewise)")
    count.add_argument("--layers", action="store_true", help="show every layer")
    count.set_defaults(run=_count)

    reproduce = commands.add_parser(
        "reproduce",
        help="train a network and compare it with what was published",
        description="Train a network in full and set it beside what was published, or beside its family's baseline.",
    )
    reproduce.add_argument("source", metavar="NETWORK", help="as in `lrnas count`, except timm:MODEL")
    add_settings(reproduce, "data", help=f"Data set: {DATA} (default: the paper's, if at hand).")
    add_settings(reproduce, "image_size", "data_dir", "set")
    add_settings(reproduce, "recipe", default="paper")
    add_settings(reproduce, "epochs", help="Train for N epochs (default: the recipe's).")
    reproduce.add_argument(
        "--loaders",
        type=int,
        metavar="N",
        help="processes that read images from files (default: one per core, 16 at most)",
    )
    reproduce.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each network (default: 1)")
    reproduce.add_argument(
        "--out", default="results/reproduce", metavar="FOLDER", help="where records go (default: results/reproduce)"
    )
    reproduce.add_argument("--device", metavar="NAME", help="cpu or cuda (default: cuda if there is one)")
    reproduce.add_argument("--compile", action="store_true", help="torch.compile the network; pays off in long runs")
    reproduce.add_argument(
        "--workers", type=int, default=1, metavar="N", help="GPUs (or processes) for one network (default: 1)"
    )
    reproduce.add_argument("--address", metavar="ADDRESS", help="of a Ray cluster (default: this machine)")
    reproduce.set_defaults(run=_reproduce)

    recipes = commands.add_parser("recipes", help="the fields of a recipe and their values")
    recipes.set_defaults(run=_recipes)

    data = commands.add_parser(
        "data",
        help="fetch a data set ahead, or check one of your own",
        description="Fetch a data set ahead, or check one of your own: says what it holds, and opens every image. A "
        "folder has train/ and val/ or test/, each with one folder per class. Ends with 1 if an image cannot be read.",
    )
    data.add_argument("name", metavar="NAME", help=DATA)
    add_settings(data, "data_dir")
    data.set_defaults(run=_data)

    spaces = commands.add_parser(
        "spaces",
        help="the search spaces, or the parameters of one",
        description="The search spaces that come with lrnas; with NAME, what varies in that one (see docs/spaces.md).",
    )
    spaces.add_argument(
        "source", nargs="?", metavar="NAME", help="a space, FILE.toml, or timm:MODEL for any CNN of timm"
    )
    add_settings(spaces, "granularity", "divisor")
    spaces.set_defaults(run=_spaces)

    profiling = add_profile_command(commands)
    searching = [*add_search_commands(commands), add_retrain_command(commands)]
    export = add_export_command(commands)
    drawing = [*add_report_commands(commands), *add_figure_commands(commands)]
    for command in (models, count, reproduce, recipes, spaces, profiling, *searching, export, *drawing):
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _models(options: argparse.Namespace) -> None:
    from lrnas.models.summary import summarise_points

    summaries = summarise_points()
    if options.json:
        print_json([summary.to_dict() for summary in summaries])
    else:
        _print_models(summaries)


def _count(options: argparse.Namespace) -> None:
    from lrnas.models.summary import read_source, summarise

    name, architecture = read_source(options.source)
    try:
        summary = summarise(name, architecture, options.input, options.classes)
    except InvalidArchitecture as error:
        where = f"{options.source}: " if options.source.endswith(".json") else ""
        raise InvalidArchitecture(f"{where}{error}") from None
    if options.json:
        print_json(summary.to_dict())
    else:
        _print_count(summary, with_layers=options.layers)


def _reproduce(options: argparse.Namespace) -> None:
    from lrnas.training.reproduce import reproduce

    result = reproduce(
        options.source,
        data=options.data,
        data_dir=options.data_dir,
        image_size=options.image_size,
        loaders=options.loaders,
        recipe=options.recipe,
        changes=(options.set or {}) | ({} if options.epochs is None else {"epochs": options.epochs}),
        seeds=options.seeds,
        out=options.out,
        device=options.device,
        compile_model=options.compile,
        workers=options.workers,
        address=options.address,
        say=lambda line: print(line, file=sys.stderr),
    )
    if options.json:
        print_json(result.to_dict())
    else:
        _print_count(result.summary, with_layers=False)
        if (size := result.input_size) != (own := result.summary.input_size):
            make_console().print(f"Counted at {own}×{own}; trained, and counted below, at {size}×{size}.")
        _print_reproduction(result)


def _recipes(options: argparse.Namespace) -> None:
    from lrnas.recipes import field_docs, named_recipes

    recipes, docs = named_recipes(), field_docs()
    if options.json:
        print_json({name: recipe.to_dict() for name, recipe in recipes.items()})
        return
    table = make_table("Recipes", ["field"], recipes)
    table.add_column("meaning")
    for field, meaning in docs.items():
        values = [getattr(recipe, field) for recipe in recipes.values()]
        table.add_row(
            field, *[str(value).lower() if isinstance(value, bool) else f"{value}" for value in values], meaning
        )
    make_console().print(table)


def _spaces(options: argparse.Namespace) -> None:
    from lrnas.spaces.space import load_space, named_spaces

    spaces = [
        load_space(name, granularity=options.granularity, divisor=options.divisor)
        for name in ([options.source] if options.source else named_spaces())
    ]
    if options.json:
        data = [{**space.to_dict(), "dimension": space.dimension, "size": space.size} for space in spaces]
        print_json(data[0] if options.source else data)
    elif options.source:
        _print_space(spaces[0])
    else:
        _print_spaces(spaces)


def _data(options: argparse.Namespace) -> int:
    from lrnas.data.catalog import load_set
    from lrnas.data.streamed import StreamSet
    from lrnas.training.progress import download_view, reading_view

    with download_view() as progress:
        data = load_set(options.name, options.data_dir, progress=progress)
    sizes = f"{len(data.train):,} training, {len(data.val):,} validation and {len(data.test()):,} test images"
    pixels = "" if data.own_crops else f" of {data.image_size}×{data.image_size} pixels"
    few = ", ".join(data.classes[:10]) + (", …" if data.num_classes > 10 else "")
    print(f"{data.name}: {sizes}{pixels}, {data.num_classes:,} classes: {few}", flush=True)
    for line in data.remarks():
        print(f"lrnas: {line}", file=sys.stderr)
    if not isinstance(data, StreamSet):
        return 0
    with reading_view() as progress:
        complaints = data.try_all(progress)
    for line in complaints:
        print(f"lrnas: {line}", file=sys.stderr)
    return 1 if complaints else 0


def _magnitude(number: int) -> str:
    return f"{number:,}" if number < 100_000 else f"{number:.1e}".replace("e+", "e")


def _print_spaces(spaces: list[SearchSpace]) -> None:
    columns = ("dimension", "size", "points", "seeds")
    table = make_table("Search spaces", ["space", "backbone", "granularity"], columns)
    for space in spaces:
        numbers = (str(space.dimension), _magnitude(space.size), str(len(space.points)), str(len(space.seeds)))
        table.add_row(space.name, ", ".join(space.backbones), space.granularity, *numbers)
    console = make_console()
    console.print(table)
    console.print("points: networks of the paper. seeds: uniform scalings. `lrnas spaces NAME` shows what varies.")
    console.print("Also: timm:MODEL for any CNN of timm, FILE.toml for one's own (docs/spaces.md).")


def _print_space(space: SearchSpace) -> None:
    from lrnas.spaces.parameters import format_values

    title = (
        f"{space.name}, granularity {space.granularity}: {space.dimension} parameters, {_magnitude(space.size)} points"
    )
    table = make_table(title)
    for column in ("parameter", "values", "layers"):
        table.add_column(column, no_wrap=column == "parameter")
    layers = {
        parameter.name: ", ".join(dict.fromkeys(layer.name for layer in group.layers))
        for group in space.groups
        for parameter in group.parameters
    }
    for parameter in space.parameters:
        table.add_row(parameter.name, format_values(parameter), layers.get(parameter.name, "the whole network"))
    console = make_console()
    console.print(table)
    if space.divisor > 1:
        console.print(f"numbers of filters: multiples of {space.divisor} where widths allow")
    for what, names in (("points", space.points), ("seeds", space.seeds), ("left out", space.left_out)):
        if names:
            console.print(f"{what}: {', '.join(names)}")


def _print_models(summaries: list[Summary]) -> None:
    console = make_console()
    wide = console.width >= 120  # a narrow terminal shows what is published and by how much we differ
    exact = 0
    titles = list(dict.fromkeys(summary.point.table.title for summary in summaries if summary.point))
    for title in titles:
        table = make_table(title, ["network"])
        for group in ("multiply_acc", "params"):
            for column in ("published", "counted", "difference") if wide else ("published", "difference"):
                table.add_column(f"{group}\n{column}", justify="right", no_wrap=True)
        if wide:
            table.add_column("MACs\nin use", justify="right", no_wrap=True)
        for summary in summaries:
            point = summary.point
            assert point is not None
            if point.table.title != title:
                continue
            difference = summary.difference()
            exact += not any(difference.values())
            cells = [
                (point.published.multiply_acc, summary.paper.multiply_acc, difference["multiply_acc"]),
                (point.published.params, summary.paper.params, difference["params"]),
            ]
            row = [f"{value:,}" for group in cells for value in (group if wide else (group[0], group[2]))]
            table.add_row(summary.name, *row, *([f"{summary.cost.macs:,}"] if wide else []))
        console.print(table)
    console.print(f"{exact} of {len(summaries)} networks come out exactly.")
    for summary in summaries:
        assert summary.point is not None
        if any(summary.difference().values()):
            why = summary.point.note if summary.point.explained else "the difference is not explained"
            console.print(f"{summary.name}: {why}")
    console.print("published, counted: as the paper counts, with one more per bias (see docs/counting.md).")
    if wide:
        console.print("MACs in use: multiply-accumulates alone, without auxiliary heads, on the same maps per table.")


def _print_count(summary: Summary, with_layers: bool) -> None:
    console = make_console()
    cost = summary.cost
    if with_layers:
        data = summary.to_dict()["layers"]
        texts, numbers = ("layer", "kind", "filters", "output"), ("MACs", "%", "parameters")
        table = make_table(f"{summary.name}, layer by layer", texts, numbers)
        for layer in data:
            share = f"{100 * layer['macs'] / cost.macs:.1f}" if cost.macs else ""
            output = "×".join(map(str, layer["output"]))
            filters = layer["filters"] or ""
            table.add_row(
                layer["name"],
                layer["kind"],
                filters,
                output,
                f"{layer['macs']:,}",
                share,
                f"{layer['params']:,}",
            )
        console.print(table)
    table = make_table(
        f"{summary.name}, input {summary.input_size}×{summary.input_size}, {summary.num_classes} classes"
    )
    table.add_column("")
    table.add_column("MACs", justify="right")
    table.add_column("parameters", justify="right")
    table.add_row("network in use", f"{cost.macs:,}", f"{cost.params:,}")
    table.add_row("as the paper counts", f"{summary.paper.multiply_acc:,}", f"{summary.paper.params:,}")
    if (point := summary.point) is not None:
        difference = summary.difference()
        table.add_row("published", f"{point.published.multiply_acc:,}", f"{point.published.params:,}")
        table.add_row("difference", f"{difference['multiply_acc']:,}", f"{difference['params']:,}")
    console.print(table)
    if point is not None and point.note:
        console.print(point.note)


def _print_reproduction(result: Reproduction) -> None:
    epochs, size = result.recipe.epochs, result.input_size
    trained = f"{size}×{size} pixels, recipe of {epochs} epoch{'s' * (epochs != 1)} at most"
    title = f"Measured on the test images of {result.data}, {trained}"
    columns = ("MACs", "share", "published", "measured", "sd", "n", "diverged")
    table = make_table(title, ["network"], columns)
    for network in result.networks:
        table.add_row(
            network.name,
            f"{network.macs:,}",
            f"{network.share:.3f}",
            f"{100 * network.published:.2f} %" if network.published is not None else "–",
            f"{100 * network.mean:.2f} %" if network.accuracies else "–",
            f"{100 * network.deviation:.2f}" if network.deviation is not None else "–",
            str(len(network.accuracies)),
            str(network.diverged),
        )
    console = make_console()
    console.print(table)
    if reuse := result.reuse():
        console.print(reuse, soft_wrap=True)
    console.print(result.verdict())
    console.print(f"Records: {result.files[0].parent}/")


if __name__ == "__main__":
    sys.exit(main())
