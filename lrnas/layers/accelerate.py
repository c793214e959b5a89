"""Faster execution of any PyTorch model: with fused kernels on a GPU, with rearranged operations on a CPU.

Classes of modules are replaced by subclasses that differ only in `forward` (`lrnas.layers.gpu`, `lrnas.layers.cpu`).
Parameters, names and, within rounding, results stay the same. `fused(model)` does this for the duration of a `with`
block, as in training; `accelerate(model)` does it permanently, for a trained model.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lrnas._arguments import checked
from lrnas.layers import cpu
from lrnas.layers.kernels import available


@checked
@contextmanager
def fused(model: nn.Module) -> Iterator[None]:
    """Make a model faster inside a `with` block; afterwards its modules have their old classes again.

    A copy that is made inside the block stays fast. Like an accelerated model, it cannot be pickled.

    Args:
        model: The model, already on the device where it will run.
    """
    before = {module: type(module) for module in model.modules()}
    try:
        _replace_classes(model)
        yield
    finally:
        for module, own in before.items():
            module.__class__ = own


@checked
def accelerate(model: nn.Module) -> nn.Module:
    """Make a trained model faster, permanently and in place.

    On a GPU its layers use the fused kernels, in half precision. On a CPU inference uses the channels-last layout; the
    weights of convolutions are stored in it too, with the same values. An accelerated model can be copied but not
    pickled.

    Args:
        model: Any model, already on the device where it will run. Its own code must reshape maps with `flatten` or
            `reshape`, not with `view`.

    Returns:
        The same model.
    """
    if _replace_classes(model) is cpu.REPLACEMENTS:
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
    return model


def _replace_classes(model: nn.Module) -> dict[type[nn.Module], Any]:
    """Replace classes of modules by faster ones; returns all replacements for the model's device."""
    first = next(model.parameters(), None)
    if first is None:
        return {}
    replacements: dict[type[nn.Module], Any] = cpu.REPLACEMENTS if first.device.type == "cpu" else {}
    if available(first.device):
        from lrnas.layers import gpu  # which imports Triton

        replacements = gpu.REPLACEMENTS
    for module in model.modules():
        own: Any = getattr(type(module), "replaced_class", type(module))  # the class may have been replaced before
        new = next((new for base, new in replacements.items() if own.forward is base.forward), None)
        module.__class__ = own if new is None or not _fits(new, module) else _subclass(own, new)
    return replacements


def _fits(new: Any, module: nn.Module) -> bool:
    """Whether a replacement can do what a module does. Layers with `pads_input` are never replaced."""
    return not getattr(module, "pads_input", False) and (not hasattr(new, "fits") or new.fits(module))


@functools.cache
def _subclass(own: Any, replacement: Any) -> Any:
    """A subclass of a module's own class that has the `forward` of the replacement."""
    return type(f"Fused{own.__name__}", (replacement, own), {"replaced_class": own})
