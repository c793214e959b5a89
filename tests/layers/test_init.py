"""The composite initialisation: the variance of weights, and of gradients in a deep stack."""

import math

import pytest
import torch
from torch import nn

from lrnas.errors import LrnasError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
from lrnas.layers.init import Rule, initialise
from lrnas.models.build import create_model
from lrnas.models.paper import get_point

DEPTH, WIDTH = 20, 48


def make_stack(kind: str) -> nn.Sequential:
    """20 mixed-shape layers with ReLU; circular padding, so that no gradient is lost at the border."""

    def layer() -> nn.Module:
        half, quarter = WIDTH // 2, WIDTH // 4
        filters = {"halves": {(3, 1): half, (1, 3): half}}.get(kind, {(3, 1): quarter, (1, 3): quarter, (3, 3): half})
        if kind == "separable":
            return SeparableConv2d(WIDTH, WIDTH, 3, padding=1, padding_mode="circular")
        join = WIDTH if kind == "joined" else None
        return CompositeConv2d(WIDTH, filters, 3, padding=1, padding_mode="circular", join=join)

    return nn.Sequential(*(module for _ in range(DEPTH) for module in (layer(), nn.ReLU())))


def gradient_growth(stack: nn.Sequential, rule: Rule, seed: int) -> list[float]:
    """Variance of the gradient at every layer's input, from the last to the first, relative to the top."""
    generator = torch.Generator().manual_seed(seed)
    initialise(stack, rule, generator=generator)
    x = torch.randn(4, WIDTH, 16, 16, generator=generator, requires_grad=True)
    inputs = [x]
    for module in stack:
        inputs.append(module(inputs[-1]))
    inputs[-1].backward(torch.randn(inputs[-1].shape, generator=generator), inputs=inputs[:-1:2])
    variances = [float(tensor.grad.var()) for tensor in inputs[:-1:2] if tensor.grad is not None]
    return [variance / variances[-1] for variance in reversed(variances)]


@pytest.mark.parametrize("kind", ["halves", "mixed", "joined", "separable"])
def test_composite_rule_keeps_the_variance_of_gradients(kind: str) -> None:
    runs = [gradient_growth(make_stack(kind), "composite", seed) for seed in range(5)]
    for at_layer in zip(*runs, strict=True):
        mean = math.exp(sum(map(math.log, at_layer)) / len(at_layer))
        assert 0.5 < mean < 2


@pytest.mark.parametrize(("kind", "per_layer"), [("halves", 2.0), ("mixed", 3.0)])
def test_gradients_grow_with_fan_out_per_group(kind: str, per_layer: float) -> None:
    """Each of n groups is initialised as if it were the whole layer, so the variance grows n-fold at every layer."""
    growth = gradient_growth(make_stack(kind), "fan_out", seed=0)
    assert growth[-1] ** (1 / (DEPTH - 1)) == pytest.approx(per_layer, rel=0.1)
    assert growth[-1] > 1e5


def test_sigma_of_every_group() -> None:
    layer = CompositeConv2d(64, {(3, 1): 96, (1, 3): 96, (3, 3): 64}, 3, join=256)
    n_hat = 3 * 96 + 3 * 96 + 9 * 64
    expected: dict[Rule, dict[str, float]] = {
        # before a join no ReLU stops half of what flows back, so the gain is 1
        "composite": {"conv3x1": 1 / n_hat, "conv1x3": 1 / n_hat, "conv3x3": 1 / n_hat, "join": 2 / 256},
        "fan_out": {"conv3x1": 1 / 288, "conv1x3": 1 / 288, "conv3x3": 1 / 576, "join": 2 / 256},
        "fan_in": {"conv3x1": 1 / 192, "conv1x3": 1 / 192, "conv3x3": 1 / 576, "join": 2 / 256},
    }
    for rule, variances in expected.items():
        initialise(layer, rule, generator=torch.Generator().manual_seed(1))
        for name, variance in variances.items():
            conv = layer.get_submodule(name)
            assert float(conv.weight.detach().var()) == pytest.approx(variance, rel=0.05)
            assert not conv.bias.any()
    alone = CompositeConv2d(64, {(3, 1): 96, (1, 3): 96}, 3)
    initialise(alone)
    for group in alone.group_convs():
        assert float(group.weight.detach().std()) == pytest.approx(math.sqrt(2 / (3 * 96 + 3 * 96)), rel=0.03)


def test_plain_layers_get_he_fan_out_and_the_classifier_its_fan_in() -> None:
    class Model(nn.Sequential):
        def get_classifier(self) -> nn.Module:
            return self[3]

    model = Model(nn.Conv2d(32, 64, 3), nn.BatchNorm2d(64), nn.Linear(256, 512), nn.Linear(512, 10))
    nn.init.constant_(model[1].weight, 7)
    initialise(model)
    assert float(model[0].weight.detach().std()) == pytest.approx(math.sqrt(2 / (9 * 64)), rel=0.05)
    assert float(model[2].weight.detach().std()) == pytest.approx(math.sqrt(2 / 512), rel=0.05)
    assert float(model[3].weight.detach().std()) == pytest.approx(math.sqrt(1 / 512), rel=0.05)
    assert bool((model[1].weight == 1).all())


@pytest.mark.parametrize("name", ["nin", "nin-c3-lr", "googlenet", "googlenet-lr", "vgg-gmp-lr-join"])
def test_whole_networks_start_sanely(name: str) -> None:
    """Logits are of order 1, the first loss is near chance, and the loss stays finite in the first steps."""
    torch.manual_seed(0)
    model = create_model(get_point(name).architecture, 10)
    size = 64 if name.startswith("googlenet") else 32
    x, labels = torch.randn(8, 3, size, size), torch.arange(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    for step in range(4):
        outputs = model(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = sum(nn.functional.cross_entropy(output, labels) for output in outputs) / len(outputs)
        if step == 0:
            assert float(outputs[0].detach().std()) < 3
            assert float(loss.detach()) < 2 * math.log(10) + 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert math.isfinite(float(loss.detach()))


def test_gradients_keep_their_variance_through_inception_modules() -> None:
    torch.manual_seed(0)
    model = create_model(get_point("googlenet-lr").architecture, 10, aux_logits=False)
    inputs: dict[str, torch.Tensor] = {}
    for name in ("inception_3a", "inception_4a", "inception_5a"):

        def keep(module: nn.Module, args: tuple[torch.Tensor, ...], name: str = name) -> None:
            args[0].retain_grad()
            inputs[name] = args[0]

        model.get_submodule(name).register_forward_pre_hook(keep)
    features = model.forward_features(torch.randn(4, 3, 224, 224))
    features.backward(torch.randn_like(features))
    variances = [float(x.grad.var() * x[0, 0].numel()) for x in inputs.values() if x.grad is not None]
    assert max(variances) / min(variances) < 30


def test_default_is_pytorchs_own() -> None:
    layer = CompositeConv2d(8, {(3, 1): 4, (1, 3): 4}, 3)
    torch.manual_seed(3)
    expected = CompositeConv2d(8, {(3, 1): 4, (1, 3): 4}, 3).state_dict()
    torch.manual_seed(3)
    initialise(layer, "default")
    for name, tensor in layer.state_dict().items():
        torch.testing.assert_close(tensor, expected[name])


def test_seeded_draws_repeat_and_unknown_rules_do_not_pass() -> None:
    layers = [CompositeConv2d(8, {(3, 1): 4, (1, 3): 4}, 3) for _ in range(2)]
    for layer in layers:
        initialise(layer, generator=torch.Generator().manual_seed(5))
    assert torch.equal(layers[0].conv3x1.weight, layers[1].conv3x1.weight)  # type: ignore[union-attr,arg-type]
    with pytest.raises(LrnasError, match="one of composite, fan_in, fan_out, default; got 'xavier'"):
        initialise(layers[0], "xavier")  # type: ignore[arg-type]
