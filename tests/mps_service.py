"""A script in place of NVIDIA's program for CUDA MPS."""

import os
from pathlib import Path

import pytest

from lrnas.training import gpu_sharing
from lrnas.training.gpu_sharing import CONTROL, PIPES

SCRIPT = """#!/bin/sh
# A service runs if there is a file "control" in its folder.
here=$(dirname "$0")
folder=${CUDA_MPS_PIPE_DIRECTORY:-$here/usual}
if [ "$1" = -d ]; then command=start; else read command; fi
echo "$command $folder ${CUDA_VISIBLE_DEVICES-all}" >> "$here/calls"
case $command in
    start) touch "$folder/control" ;;
    *) [ -e "$folder/control" ] || { echo "Cannot find the daemon"; exit 1; } ;;
esac
if [ "$command" = quit ]; then rm "$folder/control"; fi
"""


class Service:
    """The script on the search path, and what it was called with; no GPU is needed.

    Args:
        folder: Where the script is.
        patch: Undoes all changes at the end of a test.
    """

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        patch.delenv(PIPES, raising=False)
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        patch.setattr(gpu_sharing, "USE_GPU", "")
        self.folder, self.usual = folder, folder / "usual"
        self.usual.mkdir()
        self.write(SCRIPT)

    def write(self, script: str) -> None:
        (self.folder / CONTROL).write_text(script)
        (self.folder / CONTROL).chmod(0o755)

    def calls(self) -> list[list[str]]:
        """Command, folder and visible GPUs of each call."""
        file = self.folder / "calls"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def commands(self) -> list[str]:
        return [call[0] for call in self.calls()]
