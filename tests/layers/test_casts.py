"""Weights that are cast together, compared with autocast, which casts them one by one."""

import copy

import pytest
import torch
from torch import Tensor, nn

from lrnas.layers.casts import CastWeights
from lrnas.layers.conv import CompositeConv2d, ConvBlock


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        ConvBlock(3, 8, 3, batch_norm=True),
        CompositeConv2d(8, {(3, 1): 4, (1, 3): 4, (3, 3): 2}, 3, padding=1, join=12),
        CompositeConv2d(12, {(3, 1): 4, (1, 3): 4}, 3, padding=1, bias=False, join=8),
        nn.Conv2d(8, 16, 1),
        nn.Flatten(),
        nn.Linear(16 * 36, 10),
    )


def gradients(model: nn.Module, network: nn.Module | CastWeights, x: Tensor) -> list[Tensor]:
    """The output of two passes and the sum of their gradients."""
    outputs = []
    for part in x.chunk(2):
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            outputs.append(network(part))
        outputs[-1].float().square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    assert all(grad is not None and grad.dtype == torch.float32 for grad in found)
    return [*(output.detach() for output in outputs), *(grad for grad in found if grad is not None)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_results_are_those_of_autocast(layout: torch.memory_format) -> None:
    model = make_model().to(memory_format=layout)
    plain = copy.deepcopy(model)
    x = torch.randn(4, 3, 6, 6).to(memory_format=layout)
    together = CastWeights(model, torch.bfloat16)
    assert list(together.weights) == [
        "0.conv.weight",
        "2.join.weight",
        *("3.weight", "3.bias"),
        *("5.weight", "5.bias"),
    ]
    for got, expected in zip(gradients(model, together, x), gradients(plain, plain, x), strict=True):
        assert got.dtype == expected.dtype and torch.equal(got, expected)
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine.dtype == torch.float32 and torch.equal(mine, other)


def test_layers_that_share_a_weight() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    plain = copy.deepcopy(model)
    x = torch.randn(6, 4)
    network = CastWeights(model, torch.bfloat16)
    assert list(network.weights) == ["0.weight", "0.bias", "2.bias"]
    for got, expected in zip(gradients(model, network, x), gradients(plain, plain, x), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)  # two gradients are added in half precision


def test_frozen_and_unused_weights_get_no_gradients() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "frozen": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    model["frozen"].requires_grad_(False)
    model.forward = lambda x: model["frozen"](model["used"](x))  # type: ignore[method-assign, operator]
    network = CastWeights(model, torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.ones(2, 4)).sum().backward()
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == {
        "used.weight",
        "used.bias",
    }


def test_other_layers_keep_their_weights() -> None:
    """A layer with a `forward` of its own may use its weights in any operation."""

    class Standardised(nn.Conv2d):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            assert self.weight.dtype == torch.float32
            return self._conv_forward(input, self.weight - self.weight.mean(), self.bias)

    model = Standardised(3, 4, 3)
    network = CastWeights(model, torch.bfloat16)
    assert network.weights == {}
    with torch.autocast("cpu", torch.bfloat16):
        assert network(torch.ones(1, 3, 5, 5)).dtype == torch.bfloat16
