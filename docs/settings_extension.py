"""Extension of Griffe, for `make docs`: shows functions with a generated signature as Python sees them."""

import inspect
from typing import Any

import griffe

import lrnas


class GeneratedSignature(griffe.Extension):
    """Gives `lrnas.search` the arguments and the docstring that are generated from the settings of a search."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        if func.path != f"{lrnas.search.__module__}.search":
            return
        func.docstring = griffe.Docstring(inspect.getdoc(lrnas.search) or "", parent=func)
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    one.name,
                    annotation=str(one.annotation),
                    kind=griffe.ParameterKind[one.kind.name.lower()],
                    default=None if one.default is one.empty else repr(one.default),
                )
                for one in inspect.signature(lrnas.search).parameters.values()
            )
        )
