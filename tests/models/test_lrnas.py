"""All registered networks follow timm's conventions: what timm's own tests require of its models holds for them too.

Shapes are tested on the meta device, which computes no numbers, at each network's own input size.
"""

import subprocess
import sys

import pytest
import timm
import torch
from timm.models import get_notrace_functions, get_notrace_modules
from torch import nn
from torch.fx import GraphModule
from torchvision.models.feature_extraction import NodePathTracer

from lrnas.arch.architecture import Architecture
from lrnas.errors import ConversionError
from lrnas.models.found import found_networks
from lrnas.models.paper import paper_points

NAMES = [name for name in timm.list_models(module="lrnas") if name != "lrnas"]
LARGE = "vgg_11"  # 130 million weights
all_networks = pytest.mark.parametrize("name", NAMES)


def make(name: str, **kwargs: object) -> nn.Module:
    return timm.create_model(name, **kwargs)  # type: ignore[no-any-return]


def trace(model: nn.Module) -> GraphModule:
    leaves = {"leaf_modules": get_notrace_modules(), "autowrap_functions": get_notrace_functions()}
    return GraphModule(model, NodePathTracer(**leaves, param_shapes_constant=True).trace(model))


def test_all_are_registered_and_none_shadows_timm() -> None:
    vggs = {f"vgg{depth}{norm}_gmp" for depth in (11, 13, 16, 19) for norm in ("", "_bn")}
    assert set(NAMES) == {*vggs, *(name.replace("-", "_") for name in (*paper_points(), *found_networks()))}
    code = "import timm; before = timm.list_models(); import lrnas; assert timm.is_model('nin'); print(*before)"
    timms_own = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {*NAMES, "lrnas"} & set(timms_own.stdout.split())


@pytest.mark.parametrize(
    "order",
    [
        "import lrnas, timm",
        "import lrnas, importlib.util; importlib.util.find_spec('timm')",
        "import lrnas.models.lrnas, importlib; importlib.reload(lrnas.models.lrnas)",
    ],
)
def test_registration_works_in_any_order_of_imports(order: str) -> None:
    code = f"{order}; import timm; assert timm.is_model('vgg_gmp_lr') and timm.is_model('nin')"
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)


@all_networks
def test_default_cfg(name: str) -> None:
    model = make(name, device="meta").eval()
    cfg, state = model.default_cfg, model.state_dict()
    x = torch.empty(1, *cfg["input_size"], device="meta")
    features = model.forward_features(x)
    assert features.shape == (1, model.num_features, *cfg["pool_size"])
    assert model.forward_head(features, pre_logits=True).shape == (1, model.head_hidden_size)
    assert model(x).shape == (1, model.num_classes) and model.num_classes == cfg["num_classes"]
    assert model(torch.empty(1, *cfg["min_input_size"], device="meta")).shape == (1, model.num_classes)

    first, last = ((paths,) if isinstance(paths, str) else paths for paths in (cfg["first_conv"], cfg["classifier"]))
    assert all(state[f"{path}.weight"].shape[1] == model.in_chans == 3 for path in first)
    assert all(state[f"{path}.weight"].shape[0] == model.num_classes for path in last)
    assert model.get_classifier() is model.get_submodule(last[0])

    model.reset_classifier(4)
    assert model(x).shape == (1, 4) and model.num_classes == 4
    model.reset_classifier(0)
    assert model(x).shape == (1, model.head_hidden_size) and model.num_classes == 0
    model.reset_classifier(0, "")
    map_size = (1, 1) if name == LARGE else cfg["pool_size"]  # the classifier of the first has 7×7 filters
    assert model(x).shape == (1, model.head_hidden_size, *map_size)
    assert make(name, device="meta", num_classes=0, global_pool="").eval()(x).shape[2:] == map_size
    model.reset_classifier(5, "avg")
    assert model(x).shape == (1, 5)


@pytest.mark.parametrize(
    "kind", ["list", "getter", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("dict", "hook", "fx"))]
)
@all_networks
def test_features_only(name: str, kind: str) -> None:
    # with auxiliary heads, torchvision warns that fx finds other layers in training
    kwargs = {"device": "meta", "features_only": True, **({"aux_logits": False} if "google" in name else {})}
    x = torch.empty(1, 3, 64, 64, device="meta")
    model = make(name, feature_cls=kind, **kwargs)
    assert len(model.feature_info.channels()) >= 3
    for chosen in (model, make(name, feature_cls=kind, out_indices=(0, 2), **kwargs)):
        outputs = chosen(x)
        shapes = [output.shape for output in (outputs.values() if kind == "dict" else outputs)]
        info = chosen.feature_info
        assert shapes == [(1, chs, 64 // r, 64 // r) for chs, r in zip(info.channels(), info.reduction(), strict=True)]
    assert info.channels() == model.feature_info.channels()[:3:2]


@pytest.mark.parametrize("name", ["resnet18", "dla34", "xception41", "dpn48b", "darknet53", "tresnet_m", "mnasnet_050"])
def test_features_of_timm_models_are_those_of_timm(name: str) -> None:
    x = torch.empty(1, 3, 128, 128, device="meta")
    data = Architecture(f"timm:{name}").to_dict()
    for chosen in ({}, {"out_indices": (1, 3)}):
        with torch.device("meta"):
            own = timm.create_model(name, features_only=True, **chosen).eval()
            ours = timm.create_model("lrnas", architecture=data, features_only=True, **chosen).eval()
        assert [maps.shape for maps in ours(x)] == [maps.shape for maps in own(x)]
        assert ours.feature_info.channels() == own.feature_info.channels()


def test_features_of_a_model_that_timm_builds_in_another_way() -> None:
    with pytest.raises(ConversionError, match="timm cannot give the maps of timm:hrnet_w18_small as a list; choose fe"):
        timm.create_model("lrnas", architecture=Architecture("timm:hrnet_w18_small").to_dict(), features_only=True)


@all_networks
def test_every_weight_gets_a_gradient(name: str) -> None:
    model = make(name, num_classes=7, device="meta").train()
    x = torch.empty(2, *model.default_cfg["input_size"], device="meta")
    for trained in (model, trace(model)):
        trained.zero_grad()
        outputs = trained(x)
        outputs = torch.cat(outputs) if isinstance(outputs, tuple) else outputs
        assert outputs.shape[1] == 7
        outputs.mean().backward()
        assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == LARGE else []) for name in NAMES]
)
def test_every_way_to_run_it_gives_the_same(name: str) -> None:
    model = make(name, num_classes=7).eval()
    x = torch.randn(2, *model.default_cfg["min_input_size"])
    scripted = torch.jit.script(model)
    with torch.no_grad():
        outputs = model(x)
        assert outputs.shape == (2, 7) and outputs.isfinite().all()
        features = model.forward_features(x)
        torch.testing.assert_close(model.forward_head(features), outputs)
        last, maps = model.forward_intermediates(x)
        torch.testing.assert_close([last, maps[-1]], [features, features])
        assert [found.shape[1] for found in maps] == [level["num_chs"] for level in model.feature_info]
        torch.testing.assert_close(trace(model)(x), outputs)
        torch.testing.assert_close(scripted(x), outputs)
    assert set(scripted.state_dict()) == {path for path in model.state_dict() if not path.startswith("aux")}


def test_torchscript_keeps_the_mode() -> None:
    model = make("googlenet", num_classes=3, aux_drop_rate=0.0).train()
    model.set_grad_checkpointing()  # has no effect in TorchScript
    scripted = torch.jit.script(model).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(scripted(x), model(x))
    assert len(scripted(x)) == 3 and model.eval()(x).shape == (1, 3)


@pytest.mark.parametrize("kind", ["list", "fx"])  # timm's other kinds cannot be compiled for its models either
@pytest.mark.parametrize("name", ["nin_c3_lr", "googlenet_lr", "vgg_gmp_sf"])
def test_torchscript_of_features(name: str, kind: str) -> None:
    kwargs = {"aux_logits": False} if "google" in name else {}
    model = make(name, device="meta", features_only=True, feature_cls=kind, **kwargs)
    outputs = torch.jit.script(model)(torch.empty(1, 3, 64, 64, device="meta"))
    assert [output.shape[1] for output in outputs] == model.feature_info.channels()
