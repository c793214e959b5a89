"""Options that several commands have. Those that are settings of a search are generated from `SearchSettings`."""

from __future__ import annotations

import argparse
from typing import Any

from lrnas.errors import LrnasError
from lrnas.searching.settings import FLAG, SETTINGS, describe, read_value

WORKERS = ("cpus_per_trial", "gpus_per_trial", "concurrency", "address")
"""The settings that say how much of which machine a trial gets."""


class _ReadSetting(argparse.Action):
    """Reads and checks the value of a setting. Changes of a recipe's fields add up if the option is given again."""

    def __call__(self, _: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        value = read_value(SETTINGS[self.dest], values, option or self.dest)
        if isinstance(value, dict):
            value = {**(getattr(namespace, self.dest, None) or {}), **value}
        setattr(namespace, self.dest, value)


def add_settings(command: Any, *names: str, help: str | None = None, default: Any = None) -> None:  # noqa: A002
    """Add the options of settings that `SearchSettings` defines.

    Args:
        command: Parser, or group of a parser, that gets the options.
        names: Names of the settings.
        help: Help text in place of the setting's own.
        default: Default in place of the setting's own; argparse.SUPPRESS to tell what was given from what was not.
    """
    for name in names:
        item = SETTINGS[name]
        how: dict[str, Any] = {"action": _ReadSetting, "metavar": item.metadata["metavar"]}
        if item.metadata["kind"] is FLAG:
            how = {"action": argparse.BooleanOptionalAction}
        own = None if default == argparse.SUPPRESS else default
        how["default"] = item.default if default is None else default
        command.add_argument(f"--{name.replace('_', '-')}", help=help or describe(item, own), **how)


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
    add_settings(command, "studies", "storage")


def read_pairs(option: str, texts: list[str], form: str, example: str) -> dict[str, str]:
    """What an option was given that takes a name and a value, and may be given several times."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise LrnasError(f"{option} takes {form}; got {text!r}; write {option} {example}, say")
        pairs[name] = value
    return pairs
