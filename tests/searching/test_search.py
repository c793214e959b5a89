"""Searches up to their first trial: data, name and study. Tests of whole searches are in `integration/`."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pictures import spoil, write_set

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.data.packed import PackedSet
from lrnas.errors import LrnasError, UnknownName, UnreadableImages
from lrnas.searching import (
    estimate as dry_run,
    retrain as retraining,
    search as driver,
    setup as search_training,
    trials_per_gpu,
)
from lrnas.searching.progress import ProgressView, SearchEvents
from lrnas.searching.proposals import Proposals, Queue
from lrnas.searching.ray_cluster import Workers
from lrnas.searching.retrain import retrain
from lrnas.searching.search import Preparation, search
from lrnas.searching.setup import SearchTraining
from lrnas.searching.trials_per_gpu import Measurement
from lrnas.study.folder import delete_study, study_names
from lrnas.study.ledger import starting_facts
from lrnas.study.manifest import StudyError, read_limits
from lrnas.study.open import open_study
from lrnas.study.optuna_internals import id_of_study
from lrnas.study.study import ImageShape
from lrnas.training.measuring import MeasuringProcess


class Told(SearchEvents):
    """Events that keep the study of a search and end the search before the first trial."""

    def __init__(self) -> None:
        self.proposals: Any = None
        self.study: Any = None
        self.dense_macs: int | None = None

    def started(self, queue: Queue, budget: int, dense_macs: int | None = None) -> None:
        self.proposals, self.study, self.dense_macs = queue, queue.study, dense_macs
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    monkeypatch.setattr(driver, "running_ray", nullcontext)
    monkeypatch.setattr(search_training, "FEW_IMAGES", 0)  # sets are small here


def begin(folder: Path, data: Path | str, **options: Any) -> Told:
    """Run a search of the smallest space until its first trial."""
    told = Told()
    with pytest.raises(KeyboardInterrupt):
        search(
            options.pop("space", "nin"),
            budget=options.pop("budget", 2),
            data=f"folder:{data}",
            studies=folder / "studies",
            events=told,
            **options,
        )
    return told


def train(proposals: Proposals, accuracy: float = 0.5) -> None:
    """Record a trial as trained in full."""
    proposal = proposals.ask()
    assert proposal is not None
    proposals.ledger.report_epoch(proposal.number, [accuracy], 1.0)
    proposals.ledger.complete(proposal.number, accuracy)
    proposals.ledger.sign_off()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_set(tmp_path / "pictures", {"train": 4, "val": 2})


def test_a_study_that_was_begun_with_another_divisor(pictures: Path, tmp_path: Path) -> None:
    train(begin(tmp_path, pictures, name="s", divisor=1).proposals)
    with pytest.raises(StudyError, match=r"settings: `divisor` was 1, now 8; `divisor` 1 rounds filter counts as "):
        begin(tmp_path, pictures, name="s")
    assert begin(tmp_path, pictures, name="s", divisor=1).study.spent() == 1


def test_a_search_that_prepares_is_not_taken_for_an_empty_one(pictures: Path, tmp_path: Path) -> None:
    """Another search has the same name and other settings. It begins while the first one packs its images."""
    refused = []
    common: dict[str, Any] = {"name": "s", "data_dir": tmp_path / "own"}  # nothing is packed there

    class Meanwhile(Told):
        def preparing(self, what: str, done: int, total: int) -> None:
            if not refused:
                with pytest.raises(StudyError, match=r"`epochs` was .*, now 77") as error:
                    begin(tmp_path, pictures, epochs=77, **common)
                refused.append(error)

    first = Meanwhile()
    with pytest.raises(KeyboardInterrupt):
        search("nin", budget=2, data=f"folder:{pictures}", studies=tmp_path / "studies", events=first, **common)
    assert refused and first.study.manifest == open_study("s", studies=tmp_path / "studies").manifest
    assert begin(tmp_path, pictures, epochs=77, **common).study.manifest != first.study.manifest  # nothing was trained


@pytest.mark.parametrize("has_mps", [True, False])
def test_a_process_gets_ready_to_measure_while_ray_starts_and_ends_before_the_first_trial(
    has_mps: bool, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    @contextmanager
    def running_ray(workers: Workers) -> Iterator[Workers]:
        done.append("ray")
        yield replace(workers, has_mps=has_mps)

    def share_gpus(measurement: Measurement, **settings: Any) -> Workers:
        done.append("measure")
        assert settings["largest_batch"] > 0
        return measurement.workers

    monkeypatch.setattr(trials_per_gpu, "describe", lambda device: {"gpu": "H200"})
    monkeypatch.setattr(driver, "pick_workers", lambda *_: Workers(1, 0.25))
    monkeypatch.setattr(driver, "running_ray", running_ray)
    monkeypatch.setattr(search_training, "share_gpus", share_gpus)
    monkeypatch.setattr(MeasuringProcess, "start", lambda process: done.append("start"))
    monkeypatch.setattr(MeasuringProcess, "end", lambda process: done.append("end"))
    begin(tmp_path, pictures, data_dir=tmp_path)  # ends before the first trial
    assert done == ["start", "ray", *["measure"] * has_mps, "end", "end"]


def test_a_dry_run_refuses_what_the_search_refuses(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(begin(tmp_path, pictures, name="s", image_size=16).proposals)
    measured: list[int] = []

    def measure(prepared: Preparation, *_: object) -> None:
        measured.append(prepared.training.data.image_size)
        raise KeyboardInterrupt

    monkeypatch.setattr(dry_run, "_measure", measure)

    def refused(**changes: Any) -> str:
        settings = {"budget": 2, "data": f"folder:{pictures}", "studies": tmp_path / "studies", "name": "s"}
        with pytest.raises((StudyError, KeyboardInterrupt)) as caught:
            dry_run.estimate("nin", **{**settings, **changes})
        return str(caught.value)

    stopped = "the estimate was interrupted; nothing was written"
    assert refused() == stopped and refused(name="another") == stopped and measured == [16, 32]
    assert refused(epochs=77).startswith("s was begun with other settings: `epochs` was ")
    assert refused(set={"lr": 0.77}).startswith("s was begun with other settings: `set` lr was ")
    told = "s was begun with other settings: {}; give the earlier ones, or another `name`"
    assert refused(batch_norm=False) == told.format("`batch_norm` was True, now False")
    assert refused(recipe="full", seed=7) == told.format("`recipe` was the default, now 'full'; `seed` was 0, now 7")
    assert refused(min_epochs=1) == told.format("`min_epochs` was the default, now 1")
    many = refused(granularity="network", set={"lr": 0.77, "weight_decay": 0.1})
    assert re.findall(r"(\S+(?: \w+)?) was [^b]", many) == ["`granularity`", "`set` lr", "`set` weight_decay"]
    (pictures / "train" / "red" / "000.png").unlink()
    numbers = "9, 3 and 6 for training, validation and test, now 8, 3 and 6; give the earlier"
    assert f"the images were those of folder:pictures, {numbers}" in refused() and len(measured) == 2


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """All messages but those about the packing and the small number of images."""
    return [message for message in caplog.messages if "pack" not in message and "per step" not in message]


def test_a_study_without_results_begins_anew_with_other_settings(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = begin(tmp_path, pictures, name="s").proposals
    proposal = first.ask()  # its training was begun
    failed = first.ask()  # it fails before its first epoch
    first.ledger.write(failed.number, starting_facts({}))
    first.ledger.prune(failed.number, "faulty", "out of memory")
    first.ledger.release(proposal.number)
    first.ledger.sign_off()
    weights = tmp_path / "studies" / "s" / "trials" / "00000"
    weights.mkdir(parents=True)
    (pictures / "train" / "red" / "000.png").unlink()
    caplog.clear()
    proposals = begin(tmp_path, pictures, name="s", objectives=("accuracy", "macs", "params")).proposals
    study = proposals.study
    (line,) = messages(caplog)
    assert line.startswith("s was begun with other settings (the images were those of folder:pictures, ")
    assert "for training, validation and test, now " in line and "; `objectives` was " in line
    assert line.endswith(", and nothing was trained: it begins anew")
    assert not any(trial.user_attrs.get("trained") for trial in study.optuna_trials()) and not weights.exists()
    assert study.manifest["objectives"] == ["accuracy", "macs", "params"] and len(study.optuna_study.directions) == 3

    proposal = proposals.ask()  # while another driver works on it, it stays as it is
    other = {"budget": 2, "data": f"folder:{pictures}", "studies": tmp_path / "studies", "name": "s"}
    with pytest.raises(StudyError, match=r"`objectives` was .*; give the earlier ones, or another `name`"):
        search("nin", **other)
    proposals.ledger.report_epoch(proposal.number, [0.5], 1.0)
    proposals.ledger.complete(proposal.number, 0.5)
    proposals.ledger.sign_off()
    with pytest.raises(StudyError, match="begun with other settings: `objectives` was"):  # it has a result
        search("nin", **other)


def test_several_searches_that_begin_anew_at_the_same_time_share_one_study(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has replaced the study since this one has opened it, before or after this one has looked at it."""
    first = begin(tmp_path, pictures, name="s")
    first.proposals.ledger.sign_off()
    found = []

    def replaced_meanwhile(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if not found:
                found.append(None)
                found[0] = begin(tmp_path, pictures, name="s", epochs=77)
                found[0].proposals.ledger.sign_off()
            return function(*arguments, **named)

        return call

    for name in ("continue_with", "begin_anew"):
        with monkeypatch.context() as patch:
            patch.setattr(driver, name, replaced_meanwhile(getattr(driver, name)))
            second = begin(tmp_path, pictures, name="s", epochs=77)
        assert second.study.manifest == found[0].study.manifest
        assert id_of_study(second.study.optuna_study) == id_of_study(found[0].study.optuna_study)
        second.proposals.ledger.sign_off()
        delete_study("s", studies=tmp_path / "studies")
        begin(tmp_path, pictures, name="s").proposals.ledger.sign_off()
        found.clear()


def test_other_data_are_refused_before_they_are_downloaded(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(begin(tmp_path, pictures, name="s").proposals)

    def load(name: str, *_: Any, **__: Any) -> None:
        raise AssertionError(f"{name} is loaded")

    monkeypatch.setattr(search_training, "load_set", load)
    monkeypatch.setattr(retraining, "load_set", load)
    for data in ("cifar10", "hfds/mnist"):
        for run in (search, dry_run.estimate):
            with pytest.raises(StudyError, match="the images were those of folder:pictures, now others; give the earl"):
                run("nin", budget=2, data=data, name="s", studies=tmp_path / "studies")
        with pytest.raises(StudyError, match="the images were those of folder:pictures, now others; give the same"):
            retrain("s", data=data, studies=tmp_path / "studies")


@pytest.mark.parametrize("has_curve", [True, False])
def test_a_study_that_was_trained_in_part_is_not_thrown_away(has_curve: bool, pictures: Path, tmp_path: Path) -> None:
    first = begin(tmp_path, pictures, name="s", image_size=16).proposals
    proposal = first.ask()
    if has_curve:
        first.ledger.report_epoch(proposal.number, [0.5], 1.0)
    else:  # killed before the epoch was recorded
        weights = tmp_path / "studies" / "s" / "trials" / f"{proposal.number:05d}"
        weights.mkdir(parents=True)
        (weights / "checkpoint.json").touch()
    first.ledger.release(proposal.number)
    first.ledger.sign_off()
    studies = tmp_path / "studies"
    other: dict[str, Any] = {"budget": 2, "data": f"folder:{pictures}", "studies": studies, "name": "s", "epochs": 7}
    delete = f"`lrnas studies --delete s --studies {studies}` deletes it, to begin anew"
    for command in (search, dry_run.estimate):
        with pytest.raises(StudyError) as caught:
            command("nin", **other)
        assert str(caught.value).startswith("s was begun with other settings: `epochs` was ")
        assert str(caught.value).endswith(f", now 7; give the earlier ones, or another `name`; {delete}")
    assert begin(tmp_path, pictures, name="s").study.manifest["image_size"] == 16  # it continues
    assert main(["studies", "--delete", "s", "--studies", str(studies)]) == 0
    assert begin(tmp_path, pictures, name="s", epochs=7).study.manifest["recipe"]["epochs"] == 7


@dataclass
class MadeUpLatency:
    """A latency of one millisecond for all networks."""

    factor: float = 1.0

    def of(self, architecture: Architecture) -> float:
        return 1.0

    guess = of

    def some_networks(self, *_: object) -> list[Architecture]:
        return []

    def prepare(self, *_: object) -> None:
        pass


def test_other_settings_are_refused_before_latency_is_measured(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []

    def open_latency(training: SearchTraining, *_: object) -> None:
        measured.append("now")
        training.latency, training.max_latency = MadeUpLatency(), 1.0  # type: ignore[assignment]

    monkeypatch.setattr(SearchTraining, "_open_latency", open_latency)
    monkeypatch.setattr(dry_run, "_measure", lambda *_: 1 / 0)
    timed = {"objectives": ("accuracy", "latency"), "latency_device": "cpu"}
    train(begin(tmp_path, pictures, name="counted").proposals)
    train(begin(tmp_path, pictures, name="timed", **timed).proposals)
    assert measured == ["now"]
    given: dict[str, Any] = {"budget": 2, "data": f"folder:{pictures}", "studies": tmp_path / "studies", **timed}
    objectives = "`objectives` was accuracy,macs, now accuracy,latency"
    for command in (search, dry_run.estimate):
        with pytest.raises(StudyError, match=f"counted was begun with other settings: {objectives}; give the earlier"):
            command("nin", name="counted", **given)
        with pytest.raises(StudyError, match=r"timed was begun with other settings: `epochs` was .*, now 7; give"):
            command("nin", name="timed", epochs=7, **given)
        with pytest.raises(StudyError, match="timed was begun with other settings: `latency_batch` was 1, now 8"):
            command("nin", name="timed", latency_batch=8, **given)
        with pytest.raises(
            StudyError, match=r"timed was trained under other conditions: recipe\.epochs was .*, now 7;"
        ):
            command("nin", name="new", warm_start="timed", epochs=7, **given)
    assert measured == ["now"] * 2  # for the new study
    with pytest.raises(ZeroDivisionError):  # the dry run goes on
        dry_run.estimate("nin", name="timed", **given)
    with pytest.raises(ZeroDivisionError):
        dry_run.estimate("nin", name="new", warm_start="timed", **given)


def test_a_study_is_called_after_the_space_and_the_folder(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(pictures)
    told = begin(tmp_path, ".")
    assert told.study.name == "nin-pictures" and told.study.manifest["data_name"] == "folder:pictures"
    assert told.study.image_shape == ImageShape(32, 3, 3)
    train(told.proposals)
    assert main(["studies", "--json", "--studies", str(tmp_path / "studies")]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["data_name"] == "folder:pictures" and row["data"] == told.study.manifest["data"]
    moved = tmp_path / "moved pictures"
    pictures.rename(moved)
    again = begin(tmp_path, moved, name="nin-pictures").study  # the same images
    assert again.manifest["data_name"] == "folder:moved pictures"
    monkeypatch.chdir(tmp_path)
    assert begin(tmp_path, "moved pictures").study.name == "nin-moved-pictures"

    others = write_set(tmp_path / "elsewhere" / "pictures", {"train": 5, "val": 2})
    with pytest.raises(StudyError, match=r"the images were those of folder:pictures, .*another `name`"):
        search("nin", budget=2, data=f"folder:{others}", studies=tmp_path / "studies")


def test_images_from_files_get_the_input_size_of_the_space(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = begin(tmp_path, pictures, name="s")
    assert told.study.manifest["image_size"] == 32 and messages(caplog) == []
    ProgressView().started(told.proposals, 2, told.dense_macs)
    (line,) = messages(caplog)  # with the MACs of 3 classes
    assert "images of 32×32 pixels (the dense network: 222,400,512 MACs), epochs: " in line
    assert begin(tmp_path, pictures, space="googlenet").study.manifest["image_size"] == 224


def test_a_search_warns_about_classes_without_validation_images(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_set(pictures, {"test": 2})
    shutil.rmtree(pictures / "val" / "green")
    begin(tmp_path, pictures)
    assert messages(caplog) == [
        "there are no validation images of green: the validation accuracy does not cover this class"
    ]


def test_a_search_warns_about_few_validation_images(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(search_training, "FEW_IMAGES", 100)
    begin(tmp_path, pictures)
    (line,) = messages(caplog)
    chosen = "a tenth of train/, because val/ holds the test images"
    assert line == f"networks are compared by only 3 validation images ({chosen}): each is 33.3 points of accuracy"


def test_a_study_continues_with_its_image_size(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(begin(tmp_path, pictures, image_size=16, name="s").proposals)
    study = begin(tmp_path, pictures, name="s").study
    assert messages(caplog) == ["s was begun with images of 16×16 pixels, and continues with this size"]
    assert study.manifest["image_size"] == 16
    with pytest.raises(StudyError, match="`image_size` was 16, now 24"):
        search("nin", budget=2, data=f"folder:{pictures}", studies=tmp_path / "studies", image_size=24, name="s")


def test_a_search_that_is_refused_leaves_no_study(pictures: Path, tmp_path: Path) -> None:
    with pytest.raises(
        LrnasError,
        match=r"takes images of 224×224 pixels; those of folder:.* are 32×32 here; give `image_size` 224, or another "
        r"model; a search can save at most 2.2 % of the MACs",
    ):
        search(
            "timm:vit_tiny_patch16_224",
            budget=1,
            data=f"folder:{pictures}",
            image_size=32,
            studies=tmp_path / "studies",
            progress=False,
        )
    assert study_names(tmp_path / "studies") == []


def test_nothing_for_beat_to_compare_with_is_told(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lrnas")
    begin(tmp_path, pictures, name="s", beat=0.6, max_macs=10**7)
    (line,) = [each for each in caplog.messages if each.startswith("left out")]
    assert "nin, nin-c3, nin-c3-lr" in line and line.endswith("; so `beat` has no network to compare with")


def test_what_is_refused_after_the_study_was_created_leaves_no_study(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(begin(tmp_path, pictures, name="other", image_size=8).proposals)

    def refuse(*_: Any) -> None:
        raise LrnasError("cannot reach a Ray cluster at nowhere")

    options: dict[str, Any] = {"budget": 2, "data": f"folder:{pictures}", "studies": tmp_path / "studies"}
    options |= {"progress": False, "image_size": 8}
    with pytest.raises(
        StudyError, match=r"other was trained under other conditions: recipe\.lr was .*; start without it"
    ):
        search("nin", name="s", warm_start="other", set={"lr": 0.5}, **options)
    with pytest.raises(UnknownName, match=r"unknown study 'nobody'; known: other \("):
        search("nin", name="s", warm_start="nobody", **options)
    with pytest.raises(StudyError, match="`warm_start` takes another study; got other, this one; leave it out"):
        search("nin", name="other", warm_start="other", **options)
    with pytest.raises(UnknownName, match=r"unknown study 'nobody'; there is no folder .*new; give `studies`"):
        search("nin", warm_start="nobody", **options | {"studies": tmp_path / "new"})
    assert not (tmp_path / "new").exists()
    with pytest.raises(UnknownName, match="unknown study 'nobody'"):
        search("nin", name="other", warm_start="nobody", max_macs=10**7, **options)
    assert read_limits(open_study("other", studies=tmp_path / "studies").optuna_study) == {}  # as it was
    monkeypatch.setattr(driver, "running_ray", refuse)
    with pytest.raises(LrnasError, match="cannot reach"):
        search("nin", name="s", **options)
    assert study_names(tmp_path / "studies") == ["other"] and not (tmp_path / "studies" / "s").exists()


def test_unreadable_test_images_are_refused_before_anything_is_trained(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = spoil(pictures / "val" / "red" / "001.png")  # without test/, the images of val/ are the test images
    options: dict[str, Any] = {"budget": 2, "data": f"folder:{pictures}", "studies": tmp_path / "studies"}
    options |= {"name": "s", "image_size": 8, "data_dir": tmp_path}
    refused = rf"^1 of 6 test images cannot be read, and more than 1 % end a run: {bad} .*; repair or remove it"
    for use in (search, dry_run.estimate):
        with pytest.raises(UnreadableImages, match=refused):
            use("nin", **options)
        assert not (tmp_path / "studies" / "s").exists()
    with monkeypatch.context() as patch:  # the image was readable when the search began
        patch.setattr(PackedSet, "check_readable", lambda *_: None)
        train(begin(tmp_path, pictures, name="s", image_size=8, data_dir=tmp_path).proposals)
    with pytest.raises(UnreadableImages, match=refused):
        retrain("s", studies=tmp_path / "studies", data_dir=tmp_path, set={"batch_size": 2})


@pytest.mark.slow
def test_an_impossible_latency_limit_leaves_no_study(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is known only after measuring, when the study exists already. A study that has trials is kept."""
    monkeypatch.setattr(search_training, "SAMPLING_SECONDS", 0.0)
    folder = tmp_path / "studies" / "s"
    limited: dict[str, Any] = {
        "budget": 2,
        "name": "s",
        "data": f"folder:{pictures}",
        "data_dir": tmp_path,
        "image_size": 8,
        "studies": folder.parent,
        "progress": False,
    }
    with pytest.raises(StudyError, match="found within `max_latency`"):
        search("nin", max_latency=1e-6, **limited)
    assert not folder.exists()
    train(begin(tmp_path, pictures, name="s", data_dir=tmp_path, image_size=8).proposals)
    with pytest.raises(StudyError, match="found within `max_latency`"):
        search("nin", max_latency=1e-6, **limited)
    assert open_study("s", studies=folder.parent).trials


def test_a_search_says_which_named_networks_its_limits_leave_out(
    pictures: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(tmp_path, pictures, max_macs="40M")
    (line,) = (message for message in caplog.messages if message.startswith("left out"))
    assert line.endswith(": nin, nin-c3, nin-c3-lr, dense-x0.5, lr-x1")
    caplog.clear()
    begin(tmp_path, pictures, name="other")
    assert "left out" not in caplog.text
