"""Counting built models."""

import pytest
import timm
import torch
from torch import nn

from lrnas import count_model
from lrnas.errors import LrnasError
from lrnas.models.count import OUTSIDE


def test_closed_formulas() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 8, (3, 5), stride=2, padding=1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 8 * 7, 5)
    )
    cost = count_model(model, (3, 16, 16))
    conv, norm, linear = cost.layers
    assert (conv.kind, conv.macs, conv.params, conv.biases, conv.output) == (
        "dense",
        8 * 7 * 8 * 3 * 15,
        8 * 45 + 8,
        8,
        (8, 8, 7),
    )
    assert (norm.kind, norm.macs, norm.params) == ("norm", 0, 16)
    assert (linear.kind, linear.macs, linear.params) == ("linear", 448 * 5, 448 * 5 + 5)
    assert cost.macs == conv.macs + linear.macs
    assert cost.paper_multiply_acc() == cost.macs + 8 + 5


def test_grouped_and_depthwise() -> None:
    grouped, depthwise = nn.Conv2d(8, 16, 3, groups=4), nn.Conv2d(16, 16, 3, groups=16)
    cost = count_model(nn.Sequential(grouped, depthwise), (8, 9, 9))
    assert [(layer.kind, layer.macs) for layer in cost.layers] == [
        ("grouped", 7 * 7 * 16 * 2 * 9),
        ("depthwise", 5 * 5 * 16 * 9),
    ]


def test_operations_outside_layers_are_counted() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))
            self.project = nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = (self.project(x) * self.scale[:, None, None]).flatten(2)
            return tokens @ tokens.transpose(1, 2)

    cost = count_model(Attention(), (4, 5, 5))
    assert [(layer.name, layer.macs, layer.params) for layer in cost.layers] == [
        ("project", 25 * 16, 20),
        (OUTSIDE, 4 * 25 * 4, 4),
    ]


def test_a_layer_used_twice_has_its_macs_twice_and_its_parameters_once() -> None:
    conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    cost = count_model(nn.Sequential(conv, nn.ReLU(), conv), (4, 6, 6))
    assert (cost.macs, cost.params) == (2 * 36 * 4 * 4 * 9, 4 * 4 * 9)


def test_the_model_is_left_as_it_was() -> None:
    model = timm.create_model("resnet18", num_classes=3)
    model.train()
    model.layer1.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    count_model(model, 64)
    assert model.training and not model.layer1.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_known_numbers() -> None:
    cost = count_model(timm.create_model("resnet18"))
    assert (cost.macs, cost.params) == (1_814_073_344, 11_689_512)


def test_an_input_that_does_not_fit_is_refused_in_one_line() -> None:
    with pytest.raises(LrnasError, match=r"cannot be counted with an input of 3×16×16: Input height \(16\)") as caught:
        count_model(timm.create_model("vit_tiny_patch16_224"), 16)
    assert "\n" not in str(caught.value)


def test_a_layer_on_maps_of_two_sizes() -> None:
    class Pyramid(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x) + self.conv(x[..., ::2, ::2]).mean()

    assert [layer.macs for layer in count_model(Pyramid(), (4, 8, 8)).layers] == [(64 + 16) * 144]


def test_transposed_and_one_dimensional_layers() -> None:
    up = count_model(nn.Sequential(nn.ConvTranspose2d(4, 6, 2, stride=2)), (4, 5, 5))
    assert [(layer.kind, layer.macs) for layer in up.layers] == [("transposed", 25 * 4 * 6 * 4)]
    line = count_model(nn.Sequential(nn.Conv1d(4, 6, 3)), (4, 10))
    assert [(layer.kind, layer.macs) for layer in line.layers] == [("dense", 8 * 4 * 6 * 3)]


@pytest.mark.parametrize("name", ["beit_base_patch16_224", "pit_ti_224", "tnt_s_patch16_224"])
def test_parameters_of_unusual_models_are_all_counted(name: str) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    assert count_model(model).params == sum(parameter.numel() for parameter in model.parameters())


def test_layers_with_several_outputs() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.LSTM(4, 8, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cell(x.flatten(2).transpose(1, 2))[0]

    assert count_model(Recurrent(), (4, 3, 3)).params == 4 * 8 * (4 + 8) + 2 * 4 * 8


def test_windows_along_the_batch_axis_are_counted() -> None:
    with torch.device("meta"):
        model = timm.create_model("swin_tiny_patch4_window7_224")
    layers = {layer.name: layer.macs for layer in count_model(model).layers}
    assert layers["layers.0.blocks.0.attn.qkv"] == 64 * 49 * 96 * 288
