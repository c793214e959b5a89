"""Folder and storage of studies, as options of the command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from lrnas.errors import is_command

DATABASE = "study.db"
"""File of a study's SQLite database, in the study's folder."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Folder and storage of studies, also for commands that are suggested to users.

    Args:
        studies: The folder where studies are kept, as it was given.
        storage: A database URL or `journal:FILE`; None for the file in the study's folder.
    """

    studies: str = "studies"
    storage: str | None = None
    _start: Path = field(default_factory=Path.cwd, init=False, repr=False, compare=False)
    """The current folder when the study was opened, which `studies` may be relative to."""

    @property
    def folder(self) -> str:
        """The folder where studies are kept; absolute if the current folder has changed."""
        return self.studies if Path.cwd() == self._start else str(self._start / self.studies)

    def options(self) -> str:
        """Options of a command line, without passwords."""
        studies = "" if self.folder == "studies" else f" --studies {shlex.quote(self.folder)}"
        if self.storage is None:
            return studies
        # a URL with a user name or with options may contain a password
        may_be_secret = re.search(r"//.*[@?]", self.storage)
        shown = '"$STORAGE"' if may_be_secret else shlex.quote(self.storage)
        return f"{studies} --storage {shown}"

    def front(self, name: str) -> str:
        """The command, in Python the call, that shows the front of a search, in backquotes."""
        return f"`{self.command('front', name) if is_command() else f'{self.call(name)}.front()'}`"

    def call(self, name: str) -> str:
        """The call, in Python, that opens a study."""
        studies = "" if self.folder == "studies" else f', studies="{self.folder}"'
        storage = "" if self.storage is None else ", storage=…"  # it may contain a password
        return f'lrnas.open_study("{name}"{studies}{storage})'

    def command(self, verb: str, name: str) -> str:
        """A command line about a study."""
        return f"lrnas {verb} {shlex.quote(name)}{self.options()}"
