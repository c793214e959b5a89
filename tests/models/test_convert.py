"""Conversion of timm models and other models."""

import pytest
import timm
import torch
from timm.layers import Conv2dSame
from torch import nn
from torch.nn.utils import prune

from lrnas import Allocation, Architecture, convert, count_model, make_plan
from lrnas.errors import ConversionError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
from lrnas.layers.fold import reason_to_keep
from lrnas.models.convert import find_convs, halves_fold, replace_conv

FAMILIES = [
    "resnet18",
    "resnetv2_50",
    "densenet121",
    "regnetx_002",
    "regnety_002",
    "vgg11_bn",
    "repvgg_a0",
    "darknet53",
    "cspresnet50",
    "hrnet_w18_small",
    "dla34",
    "efficientnet_b0",
    "tf_efficientnetv2_b0",
    "mobilenetv3_small_100",
    "mobilenetv4_conv_small",
    "convnext_atto",
    "inception_v3",
    "inception_v4",
    "legacy_xception",
    "xception41",
    "res2net50_26w_4s",
    "resnest14d",
    "ghostnet_100",
    "mobileone_s0",
    "selecsls42",
    "vovnet39a",
    "dpn68",
    "hardcorenas_a",
    "mixnet_s",
    "rexnet_100",
    "tresnet_m",
    "skresnet18",
    "gernet_s",
    "hgnet_tiny",
    "cs3darknet_s",
    "nfnet_l0",
    "resnetv2_50x1_bit",
]
NOTHING_TO_REPLACE = {
    "nfnet_l0": "ScaledStdConv2d does more than convolve",
    "resnetv2_50x1_bit": "StdConv2d does more than convolve",
}
HALF = Allocation.composite(vertical=0.5, horizontal=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ci] * (i % 24 == 0)) for i, name in enumerate(FAMILIES)]
)
def test_families_of_timm(name: str) -> None:
    model = timm.create_model(name, num_classes=10).eval()
    size = 160 if name.startswith("inception") else 96
    x = torch.randn(1, 3, size, size)
    with torch.no_grad():
        shape = model(x).shape
    before = count_model(model, size)
    convs, _ = find_convs(model)
    report = convert(model, dict.fromkeys(["*", *convs], HALF))  # every path: those that cut patches, too
    with torch.no_grad():
        assert report.model(x).shape == shape
    after = count_model(model, size)
    planned = make_plan(Architecture(f"timm:{name}", {"*": HALF}), size, 10).cost
    assert (planned.macs, planned.params) == (after.macs, after.params)
    convs = [path for path, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    inside = tuple(f"{path}." for path in report.replaced)
    assert all(path in report.left or path.startswith(inside) for path in convs)
    if name in NOTHING_TO_REPLACE:
        assert not report.replaced and after.macs == before.macs
        assert NOTHING_TO_REPLACE[name] in report.left.values()
    else:
        assert report.replaced and after.macs < before.macs


class Zoo(nn.Module):
    """A model with one convolution of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Conv2d(3, 8, 3, stride=2, padding=2, dilation=2, bias=False)
        self.pointwise = nn.Conv2d(8, 8, 1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.flat = nn.Conv2d(8, 8, (1, 7), padding=(0, 3))
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.reflected = nn.Conv2d(8, 8, 5, padding=2, padding_mode="reflect")
        self.normed = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1))
        self.again = self.reflected

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.children():
            x = module(x)
        return self.again(x)


def test_what_cannot_be_replaced_is_left_and_listed_with_the_reason() -> None:
    model = Zoo()
    report = convert(model)
    assert set(report.replaced) == {"dense", "reflected"}
    assert report.left == {
        "pointwise": "it is 1×1",
        "depthwise": "it is depthwise",
        "grouped": "it is grouped (groups=2)",
        "flat": "its 1×7 kernel is not square",
        "up": "it is transposed",
        "normed": "its weight is parametrised",
    }
    text = str(report)
    assert text.startswith("2 convolutions replaced, which begin with random weights, 6 left as they were")
    assert "  dense: 3x1,4 || 1x3,4" in text and "  up: left, it is transposed" in text


def test_replacement_keeps_geometry_place_and_type() -> None:
    model = Zoo().double().to(memory_format=torch.channels_last).eval()
    x = torch.randn(1, 3, 17, 17, dtype=torch.float64)
    shape = model(x).shape
    convert(model)
    new = model.dense
    assert isinstance(new, CompositeConv2d)
    assert (new.stride, new.padding, new.dilation) == ((2, 2), (2, 2), (2, 2))
    assert [name for name, _ in new.named_parameters()] == ["conv3x1.weight", "conv1x3.weight"]
    assert {p.dtype for p in new.parameters()} == {torch.float64}
    assert not new.training
    assert new.get_submodule("conv3x1").weight.is_contiguous(memory_format=torch.channels_last)
    assert model.reflected.padding_mode == "reflect"
    assert model.again is model.reflected  # a shared layer stays shared
    assert model(x).shape == shape


def test_convolutions_with_shared_weights_or_hooks_are_not_replaced() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    model[1].weight = model[0].weight
    nn.utils.spectral_norm(model[2])
    prune.l1_unstructured(model[3], "weight", 0.5)
    report = convert(model)
    assert not report.replaced
    assert report.left["0"] == report.left["1"] == "it shares its weight with another layer"
    assert report.left["2"] == report.left["3"] == "hooks are attached to it (a norm of its weight, a pruning mask)"


def test_device_is_kept() -> None:
    with torch.device("meta"):
        model = Zoo()
    convert(model)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_allocations_by_path() -> None:
    model = timm.create_model("resnet18", num_classes=10)
    weight = model.layer2[0].conv1.weight.clone()
    report = convert(model, {"conv1": Allocation("separable"), "layer1.0.conv1": HALF, "*": Allocation()})
    assert set(report.replaced) == {"conv1", "layer1.0.conv1"}
    assert isinstance(model.conv1, SeparableConv2d)
    assert torch.equal(model.layer2[0].conv1.weight, weight)  # what is not named keeps its weights
    assert report.left["layer2.0.conv1"] == "its allocation is the same as before"
    again = convert(model)
    assert again.left["conv1"] == "it has mixed-shape filters already"
    assert not any(path.startswith("conv1.") for path in [*again.left, *again.replaced])


def test_only_what_is_named_is_replaced() -> None:
    report = convert(timm.create_model("resnet18"), {"conv1": HALF})
    assert set(report.replaced) == {"conv1"}
    assert report.left["layer1.0.conv1"] == "no allocation is given for it"


def test_patterns_of_paths() -> None:
    wide = Allocation.composite(vertical=0.25, horizontal=0.75)
    given = {"*": Allocation(), "layer4.*.conv1": wide, "layer4.*": HALF, "layer4.1.conv1": Allocation("separable")}
    report = convert(timm.create_model("resnet18"), given)
    assert {path: str(mix) for path, mix in report.replaced.items()} == {
        "layer4.0.conv1": "3x1,128 || 1x3,384",
        "layer4.0.conv2": "3x1,256 || 1x3,256",
        "layer4.1.conv1": "1x3,512 > 3x1,512",
        "layer4.1.conv2": "3x1,256 || 1x3,256",
    }


def test_a_convolution_by_itself() -> None:
    report = convert(nn.Conv2d(4, 8, 3, padding=1))
    assert isinstance(report.model, CompositeConv2d)
    assert report.model(torch.randn(1, 4, 5, 5)).shape == (1, 8, 5, 5)


def test_new_weights_follow_the_rule() -> None:
    conv = convert(nn.Conv2d(64, 128, 3, padding=1)).model
    assert isinstance(conv, CompositeConv2d)
    for group in conv.group_convs():
        assert float(group.weight.detach().var()) == pytest.approx(2 / (3 * 64 + 3 * 64), rel=0.1)


@pytest.mark.parametrize(
    ("allocation", "message"),
    [
        (
            Allocation(width=2),
            "dense must keep its 8 output channels, because the next layers need them; got 16",
        ),
        ({"dnese": HALF}, "no k×k convolution 'dnese'; did you mean dense?"),
        ({"dense.*": HALF}, "no k×k convolution 'dense.*'; did you mean dense?"),
        ({"up": HALF}, "up cannot be replaced: it is transposed"),
    ],
)
def test_refusals(allocation: object, message: str) -> None:
    with pytest.raises(ConversionError) as caught:
        convert(Zoo(), allocation)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_paths_that_no_convolution_has_are_refused_with_some_that_exist() -> None:
    told = "no k×k convolution 'layer9.*'; it has conv1, layer1.0.conv1, layer1.0.conv2 and 14 others"
    with pytest.raises(ConversionError, match=told.replace("*", r"\*")):
        convert(timm.create_model("resnet18"), {"layer9.*": HALF})


def test_a_refused_conversion_changes_nothing() -> None:
    model = Zoo()
    with pytest.raises(ConversionError):
        convert(model, {"dense": HALF, "reflected": Allocation(width=2)})
    assert isinstance(model.dense, nn.Conv2d)


def test_a_wide_composite_with_a_join_is_fine() -> None:
    wide = Allocation.composite(vertical=0.5, horizontal=0.5, width=1.5, join=1)
    report = convert(nn.Conv2d(4, 8, 3, padding=1), wide)
    assert str(report.replaced[""]) == "3x1,6 || 1x3,6 > 1x1,8"


def test_numbers_of_filters_are_the_same_as_in_an_architecture() -> None:
    mixed = Allocation.composite(vertical=3 / 16, horizontal=3 / 16, square=5 / 8)
    wanted = make_plan(Architecture("timm:resnet18", {"*": mixed}, divisor=8))
    found = convert(timm.create_model("resnet18"), mixed, divisor=8).replaced
    assert {conv.path: conv.mix for conv in wanted.convs} == found
    assert found != convert(timm.create_model("resnet18"), mixed).replaced


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("kind", "padding"),
    [
        (nn.Conv2d, {"padding": 1}),
        (nn.Conv2d, {"padding": 0}),
        (nn.Conv2d, {"padding": (0, 1)}),
        (nn.Conv2d, {"padding": "same"}),
        (nn.Conv2d, {"padding": "valid"}),
        (nn.Conv2d, {"padding": 1, "padding_mode": "reflect"}),
        (Conv2dSame, {}),
    ],
)
def test_the_plan_of_a_separable_layer_folds_where_the_module_does(
    kind: type[nn.Conv2d], padding: dict[str, object], bias: bool
) -> None:
    conv = kind(4, 6, 3, bias=bias, **padding)  # type: ignore[arg-type]
    layer = replace_conv(conv, "", Allocation("separable").at(3, 6))
    for values in layer.parameters():
        nn.init.ones_(values)
    assert halves_fold(conv) == (reason_to_keep(layer) == "")


def test_patches_are_cut_as_before_unless_their_path_is_given() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.Conv2d(8, 8, 3, padding=1))

    report = convert(model())
    assert list(report.replaced) == ["1"]
    assert report.left == {"0": "it cuts its input into patches (give its path to replace it)"}
    assert list(convert(model(), {"0": HALF, "*": HALF}).replaced) == ["0", "1"]
