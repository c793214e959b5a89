"""Folded layers and networks compute the same as before."""

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from lrnas.arch.architecture import Allocation, Architecture
from lrnas.errors import ConversionError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d
from lrnas.layers.fold import (
    Folding,
    dense_form,
    fold,
    foldable_layers,
    join_kernels,
    joined_bias,
    merged_form,
    reason_to_keep,
    single_form,
)
from lrnas.layers.norms import find_norms, fold_norm
from lrnas.models.build import create_model

SHAPES = [(3, 1), (1, 3), (3, 3), (5, 1), (1, 7), (1, 1), (2, 1)]


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, object]:
    k = draw(st.sampled_from((3, 5, 7, 4)))
    mode = draw(st.sampled_from(("zeros", "zeros", "reflect", "replicate", "circular")))
    stride = draw(st.sampled_from((1, 2, (2, 1), 3)))
    paddings: list[object] = [0, 1, 2, (2, 1), (k - 1) // 2]
    if stride == 1:
        paddings += ["valid", "same"]
    if mode == "zeros":
        paddings.append("tf_same")
    return {
        "kernel_size": k,
        "stride": stride,
        "padding": draw(st.sampled_from(paddings)),
        "dilation": draw(st.sampled_from((1, 1, 2, (1, 3)))),
        "padding_mode": mode,
        "bias": draw(st.booleans()),
        "dtype": torch.float64,
    }


def largest(geometry: dict[str, object]) -> int:
    """The largest filter size that a layer may have. Only padding with zeros allows filters larger than the window."""
    k = geometry["kernel_size"]
    assert isinstance(k, int)
    return 99 if geometry["padding_mode"] == "zeros" and geometry["padding"] != "tf_same" else k


def image() -> Tensor:
    return torch.randn(2, 2, 23, 26, dtype=torch.float64)


def make_norm(channels: int, norm: nn.BatchNorm2d | None = None) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels) if norm is None else norm
    norm.double().eval()
    for values in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(values)  # type: ignore[arg-type]
    nn.init.uniform_(norm.running_var, 0.5, 2.0)  # type: ignore[arg-type]
    return norm


@given(geometries(), st.lists(st.integers(0, 3), min_size=7, max_size=7).filter(any), st.sampled_from((None, 1, 5)))
@settings(max_examples=100)
def test_a_composite_layer_is_one_convolution(geometry: dict[str, object], counts: list[int], join: int | None) -> None:
    limit = largest(geometry)
    filters = {shape: n for shape, n in zip(SHAPES, counts, strict=True) if n and max(shape) <= limit} or {(3, 1): 2}
    layer = CompositeConv2d(2, filters, join=join, **geometry)  # type: ignore[arg-type]
    x = image()
    dense = dense_form(layer)
    assert isinstance(dense, nn.Conv2d)
    torch.testing.assert_close(dense(x), layer(x))
    assert not isinstance(dense, WindowConv2d) or dense.margin == (*dense.margins[1], *dense.margins[0])
    merged = merged_form(layer)
    assert (merged is None) == (join is None)
    if merged is not None:
        torch.testing.assert_close(merged(x), layer(x))
    single = single_form(layer)
    assert (single is None) == (join is None)
    if single is not None:
        torch.testing.assert_close(single(x), layer(x))
        (weight,) = (values for values in single.parameters() if values.ndim == 4)
        assert weight.shape[2:] == tuple(max(shape[axis] for shape in filters) for axis in (0, 1))
    fits = all(max(shape) <= geometry["kernel_size"] for shape in filters)  # type: ignore[operator]
    assert not fits or dense.kernel_size == layer.kernel_size


@given(geometries())
@settings(max_examples=80)
def test_a_separable_layer_is_one_convolution_where_that_is_exact(geometry: dict[str, object]) -> None:
    layer = SeparableConv2d(2, 5, middle=3, **geometry)  # type: ignore[arg-type]
    dense, x = dense_form(layer), image()
    if dense is not None:
        torch.testing.assert_close(dense(x), layer(x))
    padded = geometry["padding"] not in (0, "valid")
    assert (
        (dense is None)
        == bool(reason_to_keep(layer))
        == (bool(geometry["bias"]) and padded and geometry["padding_mode"] == "zeros")
    )


def test_a_bias_in_the_first_half_prevents_a_dense_form() -> None:
    layer = SeparableConv2d(2, 5, 3, padding=1, dtype=torch.float64)
    assert reason_to_keep(layer) == "its first half has a bias, its second half pads with zeros"
    assert dense_form(layer) is None
    first, _ = layer.halves()
    nn.init.zeros_(first.bias)  # type: ignore[arg-type]
    dense, x = dense_form(layer), image()
    assert dense is not None
    torch.testing.assert_close(dense(x), layer(x))


@pytest.mark.parametrize("margin", [None, (1, 0, 2, -1)])
@pytest.mark.parametrize("kernel", [(3, 1), (1, 4)])
def test_narrow_filters_by_themselves(kernel: tuple[int, int], margin: tuple[int, int, int, int] | None) -> None:
    layer = WindowConv2d(2, 3, kernel, kernel, stride=2, padding=1, dilation=(2, 1), dtype=torch.float64)
    if margin is not None:
        left, right, top, bottom = layer.margin = margin
        layer.padding, layer.margins = (0, 0), ((top, bottom), (left, right))
    dense, x = dense_form(layer), image()
    assert isinstance(dense, nn.Conv2d) and dense.kernel_size == (max(kernel), max(kernel))
    torch.testing.assert_close(dense(x), layer(x))


@given(geometries(), st.sampled_from(("composite", "join", "separable")))
@settings(max_examples=40)
def test_a_batch_norm_goes_into_the_layer_before_it(geometry: dict[str, object], kind: str) -> None:
    layer: nn.Module
    if kind == "separable":
        layer = SeparableConv2d(2, 6, middle=3, **geometry)  # type: ignore[arg-type]
    else:
        filters = {(3, 1): 2, (1, 3): 3, (3, 3): 1}
        layer = CompositeConv2d(2, filters, join=6 if kind == "join" else None, **geometry)  # type: ignore[arg-type]
    norm, x = make_norm(6), image()
    expected = norm(layer(x))
    fold_norm(layer, norm)
    torch.testing.assert_close(layer(x), expected)
    if (dense := dense_form(layer)) is not None:
        torch.testing.assert_close(dense(x), expected)


class Odd(nn.Module):
    """A model with batch norms that can be folded and batch norms that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.good = nn.Conv2d(2, 4, 3, groups=2)
        self.good_norm = BatchNormAct2d(4)
        self.shared = nn.Conv2d(4, 4, 1)
        self.norm_a, self.norm_b = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.read_twice = nn.Conv2d(4, 4, 1)
        self.norm_c = nn.BatchNorm2d(4)
        self.activated = nn.Conv2d(4, 4, 1)
        self.norm_d = nn.BatchNorm2d(4)
        self.composite = CompositeConv2d(4, {(3, 1): 2, (1, 3): 2}, 3, padding=1, bias=False)
        self.norm_e = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.good_norm(self.good(x))
        x = self.norm_b(self.shared(self.norm_a(self.shared(x))))
        y = self.read_twice(x)
        assert y.shape[1] == 4  # reading the size does not count as a use
        x = self.norm_c(y) + y
        x = self.norm_d(self.activated(x).relu())
        return self.norm_e(self.composite(x))


def test_a_norm_is_folded_only_if_nothing_else_uses_its_input() -> None:
    model = Odd().double().eval()
    for norm in [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]:
        make_norm(norm.num_features, norm)
    x = torch.randn(2, 2, 9, 9, dtype=torch.float64)
    expected = model(x)
    norms = find_norms(model, x)
    assert norms == {"good": "good_norm", "composite": "norm_e"}
    folded = fold(copy.deepcopy(model), Folding(norms, {"composite": "dense"}))
    torch.testing.assert_close(folded(x), expected)
    assert type(folded.good_norm) is nn.ReLU and type(folded.norm_e) is nn.Identity
    assert type(folded.composite) is nn.Conv2d and not folded.training


@pytest.mark.parametrize(
    "architecture",
    [
        Architecture("nin", {"*": Allocation.composite(vertical=0.5, horizontal=0.5, join=1)}, batch_norm=True),
        Architecture("timm:test_resnet", {"*": Allocation.composite(vertical=0.5, square=0.5)}),
        Architecture("timm:test_efficientnet", {"*": Allocation("separable")}),
    ],
    ids=lambda architecture: architecture.backbone,
)
def test_whole_networks(architecture: Architecture) -> None:
    torch.manual_seed(0)
    model = create_model(architecture, 10).double().eval()
    for norm in [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]:
        make_norm(norm.num_features, norm)
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    expected = model(x)
    norms = find_norms(model, x)
    assert len(norms) == sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    layers = foldable_layers(model)
    assert layers
    folded = fold(copy.deepcopy(model), Folding(norms, dict.fromkeys(layers, "dense")))
    torch.testing.assert_close(folded(x), expected)
    assert not foldable_layers(folded)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())


def test_pre_activation_norms_stay() -> None:
    model = timm.create_model("resnetv2_18", num_classes=4).eval()
    norms = find_norms(model, torch.randn(1, 3, 32, 32))
    assert all(".norm1" not in norm or ".conv" in conv for conv, norm in norms.items())
    x = torch.randn(1, 3, 32, 32)
    expected = model(x)
    torch.testing.assert_close(fold(model, Folding(norms))(x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("filters", "window", "geometry", "taps"),
    [
        ({(3, 1): 4, (1, 3): 5}, 3, {"padding": 1}, (1, 3, 4, 5, 7)),
        ({(3, 1): 4, (1, 3): 5, (3, 3): 2}, 3, {"padding": 1}, tuple(range(9))),
        ({(5, 1): 3, (1, 3): 3}, 5, {"padding": 2, "dilation": 2}, (1, 4, 6, 7, 8, 10, 13)),
        ({(1, 3): 3}, 3, {"padding": 1, "stride": 2}, (0, 1, 2)),
    ],
)
def test_groups_and_join_are_one_convolution(
    filters: dict[tuple[int, int], int], window: int, geometry: dict[str, int], taps: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    composite = CompositeConv2d(6, filters, window, join=7, **geometry).double()
    x = torch.randn(2, 6, 11, 9).double()
    joined = join_kernels(composite)
    assert composite.join is not None
    assert joined.taps == taps
    (above, below), (left, right) = joined.margins
    stride, dilation = composite.stride, composite.dilation
    bias = joined_bias(composite, composite.join.bias)
    out = F.conv2d(F.pad(x, (left, right, above, below)), joined.weight, bias, stride, 0, dilation)
    torch.testing.assert_close(out, composite(x))
    looked_at = joined.weight.flatten(2).abs().sum((0, 1)).nonzero().flatten()
    assert tuple(looked_at.tolist()) == taps


def test_the_joined_bias_with_a_scale() -> None:
    torch.manual_seed(0)
    composite = CompositeConv2d(6, {(3, 1): 4, (1, 3): 5}, 3, padding=1, join=7)
    scale, shift, x = torch.randn(7), torch.randn(7), torch.randn(1, 6, 5, 5)
    assert composite.join is not None and composite.join.bias is not None
    bias = joined_bias(composite, shift + scale * composite.join.bias, scale)
    assert bias is not None
    ours = F.conv2d(x, join_kernels(composite).weight, None, padding=1) * scale[:, None, None] + bias[:, None, None]
    theirs = composite(x) * scale[:, None, None] + shift[:, None, None]
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_folding_that_does_not_fit() -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.ReLU())
    for folding, message in (
        (Folding({"0": "2"}), "2 must be a BatchNorm2d to be folded; got nothing"),
        (Folding({"0": "1"}), "1 must be a BatchNorm2d to be folded; got a ReLU"),
        (Folding({}, {"0": "dense"}), "the layer 0 cannot take the form 'dense'"),
    ):
        with pytest.raises(ConversionError, match=message):
            fold(model, folding)
