"""Docstrings of public functions: they explain every argument, and their examples give what they show."""

import doctest
import importlib
import inspect
import re

import pytest

import lrnas

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


@pytest.mark.parametrize("name", [name for name in lrnas.__all__ if inspect.isfunction(getattr(lrnas, name))])
def test_every_argument_is_explained(name: str) -> None:
    function = getattr(lrnas, name)
    text = inspect.getdoc(function) or ""
    missing = [
        one for one in inspect.signature(function).parameters if not re.search(rf"^    {one}: ", text, re.MULTILINE)
    ]
    assert "Args:\n" in text and missing == []
