"""Signs of life of a driver, by which others know that its trials are in good hands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lrnas.errors import LrnasError
from lrnas.study.ledger import Ledger

EVERY = 5.0
"""Seconds in which it is looked whether a sign is due."""


@contextmanager
def alive(study: Ledger) -> Iterator[None]:
    """Signs for the time of a search, however long its epochs are; however it ends, the driver signs off then."""
    study.sign()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(EVERY):
            with suppress(LrnasError):  # a storage that is gone ends the search where something is to be recorded
                study.sign()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(LrnasError):
            study.sign_off()
