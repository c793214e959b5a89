"""The folder of studies, and deleting a study."""

import json
import time
from pathlib import Path

import optuna
import pytest
from small_studies import make_proposals, make_search

from lrnas._messages import file_size
from lrnas.cli.main import main
from lrnas.errors import UnknownName
from lrnas.study.folder import delete_if_empty, delete_study, study_names, trial_folder, trials_folder
from lrnas.study.ledger import DRIVER
from lrnas.study.manifest import StudyError, check_manifest
from lrnas.study.open import open_study
from lrnas.study.optuna_internals import id_of_study, storage_of
from lrnas.study.storage import open_storage
from lrnas.study.study import Study


def make(studies: Path) -> Study:
    """Make a search named s with four trials and two retrainings."""
    study = make_search(studies / "s")
    for name in ("s@fast", "s@paper"):
        again = optuna.create_study(study_name=name, storage=study.optuna_study._storage)
        check_manifest(again, {**study.manifest, "retrains": "s"})
    (studies / "s" / "retrained" / "fast" / "00000").mkdir(parents=True)
    return study


def test_a_study_is_deleted_with_its_retrainings_and_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    make_proposals(tmp_path / "s2")
    delete = ["studies", "--studies", str(tmp_path), "--delete"]
    assert main([*delete, "s@fast", "--json"]) == 0
    gone = tmp_path / "s" / "retrained" / "fast"
    assert json.loads(capsys.readouterr().out) == {"trials": {"s@fast": 0}, "folder": str(gone)}
    assert not gone.exists() and len(open_study("s", studies=tmp_path).trials) == 4
    assert main([*delete, "s"]) == 0
    lines = capsys.readouterr().out.splitlines()
    studies = ["Deleted: study s, 4 trials", "Deleted: study s@paper, 0 trials"]
    assert sorted(lines) == [f"Deleted: folder {tmp_path / 's'}", *studies]
    assert study_names(tmp_path) == ["s2"] and not (tmp_path / "s").exists()
    assert main([*delete, "s"]) == 2
    assert "unknown study 's'; did you mean s2?" in capsys.readouterr().err


def test_a_running_study_is_not_deleted(tmp_path: Path) -> None:
    make(tmp_path)
    working = make_proposals(tmp_path / "s")
    working.ledger.sign()
    with pytest.raises(StudyError, match=r"got s, which process \d+ on .* works on; stop that first"):
        delete_study("s", studies=tmp_path)
    assert len(open_study("s", studies=tmp_path).trials) == 4
    working.ledger.sign_off()
    assert delete_study("s", studies=tmp_path).trials == {"s": 4, "s@fast": 0, "s@paper": 0}


def test_a_search_that_could_not_begin_leaves_nothing(tmp_path: Path) -> None:
    for name, gone in (("empty", True), ("worked on", False), ("with trials", False)):
        if name == "with trials":
            make_search(tmp_path / name)
        proposals = make_proposals(tmp_path / name)
        if name == "worked on":
            proposals.ledger.sign()
        delete_if_empty(proposals.study.optuna_study, tmp_path / name)
        assert (name not in study_names(tmp_path), not (tmp_path / name).exists()) == (gone, gone)
        if name == "empty":
            mine = tmp_path / name / "mine.txt"
            empty = make_proposals(tmp_path / name)
            mine.write_text("")
            delete_if_empty(empty.study.optuna_study, tmp_path / name)
            assert study_names(tmp_path) == [] and mine.exists()
        if name == "worked on":
            proposals.ledger.sign_off()
    opened = make_proposals(tmp_path / "s")
    begun_anew = delete_study("s", studies=tmp_path) and make_proposals(tmp_path / "s")
    delete_if_empty(opened.study.optuna_study, tmp_path / "s")
    assert study_names(tmp_path) == ["s", "with trials", "worked on"] and not begun_anew.study.trials


def test_other_studies_in_a_shared_database_are_kept(tmp_path: Path) -> None:
    url = f"journal:{tmp_path / 'journal.log'}"
    storage = open_storage(url, tmp_path)
    for name in ("s", "t"):
        check_manifest(optuna.create_study(study_name=name, storage=storage), make_proposals().study.manifest)
    optuna.create_study(study_name="u", storage=storage).enqueue_trial({})
    assert delete_study("s", storage=url, studies=tmp_path).to_dict() == {"trials": {"s": 0}, "folder": None}
    with pytest.raises(StudyError, match="u is a study of Optuna, but not one of lrnas"):
        delete_study("u", storage=url, studies=tmp_path)
    with pytest.raises(StudyError, match="the storage has no study 's'; known: t, u"):
        delete_study("s", storage=url, studies=tmp_path)
    for name in ("../s", "..", ""):
        with pytest.raises(StudyError, match="must be the name of a folder"):
            delete_study(name, studies=tmp_path)
    with pytest.raises(UnknownName):
        delete_study("s", studies=tmp_path)


def test_nothing_is_deleted_by_a_name_that_is_no_folder(tmp_path: Path) -> None:
    victim, studies = tmp_path / "victim", tmp_path / "studies"
    victim.mkdir()
    (studies / "s" / "retrained").mkdir(parents=True)
    open_storage(None, studies / "s")  # a database without studies, as a failed start leaves one
    # names that only trials_folder may get: if it did not refuse them, deleting would reach folders of the machine
    for name in ("s@/", "s@/absolute", "s@..", "s@a/b", "s@", "s@.hidden", "s@fast\x1b[2J", "a\nb"):
        with pytest.raises(StudyError, match=r"must be the name of a folder; got '.*'; leave out /"):
            trials_folder(studies, name)
    with pytest.raises(StudyError, match=r"must be the name of a folder; got '.*'; leave out /"):
        delete_study("s@../../../victim", studies=studies)
    assert victim.is_dir() and (studies / "s" / "retrained").is_dir()


def test_nothing_is_deleted_through_a_link_to_another_folder(tmp_path: Path) -> None:
    studies, elsewhere = tmp_path / "studies", tmp_path / "elsewhere"
    make(studies)
    (studies / "s" / "retrained").rename(elsewhere)
    (studies / "s" / "retrained").symlink_to(elsewhere)
    with pytest.raises(StudyError, match=r"only folders in .*studies are deleted; got .*fast, which links elsewhere"):
        delete_study("s@fast", studies=studies)
    assert (elsewhere / "fast").is_dir() and open_study("s@fast", studies=studies)
    delete_study("s", studies=studies)
    assert (elsewhere / "fast").is_dir() and not (studies / "s").exists()


def test_a_study_in_another_storage_does_not_touch_the_one_in_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two studies of the same name: one in the folder, and one in a database elsewhere."""
    make(tmp_path / "studies")
    database = tmp_path / "studies" / "s" / "study.db"
    other = f"sqlite:///{tmp_path / 'other.db'}"
    make_search(tmp_path / "copy" / "s")
    (tmp_path / "copy" / "s" / "study.db").rename(tmp_path / "other.db")
    before = database.read_bytes()
    place = ["--studies", str(tmp_path / "studies"), "--storage", other]
    for command in (
        ["clean", "s", "--yes", *place],
        ["studies", "--delete", "s", *place],
        ["search", "--space", "nin", "--data", "digits", "--budget", "1", "--name", "s", *place],
    ):
        assert main(command) == 2
        assert "the folder of a study must not hold another one; got " in capsys.readouterr().err
    assert database.read_bytes() == before
    place[-1] = f"sqlite:///{database}"  # the same storage by its URL
    assert main(["studies", "--delete", "s", *place]) == 0 and not database.exists()


def test_weights_that_are_not_needed_are_shown_and_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    proposals = make_proposals(Path("studies", "s"))
    first, second, third, unfinished = (proposals.ask() for _ in range(4))
    for proposal, accuracy in ((first, 0.9), (second, 0.1), (third, 0.2)):
        assert proposal is not None
        proposals.ledger.report_epoch(proposal.number, [accuracy], 1.0)
        proposals.ledger.complete(proposal.number, accuracy)
    study = open_study("s")
    assert unfinished is not None
    kept = {trial.number for trial in study.front()} | {unfinished.number}
    spare = [number for number in range(4) if number not in kept]
    assert spare and len(kept) > 1
    trials = trials_folder("studies", "s")
    other_files = [Path("studies/s/finals/00000/weights"), trials / "notes", Path("elsewhere/00000/weights")]
    checkpoints = [trial_folder(trials, number) / "weights" for number in (*range(4), 77)]
    for file in (*checkpoints, *other_files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(1500))
    (trials / "00099").symlink_to(Path("elsewhere/00000").resolve())

    level = optuna.create_study(study_name="s@finals", storage=storage_of(study.optuna_study))
    with pytest.raises(StudyError, match="cannot be deleted; got s, which process"):
        delete_study("s@finals")  # the search will need it
    assert main(["clean", "s"]) == 2  # the driver works on it
    assert "cannot be cleaned; got s," in capsys.readouterr().err
    proposals.ledger.sign_off()
    level.set_user_attr(f"{DRIVER}elsewhere:1:0", time.time())
    assert main(["clean", "s"]) == 2  # a driver works on its finals
    assert "cannot be cleaned; got s@finals, which process 1 on elsewhere works on" in capsys.readouterr().err
    level.set_user_attr(f"{DRIVER}elsewhere:1:0", 0.0)
    storage_of(level).delete_study(id_of_study(level))
    many = f"weights of {len(spare) + 1} short trainings that are not on their front, {1.5 * (len(spare) + 1):.3g} kB"
    assert main(["clean", "s"]) == 0
    assert capsys.readouterr().out == f"s can do without the {many}; nothing is deleted yet: add --yes\n"
    assert all(file.exists() for file in checkpoints)
    assert main(["studies", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["bytes"] > 1500 * 7
    assert main(["clean", "s", "--yes"]) == 0
    assert capsys.readouterr().out == f"Deleted: {many}\n"
    left = {number for number in (*range(4), 77) if (trial_folder(trials, number) / "weights").exists()}
    assert left == kept and all(file.exists() for file in other_files)
    assert main(["clean", "s", "--yes"]) == 0
    assert capsys.readouterr().out == "s has no weights that it can do without\n"
    assert main(["clean", "s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folders": [], "bytes": 0, "deleted": False}


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (12_340_000_000, "12.3 GB")]
)
def test_sizes_of_files(number: int, text: str) -> None:
    assert file_size(number) == text
