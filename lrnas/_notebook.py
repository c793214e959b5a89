"""Notebooks: objects that are shown as HTML, and a progress bar that is updated in place.

Nothing here needs IPython: it is used if a notebook has loaded it.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from html import escape
from typing import Any


class NotebookView:
    """Mixin: notebooks show the object as HTML, which `lrnas.reporting.notebook` makes.

    The module is loaded when an object is first shown, so that packages below `reporting` need not import it.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = importlib.import_module("lrnas.reporting.notebook").as_html(self)
        return html


def in_notebook() -> bool:
    """Whether the program runs in a notebook: Jupyter, Colab or VS Code."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def import_without_advice() -> None:
    """In a notebook, keep tqdm and Ray from advising to install ipywidgets when they are imported: nothing uses it."""
    if in_notebook():
        with warnings.catch_warnings(action="ignore"):
            importlib.import_module("tqdm.auto")
        logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)


class LiveBar:
    """A progress bar with a line of text in a notebook.

    Args:
        text: The first text.
    """

    def __init__(self, text: str) -> None:
        display = importlib.import_module("IPython.display").display
        self.handle: Any = display(_bar(text), raw=True, display_id=True)
        self.text = ""
        """The last text; empty as long as it is the first one."""
        self.moves = True
        """Whether the bar has no total, so that it moves."""

    def update(self, text: str, done: int = 0, total: int | None = None) -> None:
        """Show another text.

        Args:
            text: The text.
            done: What is done.
            total: What has to be done; None if that is not known.
        """
        self.text, self.moves = text, not total
        self.handle.update(_bar(text, done, total), raw=True)

    def end(self) -> None:
        """Remove a bar that moves, since nothing happens any more; the last text stays, but not the first one."""
        if self.moves:
            self.handle.update({"text/html": escape(self.text), "text/plain": self.text}, raw=True)


def _bar(text: str, done: int = 0, total: int | None = None) -> dict[str, str]:
    """The bar as HTML, and as text for front ends without HTML."""
    length = "" if not total else f'value="{done}" max="{total}"'
    return {"text/html": f"<progress {length}></progress> {escape(text)}", "text/plain": text}
