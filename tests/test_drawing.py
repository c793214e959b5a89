"""What all pictures have in common: that text stays text, and that the same numbers make the same file."""

from pathlib import Path

import pytest

from lrnas.drawing import FORMATS, check_format, make_figure, save_figure
from lrnas.errors import LrnasError


def save(folder: Path) -> list[bytes]:
    """One picture with everything that Matplotlib gives a name in a file: markers, clips, gradients of colour."""
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


def test_formats_are_those_of_names_and_files(tmp_path: Path) -> None:
    assert [check_format(name) for name in ("png", ".SVG", Path("a.b/c.Pdf"))] == ["png", "svg", "pdf"]
    for name in ("gif", Path("png"), Path("a.gif")):
        with pytest.raises(LrnasError, match=f"png, svg, pdf; got '{name}'; choose one of these"):
            check_format(name)
    (tmp_path / "file").touch()
    with pytest.raises(LrnasError, match=r"cannot write .*x\.png: .*; give another file"):
        save_figure(make_figure(1, 1), tmp_path / "file" / "x.png")
