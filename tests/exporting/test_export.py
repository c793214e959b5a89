"""Exported networks are read back, in this process and in new ones, and compared with the original."""

import dataclasses
import functools
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
import timm
import torch
from pictures import write_set
from PIL import Image
from safetensors.torch import load_file, save_file
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

import lrnas
from lrnas.arch.architecture import Allocation, Architecture, FilterGroup
from lrnas.cli.main import main
from lrnas.data.catalog import load_set
from lrnas.exporting import export as exporting, fastest_form as forms, onnx as onnx_models
from lrnas.exporting.export import SUFFIX
from lrnas.exporting.fastest_form import Times, choose_forms, fastest, torch_timer
from lrnas.exporting.sample_inputs import find_data
from lrnas.exporting.sources import find_source
from lrnas.layers.conv import CompositeConv2d
from lrnas.models.build import create_model
from lrnas.models.plan import canonical_id, folded_convs
from lrnas.profiling import timing
from lrnas.profiling.timing import measure
from lrnas.recipes import Recipe
from lrnas.searching.proposals import Proposals
from lrnas.spaces.space import load_space
from lrnas.study.ledger import Ledger
from lrnas.study.manifest import check_manifest, keep_images
from lrnas.study.objectives import pick_objectives
from lrnas.study.storage import open_storage
from lrnas.study.study import Study
from lrnas.training.checkpoint import architecture_entry, save_checkpoint

NARROW = {name: Allocation(width=0.05) for name in ("cccp1", "cccp2", "cccp3", "cccp4", "cccp5")}
OWN = Architecture(
    "nin",
    {
        "conv1": Allocation.composite(vertical=0.5, horizontal=0.5, width=0.05, join=0.05),
        "conv2": Allocation("separable", width=0.05),
        "conv3": Allocation.composite(vertical=0.25, horizontal=0.25, square=0.5, width=0.05),
        **NARROW,
    },
    batch_norm=True,
)
"""One layer of each kind, and small."""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def trained(architecture: Architecture = OWN, num_classes: int = 10, in_chans: int = 1) -> nn.Module:
    """A network whose batch norms have random running statistics, as after training."""
    torch.manual_seed(0)
    model = create_model(architecture, num_classes, in_chans).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return model


def write_checkpoint(
    folder: Path, model: nn.Module, told: bool = True, data: str = "digits", image_size: int | None = None
) -> Path:
    """Write a checkpoint as training does; without `told`, it does not contain the architecture."""
    identity = {
        "architecture": canonical_id(model.architecture),  # type: ignore[arg-type]
        "data": data,
        "image_size": image_size,
        "min_size": 8,
        "recipe": Recipe().to_dict(),
        "seed": 0,
    }
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    tensors["momentum.conv1"] = torch.ones(3)
    save_checkpoint(folder, 2, tensors, {"identity": identity, **(architecture_entry(model) if told else {})})
    return folder


def prefer(wanted: str, forms: Mapping[str, nn.Module], x: Tensor) -> Times:
    """Make one form of every layer the fastest one."""
    return Times({name: 1.0 if name in (wanted, "fastest layers") else 2.0 for name in forms}, 0.0)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure times with a single short sample."""
    for module in (timing, forms):
        monkeypatch.setattr(
            module, "measure", lambda calls, device, **options: measure(calls, device, rounds=1, sample=0.0)
        )


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the dense form of every layer the fastest one."""
    monkeypatch.setattr(exporting, "_make_timer", lambda *_: functools.partial(prefer, "dense"))


def test_exports_work_in_a_new_process(tmp_path: Path, forced: None) -> None:
    model = trained()
    x = torch.randn(5, 1, 8, 8)
    torch.save((x, model(x).detach()), tmp_path / "case.pt")
    source = str(write_checkpoint(tmp_path / "own", model))
    out = tmp_path / 'a "quoted"\nname'  # which must not end a line of the code that is shown
    result = lrnas.export(source, out=out)
    assert result.check.images == "64 validation images of digits, 8×8 pixels"
    assert result.check.same_class == result.check.number == 64 and result.check.max_difference < 1e-4
    config = json.loads((out / "config.json").read_text())
    assert config["architecture"] == "lrnas" and config["pretrained_cfg"]["input_size"] == [1, 8, 8]
    assert config["pretrained_cfg"]["mean"] == pytest.approx([0.305], abs=1e-3)
    assert result.also.startswith('timm.create_model("lrnas", architecture=')
    for fuse in (False, True):
        out = tmp_path / f"own-{fuse}.pt2"
        program = lrnas.export(source, "torch-export", fuse=fuse, out=out, batch=3)
        assert list(program.files) == [out] and out.stat().st_size == program.files[out]
    code = f"""
import sys
sys.modules["lrnas"] = sys.modules["timm"] = None  # the exported file must not import these
import torch
x, expected = torch.load("case.pt")
for file in ("own-False.pt2", "own-True.pt2"):
    extra = {{"lrnas.json": ""}}
    model = torch.export.load(file, extra_files=extra).module()
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model(x[:1]), expected[:1], atol=1e-5, rtol=1e-4)
    assert {OWN.to_json()!r} in extra["lrnas.json"]
del sys.modules["lrnas"], sys.modules["timm"]
{result.load}
torch.testing.assert_close(model.eval()(x), expected)
other = {result.also}
torch.testing.assert_close(other.eval()(x), expected)
assert timm.data.resolve_model_data_config(model)["input_size"] == [1, 8, 8]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_onnx(tmp_path: Path, forced: None) -> None:
    import onnx

    model = trained()
    source = str(write_checkpoint(tmp_path / "own", model))
    out = tmp_path / "own.onnx"
    result = lrnas.export(source, "onnx", fuse=True, out=out)
    assert result.check.same_class == 64 and set(result.seconds) == {"PyTorch", "onnxruntime"}
    session = onnx_models.make_session(out, torch.device("cpu"))
    for number in (1, 7):
        x = torch.randn(number, 1, 8, 8)
        torch.testing.assert_close(onnx_models.run_session(session, x), model(x).detach(), atol=1e-5, rtol=1e-4)
    written = onnx.load(out)
    assert written.graph.input[0].name == "images" and written.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    told = {entry.key: entry.value for entry in written.metadata_props}
    assert Architecture.from_dict(json.loads(told["lrnas"])["architecture"]) == OWN
    kinds = [node.op_type for node in written.graph.node]
    assert "BatchNormalization" not in kinds and "Concat" not in kinds


def test_onnxruntime_times_layers_with_as_many_threads_as_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    make = onnx_models.make_session

    def watch(*arguments: Any) -> Any:
        session = make(*arguments)
        threads.append(session.get_session_options().intra_op_num_threads)
        return session

    monkeypatch.setattr(onnx_models, "make_session", watch)
    quick = forms.measure

    def count(calls: Any, device: Any, **options: Any) -> list[float]:
        threads.append(options["threads"])
        return quick(calls, device, **options)

    monkeypatch.setattr(forms, "measure", count)
    layer = CompositeConv2d(2, {(3, 1): 2, (1, 3): 2}, 3, padding=1)
    times = onnx_models.onnx_timer(torch.device("cpu"), 1)(
        {"one": layer, "two": nn.Conv2d(2, 4, 3)}, torch.randn(2, 2, 6, 6)
    )
    assert set(times.seconds) == {"one", "two"} and all(0 < seconds < 1 for seconds in times.seconds.values())
    assert threads == [1] * 4  # two sessions, and two measurements


def test_messages_about_images_do_not_name_their_hash(tmp_path: Path) -> None:
    source = find_source(write_checkpoint(tmp_path / "own", trained(OWN, 7, 3), data="folder:0123456789abcdef"))
    _, told = find_data(source, None, None, None)
    assert told.startswith("checking with random images, because images of folder:PATH need --data, and")
    with pytest.raises(exporting.ExportError, match="own was trained on folder:PATH; got `data` digits, which has oth"):
        find_data(source, "digits", None, None)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        (OWN, "lrnas"),
        (Architecture("timm:test_resnet", {"*": Allocation.composite(vertical=0.5, horizontal=0.5)}), "lrnas"),
        (Architecture("nin_3x3", {"*": Allocation.composite(vertical=0.5, horizontal=0.5)}), "nin_c3_lr"),
    ],
    ids=["own", "timm", "registered"],
)
def test_timm_folded_and_not(tmp_path: Path, forced: None, architecture: Architecture, name: str) -> None:
    model = trained(architecture, 7, 3)
    what = "own data of me, 3x16x16, 7 classes"
    source = str(write_checkpoint(tmp_path / "own", model, data=what))
    x = torch.randn(2, 3, 16, 16)
    plain = lrnas.export(source, out=tmp_path / "plain")
    assert plain.notes == [
        f"checking with random images, because images of {what} need `data`, and the names of the classes are not "
        "written"
    ]
    assert plain.check.images == "64 random images of 16×16 pixels"
    assert json.loads((tmp_path / "plain" / "config.json").read_text())["architecture"] == name
    again = timm.create_model(f"local-dir:{tmp_path / 'plain'}", pretrained=True).eval()
    torch.testing.assert_close(again(x), model(x))
    torch.testing.assert_close(lrnas.load_model(tmp_path / "plain")(x), model(x))
    lrnas.export(str(tmp_path / "plain"), out=tmp_path / "twice")
    first, second = (json.loads((tmp_path / part / "config.json").read_text()) for part in ("plain", "twice"))
    assert first == second
    fused = lrnas.export(source, out=tmp_path / "fused", fuse=True)
    with pytest.raises(exporting.ExportError, match=r"exported with `fuse`.*load it with timm.create_model"):
        lrnas.load_model(tmp_path / "fused")
    assert fused.fusion is not None and fused.fusion.network is not None
    again = timm.create_model(f"local-dir:{tmp_path / 'fused'}", pretrained=True).eval()
    torch.testing.assert_close(again(x), model(x), atol=1e-4, rtol=1e-3)
    assert not any(isinstance(module, CompositeConv2d | nn.BatchNorm2d) for module in again.modules())
    names = {choice.chosen for choice in fused.fusion.layers}
    assert names == {"dense"}


def test_the_fastest_form_is_kept_unless_the_gain_is_noise() -> None:
    model = trained()
    asked: list[dict[str, float]] = []

    def times(forms: Mapping[str, nn.Module], x: Tensor) -> Times:
        if "as trained" in forms:
            asked.append(whole)
            return Times({name: whole[name] for name in forms}, noise)
        layer = {"composite": 1.0, "dense": 2.0, "merged": 3.0, "separable": 3.0}
        return Times({name: layer[name] for name in forms}, 0.01)

    for dense, differ, kept in (
        (4.0, 0.0, "fastest layers"),
        (2.97, 0.0, "fastest layers"),
        (2.0, 0.0, "dense"),
        (2.0, 0.4, "fastest layers"),
    ):
        noise = differ
        whole = {"as trained": 9.0, "norms folded": 5.0, "fastest layers": 3.0, "dense": dense}
        fusion = choose_forms(model, torch.randn(2, 1, 8, 8), times)
        assert fusion.network is not None and fusion.network.chosen == kept
        assert [choice.chosen for choice in fusion.layers] == ["composite", "dense", "composite"]
        paths = ["conv2.conv"] if kept == "fastest layers" else ["conv1.conv", "conv2.conv", "conv3.conv"]
        assert fusion.folding.forms == dict.fromkeys(paths, "dense") and len(fusion.folding.norms) == 8
        assert ("within noise" in fusion.network.remark) == (dense < 3 and kept != "dense")
    assert len(asked) == 4
    whole, noise = {"as trained": 2.0, "norms folded": 5.0, "fastest layers": 3.0, "dense": 3.0}, 0.0
    fusion = choose_forms(model, torch.randn(2, 1, 8, 8), times)
    assert fusion.network is not None and fusion.network.chosen == "as trained"
    assert not fusion.folding.norms and fusion.model is not model
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())  # it stays as it is


def test_of_equally_fast_forms_the_deployed_one_is_kept() -> None:
    """A form with more multiply-accumulates is kept only if it was measured to be faster."""
    wide = Allocation.composite(vertical=0.5, horizontal=0.5, width=0.2, join=0.05)
    flat = Allocation("composite", (FilterGroup("1xk", 1.0),), 0.05, 0.05)

    def times(forms: Mapping[str, nn.Module], x: Tensor) -> Times:
        return Times(dict.fromkeys(forms, 1.0), 0.0)

    for layers, wanted in (
        ({}, ["composite", "separable", "composite"]),
        ({"conv1": wide}, ["dense", "separable", "composite"]),
        ({"conv1": flat, "conv3": Allocation("separable")}, ["single", "separable", "dense"]),
    ):
        architecture = dataclasses.replace(OWN, layers={**OWN.layers, **layers})
        model = create_model(architecture, 10, 1).eval()
        fusion = choose_forms(model, torch.randn(2, 1, 8, 8), times)
        assert [choice.chosen for choice in fusion.layers] == wanted
        assert fusion.folding.forms.keys() == {conv.path for conv in folded_convs(architecture, 8, 1)}
        images = torch.randn(2, 1, 8, 8)
        torch.testing.assert_close(fusion.model(images), model(images), rtol=1e-4, atol=1e-5)


def test_forms_are_really_measured() -> None:
    model = trained()
    x = torch.randn(2, 1, 8, 8)
    fusion = choose_forms(model, x, torch_timer(torch.device("cpu"), 1))
    for choice in fusion.layers:
        quickest = min(choice.seconds, key=choice.seconds.__getitem__)
        assert choice.chosen == quickest or choice.remark.startswith(f"{quickest} is faster by")
    torch.testing.assert_close(fusion.model(x), model(x), atol=1e-5, rtol=1e-4)


def test_with_one_thread_other_programs_do_not_change_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "measure", measure)
    monkeypatch.setattr(forms, "ROUNDS", 1)
    calls = {"waits": lambda: time.sleep(0.001)}
    assert fastest(calls, torch.device("cpu"), 1).seconds["waits"] < 0.0005
    assert fastest(calls, torch.device("cpu"), 2).seconds["waits"] >= 0.001


def test_files_with_different_outputs_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: None
) -> None:
    monkeypatch.setattr(exporting, "TOLERANCE", 0.0)
    source = str(write_checkpoint(tmp_path / "own", trained()))
    with pytest.raises(exporting.ExportError, match="does not compute the same outputs: they differ by"):
        lrnas.export(source, out=tmp_path / "out", fuse=True)
    assert not (tmp_path / "out").exists() and [path.name for path in tmp_path.iterdir()] == ["own"]


def test_heads_that_only_training_needs_are_left_out(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "a"
    arguments = ("export", "googlenet-lr", "--fresh", "--input", "64", "--classes", "3", "--out", str(folder))
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    by_name = eval(next(line.strip() for line in out.splitlines() if "checkpoint_path" in line))
    weights = folder / "model.safetensors"
    keys = load_file(weights)
    assert "fc.weight" in keys and not any(key.startswith("aux") for key in keys)
    images = torch.randn(2, 3, 64, 64)
    outputs = [
        model.train()(images)  # with the heads, a tuple
        for model in (
            timm.create_model(f"local-dir:{folder}", pretrained=True),
            by_name,
            lrnas.load_model(weights),
            lrnas.load_model(folder),
        )
    ]
    assert [output.shape for output in outputs] == [(2, 3)] * 4


def test_a_named_network_has_random_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "export", "nin-c3-lr", "--data", "digits")
    assert code == 0 and err == "nin-c3-lr has random weights, not trained\n"
    assert "exports/nin-c3-lr/model.safetensors, 1.7" in out and "64 validation images of digits" in out
    assert 'timm.create_model("nin_c3_lr", num_classes=10, in_chans=1, checkpoint_path="exports/nin-c3-lr/' in out
    model = timm.create_model(
        "nin_c3_lr", num_classes=10, in_chans=1, checkpoint_path="exports/nin-c3-lr/model.safetensors"
    )
    assert set(load_file("exports/nin-c3-lr/model.safetensors")) == set(model.state_dict())
    code, _, err = run(capsys, "export", "nin-c3-lr", "--data", "digits")
    assert code == 2 and "exports/nin-c3-lr/model.safetensors exists; add --force" in err
    (tmp_path / "exports" / "nin-c3-lr" / "notes.txt").touch()
    code, out, _ = run(capsys, "export", "nin-c3-lr", "--input", "16", "--classes", "3", "--force", "--json")
    data = json.loads(out)
    assert code == 0 and data["check"]["images"] == "64 random images of 16×16 pixels" and data["fusion"] is None
    assert (tmp_path / "exports" / "nin-c3-lr" / "notes.txt").exists()


def test_where_the_architecture_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "own", trained(), told=False)
    with pytest.raises(exporting.ExportError, match="does not contain the architecture of its weights"):
        lrnas.export(str(folder), out=tmp_path / "out")
    file = tmp_path / "network.json"
    file.write_text(OWN.to_json())
    for source in (folder, folder / "checkpoint.json", folder / "epoch-2.safetensors"):
        result = lrnas.export(str(source), out=tmp_path / "out", architecture=file, force=True)
        assert result.check.same_class == 64
    write_checkpoint(folder, trained())
    record = tmp_path / "own.json"  # of `lrnas reproduce`
    record.write_text(json.dumps({"architecture": OWN.to_dict(), "identity": {}}))
    for source in (folder, folder / "epoch-2.safetensors", record):
        assert lrnas.export(str(source), out=tmp_path / "out", force=True).name == "own"
    named = write_checkpoint(tmp_path / "named", trained(lrnas.get_point("nin-c3-lr").architecture))
    assert "nin_c3_lr" in lrnas.export(str(named), out=tmp_path / "out", force=True).also
    file.write_text(Architecture("nin", batch_norm=True).to_json())
    with pytest.raises(exporting.ExportError, match="do not fit this architecture: "):
        lrnas.export(str(folder), out=tmp_path / "out", architecture=file, force=True)


def test_images_from_files(tmp_path: Path) -> None:
    pictures = write_set(tmp_path / "pictures", {"train": 3, "test": 2}, size=20)
    result = lrnas.export("nin", out=tmp_path / "out", data=f"folder:{pictures}", input=16)
    assert result.check.images.startswith("3 validation images of folder:") and "16×16" in result.check.images
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["num_classes"] == 3 and config["label_names"] == ["blue", "green", "red"]
    assert config["pretrained_cfg"]["mean"] == [0.485, 0.456, 0.406]
    assert config["pretrained_cfg"]["crop_pct"] == 0.875  # the value for images from files, not that of NiN
    result = lrnas.export("nin", out=tmp_path / "own", data=f"folder:{pictures}")
    assert "32×32" in result.check.images  # the network's own


@pytest.mark.parametrize("at_hand", [True, False])
def test_pictures_are_prepared_as_in_training(tmp_path: Path, at_hand: bool) -> None:
    """The image size comes from the checkpoint, even if its images are not available."""
    pictures = write_set(tmp_path / "pictures", {"train": 3, "val": 2, "test": 2}, size=20)
    data = load_set(f"folder:{pictures}", image_size=16)
    source = write_checkpoint(tmp_path / "own", trained(OWN, 3, 3), data=data.identity, image_size=16)
    given = data.name if at_hand else None
    result = lrnas.export(str(source), out=tmp_path / "out", data=given)
    assert ("6 validation images" if at_hand else "64 random images") in result.check.images
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(loaded))
    with Image.open(pictures / "val" / "blue" / "000.png") as image:
        prepared = transform(image)
    batch = next(iter(data.eval_batches(data.val, Recipe(), torch.device("cpu"), tmp_path)))[0]
    rounding = 1.01 / 255 / min(IMAGENET_DEFAULT_STD)  # resized images may differ by 1 of 255
    torch.testing.assert_close(prepared, batch[0].contiguous(), atol=rounding, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["timm", "torch-export"])
def test_forms_are_measured_on_a_gpu(tmp_path: Path, kind: str) -> None:
    source = str(write_checkpoint(tmp_path / "own", trained()))
    result = lrnas.export(source, kind, fuse=True, device="cuda", batch=8, out=tmp_path / f"a{SUFFIX[kind]}")  # type: ignore[arg-type]
    assert result.check.same_class == 64 and result.device == "cuda"


def make_study(folder: Path, data: str = "digits", **more: object) -> None:
    """Write a study of three trials, of which the second has weights; `more` is added to the manifest."""
    space = load_space("nin", batch_norm=True)
    goals = pick_objectives(["accuracy", "macs"])
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    record = optuna.create_study(
        study_name="small",
        storage=open_storage(None, folder / "small"),
        directions=[goal.direction for goal in goals],
        sampler=optuna.samplers.RandomSampler(seed=0),
    )
    manifest = {
        "source": "nin",
        "recipe": Recipe().to_dict(),
        "space": space.to_dict(),
        "rungs": [],
        "seed": 0,
        "data": data,
        "image_size": 8,
        "channels": 1,
        "num_classes": 10,
        "objectives": ["accuracy", "macs"],
        "reference": {"macs": 2e7, "params": 2e6},
        **more,
    }
    check_manifest(record, manifest)
    ledger = Ledger(Study("small", record, goals, manifest))
    proposals = Proposals(ledger, space, lambda _: {"macs": 1000, "params": 10})
    for accuracy in (0.5, 0.9, 0.7):
        proposal = proposals.ask()
        ledger.report_epoch(proposal.number, [accuracy], 1.0)
        ledger.complete(proposal.number, accuracy)
        if proposal.number == 1:
            model = create_model(proposal.architecture, 10, 1)
            write_checkpoint(folder / "small" / "trials" / "00001", model, told=False, data=data)


def test_trials_of_a_study(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_study(tmp_path / "studies")
    code, out, err = run(capsys, "export", "small:1")
    assert (code, err) == (0, "")
    assert "small-1: weights after 2 epochs, studies/small/trials/00001" in out and "64 of 64 in the same class" in out
    assert lrnas.export("small:best", out="best").name == "small-1"
    identity = lrnas.open_study("small").trials[1].identity
    assert lrnas.export(f"small:{identity}", out="named").name == "small-1"
    code, _, err = run(capsys, "filters", "small")
    assert code == 2 and "did you mean small:best?" in err
    code, _, err = run(capsys, "export", "small:2")
    assert code == 2 and "trial 2 of small has no weights (they were deleted, or are on another machine)" in err
    assert "weights exist for 1; name" in err
    code, _, err = run(capsys, "export", "small:2", "--fresh")
    assert code == 0 and err == "small-2 has random weights, not trained\n"
    for source, message in (
        ("small:9", "small has no trial 9; its last trial is 2; `lrnas front small` shows the best ones"),
        ("smal:1", "unknown study 'smal'; did you mean small?"),
        ("small", "a network is needed; got small, a study; did you mean small:best?"),
        ("small:nin", "unknown network of small 'nin'"),
    ):
        code, out, err = run(capsys, "export", source)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err
    Path("small").mkdir()  # the images of the study, for example
    assert "did you mean small:best?" in run(capsys, "export", "small")[2]


def test_trials_are_loaded_and_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the current folder changes after the study was opened."""
    make_study(tmp_path / "studies")
    monkeypatch.chdir(tmp_path)
    trial = lrnas.open_study().best()
    monkeypatch.chdir(tmp_path / "studies")
    assert (trial.number, trial.curve) == (1, (0.9,))
    model = trial.load()
    (file,) = (tmp_path / "studies" / "small" / "trials" / "00001").glob("*.safetensors")
    weights = load_file(file)
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[f"model.{name}"])
    assert not model.training and model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    result = trial.export("torch-export", out=tmp_path / "a.pt2")
    assert result.name == "small-1" and (tmp_path / "a.pt2").exists()
    assert "a.pt2; weights after " in repr(result)
    assert repr(result).endswith("; 64 of 64 images in the same class>")
    with pytest.raises(lrnas.LrnasError, match="trial 2 of small has no weights"):
        trial.study.trials[2].load()
    with pytest.raises(lrnas.LrnasError, match="a trained network is needed; got nin, which is not; use"):
        lrnas.load_model("nin")
    unfinished = dataclasses.replace(trial, status="waiting")  # it has weights of some of its epochs
    with pytest.raises(lrnas.LrnasError, match=r"trial 1 of small has no weights \(it waits for training\); only"):
        unfinished.load()


def test_exports_of_a_study_have_class_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They have them even if the images of the study are not available."""
    caplog.set_level("INFO", logger="lrnas")
    monkeypatch.chdir(tmp_path)
    names = [f"kind {i}" for i in range(10)]
    make_study(tmp_path / "studies", "folder:0123456789abcdef", classes=names, data_name="folder:mine")
    result = lrnas.export("small:1", out="out")
    message = "checking with random images, because images of folder:mine need `data`"
    assert result.notes == [message] == [record.getMessage() for record in caplog.records]
    assert json.loads(Path("out/config.json").read_text())["label_names"] == names
    pictures = write_set(tmp_path / "mine", {"train": 2, "val": 2, "test": 2})  # other images than those of the study
    keep_images(lrnas.open_study("small").optuna_study, f"folder:{pictures}")
    message = "checking with random images, because the images of folder:mine have changed since the training"
    assert lrnas.export("small:1", out="again").notes == [message]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nin-c3-lrr"], "unknown source 'nin-c3-lrr'; did you mean nin-c3-lr"),
        (["timm:resnet81"], "unknown timm model 'resnet81'; did you mean"),
        (["missing/checkpoint"], "missing/checkpoint does not exist"),
        (["empty"], "empty has no checkpoint.json"),
        (["bare.safetensors"], "contains weights without an architecture; give it with --architecture FILE.json"),
        (["broken.safetensors"], "broken.safetensors cannot be read (Error while deserializing header"),
        (["bare.safetensors", "--architecture", "broken.json"], "broken.json: not valid JSON"),
        (["broken.safetensors", "--architecture", "network.json"], "broken.safetensors cannot be read"),
        (["broken.json"], "broken.json cannot be read"),
        (["record.json"], "record.json is the record of a run whose weights are not in record; train it again"),
        (["weights.pth"], "weights must be safetensors and networks JSON; got weights.pth"),
        (["nin", "--architecture", "network.json"], "--architecture needs a file of weights as the source"),
        (["nin", "--format", "onxx"], "unknown format 'onxx'; did you mean onnx?"),
        (["nin", "--format", "onnx", "--out", "a.pt"], "a file of format onnx ends in .onnx; got a.pt"),
        (["nin", "--out", "bare.safetensors"], "bare.safetensors is a file, but the timm format is a folder"),
        (["nin", "--out", "bare.safetensors/deep"], "bare.safetensors: it is not a folder that you may write to"),
        (["nin", "--batch", "0"], "the batch must be at least 1; got 0"),
        (["nin", "--device", "tpu"], "--device takes cpu, cuda or cuda:N; got 'tpu'"),
        (["nin", "--input", "2"], "the network cannot process images of 2×2"),
        (["nin", "--data", "digitz"], "unknown data set 'digitz'; did you mean digits?"),
    ],
)
def test_bad_input(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    save_file({"x": torch.zeros(1)}, tmp_path / "bare.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")
    (tmp_path / "weights.pth").touch()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "network.json").write_text('{"backbone": "nin"}')
    (tmp_path / "record.json").write_text('{"identity": {}, "architecture": {"backbone": "nin"}}')
    code, out, err = run(capsys, "export", *arguments)
    assert (code, out) == (2, "") and message in err.splitlines()[-1], err
    assert not list(tmp_path.glob("*.part")) and not list(tmp_path.glob("*/model.safetensors"))


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_models, "EXTRAS", ("onnx", "no_such_runtime"))
    with pytest.raises(exporting.ExportError, match=r"ONNX needs no_such_runtime, .* pip install 'lrnas\[export\]'"):
        lrnas.export("nin", "onnx")


def test_a_loaded_network_says_how_images_are_prepared(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As timm reads it: of digits, of images from files, and of an export, which has the same entries."""
    network = Architecture("nin", {"*": Allocation(width=0.05)})
    digits = lrnas.load_model(write_checkpoint(tmp_path / "digits", trained(network)))
    config = timm.data.resolve_model_data_config(digits)
    assert (config["input_size"], config["crop_pct"], digits.pretrained_cfg["num_classes"]) == ((1, 8, 8), 1.0, 10)  # type: ignore[index]
    assert config["mean"] == pytest.approx((0.305,), abs=0.01) and len(digits.pretrained_cfg["label_names"]) == 10  # type: ignore[index]
    folder = write_checkpoint(tmp_path / "own", trained(network, 6, 3), data="folder:1234", image_size=16)
    own = timm.data.resolve_model_data_config(lrnas.load_model(folder))
    assert "pool_size" not in digits.pretrained_cfg  # type: ignore[operator]  # that of the backbone's own size
    assert own["input_size"] == (3, 16, 16) and (own["crop_pct"], own["interpolation"]) == (0.875, "bilinear")
    assert own["mean"] == IMAGENET_DEFAULT_MEAN and own["std"] == IMAGENET_DEFAULT_STD
    with caplog.at_level("INFO", "lrnas"):
        lrnas.export(folder, out=tmp_path / "exported", input=24)
    assert "own was trained on images of 16×16 pixels; its accuracy at 24×24 is unknown" in caplog.messages
    again = lrnas.load_model(tmp_path / "exported")
    assert timm.data.resolve_model_data_config(again) == own | {"input_size": (3, 24, 24)}
    assert again.pretrained_cfg["num_classes"] == 6  # type: ignore[index]


@pytest.mark.parametrize(
    ("backbone", "stem", "form"),
    [
        ("timm:resnet18", Allocation.composite(vertical=0.5, horizontal=0.5, join=1), ""),
        ("timm:resnet18", Allocation.composite(vertical=0.5, horizontal=0.5, join=1), "dense"),
        ("timm:resnet18", Allocation.composite(vertical=0.5, horizontal=0.5, join=1), "merged"),
        ("timm:resnet18", Allocation("separable"), ""),
        ("nin", Allocation.composite(vertical=0.5, horizontal=0.5), "dense"),
        ("nin", Allocation.composite(vertical=0.5, horizontal=0.5, join=1), "merged"),
    ],
)
def test_timm_can_change_the_channels_of_images(
    backbone: str,
    stem: Allocation,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a grey image, which has the same values in all channels, the exported network computes the same."""
    monkeypatch.setattr(exporting, "_make_timer", lambda *_: functools.partial(prefer, form))
    model = trained(Architecture(backbone, {"conv1": stem}), in_chans=3)
    source = write_checkpoint(tmp_path / "run", model, data="cifar10")
    code, _, err = run(capsys, "export", str(source), "--out", str(tmp_path / "out"), *["--fuse"] * bool(form))
    assert code == 0, err
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True, in_chans=1).eval()
    grey = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded(grey), model(grey.expand(-1, 3, -1, -1)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["levit_128s", "repvit_m0_9", "tresnet_m"])
def test_weights_of_models_with_special_stems_and_classifiers(name: str, tmp_path: Path) -> None:
    """Two classifiers, one inside of a module, and a stem that reads 4×4 pixels as 48 channels."""
    network = Architecture(f"timm:{name}")
    model = create_model(network, 4).eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    (tmp_path / "network.json").write_text(network.to_json())
    loaded = lrnas.load_model(tmp_path / "weights.safetensors", architecture=tmp_path / "network.json")
    assert loaded.num_classes == 4
    assert all(torch.equal(own, loaded.state_dict()[key]) for key, own in model.state_dict().items())
