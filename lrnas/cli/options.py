"""Options that several commands have: each is named and explained here, and read into what Python is given."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lrnas.errors import LrnasError

if TYPE_CHECKING:
    from lrnas.searching.ray_cluster import WorkerOptions


def add_data_dir(command: argparse.ArgumentParser, what: str = "data sets are") -> None:
    command.add_argument(
        "--data-dir", metavar="FOLDER", help=f"where {what} kept (default: $LRNAS_DATA or ~/.cache/lrnas)"
    )


def add_image_size(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--image-size",
        type=int,
        metavar="PIXELS",
        help="of images read from files (default: the network's own, 32 for nin, 224 for vgg11 and googlenet)",
    )


def add_space_options(command: argparse.ArgumentParser) -> None:
    """How a space is to be read."""
    command.add_argument(
        "--granularity", metavar="NAME", help="network, stage or layer: what varies together (default: the space's own)"
    )
    command.add_argument(
        "--divisor", type=int, metavar="N", help="of numbers of filters, 1 for any number (default: the space's own)"
    )


def add_studies_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--studies", default="studies", metavar="FOLDER", help="where studies are kept (default: studies)"
    )


def add_study_options(command: argparse.ArgumentParser) -> None:
    """Where the studies are that it looks at."""
    add_studies_folder(command)
    command.add_argument("--storage", metavar="URL", help="where a study is kept, if not in its folder")


def add_source_options(command: argparse.ArgumentParser) -> None:
    """A network with its weights, as `lrnas.exporting.sources` finds it."""
    command.add_argument(
        "source",
        metavar="SOURCE",
        help="a checkpoint (folder or file), STUDY:TRIAL (a number, a network's name, or best), STUDY@RECIPE:NETWORK "
        "of those trained again, or, with random weights, a network as in `lrnas count`",
    )
    command.add_argument("--architecture", metavar="FILE", help="JSON, for weights that do not say what they are of")
    command.add_argument("--fresh", action="store_true", help="where there are no weights, take random ones")
    add_study_options(command)


def add_recipe_options(command: argparse.ArgumentParser, default: str, epochs: str = "instead of the recipe's") -> None:
    """What networks are trained with; `epochs` explains that option."""
    other = "paper" if default == "fast" else "fast"
    command.add_argument("--recipe", default=default, metavar="NAME", help=f"{default} (default), {other} or FILE.toml")
    command.add_argument("--epochs", type=int, metavar="N", help=epochs)
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of the recipe (`lrnas recipes`)",
    )


def read_settings(settings: list[str], epochs: int | None) -> dict[str, Any]:
    """The changes to a recipe that --set and --epochs ask for."""
    changes: dict[str, Any] = {**read_pairs("--set", settings, "FIELD=VALUE", "lr=0.05")}
    return changes if epochs is None else {**changes, "epochs": epochs}


def read_pairs(option: str, texts: list[str], form: str, example: str) -> dict[str, str]:
    """What an option was given that takes a name and a value, and may be given several times."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise LrnasError(f"{option} takes {form}; got {text!r}; write {option} {example}, say")
        pairs[name] = value
    return pairs


def add_worker_options(command: argparse.ArgumentParser) -> None:
    """What trials get, and where they run."""
    command.add_argument("--cpus-per-trial", type=float, default=1, metavar="N", help="default: 1")
    command.add_argument("--gpus-per-trial", type=float, metavar="N", help="default: 0.25 with a GPU")
    command.add_argument(
        "--concurrency", type=int, metavar="N", help="trials at a time (default: as many as there is room)"
    )
    command.add_argument("--address", metavar="ADDRESS", help="of a Ray cluster (default: this machine)")


def worker_options(options: argparse.Namespace) -> WorkerOptions:
    """What was said of workers."""
    return {
        "cpus_per_trial": options.cpus_per_trial,
        "gpus_per_trial": options.gpus_per_trial,
        "concurrency": options.concurrency,
        "address": options.address,
    }
