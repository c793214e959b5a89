"""The shape of the package: imports point one way, the public face is what it says."""

import ast
import importlib
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import lrnas

PACKAGE = Path(lrnas.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
FACE = {"__init__", "__main__", "cli", "export_commands", "profile_commands", "report_commands", "search_commands"}
"""These may reach for anything, when it is asked for."""
NEEDS_NO_TORCH = ("errors", "arch", "cost", "topology", "plan", "points", "summary", "resources", "space", "cli")


def imports_of(path: Path) -> set[str]:
    """Our own modules that a module imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lrnas":
            rest = (node.module or "").split(".")[1:]
            found |= {rest[0]} if rest else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.split(".")[1] for name in (a.name for a in node.names) if name.startswith("lrnas.")}
    return found & {part_of(module) for module in FILES}


def part_of(path: Path) -> str:
    """The module a file is, or the package of modules it belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_point_one_way() -> None:
    graph: dict[str, set[str]] = {}
    for path in FILES:
        if path.parent != PACKAGE or path.stem not in FACE:
            graph.setdefault(part_of(path), set()).update(imports_of(path) - {part_of(path)})
    assert graph["plan"] >= {"arch", "tracing"}  # the function-level ones count too
    assert graph["kernels"] == set() and "kernels" in graph["fused"]
    TopologicalSorter(graph).prepare()  # raises CycleError, with the cycle
    assert not any(graph[name] & FACE for name in graph)


def test_exports_are_what_they_say() -> None:
    assert sorted(lrnas.__all__) == sorted(lrnas._HOME)
    for name in lrnas.__all__:
        assert getattr(lrnas, name) is getattr(importlib.import_module(f"lrnas.{lrnas._HOME[name]}"), name)
        assert name in dir(lrnas)
    for path in FILES:
        if path.stem not in {"__main__", "registry"}:
            name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
            module = importlib.import_module(name)
            assert all(hasattr(module, name) for name in module.__all__)


def test_describing_and_counting_needs_no_torch() -> None:
    code = (
        "; ".join(f"import lrnas.{name}" for name in NEEDS_NO_TORCH) + "; import sys; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modules_stay_small() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > 450} == {}
