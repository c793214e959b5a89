"""The composite convolution compared with float64: on a GPU if there is one, else with Triton's interpreter.

The same layers are computed by `tiled` (in half precision) and by `gathered` (in float32).
"""

import copy
import dataclasses
import random
from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

from lrnas import create_model, get_point
from lrnas.layers import accelerate as accelerating, conv as layers, gpu
from lrnas.layers.accelerate import accelerate, fused
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d
from lrnas.layers.gpu import Form
from lrnas.layers.kernels import blocks, composite, gathered
from lrnas.layers.kernels.composite_op import composite_conv
from lrnas.layers.kernels.layer import Layer
from lrnas.spaces.space import load_space

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
HALF = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter cannot multiply bfloat16
TOLERANCE = {torch.float32: 2e-3 if ON_GPU else 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]
SEEDS = range(150) if ON_GPU else (1, 2, 4, 5, 6, 7, 8, 9)  # the interpreter is slow: only small layers
SHAPES = [(3, 1), (1, 3), (3, 3), (1, 1), (5, 1), (1, 5), (2, 3)]


@dataclasses.dataclass
class Case:
    layer: Layer
    channels: int
    height: int
    width: int
    number: int = 2
    bias: bool = True
    relu: bool = True
    contiguous: bool = True
    pool: int = 1


def random_case(seed: int, *, stride: bool = True) -> Case:
    draw = random.Random(seed)
    kernels = tuple(draw.sample(SHAPES, draw.choice([1, 2, 2, 3])))
    filters = tuple(draw.choice([1, 3, 8, 16, 17, 24, 40]) for _ in kernels)
    if draw.random() < 0.5:  # the filters fill a multiple of 16 bytes, but groups begin anywhere
        filters = (*filters[:-1], filters[-1] + -sum(filters) % 8)
    steps = (draw.choice([1, 1, 2]), draw.choice([1, 1, 2])) if stride else (1, 1)
    dilation = (draw.choice([1, 1, 2]), draw.choice([1, 1, 3]))
    height, width = draw.randint(6, 11), draw.randint(6, 11)
    # all groups are in the middle of the same window, with a random shift
    moved = draw.choice([-1, 0, 0, 1])
    margins = tuple(
        (dilation[0] * ((rows - 1) // 2) + moved, dilation[1] * ((cols - 1) // 2)) for rows, cols in kernels
    )
    size = tuple(draw.randint(1, length) // step + 1 for length, step in zip((height, width), steps, strict=True))
    layer = Layer(filters, kernels, margins, steps, dilation, size)
    channels = draw.choice([1, 3, 5, 8, 16, 20, 40])
    return Case(
        layer, channels, height, width, draw.choice([1, 2, 3]), draw.random() < 0.7, draw.random() < 0.5,
        draw.random() < 0.7, draw.choice([1, 1, 2]) if min(size) > 1 else 1,
    )  # fmt: skip


def compare(case: Case, dtype: torch.dtype, *, needs_input: bool = True) -> None:
    """Compare the output and all gradients with those of PyTorch's convolutions in float64."""
    generator = torch.Generator().manual_seed(case.channels)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(DEVICE)

    x = draw(case.number, case.channels, case.height, case.width).to(dtype)
    x = x if case.contiguous else x.transpose(2, 3).contiguous().transpose(2, 3)
    weights = [
        (draw(num, case.channels, *kernel) / (case.channels * kernel[0] * kernel[1]) ** 0.5).to(dtype)
        for num, kernel in zip(case.layer.filters, case.layer.kernels, strict=True)
    ]
    bias = draw(case.layer.num_filters) if case.bias else None
    size = [length // case.pool for length in case.layer.size]
    direction = draw(case.number, case.layer.num_filters, *size).to(dtype)
    results = []
    for exact in (torch.float64, dtype):
        leaves = [tensor.to(exact).requires_grad_() for tensor in (x.detach(), *weights)]
        leaves[0].requires_grad_(needs_input)
        shift = None if bias is None else bias.clone().to(torch.float32 if exact == dtype else exact).requires_grad_()
        out = composite_conv(leaves[0], leaves[1:], shift, case.layer, relu=case.relu, pool=case.pool)
        if exact == torch.float64 and case.relu:  # near zero, the sign depends on rounding
            direction = direction * (out.abs() > 0.02)
        if exact == torch.float64 and case.pool > 1:  # so does the larger of two nearly equal values
            direction = direction * is_clear(leaves[0], leaves[1:], shift, case)
        out.backward(direction.to(exact))
        gradients = [leaf.grad for leaf in leaves[not needs_input :]]
        results.append([out.detach(), *gradients, *([] if shift is None else [shift.grad])])
    for wanted, got in zip(*results, strict=True):
        assert got.shape == wanted.shape
        error = (got.double() - wanted).norm() / (wanted.norm() + 1e-6)
        assert error <= TOLERANCE[dtype], (case, error)


@torch.no_grad()
def is_clear(x: Tensor, weights: list[Tensor], bias: Tensor | None, case: Case) -> Tensor:
    """Mask of the pooling windows whose largest value is clearly above the second largest."""
    out = composite_conv(x, weights, bias, case.layer)
    windows = F.unfold(out.flatten(0, 1)[:, None], case.pool, stride=case.pool)
    first, second = windows.topk(2, dim=1).values.unbind(1)
    return (first - second > 0.02).view(len(x), -1, *(length // case.pool for length in case.layer.size))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_layers_gathered(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    compare(random_case(seed), torch.float32)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_layers_tiled(seed: int) -> None:
    compare(random_case(seed, stride=seed % 4 == 0), HALF)


@pytest.mark.parametrize("filters", [(12, 36), (60, 60), (3, 9, 36), (30, 90, 72), (15, 15, 210)])
def test_groups_that_begin_within_16_bytes(filters: tuple[int, ...]) -> None:
    """A box must not begin there: this would end the process and, with MPS, all processes on the same GPU."""
    kernels = ((3, 1), (1, 3), (3, 3))[: len(filters)]
    margins = tuple((rows // 2, cols // 2) for rows, cols in kernels)
    compare(Case(Layer(filters, kernels, margins, (1, 1), (1, 1), (8, 8)), 24, 8, 8, relu=False), HALF)


def stem(window: int, stride: int, side: int, filters: tuple[int, int, int] = (3, 4, 5)) -> Layer:
    """A first layer with k×1, 1×k and k×k filters."""
    pad, size = window // 2, (side - 1) // stride + 1
    kernels, margins = ((window, 1), (1, window), (window, window)), ((pad, 0), (0, pad), (pad, pad))
    return Layer(filters, kernels, margins, (stride, stride), (1, 1), (size, size))


STEMS = [  # first layer, rows and columns of the image, pool after the layer
    (stem(7, 2, 14), 14, 1),
    (stem(3, 2, 9), 9, 1),
    (stem(3, 2, 12), 12, 2),
    (stem(3, 1, 7), 7, 2),  # the last row and column are in no window of the pool
    (stem(3, 1, 8, (8, 16, 24)), 8, 4),
    (stem(3, 1, 8)._replace(dilation=(2, 1), margins=((2, 0), (0, 1), (2, 1))), 8, 2),
    (stem(3, 1, 8)._replace(margins=((-1, -1), (-1, -1), (-1, -1)), size=(4, 4)), 8, 2),  # crops
    (stem(7, 2, 14)._replace(dilation=(2, 1), margins=((6, 0), (0, 3), (6, 3))), 14, 1),
    (stem(7, 2, 14)._replace(stride=(2, 1), size=(7, 14)), 14, 1),
    (stem(7, 2, 14)._replace(size=(6, 9)), 14, 1),  # less padding below than above, more right than left
    (stem(7, 2, 14)._replace(margins=((-1, -4), (-4, -1), (-1, -1)), size=(3, 3)), 14, 1),  # crops
]
LARGE_STEMS = [
    (stem(window, stride, side, (16, 16, 40)), side, 1)
    for window, stride, side in ((7, 2, 64), (7, 1, 32), (11, 4, 67), (13, 2, 30))
]


@pytest.mark.parametrize(("layer", "side", "pool"), [*STEMS, *(LARGE_STEMS if ON_GPU else [])])
def test_first_layers(layer: Layer, side: int, pool: int) -> None:
    """First layers read images: few channels, a large window, a stride, and often no gradient of the input."""
    for needs_input in (True, False):
        compare(Case(layer, 3, side, side, relu=pool == 1, pool=pool), HALF, needs_input=needs_input)
    if pool > 1:
        compare(Case(layer, 3, side, side, relu=True, pool=pool, bias=False), torch.float32, needs_input=False)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_layers(dtype: torch.dtype) -> None:
    """Sizes that fill whole blocks, as in VGG, and a few that do not."""
    lr, full = ((3, 1), (1, 3)), ((3, 1), (1, 3), (3, 3))
    for channels, filters, kernels, size in (
        (64, (64, 64), lr, 112), (256, (256, 256), lr, 28), (96, (96, 96), lr, 16), (3, (32, 32), lr, 64),
        (512, (192, 192, 128), full, 14), (72, (37, 41, 5), full, 30),
    ):  # fmt: skip
        margins = tuple(((rows - 1) // 2, (cols - 1) // 2) for rows, cols in kernels)
        layer = Layer(filters, kernels, margins, (1, 1), (1, 1), (size, size))
        compare(Case(layer, channels, size, size, 16), dtype)


def lr_layer(size: tuple[int, int], filters: tuple[int, int] = (8, 16)) -> Layer:
    return Layer(filters, ((3, 1), (1, 3)), ((1, 0), (0, 1)), (1, 1), (1, 1), size)


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
@pytest.mark.parametrize(("size", "channels"), [((8, 6), 3), ((7, 9), 16)])
def test_scale_and_pool(size: tuple[int, int], channels: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, *size, device=DEVICE).to(dtype)
    weights = [torch.randn(num, channels, *kernel, device=DEVICE) for num, kernel in ((8, (3, 1)), (16, (1, 3)))]
    bias, scale = torch.randn(2, 24, device=DEVICE)
    outs = [
        composite_conv(
            x.to(exact), [w.to(dtype).to(exact) for w in weights], bias, lr_layer(size),
            scale=scale, relu=True, pool=2,
        )
        for exact in (dtype, torch.float64)
    ]  # fmt: skip
    assert outs[0].shape == (2, 24, size[0] // 2, size[1] // 2)
    assert (outs[0].double() - outs[1]).norm() <= TOLERANCE[dtype] * outs[1].norm()


@pytest.mark.parametrize("channels", [16, 20])
def test_weights_in_any_memory_layout(channels: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, channels, 6, 5, device=DEVICE).to(HALF)
    weights = [torch.randn(num, channels, *kernel, device=DEVICE) for num, kernel in ((8, (3, 1)), (16, (1, 3)))]
    outs = [
        composite_conv(
            x, [weight.to(dtype).contiguous(memory_format=layout) for weight in weights], None, lr_layer((6, 5))
        )
        for dtype in (torch.float32, HALF)
        for layout in (torch.contiguous_format, torch.channels_last)
    ]
    assert all(torch.equal(out, outs[0]) for out in outs[1:])


def test_a_layer_with_more_groups_than_tiled_supports() -> None:
    kernels = ((1, 1), (3, 1), (1, 3), (3, 3), (5, 1))
    margins = tuple((rows // 2, cols // 2) for rows, cols in kernels)
    compare(Case(Layer((8, 8, 16, 8, 8), kernels, margins, (1, 1), (1, 1), (7, 6)), 16, 7, 6), HALF)


@pytest.mark.parametrize(("channels", "filters", "pool"), [(16, 8, 1), (40, 72, 2), (24, 20, 1)])
def test_taps_without_weights_are_skipped(channels: int, filters: int, pool: int) -> None:
    """If the corners of a window have no weights, only the other positions are read."""
    layer = Layer((filters,), ((3, 3),), ((1, 1),), (1, 1), (1, 1), (7, 6), taps=(1, 3, 4, 5, 7))
    torch.manual_seed(0)
    x = torch.randn(2, channels, 7, 6, device=DEVICE).to(HALF)
    weight = torch.randn(filters, channels, 3, 3, device=DEVICE) / (5 * channels) ** 0.5
    weight[:, :, ::2, ::2] = 0
    exact = composite_conv(x.double(), [weight.to(HALF).double()], None, layer, pool=pool)
    for given in (weight, weight.to(HALF).contiguous(memory_format=torch.channels_last)):
        with torch.no_grad():
            out = composite_conv(x, [given], None, layer, pool=pool)
        assert (out.double() - exact).norm() <= TOLERANCE[HALF] * exact.norm()
        filled = given.clone()
        filled[:, :, ::2, ::2] = 9  # these weights are not read
        with torch.no_grad():
            assert torch.equal(composite_conv(x, [filled], None, layer, pool=pool), out)


def test_pools_are_powers_of_two() -> None:
    x, weight = torch.randn(1, 8, 6, 6, device=DEVICE), torch.randn(8, 8, 1, 1, device=DEVICE)
    layer = Layer((8,), ((1, 1),), ((0, 0),), (1, 1), (1, 1), (6, 6))
    with pytest.raises(RuntimeError, match=r"1, 2, 4.*got 3x3 of 6x6"):
        composite_conv(x, [weight], None, layer, pool=3)


def test_gradients_by_finite_differences() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(shape).double().requires_grad_() for shape in ((2, 4, 4, 5), (2, 4, 3, 1), (3, 4, 1, 3), 5)]
    for pool in (1, 2):
        assert torch.autograd.gradcheck(
            lambda x, v, h, b, p=pool: composite_conv(x, [v, h], b, lr_layer((4, 5), (2, 3)), relu=True, pool=p),
            tensors,
        )


def test_the_operator_passes_opcheck() -> None:
    x, bias = (torch.randn(shape, device=DEVICE).requires_grad_() for shape in ((2, 4, 4, 5), 5))
    weights = [torch.randn(shape, device=DEVICE).requires_grad_() for shape in ((2, 4, 3, 1), (3, 4, 1, 3))]
    geometry = ([1, 0, 0, 1], [1, 1], [1, 1], [4, 5], None)
    torch.library.opcheck(torch.ops.lrnas.composite.default, (x, weights, bias, None, *geometry, True, 1, False))
    with torch.no_grad():
        torch.library.opcheck(
            torch.ops.lrnas.composite.default,
            (x.detach(), [w.detach() for w in weights], bias.detach(), bias.detach(), *geometry, True, 2, False),
        )
    with pytest.raises(RuntimeError, match="for inference"):
        composite_conv(x, weights, bias, lr_layer((4, 5), (2, 3)), scale=bias.detach())


def use_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels on any device."""
    monkeypatch.setattr(layers, "is_faster", lambda x: x.ndim == 4)
    monkeypatch.setattr(gpu, "usable", lambda x: isinstance(x, Tensor) and x.ndim == 4)
    monkeypatch.setattr(accelerating, "available", lambda device: True)


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    calls: list[dict[str, object]] = []
    own = composite.forward

    def counted(*args: object) -> Tensor:
        calls.append({"scale": args[3] is not None, "relu": args[5], "pool": args[6]})
        return own(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(composite, "forward", counted)
    return calls


MODULES: list[tuple[Callable[[], nn.Module], int]] = [
    (lambda: CompositeConv2d(8, {(3, 1): 8, (1, 3): 5, (3, 3): 3}, 3, padding=1), 1),
    (lambda: CompositeConv2d(8, {(3, 1): 8, (1, 3): 8}, 3, padding=1, stride=2, join=6), 1),
    (lambda: CompositeConv2d(8, {(1, 3): 4, (3, 3): 2}, 3, padding=0, bias=False), 1),  # crops
    (lambda: CompositeConv2d(3, {(5, 1): 4, (2, 2): 2}, 4, padding=1), 1),  # uneven margins
    (lambda: CompositeConv2d(8, {(3, 1): 4, (1, 3): 2}, 3, padding=1, padding_mode="reflect"), 1),
    (lambda: CompositeConv2d(8, {(3, 1): 4, (1, 3): 2}, 3, padding="same", dilation=2), 1),
    (lambda: SeparableConv2d(8, 6, 3, padding=1, stride=2), 2),
]


@pytest.mark.parametrize(("make", "kernels"), MODULES)
def test_modules_compute_the_same(make: Callable[[], nn.Module], kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    module = make().to(DEVICE)
    x = torch.randn(2, next(module.parameters()).shape[1], 9, 8, device=DEVICE)
    wanted = module(x)
    use_everywhere(monkeypatch)
    calls = count_calls(monkeypatch)
    torch.testing.assert_close(module(x), wanted, rtol=1e-3, atol=1e-4)
    assert len(calls) == kernels


@pytest.mark.parametrize("join", [None, 8])
def test_a_first_layer_of_images_as_a_module(join: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(gathered, "forward")  # `gathered` must not be used here
    torch.manual_seed(0)
    layer = CompositeConv2d(3, {(7, 1): 4, (1, 7): 4, (7, 7): 8}, 7, stride=2, padding=3, join=join).to(DEVICE)
    model = nn.Sequential(layer, nn.BatchNorm2d(layer.out_channels).to(DEVICE), nn.ReLU()).eval()
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm2d)
    for value in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(value)  # type: ignore[arg-type]
    x = torch.randn(2, 3, 17, 16, device=DEVICE)
    with torch.no_grad():
        wanted = model(x)
        use_everywhere(monkeypatch)
        calls = count_calls(monkeypatch)
        got = accelerate(model.to(HALF))(x.to(HALF))
    assert len(calls) == 1
    assert (got.float() - wanted).norm() <= 2 * TOLERANCE[HALF] * wanted.norm()


def small_network(kind: str, batch_norm: bool) -> nn.Module:
    """Three blocks as in a VGG. A pool follows the first and the second block; the second pool has an odd size."""

    def conv(channels: int, filters: int) -> nn.Module:
        if kind == "separable":
            return SeparableConv2d(channels, filters, 3, padding=1)
        shares = {(3, 1): filters // 2, (1, 3): filters // 2}
        # biases before a batch norm, too, as in some of timm's networks
        return CompositeConv2d(channels, shares, 3, padding=1, join=filters if kind == "join" else None)

    def block(channels: int, filters: int) -> list[nn.Module]:
        return [conv(channels, filters), *([nn.BatchNorm2d(filters)] if batch_norm else []), nn.ReLU()]

    return nn.Sequential(*block(3, 8), nn.MaxPool2d(2), *block(8, 8), nn.MaxPool2d(2, 2), *block(8, 8))


@pytest.mark.parametrize(
    ("kind", "batch_norm", "form", "wanted"),
    [  # scale, ReLU and pool of every call
        ("plain", False, None, [(False, True, 2), (False, True, 2), (False, True, 1)]),
        ("plain", True, None, [(True, True, 2), (True, True, 2), (True, True, 1)]),
        ("join", True, None, [(True, True, 2), (True, True, 2), (True, True, 1)]),  # the joins are folded in
        ("join", False, Form.JOINED, [(False, True, 2), (False, True, 2), (False, True, 1)]),
        ("join", True, Form.LIBRARY, []),
        ("join", False, Form.LIBRARY, []),
        # the last join is a matrix product
        ("join", False, Form.APART, [(False, False, 1), (False, True, 2)] * 2 + [(False, False, 1)]),
        ("join", True, Form.APART, [(False, False, 1), (True, True, 2)] * 2 + [(False, False, 1), (True, True, 1)]),
        ("separable", True, None, [(False, False, 1), (True, True, 2)] * 2 + [(False, False, 1), (True, True, 1)]),
    ],
)
def test_in_evaluation_a_layer_computes_what_follows_it(
    kind: str,
    batch_norm: bool,
    form: Form | None,
    wanted: list[tuple[bool, bool, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if form is not None:
        monkeypatch.setattr(gpu, "best_form", lambda composite, positions, pools: form)
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(gpu, "MANY_POSITIONS", 100)  # biases go into the join's on the larger maps
    model = small_network(kind, batch_norm).to(DEVICE)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.weight)  # positive and negative scales
    model.eval()
    x = torch.randn(2, 3, 14, 14, device=DEVICE)
    with torch.no_grad():
        plain = model(x)
        use_everywhere(monkeypatch)
        calls = count_calls(monkeypatch)
        ours = accelerate(model)(x)
    torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()))
    assert [tuple(call.values()) for call in calls] == wanted


@pytest.mark.parametrize(
    ("kind", "many", "wanted"),
    [
        ("plain", 1, [(False, True, 2), (False, True, 2), (False, True, 1)]),
        ("join", 1 << 14, [(False, True, 2), (False, False, 1), (False, True, 2), (False, False, 1)]),
        ("join", 1, [(False, True, 2), (False, False, 1), (False, True, 2), (False, False, 1)]),
    ],
)
def test_in_training_a_layer_computes_relu_and_pool(
    kind: str, many: int, wanted: list[tuple[bool, bool, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(gpu, "MANY_POSITIONS", many)  # from which on biases go into the join's
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = small_network(kind, False).to(DEVICE)
    x = torch.randn(2, 3, 14, 14, device=DEVICE)
    model(x).square().sum().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    use_everywhere(monkeypatch)
    calls = count_calls(monkeypatch)
    with fused(model):
        model(x).square().sum().backward()
    assert [tuple(call.values()) for call in calls] == wanted
    for parameter, gradient in zip(model.parameters(), plain, strict=True):
        assert (parameter.grad - gradient).norm() <= 1e-2 * gradient.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["vgg-gmp-lr", "vgg-gmp-lr-join", "vgg-gmp-lr-join-wfull", "vgg-gmp-sf", "nin-c3-lr"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_networks_in_half_precision(name: str, batch_norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    architecture = dataclasses.replace(get_point(name).architecture, batch_norm=batch_norm)
    model = create_model(architecture, 10, init="fan_in").eval().to("cuda", memory_format=torch.channels_last)
    x = torch.randn(4, 3, 64, 64, device="cuda")
    with torch.no_grad():
        exact = model(x)
        half = model.to(torch.bfloat16)
        x = x.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "is_faster", lambda x: False)
            plain = half(x).float()
        ours = half(x).float()
        calls = count_calls(monkeypatch)
        all_fused = accelerate(half)(x).float()
    assert any(call["scale"] for call in calls) == batch_norm
    for result in (ours, all_fused):
        assert (result - exact).norm() <= 1.5 * (plain - exact).norm() + 1e-3 * exact.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("name", ["nin", "vgg11"])
def test_random_networks_of_a_search(name: str, seed: int) -> None:
    """Their layers have any number of filters; errors of gradients are about as small as those of PyTorch's layers."""
    draw, space = random.Random(seed), load_space(name, batch_norm=True)
    architecture = space.architecture(space.draw(draw))
    torch.manual_seed(seed)
    model = create_model(architecture, 10, init="fan_in").to(DEVICE, memory_format=torch.channels_last)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    x = torch.randn(8, 3, 64, 64, device=DEVICE).contiguous(memory_format=torch.channels_last)

    def gradients(dtype: torch.dtype, *, ours: bool) -> Tensor:
        model.zero_grad()
        with pytest.MonkeyPatch.context() as patch, torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
            if not ours:
                patch.setattr(layers, "is_faster", lambda x: False)
            model(x).float().log_softmax(1)[:, 0].sum().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])

    exact = gradients(torch.float32, ours=False)
    plain, ours = gradients(torch.bfloat16, ours=False), gradients(torch.bfloat16, ours=True)
    assert (ours - exact).norm() <= 1.5 * (plain - exact).norm() + 1e-2 * exact.norm()


def test_modules_with_hooks_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    use_everywhere(monkeypatch)
    calls = count_calls(monkeypatch)
    module = CompositeConv2d(8, {(3, 1): 8, (1, 3): 8}, 3, padding=1, join=4).to(DEVICE)
    seen: list[str] = []
    module.get_submodule("conv3x1").register_forward_hook(lambda *args: seen.append("conv3x1"))
    with fused(module), torch.no_grad():
        module(torch.randn(1, 8, 5, 5, device=DEVICE))
    assert seen == ["conv3x1"]
    assert len(calls) == 1  # only the module without hooks uses the kernel


def test_identities_and_hooks_for_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    use_everywhere(monkeypatch)
    model = nn.Sequential(CompositeConv2d(8, {(3, 1): 8, (1, 3): 8}, 3, padding=1), nn.Identity(), nn.ReLU())
    model.to(DEVICE)
    x, seen = torch.randn(1, 8, 5, 5, device=DEVICE), []
    model[1].register_forward_hook(lambda module, *args: seen.append(type(module).__name__))
    with fused(model), torch.no_grad():
        model(x)
    assert seen == ["Identity"]
    handle = nn.modules.module.register_module_forward_hook(lambda module, *args: seen.append(type(module).__name__))
    try:
        with fused(model), torch.no_grad():
            model(x)
    finally:
        handle.remove()
    assert {"FusedCompositeConv2d", "ReLU", "FusedSequential"} <= set(seen)


def test_a_model_can_be_accelerated_twice_and_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_network("separable", False)
    on_cpu = type(accelerate(model)[0].halves()[0])
    assert on_cpu.__mro__[1].__module__ == "lrnas.layers.cpu"
    use_everywhere(monkeypatch)  # as if it had been moved to a GPU
    for _ in range(2):
        accelerate(model)
        assert type(model[0]).__mro__[1:] == (gpu._Separable, *SeparableConv2d.__mro__)
        with fused(model):
            pass
    assert "lrnas.layers.cpu" not in {base.__module__ for module in model.modules() for base in type(module).__mro__}


def test_a_map_that_is_too_small_raises_pytorch_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    use_everywhere(monkeypatch)
    model = nn.Sequential(SeparableConv2d(8, 8, 3), nn.ReLU()).to(DEVICE)
    with fused(model), pytest.raises(RuntimeError, match="Kernel size"):
        model(torch.randn(1, 8, 2, 5, device=DEVICE))


@pytest.mark.gpu
def test_the_kernels_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch)
    monkeypatch.setenv("LRNAS_KERNELS", "off")
    module = CompositeConv2d(8, {(3, 1): 8, (1, 3): 8}, 3, padding=1).to(DEVICE, HALF)
    module(torch.randn(1, 8, 5, 5, device=DEVICE, dtype=HALF))
    assert calls == []


def test_maps_of_one_pixel_and_views() -> None:
    """Such tensors can have any strides, and can begin at any address."""
    torch.manual_seed(0)
    flat = torch.randn(3 * 16 + 1, device=DEVICE).to(HALF)[1:].view(3, 16, 1, 1)
    weights = [torch.randn(8, 16, *kernel, device=DEVICE).to(HALF) for kernel in ((3, 1), (1, 3))]
    layer = lr_layer((1, 1), (8, 8))
    exact = composite_conv(flat.double(), [weight.double() for weight in weights], None, layer)
    ours = composite_conv(flat, weights, None, layer)
    assert (ours.double() - exact).norm() <= TOLERANCE[HALF] * exact.norm()
    with pytest.raises(RuntimeError, match="got 2x2 of 1x1"):
        composite_conv(flat, weights, None, layer, pool=2)


def test_block_lengths_pad_little() -> None:
    assert blocks.fitting([256, 256], (64, 128)) == 128
    assert blocks.fitting([192], (64, 128)) == 64
    assert blocks.fitting([96, 96], (64, 128)) == 128
    assert blocks.fitting([24], (16, 32, 64)) == 32


def compare_compiled(model: nn.Module, x: Tensor, backend: str, tolerance: float) -> None:
    """Compare outputs and gradients of a model and of the compiled model, which must be one graph."""
    before = copy.deepcopy(model.state_dict())

    def step(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        model.load_state_dict(before)
        model.zero_grad()
        torch.manual_seed(0)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=ON_GPU):
            out = run(x)
        out.float().square().mean().backward()
        return [out.detach().float(), *(cast(Tensor, weight.grad).clone() for weight in model.parameters())]

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # torch 2.11 does not reset them
    plain, compiled = step(model), torch.compile(model, backend=backend, fullgraph=True)
    for one, other in zip(step(compiled), plain, strict=True):
        assert (one - other).norm() <= tolerance * other.norm()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_layers_compile_as_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph per layer would reach PyTorch's limit on how often it compiles the same code, which is 8."""
    use_everywhere(monkeypatch)
    torch.manual_seed(0)
    first = CompositeConv2d(4, {(3, 1): 3, (1, 3): 2, (3, 3): 2}, 3, padding=1, join=4)
    second = CompositeConv2d(4, {(3, 1): 2, (1, 3): 4}, 3, padding=1)
    model = accelerate(nn.Sequential(first, nn.BatchNorm2d(4), nn.ReLU(), second, nn.ReLU()).to(DEVICE))
    compare_compiled(model, torch.randn(2, 4, 2, 2, device=DEVICE), "aot_eager", 1e-2 if ON_GPU else 1e-4)


def test_a_compiled_layer_computes_the_pool_that_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use_everywhere(monkeypatch)
    layer = CompositeConv2d(4, {(3, 1): 3, (1, 3): 5}, 3, padding=1)
    model = accelerate(nn.Sequential(layer, nn.ReLU(), nn.MaxPool2d(2)).to(DEVICE))
    calls = count_calls(monkeypatch)
    torch.compile(model, backend="aot_eager")(torch.randn(2, 4, 4, 4, device=DEVICE))
    assert [call["pool"] for call in calls] == [2]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # torch.compile says so where it is not used
@pytest.mark.parametrize("name", ["nin-c3-lr", "vgg-gmp-lr-join-wfull"])
def test_networks_compile_as_one_graph(name: str) -> None:
    model = create_model(get_point(name).architecture, 10).to(DEVICE, memory_format=torch.channels_last).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    x = torch.randn(16, 3, 64, 64, device=DEVICE).contiguous(memory_format=torch.channels_last)
    compare_compiled(accelerate(model), x, "inductor", 3e-2)


@pytest.mark.gpu
def test_compiled_and_captured() -> None:
    """torch.compile, autocast and CUDA graphs, forward and backward."""
    torch.manual_seed(0)
    module = CompositeConv2d(16, {(3, 1): 16, (1, 3): 16}, 3, padding=1, join=24).to(
        "cuda", memory_format=torch.channels_last
    )
    x = torch.randn(4, 16, 12, 12, device="cuda").contiguous(memory_format=torch.channels_last)

    def step(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        module.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            out = F.relu(run(x))
        out.float().square().mean().backward()
        return [out.detach().float(), *(parameter.grad.clone() for parameter in module.parameters())]

    plain = step(module)
    for one, other in zip(step(torch.compile(module, fullgraph=True)), plain, strict=True):
        assert (one - other).norm() <= 2e-2 * other.norm()
    with torch.no_grad():
        half = module.to(torch.bfloat16)
        static = x.to(torch.bfloat16)
        wanted = half(static)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = half(static)
        graph.replay()
        assert torch.equal(out, wanted)
