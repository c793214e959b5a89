"""Neural architecture search over convolution filters of mixed shapes, on timm.

`import lrnas` registers the networks with timm: as soon as timm is imported too, before or after,
`timm.create_model("vgg_gmp_lr_join_wfull", num_classes=10)` works. Until something needs torch, it is
not loaded.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lrnas.arch.architecture import Allocation, Architecture, FilterGroup
    from lrnas.arch.cost import Cost
    from lrnas.errors import LrnasError
    from lrnas.exporting.export import export
    from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
    from lrnas.layers.init import initialise
    from lrnas.models.build import create_model
    from lrnas.models.convert import convert
    from lrnas.models.count import count_model
    from lrnas.models.paper import get_point
    from lrnas.models.plan import canonical_id, make_plan
    from lrnas.searching.search import search
    from lrnas.spaces.space import load_space
    from lrnas.study.open import open_study

__version__ = "0.1.0"

_HOME = {
    "Allocation": "arch.architecture",
    "Architecture": "arch.architecture",
    "CompositeConv2d": "layers.conv",
    "Cost": "arch.cost",
    "FilterGroup": "arch.architecture",
    "LrnasError": "errors",
    "SeparableConv2d": "layers.conv",
    "canonical_id": "models.plan",
    "convert": "models.convert",
    "count_model": "models.count",
    "create_model": "models.build",
    "export": "exporting.export",
    "get_point": "models.paper",
    "initialise": "layers.init",
    "load_space": "spaces.space",
    "make_plan": "models.plan",
    "open_study": "study.open",
    "search": "searching.search",
}
"""Where each public name lives; it is loaded when it is first asked for."""

__all__ = [
    "Allocation",
    "Architecture",
    "CompositeConv2d",
    "Cost",
    "FilterGroup",
    "LrnasError",
    "SeparableConv2d",
    "canonical_id",
    "convert",
    "count_model",
    "create_model",
    "export",
    "get_point",
    "initialise",
    "load_space",
    "make_plan",
    "open_study",
    "search",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lrnas' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lrnas.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _AfterTimm(importlib.abc.MetaPathFinder):
    """Registers our networks right after timm is imported, so that importing lrnas stays cheap."""

    def __init__(self) -> None:
        self.looking = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "timm" or getattr(self.looking, "now", False):
            return None
        self.looking.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking.now = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            importlib.import_module("lrnas.models.timm_registry")

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


if "timm" in sys.modules:
    importlib.import_module("lrnas.models.timm_registry")
else:
    sys.meta_path.insert(0, _AfterTimm())
