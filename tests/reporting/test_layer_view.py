"""Layers of networks: their costs add up to the cost of the network."""

import pytest

from lrnas.arch.architecture import Allocation, Architecture, FilterGroup
from lrnas.models.paper import named_networks
from lrnas.models.plan import make_plan
from lrnas.reporting.layer_view import lay_out, merge_orders
from lrnas.study.study import ImageShape


@pytest.mark.parametrize("name", ["nin-c3-lr", "vgg-gmp-lr-join", "googlenet", "vgg11-bn-gmp"])
def test_costs_of_layers_add_up_to_the_network(name: str) -> None:
    network = named_networks()[name]
    layers = lay_out(network, ImageShape(64, 3, 10))
    cost = make_plan(network, 64, 10, 3, deployed=True).cost
    assert (sum(layer.macs for layer in layers), sum(layer.params for layer in layers)) == (cost.macs, cost.params)
    assert not any(layer.name.endswith(".norm") for layer in layers)
    for layer in layers:
        assert layer.num_filters == sum(layer.counts().values()) and bool(layer.num_filters) == bool(layer.groups)


def test_numbers_of_filters_and_joins() -> None:
    mixed = Allocation(
        "composite", (FilterGroup("kx1", 0.25), FilterGroup("1xk", 0.25), FilterGroup("kxk", 0.5)), join=1
    )
    odd = Allocation("composite", (FilterGroup("3x5", 0.5), FilterGroup("3x3", 0.25), FilterGroup("kxk", 0.25)))
    network = Architecture("nin", {"conv1": odd, "conv2": mixed, "conv3": Allocation("separable")})
    layers = {layer.name: layer for layer in lay_out(network, ImageShape(32, 3, 10))}
    assert layers["conv2"].counts() == {"kx1": 48, "1xk": 48, "kxk": 96} and layers["conv2"].join == 192
    assert layers["conv1"].counts() == {"kxk": 96, "other": 96} and layers["conv1"].join is None
    assert layers["conv3"].counts() == {"kx1": 192, "1xk": 192} and layers["conv3"].join is None
    assert layers["conv3"].is_varied and not layers["cccp1"].is_varied
    assert layers["conv2"].shape_to_dict()["groups"] == [[5, 1, 48, "kx1"], [1, 5, 48, "1xk"], [5, 5, 96, "kxk"]]


def test_layers_of_different_backbones_are_in_a_natural_order() -> None:
    plans = [make_plan(Architecture(name)) for name in ("nin_3x3", "nin")]
    orders = [[conv.name for conv in plan.convs if conv.kernel > 1] for plan in plans]
    assert merge_orders(orders) == ["conv1", "conv2", "conv2_1", "conv2_2", "conv3"]
    assert merge_orders([["features.8", "features.10"], ["stem", "features.8"]]) == [
        "stem",
        "features.8",
        "features.10",
    ]
    assert merge_orders([["a", "b"], ["b", "a"]]) == ["a", "b"]  # they contradict each other
    assert merge_orders([]) == []
