"""Folder and storage of studies, as options of the command line."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

DATABASE = "study.db"
"""File of a study's SQLite database, in the study's folder."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Folder and storage of studies, for commands that are suggested to users.

    Args:
        studies: The folder where studies are kept.
        storage: A database URL or `journal:FILE`; None for the file in the study's folder.
    """

    studies: str = "studies"
    storage: str | None = None

    def options(self) -> str:
        """Options of a command line, without passwords."""
        studies = "" if self.studies == "studies" else f" --studies {shlex.quote(self.studies)}"
        if self.storage is None:
            return studies
        # a URL with a user name or with options may contain a password
        may_be_secret = re.search(r"//.*[@?]", self.storage)
        shown = '"$STORAGE"' if may_be_secret else shlex.quote(self.storage)
        return f"{studies} --storage {shown}"

    def command(self, verb: str, name: str) -> str:
        """A command line about a study."""
        return f"lrnas {verb} {shlex.quote(name)}{self.options()}"
