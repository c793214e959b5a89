import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)  # programs in the background of a shell ignore Ctrl-C


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder for Ray's files; its name is short because names of sockets have at most 107 letters."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)
