"""The fused kernels compared with plain PyTorch: on a GPU if there is one, else with Triton's interpreter."""

import copy
import dataclasses
import subprocess
import sys
from collections.abc import Callable

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrnas import create_model, get_point
from lrnas.layers import accelerate as accelerating, conv, gpu
from lrnas.layers.accelerate import fused
from lrnas.layers.kernels import available, ops, usable
from lrnas.layers.kernels.losses import cross_entropy
from lrnas.layers.kernels.pools import Window

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
QUICK_CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # the interpreter divides masked values, too
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # opcheck's own
]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def gradients(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """The output and, for a random direction, the gradients of all tensors."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    output = function(*leaves)
    output.backward(random(*output.shape, seed=99))
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def assert_same(got: list[Tensor], wanted: list[Tensor], tolerance: float = 1e-5) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * float(other.abs().max()) + 1e-7)


CONVS = [
    # channels, filters, kernel, stride, padding, dilation
    (3, 12, (5, 5), 1, 2, 1),  # few channels: patches
    (1, 6, (3, 3), 2, 0, 2),
    (2, 10, (7, 1), 1, 3, 1),
    (16, 10, (1, 1), 1, 0, 1),  # 1×1: a matrix product, with a width that is no multiple of 8
    (3, 16, (1, 1), 1, 0, 1),  # 1×1 with few channels
    (5, 16, (1, 1), 2, 0, 1),
    (6, 9, (3, 3), 2, 1, 1),  # the library's convolution
]


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("channels", "filters", "kernel", "stride", "padding", "dilation"), CONVS)
def test_convolution(
    channels: int,
    filters: int,
    kernel: tuple[int, int],
    stride: int,
    padding: int,
    dilation: int,
    bias: bool,
    relu: bool,
) -> None:
    tensors = [random(2, channels, 9, 11), random(filters, channels, *kernel, seed=1)]
    tensors += [random(filters, seed=2)] if bias else []
    pairs = ((stride, stride), (padding, padding), (dilation, dilation))

    def ours(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return ops.conv(x, weight, bias, *pairs, relu)

    def plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        out = F.conv2d(x, weight, bias, *pairs)
        return out.relu() if relu else out

    assert_same(gradients(ours, *tensors), gradients(plain, *tensors), 1e-3 if ON_GPU else 1e-5)


@pytest.mark.parametrize(
    ("number", "channels", "height", "width", "relu"),
    [
        *((3, 70, 9, 11, True), (2, 1, 3, 2, False), (83, 7, 10, 10, True), (2, 300, 2, 3, False), (2, 40, 5, 7, True)),
        # so many rows that blocks are loaded ahead
        *(pytest.param(84, 24, 20, 20, relu, marks=pytest.mark.gpu) for relu in (True, False)),
    ],
)
def test_batch_norm(number: int, channels: int, height: int, width: int, relu: bool) -> None:
    x = random(number, channels, height, width) * 3 + 100  # far from zero, where sums of squares lose precision
    weight, bias = random(channels, seed=1) + 2, random(channels, seed=2)
    running = torch.zeros(channels, device=DEVICE), torch.ones(channels, device=DEVICE)
    mean, variance = (tensor.clone() for tensor in running)
    batches = torch.tensor(7, device=DEVICE)

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return ops.batch_norm(x, weight, bias, (mean, variance, batches), 0.1, 1e-5, relu)

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = F.batch_norm(x, *running, weight, bias, True, 0.1, 1e-5)
        return out.relu() if relu else out

    assert_same(gradients(ours, x, weight, bias), gradients(plain, x, weight, bias), 1e-4)
    assert_same([mean, variance], list(running))
    assert batches == 8


def make_norm(channels: int) -> nn.BatchNorm2d:
    """A batch norm as after a training."""
    norm = nn.BatchNorm2d(channels, eps=1e-3).to(DEVICE)
    with torch.no_grad():
        for number, (tensor, start) in enumerate(
            [(norm.weight, 0), (norm.bias, 0), (norm.running_mean, 0), (norm.running_var, 5)]
        ):
            tensor.copy_(start + random(channels, seed=number))
    return norm.eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "layout"),
    [
        (3, 5, (3, 3), torch.contiguous_format),
        (140, 2, (3, 3), torch.channels_last),  # filters with more weights than a program
        (20, 150, (1, 1), torch.channels_last),
    ],
)
@torch.no_grad()
def test_a_norm_becomes_a_part_of_the_convolution(
    channels: int, filters: int, kernel: tuple[int, int], layout: torch.memory_format, bias: bool
) -> None:
    norm, x = make_norm(filters), random(2, channels, 5, 4)
    weight = random(filters, channels, *kernel, seed=7).contiguous(memory_format=layout)
    before = random(filters, seed=8) if bias else None
    wanted = norm(F.conv2d(x, weight, before))
    folded, shift = ops.fold_norm(weight, before, norm)
    assert_same([F.conv2d(x, folded, shift)], [wanted], 1e-3 if ON_GPU else 1e-5)
    scale, shift = ops.norm_factors(before, norm)
    assert_same([F.conv2d(x, weight) * scale[:, None, None] + shift[:, None, None]], [wanted], 1e-3 if ON_GPU else 1e-5)
    pairs = torch.stack([norm.running_mean, norm.running_var], 1)  # not contiguous
    norm.running_mean, norm.running_var = pairs[:, 0], pairs[:, 1]
    assert all(map(torch.equal, ops.norm_factors(before, norm), (scale, shift)))
    assert torch.equal(ops.fold_norm(weight, before, norm)[0], folded)
    halves = ops.fold_norm(weight.half(), before, norm.half())
    assert [tensor.dtype for tensor in halves] == [torch.float16] * 2
    assert_same([halves[0].float()], [folded], 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("number", "classes"), [(150, 10), (1, 2), (3, 1500)])
def test_cross_entropy(number: int, classes: int, smoothing: float, dtype: torch.dtype) -> None:
    logits = (3 * random(number, classes)).to(dtype)
    labels = torch.arange(number, device=DEVICE) * 7 % classes
    loss, correct = torch.tensor(100.0, dtype=torch.float64, device=DEVICE), torch.tensor(5, device=DEVICE)
    grad = cross_entropy(logits, labels, 2 * number, loss, correct, smoothing=smoothing, weight=0.3)
    leaf = logits.float().clone().requires_grad_()
    expected = 0.3 * F.cross_entropy(leaf, labels, label_smoothing=smoothing, reduction="sum")
    (expected / (2 * number)).backward()
    assert leaf.grad is not None and grad.dtype == dtype
    torch.testing.assert_close(grad, leaf.grad.to(dtype), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-7)
    total = expected.item()
    assert float(loss) == pytest.approx(100 + total, rel=1e-5)
    assert int(correct) == 5 + int((logits.argmax(1) == labels).sum())
    cross_entropy(logits, labels, number, loss, smoothing=smoothing)
    assert float(loss) == pytest.approx(100 + total + total / 0.3, rel=1e-5)
    logits[0, 0] = float("nan")
    assert cross_entropy(logits, labels, number, loss).isnan().any() and loss.isnan()


WINDOWS = [(3, 2, 0, True), (2, 2, 0, False), (3, 1, 1, False), (3, 2, 1, True), (5, 3, 2, False), (2, 3, 0, True)]


@pytest.mark.parametrize(("channels", "size"), [(37, (7, 8)), (40, (6, 5))])
@pytest.mark.parametrize(("kernel", "stride", "padding", "ceil_mode"), WINDOWS)
def test_pools(kernel: int, stride: int, padding: int, ceil_mode: bool, channels: int, size: tuple[int, int]) -> None:
    x, window = random(2, channels, *size), Window(kernel, stride, padding)
    assert_same(
        gradients(lambda x: ops.max_pool(x, window, ceil_mode), x),
        gradients(lambda x: F.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil_mode), x),
    )
    for count in (True, False):
        assert_same(
            gradients(lambda x, count=count: ops.average_pool(x, window, ceil_mode, count), x),
            gradients(lambda x, count=count: F.avg_pool2d(x, kernel, stride, padding, ceil_mode, count), x),
        )


@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (1, 40, 7, 7)])
def test_the_largest_value_of_a_whole_map(shape: tuple[int, ...]) -> None:
    x = random(*shape).round(decimals=1)  # some values are there twice
    x[0, 0] = float("-inf")
    x[0, 1, 1, 2] = float("nan")
    for layout in (torch.contiguous_format, torch.channels_last):
        got = gradients(ops.whole_max, x.contiguous(memory_format=layout))
        wanted = gradients(lambda x: F.adaptive_max_pool2d(x, 1), x)
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_pool_passes_nan_on() -> None:
    x = random(1, 2, 4, 4)
    x[0, 1, 2, 2] = float("nan")
    assert torch.equal(ops.max_pool(x, Window(2, 2, 0), False).isnan(), F.max_pool2d(x, 2).isnan())


@pytest.mark.parametrize(("channels", "filters", "kernel", "stride", "padding", "dilation"), CONVS)
def test_the_convolution_passes_opcheck(
    channels: int, filters: int, kernel: tuple[int, int], stride: int, padding: int, dilation: int
) -> None:
    """The input has its channels first in memory; the operator returns a channels-last map."""
    x, weight, bias = random(2, channels, 9, 8), random(filters, channels, *kernel, seed=1), random(filters, seed=2)
    tensors = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    pairs = ([stride] * 2, [padding] * 2, [dilation] * 2)
    torch.library.opcheck(torch.ops.lrnas.conv.default, (*tensors, *pairs, True), test_utils=QUICK_CHECKS)


def test_operators_pass_opcheck() -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in (random(2, 3, 6, 5), random(4, 3, 3, 3), random(4)))
    torch.library.opcheck(torch.ops.lrnas.conv.default, (x, weight, bias, [1, 1], [1, 1], [1, 1], True))
    scale, shift = (torch.ones(3, device=DEVICE, requires_grad=True) for _ in range(2))
    running = (torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE), torch.tensor(7, device=DEVICE))
    torch.library.opcheck(torch.ops.lrnas.statistics.default, (x.detach(), *running, 0.1, 1e-5))
    statistics = torch.ops.lrnas.statistics(x.detach(), *running, 0.1, 1e-5)
    torch.library.opcheck(torch.ops.lrnas.batch_norm.default, (x, statistics, scale, shift, True))
    torch.library.opcheck(torch.ops.lrnas.max_pool.default, (x, [3, 2, 1], True))
    torch.library.opcheck(torch.ops.lrnas.whole_max.default, (x,))
    torch.library.opcheck(torch.ops.lrnas.average_pool.default, (x, [3, 2, 1], True, True))
    norm = ([*running[:2], scale.detach(), shift.detach()], 1e-5)
    torch.library.opcheck(torch.ops.lrnas.norm_factors.default, (None, *norm))
    torch.library.opcheck(torch.ops.lrnas.fold_norm.default, (random(3, 4, 3, 3), None, *norm, torch.float16))


def test_a_relu_passes_nan_on() -> None:
    x = random(1, 8, 3, 3)
    x[0, 2, 1, 1] = float("nan")
    weight, bias = random(8, 8, 1, 1, seed=1), random(8, seed=2)
    ours = gradients(lambda x, w, b: ops.conv(x, w, b, (1, 1), (0, 0), (1, 1), True), x, weight, bias)
    plain = gradients(lambda x, w, b: F.conv2d(x, w, b).relu(), x, weight, bias)
    assert [bool(tensor.isnan().any()) for tensor in ours[1:]] == [bool(tensor.isnan().any()) for tensor in plain[1:]]


def test_a_window_of_minus_infinity_passes_its_gradient_to_its_first_position() -> None:
    x = torch.full((1, 2, 4, 4), float("-inf"), device=DEVICE)
    assert_same(
        gradients(lambda x: ops.max_pool(x, Window(3, 2, 1), False), x)[1:],
        gradients(lambda x: F.max_pool2d(x, 3, 2, 1), x)[1:],
    )


def use_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels on any device."""
    monkeypatch.setattr(gpu, "usable", lambda x: isinstance(x, Tensor) and x.ndim == 4)
    monkeypatch.setattr(accelerating, "available", lambda device: True)


def make_network(name: str, batch_norm: bool) -> nn.Module:
    if name.startswith("timm:"):
        return timm.create_model(name.removeprefix("timm:"), num_classes=5)
    architecture = dataclasses.replace(get_point(name).architecture, batch_norm=batch_norm)
    return create_model(architecture, 5, init="fan_in")


@pytest.mark.parametrize(
    ("name", "batch_norm", "size"),
    [
        ("nin", False, 10),
        ("nin", True, 10),
        pytest.param("vgg-gmp-lr-join", False, 16, marks=pytest.mark.slow),
        pytest.param("timm:resnet10t", True, 32, marks=pytest.mark.slow),
        pytest.param("timm:regnetx_002", True, 32, marks=pytest.mark.slow),  # norm and activation in one module
    ],
)
def test_a_network_computes_the_same(name: str, batch_norm: bool, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output, gradients and running statistics are the same in training, and the model is restored afterwards."""
    use_everywhere(monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # else PyTorch's convolutions would be less exact
    torch.manual_seed(0)
    model = make_network(name, batch_norm).to(DEVICE).train()
    twin = copy.deepcopy(model)
    x = random(2, 3, size, size)
    with fused(twin):
        exchanged = [module for module in twin.modules() if type(module).__name__.startswith("Fused")]
        assert len(exchanged) > 10
        mine = twin(x)
        mine.square().sum().backward()
    assert [type(module) for module in twin.modules()] == [type(module) for module in model.modules()]
    plain = model(x)
    plain.square().sum().backward()
    tolerance = 2e-2 if ON_GPU or batch_norm else 1e-3
    assert_same([mine.detach()], [plain.detach()], tolerance)
    ours = {key: parameter.grad for key, parameter in twin.named_parameters()}
    for key, parameter in model.named_parameters():  # by norm: a ReLU can change sides for single values near zero
        assert (ours[key] - parameter.grad).norm() <= tolerance * parameter.grad.norm() + 1e-6, key
    for one, other in zip(twin.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_inference_has_no_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every norm of a network becomes a part of the convolution before it, with the same result."""
    use_everywhere(monkeypatch)
    torch.manual_seed(0)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = make_network("nin", batch_norm=True).to(DEVICE).train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for number, norm in enumerate(norms):
        norm.momentum = 1.0
        norm.weight.copy_(1 + 0.1 * random(norm.num_features, seed=number))
        norm.bias.copy_(0.1 * random(norm.num_features, seed=number + 100))
    x = random(8, 3, 10, 10)
    model(x)  # the norms take the statistics of these images
    wanted = model.eval()(x)
    assert wanted.std(0).mean() > 0.1, "the output hardly depends on the input"
    with fused(model), monkeypatch.context() as patch:
        patch.setattr(F, "batch_norm", lambda *args, **kwargs: pytest.fail("a norm was computed"))
        assert_same([model(x)], [wanted], 1e-3 if ON_GPU else 1e-4)
        norms[3].running_mean.add_(1)
        changed = model(x)
    assert (changed - wanted).abs().max() > 0.1
    assert_same([changed], [model(x)], 1e-3 if ON_GPU else 1e-4)


@pytest.mark.parametrize(
    "name",
    ["lrnas_nin_c", *(pytest.param(f"lrnas_{name}", marks=pytest.mark.slow) for name in ("vgg_a", "googlenet_b"))],
)
@torch.no_grad()
def test_a_trained_network_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixed-shape layers, plain ones and their norms, with the weights of a training."""
    use_everywhere(monkeypatch)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model, x = timm.create_model(name, pretrained=True).to(DEVICE).eval(), random(1, 3, 16, 16)
    wanted = model(x)
    monkeypatch.setattr(conv, "is_faster", lambda x: True)  # also in float32
    with fused(model):
        assert_same([model(x)], [wanted], 1e-3 if ON_GPU else 1e-5)


def test_norms_that_the_kernels_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch computes them: without a bias, or if they change while the kernels are used, as `update_bn` does."""
    use_everywhere(monkeypatch)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8))
    model[4].register_parameter("bias", None)
    model, x = model.to(DEVICE).train(), [random(4, 3, 5, 5), random(4, 3, 5, 5, seed=1)]
    twin = copy.deepcopy(model)
    with fused(twin):
        torch.optim.swa_utils.update_bn(x, twin)
        assert_same([twin(x[0]).detach()], [copy.deepcopy(model)(x[0]).detach()], 1e-2)
        with torch.no_grad():
            wanted = copy.deepcopy(twin).cpu().double().eval()(x[0].cpu().double())
            assert_same([twin.eval()(x[0])], [wanted.float().to(DEVICE)], 1e-2)
        twin.train()[1].track_running_stats = False
        before = twin[1].running_mean.clone()
        twin(x[0])
        assert torch.equal(twin[1].running_mean, before)


def test_evaluation_and_cpus_use_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model(get_point("nin").architecture, 5).eval()
    x = torch.randn(1, 3, 16, 16)
    wanted = model(x)
    for name in ("conv", "max_pool", "average_pool"):
        monkeypatch.setattr(ops, name, lambda *args: pytest.fail("a kernel ran"))
    with fused(model):
        assert torch.equal(model(x), wanted)  # on a CPU
    monkeypatch.setattr(accelerating, "available", lambda device: True)
    with fused(model):
        assert torch.equal(model(x), wanted)  # not in training
        assert not usable(x) and not available(x.device)
        model.train()(x)  # not on a GPU
    monkeypatch.setenv("LRNAS_KERNELS", "off")
    assert not available(torch.device("cuda"))


def compare_in_training(model: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    use_everywhere(monkeypatch)
    twin = copy.deepcopy(model)
    with fused(twin):
        assert_same([twin(x).detach()], [model(x).detach()], 1e-3)
    assert_same(list(twin.buffers()), list(model.buffers()), 1e-3)


def test_a_sequence_may_contain_a_module_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    relu = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(3, 4, 1), relu, nn.Conv2d(4, 4, 1), relu).to(DEVICE)
    compare_in_training(model, random(2, 3, 4, 4), monkeypatch)


def test_a_frozen_norm_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).to(DEVICE)
    model[1].eval()
    compare_in_training(model, random(2, 3, 4, 4), monkeypatch)


def test_hooks_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    use_everywhere(monkeypatch)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()).to(DEVICE)
    called = []
    for module in model:
        module.register_forward_hook(lambda module, args, output: called.append(type(module).__name__))
    with fused(model):
        model(random(1, 3, 4, 4))
    assert called == ["FusedConv2d", "ReLU"]


def test_what_pytorch_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_everywhere(monkeypatch)
    for module, shape in (
        (nn.Conv2d(3, 4, 3), (1, 1, 8, 8)),
        (nn.Conv2d(3, 4, 5), (1, 3, 2, 2)),
        (nn.MaxPool2d(2), (1, 3, 1, 1)),
        (nn.BatchNorm2d(3), (1, 3, 1, 1)),
    ):
        model = nn.Sequential(nn.Conv2d(shape[1], shape[1], 1), module, nn.ReLU()).to(DEVICE)
        with fused(model), pytest.raises((RuntimeError, ValueError)):
            model(random(*shape))
    for norm in (nn.BatchNorm2d(2), nn.BatchNorm2d(8)):
        model = nn.Sequential(nn.Conv2d(3, 4, 1), norm).to(DEVICE).eval()
        with torch.no_grad(), fused(model), pytest.raises(RuntimeError):
            model(random(1, 3, 5, 5))


@pytest.mark.gpu
def test_errors_in_half_precision_are_no_larger_than_pytorch_s() -> None:
    for batch_norm in (False, True):
        torch.manual_seed(0)
        architecture = dataclasses.replace(get_point("nin").architecture, batch_norm=batch_norm)
        model = create_model(architecture, 10, init="fan_in").to("cuda", memory_format=torch.channels_last).train()
        x = torch.randn(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)

        def grads(model: nn.Module, half: bool, x: Tensor = x) -> list[Tensor]:
            model.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=half):
                loss = F.cross_entropy(model(x).float(), torch.arange(64, device="cuda") % 10)
            loss.backward()
            return [parameter.grad.clone() for parameter in model.parameters()]

        exact, plain = grads(model, False), grads(model, True)
        with fused(model):
            ours = grads(model, True)
        for one, other, wanted in zip(ours, plain, exact, strict=True):
            assert (one - wanted).norm() <= 1.25 * (other - wanted).norm() + 5e-3 * wanted.norm()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_filters_of_the_size_of_their_input_are_a_matrix_product(
    device: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in VGG's classifier. On larger inputs the same layer convolves."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 5, 4).to(device, memory_format=layout)
    for size, products in ((4, 1), (6, 0)):
        x = torch.randn(2, 64, size, size, device=device).to(memory_format=layout).requires_grad_()
        wanted = conv(x)
        gradient = torch.autograd.grad(wanted.square().sum(), (x, *conv.parameters()))
        calls: list[int] = []
        linear = torch.nn.functional.linear
        with monkeypatch.context() as patch, fused(model := nn.Sequential(conv)):
            patch.setattr(torch.nn.functional, "linear", lambda *args, f=linear, c=calls: (c.append(1), f(*args))[1])
            found = model(x)
        ours = torch.autograd.grad(found.square().sum(), (x, *conv.parameters()))
        assert len(calls) == products
        for one, other in zip((found, *ours), (wanted, *gradient), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_torch_compile_knows_what_is_constant_although_it_is_not_imported() -> None:
    marks = vars(torch.compiler.assume_constant_result(lambda: None))
    assert marks and marks.items() <= vars(available).items()
    code = "import sys, lrnas.layers.kernels; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
