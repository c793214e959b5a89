"""Search spaces: named points are inside, every combination is a network, and errors name file and line."""

import dataclasses
import json
import math
import pickle
import re
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

import lrnas
from lrnas.arch.architecture import Allocation, Architecture, FilterGroup
from lrnas.errors import InvalidSpace, LrnasError, OutsideSpace, UnknownName
from lrnas.models.build import create_model
from lrnas.models.paper import paper_points
from lrnas.models.plan import canonical_id, make_plan
from lrnas.spaces import parameters, toml_file
from lrnas.spaces.space import Parameter, SearchSpace, load_space, named_spaces

PAPER_SPACES = ("googlenet", "nin", "vgg11")
SPACES = ("googlenet", "googlenet-deep", "googlenet-small", "nin", "nin-deep", "vgg-deep", "vgg11")
WITH_DEPTHS = ("googlenet-deep", "vgg-deep")
HALF = Allocation.composite(vertical=0.5, horizontal=0.5)
DOCS = Path(lrnas.__file__).parent.parent / "docs" / "spaces.md"
OWN = """\
[space]
backbone = "nin"

[[space.vary]]
layers = ["conv1", "conv2"]
square = { from = 0, to = 1, step = "1/8" }
width = ["1/2", 1, 2]

[points.mine]
backbone = "nin"
layers.conv1 = { form = "composite", shares = { kx1 = "1/2", 1xk = "1/2" } }
"""


def load(tmp_path: Path, text: str, **options: Any) -> SearchSpace:
    file = tmp_path / "own.toml"
    file.write_text(text, encoding="utf-8")
    return load_space(str(file), **options)


@st.composite
def points(draw: st.DrawFn, spaces: tuple[str, ...] = SPACES) -> tuple[SearchSpace, dict[str, Any]]:
    """A space at some granularity, and a value of each of its parameters."""
    name = draw(st.sampled_from(spaces))
    space = load_space(
        name,
        granularity=draw(st.sampled_from((None, "stage", *(() if name in WITH_DEPTHS else ("network", "layer"))))),
        batch_norm=draw(st.sampled_from((None, True))) if spaces == SPACES else None,
    )
    return space, {parameter.name: draw(st.sampled_from(parameter.values)) for parameter in space.parameters}


def test_the_spaces_of_lrnas() -> None:
    assert named_spaces() == list(SPACES)
    sizes = {name: (load_space(name).dimension, load_space(name).granularity) for name in SPACES}
    assert sizes == {
        "googlenet": (33, "stage"),
        "googlenet-deep": (31, "stage"),
        "googlenet-small": (27, "stage"),
        "nin": (22, "layer"),
        "nin-deep": (43, "layer"),
        "vgg-deep": (27, "stage"),
        "vgg11": (28, "stage"),
    }
    assert load_space("nin").size == 2 * (9 * 3 * 3 * 11) ** 4 * 11**5


@pytest.mark.parametrize("batch_norm", [None, False, True])
def test_all_fourteen_points_are_exactly_inside(batch_norm: bool | None) -> None:
    seen = []
    for name in PAPER_SPACES:
        space = load_space(name, batch_norm=batch_norm)
        assert space.left_out == () and space.baseline in space.points
        for point, architecture in space.points.items():
            expected = dataclasses.replace(paper_points()[point].architecture, batch_norm=batch_norm)
            assert architecture == expected
            params = space.params_of(architecture)
            assert list(params) == [parameter.name for parameter in space.parameters]
            assert canonical_id(space.architecture(params)) == canonical_id(expected)
            seen.append(point)
    assert sorted(seen) == sorted(paper_points())


def test_params_of_a_point() -> None:
    space = load_space("vgg11")
    params = space.params_of(space.points["vgg-gmp-lr-join-wfull"])
    assert [params[name] for name in ("pool", "stem_stride", "classifier")] == ["max", 1, "mlp"]
    assert [params[f"conv1.{axis}"] for axis in ("form", "square", "vertical", "join", "width")] == [
        "mixed",
        0.25,
        0.5,
        "1",
        1.0,
    ]
    assert (params["conv5.join"], params["conv5.width"]) == ("2", 2.0)


@settings(deadline=None, max_examples=60)
@given(points())
def test_every_point_is_a_network_and_can_be_recovered_from_it(point: tuple[SearchSpace, dict[str, Any]]) -> None:
    space, params = point
    architecture = space.architecture(params)
    plan = make_plan(architecture)
    assert plan.choices is not None and plan.choices.batch_norm == bool(space.batch_norm)
    back = space.params_of(architecture)
    assert canonical_id(space.architecture(back)) == canonical_id(architecture)
    assert space.params_of(space.architecture(back)) == back  # of points with the same network, always the same one


@settings(deadline=None, max_examples=20)
@given(points(spaces=("timm:resnet18",)))
def test_every_point_of_a_timm_space_can_be_recovered(point: tuple[SearchSpace, dict[str, Any]]) -> None:
    space, params = point
    architecture = space.architecture(params)
    assert make_plan(architecture).cost.macs > 0
    assert canonical_id(space.architecture(space.params_of(architecture))) == canonical_id(architecture)


def test_values_match_up_to_rounding_errors_and_others_are_refused() -> None:
    space = load_space("nin")
    params = space.params_of(space.points["nin"])
    near = {**params, "conv1.square": 0.375 + 1e-12}
    assert space.architecture(near) == space.architecture({**params, "conv1.square": 0.375})
    for change, message in (
        ({"conv1.square": 0.3}, "conv1.square: 3/10; allowed: 0 to 1 in steps of 1/8"),
        ({"conv1.square": math.nan}, "conv1.square: nan; allowed"),
        ({"conv1.square": True}, "conv1.square: True; allowed"),
        ({"conv1.join": "3"}, "conv1.join: 3; allowed: none, 1/2 or 1"),
        ({"backbone": "vgg11"}, "backbone: vgg11; allowed: nin or nin_3x3"),
        ({"conv1.squar": 1}, "nin has no parameter 'conv1.squar'; did you mean conv1.square"),
    ):
        with pytest.raises(OutsideSpace, match=re.escape(message)):
            space.architecture({**params, **change})
    del params["cccp1.width"]
    with pytest.raises(OutsideSpace, match=r"cccp1.width: no value; allowed: 1/4 to 3/2"):
        space.architecture(params)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        (Architecture("vgg16"), "backbone vgg16; allowed: vgg11"),
        (Architecture("vgg11", batch_norm=True), "batch_norm True; allowed: False"),
        (Architecture("vgg11", stem_stride=4), "stem_stride 4; allowed: 1 or 2"),
        (Architecture("vgg11", pool="max", classifier="mlp:256"), "hidden 256; allowed: 4096 or 512 or None"),
        (
            Architecture("vgg11", {"conv1_1": Allocation(width=3)}),
            "conv1_1: width 3; allowed: 1/4 to 2 in steps of 1/4",
        ),
        (Architecture("vgg11", {"conv1_1": Allocation(join=3)}), "conv1_1: join 3; allowed: none, 1/2, 1 or 2"),
        (
            Architecture("vgg11", {"conv1_1": Allocation("separable", middle=0.5)}),
            "conv1_1: 1x3,32 > 3x1,64; allowed: filters of 3×3, 3×1 and 1×3, or 1×3 and then as many 3×1",
        ),
        (
            Architecture("vgg11", {"conv2_1": Allocation.composite(vertical=0.3, horizontal=0.3, square=0.4)}),
            "conv2_1: square 0.3984; allowed: 0 to 1 in steps of 1/8",
        ),
        (
            Architecture("vgg11", {"conv2_1": Allocation.composite(vertical=1.0)}),
            "conv2_1: vertical 1; allowed: 1/4, 1/2 or 3/4",
        ),
        (
            Architecture("vgg11", {"conv3_1": HALF}),
            "conv3_1 and conv3_2 share their parameters in this space; got 3x1,128 || 1x3,128 and 3x3,256",
        ),
    ],
)
def test_errors_name_the_layer_and_the_value_outside_the_space(architecture: Architecture, message: str) -> None:
    with pytest.raises(OutsideSpace, match=re.escape(message)):
        load_space("vgg11").params_of(architecture)


def test_networks_with_other_fixed_layers_are_outside(tmp_path: Path) -> None:
    space = load(tmp_path, OWN)
    with pytest.raises(OutsideSpace, match=r"cccp1: 1x1,80; allowed: 1x1,160, because this layer does not vary"):
        space.params_of(Architecture("nin", {"cccp1": Allocation(width=0.5)}))
    with pytest.raises(OutsideSpace, match="conv1: form separable; allowed: mixed"):
        space.params_of(Architecture("nin", {"conv1": Allocation("separable")}))


def test_parameters_without_effect_are_ignored() -> None:
    space = load_space("nin")
    params = space.params_of(space.points["nin"])
    assert space.architecture({**params, "conv2_2.square": 0.0}) == space.architecture(params)
    space = load_space("vgg11")
    params = space.params_of(space.points["vgg-gmp-sf"])
    assert space.architecture({**params, "conv1.join": "2", "conv1.square": 0.5}) == space.architecture(params)
    own = {**space.params_of(space.points["vgg-11"]), "classifier": "linear"}
    assert canonical_id(space.architecture(own)) == canonical_id(space.points["vgg-11"])


def test_layers_of_two_backbones_share_their_parameters() -> None:
    space = load_space("nin")
    params = {**space.params_of(space.points["nin"]), "conv2.square": 0.0}
    assert dict(space.architecture(params).layers) == {"conv2": HALF}
    assert dict(space.architecture({**params, "backbone": "nin_3x3"}).layers) == {"conv2_1": HALF}


@pytest.mark.parametrize(
    ("name", "granularity", "dimension", "left_out"),
    [
        ("vgg11", "network", 8, ("vgg-gmp-lr-join-wfull", "vgg-gmp-lr-2x")),
        ("vgg11", "layer", 43, ()),
        ("googlenet", "network", 8, ("googlenet-lr",)),
        ("googlenet", "layer", 99, ()),
        ("nin", "network", 6, ("nin-c3",)),
        ("nin", "stage", 16, ("nin-c3",)),
    ],
)
def test_granularities(name: str, granularity: str, dimension: int, left_out: tuple[str, ...]) -> None:
    space = load_space(name, granularity=granularity)
    assert (space.dimension, space.granularity, space.left_out) == (dimension, granularity, left_out)
    assert not set(left_out) & set(space.points) and space.baseline in space.points


def test_uniform_networks() -> None:
    space = load_space("vgg11", batch_norm=True)
    assert list(space.uniform) == ["dense-x0.5", "dense-x0.25", "lr-x0.5", "lr-x0.25"]
    half = Architecture("vgg11", {"*": Allocation(width=0.5)}, pool="max", batch_norm=True)
    assert canonical_id(space.uniform["dense-x0.5"]) == canonical_id(half)
    space = load_space("nin")
    assert "nin_3x3-lr-x0.25" in space.uniform and "lr-x1" in space.uniform
    assert "nin_3x3-lr-x1" not in space.uniform  # it is nin-c3-lr
    for name in SPACES:
        space = load_space(name)
        networks = [*space.points.values(), *space.uniform.values()]
        assert len({canonical_id(network) for network in networks}) == len(networks)
        for network in space.uniform.values():
            assert canonical_id(space.architecture(space.params_of(network))) == canonical_id(network)


def test_the_smallest_networks_of_a_space() -> None:
    space = load_space("timm:resnet18", stem_stride=1)
    (small,) = space.smallest()
    assert small.stem_stride == 1 and small.layers["layer1.1.conv1"].width == 0
    assert space.params_of(small)["layer1.width"] == 0.125 and space.params_of(small)["conv1.square"] == 0
    assert {network.backbone for network in load_space("nin").smallest()} == {"nin", "nin_3x3"}
    assert len({canonical_id(network) for network in load_space("vgg-deep").smallest()}) > 1  # of several pools


def test_a_space_can_be_pickled_and_stored_as_json() -> None:
    for name in (*SPACES, "timm:resnet18"):
        space = load_space(name)
        assert pickle.loads(pickle.dumps(space)).to_dict() == space.to_dict()
        assert json.loads(json.dumps(space.to_dict())) == space.to_dict() == load_space(name).to_dict()
    assert load_space("nin", granularity="layer").to_dict() != load_space("nin", granularity="network").to_dict()
    assert load_space("nin").to_dict() != load_space("nin", batch_norm=True).to_dict()


def test_timm_spaces() -> None:
    space = load_space("timm:resnet18")
    assert (space.name, space.granularity, space.dimension) == ("timm:resnet18", "stage", 23)
    assert [group.name for group in space.groups] == ["conv1", "layer1", "layer2", "layer3", "layer4"]
    assert space.parameters[3:5] == (
        Parameter("layer1.depth", (1.0, 2.0), ordered=True),
        Parameter("layer1.square", tuple(i / 8 for i in range(9)), ordered=True),
    )
    assert space.layers_of["layer1.width"] == "layer1.0.conv1, layer1.1.conv1"
    assert (list(space.points), space.baseline) == (["resnet18"], "resnet18")
    assert list(space.uniform) == ["dense-x0.5", "dense-x0.25", "lr", "lr-x0.5", "lr-x0.25"]
    smaller = space.architecture({**space.params_of(space.points["resnet18"]), "layer2.depth": 1, "layer3.width": 0.5})
    mixes = {conv.name: str(conv.mix) for conv in make_plan(smaller).convs}
    assert "layer2.1.conv1" not in mixes and "layer2.0.conv1" in mixes
    assert (mixes["layer3.0.conv1"], mixes["layer3.0.conv2"]) == ("3x3,128", "3x3,256")
    assert canonical_id(space.points["resnet18"]) == canonical_id(Architecture("timm:resnet18"))
    assert canonical_id(space.uniform["lr"]) == canonical_id(Architecture("timm:resnet18", {"*": HALF}))
    assert load_space("timm:resnet18.a1_in1k").to_dict() == space.to_dict()
    assert load_space("timm:resnet18", granularity="layer").dimension == 3 * 17 + 8
    assert load_space("timm:resnet18", granularity="network").dimension == 4
    assert [group.name for group in load_space("timm:regnetx_002").groups] == ["stem"]
    assert [group.name for group in load_space("timm:convnext_atto").groups] == [
        "stem",
        "stages.1",
        "stages.2",
        "stages.3",
    ]
    assert load_space("timm:efficientnet_b0").dimension == 3
    assert (space.divisor, load_space("timm:resnet18", divisor=1).divisor) == (8, 1)
    narrow = make_plan(load_space("timm:lcnet_035").uniform["lr"]).convs[0]
    assert str(narrow.mix) == "3x1,4 || 1x3,4"
    vgg = load_space("timm:vgg13")
    assert (list(vgg.points), vgg.baseline) == (["vgg13"], "vgg13")
    assert list(vgg.uniform) == ["dense-x0.5", "dense-x0.25", "lr", "lr-x0.5", "lr-x0.25"]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("timm:resnetv2_50x1_bit", {}, "a space needs a convolution that can be replaced"),
        ("timm:resnet81", {}, "unknown timm model 'resnet81'; did you mean resnet18"),
        ("timm:resnet18", {"batch_norm": True}, "a timm model keeps its own norm; got batch_norm true; leave it out"),
        ("timm:resnet18", {"batch_norm": False}, "got batch_norm false"),
        ("timm:nin_c3", {}, "nin_c3 is one of lrnas"),
        ("nin", {"granularity": "block"}, "granularity must be one of network, stage, layer; got 'block'"),
    ],
)
def test_bad_sources(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(LrnasError, match=re.escape(message)):
        load_space(source, **options)


def test_unknown_names_get_the_closest() -> None:
    with pytest.raises(UnknownName, match=r"unknown space 'googlnet'; did you mean googlenet\? \("):
        load_space("googlnet")
    with pytest.raises(InvalidSpace, match=r"cannot read nowhere.toml: No such file"):
        load_space("nowhere.toml")


def test_a_user_file(tmp_path: Path) -> None:
    space = load(tmp_path, OWN)
    assert (space.name, space.granularity, space.baseline) == ("own", "layer", None)
    assert [(parameter.name, parameter.ordered) for parameter in space.parameters] == [
        ("conv1.square", True),
        ("conv1.width", False),  # 1/2, 1, 2 are no even steps
        ("conv2.square", True),
        ("conv2.width", False),
    ]
    assert list(space.uniform) == ["dense-x1", "dense-x0.5", "lr-x1", "lr-x0.5"]  # it has no width of 3/4
    with_norm = load(tmp_path, OWN.replace("[space]", "[space]\nbatch_norm = true"))
    assert with_norm.points["mine"].batch_norm is True
    assert load(tmp_path, OWN + "[paper]\nbaseline = 'mine'").baseline == "mine"


def test_without_points_the_unchanged_backbone_is_the_point_and_the_baseline(tmp_path: Path) -> None:
    text = OWN.partition("[points")[0]
    space = load(tmp_path, text)
    assert (list(space.points), space.baseline, space.left_out) == (["nin"], "nin", ())
    assert canonical_id(space.points["nin"]) == canonical_id(Architecture("nin"))
    assert list(space.uniform) == ["dense-x0.5", "lr-x1", "lr-x0.5"]
    timm = '[space]\nbackbone = "timm:resnet18"\n[[space.vary]]\nlayers = ["layer4.*"]\nsquare = [0, 1]\n'
    assert list(load(tmp_path, timm).points) == ["resnet18"]
    # the unchanged backbone is not in a space with fewer filters
    narrow = timm.replace("layer4.*", "*").replace("square", "width = 0.5\nsquare")
    for changed in (narrow, narrow.replace("timm:resnet18", "nin")):
        space = load(tmp_path, changed)
        assert (list(space.points), list(space.uniform), space.baseline) == ([], ["dense-x0.5", "lr-x0.5"], None)
    # and not in one in which some filters are always k×1 or 1×k
    narrow = load(tmp_path, text.replace("to = 1,", 'to = "1/2",'))
    assert (dict(narrow.points), narrow.baseline, list(narrow.uniform)) == ({}, None, ["lr-x1", "lr-x0.5"])


@given(points())
def test_all_numbers_of_filters_suit_a_gpu(drawn: tuple[SearchSpace, dict[str, Any]]) -> None:
    space, params = drawn
    for conv in make_plan(space.architecture(params)).convs:
        filters = [group.num for group in conv.mix.groups]
        if sum(filters) >= 3 * 8:  # there is room for all shapes
            assert not any(number % 8 for number in filters), f"{conv.name}: {conv.mix}"
        assert not conv.mix.out_channels % 8


def test_a_file_s_numbers_of_filters(tmp_path: Path) -> None:
    space = load(tmp_path, OWN)
    text = OWN.replace("[space]", "[space]\ndivisor = 16")
    with_divisor = load(tmp_path, text)
    assert (space.divisor, with_divisor.divisor) == (1, 16)
    assert "divisor" not in space.to_dict() and with_divisor.to_dict()["divisor"] == 16
    params = {**space.params_of(Architecture("nin")), "conv1.square": 1 / 8, "conv1.width": 0.5}
    mixes = [str(make_plan(one.architecture(params)).convs[0].mix) for one in (space, with_divisor)]
    assert mixes == ["5x1,42 || 1x5,42 || 5x5,12", "5x1,48 || 1x5,32 || 5x5,16"]
    with pytest.raises(OutsideSpace, match=r"conv1: 5x1,42.*; allowed: the shares .* rounded to multiples of 16"):
        with_divisor.params_of(space.architecture(params))
    assert load(tmp_path, text, divisor=1).to_dict() == space.to_dict()
    shares = '{ kx1 = "7/16", 1xk = "7/16", kxk = "1/8" }'
    point = (
        f'[points.halved]\nbackbone = "nin"\nlayers.conv1 = {{ form = "composite", width = 0.5, shares = {shares} }}'
    )
    assert str(make_plan(load(tmp_path, text + point).points["halved"]).convs[0].mix) == mixes[1]  # as the space rounds
    with pytest.raises(InvalidSpace, match=r"own.toml, line 2: divisor must be a whole number from 1 to 64; got 0"):
        load(tmp_path, OWN.replace("[space]", "[space]\ndivisor = 0"))


def test_a_name_wins_over_a_pattern(tmp_path: Path) -> None:
    more = '[[space.vary]]\nlayers = ["*"]\nsquare = [0, 1]\n'
    space = load(tmp_path, OWN + more)
    assert {group.name: len(group.axes["square"].values) for group in space.groups} == {
        "conv1": 9,
        "conv2": 9,
        "conv3": 2,
    }


def test_a_file_may_vary_a_timm_model(tmp_path: Path) -> None:
    text = '[space]\nbackbone = "timm:resnet18"\n[[space.vary]]\nlayers = ["layer4.*"]\nform = ["mixed", "separable"]\n'
    space = load(tmp_path, text)
    assert space.dimension == 4 and space.backbones == ("timm:resnet18",)
    params = {parameter.name: "separable" for parameter in space.parameters}
    assert space.params_of(space.architecture(params)) == params
    with pytest.raises(
        InvalidSpace, match=r"own.toml, line 6: layers of a timm model have at most their own.*width 1.5"
    ):
        load(tmp_path, text + "width = [1, 1.5]\n")
    with pytest.raises(
        InvalidSpace, match=r"line 8: depth must be .* and blocks that can be left out; got 3 .*; choose 2 or"
    ):
        load(tmp_path, text.replace("[[", 'granularity = "stage"\nstages.last = ["layer4.*"]\n[[') + "depth = [1, 3]\n")
    strides = load(tmp_path, text.replace("[[", "stem_stride = [1, 2]\n[["))
    for stride in (1, 2):
        point = {**params, "stem_stride": stride}
        assert strides.params_of(strides.architecture(point)) == point
    with pytest.raises(OutsideSpace, match="stem_stride 4; allowed: 1 or 2"):
        strides.params_of(Architecture("timm:resnet18", stem_stride=4))
    with pytest.raises(InvalidSpace, match="a timm model keeps its own norm"):
        load(tmp_path, text, batch_norm=True)


def test_the_example_of_the_docs(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    space = load(tmp_path, found[1])
    names = [parameter.name for parameter in space.parameters]
    assert space.dimension == 13 and "13 parameters" in DOCS.read_text(encoding="utf-8")
    assert {"backbone", "early.square", "late.join", "early.mixing.width"} <= set(names)
    assert list(space.points) == ["separable"] and "dense-x0.5" in space.uniform


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("[space]", "[spaces]", 1, "unknown key 'spaces'; did you mean space? (known: space, paper, points)"),
        (
            "square =",
            "squre =",
            6,
            "unknown key 'squre'; did you mean square? (known: layers, name, present, depth, form",
        ),
        ('"nin"\n\n', '"nin"\npooling = "max"\n\n', 3, "unknown key 'pooling'"),
        ("from = 0", "start = 0", 6, "unknown key 'start' (known: from, to, step)"),
        ("shares = {", "share = {", 11, "point mine: conv1: unknown key 'share'; did you mean shares?"),
        ('"nin"\nlayers', '"nin"\npoool = "max"\nlayers', 11, "unknown key 'poool'; did you mean pool?"),
        ("layers.conv1 = {", "layers = 3 #", 9, "point mine: layers must be an object"),
        ('= "1/2"', '= "1/3"', 11, "point mine: conv1: the shares of a layer must sum to 1"),
        (
            'kx1 = "1/2", 1xk = "1/2"',
            'kx1 = "1/4", 1xk = "3/4"',
            9,
            "point mine is outside its own space: conv1: vertical",
        ),
        (
            "layers.conv1 =",
            "layers.conv3 =",
            9,
            "mine is outside its own space: conv3: 3x1,96 || 1x3,96; allowed: 3x3,192",
        ),
        ("layers.conv1 =", "layers.conv9 =", 9, "point mine: nin has no layer 'conv9'"),
        ('"conv2"]', '"conv22"]', 5, "nin has no layer 'conv22'; did you mean conv2"),
        ('"conv2"]', '"convolution*"]', 5, "nin has no layer 'convolution*'; known: conv1, cccp1"),
        ('"conv2"]', '"cccp1"]', 5, "cccp1 is a 1×1 convolution, in which only width and present can vary; got square"),
        (
            '["conv1", "conv2"]',
            '["cccp*"]',
            5,
            "or 1×1 layers, in which only width and present can vary; add layers",
        ),
        ('["conv1", "conv2"]', "[]", 5, "layers must be a list of names or patterns"),
        ('layers = ["conv1", "conv2"]\n', "", 4, "layers must be a list of names or patterns, such as"),
        ('step = "1/8"', 'step = "2/3"', 6, "whole steps, with at most 1000 values; got 0 to 1 in steps of 2/3"),
        ('step = "1/8"', 'step = "1/8000"', 6, "at most 1000 values"),
        ('step = "1/8"', 'step = "1/0"', 6, "a number or a fraction such as \"3/8\" is needed; got '1/0'"),
        ("to = 1,", "to = 2,", 6, "square must be a share from 0 to 1; got 9/8"),
        (', step = "1/8"', "", 6, "a range needs from, to and step; got from, to"),
        ('["1/2", 1, 2]', '["1/2", 0.5]', 7, "each value can be given once; 1/2 is repeated"),
        ('["1/2", 1, 2]', "[]", 7, "width needs at least one value; got an empty list"),
        ('["1/2", 1, 2]', "[0, 1]", 7, "width must be a multiple of the backbone's width, above 0, at most 64; got 0"),
        ('["1/2", 1, 2]', "[true]", 7, "a number or a fraction"),
        ('["1/2", 1, 2]', '["9e999999999"]', 7, "a number or a fraction"),
        ("width = [", 'form = "dense"\nwidth = [', 7, "form must be mixed or separable; got 'dense'"),
        ('backbone = "nin"\n\n', 'backbone = "min"\n\n', 2, "unknown backbone 'min'; did you mean nin"),
        ('backbone = "nin"\n\n', 'backbone = "vgg11_bn"\n\n', 2, "write 'vgg11' and batch_norm = true"),
        ('backbone = "nin"\n\n', "backbone = 3\n\n", 2, "backbone must be a name or a list of names; got 3"),
        ('backbone = "nin"\n\n', "\n\n", 1, "a space needs a backbone; got none"),
        ('"nin"\n\n', '"nin"\npool = ["avg", "none"]\n\n', 3, "pool of nin must be avg or max; got 'none'"),
        ('"nin"\n\n', '"nin"\nstem_stride = 3\n\n', 3, "stem_stride must be one of 1, 2, 4; got 3"),
        (
            '"nin"\n\n',
            '"nin"\ngranularity = "block"\n\n',
            3,
            "granularity must be one of network, stage, layer; got 'block'",
        ),
        ('"nin"\n\n', '"nin"\ngranularity = "stage"\n\n', 1, "granularity stage needs stages; got none"),
        ('"nin"\n\n', '"nin"\nbatch_norm = 1\n\n', 3, "batch_norm must be true or false, for all networks; got 1"),
        *(
            ("[points.mine]", f'[points."{name}"]', 9, f"is also the name of a network; got '{name}'")
            for name in ("a/b", "s:a", "a@full", "12", "best")
        ),
        (
            '"nin"\n\n',
            '"nin"\nbaseline = "yours"\n\n',
            3,
            "the baseline must be one of the points; got 'yours'; known: mine",
        ),
        (
            '"nin"\n\n',
            '"nin"\nstages.a = ["conv1"]\n\n',
            3,
            "every layer that varies must be in a stage; conv2 is in none",
        ),
        (
            '"nin"\n\n',
            '"nin"\nstages = { a = "conv*", b = "conv1" }\n',
            3,
            "can be in one list of [space.stages]; conv1 is in two",
        ),
        ('"nin"\n\n', '"nin"\ntied.conv3 = ["conv1", "conv2"]\n', 3, "'conv3' is another layer"),
        (
            '"nin"\n\n',
            '"nin"\ntied.both = ["conv1", "conv3"]\n',
            3,
            "tied layers must be in one entry and one stage; conv1, conv3",
        ),
        (
            "[points.mine]",
            '[[space.vary]]\nlayers = "conv1"\nwidth = 1\n[points.mine]',
            10,
            "conv1 is in two; remove it",
        ),
        ("[points.mine]\n", '[points]\nmine = "nin"\n[points.other]\n', 10, "must be a table; got 'nin'"),
    ],
)
def test_errors_name_the_file_and_the_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    assert old in OWN
    with pytest.raises(InvalidSpace) as caught:
        load(tmp_path, OWN.replace(old, new, 1))
    told = str(caught.value)
    assert told.startswith(f"{tmp_path / 'own.toml'}, line {line}: ") and message in told and "\n" not in told


def test_files_that_are_no_spaces(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpace, match=r"own.toml: not valid TOML: .*line 1"):
        load(tmp_path, "space = 1 2\n")
    for value in (6_000 * "9", 100_000 * "["):
        with pytest.raises(InvalidSpace, match=r"own.toml: not valid TOML: a number is too long, or too many brackets"):
            load(tmp_path, f"space = {value}\n")
    with pytest.raises(InvalidSpace, match=r"own.toml: a space needs a table \[space\]; got none"):
        load(tmp_path, "")
    with pytest.raises(InvalidSpace, match="a space needs something that varies; got nothing"):
        load(tmp_path, '[space]\nbackbone = "nin"\n')
    with pytest.raises(InvalidSpace, match="a space needs a parameter; got only fixed values"):
        load(tmp_path, '[space]\nbackbone = "nin"\n[[space.vary]]\nlayers = "conv1"\nsquare = 0\n')
    with pytest.raises(
        InvalidSpace, match=r"must vary at least one of present, depth, form, kernel, square, .*; got none"
    ):
        load(tmp_path, '[space]\nbackbone = "nin"\n[[space.vary]]\nlayers = "conv1"\n')
    entries = '[[space.vary]]\nlayers = "conv1"\nwidth = [1, 2]\n[[space.vary]]\nlayers = "conv2"\nsquare = [0, 1]\n'
    with pytest.raises(InvalidSpace, match=r"line 6: entries .* need different names; 'all' is used twice"):
        load(tmp_path, f'[space]\nbackbone = "nin"\n{entries}', granularity="network")


def test_a_line_is_found_without_parsing_the_file_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = '[space]\nbackbone = "nin"\n[[space.vary]]\nlayers = "conv1"\nsquare = [0, 1]\n'
    text = head + "".join(f'[points.p{i}]\nbackbone = "nin"\n' for i in range(1_000)) + "[points.last]\npool = 3\n"
    parsed, parse = [], toml_file.tomllib.loads
    monkeypatch.setattr(toml_file.tomllib, "loads", lambda part: parsed.append(len(part)) or parse(part))
    with pytest.raises(InvalidSpace, match=r"own.toml, line 2006: point last: an architecture needs a backbone"):
        load(tmp_path, text)
    assert sum(parsed) < 3 * len(text)


def test_too_many_values_are_refused(tmp_path: Path) -> None:
    values = ", ".join(str(i / 6_000) for i in range(6_000))
    with pytest.raises(InvalidSpace, match=r"line 5: square can have at most 1000 values; got 6000; remove some"):
        load(tmp_path, f'[space]\nbackbone = "nin"\n[[space.vary]]\nlayers = "conv1"\nsquare = [{values}]\n')


def test_a_point_is_found_among_a_million_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand values on two axes: only those near the shares of a point's layer are tried."""
    tried, make = [], parameters._make_allocation
    monkeypatch.setattr(parameters, "_make_allocation", lambda **values: tried.append(values) or make(**values))
    steps = '{from = 0, to = 1, step = "1/999"}'
    text = f'[space]\nbackbone = "nin"\n[[space.vary]]\nlayers = "conv1"\nsquare = {steps}\nvertical = {steps}\n'
    text += '[points.mine]\nbackbone = "nin"\n[points.mine.layers.conv1]\nform = "composite"\n'
    space = load(tmp_path, text + "shares = {kx1 = 0.3, 1xk = 0.3, kxk = 0.4}\n")
    params = space.params_of(space.points["mine"])
    assert canonical_id(space.architecture(params)) == canonical_id(space.points["mine"]) and len(tried) < 20_000


def test_lines_are_found_past_texts_and_lists_of_several_lines(tmp_path: Path) -> None:
    noise = '[points.first]\nbackbone = "nin"\nnote = """\n[points.mine]\nsqure = 1\n"""\n'
    text = noise + OWN.replace('["conv1", "conv2"]', '[\n  "conv1",\n  "conv2",\n]').replace("square", "squre")
    with pytest.raises(InvalidSpace, match=r"line 15: unknown key 'squre'"):
        load(tmp_path, text)


def test_layers_that_can_be_left_out_and_kernels_that_vary(tmp_path: Path) -> None:
    text = """\
[space]
backbone = "nin_3x3"
[[space.vary]]
layers = "conv2_*"
kernel = [5, 3]
square = [0, 1]
[[space.vary]]
layers = ["cccp1", "cccp2"]
present = ["yes", "no"]
"""
    space = load(tmp_path, text)
    names = ["cccp1.present", "cccp2.present", "conv2_1.kernel", "conv2_1.square", "conv2_2.kernel", "conv2_2.square"]
    assert [parameter.name for parameter in space.parameters] == names
    params: dict[str, Any] = {"cccp1.present": "no", "cccp2.present": "yes"}
    params |= {"conv2_1.kernel": 5, "conv2_1.square": 1, "conv2_2.kernel": 3, "conv2_2.square": 0}
    plan = make_plan(space.architecture(params))
    mixes = {conv.name: str(conv.mix) for conv in plan.convs}
    assert list(mixes)[:4] == ["conv1", "conv2_1", "conv2_2", "cccp3"]  # without cccp1 there is no cccp2
    assert (mixes["conv2_1"], mixes["conv2_2"]) == ("5x5,192", "3x1,96 || 1x3,96")
    assert space.params_of(space.architecture(params)) == {**params, "cccp2.present": "no"}
    assert space.idle_parameters(params) == {"cccp2.present"}
    with pytest.raises(OutsideSpace, match=r"conv2_2: kernel 7; allowed: 3 or 5"):
        space.params_of(Architecture("nin_3x3", {"conv2_2": Allocation("composite", (FilterGroup("7x7", 1),))}))
    with pytest.raises(OutsideSpace, match=r"cccp3: left out; allowed: this layer is in all networks of this space"):
        space.params_of(Architecture("nin_3x3", {"cccp3": Allocation(width=0)}))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ('layers = "conv1"\npresent = ["yes", "no"]', "nin: conv1 cannot be left out; got width 0"),
        ('layers = "cccp1"\npresent = [true, false]', "present must be yes or no; got True"),
        ('layers = "conv1"\nkernel = [3, 4]', "kernel must be an odd whole number from 3 to 11; got 4"),
        ('layers = "conv1"\nkernel = [3, 5]\nform = "separable"', "separable layers keep the backbone's kernel"),
        ('layers = "cccp1"\nkernel = [3, 5]', "cccp1 is a 1×1 convolution"),
    ],
)
def test_values_of_present_and_kernel_that_are_refused(tmp_path: Path, entry: str, message: str) -> None:
    with pytest.raises(InvalidSpace) as caught:
        load(tmp_path, f'[space]\nbackbone = "nin"\n[[space.vary]]\n{entry}\n')
    assert message in str(caught.value)


def test_the_networks_of_the_paper_are_the_same_in_the_space_for_small_images() -> None:
    small, large = load_space("googlenet-small"), load_space("googlenet", stem_stride=1)
    for name, architecture in large.points.items():
        assert small.points[name] == architecture
        assert canonical_id(small.architecture(small.params_of(architecture))) == canonical_id(architecture)
    assert small.points.keys() == large.points.keys() and small.left_out == ()


@pytest.mark.parametrize("name", ["nin", "vgg"])
def test_the_networks_of_the_paper_are_the_same_in_deep_spaces(name: str) -> None:
    space = load_space(f"{name}-deep", batch_norm=True)
    others = {"vgg-11", "vgg-gmp-lr-lde"}  # without a global pool, with a stride of 2
    assert space.points.keys() == load_space({"vgg": "vgg11"}.get(name, name)).points.keys() - others
    for name, architecture in space.points.items():
        own = dataclasses.replace(paper_points()[name].architecture, batch_norm=True)
        found, expected = make_plan(architecture, 32), make_plan(own, 32)
        assert (found.cost.macs, found.cost.params) == (expected.cost.macs, expected.cost.params)
        assert [conv.mix for conv in found.convs] == [conv.mix for conv in expected.convs]
        models = [create_model(network, 10).eval() for network in (architecture, own)]
        weights = models[0].state_dict().values()
        models[1].load_state_dict(dict(zip(models[1].state_dict(), weights, strict=True)))
        images = torch.randn(2, 3, 32, 32)
        assert torch.equal(models[0](images), models[1](images))


def test_the_depth_of_a_stage(tmp_path: Path) -> None:
    text = '[space]\nbackbone = "vgg_deep"\ngranularity = "stage"\npool = "max"\n[space.stages]\n'
    text += "".join(f'conv{i} = ["conv{i}_*"]\n' for i in range(1, 6))
    space = load(tmp_path, text + '[[space.vary]]\nlayers = "conv[25]_*"\ndepth = [1, 2]\nwidth = ["1/2", 1]\n')
    assert [parameter.name for parameter in space.parameters] == [
        "conv2.depth",
        "conv2.width",
        "conv5.depth",
        "conv5.width",
    ]
    params = {"conv2.depth": 1, "conv2.width": 0.5, "conv5.depth": 2, "conv5.width": 1}
    network = space.architecture(params)
    assert [conv.name for conv in make_plan(network).convs if conv.name[4] in "25"] == ["conv2_1", "conv5_1", "conv5_2"]
    assert space.params_of(network) == params and space.idle_parameters(params) == set()
    assert create_model(network, 10)(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    deep = Architecture("vgg_deep", pool="max")
    with pytest.raises(OutsideSpace, match="conv2: depth 3; allowed: 1 or 2"):
        space.params_of(deep)
    with pytest.raises(OutsideSpace, match="conv2: depth 1; allowed: 2 or 3"):
        load(tmp_path, text + '[[space.vary]]\nlayers = "conv*"\ndepth = [2, 3]\nwidth = ["1/2", 1]\n').params_of(
            network
        )


@pytest.mark.parametrize(
    ("backbone", "entry", "message"),
    [
        ("vgg_deep", 'layers = "conv1_*"\ndepth = [1, 4]', "got 4 for conv1_1, conv1_2, conv1_3; choose 3 or less"),
        ("vgg_deep", 'layers = "conv1_*"\ndepth = 1.5', "depth must be a whole number above 0; got 3/2"),
        ("vgg_deep", 'layers = "conv1_*"\ndepth = 100', "got 100 for conv1_1, conv1_2, conv1_3; choose 3 or less"),
        ("vgg_deep", 'layers = "conv1_*"\ndepth = 0', "depth must be a whole number above 0; got 0"),
        ("vgg_deep", 'layers = ["conv1_1", "conv1_2"]\ndepth = [1, 2]', "without conv1_2 there is no conv1_3"),
        ("googlenet", 'layers = "*.conv3x3"\ndepth = [1, 2]', "inception_4a.conv3x3 cannot be left out"),
    ],
)
def test_depths_that_are_refused(tmp_path: Path, backbone: str, entry: str, message: str) -> None:
    head = f'[space]\nbackbone = "{backbone}"\ngranularity = "stage"\n[space.stages]\nall = ["*"]\n'
    with pytest.raises(InvalidSpace) as caught:
        load(tmp_path, f"{head}[[space.vary]]\n{entry}\n")
    assert message in str(caught.value)
    with pytest.raises(InvalidSpace, match='depth needs granularity stage; got "layer"; choose stage'):
        load(
            tmp_path, f"{head}[[space.vary]]\n{entry}\n".replace("1.5", "1").replace("= 0", "= 1"), granularity="layer"
        )


def test_uniform_networks_cost_no_more_than_the_baseline() -> None:
    space = load_space("nin-deep")
    most = make_plan(space.points["nin"]).cost.macs
    assert list(space.uniform) == ["dense-x0.25", "lr-x0.5", "lr-x0.25"]
    assert all(make_plan(network).cost.macs <= most for network in space.uniform.values())


@settings(deadline=None, max_examples=60)
@given(points(), st.randoms(use_true_random=False))
def test_idle_parameters_do_not_change_the_network(point: tuple[SearchSpace, dict[str, Any]], chance: Random) -> None:
    space, params = point
    idle = space.idle_parameters(params)
    other = {p.name: chance.choice(p.values) if p.name in idle else params[p.name] for p in space.parameters}
    assert canonical_id(space.architecture(other)) == canonical_id(space.architecture(params))


def test_the_stride_of_the_first_layer_can_be_set_for_all_networks() -> None:
    space = load_space("googlenet", stem_stride=1)
    assert space.dimension == load_space("googlenet").dimension
    assert {point.stem_stride for point in (*space.points.values(), *space.uniform.values())} == {1}
    for name, point in space.points.items():
        larger = make_plan(point, 32).cost.macs / make_plan(load_space("googlenet").points[name], 32).cost.macs
        assert 3 < larger < 5
        assert canonical_id(space.architecture(space.params_of(point))) == canonical_id(point)
    vgg = load_space("vgg11", stem_stride=1)
    assert vgg.dimension == load_space("vgg11").dimension - 1
    for source, stride, message in (
        ("vgg11", 3, "stem_stride must be one of 1, 2, 4; got 3"),
        ("timm:resnet18", 3, "stem_stride must be one of 1, 2, 4; got 3"),
    ):
        with pytest.raises(InvalidSpace, match=re.escape(message)):
            load_space(source, stem_stride=stride)


SEVERAL = """\
[space]
backbone = ["nin", "nin_3x3"]
[[space.vary]]
layers = ["conv2", "conv2_1"]
square = [0, 1]
[[space.vary]]
name = "second"
layers = "conv2_2"
present = ["yes", "no"]
square = [0, 1]
[[space.vary]]
name = "first 1x1"
layers = ["cccp1", "cccp3"]
present = "no"
[[space.vary]]
name = "second 1x1"
layers = ["cccp2", "cccp4"]
present = ["yes", "no"]
width = [0.5, 1]
"""


def test_idle_parameters_with_several_backbones_and_layers_that_are_always_left_out(tmp_path: Path) -> None:
    space = load(tmp_path, SEVERAL)
    always = {f"{layer}.{axis}" for layer in ("cccp2", "cccp4") for axis in ("present", "width")}  # behind others
    chance = Random(0)
    for _ in range(40):
        params = space.draw(chance)
        backbone, is_there = params["backbone"], params["conv2_2.present"] == "yes"
        expected = set(always)
        expected |= {"conv2_1.square", "conv2_2.square", "conv2_2.present"} if backbone == "nin" else {"conv2.square"}
        expected |= set() if is_there else {"conv2_2.square"}
        assert space.idle_parameters(params) == expected


def test_layers_of_a_group_can_be_left_out_because_of_layers_before_them(tmp_path: Path) -> None:
    text = """\
[space]
backbone = "nin"
granularity = "stage"
[space.stages]
a = ["cccp1"]
b = ["cccp2", "cccp4"]
[[space.vary]]
layers = ["cccp*"]
present = ["yes", "no"]
width = [0.5, 1]
""".replace("cccp*", 'cccp1", "cccp2", "cccp4')
    space = load(tmp_path, text)
    for values in product(*(parameter.values for parameter in space.parameters)):
        network = space.architecture(dict(zip([p.name for p in space.parameters], values, strict=True)))
        assert canonical_id(space.architecture(space.params_of(network))) == canonical_id(network)


def test_a_space_with_kernels_that_do_not_fit_small_images_can_be_loaded(tmp_path: Path) -> None:
    entry = 'layers = "conv3"\nkernel = [9, 11]\nsquare = [0, 1]\nwidth = [0.25, 0.5, 1]\n'
    assert load(tmp_path, f'[space]\nbackbone = "nin"\n[[space.vary]]\n{entry}').uniform
