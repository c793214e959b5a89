"""The steps of a network as modules that can be run and timed by themselves.

A network of lrnas is a list of steps: a convolution with its batch norm and ReLU, a pool, a part of the head. The steps
of a timm model are only the convolutions that an architecture may change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from timm.layers import Conv2dSame, SelectAdaptivePool2d
from torch import Tensor, nn

from lrnas.arch.architecture import Architecture, Mix
from lrnas.arch.backbone_shapes import PlannedConv, Step
from lrnas.arch.cost import mix_cost
from lrnas.layers.accelerate import fused
from lrnas.layers.conv import make_conv
from lrnas.layers.layout import fastest_layout
from lrnas.models.build import create_model
from lrnas.models.plan import make_plan, trace_of
from lrnas.profiling.timing import Call


@dataclass(frozen=True, slots=True)
class Setting:
    """The conditions under which a network is run: device, type and batch size, compiled or not."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    """Images in a batch."""
    compile: bool = False
    """Whether to use torch.compile."""

    @property
    def layout(self) -> torch.memory_format:
        """The memory layout that is fastest on the device, as in training."""
        return fastest_layout(self.device)

    def input(self, shape: tuple[int, ...]) -> Tensor:
        """A random batch of inputs with a given shape, without the dimension of the batch."""
        x = torch.randn(self.batch, *shape, device=self.device, dtype=self.dtype)
        return x.contiguous(memory_format=self.layout) if x.ndim == 4 else x

    def place(self, module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
        """Move a module to the device, in its memory layout."""
        return module.to(self.device, dtype, memory_format=self.layout)  # type: ignore[call-overload, no-any-return]

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, compiled with torch.compile if `compile` is set."""
        return cast(nn.Module, torch.compile(module)) if self.compile else module

    def trained(self, module: nn.Module) -> Callable[[Tensor], Any]:
        """The forward pass as in training: with the fused kernels, fp32 weights, and autocast to `dtype`."""
        kernels = fused(module)
        kernels.__enter__()  # left when `forward`, which holds it, is deleted
        run, mixed = self.wrap(module), self.dtype != torch.float32

        def forward(x: Tensor, _keep: object = kernels) -> Any:
            with torch.autocast(self.device.type, self.dtype, enabled=mixed, cache_enabled=False):
                return run(x)

        return forward


def steps_of(
    architecture: Architecture, input_size: int, num_classes: int, in_chans: int = 3, *, training: bool = False
) -> list[Step]:
    """The steps of a network that take time; for a timm model only the convolutions that can change.

    Args:
        architecture: The network.
        input_size: Rows and columns of the images.
        num_classes: Number of classes.
        in_chans: Channels of the images.
        training: Include the auxiliary heads, which run only in training.
    """
    plan = make_plan(architecture, input_size, num_classes, in_chans)
    if plan.choices is not None:
        return [step for step in plan.steps if training or step.role != "auxiliary"]
    sites = trace_of(architecture, input_size, num_classes, in_chans).sites
    return [_timm_step(conv, call, sites[conv.path].conv) for conv in plan.convs for call in sites[conv.path].calls]


def _timm_step(conv: PlannedConv, call: Any, own: nn.Conv2d) -> Step:
    number, _, rows, columns = call.output
    cost = mix_cost(conv.mix, conv.in_channels, call.input[2], rows, columns, own.bias is not None)
    padding = "tf_same" if isinstance(own, Conv2dSame) else own.padding
    settings = (conv.mix, conv.kernel, own.stride, padding, own.dilation, own.bias is not None, own.padding_mode)
    out = (cost.out_channels, rows, columns)
    image = (conv.in_channels, *call.input[2:])
    return Step(conv.name, "bare conv", image, out, settings, number * cost.macs, cost.params)


def layer_call(step: Step, setting: Setting, *, training: bool = False, is_first: bool = False) -> Call:
    """A function that runs a step once.

    Args:
        step: The step.
        setting: How it is run.
        training: Run forward and backward instead of inference.
        is_first: The input is a batch of images, which needs no gradient.
    """
    module = _MAKERS[step.kind](step)
    if not training:
        return _forward(module, step.input, setting)
    module = setting.place(module).train()
    x = setting.input(step.input).requires_grad_(not is_first)
    wanted = [*([] if is_first else [x]), *module.parameters()]
    train = setting.trained(module)

    def call() -> object:
        out = train(x)
        return torch.autograd.grad(out, wanted, torch.ones_like(out))

    return call


def network_call(
    architecture: Architecture,
    input_size: int,
    num_classes: int,
    setting: Setting,
    in_chans: int = 3,
    *,
    training: bool = False,
) -> Call:
    """A function that runs a whole network once.

    Args:
        architecture: The network.
        input_size: Rows and columns of the images.
        num_classes: Number of classes.
        setting: How it is run.
        in_chans: Channels of the images.
        training: Run a step of SGD on one batch instead of inference.
    """
    model = create_model(architecture, num_classes, in_chans)
    shape = (in_chans, input_size, input_size)
    if not training:
        return _forward(model, shape, setting)
    model = setting.place(model).train()
    images, on_gpu = setting.input(shape), setting.device.type == "cuda"
    labels = torch.randint(num_classes, (setting.batch,), device=setting.device)
    rate = torch.tensor(1e-6, device=setting.device) if on_gpu else 1e-6  # so small that the weights stay finite
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, fused=on_gpu)
    train = setting.trained(model)

    def call() -> object:
        optimizer.zero_grad(set_to_none=True)
        outputs = train(images)
        heads = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = torch.stack([F.cross_entropy(head.float(), labels) for head in heads]).sum()
        loss.backward()
        optimizer.step()
        return loss

    return call


def _forward(module: nn.Module, shape: tuple[int, ...], setting: Setting) -> Call:
    module = setting.place(module, setting.dtype).eval()
    x, run = setting.input(shape), setting.wrap(module)

    def call() -> object:
        with torch.inference_mode():
            return run(x)

    return call


class _Concat(nn.Module):
    """Concatenates maps, as at the end of an inception module."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.widths = widths

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(x.split(self.widths, dim=1), dim=1)


def _conv(step: Step) -> nn.Module:
    mix, kernel, stride, norm = cast(tuple[Mix, int, int, bool], step.settings)
    conv = make_conv(step.input[0], mix, kernel, stride, kernel // 2, bias=not norm)
    norms = [nn.BatchNorm2d(step.output[0])] if norm else []
    return nn.Sequential(conv, *norms, nn.ReLU(inplace=True))


def _head(step: Step) -> nn.Module:
    kernel, padding = cast(tuple[int, int], step.settings)
    return nn.Sequential(nn.Conv2d(step.input[0], step.output[0], kernel, padding=padding), nn.ReLU(inplace=True))


def _pool(step: Step) -> nn.Module:
    kernel, stride, padding, ceil = cast(tuple[int, int, int, bool], step.settings)
    kind = nn.MaxPool2d if step.kind == "max pool" else nn.AvgPool2d
    return kind(kernel, stride, padding, ceil_mode=ceil)


_MAKERS: dict[str, Callable[[Step], nn.Module]] = {
    "conv": _conv,
    "head": _head,
    "linear": lambda step: nn.Linear(step.input[0], step.output[0]),
    "max pool": _pool,
    "avg pool": _pool,
    "global pool": lambda step: SelectAdaptivePool2d(pool_type=str(step.settings[0]), flatten=True),
    "local norm": lambda step: nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75),
    "concat": lambda step: _Concat(cast(tuple[int, ...], step.settings)),
    "bare conv": lambda step: make_conv(step.input[0], *cast(tuple[Any, ...], step.settings)),
}
