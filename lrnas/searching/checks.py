"""Checks of settings that need neither torch nor Ray nor Optuna, so that a wrong value is refused at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lrnas.data.names import SETS, is_in_files, unknown_set
from lrnas.errors import LrnasError, UnknownName
from lrnas.models.plan import TIMM
from lrnas.recipes import check_recipe
from lrnas.searching.settings import SearchSettings
from lrnas.spaces.space import load_space
from lrnas.study.objectives import pick_objectives

SAMPLERS = ("front", "tpe", "gp", "nsga2", "random")
"""Names of the samplers."""


def check_settings(settings: SearchSettings) -> None:
    """Raise an error if a setting of a search has a wrong value, as far as that is known without training packages."""
    check_sampler(settings.sampler, settings.beat)
    pick_objectives(settings.objectives)
    check_training(settings.recipe, settings.set, settings.epochs, settings.data)
    if settings.final_epochs is not None:
        check_recipe("full", {"epochs": settings.final_epochs})
    if settings.latency_device is not None and settings.latency_device.partition(":")[0] not in ("cpu", "cuda"):
        raise LrnasError(f"--latency-device must be cpu or cuda; got {settings.latency_device!r}; choose one")
    if not settings.space.startswith(TIMM):  # timm needs torch
        load_space(
            settings.space,
            granularity=settings.granularity,
            batch_norm=settings.batch_norm,
            divisor=settings.divisor,
            stem_stride=settings.stem_stride,
        )


def check_training(recipe: str, changes: Mapping[str, Any] | None, epochs: int | None, data: str | None) -> None:
    """Raise an error if a recipe or a data set does not exist, or if a changed field has a wrong name or value."""
    check_recipe(recipe, {**(changes or {}), **({} if epochs is None else {"epochs": epochs})})
    if data is not None and data not in SETS and not is_in_files(data):
        raise unknown_set(data)


def check_sampler(name: str, beat: float | None = None) -> None:
    """Raise an error if there is no sampler of this name, or if it cannot look below a share of the paper's costs."""
    if name not in SAMPLERS:
        raise UnknownName("sampler", name, SAMPLERS)
    if beat is not None and name != "front":
        raise LrnasError(f"--beat needs the sampler front; got --sampler {name}; leave out one of the two")
