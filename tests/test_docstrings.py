"""The examples in the docstrings of public functions give what they show."""

import doctest
import importlib

import pytest

MODULES = (
    "recipes",
    "arch.architecture",
    "arch.cost",
    "models.build",
    "models.convert",
    "models.count",
    "models.paper",
    "models.plan",
    "spaces.space",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"lrnas.{name}"))
    assert results.attempted > 0 and results.failed == 0
