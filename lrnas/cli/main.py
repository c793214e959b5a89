"""The program `lrnas`: reads the arguments, runs one command, and turns errors into exit codes.

Results go to stdout, messages to stderr.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Sequence

from lrnas import __version__
from lrnas._messages import show_messages
from lrnas.cli import catalog, doctor, export, figures, networks, profile, report, retrain, search
from lrnas.cli.options import Parser
from lrnas.cli.output import complain, exit_code
from lrnas.errors import LrnasError, Terminated, naming_options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The command and its arguments (default: those of the process).

    Returns:
        Exit code: 0 success; 2 an error that lrnas explains in one line, such as wrong usage or a lost storage; 1 an
        error of the operating system, or images that cannot be read; 130 stopped by Ctrl-C; 143 by SIGTERM.
    """
    with naming_options():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for terminals without the character ×
    show_messages()
    code = 0
    try:
        parser = make_parser()
        options = parser.parse_args(arguments)
        if "run" not in options:  # not left to argparse, which would not mention unknown options
            parser.error("the following arguments are required: COMMAND")
        if arguments is None:  # the process ends after this command
            signal.signal(signal.SIGTERM, _terminate)
            if options.is_brief:
                gc.disable()
        code = options.run(options) or 0
        sys.stdout.flush()
    except LrnasError as error:
        complain(error)
        return 2
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # e.g. stdout goes to a disk that is full
        complain(error.strerror or error)
        return 1
    except KeyboardInterrupt as error:
        is_terminated = isinstance(error, Terminated)
        complain(str(error) or ("terminated" if is_terminated else "interrupted"))
        return exit_code(signal.SIGTERM if is_terminated else signal.SIGINT)
    return code


def _terminate(number: int, frame: object) -> None:
    raise Terminated


def make_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(prog="lrnas", description="Neural architecture search over convolution filters of mixed shapes.")
    parser.add_argument("--version", action="version", version=f"lrnas {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for family in (networks, catalog, profile, search, retrain, export, report, figures, doctor):
        family.add_commands(commands)
    return parser
