"""Building blocks of commands: parsers with one-line errors, options that check their values, calls with options."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from lrnas.errors import LrnasError, MissingExtra, UnknownName
from lrnas.searching.settings import FLAG, PATH, SETTINGS, Kind, read_value, with_default

if TYPE_CHECKING:
    from lrnas.study.study import Study

Result = TypeVar("Result")

FILE = Kind("a path", "figures/front.png", Path)
CHANGE_HELP = "Change a field of the recipe, e.g. lr=0.05 (see `lrnas recipes`); may be given several times."
"""Help of --set in commands that take no study file."""
WORKERS = ("cpus_per_trial", "gpus_per_trial", "concurrency", "address", "trial_timeout")
"""Settings that a search and a retraining share: the resources of a network in training."""


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line. The line names the closest command or option if one is unknown."""

    _is_intermixed = False
    """Whether options and positional arguments are parsed one after the other, because they alternate."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)  # a misspelt option might be the beginning of another

    def error(self, message: str) -> NoReturn:
        if choice := re.match(r"argument (\w+): invalid choice: '(.*)' \(choose from (.*)\)", message):
            known = re.findall(r"[\w-]+", choice[3])
            raise UnknownName(choice[1].lower(), choice[2], known, f" (see `{self.prog} --help`)")
        raise LrnasError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        options, unknown = super().parse_known_args(args, namespace)
        if "given" not in options:  # the parser of a command comes first
            options.given = [text.partition("=")[0] for text in args or () if text.startswith("--")]
        if unknown and unknown[0].startswith("-"):
            known = re.findall(r"--[a-z-]+", self.format_help())
            raise UnknownName("option", unknown[0].partition("=")[0], known, f" (see `{self.prog} --help`)")
        if unknown and not self._is_intermixed:
            self._is_intermixed = True  # argparse calls this method for each of the two parts
            options, unknown = self.parse_known_intermixed_args(args)
            if unknown:
                self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    help: str,  # noqa: A002
    description: str = "",
    *,
    json: bool = True,
    is_brief: bool = False,
) -> Parser:
    """Add a command to the program.

    Args:
        commands: What `add_subparsers` returned.
        name: Name of the command.
        run: Function that runs it and returns the exit code; None is 0.
        help: One line for the list of commands.
        description: Text for the help of the command (default: `help`).
        json: Whether it has the option --json.
        is_brief: Whether it only reads and prints, which takes a second: it then runs without garbage collection.

    Returns:
        The parser of the command.
    """
    command: Parser = commands.add_parser(name, help=help, description=description or f"{help.capitalize()}.")
    command.set_defaults(run=run, is_brief=is_brief)
    if json:
        command.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    return command


class _ReadValue(argparse.Action):
    """Reads and checks a value. If an option with FIELD=VALUE is given several times, all its fields are kept."""

    def __init__(self, *args: Any, kind: Kind, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.kind = kind

    def __call__(self, _: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        value = read_value(self.kind, values, str(option), self.default)
        if isinstance(value, dict):
            value = {**(getattr(namespace, self.dest, None) or {}), **value}
        setattr(namespace, self.dest, value)


def add_option(
    command: Any,
    name: str,
    kind: Kind,
    metavar: str,
    help: str,  # noqa: A002
    default: Any = None,
) -> None:
    """Add an option with a value.

    Args:
        command: Parser, or group of a parser.
        name: Its name, such as --batch.
        kind: What values it takes.
        metavar: Name of the value in the help.
        help: What it does; the default is appended unless the text states it.
        default: Its default.
    """
    how: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
    if kind is not FLAG:
        how = {"action": _ReadValue, "kind": kind, "metavar": metavar, "dest": name[2:].replace("-", "_")}
    text = help if default == argparse.SUPPRESS else with_default(help, default)
    command.add_argument(name, default=default, help=text, **how)


def add_settings(command: Any, *names: str, help: str = "", default: Any = None) -> None:  # noqa: A002
    """Add options for settings of a search to a command.

    Args:
        command: Parser of the command.
        names: Names of the settings in `SearchSettings`.
        help: Help text in place of the setting's own.
        default: Default in place of the setting's own; argparse.SUPPRESS: leave out options that are not given.
    """
    for name in names:
        item = SETTINGS[name]
        value = item.default if default in (None, argparse.SUPPRESS) else default
        text = with_default(help or item.help, value)
        value = argparse.SUPPRESS if default == argparse.SUPPRESS else value
        add_option(command, f"--{name.replace('_', '-')}", item.kind, item.metavar, text, value)


def add_source_options(command: Parser) -> None:
    """Add the argument SOURCE and the options that find a network with its weights."""
    command.add_argument(
        "source",
        metavar="SOURCE",
        help="A checkpoint (folder or file); STUDY:TRIAL, where TRIAL is a number, the name of a network, or best, the "
        "most accurate network on validation images (a reference network only if none found is as accurate); "
        "STUDY@RECIPE:NETWORK for a retrained network; or a NETWORK as in `lrnas count`, with random weights unless "
        "lrnas has its weights.",
    )
    text = "JSON file with the architecture, for a checkpoint that does not contain it"
    add_option(command, "--architecture", PATH, "FILE", text)
    command.add_argument("--fresh", action="store_true", help="Use random weights if the network has none.")
    add_settings(command, "studies", "storage")


def _device(value: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", value):
        raise ValueError
    return value


DEVICE = Kind("cpu, cuda or cuda:N", "cuda", _device)


def add_device(command: Parser, what: str) -> None:
    """Add the option --device.

    Args:
        command: Parser of the command.
        what: What is done on the device, for the help.
    """
    add_option(command, "--device", DEVICE, "NAME", f"{what} on cpu, cuda or cuda:N (default: cuda if there is a GPU)")


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Context for imports: if a package is missing, the error names the extra of lrnas that installs it.

    Args:
        what: What needs the package.
        extra: Name of the extra.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(what, error.name, extra) from None


def open_named(options: argparse.Namespace, name: str | None) -> Study:
    """Open a search of the folder or storage that the options --studies and --storage give.

    Args:
        options: The options of the command.
        name: Name of the study; None: the only study there is.
    """
    with needs_extra("a study", "search"):
        from lrnas.study.open import open_search
    return call(open_search, options, name=name)


def call(function: Callable[..., Result], options: argparse.Namespace, **more: Any) -> Result:
    """Call a function with those options that it has parameters for, and with `more`."""
    names = inspect.signature(function).parameters.keys() & vars(options).keys()
    return function(**{name: getattr(options, name) for name in names} | more)
