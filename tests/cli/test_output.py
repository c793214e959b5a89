"""Tables in terminals of any width."""

import io
import re
import sys

import pytest

from lrnas._field_docs import field_docs
from lrnas.cli.main import main
from lrnas.cli.output import make_console, make_table
from lrnas.models.paper import paper_points
from lrnas.recipes import Recipe

ROWS = [
    ("nin_3x3-lr-x0.25", "7", "–", "1,736,448", "90.31 ± 0.44 %", "front by fewer runs"),
    ("nin-f517bf32751c", "12", "–", "55,606,272", "92.50 ± 0.00 %", "reference"),
]


def show(width: int) -> list[str]:
    """The lines of a table as a terminal of this width shows it."""
    columns = ("trial", "share", "MACs", "accuracy")
    explained = {"MACs": "MACs: of one image", "accuracy": "accuracy: on test images"}
    table = make_table("A title of some words", ["network"], columns, [""], ["MACs", "trial"], explained)
    for row in ROWS:
        table.add_row(*row)
    console = make_console()
    console.file, console.width = io.StringIO(), width
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [10, 34, 36, 45, 52, 60, 70, 80, 200])
def test_nothing_is_cut(width: int) -> None:
    """Names are broken only if that makes the table fit."""
    lines = show(width)
    words = " ".join(lines).split()
    assert "share" not in words and "…" not in "".join(words)  # it has only dashes
    assert " ".join(words).startswith("A title of some words network")
    for row in ROWS:
        assert row[4] in " ".join(words) and set(row[5].split()) <= set(words)
    fits = max(map(len, lines)) <= width
    assert fits == (width >= 34) and all((row[0] in words) == (width not in (34, 36)) for row in ROWS)


def test_optional_columns_are_left_out_before_texts_are_wrapped() -> None:
    assert ("MACs" in show(72)[2], "MACs" in show(71)[2]) == (True, False)
    assert "trial" in show(71)[2] and "trial" not in show(59)[2]
    assert next(line for line in show(59) if "nin_3x3" in line).endswith("front by fewer runs")
    assert next(line for line in show(50) if "nin_3x3" in line).endswith("  front by fewer")


def test_columns_that_are_left_out_are_named_and_not_explained() -> None:
    def below(width: int) -> list[str]:
        return show(width)[5:]

    accuracy, advice = "accuracy: on test images", "; use a wider terminal or --json."
    assert below(80) == ["MACs: of one image", accuracy]
    assert below(71) == [f"Not shown for lack of room: MACs{advice}", accuracy]
    assert " ".join(below(59)) == f"Not shown for lack of room: MACs, trial{advice} {accuracy}"


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = make_table("a:b: networks", ["network"])
    table.add_row("[b]:b:")
    make_console().print(table)
    assert capsys.readouterr().out == "\na:b: networks\nnetwork\n[b]:b: \n"


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("command", ["models", "recipes"])
def test_lists_fit_a_narrow_terminal(
    command: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No name is broken, and no text explains a column that is left out."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([command]) == 0
    out = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    names = [*paper_points()] if command == "models" else field_docs(Recipe)
    assert max(map(len, out.splitlines())) <= width and set(names) <= {line.split(" ")[0] for line in out.splitlines()}
    assert "Not shown for lack of room: " in out and "MACs as deployed:" not in out
