"""Everything that README.md, docs/ and results/ mention exists: commands, options, imports, links."""

import argparse
import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import lrnas
from lrnas.cli.main import make_parser

ROOT = Path(__file__).parent.parent
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "results/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *REFERENCE,
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def commands(text: str) -> Iterator[str]:
    """Lines that run lrnas, in indented text and in blocks of shell code."""
    blocks = "".join(code for language, code in BLOCK.findall(text) if language == "sh")
    indented = re.findall(r"^ {4}(?:\$ )?(lrnas .+)$", BLOCK.sub("", text), re.MULTILINE)
    yield from [line for line in blocks.splitlines() if line.startswith("lrnas ")]
    yield from indented


def mentions(text: str) -> Iterator[list[str]]:
    """The words after `lrnas` in the middle of sentences, where arguments may be left out."""
    for found in re.findall(r"`lrnas ([^`]+)`", BLOCK.sub("", text)):
        yield found.split()


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


def anchors(page: Path) -> set[str]:
    """The addresses that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_command_lines_are_understood(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for line in commands(text):
        try:
            make_parser().parse_args(shlex.split(line, comments=True)[1:])
        except SystemExit:  # argparse has said why
            pytest.fail(f"{page.name}: {line}")
    known = subcommands()
    for command, *words in mentions(text):
        assert command in known, f"{page.name}: lrnas {command}"
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert options <= set(known[command]._option_string_actions), f"{page.name}: lrnas {command} {words}"


def test_command_lines_are_found() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(list(commands(text))) > 50 and len(list(mentions(text))) > 30
    assert {line.split()[1] for line in commands(text)} == set(subcommands()), "a command that no page shows"


@each_page
def test_python_code_is_valid_and_its_imports_exist(page: Path) -> None:
    for language, code in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lrnas":
                assert node.module == "lrnas", f"{page.name}: {node.module} is not public"
                assert {alias.name for alias in node.names} <= set(lrnas.__all__)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lrnas":
                assert node.attr in lrnas.__all__, f"lrnas.{node.attr}"


def test_the_reference_has_every_public_name() -> None:
    shown = [path for page in REFERENCE for path in re.findall(r"^::: lrnas\.(\S+)", page.read_text(), re.MULTILINE)]
    assert sorted(shown) == sorted(f"{module}.{name}" for name, module in lrnas._HOME.items())


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists() and there.is_relative_to(ROOT), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(there), f"{page.name}: {target}"


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    linked = {(ROOT / target.partition("#")[0]).resolve() for target in re.findall(r"\]\(([^)\s]+)\)", readme)}
    reachable = {*linked, *REFERENCE, PAGES[0]}  # the reference is linked from the page on where things are
    assert [page.name for page in PAGES if page not in reachable] == []


@each_page
def test_targets_and_extras_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    assert set(re.findall(r"(?:^ {4}|`)make ([\w-]+)", text, re.MULTILINE)) <= targets
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for named in re.findall(r"pip install (?:-e )?'(?:lrnas|\.)\[([\w,]+)\]'", text):
        assert set(named.split(",")) <= set(extras), f"{page.name}: {named}"
