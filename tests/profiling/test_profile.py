"""`lrnas profile`: which networks it compares, and its output."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from filled_studies import fill_study
from small_studies import SPACE, cost, make_search

from lrnas.arch.architecture import Architecture
from lrnas.cli.main import main
from lrnas.errors import LrnasError
from lrnas.models.plan import canonical_id, make_plan
from lrnas.models.summary import read_source
from lrnas.profiling import latency_table as latency, profile, timing
from lrnas.profiling.profile import baseline_of


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure with a single short sample; the times are meaningless."""
    monkeypatch.setattr(profile, "pick_threads", lambda calls, device: 1)
    for module in (profile, latency):
        monkeypatch.setattr(
            module, "measure", lambda calls, device, **options: timing.measure(calls, device, rounds=1, sample=0.0)
        )


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("vgg-gmp-lr-join", "vgg-gmp"),
        ("vgg-gmp", "vgg-gmp"),
        ("nin-c3-lr", "nin"),
        ("googlenet-lr", "googlenet"),
        ("vgg16-gmp", "vgg16, dense"),
        ("vgg11_bn", "vgg-gmp, batch norm"),
        ("timm:resnet18", "timm:resnet18, dense"),
    ],
)
def test_the_baseline_of_a_network(name: str, wanted: str) -> None:
    assert baseline_of(read_source(name)[1])[0] == wanted


def test_a_dense_vgg16_is_its_own_baseline() -> None:
    network = Architecture.from_json(
        '{"backbone": "vgg16", "pool": "avg", "layers": {"*": {"form": "composite", "shares": {"kx1": 1}}}}'
    )
    assert canonical_id(baseline_of(network)[1]) == canonical_id(Architecture("vgg16", pool="avg"))


def test_layers_and_networks_are_compared_with_the_baseline(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--input", "8", "--batch", "1", "--threads", "1", "--device", "cpu"]
    picture = tmp_path / "times.png"
    assert main(["profile", "nin-c3-lr", "nin-c3", *options, "--json", "--plot", str(picture)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert picture.stat().st_size > 10_000
    assert main(["profile", "nin", *options, "--no-layers", "--no-training", "--plot", str(picture)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"Written: {picture}"
    base, low, _ = data["networks"]
    assert [network["name"] for network in data["networks"]] == ["nin", "nin-c3-lr", "nin-c3"]
    assert base["baseline"] == low["baseline"] == "nin" and set(base["share"].values()) == {1.0}
    assert low["share"]["macs"] == low["macs"] / base["macs"] < 1
    assert low["share"]["forward"] == low["forward_ms"] / base["forward_ms"]
    assert sum(layer["macs"] for layer in low["layers"]) == low["macs"]
    assert all(layer["forward_ms"] > 0 and layer["training_ms"] > 0 for layer in low["layers"])
    assert {layer["name"]: layer["filters"] for layer in low["layers"]}["cccp6"] == "dense"  # as in `lrnas count`
    assert all(network["spread"] >= 0 for network in data["networks"])
    conditions = {key: data["conditions"][key] for key in ("device", "dtype", "batch", "threads", "compiled")}
    assert conditions == {"device": "cpu", "dtype": "fp32", "batch": 1, "threads": 1, "compiled": False}

    assert main(["profile", "nin-c3", *options, "--no-training", "--baseline", "nin-c3-lr"]) == 0
    out, err = capsys.readouterr()
    assert "nin-c3, layer by layer" in out and "3x1,96 || 1x3,96" in out and "training" not in out
    assert "Times for a batch of images of 8×8 pixels on" in out and "measuring 2 networks" in err
    assert (
        "repeated 3 times; repetitions of whole networks differ" in out
        and "The sum of layers is not the time of the network" in out
    )
    assert re.search(r"Other programs used \d+\.\d of \d+ CPU cores meanwhile", out) or not Path("/proc/stat").exists()
    rows = [line for line in out.splitlines() if line.startswith("nin-c3 ")]
    assert rows[-1].split()[-1] == "nin-c3-lr"


def test_a_profile_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.010, 0.013, 0.009])
    monkeypatch.setattr(profile, "measure", lambda calls, device, **options: [next(times)] * len(calls))
    measured = profile.profile("nin", layers=False, training=False, input=8, batch=1)
    (network,) = measured.networks
    assert network.forward == 10 and network.spread == pytest.approx(0.3)
    assert "say nothing" not in str(measured)
    unsteady = dataclasses.replace(measured, networks=[dataclasses.replace(network, spread=6.9)])
    assert "These times say nothing, because they differ too much: measure again" in str(unsteady)


@pytest.mark.parametrize("fastest", [1, 2])
def test_a_profile_takes_one_thread_if_that_is_faster(
    fastest: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(calls: list[timing.Call], device: torch.device, threads: int | None = None, **_: object) -> list[float]:
        measured.append(threads)
        return [1.0 if torch.get_num_threads() == fastest else 2.0] * len(calls)

    measured: list[int | None] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: number[0])
    number = [2]
    monkeypatch.setattr(torch, "set_num_threads", lambda wanted: number.__setitem__(0, wanted))
    for module in (profile, timing):
        monkeypatch.setattr(module, "measure", measure)
    options = ["profile", "nin-c3", "--input", "8", "--batch", "1", "--no-training", "--device", "cpu"]
    assert main(options) == 0
    assert f"fp32, batch 1, {fastest} thread{'s' * (fastest > 1)}\n" in capsys.readouterr().out
    assert set(measured) == {None, fastest}  # None: while the number is chosen
    assert number == [2]
    measured.clear()
    assert main([*options, "--threads", "2"]) == 0 and set(measured) == {2}


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not tell how busy it is")
def test_the_work_of_other_programs_is_measured() -> None:
    others = timing.OtherWork()
    code = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert others.cores() > 0.1
    own = timing.OtherWork()
    started = time.process_time()
    while time.process_time() - started < 0.3:
        pass
    assert own.cores() <= os.cpu_count() - 0.1  # this process is not one of the others


def test_a_network_from_a_file_and_a_timm_model(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.json").write_text('{"backbone": "nin", "batch_norm": true, "layers": {"conv1": {"width": 0.25}}}')
    options = ["--input", "32", "--batch", "2", "--no-training", "--json"]
    assert main(["profile", str(tmp_path / "own.json"), "timm:resnet18", *options]) == 0
    networks = json.loads(capsys.readouterr().out)["networks"]
    assert [network["name"] for network in networks] == ["nin, batch norm", "timm:resnet18", "own"]
    assert [network["baseline"] for network in networks] == ["nin, batch norm", "timm:resnet18", "nin, batch norm"]
    assert networks[0]["training_ms"] is None


def test_the_latency_table_is_compared_with_whole_networks(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["profile", "--check-table", "nin", "--input", "8", "--number", "3", "--data-dir", str(tmp_path)]
    assert main([*options, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["networks"]) == 3 and (tmp_path / "latency.db").exists()
    errors = [abs(network["table_ms"] / network["measured_ms"] - 1) for network in data["networks"]]
    assert data["mean_absolute_error"] == pytest.approx(sum(errors) / 3) and -1 <= data["kendall_tau"] <= 1
    assert main(options) == 0
    assert "Mean error" in capsys.readouterr().out
    assert main(["profile", "nin", "--input", "8", "--batch", "1", "--threads", "1", "--device", "cpu"]) == 0
    assert "measuring 1 network on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give networks to measure, or --check-table SPACE; got neither; try vgg-gmp-lr-join"),
        (["nin", "--check-table", "nin"], "got both; leave out one"),
        (["nin", "--device", "cuda:7"], "GPUs that PyTorch can use"),
        (["nin", "--dtype", "fp8"], "one of bf16, fp16, fp32"),
        (["nin", "--batch", "0"], "at least one image"),
        (["nin", "--plot", "times.gif"], "png, svg, pdf; got 'times.gif'"),
        (["nine"], "did you mean nin"),
        (["vgg11-bn-gmp", "--batch", "1", "--input", "16"], "give a larger --batch"),
    ],
)
def test_wrong_options_give_one_line(
    quick: None, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_a_run_that_fails_says_why() -> None:
    message = "cannot be run with these settings: odd"
    with pytest.raises(LrnasError, match=message), profile._explained_errors():
        raise RuntimeError("odd")


@pytest.mark.gpu
def test_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "nin-c3-lr", "--input", "32", "--batch", "64", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["conditions"]["dtype"] == "bf16" and data["conditions"]["device"] == "cuda"
    for network in data["networks"]:
        assert 0 < network["forward_ms"] < network["training_ms"]
        layers = sum(layer["forward_ms"] for layer in network["layers"])
        assert layers == pytest.approx(network["forward_ms"], rel=0.5)


def test_networks_of_a_study(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_search(tmp_path / "s")
    options = ["--batch", "1", "--device", "cpu", "--no-layers", "--no-training", "--json"]
    assert main(["profile", "s:0", "s:best", "s:dense-x0.25", "--studies", str(tmp_path), *options]) == 0
    networks = json.loads(capsys.readouterr().out)["networks"]
    assert [network["name"] for network in networks[1:]] == ["s:0", "s:2", "s:1"]  # the third is the most accurate
    named = {**SPACE.points, **SPACE.uniform}
    for network, name in zip(networks, ("nin", "lr-x0.25", "nin-c3-lr", "dense-x0.25"), strict=True):
        # 8x8 pixels, one channel, ten classes, as in the study; the baseline too
        assert (network["input"], network["macs"]) == (8, cost(named[name])["macs"])
    assert main(["profile", "s:0", "--input", "10", "--channels", "3", "--studies", str(tmp_path), *options]) == 0
    larger = json.loads(capsys.readouterr().out)["networks"][1]
    assert larger["input"] == 10 and larger["macs"] == make_plan(named["lr-x0.25"], 10, 10, 3).cost.macs
    url = f"sqlite:///{tmp_path}/s/study.db"
    assert main(["profile", "s:0", "--storage", url, "--studies", str(tmp_path / "none"), *options]) == 0
    assert json.loads(capsys.readouterr().out)["networks"][1]["name"] == "s:0"
    assert main(["profile", "s:9", "--studies", str(tmp_path)]) == 2
    assert "s has no trial 9; its last trial is 3" in capsys.readouterr().err
    for source, message in (("s", "got s, a study; did you mean s:best?"), ("s:lr-x0.3", "did you mean lr-x0.25")):
        assert main(["profile", source, "--studies", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err


def test_studies_with_different_images_are_not_mixed(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_search(tmp_path / "s")
    fill_study(tmp_path, 4, name="large")
    options = ["--studies", str(tmp_path), "--no-layers", "--no-training", "--batch", "1", "--device", "cpu", "--json"]
    assert main(["profile", "s:0", "large:1", *options]) == 2
    assert "got networks of input 8 and 32; give --input" in capsys.readouterr().err
    assert main(["profile", "s:0", "large:1", "--input", "8", "--channels", "1", *options]) == 0
    assert {network["input"] for network in json.loads(capsys.readouterr().out)["networks"]} == {8}
