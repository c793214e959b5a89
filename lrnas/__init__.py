"""Neural architecture search over convolution filters of mixed shapes, on timm.

`import lrnas` registers the networks with timm, so that `timm.create_model("vgg_gmp_lr_join_wfull", num_classes=10)`
works. The order of the two imports does not matter. torch is loaded only when it is needed.
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

from lrnas._interrupts import later_interrupts
from lrnas._notebook import import_without_advice

if TYPE_CHECKING:
    from lrnas.arch.architecture import (
        Allocation as Allocation,
        Architecture as Architecture,
        FilterGroup as FilterGroup,
    )
    from lrnas.arch.cost import Cost as Cost
    from lrnas.errors import LrnasError as LrnasError
    from lrnas.exporting.export import Export as Export, export as export
    from lrnas.exporting.load import load_model as load_model
    from lrnas.layers.accelerate import accelerate as accelerate, fused as fused
    from lrnas.layers.conv import CompositeConv2d as CompositeConv2d, SeparableConv2d as SeparableConv2d
    from lrnas.layers.init import initialise as initialise
    from lrnas.models.build import create_model as create_model
    from lrnas.models.convert import Conversion as Conversion, convert as convert
    from lrnas.models.count import count_model as count_model
    from lrnas.models.paper import get_point as get_point
    from lrnas.models.plan import (
        canonical_id as canonical_id,
        deployed_form as deployed_form,
        make_plan as make_plan,
    )
    from lrnas.profiling.profile import Profile as Profile, profile as profile
    from lrnas.reporting.write import WrittenReport as WrittenReport, plot as plot, report as report
    from lrnas.sampling.front_pruner import FrontPruner as FrontPruner
    from lrnas.sampling.front_sampler import FrontSampler as FrontSampler
    from lrnas.searching.estimate import Estimate as Estimate, estimate as estimate
    from lrnas.searching.proposals import distributions_of as distributions_of
    from lrnas.searching.retrain import (
        RetrainingPlan as RetrainingPlan,
        plan_retraining as plan_retraining,
        retrain as retrain,
    )
    from lrnas.searching.search import search as search
    from lrnas.spaces.space import SearchSpace as SearchSpace, load_space as load_space
    from lrnas.study.levels import (
        Outcome as Outcome,
        compare_with_references as compare_with_references,
        read_level as read_level,
    )
    from lrnas.study.open import open_study as open_study
    from lrnas.study.retrained import Final as Final, final_front as final_front, read_retraining as read_retraining
    from lrnas.study.study import Study as Study, Trial as Trial, Trials as Trials
    from lrnas.study.verdicts import Verdict as Verdict, judge as judge
    from lrnas.training.custom import Run as Run

__version__ = "0.1.0"

_HOME = {
    "Allocation": "arch.architecture",
    "Architecture": "arch.architecture",
    "CompositeConv2d": "layers.conv",
    "Conversion": "models.convert",
    "Cost": "arch.cost",
    "Estimate": "searching.estimate",
    "Export": "exporting.export",
    "FilterGroup": "arch.architecture",
    "Final": "study.retrained",
    "FrontPruner": "sampling.front_pruner",
    "FrontSampler": "sampling.front_sampler",
    "LrnasError": "errors",
    "Outcome": "study.levels",
    "Profile": "profiling.profile",
    "RetrainingPlan": "searching.retrain",
    "Run": "training.custom",
    "SearchSpace": "spaces.space",
    "SeparableConv2d": "layers.conv",
    "Study": "study.study",
    "Trial": "study.study",
    "Trials": "study.study",
    "Verdict": "study.verdicts",
    "WrittenReport": "reporting.write",
    "accelerate": "layers.accelerate",
    "canonical_id": "models.plan",
    "compare_with_references": "study.levels",
    "convert": "models.convert",
    "count_model": "models.count",
    "create_model": "models.build",
    "deployed_form": "models.plan",
    "distributions_of": "searching.proposals",
    "estimate": "searching.estimate",
    "export": "exporting.export",
    "final_front": "study.retrained",
    "fused": "layers.accelerate",
    "get_point": "models.paper",
    "initialise": "layers.init",
    "judge": "study.verdicts",
    "load_model": "exporting.load",
    "load_space": "spaces.space",
    "make_plan": "models.plan",
    "open_study": "study.open",
    "plan_retraining": "searching.retrain",
    "plot": "reporting.write",
    "profile": "profiling.profile",
    "read_retraining": "study.retrained",
    "read_level": "study.levels",
    "report": "reporting.write",
    "retrain": "searching.retrain",
    "search": "searching.search",
}
"""The module that defines each public name. It is loaded when the name is first used."""

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        from lrnas.errors import closest

        raise AttributeError(f"module 'lrnas' has no attribute {name!r}{closest(name, _HOME)}")
    with later_interrupts():
        module = importlib.import_module(f"lrnas.{_HOME[name]}")
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *__all__])


class _AfterTimm(importlib.abc.MetaPathFinder):
    """Import hook that registers our networks as soon as timm is imported.

    `import lrnas` itself then need not load timm and torch.
    """

    def __init__(self) -> None:
        self.state = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "timm" or getattr(self.state, "is_searching", False):
            return None
        self.state.is_searching = True  # `importlib.util.find_spec` calls this method again
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.state.is_searching = False
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            importlib.import_module("lrnas.models.lrnas")

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


if "timm" in sys.modules:
    importlib.import_module("lrnas.models.lrnas")
else:
    sys.meta_path.insert(0, _AfterTimm())

import_without_advice()
