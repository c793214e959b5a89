"""Files that appear under their name only when they are complete, and files of users, which can be anything."""

import os
from pathlib import Path

import pytest

from lrnas._files import MAX_TEXT, parse_toml, read_json, read_text, write_atomically
from lrnas.arch.architecture import Architecture
from lrnas.errors import InvalidArchitecture


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


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    pipe, endless, folder = (tmp_path / name for name in ("pipe.json", "endless.json", "folder.json"))
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    folder.mkdir()
    for file, reason in ((pipe, "not a regular file"), (endless, "not a regular file"), (folder, "Is a directory")):
        with pytest.raises(OSError, match=reason):
            read_text(file)
        with pytest.raises(InvalidArchitecture, match=f"cannot read {file}: {reason}; give a JSON file"):
            Architecture.load(file)


def test_text_has_a_largest_size(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a" * MAX_TEXT)
    assert len(read_text(tmp_path / "text")) == MAX_TEXT
    (tmp_path / "text").write_bytes(b"a" * (MAX_TEXT + 1))
    with pytest.raises(OSError, match="larger than 256 KiB"):
        read_text(tmp_path / "text")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1" + 400 * "0", "a whole number has more than 64 bits"),
        ("a = [{b = 0x" + 6_000 * "f" + "}]", "a whole number has more than 64 bits"),
        ("a = " + 6_000 * "9", "a number is too long"),
        ("a = " + 100_000 * "[", "too many brackets are open"),
        ("a = " + 70 * "[" + 70 * "]", "tables and lists are more than 64 deep"),
        (70 * "a." + "a = 1", "a key has more than 64 parts"),
        ("[" + 70 * "'a' . " + "a]", "a key has more than 64 parts"),
        ("a =", "Invalid value"),
    ],
)
def test_toml_that_would_break_a_program_later(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_toml(text)


def test_toml_within_the_limits() -> None:
    data = parse_toml(f"a = [-{2**63}, {2**63 - 1}, true, 0.5]\n[b.{50 * 'c.'}d]")
    assert data["a"] == [-(2**63), 2**63 - 1, True, 0.5] and "c" in data["b"]


def test_json_of_many_brackets(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text(100_000 * "[")
    with pytest.raises(ValueError, match="too many brackets are open"):
        read_json(tmp_path / "deep.json")
