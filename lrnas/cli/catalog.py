"""The commands that show recipes, data sets and search spaces: recipes, data, spaces."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lrnas._quantities import magnitude
from lrnas.cli.options import add_command, add_option, add_settings
from lrnas.cli.output import complain, make_console, make_table, print_result, say
from lrnas.data.names import is_in_files
from lrnas.searching.settings import TEXT

if TYPE_CHECKING:
    from lrnas.spaces.space import SearchSpace


def add_commands(commands: Any) -> None:
    """Add the commands to the program."""
    add_command(commands, "recipes", _recipes, "show the fields of training recipes and their values")

    data = add_command(
        commands,
        "data",
        _data,
        "download a data set, or check and pack one of your own",
        "Download a data set, or check and pack one of your own. Shows the number of images and classes, and decodes "
        "every image in files into a pack, as the first training would do. A folder has one folder of images per "
        "class, or train/ and val/ or test/ with such folders. The exit code is 1 if an image cannot be read.",
        json=False,
    )
    text = "digits, cifar10, folder:PATH, or hfds/NAME, wds/FOLDER, tfds/NAME as in timm."
    data.add_argument("name", metavar="NAME", help=text)
    add_settings(data, "image_size", help="Rows and columns of the images in training (default: 224, or see --space)")
    text = "Pack images in the size that a search of this space uses (nin: 32; vgg11, googlenet: 224)"
    add_option(data, "--space", TEXT, "NAME", text)
    add_settings(data, "pack", "data_dir")

    text = "List the search spaces that come with lrnas; with NAME, show what varies in one (see docs/spaces.md)."
    spaces = add_command(commands, "spaces", _spaces, "list the search spaces, or show the parameters of one", text)
    text = "A space, FILE.toml, or timm:MODEL for any CNN of timm (default: list all spaces)."
    spaces.add_argument("source", nargs="?", metavar="NAME", help=text)
    add_settings(spaces, "granularity", "divisor", "stem_stride")


def _recipes(options: argparse.Namespace) -> None:
    from lrnas._field_docs import field_docs
    from lrnas.recipes import Recipe, named_recipes

    recipes = named_recipes()

    def show() -> None:
        columns = [name.replace(",", "").replace(" ", "\n") for name in recipes]
        table = make_table("Recipes", ["field"], columns, optional=sorted(columns, key=len, reverse=True))
        meanings = make_table("Fields", ["field"], ends=["meaning"])
        for field, meaning in field_docs(Recipe).items():
            values = [getattr(recipe, field) for recipe in recipes.values()]
            table.add_row(field, *(str(value).lower() if isinstance(value, bool) else f"{value}" for value in values))
            meanings.add_row(field, meaning)
        make_console().print(table, meanings)

    print_result(options, lambda: {name: recipe.to_dict() for name, recipe in recipes.items()}, show)


def _spaces(options: argparse.Namespace) -> None:
    from lrnas.spaces.space import load_space, named_spaces

    spaces = [
        load_space(name, granularity=options.granularity, divisor=options.divisor, stem_stride=options.stem_stride)
        for name in ([options.source] if options.source else named_spaces())
    ]
    data = [{**space.to_dict(), "dimension": space.dimension, "size": space.size} for space in spaces]
    if options.source:
        print_result(options, lambda: data[0], lambda: _print_space(spaces[0]))
    else:
        print_result(options, lambda: data, lambda: _print_spaces(spaces))


def _data(options: argparse.Namespace) -> int:
    from lrnas.data.catalog import load_set
    from lrnas.data.packed import PackedSet
    from lrnas.training.progress import download_view, packing_view

    size = options.image_size
    if size is None and options.space is not None and is_in_files(options.name):
        from lrnas.models.plan import training_size
        from lrnas.spaces.space import load_space

        size = training_size(load_space(options.space).backbones)
    with download_view() as progress:
        data = load_set(options.name, options.data_dir, image_size=size, pack=options.pack, progress=progress)
    for line in data.remarks():
        complain(line)
    complaints = []
    if isinstance(data, PackedSet):
        with packing_view() as progress:
            complaints = data.unreadable(progress)
    for line in complaints:
        complain(line)
    train, val, test = data.counts
    pixels = "" if data.own_crops else f" of {data.image_size}×{data.image_size} pixels"
    few = ", ".join(data.classes[:10]) + (", …" if data.num_classes > 10 else "")
    sizes = f"{train:,} training, {val:,} validation and {test:,} test images{pixels}"
    say(f"{data.name}: {sizes}, {data.num_classes:,} classes: {few}")
    if not isinstance(data, PackedSet):
        return 0
    hint = "" if size else "; a search of nin uses 32×32: --space NAME packs for a space, --image-size for any size"
    say(f"Packed for training on images of {data.image_size}×{data.image_size} pixels{hint}")
    return 1 if complaints else 0


def _print_spaces(spaces: list[SearchSpace]) -> None:
    columns = ("parameters", "points", "named", "uniform")
    optional = ("uniform", "named")
    table = make_table("Search spaces", ["space", "backbone", "granularity"], columns, optional=optional)
    for space in spaces:
        numbers = (str(space.dimension), magnitude(space.size), str(len(space.points)), str(len(space.uniform)))
        table.add_row(space.name, ", ".join(space.backbones), space.granularity, *numbers)
    console = make_console()
    console.print(table)
    console.print("A search begins with the named points (the reference networks) and uniform networks (equal layers).")
    console.print("`lrnas spaces NAME` shows what varies; NAME may also be timm:MODEL or FILE.toml (docs/spaces.md).")


def _print_space(space: SearchSpace) -> None:
    from lrnas.spaces.parameters import format_values

    size = f"{space.dimension} parameters, {magnitude(space.size)} points"
    title = f"{space.name}, granularity {space.granularity}: {size}"
    table = make_table(title, ends=["parameter", "values", "layers"])
    for parameter in space.parameters:
        table.add_row(parameter.name, format_values(parameter), space.layers_of[parameter.name])
    console = make_console()
    console.print(table)
    if space.divisor > 1:
        console.print(f"Filter counts are multiples of {space.divisor}, as far as the widths of layers allow.")
    listed = {"named points": space.points, "uniform networks": space.uniform, "left out": space.left_out}
    for what, names in listed.items():
        if names:
            console.print(f"{what}: {', '.join(names)}")
