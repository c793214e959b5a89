"""Where a study is kept, as commands are told."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a study is kept, as commands are told."""

    studies: str = "studies"
    storage: str | None = None

    def options(self) -> str:
        """For a command line that others may read: it holds no password."""
        studies = "" if self.studies == "studies" else f" --studies {shlex.quote(self.studies)}"
        if self.storage is None:
            return studies
        may_tell = re.search(r"//.*[@?]", self.storage)  # a user, or options: either may have a password
        return f'{studies} --storage "$STORAGE"' if may_tell else f"{studies} --storage {shlex.quote(self.storage)}"

    def command(self, verb: str, name: str) -> str:
        """A command about a study that finds it from where this one ran."""
        return f"lrnas {verb} {shlex.quote(name)}{self.options()}"
