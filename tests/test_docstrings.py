"""Docstrings of public functions: they explain every argument, and their examples give what they show."""

import dataclasses
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


@pytest.mark.parametrize("name", ["Trial", "Profile", "Estimate", "Export"])
def test_help_explains_every_field(name: str) -> None:
    described = getattr(lrnas, name)
    text = inspect.getdoc(described) or ""
    missing = [
        one.name for one in dataclasses.fields(described) if not re.search(rf"^    {one.name}: \S", text, re.MULTILINE)
    ]
    assert "\nAttributes:\n" in text and missing == []
