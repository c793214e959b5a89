"""Find the batch norms that follow a convolution, and fold them into the convolution.

In evaluation a batch norm multiplies every channel by a scale and adds a shift. The weights and the bias of the
convolution before it can include both.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import torch
from timm.layers import BatchNormAct2d, Conv2dSame
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d, output_convs


@torch.no_grad()
def find_norms(model: nn.Module, images: Tensor) -> dict[str, str]:
    """Find the batch norms that can be folded into the convolution before them.

    The model is run once with hooks, so the result depends on what the model computes and not on names of modules. A
    batch norm is found if nothing else uses the output of the convolution, and if both modules run once.

    Args:
        model: Any model; it is evaluated without gradients and stays unchanged.
        images: Input for one forward pass.

    Returns:
        The path of the batch norm by the path of the convolution or mixed-shape layer before it.
    """
    producers: dict[int, str] = {}
    outputs: list[Tensor] = []  # keeps the tensors alive, so that ids are unique
    inputs_of_norms: dict[str, str] = {}
    calls: Counter[str] = Counter()
    handles = []

    def note_output(path: str, module: nn.Module, inputs: Any, output: Any) -> None:
        calls[path] += 1
        outputs.append(output)
        producers[id(output)] = path

    def note_input(path: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        calls[path] += 1
        if inputs and id(inputs[0]) in producers:
            inputs_of_norms[path] = producers[id(inputs[0])]

    mixed = [module for module in model.modules() if isinstance(module, CompositeConv2d | SeparableConv2d)]
    inside = {part for module in mixed for part in module.modules() if part is not module}
    for path, module in model.named_modules():
        if module in inside or not path:
            continue
        if _can_absorb_a_norm(module):
            handles.append(module.register_forward_hook(functools.partial(note_output, path)))
        elif type(module) in (nn.BatchNorm2d, BatchNormAct2d) and cast(nn.BatchNorm2d, module).running_mean is not None:
            handles.append(module.register_forward_pre_hook(functools.partial(note_input, path)))
    was_training = model.training
    model.eval()
    uses = _UseCounter(producers)
    try:
        with uses:
            result = model(images)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    returned = {id(leaf) for leaf in tree_leaves(result)}
    used_once = {
        producers[id(output)] for output in outputs if uses.counts[id(output)] == 1 and id(output) not in returned
    }  # the one use is the norm itself
    return {
        path: norm for norm, path in inputs_of_norms.items() if path in used_once and calls[path] == calls[norm] == 1
    }


@torch.no_grad()
def fold_norm(layer: nn.Module, norm: nn.BatchNorm2d) -> None:
    """Fold a batch norm into the layer before it, in place. The layer then computes what both compute in evaluation.

    Args:
        layer: A convolution or mixed-shape layer.
        norm: The batch norm that follows it, with running statistics.
    """
    scale, shift = _scale_and_shift(norm)
    start = 0
    for conv in output_convs(layer):
        part = slice(start, start + conv.out_channels)
        start += conv.out_channels
        bias = shift[part]
        if conv.bias is not None:
            bias = bias + conv.bias.double() * scale[part]
        conv.weight.copy_(conv.weight.double() * scale[part, None, None, None])
        conv.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=conv.weight.requires_grad)
    assert start == norm.num_features, f"{start} channels before a batch norm of {norm.num_features}"


def _scale_and_shift(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The scale and the shift that a batch norm applies to each channel in evaluation, in float64."""
    assert norm.running_mean is not None and norm.running_var is not None, "a batch norm without running statistics"
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double() * scale
    return scale, shift if norm.bias is None else shift + norm.bias.double()


class _UseCounter(TorchFunctionMode):
    """Counts how many operations that return tensors take each of the watched tensors (given by id)."""

    def __init__(self, watched: Mapping[int, object]) -> None:
        super().__init__()
        self.watched = watched
        self.counts: Counter[int] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self.counts.update(id(leaf) for leaf in tree_leaves((args, kwargs)) if id(leaf) in self.watched)
        return result


def _can_absorb_a_norm(module: nn.Module) -> bool:
    """Whether a module is a convolution of a known type without hooks and parametrizations."""
    layers = (CompositeConv2d, SeparableConv2d, WindowConv2d)
    if type(module) not in (nn.Conv2d, Conv2dSame) and not isinstance(module, layers):
        return False
    parts = list(module.modules())
    hooks = [hook for part in parts for hook in (*part._forward_hooks, *part._forward_pre_hooks)]
    return not hooks and not any(parametrize.is_parametrized(part) for part in parts)
