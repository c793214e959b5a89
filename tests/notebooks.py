"""Runs notebooks without Jupyter, which is not one of the test packages: `python tests/notebooks.py FILE`.

All code cells of a notebook run in one namespace, in an empty folder. If the last line of a cell is an expression, its
value is shown as Jupyter would show it: as text, HTML or a picture. The command writes the outputs into the file.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def run_notebook(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of the code cells, in Jupyter's format; an error in a cell is raised."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    codes = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [_run_cell(code, number, namespace) for number, code in enumerate(codes, 1)]


def _run_cell(code: str, number: int, namespace: dict[str, Any]) -> list[dict[str, Any]]:
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    texts = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    value = None
    with contextlib.redirect_stdout(texts["stdout"]), contextlib.redirect_stderr(texts["stderr"]):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), namespace)
    outputs: list[dict[str, Any]] = [
        {"name": name, "output_type": "stream", "text": text.getvalue().splitlines(keepends=True)}
        for name, text in texts.items()
        if text.getvalue()
    ]
    if value is not None:
        data = _show(value)
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _show(value: object) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if (html := getattr(value, "_repr_html_", lambda: None)()) is not None:
        data["text/html"] = [html]
    if (picture := getattr(value, "_repr_png_", lambda: None)()) is not None:
        data["image/png"] = base64.b64encode(picture).decode()
    return {**data, "text/plain": repr(value).splitlines(keepends=True)}


def main(file: Path) -> None:
    """Run a notebook and write its outputs into it."""
    notebook = json.loads(file.read_text(encoding="utf-8"))
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        outputs = run_notebook(notebook)
        os.chdir(home)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, shown) in enumerate(zip(cells, outputs, strict=True), 1):
        cell |= {"execution_count": number, "outputs": shown}
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
