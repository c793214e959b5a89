"""The closed form: equal to a built model, to PyTorch's counter and to fvcore's; one id per network."""

import warnings
from collections import Counter

import pytest
import torch
from hypothesis import given, settings, strategies as st
from strategies import architectures
from torch.utils.flop_counter import FlopCounterMode

from lrnas.arch.architecture import Allocation, Architecture, FilterGroup
from lrnas.arch.cost import Cost
from lrnas.errors import InvalidArchitecture, LrnasError, UnknownName
from lrnas.models.build import create_model
from lrnas.models.count import OUTSIDE, count_model
from lrnas.models.plan import canonical_id, make_plan
from lrnas.models.summary import summarise
from lrnas.spaces.space import load_space

HALF = Allocation.composite(vertical=0.5, horizontal=0.5)


def facts(cost: Cost) -> Counter[tuple[object, ...]]:
    """The layers without their names, because a built model has paths instead."""
    return Counter((layer.kind, layer.macs, layer.params, layer.biases, layer.output) for layer in cost.layers)


@given(architectures(), st.sampled_from((64, 97, 224)))
@settings(max_examples=40)
def test_closed_form_is_the_built_model_layer_by_layer(architecture: Architecture, size: int) -> None:
    plan = make_plan(architecture, size, 10)
    model = create_model(architecture, 10, device="meta", **without_heads(architecture))
    built = count_model(model, size)
    assert not [layer for layer in built.layers if layer.name == OUTSIDE]
    used = Cost([layer for layer in plan.cost.layers if layer.role != "auxiliary"])
    assert facts(used) == facts(built)
    assert (plan.cost.macs, plan.cost.params) == (built.macs, built.params)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.empty(2, 3, size, size, device="meta"))
    assert counter.get_total_flops() == 2 * 2 * plan.cost.macs
    assert sum(p.numel() for p in model.parameters()) == plan.cost.params


@pytest.mark.parametrize(
    ("architecture", "size"),
    [
        (Architecture("vgg11", {"conv5_1": Allocation("composite", (FilterGroup("7x1", 1),))}, "max"), 32),
        (Architecture("timm:resnet18", {"layer1.0.conv1": Allocation("composite", (FilterGroup("99x1", 1),))}), 32),
        (load_space("nin-deep").points["nin"], 8),
    ],
)
def test_kernels_larger_than_the_map_are_counted_as_they_are_trained(architecture: Architecture, size: int) -> None:
    counted = summarise("network", architecture, size, 10).built.cost
    model = create_model(architecture, 10)
    assert facts(counted) == facts(count_model(model, size))
    assert model.eval()(torch.zeros(1, 3, size, size)).shape == (1, 10)


def without_heads(architecture: Architecture) -> dict[str, bool]:
    return {"aux_logits": False} if architecture.backbone.startswith("googlenet") else {}


@given(architectures())
@settings(max_examples=12)
def test_closed_form_is_what_fvcore_counts(architecture: Architecture) -> None:
    from fvcore.nn import FlopCountAnalysis

    plan = make_plan(architecture, 64, 10)
    model = create_model(architecture, 10, device="meta", **without_heads(architecture)).eval()
    model.to_empty(device="cpu")  # fvcore traces with real tensors; their values do not matter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        analysis = FlopCountAnalysis(model, torch.zeros(1, 3, 64, 64))
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        by_operator = analysis.by_operator()
    # fvcore's "flop" is one multiply-accumulate; its counts for pools and norms are its own matter
    assert by_operator["conv"] + by_operator.get("linear", 0) == plan.cost.macs


def test_auxiliary_heads_are_counted_apart() -> None:
    plan = make_plan(Architecture("googlenet"))
    model = create_model(Architecture("googlenet"), device="meta")
    assert sum(p.numel() for p in model.parameters()) == 13_378_280
    assert plan.cost.params == 6_998_552
    assert sum(layer.params for layer in plan.cost.layers) == 13_378_280
    assert plan.cost.macs == 1_582_671_872
    assert sum(layer.macs for layer in plan.cost.layers) == 1_591_044_096
    with FlopCounterMode(display=False) as counter:
        model.train()(torch.empty(1, 3, 224, 224, device="meta"))
    assert counter.get_total_flops() == 2 * 1_591_044_096


@pytest.mark.parametrize("backbone", ["vgg13", "vgg16", "vgg19", "vgg16_bn"])
@pytest.mark.parametrize("size", [32, 224, 256])
def test_vgg_with_its_own_head(backbone: str, size: int) -> None:
    architecture = Architecture(backbone, {"*": HALF})
    built = count_model(create_model(architecture, device="meta"), size)
    plan = make_plan(architecture, size)
    assert facts(plan.cost) == facts(built)


def test_places_networks() -> None:
    """Table 2 of the paper with its arithmetic put right: stride 2, 205 classes.

    A strided separable layer strides over columns in its 1×3 half and over rows in its 3×1 half. Were
    the first half to stride over both (and the second not at all), conv1 would have 3·3·64·112·112
    fewer, 1,645,416,448 in all.
    """
    expected = {
        "dense": (1_891_078_144, 28_942_925),
        "separable": (1_645_416_448 + 3 * 3 * 64 * 112 * 112, 26_400_909),
        "lr-join": (977_473_536, 24_000_653),
        "lr": (643_502_080, 22_797_773),
    }
    allocations = {
        "dense": Allocation(),
        "separable": Allocation("separable"),
        "lr-join": Allocation.composite(vertical=0.5, horizontal=0.5, join=1),
        "lr": HALF,
    }
    for name, allocation in allocations.items():
        cost = make_plan(Architecture("vgg11", {"*": allocation}, pool="max", stem_stride=2), 224, 205).cost
        assert (cost.macs, cost.params) == expected[name]


def test_networks_as_printed_in_the_paper() -> None:
    """The two networks whose descriptions in the paper's model table differ from the counts in its results table."""
    doubled = Allocation.composite(vertical=0.5, horizontal=0.5, width=2)
    cost = make_plan(Architecture("vgg11", {"*": doubled}, pool="max")).cost
    assert (cost.macs, cost.params) == (9_947_873_280, 37_371_368)
    full = Allocation.composite(vertical=3 / 8, horizontal=3 / 8, square=1 / 4, join=1)
    cost = make_plan(Architecture("vgg11", {"*": full}, pool="max")).cost
    assert (cost.macs, cost.params) == (5_101_584_384, 28_794_056)


def test_one_network_one_id() -> None:
    same = [
        Architecture("vgg11", {"*": HALF}, pool="max"),
        Architecture("vgg11", {"*": HALF}, pool="max", stem_stride=1, batch_norm=False, classifier="mlp:4096"),
        Architecture("timm:vgg11.tv_in1k", {"*": HALF, "features.0": HALF}, pool="max"),
        Architecture(
            "vgg11", {f"conv{i}": HALF for i in ("5_2", "5_1", "1_1", "2_1", "3_1", "3_2", "4_1", "4_2")}, "max"
        ),
        Architecture(
            "vgg11", {"*": Allocation("composite", (FilterGroup("1x3", 0.5), FilterGroup("3x1", 0.5)))}, "max"
        ),
        Architecture("vgg11", {"*": Allocation.composite(vertical=0.5, horizontal=0.4999, square=0.0001)}, "max"),
    ]
    assert len({canonical_id(architecture) for architecture in same}) == 1
    assert canonical_id(Architecture("vgg11_bn")) == canonical_id(Architecture("vgg11", batch_norm=True))
    assert canonical_id(Architecture("timm:resnet18.a1_in1k")) == canonical_id(Architecture("timm:resnet18"))
    assert canonical_id(Architecture("timm:xception")) == canonical_id(Architecture("timm:legacy_xception"))


def test_ids_do_not_change_between_versions() -> None:
    """Studies store these ids. If they change, the version of architectures must change, too."""
    assert canonical_id(Architecture("vgg11")) == "vgg11-7d7a72984580"
    assert canonical_id(Architecture("nin", {"*": HALF}, batch_norm=True)) == "nin-a10e52d29cdb"


def test_other_networks_have_other_ids() -> None:
    networks = [
        Architecture("vgg11"),
        Architecture("vgg11", pool="max"),
        Architecture("vgg11", pool="avg"),
        Architecture("vgg11", pool="max", stem_stride=2),
        Architecture("vgg11", pool="max", batch_norm=True),
        Architecture("vgg11", pool="max", classifier="linear"),
        Architecture("vgg11", {"conv1_1": HALF}, pool="max"),
        Architecture("vgg11", {"conv2_1": HALF}, pool="max"),
        Architecture("vgg11", {"conv1_1": Allocation("separable")}, pool="max"),
        Architecture("vgg13", pool="max"),
        Architecture("nin"),
        Architecture("timm:vgg11_bn"),  # has the biases that vgg11_bn leaves out
        Architecture("timm:resnet18"),
        Architecture("timm:resnet18", {"*": HALF}),
    ]
    assert len({canonical_id(architecture) for architecture in networks}) == len(networks)


@given(architectures())
@settings(max_examples=40)
def test_id_survives_json(architecture: Architecture) -> None:
    assert canonical_id(Architecture.from_json(architecture.to_json())) == canonical_id(architecture)


@pytest.mark.parametrize(
    ("architecture", "size", "message"),
    [
        (Architecture("vgg11", {"conv9_1": HALF}), None, "vgg11 has no layer 'conv9_1'; did you mean"),
        (Architecture("vgg11", {"fc6": HALF}), None, "fc6 is part of the classifier"),
        (Architecture("nin", {"cccp1": HALF}), None, "cccp1 is a 1×1 convolution, in which only the width"),
        (Architecture("nin", {"conv1": HALF, "conv1.conv": HALF}), None, "are the same layer"),
        (
            Architecture("vgg11", classifier="linear"),
            None,
            "pool none must have its classifier mlp:4096; got 'linear'",
        ),
        (Architecture("vgg11", classifier="mlp:64"), None, "must have its classifier mlp:4096; got 'mlp:64'"),
        (Architecture("nin", classifier="mlp"), None, "classifier of nin must be conv; got 'mlp'"),
        (Architecture("googlenet", pool="none"), None, "pool of googlenet must be avg or max; got 'none'"),
        (Architecture("vgg11_bn", batch_norm=False), None, "vgg11_bn has batch norm; got batch_norm false"),
        (Architecture("vgg11"), 16, "a 2×2 pool needs a map of at least this size; got 1×1 at input 16"),
        (Architecture("nin"), 0, "the input size must be a whole number above 0; got 0"),
        (Architecture("googlenet_padded"), 128, "googlenet_padded needs input 224"),
        (Architecture("timm:resnet18", pool="max"), None, "timm:resnet18 keeps its own pool"),
        (Architecture("timm:resnet18", {"layer1.0.conv": HALF}), None, "has no layer 'layer1.0.conv'; did you mean"),
        (Architecture("timm:resnet50", {"layer1.0.conv1": HALF}), None, "cannot be replaced: it is 1×1"),
    ],
)
def test_refusals(architecture: Architecture, size: int | None, message: str) -> None:
    with pytest.raises(InvalidArchitecture) as caught:
        make_plan(architecture, size)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_backbones_get_the_closest_names() -> None:
    with pytest.raises(UnknownName, match="unknown backbone 'vgg12'; did you mean vgg1"):
        make_plan(Architecture("vgg12"))
    with pytest.raises(UnknownName, match="unknown timm model 'resnet81'; did you mean resnet"):
        make_plan(Architecture("timm:resnet81"))


def test_the_prefix_timm_is_refused_for_networks_of_lrnas() -> None:
    with pytest.raises(LrnasError, match="vgg_gmp_lr is one of lrnas; write vgg-gmp-lr"):
        make_plan(Architecture("timm:vgg_gmp_lr"))


def test_timm_backbone_is_built_as_planned() -> None:
    architecture = Architecture("timm:resnet18", {"*": Allocation("separable"), "conv1": HALF})
    built = count_model(create_model(architecture, 10), 64)
    assert facts(make_plan(architecture, 64, 10).cost) == facts(built)


def test_layers_behind_one_that_is_left_out_have_no_paths() -> None:
    left_out = {"conv1_2": Allocation(width=0), "features.12": Allocation(width=0.5)}
    with pytest.raises(
        InvalidArchitecture, match=r"without conv1_2, the layers .* other paths; got features\.12; give"
    ):
        make_plan(Architecture("vgg16", left_out))
