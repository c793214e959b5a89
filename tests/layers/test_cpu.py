"""Accelerated models on a CPU: the same results, in fewer passes over memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lrnas import create_model, get_point
from lrnas.layers.accelerate import accelerate, fused
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d


def run(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["vgg-gmp-lr-join", "vgg-gmp-sf", "googlenet-lr-conv1", "nin-c3-lr"])
def test_accelerated_networks_compute_the_same(name: str) -> None:
    torch.manual_seed(0)
    model, x = create_model(get_point(name).architecture, 10).eval(), torch.randn(2, 3, 64, 64)
    wanted = run(model, x)
    with fused(model):
        torch.testing.assert_close(run(model, x), wanted, rtol=1e-3, atol=1e-5)
    assert torch.equal(run(model, x), wanted)


@pytest.mark.parametrize("geometry", [(3, 1, 1), (3, 2, 1), (5, 1, 0), (4, 1, 1), (3, 1, 2, 2), (7, 2, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_groups_and_join_after_few_channels_are_one_convolution(geometry: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    kernel = geometry[0]
    filters = {(kernel, 1): 8, (1, kernel): 8}
    layer = CompositeConv2d(3, filters, *geometry, bias=bias, join=24)
    x = torch.randn(2, 3, 32, 32)
    wanted = run(layer, x)
    calls: list[nn.Module] = []
    accelerate(layer)
    torch.testing.assert_close(run(layer, x), wanted, rtol=1e-4, atol=1e-5)
    assert run(layer, x).is_contiguous(memory_format=torch.channels_last)
    layer.join.register_forward_hook(lambda module, *_: calls.append(module))  # type: ignore[union-attr]
    torch.testing.assert_close(run(layer, x), wanted, rtol=1e-4, atol=1e-5)
    assert calls == [layer.join]  # modules with hooks are called


def test_groups_that_have_fewer_products_by_themselves_stay_apart() -> None:
    layer = accelerate(CompositeConv2d(64, {(3, 1): 16, (1, 3): 16}, 3, padding=1, join=64))
    convolutions = count_of("aten::conv2d", layer, torch.randn(1, 64, 16, 16))
    assert convolutions == 3
    few = accelerate(CompositeConv2d(3, {(3, 1): 32, (1, 3): 32}, 3, padding=1, join=64))
    assert count_of("aten::conv2d", few, torch.randn(1, 3, 64, 64)) == 1


def count_of(operation: str, model: nn.Module, x: Tensor) -> int:
    from torch.utils._python_dispatch import TorchDispatchMode

    found: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            found.append(func.overloadpacket._qualified_op_name)
            return func(*args, **(kwargs or {}))

    with Watch():
        run(model, x)
    return sum(name in (operation, "aten::convolution") for name in found)


def test_an_accelerated_model_is_exported_for_batches_of_any_size() -> None:
    model, x = create_model(get_point("vgg-gmp-lr-join").architecture, 5).eval(), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        wanted = model(x)
        batch = ({0: torch.export.Dim("batch", min=1)},)
        exported = torch.export.export(accelerate(model), (x,), dynamic_shapes=batch).module()
        torch.testing.assert_close(exported(x), wanted, rtol=1e-3, atol=1e-5)
        assert exported(x[:1].expand(9, -1, -1, -1)).shape == (9, 5)


def test_maps_keep_their_channels_last() -> None:
    layers = [nn.Conv2d(3, 8, 3), WindowConv2d(8, 8, (3, 1), 3, padding=1), SeparableConv2d(8, 8, 3, padding=1)]
    model, x = nn.Sequential(*layers, nn.MaxPool2d(2), nn.LocalResponseNorm(5)), torch.randn(2, 3, 12, 12)
    with fused(model):
        assert run(model, x).is_contiguous(memory_format=torch.channels_last)
        assert model(x).is_contiguous()  # in training nothing changes


def test_weights_are_stored_in_the_channels_last_layout() -> None:
    """This holds for a convolution that covers its whole input, too, whose weights are used as a matrix."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 5)), torch.randn(2, 3, 7, 7)
    wanted, before = run(model, x), {name: value.clone() for name, value in model.state_dict().items()}
    torch.testing.assert_close(run(accelerate(model), x), wanted)
    torch.testing.assert_close(run(accelerate(model), x.to(memory_format=torch.channels_last)), wanted)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model[2].weight.is_contiguous(memory_format=torch.channels_last)  # type: ignore[union-attr]


@pytest.mark.parametrize(("size", "beta"), [(5, 0.75), (4, 0.75), (1, 0.75), (3, 0.5)])
def test_local_response_norm(size: int, beta: float) -> None:
    norm, x = nn.LocalResponseNorm(size, alpha=0.1, beta=beta, k=2.0), torch.randn(2, 7, 5, 6)
    wanted = norm(x)
    model = accelerate(nn.Sequential(nn.Conv2d(1, 1, 1), norm))  # the convolution shows that the model is on a CPU
    torch.testing.assert_close(run(model[1], x), wanted)  # type: ignore[index]


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 1, 1), nn.MaxPool2d(3, 2, ceil_mode=True)])
def test_accelerated_pools_give_the_same_results(pool: nn.MaxPool2d) -> None:
    x = torch.randn(2, 3, 9, 8)
    x[0, 0, 0, 0], x[1, 2, 4, 4] = float("nan"), -float("inf")
    wanted = F.max_pool2d(x, pool.kernel_size, pool.stride, pool.padding, ceil_mode=pool.ceil_mode)
    model = accelerate(nn.Sequential(nn.Conv2d(1, 1, 1), pool))
    torch.testing.assert_close(run(model[1], x), wanted, rtol=0, atol=0, equal_nan=True)  # type: ignore[index]
    with pytest.raises(RuntimeError):
        run(accelerate(nn.Sequential(nn.Conv2d(1, 1, 1), nn.MaxPool2d(2))), torch.randn(1, 1, 1, 1))
