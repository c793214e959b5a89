"""Descriptions of networks: rules, JSON there and back, whole filters."""

import json
import pickle
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, strategies as st
from strategies import architectures

from lrnas.arch.architecture import Allocation, Architecture, FilterGroup, Filters, Mix, apportion
from lrnas.errors import InvalidArchitecture

HALF = Allocation.composite(vertical=0.5, horizontal=0.5)

PAIR = {"layers": {"a": {"form": "composite", "shares": {"kx1": 0.75, "1xk": "1/4"}, "join": 1}}}

LITERAL = """{"version": 1, "backbone": "vgg11", "pool": "max", "stem_stride": 2, "batch_norm": true,
 "classifier": "mlp:512",
 "layers": {"*": {"form": "composite", "shares": {"1xk": 0.375, "kx1": 0.375, "kxk": 0.25}, "join": 1},
            "conv1_1": {"form": "dense", "width": 0.5},
            "conv5_1": {"form": "separable", "width": 2, "middle": 0.5}}}"""

ARCHITECTURE = Architecture(
    "vgg11",
    {
        "conv5_1": Allocation("separable", width=2, middle=0.5),
        "conv1_1": Allocation(width=0.5),
        "*": Allocation.composite(vertical=3 / 8, horizontal=3 / 8, square=1 / 4, join=1),
    },
    pool="max",
    stem_stride=2,
    batch_norm=True,
    classifier="mlp:512",
)


def test_json_literal_both_ways() -> None:
    assert Architecture.from_json(LITERAL) == ARCHITECTURE
    assert json.loads(ARCHITECTURE.to_json()) == json.loads(LITERAL)


@given(architectures())
def test_json_round_trip(architecture: Architecture) -> None:
    assert Architecture.from_json(architecture.to_json()) == architecture


def test_equal_layers_are_read_once() -> None:
    one, other = (Architecture.from_json(json.dumps({"backbone": name} | PAIR)) for name in ("nin", "vgg11"))
    assert one.layers["a"] is other.layers["a"] and one.layers["a"].at(3, 64) is other.layers["a"].at(3, 64)
    for wrong in ({"kx1": True}, {"kx1": [1]}):  # True == 1
        assert Allocation.from_dict({"form": "composite", "shares": {"kx1": 1}}).groups[0].share == 1
        with pytest.raises(InvalidArchitecture, match=r"the share of kx1 filters must be a number"):
            Allocation.from_dict({"form": "composite", "shares": wrong})


def test_is_frozen_hashable_and_can_be_pickled() -> None:
    with pytest.raises(AttributeError):
        ARCHITECTURE.pool = "avg"  # type: ignore[misc]
    with pytest.raises(TypeError):
        ARCHITECTURE.layers["conv1_1"] = HALF  # type: ignore[index]
    for copy in (pickle.loads(pickle.dumps(ARCHITECTURE)), deepcopy(ARCHITECTURE)):
        assert copy == ARCHITECTURE
        assert hash(copy) == hash(ARCHITECTURE)


def test_spellings_mean_the_same() -> None:
    spelled = Allocation.from_dict({"form": "composite", "shares": {"Vertical": "3/8", "1×k": 0.375, "square": "1/4"}})
    assert spelled == Allocation.composite(vertical=3 / 8, horizontal=3 / 8, square=1 / 4)


def test_numpy_numbers_are_numbers() -> None:
    assert Allocation(width=np.float32(0.5), join=np.int64(1)) == Allocation(width=0.5, join=1)  # type: ignore[arg-type]


@given(st.integers(0, 4096), st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
def test_apportion_sums_to_the_total_and_rounds_by_less_than_one(total: int, parts: list[int]) -> None:
    shares = [part / sum(parts) for part in parts]
    counts = apportion(total, shares)
    assert sum(counts) == total
    assert all(abs(count - total * share) < 1 for count, share in zip(counts, shares, strict=True))
    assert all(count == 0 for count, part in zip(counts, parts, strict=True) if part == 0)


def test_apportion_rounds_up_the_largest_remainder_then_the_first() -> None:
    assert apportion(10, [0.26, 0.55, 0.19]) == [3, 5, 2]
    assert apportion(3, [0.5, 0.5]) == [2, 1]
    assert apportion(64, [1 / 3, 1 / 3, 1 / 3]) == [22, 21, 21]


@given(
    st.integers(0, 4096), st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any), st.sampled_from((2, 8, 64))
)
def test_apportion_in_multiples(total: int, parts: list[int], divisor: int) -> None:
    shares = [part / sum(parts) for part in parts]
    counts = apportion(total, shares, divisor)
    assert sum(counts) == total
    assert not any(count for count, share in zip(counts, shares, strict=True) if not share)
    assert all(abs(count - total * share) < 2 * divisor for count, share in zip(counts, shares, strict=True))
    present = [count for count, share in zip(counts, shares, strict=True) if share]
    if total // divisor >= len(present):
        assert not any(count % divisor for count in present[:-1]) and present[-1] % divisor == total % divisor


def test_numbers_of_filters_are_multiples_of_the_divisor() -> None:
    mixed = Allocation.composite(vertical=1 / 16, horizontal=5 / 16, square=5 / 8, width=7 / 8, join=0.3)
    assert str(mixed.at(3, 192)) == "3x1,11 || 1x3,52 || 3x3,105 > 1x1,58"
    assert str(mixed.at(3, 192, 8)) == "3x1,8 || 1x3,56 || 3x3,104 > 1x1,56"
    assert str(mixed.at(3, 24, 8)) == "1x3,8 || 3x3,16 > 1x1,8"  # too few 3x1 filters for one block of 8: none
    assert str(Allocation("separable", width=0.3, middle=0.01).at(5, 96, 8)) == "1x5,8 > 5x1,32"
    half = Allocation.composite(vertical=0.5, horizontal=0.5)
    assert str(half.at(3, 100, 8)) == "3x1,48 || 1x3,52"  # the backbone's own width stays, the last has what is over
    assert str(half.at(3, 8, 8)) == "3x1,4 || 1x3,4"  # too narrow for 8 of each
    few = Allocation.composite(vertical=0.05, horizontal=0.05, square=0.9)
    assert [str(few.at(3, width, 8)) for width in (6, 20)] == ["3x3,6", "3x3,20"]
    assert str(Allocation(width=0.5).at(3, 6, 8)) == "3x3,6"  # no more than the backbone has
    network = Architecture("nin", {"*": mixed}, divisor=8)
    assert Architecture.from_json(network.to_json()) == network and network.to_dict()["divisor"] == 8
    assert Architecture("nin", divisor=1) == Architecture("nin")
    for bad in (0, 65, 8.0, "8", True):
        with pytest.raises(InvalidArchitecture, match="divisor must be a whole number from 1 to 64; got"):
            Architecture("nin", divisor=bad)  # type: ignore[arg-type]


def test_groups_are_ordered_vertical_horizontal_square() -> None:
    groups = (FilterGroup("kxk", 0.25), FilterGroup("1xk", 0.25), FilterGroup("5x1", 0.25), FilterGroup("kx1", 0.25))
    mix = Allocation("composite", groups, join=0.5).at(3, 64)
    assert mix == Mix((Filters(3, 1, 16), Filters(5, 1, 16), Filters(1, 3, 16), Filters(3, 3, 16)), Filters(1, 1, 32))
    assert str(mix) == "3x1,16 || 5x1,16 || 1x3,16 || 3x3,16 > 1x1,32"


def test_equal_layers_have_equal_mixes() -> None:
    dense = Allocation().at(3, 64)
    assert Allocation.composite(square=1).at(3, 64) == dense
    assert Allocation("composite", (FilterGroup("3x3", 1),)).at(3, 64) == dense
    assert Allocation("dense", join=1).at(3, 64) == Allocation.composite(square=1, join=1).at(3, 64)
    both = (FilterGroup("kx1", 0.25), FilterGroup("3x1", 0.25), FilterGroup("1xk", 0.5))
    assert Allocation("composite", both).at(3, 64) == HALF.at(3, 64)
    assert Allocation.composite(vertical=0.5, horizontal=0.499, square=0.001).at(3, 64) == HALF.at(3, 64)
    assert Allocation("separable", middle=1).at(3, 64) == Allocation("separable").at(3, 64)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"backbone": "vgg11", "layer": {}}', "unknown key 'layer'; did you mean layers?"),
        ('{"backbone": "vgg11", "version": 2}', "reads architectures up to version 1; got version 2; upgrade"),
        ('{"backbone": "vgg11", "version": 2, "new_key": 1}', "got version 2"),
        ('{"backbone": "vgg11", "version": "1"}', "version must be a whole number"),
        ("{}", "needs a backbone"),
        ("[]", "a JSON object is needed"),
        ("{", "not valid JSON"),
        ('{"backbone": "vgg11", "backbone": "nin"}', "'backbone' is repeated"),
        ("{" + 40_000 * '"pool": "max", ' + '"backbone": "nin"}', "'pool' is repeated"),
        ('{"backbone": "nin", "layers": ' + 900 * "[" + 900 * "]" + "}", "layers must be an object"),
        ('{"backbone": "vgg11", "pool": "min"}', "pool must be one of max, avg, none; got 'min'"),
        ('{"backbone": "vgg11", "stem_stride": 3}', "stem_stride must be one of 1, 2, 4; got 3"),
        ('{"backbone": "vgg11", "stem_stride": true}', "stem_stride must be one of 1, 2, 4; got True"),
        ('{"backbone": "vgg11", "batch_norm": 1}', "batch_norm must be one of true, false; got 1"),
        ('{"backbone": "vgg11", "stem_stride": 2.0}', "stem_stride must be one of 1, 2, 4; got 2.0"),
        ('{"backbone": "vgg11", "classifier": "mlp:0"}', "classifier must be linear, conv, mlp or mlp:WIDTH"),
        ('{"backbone": "vgg11", "classifier": "linear:"}', "classifier must be linear, conv, mlp or mlp:WIDTH"),
        ("[" * 100_000, "not valid JSON"),
        ('{"backbone": ' + "1" * 5_000 + "}", "not valid JSON"),
        ('{"backbone": "vgg11", "layers": []}', "layers must be an object"),
    ],
)
def test_bad_architectures(text: str, message: str) -> None:
    with pytest.raises(InvalidArchitecture) as caught:
        Architecture.from_json(text, "net.json")
    assert message in str(caught.value)
    assert str(caught.value).startswith("net.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"form": "composite", "shares": {"kx1": 0.5, "1xk": 0.25}}, "the shares of a layer must sum to 1"),
        ({"form": "composite", "shares": {"kx1": 1.5, "1xk": -0.5}}, "a share must be from 0 to 1; got 1.5 for kx1"),
        ({"form": "composite"}, "got no shares, sum 0"),
        ({"form": "composite", "shares": {"kx1": "a half"}}, "number or a fraction such as \"3/8\"; got 'a half'"),
        ({"form": "composite", "shares": {"kx1": "1/0"}}, "must be a number or a fraction"),
        ({"form": "composite", "shares": {"kx1": True}}, "must be a number or a fraction"),
        ({"form": "composite", "shares": {"0x1": 1}}, "a shape must be kx1, 1xk, kxk"),
        ({"form": "composite", "shares": {"kx1": 0.5, "vertical": 0.5}}, "each shape can be given once"),
        ({"form": "dense", "shares": {"kxk": 1}}, 'shares need form "composite"'),
        ({"form": "separable", "join": 1}, "a separable layer has no join"),
        ({"form": "dense", "middle": 1}, 'middle needs form "separable"'),
        ({"form": "composit"}, "form must be one of dense, composite, separable; got 'composit'"),
        ({"width": 0, "join": 1}, "width must be a multiple of the backbone's width, above 0"),
        ({"width": 0, "form": "separable"}, "width must be a multiple of the backbone's width, above 0"),
        ({"join": 0}, "join must be a multiple of the backbone's width, above 0"),
        ({"width": float("nan")}, "width must be a number"),
        ({"width": 10**400}, "width must be a number"),
        ({"width": "1e999999999"}, "width must be a number"),
        ({"widht": 1}, "unknown key 'widht'; did you mean width?"),
    ],
)
def test_bad_allocations(layer: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArchitecture) as caught:
        Architecture.from_dict({"backbone": "vgg11", "layers": {"conv1_1": layer}})
    assert message in str(caught.value)
    assert "conv1_1" in str(caught.value)


def test_unreadable_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidArchitecture, match=r"cannot read .*No such file"):
        Architecture.load(tmp_path / "missing.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidArchitecture, match="not a text file"):
        Architecture.load(tmp_path / "binary.json")
