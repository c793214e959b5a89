"""The place of studies, as options of commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass


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
        may_tell = re.search(r"//.*[@?]", self.storage)  # a user name or options: both may come with a password
        return f'{studies} --storage "$STORAGE"' if may_tell else f"{studies} --storage {shlex.quote(self.storage)}"

    def command(self, verb: str, name: str) -> str:
        """A command line about a study."""
        return f"lrnas {verb} {shlex.quote(name)}{self.options()}"
