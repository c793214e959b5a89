"""Batch norms that follow a convolution: finding them, and folding them into it.

In evaluation a batch norm is a factor and a shift of every channel, which the filters before it can have themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from timm.layers import BatchNormAct2d, Conv2dSame
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d


@torch.no_grad()
def find_norms(model: nn.Module, images: Tensor) -> dict[str, str]:
    """By the path of a convolution or mixed-shape layer, the batch norm that alone takes what it puts out.

    The model is run once and watched: what counts is what happens, not how modules are named.
    """
    owners: dict[int, str] = {}
    outputs: list[Tensor] = []  # kept, so that no other tensor gets the id of one of them
    taken: dict[str, str] = {}
    calls: Counter[nn.Module] = Counter()
    handles = []

    def note_output(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            calls[module] += 1
            outputs.append(output)
            owners[id(output)] = path

        return hook

    def note_input(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            calls[module] += 1
            if inputs and id(inputs[0]) in owners:
                taken[path] = owners[id(inputs[0])]

        return hook

    watched = dict(model.named_modules())
    whole = [module for module in watched.values() if isinstance(module, CompositeConv2d | SeparableConv2d)]
    inside = {part for module in whole for part in module.modules() if part is not module}
    for path, module in watched.items():
        if module in inside or not path:
            continue
        if _takes_a_norm(module):
            handles.append(module.register_forward_hook(note_output(path)))
        elif type(module) in (nn.BatchNorm2d, BatchNormAct2d) and cast(nn.BatchNorm2d, module).running_mean is not None:
            handles.append(module.register_forward_pre_hook(note_input(path)))
    was_training = model.training
    model.eval()
    uses = _Uses(owners)
    try:
        with uses:
            result = model(images)
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    returned = {id(leaf) for leaf in tree_leaves(result)}
    alone = {
        owners[id(output)] for output in outputs if uses.counts[id(output)] == 1 and id(output) not in returned
    }  # the one use is the norm itself
    return {
        path: norm
        for norm, path in taken.items()
        if path in alone and calls[watched[path]] == calls[watched[norm]] == 1
    }


@torch.no_grad()
def fold_norm(layer: nn.Module, norm: nn.BatchNorm2d) -> None:
    """Make a layer compute, in place, what it and the batch norm after it compute in evaluation."""
    mean, var = norm.running_mean, norm.running_var
    assert mean is not None and var is not None, "a batch norm without running statistics"
    scale = (var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    start = 0
    for conv in _last_convs(layer):
        part = slice(start, start + conv.out_channels)
        start += conv.out_channels
        bias = shift[part]
        if conv.bias is not None:
            bias = bias + conv.bias.double() * scale[part]
        conv.weight.copy_(conv.weight.double() * scale[part, None, None, None])
        conv.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=conv.weight.requires_grad)
    assert start == norm.num_features, f"{start} channels before a batch norm of {norm.num_features}"


def rest_of(norm: nn.BatchNorm2d) -> nn.Module:
    """What a batch norm does besides."""
    if not isinstance(norm, BatchNormAct2d):
        return nn.Identity()
    rest = [part for part in (norm.drop, norm.act) if type(part) is not nn.Identity]
    return (rest[0] if len(rest) == 1 else nn.Sequential(*rest)) if rest else nn.Identity()


class _Uses(TorchFunctionMode):
    """Counts the operations that take a tensor and put out tensors."""

    def __init__(self, watched: Mapping[int, object]) -> None:
        super().__init__()
        self.watched = watched
        self.counts: Counter[int] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self.counts.update(id(leaf) for leaf in tree_leaves((args, kwargs)) if id(leaf) in self.watched)
        return result


def _takes_a_norm(module: nn.Module) -> bool:
    layers = (CompositeConv2d, SeparableConv2d, WindowConv2d)
    if type(module) not in (nn.Conv2d, Conv2dSame) and not isinstance(module, layers):
        return False
    parts = list(module.modules())
    hooks = [hook for part in parts for hook in (*part._forward_hooks, *part._forward_pre_hooks)]
    return not hooks and not any(parametrize.is_parametrized(part) for part in parts)


def _last_convs(layer: nn.Module) -> Sequence[nn.Conv2d]:
    """The convolutions that put out the channels of a layer."""
    if isinstance(layer, CompositeConv2d):
        return list(layer.group_convs()) if layer.join is None else [layer.join]
    if isinstance(layer, SeparableConv2d):
        return [layer.halves()[1]]
    assert isinstance(layer, nn.Conv2d), f"{type(layer).__name__} is no convolution"
    return [layer]
