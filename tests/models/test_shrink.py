"""Filters and blocks that are removed from timm's models."""

import random
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from lrnas import Allocation, Architecture, canonical_id, count_model, create_model, load_space, make_plan
from lrnas.errors import ConversionError
from lrnas.models.plan import trace_of
from lrnas.models.shrink import Inner, find_blocks, find_inner

HALF = Allocation.composite(vertical=0.5, horizontal=0.5)


@pytest.mark.parametrize(
    ("name", "inner", "blocks"),
    [
        ("resnet18", 8, ["layer1.1", "layer2.1", "layer3.1", "layer4.1"]),
        ("resnet50", 17, [f"layer{i}.{j}" for i, number in enumerate((3, 4, 6, 3), 1) for j in range(1, number)]),
        ("repvgg_a0", 0, [f"stages.{i}.{j}" for i, number in enumerate((2, 4, 14)) for j in range(1, number)]),
        ("tf_efficientnetv2_b0", 6, ["blocks.1.1", "blocks.2.1"]),  # most of its k×k filters are depthwise
        ("cspresnet50", 17, None),
        ("hrnet_w18_small", 30, None),
        ("densenet121", 0, []),  # every layer's output is concatenated
        ("dla34", 15, None),
        ("resnetv2_50", 17, None),  # norms before convolutions
        ("vgg13_bn", 11, None),  # a convolution after the last pool
    ],
)
def test_counts_are_those_of_the_built_model(name: str, inner: int, blocks: list[str] | None) -> None:
    trace = trace_of(Architecture(f"timm:{name}"), 64, 10)
    assert len(trace.inner) == inner
    assert blocks is None or list(trace.blocks) == blocks
    space, chance = load_space(f"timm:{name}"), random.Random(0)
    for _ in range(3):
        network = space.architecture(space.draw(chance))
        plan = make_plan(network, 64, 10)
        with torch.device("meta"):
            model = create_model(network, 10)
        assert sorted(plan.cost.layers) == sorted(count_model(model, 64).layers)
        assert {conv.path: conv.in_channels for conv in plan.convs} == {
            conv.path: model.get_submodule(conv.path).in_channels for conv in plan.convs
        }


def test_a_smaller_resnet_trains() -> None:
    layers = {
        "layer1.0.conv1": Allocation(width=0.5),
        "layer2.0.conv1": Allocation.composite(vertical=0.5, horizontal=0.5, width=0.25),
        "layer3.1.conv1": Allocation(width=0),
    }
    network = Architecture("timm:resnet18", layers, stem_stride=1)
    model = create_model(network, 10, zero_init_last=False)  # else the first layers of blocks have no gradient at first
    assert isinstance(model.layer3[1], nn.Identity)
    assert (model.layer1[0].bn1.num_features, model.layer2[0].conv2.in_channels, model.conv1.stride) == (32, 32, (1, 1))
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 3, 32, 32)).square().mean().backward()
    optimizer.step()
    assert not any(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    levels = timm.create_model("lrnas", architecture=network.to_dict(), features_only=True)
    maps = levels(torch.zeros(1, 3, 32, 32))
    assert [x.shape[2:] for x in maps] == [(32 // scale,) * 2 for scale in levels.feature_info.reduction()]
    weight = model.layer1[0].conv1.weight  # the paper's rule for 32 filters instead of 64
    assert weight.std().item() == pytest.approx((2 / (9 * 32)) ** 0.5, rel=0.05)


@pytest.mark.parametrize("name", ["resnet50", "cspresnet50", "tf_efficientnetv2_b0", "vgg13_bn", "resnetv2_50"])
def test_the_maps_of_smaller_models(name: str) -> None:
    """Some of their inner layers compute a map that `feature_info` describes."""
    layers = dict.fromkeys(trace_of(Architecture(f"timm:{name}"), 64, 10).inner, Allocation(width=0.5))
    network = Architecture(f"timm:{name}", layers, stem_stride=1)
    x = torch.empty(1, 3, 64, 64, device="meta")
    with torch.device("meta"):
        model = create_model(network, 10).eval()
        levels = timm.create_model("lrnas", architecture=network.to_dict(), features_only=True).eval()
        before = timm.create_model(name, features_only=True).feature_info
    assert model.forward_features(x).shape[1] == model.num_features
    info = levels.feature_info
    found = [(maps.shape[1], 64 // maps.shape[2]) for maps in levels(x)]
    assert found == list(zip(info.channels(), info.reduction(), strict=True))
    assert info.channels() != before.channels() and len(info.channels()) == len(before.channels())


def test_an_argument_that_replaces_batch_norms_is_refused() -> None:
    network = Architecture("timm:resnet50", {"layer2.0.conv2": Allocation(width=0.5)})
    with pytest.raises(ConversionError, match=r"layer2.0.conv2 can have fewer filters only with batch norm, but"):
        create_model(network, 10, norm_layer="groupnorm")


def test_filters_that_do_nothing_are_removed_first(tmp_path: Any) -> None:
    """Half of the filters have no effect, in two layers: without them, a pretrained model computes the same."""
    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=10).eval()
    with torch.no_grad():
        for block in (model.layer1[0], model.layer3[1]):
            block.bn1.weight.uniform_(0.5, 1)
            block.bn1.bias.uniform_()
            block.bn1.running_mean.uniform_()
            unused = torch.randperm(block.conv1.out_channels)[: block.conv1.out_channels // 2]
            block.conv2.weight[:, unused] = 0
        for parameter in model.layer4[1].bn2.parameters():  # the whole block adds nothing
            parameter.zero_()
    file = tmp_path / "weights.pth"
    torch.save(model.state_dict(), file)
    half, out = Allocation(width=0.5), Allocation(width=0)
    network = Architecture("timm:resnet18", {"layer1.0.conv1": half, "layer3.1.conv1": half, "layer4.1.conv1": out})
    overlay = {"file": str(file), "num_classes": 10}
    small = create_model(network, 10, init="pretrained", pretrained=True, pretrained_cfg_overlay=overlay).eval()
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(small(images), model(images))
    assert make_plan(network, num_classes=10).cost.params == sum(parameter.numel() for parameter in small.parameters())


def test_descriptions_of_the_same_smaller_network() -> None:
    """A block is left out with its first k×k layer; what is said of its other layers has no effect."""
    out = Architecture("timm:resnet18", {"layer2.1.conv1": Allocation(width=0)})
    both = Architecture("timm:resnet18", {"layer2.1.conv1": Allocation(width=0), "layer2.1.conv2": HALF})
    assert canonical_id(out) == canonical_id(both) != canonical_id(Architecture("timm:resnet18"))
    own = Architecture("timm:resnet18", stem_stride=2)
    assert canonical_id(own) == canonical_id(Architecture("timm:resnet18"))


@pytest.mark.parametrize(
    ("name", "layer", "allocation", "message"),
    [
        ("resnet18", "layer1.0.conv2", Allocation(width=0.5), "layer1.0.conv2 must keep its 64 output channels"),
        ("resnet18", "layer1.0.conv1", Allocation(width=2), "layer1.0.conv1 can have at most its 64 output channels"),
        ("resnet18", "layer1.0.conv1", Allocation(width=0), "layer1.0.conv1 cannot be left out"),
        ("densenet121", "features.conv0", Allocation(width=0.5), "must keep its 64 output channels"),
    ],
)
def test_what_cannot_be_removed(name: str, layer: str, allocation: Allocation, message: str) -> None:
    with pytest.raises(ConversionError, match=message):
        make_plan(Architecture(f"timm:{name}", {layer: allocation}))


def test_a_stride_needs_an_ordinary_first_layer() -> None:
    with pytest.raises(
        ConversionError, match="the first layer of this model is not one ordinary convolution; got stem_stride 1"
    ):
        make_plan(Architecture("timm:resnetv2_50x1_bit", stem_stride=1))


class Chain(nn.Module):
    """Two convolutions with a norm between them; subclasses also read the map between them in other ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.act, self.pool = nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.pool(self.act(self.norm(self.first(x)))))


class Added(Chain):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        return self.second(x) + x


class Gated(Chain):
    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.second(x * x.mean((2, 3), keepdim=True).sigmoid())


class Twice(Chain):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.second(self.first(x)))


class Shown(Chain):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x = self.act(self.first(x))
        return self.second(x), x


class Grouped(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Conv2d(8, 8, 3, groups=2)


class Padded(Chain):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.pad(self.first(x), (0, 0, 0, 0, 0, 0)))


class GroupNormed(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Chain, Added, Gated, Twice, Shown, Grouped, Padded, GroupNormed])
def test_layers_whose_output_something_else_reads_are_not_inner(kind: type[Chain]) -> None:
    with torch.device("meta"):
        model = kind().eval()
    expected = {"first": Inner(("norm",), ("second",))} if kind is Chain else {}
    assert find_inner(model, ["first", "second"], (3, 16, 16)) == expected


def test_blocks_keep_the_shape_and_are_called_once() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(4)]
            blocks[3][0] = nn.Conv2d(8, 8, 3, stride=2, padding=1)
            self.stem, self.blocks = nn.Conv2d(3, 8, 1), nn.ModuleList(blocks)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for block in (*self.blocks, self.blocks[2]):
                x = block(x)
            return x

    with torch.device("meta"):
        model = Model().eval()
    convs = [f"blocks.{i}.0" for i in range(4)]
    assert find_blocks(model, convs, (3, 16, 16)) == {"blocks.1": ("blocks.1.0",)}
