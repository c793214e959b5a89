"""The deployed form of a network: its count is that of the folded module, and it computes the same."""

import copy
import dataclasses
import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings, strategies as st
from strategies import architectures
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lrnas.arch.architecture import Allocation, Architecture, FilterGroup
from lrnas.layers.fold import Folding, fold
from lrnas.models.build import create_model
from lrnas.models.paper import get_point
from lrnas.models.plan import canonical_id, deployed_form, folded_convs, make_plan
from lrnas.spaces.space import SearchSpace, load_space

SPACES = ("nin", "vgg11", "googlenet", "timm:resnet10t")
each_space = pytest.mark.parametrize("name", SPACES)
JOINED = Allocation.composite(vertical=0.5, horizontal=0.5, join=1)


@cache
def space_with(name: str, batch_norm: bool | None) -> SearchSpace:
    return load_space(name, batch_norm=batch_norm)


def draw(name: str, seed: int) -> tuple[Architecture, int]:
    """A random network of a space, with or without batch norm, and the size of its images."""
    chance = random.Random(seed)
    space = space_with(name, None if name.startswith("timm:") else chance.random() < 0.5)
    network = space.architecture(space.draw(chance))
    if name == "vgg11":  # its own classifier has up to 120 million weights, and is not folded
        network = dataclasses.replace(network, pool=chance.choice(("max", "avg")), classifier="linear")
    return network, chance.choice((32, 45))


def check(architecture: Architecture, size: int) -> None:
    torch.manual_seed(0)
    extra = {"aux_logits": False} if architecture.backbone.startswith("googlenet") else {}
    built = create_model(architecture, 10, **extra).eval()
    for part in built.modules():
        if isinstance(part, nn.Conv2d) and part.bias is not None:
            nn.init.normal_(part.bias, std=0.1)  # they are zero before training
    forms = {conv.path: "single" for conv in folded_convs(architecture, size)}
    folded = fold(copy.deepcopy(built), Folding(forms=forms))
    images = torch.randn(1, 3, size, size)
    with torch.no_grad():
        expected = built(images)
        with FlopCounterMode(display=False) as counter:
            found = folded(images)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    deployed = make_plan(architecture, size, 10, deployed=True).cost
    assert counter.get_total_flops() == 2 * deployed.macs
    assert sum(parameter.numel() for parameter in folded.parameters()) == deployed.params
    assert deployed.macs <= make_plan(architecture, size, 10).cost.macs
    form = deployed_form(architecture, size)
    assert make_plan(form, size, 10).cost == deployed
    assert deployed_form(form, size) is form
    assert canonical_id(form, size) == canonical_id(architecture, size)
    with torch.device("meta"):
        shell = create_model(form, 10, **extra)
    shell.load_state_dict(folded.state_dict(), assign=True)  # the form that a search trains is the folded model


@each_space
def test_count_and_outputs_are_those_of_the_folded_module(name: str) -> None:
    changed = 0
    for seed in range(10):
        check(*(drawn := draw(name, seed)))
        changed += deployed_form(*drawn) is not drawn[0]
    assert changed > 3


@pytest.mark.slow
@each_space
def test_count_and_outputs_of_500_networks(name: str) -> None:
    for seed in range(500):
        check(*draw(name, seed))


@given(architectures(("nin", "nin_3x3")), st.sampled_from((32, 45)))
@settings(max_examples=20)
def test_any_shapes(architecture: Architecture, size: int) -> None:
    check(architecture, size)


def mix(architecture: Architecture, layer: str = "conv1", **sizes: int) -> str:
    plan = make_plan(deployed_form(architecture, **sizes))
    return next(str(conv.mix) for conv in plan.convs if conv.name == layer)


def test_a_join_over_three_channels_is_plain_filters() -> None:
    """3×3,144 then 1×1,96: 96 plain 3×3 filters, at 15 % of the cost."""
    network = Architecture("nin_3x3", {"conv1": Allocation(width=0.75, join=0.5)})
    built, deployed = (make_plan(network, 32, deployed=flag) for flag in (False, True))
    assert (str(built.convs[0].mix), str(deployed.convs[0].mix)) == ("3x3,144 > 1x1,96", "3x3,96")
    assert [plan.cost.layers[0].macs // 32**2 for plan in (built, deployed)] == [17_712, 2_592]


def test_a_join_stays_where_it_saves() -> None:
    """Over 96 channels, half 3×1 and half 1×3 filters with a join cost less than 3×3 filters."""
    network = Architecture("nin_3x3", {"conv2_1": JOINED})
    assert deployed_form(network) is network
    assert mix(network, "conv2_1") == "3x1,96 || 1x3,96 > 1x1,192"


@pytest.mark.parametrize(
    ("shares", "folded"),
    [
        ({"1xk": 1}, "1x5,96"),
        ({"kx1": 1}, "5x1,96"),
        ({"kx1": 0.5, "1xk": 0.5}, "5x5,96"),
        ({"3x1": 0.5, "1x3": 0.5}, "3x3,96"),
        ({"1x1": 1}, "1x1,96"),
        ({"7x1": 0.5, "2x2": 0.5}, "7x2,96"),
    ],
)
@pytest.mark.parametrize("layer", ["conv1", "conv1.conv", "*"])
def test_the_kernel_is_the_smallest_that_contains_all_shapes(shares: dict[str, float], folded: str, layer: str) -> None:
    groups = tuple(FilterGroup(shape, share) for shape, share in shares.items())
    network = Architecture("nin", {layer: Allocation("composite", groups, 1.5, 0.5)}, divisor=8)
    assert mix(network) == folded
    check(network, 32)


def test_one_deployed_form_is_one_id() -> None:
    joined = [Architecture("nin", {"conv1": Allocation(width=width, join=0.5)}) for width in (0.5, 1, 1.5)]
    plain = Architecture("nin", {"conv1": Allocation(width=0.5)})
    assert {canonical_id(network) for network in joined} == {canonical_id(plain)}
    assert len({make_plan(network).canonical_id for network in (*joined, plain)}) == 4
    assert canonical_id(Architecture("nin", {"conv1": Allocation(join=1)})) == canonical_id(Architecture("nin"))


def test_separable_layers_fold_without_biases_alone() -> None:
    network = Architecture("vgg11", {"conv1_1": Allocation("separable")}, pool="max")
    assert mix(network, "conv1_1") == "1x3,64 > 3x1,64"
    assert mix(dataclasses.replace(network, batch_norm=True), "conv1_1") == "3x3,64"


def test_the_form_of_a_strided_separable_layer_depends_on_the_size_of_the_map() -> None:
    """The 1×3 filters stride over columns alone: their rows are those of the input, of which there may be 2 n - 1."""
    separable = Allocation("separable", width=0.75, middle=0.125)
    network = Architecture("vgg11", {"conv1_1": separable}, pool="max", stem_stride=2, batch_norm=True)
    assert mix(network, "conv1_1", input_size=32) == "3x3,48"
    assert mix(network, "conv1_1", input_size=33) == "1x3,8 > 3x1,48"
    assert canonical_id(network, 32) != canonical_id(network, 33)


def test_the_form_depends_on_the_channels_of_the_image() -> None:
    network = Architecture("nin", {"conv1": JOINED})
    assert (mix(network), mix(network, in_chans=1)) == ("5x5,192", "5x5,192")
    assert mix(network, in_chans=200) == "5x1,96 || 1x5,96 > 1x1,192"
    assert canonical_id(network) == canonical_id(Architecture("nin")) != canonical_id(network, in_chans=200)


def test_networks_of_the_paper_keep_their_published_counts() -> None:
    point = get_point("vgg-gmp-lr-join")
    assert point.count().multiply_acc == point.published.multiply_acc
    built, deployed = (make_plan(point.architecture, 224, 1000, deployed=flag).cost.macs for flag in (False, True))
    assert deployed == built - 224**2 * (3 * 3 * 64 + 64 * 64 - 3 * 9 * 64)
