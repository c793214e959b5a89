"""`lrnas reproduce` with two thin networks on the digits."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from closed_ports import check_that_only_this_machine_can_connect

from lrnas.cli.main import main
from lrnas.data.catalog import ImageSet
from lrnas.errors import DataError, LrnasError
from lrnas.training import reproduce as module
from lrnas.training.job import Job
from lrnas.training.loop import EpochReport, Report, Result
from lrnas.training.reproduce import _locked, reproduce

ROOT = Path(__file__).parents[2]

THIN = {name: {"width": 0.05} for name in ("conv1", "cccp1", "cccp2", "conv2", "cccp3", "cccp4", "conv3", "cccp5")}
FAST = {"epochs": 1, "batch_size": 64}


@pytest.fixture
def thin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a thin network; its baseline is replaced by one that is as small."""
    file = tmp_path / "thin.json"
    file.write_text(json.dumps({"backbone": "nin", "layers": THIN}))
    from lrnas.arch.architecture import Architecture
    from lrnas.models.paper import get_point

    small = Architecture.from_dict({"backbone": "nin", "layers": {**THIN, "conv1": {"width": 0.1}}})
    real = get_point("nin")
    monkeypatch.setattr(module, "get_point", lambda name: type(real)(name, small, real.table, real.published))
    return file


def test_a_network_is_compared_with_its_baseline(thin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    original = ImageSet.test
    monkeypatch.setattr(ImageSet, "test", lambda self: looks.append(self.name) or original(self))
    result = reproduce(str(thin), data="digits", recipe="fast", changes=FAST, seeds=2, out=tmp_path / "out")
    assert looks == ["digits"] * 4  # once for each run, at its end
    assert [network.name for network in result.networks] == ["thin", "nin"]
    network, baseline = result.networks
    assert len(network.accuracies) == 2 and network.deviation is not None and network.published is None
    assert network.share == network.macs / baseline.macs < 1
    assert "points against nin, at" in result.verdict()
    record = json.loads(result.files[0].read_text())
    assert record["status"] == "completed" and record["identity"]["seed"] == 0
    assert {"command", "commit", "date", "versions", "hardware", "seed", "n"} <= record["provenance"].keys()
    assert len(record["curve"]) == record["epochs"] == 1
    assert record["recipe_name"] == "fast" and record["identity"]["recipe"]["batch_size"] == 64

    assert result.reuse() == "" and result.to_dict()["reused"] == []
    again = reproduce(str(thin), data="digits", recipe="fast", changes=FAST, seeds=2, out=tmp_path / "out")
    assert len(looks) == 4 and again.networks == result.networks  # nothing is trained or tested twice
    facts = record["provenance"]
    where = f"on {facts['hardware']} at {facts['commit'][:10]}"
    assert again.reuse() == f"4 of 4 runs existed already, made {where}; give another --out FOLDER to train again."
    result.files[0].unlink()
    more = reproduce(str(thin), data="digits", recipe="fast", changes=FAST, seeds=2, out=tmp_path / "out")
    assert more.reuse().startswith("3 of 4 runs existed already") and len(looks) == 5

    with pytest.raises(DataError, match=r"holds another run: recipe\.lr was 0"):
        reproduce(str(thin), data="digits", recipe="fast", changes={**FAST, "lr": 0.01}, out=tmp_path / "out")


def test_after_an_interrupt_the_same_command_continues(
    thin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    epochs: list[int] = []

    @contextmanager
    def interrupting_view(label: str) -> Iterator[Report]:
        def report(entry: EpochReport) -> None:
            epochs.append(entry.epoch)
            if len(epochs) == 2:
                raise KeyboardInterrupt

        yield report

    monkeypatch.setattr(module, "training_view", interrupting_view)
    command = ["reproduce", str(thin), "--data", "digits", "--recipe", "fast", "--epochs", "3"]
    command += ["--device", "cpu", "--out", str(tmp_path / "out")]
    assert main(command) == 130
    assert capsys.readouterr().err.endswith("lrnas: the training was interrupted; the same command continues it\n")
    assert main(command) == 0 and epochs[2] > 1


def test_two_commands_do_not_train_the_same_run_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The baseline is a part of several comparisons in one folder."""
    caplog.set_level("INFO", "lrnas")
    record, order = tmp_path / "nin-seed0.json", []
    with _locked(record, "nin, seed 0"):

        def wait() -> None:
            with _locked(record, "nin, seed 0"):
                order.append(f"second, record {record.exists()}")

        thread = threading.Thread(target=wait)
        thread.start()
        while "another process trains nin, seed 0: waiting for it" not in caplog.messages:
            time.sleep(0.01)
        record.touch()
        order.append("first")
    thread.join()
    assert order == ["first", "second, record True"] and list(tmp_path.iterdir()) == [record]


def test_a_disk_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(module, "acquire_lock", fail)
    with _locked(tmp_path / "nin-seed0.json", "nin, seed 0"):
        pass


def test_the_baseline_has_batch_norm_where_the_network_has(thin: Path, tmp_path: Path) -> None:
    """Otherwise the comparison would show the effect of the norms instead of that of the filters."""
    network = json.loads(thin.read_text())
    for with_norm, own_name, name in (
        (True, "mine", "nin-bn"),
        (True, "nin-bn", "nin-bn-dense"),
        (False, "nin", "nin-dense"),
    ):
        normed = tmp_path / f"{own_name}.json"  # the name may be the baseline's, for another network
        normed.write_text(json.dumps({**network, "batch_norm": with_norm}))
        result = reproduce(str(normed), data="digits", recipe="fast", changes=FAST, out=tmp_path / own_name)
        assert [network.name for network in result.networks] == [normed.stem, name]
        own, other = (json.loads(file.read_text())["architecture"] for file in result.files)
        assert own.get("batch_norm", False) == other.get("batch_norm", False) == with_norm
        assert f"points against {name}, at" in result.verdict() and result.networks[0].share < 1


def test_without_a_gpu_it_says_what_it_trains_on(thin: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "lrnas")
    result = reproduce(str(thin), recipe="fast", changes=FAST, out=tmp_path / "out", device="cpu")
    assert result.data == "digits"
    assert caplog.messages[:2] == [
        "training on cifar10 takes too long on a CPU: comparing with the baseline on digits",
        "training thin and nin on 1,222 images of digits, 8×8 pixels: recipe fast, 1 epoch at most, 1 seed",
    ]
    caplog.clear()
    reproduce(str(thin), recipe="fast", changes={"epochs": 1}, out=tmp_path / "other", device="cpu", data="digits")
    assert caplog.messages[0].startswith("images per step: 32 instead of the recipe's 128, because")


def test_divergence_is_reported(thin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(*args: object, **kwargs: object) -> Result:
        return Result("diverged", [], 0.0, 1)

    monkeypatch.setattr(Job, "run", diverge)
    monkeypatch.setattr(module, "evaluate", None)  # diverged networks are not tested
    result = reproduce(str(thin), data="digits", recipe="fast", changes=FAST, out=tmp_path / "out")
    assert [network.diverged for network in result.networks] == [1, 1]
    assert "thin diverged in every run" in result.verdict()
    assert all(network["mean"] is None and network["n"] == 0 for network in result.to_dict()["networks"])  # no NaN


def test_the_command(thin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    arguments = ["reproduce", str(thin), "--data", "digits", "--recipe", "fast", "--epochs", "1", "--out", out]
    assert main([*arguments, "--set", "batch_size=64"]) == 0
    captured = capsys.readouterr()
    assert "\nthin, input 8×8, 10 classes\n" in captured.out and "Counts above" not in captured.out
    assert "Measured on the test images of digits, 8×8 pixels, recipe of 1 epoch at most" in " ".join(
        captured.out.split()
    )
    assert "points against nin" in captured.out
    assert "thin, seed 0  epoch 1 of 1  loss" in captured.err and "already" not in captured.out
    assert main([*arguments, "--set", "batch_size=64"]) == 0
    assert "2 of 2 runs existed already, made on" in capsys.readouterr().out
    assert main([*arguments, "--set", "batch_size=64", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["networks"][0]["n"] == 1 and data["data"] == "digits"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "the number of seeds must be at least 1"),
        (["--workers", "0"], "the number of workers must be at least 1"),
        (["--workers", "3"], "the batch size must be a multiple of the number of workers; got 32 images for 3 workers"),
        (["--set", "lr"], "--set takes FIELD=VALUE; got 'lr'"),
        (["--set", "lrr=1"], "no field 'lrr'; did you mean lr?"),
        (["--epochs", "0"], "epochs must be from 1"),
        (["--data", "cifar"], "unknown data set 'cifar'; did you mean cifar10"),
        (["--recipe", "fsat"], "unknown recipe 'fsat'; did you mean fast"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["reproduce", "nin", "--data", "digits", "--recipe", "fast", "--out", str(tmp_path), *arguments])
    *_, last = lines = capsys.readouterr().err.splitlines()
    assert code == 2 and message in last and len(lines) <= 3  # the others may say what is trained


def test_networks_of_a_study_are_trained_by_another_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "nin-digits:12"]) == 2
    assert "use `lrnas retrain nin-digits --trials 12`" in capsys.readouterr().err


def test_an_unwritable_folder_is_one_line(thin: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LrnasError, match="cannot write"):
        reproduce(str(thin), data="digits", recipe="fast", changes=FAST, out=tmp_path / "file" / "out")


def test_data_and_recipes_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "digits"]) == 0
    assert "1,222 training, 216 validation and 359 test images of 8×8" in capsys.readouterr().out
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"drop_at +(\S+ +){6}\S+\n", out) and re.search("drop_at +Schedule paper only: share", out)
    assert main(["recipes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fast"]["schedule"] == "one_cycle"


@pytest.mark.slow
def test_nin_c3_lr_learns_the_digits_in_a_few_epochs(tmp_path: Path) -> None:
    result = reproduce("nin-c3-lr", data="digits", recipe="fast", changes={"epochs": 8}, out=tmp_path)
    assert result.networks[0].mean > 0.9 and result.networks[1].mean > 0.9


@pytest.mark.slow
def test_two_workers_have_the_loss_curve_of_one(thin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, shutdown = [], ray.shutdown

    def check_and_shutdown() -> None:
        check_that_only_this_machine_can_connect()
        closed.append(True)
        shutdown()

    monkeypatch.setattr(ray, "shutdown", check_and_shutdown)
    alone = thin.rename(tmp_path / "nin.json")  # it has the name of its baseline, so nothing else is trained
    changes = {"epochs": 3, "batch_size": 64}
    curves = []
    for workers in (1, 2):
        out = tmp_path / f"out{workers}"
        reproduce(str(alone), data="digits", recipe="fast", changes=changes, out=out, device="cpu", workers=workers)
        record = json.loads((out / "nin-digits-fast-seed0.json").read_text())
        assert (record["status"], record["workers"]) == ("completed", workers)
        curves.append(record)
    assert closed
    for one, two in zip(curves[0]["curve"], curves[1]["curve"], strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-3)
        assert two["val_loss"] == pytest.approx(one["val_loss"], rel=1e-2)
    assert curves[0]["test_accuracy"] == pytest.approx(curves[1]["test_accuracy"], abs=0.02)


def test_records_without_newer_recipe_fields_still_count(capsys: pytest.CaptureFixture[str]) -> None:
    """The tracked records were made before recipes had all fields; nothing is trained again."""
    result = reproduce("nin-c3-lr", data="digits", recipe="fast", seeds=3, out=ROOT / "results" / "reproduce")
    assert [len(network.accuracies) for network in result.networks] == [3, 3]
    assert "epoch" not in capsys.readouterr().err
