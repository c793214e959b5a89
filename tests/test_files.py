"""Files that appear under their name only when they are complete."""

from pathlib import Path

import pytest

from lrnas._files import write_atomically


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "numbers.txt"
    with write_atomically(file) as part:
        part.write_text("1 2 3")
        assert not file.exists()
    assert file.read_text() == "1 2 3"
    assert list(file.parent.iterdir()) == [file]


def test_an_error_leaves_the_earlier_file(tmp_path: Path) -> None:
    file = tmp_path / "numbers.txt"
    file.write_text("1 2 3")

    def write_half() -> None:
        with write_atomically(file) as part:
            part.write_text("4 5")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert file.read_text() == "1 2 3"
    assert list(tmp_path.iterdir()) == [file]


def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    file = tmp_path / "numbers.txt"
    with write_atomically(file) as first, write_atomically(file) as second:
        first.write_text("first")
        second.write_text("second")
    assert file.read_text() == "first"  # its block ended last
    assert list(tmp_path.iterdir()) == [file]
