"""Common parts of figures: text stays text, and the same numbers give the same file."""

from itertools import pairwise
from pathlib import Path

import pytest

from lrnas.errors import LrnasError
from lrnas.reporting.figures.style import (
    FORMATS,
    add_footer,
    check_format,
    label_ticks,
    make_figure,
    number_text,
    save_figure,
    wrap_text,
)


def save(folder: Path) -> list[bytes]:
    """Save a figure with everything that has an id in a file: markers, clips, colour gradients."""
    figure = make_figure(3, 2)
    axes = figure.subplots()
    axes.imshow([[0.0, 1.0]])
    axes.scatter([0, 1], [0, 0], c=[0, 1])
    axes.set_title("words that can be found")
    files = [folder / f"picture.{name}" for name in FORMATS]
    save_figure(figure, files)
    return [file.read_bytes() for file in files]


def test_the_same_numbers_make_the_same_files(tmp_path: Path) -> None:
    first = save(tmp_path / "first")
    assert first == save(tmp_path / "second")
    png, svg, pdf = first
    assert png.startswith(b"\x89PNG")
    assert b">words that can be found</text>" in svg and b"dc:date" not in svg
    assert pdf.startswith(b"%PDF") and b"CreationDate" not in pdf and b"/FontFile2" in pdf and b"/Type3" not in pdf


def test_formats_by_name_and_by_file_suffix(tmp_path: Path) -> None:
    assert [check_format(name) for name in ("png", ".SVG", Path("a.b/c.Pdf"))] == ["png", "svg", "pdf"]
    for name in ("gif", Path("png"), Path("a.gif")):
        with pytest.raises(LrnasError, match=f"png, svg, pdf; got '{name}'; choose one of these"):
            check_format(name)
    (tmp_path / "file").touch()
    with pytest.raises(LrnasError, match=r"cannot write .*x\.png: .*; give another file"):
        save_figure(make_figure(1, 1), tmp_path / "file" / "x.png")


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (3, 3_000, ["5", "10", "20", "50", "100", "200", "500", "1,000", "2,000"]),
        (0.4, 4, ["0.5", "0.7", "1", "2", "3"]),
        (110, 190, ["120", "135", "150", "165", "180"]),
    ],
)
def test_logarithmic_axes_have_plain_numbers(low: float, high: float, wanted: list[str]) -> None:
    figure = make_figure(7, 2)
    axes = figure.subplots()
    axes.set(xscale="log", xlim=(low, high))
    label_ticks(axes.xaxis)
    figure.draw_without_rendering()
    ticks = [tick for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert [tick.label1.get_text() for tick in ticks] == wanted
    assert not any(label.get_text() for label in axes.get_xticklabels(minor=True))
    labels = [tick.label1.get_window_extent() for tick in ticks]
    assert all(left.x1 < right.x0 for left, right in pairwise(labels))


def test_long_texts_stay_within_the_picture() -> None:
    figure = make_figure(4, 2)
    figure.suptitle(wrap_text("W and $m$ " * 12 + "/a/path/without/spaces" * 6, 4, 10), fontsize=10)
    add_footer(figure, ["a footer, of many words, that goes on and on; " * 5, "and a short line"])
    figure.draw_without_rendering()
    for text in (figure._suptitle, figure._supxlabel):  # type: ignore[attr-defined]
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert figure.get_supxlabel().endswith("\nand a short line")


def test_numbers_have_no_powers_of_ten() -> None:
    assert [number_text(value) for value in (7_612.4, 0.001234, 15, 1e6)] == ["7,610", "0.00123", "15", "1,000,000"]
