"""The structure of lrnas: imports between packages point one way, and the public names exist."""

import ast
import importlib
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lrnas

ROOT = Path(lrnas.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
PACKAGES = (
    "arch",
    "layers",
    "models",
    "spaces",
    "data",
    "training",
    "sampling",
    "study",
    "profiling",
    "searching",
    "exporting",
    "reporting",
    "cli",
)
"""From the ground up: a package imports only from those before it, and from the modules beside the packages."""
MOST_MODULES = 15
NEEDS_NO_TORCH = (
    "errors",
    "recipes",
    "arch",
    "models.plan",
    "models.paper",
    "models.summary",
    "spaces",
    "sampling",
    "study",
    "searching.settings",
    "exporting.names",
    "reporting.html",
    "cli",
)
"""Modules, and packages with every module in them, that load neither torch, timm, Ray nor matplotlib."""
HEAVY = ("torch", "timm", "ray", "matplotlib")


def name_of(path: Path) -> str:
    """A module's dotted name below lrnas; a package's own file has the name of the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__").replace("__init__", "")


MODULES = {name_of(path) for path in FILES}


def imports_of(path: Path) -> set[str]:
    """The modules of lrnas that a module imports, also inside functions and under TYPE_CHECKING."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 1:  # from .module import name
            found.add(f"{name_of(path).rpartition('.')[0]}.{node.module}")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lrnas":
            base = (node.module or "").removeprefix("lrnas").removeprefix(".")
            whole = {f"{base}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= (whole & MODULES) or {base}
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("lrnas.") for alias in node.names if alias.name.startswith("lrnas.")}
    return found & MODULES


GRAPH = {name_of(path): imports_of(path) - {"", name_of(path)} for path in FILES}


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_the_list_of_packages_is_complete() -> None:
    assert sorted(path.parent.name for path in ROOT.glob("*/__init__.py")) == sorted(PACKAGES)


def test_packages_import_only_from_those_below() -> None:
    upward = [
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        for other in others
        if package_of(module) in PACKAGES
        and package_of(other) in PACKAGES
        and PACKAGES.index(package_of(other)) > PACKAGES.index(package_of(module))
    ]
    assert upward == []
    beside = {module for module in GRAPH if package_of(module) not in PACKAGES} - {"", "__main__"}
    assert [module for module in beside if any(package_of(other) in PACKAGES for other in GRAPH[module])] == []


def test_no_modules_import_each_other() -> None:
    assert "models.count" in GRAPH["models.plan"]  # function-level imports count too
    TopologicalSorter({module: others for module, others in GRAPH.items() if module}).prepare()  # CycleError names them


def test_packages_say_what_they_are_for() -> None:
    page = (ROOT.parent / "docs" / "structure.md").read_text(encoding="utf-8")
    for path in ROOT.glob("*/__init__.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        charter = ast.get_docstring(tree)
        assert charter and len(tree.body) == 1, f"{path.parent.name}: a docstring and nothing else"
        assert f"| `{path.parent.name}` | {charter.removesuffix('.')} |" in page


def test_no_package_has_too_many_modules() -> None:
    crowds = {str(folder): len(list(folder.glob("*.py"))) - 1 for folder in {path.parent for path in FILES}}
    assert {folder: number for folder, number in crowds.items() if number > MOST_MODULES} == {}


def test_exports_are_what_they_say() -> None:
    assert sorted(lrnas.__all__) == sorted(lrnas._HOME)
    assert set(lrnas.__all__) & set(PACKAGES) == set(), "a package would hide a public name"
    for name in lrnas.__all__:
        assert getattr(lrnas, name) is getattr(importlib.import_module(f"lrnas.{lrnas._HOME[name]}"), name)
        assert name in dir(lrnas)
    assert [name for name in dir(lrnas) if name not in lrnas.__all__ and not name.startswith("__")] == []


@pytest.mark.parametrize("part", NEEDS_NO_TORCH)
def test_light_parts_load_nothing_heavy(part: str) -> None:
    names = [name for name in MODULES if name == part or name.startswith(f"{part}.")]
    code = "; ".join(f"import lrnas.{name}" for name in sorted(names))
    code += f"; import sys; found = [name for name in {HEAVY!r} if name in sys.modules]; assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)
