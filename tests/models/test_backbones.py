"""The backbones as modules: their widths, heads, intermediate maps and weights."""

import pytest
import timm
import torch
from timm.models.vgg import cfgs
from torch import nn

import lrnas
from lrnas.arch.architecture import Allocation, Architecture
from lrnas.arch.backbone_shapes import VGG_STAGES
from lrnas.errors import ConversionError, InvalidArchitecture
from lrnas.models.backbones import vgg_layers
from lrnas.models.build import create_model


def make(name: str, **kwargs: object) -> nn.Module:
    return timm.create_model(name, **kwargs)  # type: ignore[no-any-return]


def test_stages_are_those_of_timm() -> None:
    for name in VGG_STAGES.keys() - {"vgg_deep"}:
        assert vgg_layers(VGG_STAGES[name], last_pool=True) == cfgs[name]


EXAMPLES = ["nin_c3_lr", "googlenet_lr", "vgg_gmp_lr_join"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_intermediate_maps(name: str) -> None:
    model, x = make(name, num_classes=3).eval(), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        _, maps = model.forward_intermediates(x)
        shapes = [(level["num_chs"], 64 // level["reduction"]) for level in model.feature_info]
        assert [(found.shape[1], found.shape[2]) for found in maps] == shapes
        two = model.forward_intermediates(x, [0, -2], intermediates_only=True)
        torch.testing.assert_close(two, [maps[0], maps[-2]])
        stopped, first = model.forward_intermediates(x, [0], stop_early=True)
        torch.testing.assert_close([stopped, *first], [maps[0], maps[0]])
        weights = sum(parameter.numel() for parameter in model.parameters())
        assert model.prune_intermediate_layers([0, 1]) == [0, 1]
        assert sum(parameter.numel() for parameter in model.parameters()) < 0.7 * weights
        torch.testing.assert_close(model.forward_intermediates(x, [0, 1], intermediates_only=True), maps[:2])


@pytest.mark.parametrize("method", ["forward", "forward_intermediates"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_gradient_checkpointing_keeps_less_and_computes_the_same(name: str, method: str) -> None:
    torch.manual_seed(0)
    model, x = (
        make(name, num_classes=3, **({"aux_drop_rate": 0.0} if "google" in name else {})),
        torch.randn(2, 3, 64, 64),
    )
    kept: dict[bool, int] = {}
    gradients = {}
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        kept[enable] = 0

        def count(tensor: torch.Tensor, enable: bool = enable) -> torch.Tensor:
            kept[enable] += tensor.numel() * (not isinstance(tensor, nn.Parameter))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            outputs = model(x) if method == "forward" else model.forward_intermediates(x, intermediates_only=True)
        loss = sum(output.square().sum() for output in ([outputs] if isinstance(outputs, torch.Tensor) else outputs))
        weights = list(model.parameters())
        gradients[enable] = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
    assert any(gradient.any() for gradient in gradients[True])
    torch.testing.assert_close(gradients[True], gradients[False])
    assert kept[True] < 0.8 * kept[False]


@pytest.mark.parametrize("name", ["nin_c3_lr", "googlenet_lr", "vgg_gmp_lr_join_wfull"])
def test_timm_loads_checkpoints(name: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = make(name, num_classes=3).eval()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "net.pth")
    again = make(name, num_classes=3, checkpoint_path=str(tmp_path / "net.pth")).eval()
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x))


@pytest.mark.parametrize("name", ["nin", "googlenet", "vgg_gmp_lr"])
@pytest.mark.parametrize("heads", [True, False])
def test_pretrained_weights_take_another_number_of_classes(name: str, heads: bool, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = make(name, num_classes=10)
    torch.save(model.state_dict(), tmp_path / "net.pth")
    kwargs = {} if heads or name != "googlenet" else {"aux_logits": False}
    overlay = {"file": str(tmp_path / "net.pth"), "num_classes": 10}
    again = make(name, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=7, **kwargs)
    first = next(iter(model.state_dict()))
    assert torch.equal(again.state_dict()[first], model.state_dict()[first])
    assert again.num_classes == 7


def test_settings_of_the_architecture_are_refused_as_arguments() -> None:
    with pytest.raises(ConversionError, match="stem_stride must be set in the architecture; got argument 2"):
        make("nin", stem_stride=2)
    with pytest.raises(ConversionError, match="norm_layer must be set in the architecture"):
        make("vgg_gmp_lr", norm_layer=nn.BatchNorm2d)
    half = Allocation.composite(vertical=0.5, horizontal=0.5)
    with pytest.raises(ConversionError, match="conv1 is not the same convolution as in timm:resnet18"):
        create_model(Architecture("timm:resnet18", {"*": half}), stem_type="deep", stem_width=32)
    assert create_model(Architecture("vgg11", pool="max"), global_pool="avg").architecture.pool == "avg"


def test_timms_vgg_keeps_timms_weights() -> None:
    half = Allocation.composite(vertical=0.5, horizontal=0.5)
    torch.manual_seed(0)
    model = create_model(Architecture("timm:vgg11", {"features.0": half}), 3)
    assert not model.pretrained_cfg["url"].startswith("lrnas") and model.pretrained_cfg["architecture"] == "vgg11"
    assert type(model.get_submodule("features.0")).__name__ == "CompositeConv2d"
    wide = create_model(Architecture("timm:vgg11", {"features.0": Allocation(width=0.5)}), 3, device="meta")
    assert wide.get_submodule("features.0").out_channels == 32


@pytest.mark.parametrize("size", [32, 33, 64, 100])
def test_vgg_takes_any_input_from_32_pixels(size: int) -> None:
    model = make("vgg_gmp_lr", num_classes=2)
    assert model(torch.randn(1, 3, size, size)).shape == (1, 2)


def test_other_channels_classes_and_pools() -> None:
    model = make("vgg_gmp_lr_join", num_classes=5, in_chans=1, global_pool="avg", drop_rate=0.5)
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 5)
    assert model.global_pool.pool_type == "avg"
    model = make("nin", in_chans=4, global_pool="max", drop_rate=0.5)
    assert model(torch.randn(2, 4, 32, 32)).shape == (2, 10)
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == [0.5, 0.5]


def test_googlenet_has_auxiliary_heads_while_training_only() -> None:
    model = make("googlenet", num_classes=6)
    x = torch.randn(2, 3, 64, 64)
    outputs = model.train()(x)
    assert [tuple(output.shape) for output in outputs] == [(2, 6)] * 3
    assert model.eval()(x).shape == (2, 6)
    model.reset_classifier(3)
    assert [output.shape[1] for output in model.train()(x)] == [3, 3, 3]
    assert make("googlenet", num_classes=6, aux_logits=False).train()(x).shape == (2, 6)
    assert make("googlenet", num_classes=0).train()(x).shape == (2, 1024)
    model.reset_classifier(0)
    assert model.train()(x).shape == (2, 1024)


def test_googlenets_with_fewer_modules_and_pools() -> None:
    shorter = {"inception_4c.conv3x3": Allocation(width=0), "inception_5b.conv3x3": Allocation(width=0)}
    network = Architecture(
        "googlenet_3pools", {**shorter, "inception_4e.conv5x5": Allocation(width=0.5)}, stem_stride=1
    )
    plan = lrnas.make_plan(network, 32, 10)
    modules = list(dict.fromkeys(conv.name.partition(".")[0] for conv in plan.convs if "inception" in conv.name))
    assert modules == ["inception_3a", "inception_3b", "inception_4a", "inception_4b", "inception_5a"]
    rows = {conv.name: layer.output[1] for conv in plan.convs for layer in plan.cost.layers if layer.name == conv.name}
    assert (rows["conv2"], rows["inception_3b.conv3x3"], rows["inception_5a.conv1x1"]) == (32, 16, 4)
    model = create_model(network, 10)
    assert [info["reduction"] for info in model.feature_info] == [1, 2, 4, 8]
    assert model.default_cfg["classifier"] == ("fc", "aux_4a.fc2")
    x = torch.randn(2, 3, 32, 32)
    assert [tuple(output.shape) for output in model.train()(x)] == [(2, 10)] * 2
    counted = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("aux"))
    assert counted == plan.cost.params
    maps = model.eval().forward_intermediates(x, intermediates_only=True)
    assert [tuple(one.shape[1:]) for one in maps] == [(192, 32, 32), (480, 16, 16), (512, 8, 8), (832, 4, 4)]
    with pytest.raises(InvalidArchitecture, match=r"inception_4a.conv3x3 cannot be left out"):
        lrnas.make_plan(Architecture("googlenet", {"inception_4a.conv3x3": Allocation(width=0)}))
    with pytest.raises(InvalidArchitecture, match=r"inception_4b.conv5x5 cannot be left out"):
        lrnas.make_plan(Architecture("googlenet", {"inception_4b.conv5x5": Allocation(width=0)}))


def test_batch_norm_takes_the_place_of_biases() -> None:
    for backbone in ("vgg11", "googlenet", "nin"):
        pool = "max" if backbone == "vgg11" else None
        model = create_model(Architecture(backbone, pool=pool, batch_norm=True), 10)
        kinds = {type(module) for module in model.modules()}
        assert nn.BatchNorm2d in kinds and nn.LocalResponseNorm not in kinds
        plan = lrnas.make_plan(Architecture(backbone, pool=pool, batch_norm=True))
        assert all(model.get_submodule(conv.path).bias is None for conv in plan.convs)


def test_widths_reach_the_next_layers() -> None:
    thin = Allocation.composite(vertical=0.5, horizontal=0.5, width=0.25)
    model = create_model(Architecture("googlenet", {"*": thin, "inception_3a.reduce3x3": Allocation(width=0.5)}), 10)
    assert model.eval()(torch.randn(1, 3, 64, 64)).shape == (1, 10)
    assert model.get_submodule("inception_3a.conv3x3.conv").in_channels == 48
    assert model.get_submodule("inception_3b.conv1x1.conv").in_channels == 64 + 32 + 8 + 32


def test_building_initialises_every_weight() -> None:
    """No weight keeps the content of uninitialised memory."""
    torch.manual_seed(0)
    first = create_model(Architecture("nin", batch_norm=True), 10).state_dict()
    torch.manual_seed(0)
    second = create_model(Architecture("nin", batch_norm=True), 10).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(bool(tensor.float().abs().lt(10).all()) for tensor in first.values())


def test_create_model_places_the_model() -> None:
    model = create_model(Architecture("nin"), 10, dtype=torch.float64)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}
    assert model.architecture == Architecture("nin")
    assert model.default_cfg["input_size"] == (3, 32, 32)
