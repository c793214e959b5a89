"""Training with autocast, where the weights of all layers are cast to half precision at once.

Autocast casts the weight of each layer before the layer, and its gradient back after the layer: two GPU kernels per
layer. In a small network, the number of kernels decides how long a training step takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lrnas.layers.conv import CompositeConv2d
from lrnas.layers.kernels import FEW_CHANNELS

CAST_BY_AUTOCAST = (nn.Conv2d.forward, nn.Linear.forward)
"""Functions that use the parameters of a layer only in an operation that autocast computes in half precision."""


class _Cast(torch.autograd.Function):
    """Casts tensors, and casts their gradients back, with one GPU kernel each."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtype = tensors[0].dtype
        return tuple(_cast(tensors, dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        results = iter(_cast([grad for grad in grads if grad is not None], ctx.dtype))
        return None, *(None if grad is None else next(results) for grad in grads)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]  # in the same memory layout
    if copies:
        torch._foreach_copy_(copies, list(tensors))
    return copies


class CastWeights:
    """A model that runs with the weights of its convolutions and linear layers in half precision.

    It must run under autocast. The results are the same as without it, and gradients arrive at the parameters in their
    own precision.

    Args:
        model: The model, already on the device where it will run.
        dtype: The precision that autocast uses.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model = model
        self.dtype = dtype
        composites = [module for module in model.modules() if isinstance(module, CompositeConv2d)]
        joins = {composite.join for composite in composites if _multiplies_join(composite)}
        self.weights: dict[str, nn.Parameter] = {}
        """The parameters that are cast, by name."""
        seen: set[nn.Parameter] = set()  # layers can share a parameter, which is cast once
        for path, module in model.named_modules():
            if _own_forward(module) not in CAST_BY_AUTOCAST or module in joins:
                continue
            for name, parameter in module.named_parameters(recurse=False):
                if name in ("weight", "bias") and parameter.requires_grad and parameter.dtype == torch.float32:
                    if parameter not in seen:
                        self.weights[f"{path}.{name}" if path else name] = parameter
                    seen.add(parameter)

    def __call__(self, *inputs: Any) -> Any:
        if not self.weights:
            return self.model(*inputs)
        copies = _Cast.apply(self.dtype, *self.weights.values())
        return functional_call(self.model, dict(zip(self.weights, copies, strict=True)), inputs)


def _multiplies_join(composite: CompositeConv2d) -> bool:
    """Whether the weights of the join may be multiplied with those of the groups, which stay in float32."""
    has_bias = any(conv.bias is not None for conv in composite.group_convs())
    return has_bias or composite.in_channels <= FEW_CHANNELS


def _own_forward(module: nn.Module) -> Any:
    """The `forward` of a module's class before `lrnas.layers.accelerate` replaced the class."""
    return getattr(type(module), "replaced_class", type(module)).forward
