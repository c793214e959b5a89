"""What a search or a retraining tells whoever watches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lrnas.study.ledger import Ledger


class SearchEvents:
    """This one does nothing with it."""

    def say(self, line: str) -> None:
        """Something worth a line."""

    def started(self, study: Ledger, budget: int, dense_macs: int | None = None) -> None:
        """The study is open; trials are about to run. With the cost of the dense network, where that is the measure."""

    def changed(self, what: str) -> None:
        """A trial started, ended or has one more epoch."""
