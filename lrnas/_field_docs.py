"""The texts under the fields of a dataclass, for the help of Python and of options."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def field_docs(described: type) -> dict[str, str]:
    """The descriptions of the fields of a dataclass, by field: the text under each field."""
    body = ast.parse(inspect.getsource(described)).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for node, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
            docs[node.target.id] = str(ast.literal_eval(after.value))
    return docs


class _WithFields:
    """A docstring to which the descriptions of the fields are added when it is read, which takes some milliseconds."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __get__(self, instance: object, owner: type) -> str:
        fields = [f"{name}: {' '.join(text.split())}" for name, text in field_docs(owner).items()]
        wrapped = [textwrap.fill(line, 110, initial_indent=" " * 4, subsequent_indent=" " * 8) for line in fields]
        return "\n".join([self.text, "", "Attributes:", *wrapped])


def in_help(described: Class) -> Class:
    """Decorator for a dataclass: `help` shows the texts under its fields, too."""
    described.__doc__ = _WithFields(inspect.cleandoc(described.__doc__ or ""))  # type: ignore[assignment]
    return described
