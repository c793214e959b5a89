"""Workers see whether they have the same disk as the search."""

from pathlib import Path

import pytest

from lrnas.errors import LrnasError
from lrnas.searching import shared_folder as places
from lrnas.training.checkpoint import CheckpointError


def test_another_disk_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(places, "PAUSE", 0.0)
    with places.marked(tmp_path / "trials") as mark, places.marked(tmp_path / "trials") as another:
        places.check_mark(tmp_path / "trials", mark)
        places.check_mark(tmp_path / "trials", another)
        (tmp_path / "elsewhere").mkdir()
        with pytest.raises(CheckpointError, match=r"does not see .*elsewhere as the search does; give a "):
            places.check_mark(tmp_path / "elsewhere", mark)
    assert not list((tmp_path / "trials").iterdir())


def test_a_folder_that_cannot_be_written_ends_the_search(tmp_path: Path) -> None:
    (tmp_path / "trials").write_text("in the way")
    with pytest.raises(LrnasError, match=r"cannot write to .*trials: File exists; give another --studies"):
        places.marked(tmp_path / "trials").__enter__()
