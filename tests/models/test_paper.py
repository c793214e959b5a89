"""The paper's networks: every published count exactly."""

import dataclasses

import pytest

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.arch.cost import Cost
from lrnas.errors import UnknownName
from lrnas.models.build import create_model
from lrnas.models.count import count_model
from lrnas.models.paper import find_point, get_point, paper_points
from lrnas.models.plan import canonical_id

NAMES = [
    "vgg-11",
    "vgg-gmp",
    "vgg-gmp-sf",
    "vgg-gmp-lr-join-wfull",
    "vgg-gmp-lr-join",
    "vgg-gmp-lr-2x",
    "vgg-gmp-lr",
    "vgg-gmp-lr-lde",
    "googlenet",
    "googlenet-lr",
    "googlenet-lr-conv1",
    "nin",
    "nin-c3",
    "nin-c3-lr",
]


def test_all_fourteen_are_there_and_differ() -> None:
    assert list(paper_points()) == NAMES
    assert len({canonical_id(point.architecture) for point in paper_points().values()}) == 14


@pytest.mark.parametrize("name", [name for name in NAMES if name != "vgg-gmp-lr-lde"])
def test_counts_are_the_published_ones(name: str) -> None:
    point = get_point(name)
    counted = point.count()
    assert (counted.multiply_acc, counted.params) == (point.published.multiply_acc, point.published.params)
    assert not point.explained


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("vgg-11", "vgg-gmp-lr-lde")])
def test_built_models_count_the_same(name: str) -> None:
    """The models that are built have the published counts, too."""
    point = get_point(name)
    architecture, table = point.architecture, point.table
    if point.counted_on is not None:
        architecture = dataclasses.replace(architecture, backbone=point.counted_on)
    model = create_model(architecture, table.num_classes, device="meta")
    layers = count_model(model, table.input_size).layers
    cost = Cost([layer for layer in layers if layer.role != "auxiliary"])
    params = cost.paper_params(table.convention)
    assert params == point.published.params
    if not table.convention.auxiliary_macs:
        assert cost.paper_multiply_acc() == point.published.multiply_acc


def test_the_network_with_other_counts_has_an_explanation() -> None:
    point = get_point("vgg-gmp-lr-lde")
    counted = point.count()
    assert (counted.multiply_acc, counted.params) == (504_414_208 + 13_320, 24_071_752)
    assert (point.published.multiply_acc, point.published.params) == (1_024_052_248, 26_444_584)
    assert point.explained and "no variant tried" in point.note


def test_the_published_accuracies() -> None:
    assert get_point("vgg-gmp-lr-join-wfull").published.accuracy == 0.704181
    assert get_point("vgg-gmp-lr-join-wfull").published.top5 == 0.897385
    assert get_point("nin").published.accuracy == 0.9188
    assert get_point("nin").published.top5 is None


def test_a_network_is_found_under_any_description() -> None:
    half = Allocation.from_dict({"form": "composite", "shares": {"3x1": "1/2", "1x3": 0.5}})
    point = find_point(Architecture("nin_3x3", {"conv1": half, "conv2_1": half, "conv2_2": half, "conv3": half}))
    assert point is not None and point.name == "nin-c3-lr"
    assert find_point(Architecture("nin", batch_norm=True)) is None


def test_names_take_dashes_or_underscores_and_misspelt_ones_get_the_closest() -> None:
    assert get_point("vgg_gmp_lr") is get_point("vgg-gmp-lr")
    with pytest.raises(UnknownName, match="unknown network 'vgg-gmp-rl'; did you mean vgg-gmp-lr"):
        get_point("vgg-gmp-rl")
