"""Mixed-shape convolutions compared with dense convolutions that have zeros around the filters."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from timm.layers import Conv2dSame
from torch import Tensor, nn

from lrnas.arch.architecture import Filters, Mix
from lrnas.errors import ConversionError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d, make_conv

SHAPES = [(3, 1), (1, 3), (3, 3), (5, 1), (1, 7), (1, 1), (2, 1)]


def embed(weight: Tensor, window: int) -> Tensor:
    """A small filter in the middle of a window × window filter of zeros."""
    rows, columns = weight.shape[2:]
    top, left = (window - 1) // 2 - (rows - 1) // 2, (window - 1) // 2 - (columns - 1) // 2
    return F.pad(weight, (left, window - columns - left, top, window - rows - top))


def dense_twin(layer: CompositeConv2d, conv: nn.Conv2d) -> Tensor:
    """The weights of the k×k convolution that computes the same as the groups."""
    assert conv.kernel_size[0] == layer.kernel_size[0]
    return torch.cat([embed(group.weight, layer.kernel_size[0]) for group in layer.group_convs()])


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, object]:
    k = draw(st.sampled_from((3, 5, 7, 4)))
    mode = draw(st.sampled_from(("zeros", "zeros", "reflect", "replicate", "circular")))
    dilation = draw(st.sampled_from((1, 1, 2, (1, 3))))
    stride = draw(st.sampled_from((1, 2, (2, 1), 3)))
    paddings: list[object] = [0, 1, 2, (2, 1), (k - 1) // 2]
    if stride == 1:
        paddings += ["valid", *(["same"] if k % 2 else [])]
    return {
        "kernel_size": k,
        "stride": stride,
        "padding": draw(st.sampled_from(paddings)),
        "dilation": dilation,
        "padding_mode": mode,
        "bias": draw(st.booleans()),
    }


@given(geometries(), st.lists(st.integers(0, 3), min_size=len(SHAPES), max_size=len(SHAPES)).filter(any))
@settings(max_examples=150)
def test_composite_is_a_dense_convolution_with_zeros(geometry: dict[str, object], counts: list[int]) -> None:
    k = geometry["kernel_size"]
    assert isinstance(k, int)
    filters = {shape: n for shape, n in zip(SHAPES, counts, strict=True) if max(shape) <= k} or {(1, 1): 1}
    if not any(filters.values()):
        filters[3, 1] = 1
    layer = CompositeConv2d(2, filters, dtype=torch.float64, **geometry)  # type: ignore[arg-type]
    dense = nn.Conv2d(2, layer.out_channels, dtype=torch.float64, **geometry)  # type: ignore[arg-type]
    with torch.no_grad():
        dense.weight.copy_(dense_twin(layer, dense))
        if dense.bias is not None:
            dense.bias.copy_(torch.cat([group.bias for group in layer.group_convs()]))
    x = torch.randn(2, 2, 23, 26, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dense(x))


@given(geometries())
@settings(max_examples=80)
def test_separable_has_the_output_size_of_the_dense_layer(geometry: dict[str, object]) -> None:
    layer = SeparableConv2d(3, 8, middle=5, **geometry)  # type: ignore[arg-type]
    dense = nn.Conv2d(3, 8, **geometry)  # type: ignore[arg-type]
    x = torch.randn(1, 3, 23, 26)
    assert layer(x).shape == dense(x).shape


@pytest.mark.parametrize("stride", [1, 2, (2, 1)])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_separable_is_a_dense_convolution_of_outer_products(stride: int, mode: str) -> None:
    kwargs = {"stride": stride, "padding": 1, "padding_mode": mode, "bias": False, "dtype": torch.float64}
    layer = SeparableConv2d(3, 8, 3, middle=5, **kwargs)  # type: ignore[arg-type]
    dense = nn.Conv2d(3, 8, 3, **kwargs)  # type: ignore[arg-type]
    first, second = layer.halves()
    with torch.no_grad():
        dense.weight.copy_(torch.einsum("omi,mcj->ocij", second.weight[..., 0], first.weight[:, :, 0]))
    x = torch.randn(2, 3, 11, 12, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dense(x))


@pytest.mark.parametrize("k", [3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [14, 15])
def test_tensorflow_padding(k: int, stride: int, size: int) -> None:
    dense = Conv2dSame(2, 4, k, stride)
    layer = CompositeConv2d(2, {(k, 1): 1, (1, k): 2, (k, k): 1}, k, stride, padding="tf_same")
    with torch.no_grad():
        dense.weight.copy_(dense_twin(layer, dense))
        dense.bias.copy_(torch.cat([group.bias for group in layer.group_convs()]))
    x = torch.randn(1, 2, size, size + 3)
    torch.testing.assert_close(layer(x), dense(x))
    separable = SeparableConv2d(2, 4, k, stride, padding="tf_same")
    assert separable(x).shape == dense(x).shape


def test_join_mixes_the_concatenation_with_no_activation_between() -> None:
    layer = CompositeConv2d(3, {(1, 3): 2, (3, 3): 1, (3, 1): 4}, 3, padding=1, join=5)
    x = torch.randn(2, 3, 8, 8)
    convs = [layer.get_submodule(f"conv{shape}") for shape in ("3x1", "1x3", "3x3")]
    assert layer.join is not None
    torch.testing.assert_close(layer(x), layer.join(torch.cat([conv(x) for conv in convs], dim=1)))
    assert (layer(x) < 0).any()


def test_state_dict_keys_are_readable_and_stable() -> None:
    composite = CompositeConv2d(3, {(3, 3): 1, (1, 3): 2, (3, 1): 3, (5, 1): 0}, 3, join=4)
    assert list(composite.state_dict()) == [
        f"{name}.{part}" for name, part in product(("conv3x1", "conv1x3", "conv3x3", "join"), ("weight", "bias"))
    ]
    assert list(SeparableConv2d(3, 4, 3, bias=False).state_dict()) == ["conv1x3.weight", "conv3x1.weight"]


def test_zero_filters_in_any_group() -> None:
    for counts in product((0, 2), repeat=3):
        if any(counts):
            layer = CompositeConv2d(3, dict(zip([(3, 1), (1, 3), (3, 3)], counts, strict=True)), 3, padding=1)
            assert layer(torch.randn(1, 3, 5, 5)).shape == (1, sum(counts), 5, 5)


def test_refusals() -> None:
    for filters, join in (({(3, 1): 0}, None), ({(3, 1): 4}, 0), ([Filters(3, 1, 2), Filters(3, 1, 2)], None)):
        with pytest.raises(ConversionError, match="no shape twice, and a join of None or at least 1"):
            CompositeConv2d(3, filters, 3, join=join)
    with pytest.raises(ConversionError, match=r"larger than the window .* need padding with zeros"):
        CompositeConv2d(3, {(5, 1): 2}, 3, padding=1, padding_mode="circular")
    with pytest.raises(ConversionError, match="needs a kernel of at least 2x2; got 1x3"):
        SeparableConv2d(3, 8, (1, 3))


def test_larger_shapes_widen_the_margin() -> None:
    layer = CompositeConv2d(3, {(5, 1): 2, (1, 7): 2}, 3, stride=2, padding=1)
    x = torch.randn(1, 3, 9, 9)
    twin = nn.Conv2d(3, 2, (5, 1), stride=2, padding=(2, 0))
    twin.load_state_dict(layer.get_submodule("conv5x1").state_dict())
    torch.testing.assert_close(layer(x)[:, :2], twin(x))
    assert layer(x).shape == (1, 4, 5, 5)


def test_an_image_without_a_batch() -> None:
    layer = CompositeConv2d(3, {(3, 1): 2, (1, 3): 2}, [3, 3], padding=1, join=5)  # type: ignore[arg-type]
    assert layer(torch.randn(3, 6, 6)).shape == (5, 6, 6)


def make_layers() -> list[nn.Module]:
    return [
        CompositeConv2d(4, {(3, 1): 3, (1, 3): 3, (3, 3): 2}, 3, stride=2, padding=1, join=6),
        CompositeConv2d(4, {(3, 1): 3, (1, 3): 3}, 3, padding=0),  # crops its input
        CompositeConv2d(4, {(3, 1): 3, (1, 3): 3}, 3, padding=1, padding_mode="reflect"),
        SeparableConv2d(4, 6, 3, stride=2, padding=1, middle=5),
        CompositeConv2d(4, {(3, 1): 3, (1, 3): 3}, 3, stride=2, padding="tf_same"),
        SeparableConv2d(4, 6, 3, padding=1, padding_mode="circular"),
    ]


@pytest.mark.parametrize("index", range(6))
def test_gradients(index: int) -> None:
    layer = make_layers()[index].double()
    x = torch.randn(1, 4, 6, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


@pytest.mark.parametrize("index", range(6))
def test_channels_last_in_channels_last_out(index: int) -> None:
    layer = make_layers()[index]
    x = torch.randn(2, 4, 9, 9)
    expected = layer(x)
    result = layer.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_and_autocast(index: int, dtype: torch.dtype) -> None:
    layer = make_layers()[index]
    x = torch.randn(2, 4, 9, 9)
    expected = layer(x)
    if dtype != torch.float64:
        with torch.autocast("cpu", dtype=dtype):
            assert layer(x).dtype == dtype
    result = layer.to(dtype)(x.to(dtype))
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), expected, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("index", range(6))
def test_export(index: int) -> None:
    layer = make_layers()[index].eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(layer, (torch.randn(2, 4, 9, 9),), dynamic_shapes=({0: batch},))
    x = torch.randn(5, 4, 9, 9)
    torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("index", range(6))
def test_torchscript(index: int) -> None:
    layer = make_layers()[index]
    x = torch.randn(2, 4, 9, 9)
    torch.testing.assert_close(torch.jit.script(layer)(x), layer(x))


@pytest.mark.slow
@pytest.mark.parametrize("index", [pytest.param(0, marks=pytest.mark.ci), 1, 2, 3])
def test_compile(index: int) -> None:
    layer = make_layers()[index]
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(2, 4, 9, 9)
    torch.testing.assert_close(compiled(x), layer(x))
    compiled(x).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


def test_make_conv_returns_the_simplest_module() -> None:
    assert type(make_conv(3, Mix((Filters(3, 3, 8),)), 3, padding=1)) is nn.Conv2d
    smaller = make_conv(3, Mix((Filters(3, 3, 8),)), 5, padding=2)
    assert type(smaller) is WindowConv2d
    assert smaller.padding == (1, 1) and smaller.margin is None
    assert isinstance(make_conv(3, Mix((Filters(3, 3, 8),), Filters(1, 1, 4)), 3), CompositeConv2d)
    assert isinstance(make_conv(3, Mix((Filters(1, 3, 8),), Filters(3, 1, 4)), 3), SeparableConv2d)


def test_repr_names_the_geometry() -> None:
    text = repr(CompositeConv2d(4, {(3, 1): 3, (1, 3): 3}, 3, stride=2, padding=1, dilation=2))
    assert "CompositeConv2d(\n  4, 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), dilation=(2, 2)" in text
