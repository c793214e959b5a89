"""What can be removed from a model of timm: filters of inner layers, whole blocks, and the stride of the first layer.

A layer is an **inner layer** if only convolutions read its output, and what is in between treats every channel by
itself: batch norm, activation, pooling. An example is the first convolution of a block of a ResNet, but not the last
one, whose output is added to the shortcut. An inner layer can have fewer filters; its norms and readers then have fewer
channels.

A block can be left out if its output has the shape of its input, such as all blocks of a stage of a ResNet but the
first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from timm.layers import Conv2dSame
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

from lrnas.errors import ConversionError
from lrnas.layers.init import Rule, initialise

_ACTIVATIONS = (
    "relu",
    "leaky_relu",
    "elu",
    "celu",
    "silu",
    "gelu",
    "mish",
    "hardswish",
    "hardtanh",
    "softplus",
    "tanh",
)
_POOLS = ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "upsample_nearest2d", "constant_pad_nd")
_BY_CHANNEL = frozenset((*_ACTIVATIONS, *_POOLS, "clone", "detach", "alias", "_to_copy"))
"""Operations on one tensor that treat every channel by itself, without the _ of those that work in place."""


@dataclass(frozen=True, slots=True)
class Inner:
    """What depends on the number of filters of an inner layer."""

    norms: tuple[str, ...]
    """Paths of batch norms."""
    readers: tuple[str, ...]
    """Paths of convolutions."""
    levels: tuple[int, ...] = ()
    """Maps in the model's `feature_info`, by number."""


@torch.no_grad()
def find_inner(model: nn.Module, convs: Collection[str], image: tuple[int, ...]) -> dict[str, Inner]:
    """The inner layers of a model.

    Args:
        model: A model on the meta device, in evaluation mode.
        convs: Paths of the convolutions that may be inner layers.
        image: Shape of an image.
    """
    flow, modules = _Flow(model), dict(model.named_modules())
    hooks = [
        modules[level["module"]].register_forward_hook(partial(flow.note_level, number))
        for number, level in enumerate(feature_levels(model))
        if level["module"] in modules
    ]
    with flow:
        output = model(torch.empty(1, *image, device="meta"))
    for hook in hooks:
        hook.remove()
    flow.spoil(_tensors(output))
    return {
        path: Inner(tuple(flow.norms[path]), tuple(flow.readers[path]), tuple(flow.levels[path]))
        for path in convs
        if path not in flow.spoiled and flow.readers[path] and all(flow.calls[own] == 1 for own in flow.used_by(path))
    }


class _Flow(TorchDispatchMode):
    """Finds the batch norms and convolutions that read the output of each convolution while a model runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners: dict[int, list[str]] = defaultdict(list)
        """Paths of the modules that have a weight or running mean, by its id."""
        for path, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                self.owners[id(module.running_mean)].append(path)
            elif type(module) in (nn.Conv2d, Conv2dSame) and cast(nn.Conv2d, module).groups == 1:
                self.owners[id(module.weight)].append(path)
        self.source: dict[int, str] = {}
        """The convolution that computed a tensor, by the id of the tensor."""
        self.seen: list[Any] = []
        """All tensors: an id is unique only as long as its object lives."""
        self.calls: dict[str, int] = defaultdict(int)
        self.norms: dict[str, list[str]] = defaultdict(list)
        self.readers: dict[str, list[str]] = defaultdict(list)
        self.levels: dict[str, list[int]] = defaultdict(list)
        self.spoiled: set[str] = set()
        """Convolutions whose output something else reads."""

    def used_by(self, path: str) -> list[str]:
        """The layer itself and those that read its output."""
        return [path, *self.norms[path], *self.readers[path]]

    def note_level(self, number: int, _: nn.Module, inputs: object, output: object) -> None:
        """Note that a module, whose forward hook this is, returns this map of `feature_info`."""
        if isinstance(output, Tensor) and id(output) in self.source:
            self.levels[self.source[id(output)]].append(number)

    def spoil(self, tensors: Iterable[Tensor]) -> None:
        """Note that something reads these tensors that is neither a convolution nor a batch norm."""
        self.spoiled.update(self.source[id(x)] for x in tensors if id(x) in self.source)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given, results = _tensors((args, kwargs)), _tensors(out)
        self.seen += [given, results]
        name = func.overloadpacket.__name__.rstrip("_")
        source = self.source.get(id(args[0])) if args else None
        kept = None
        if name == "convolution" and (owner := self._owner(args[1])) is not None:
            self.calls[owner] += 1
            kept = owner
            if source is not None:
                self.readers[source].append(owner)
        elif "batch_norm" in name and (owner := self._owner(args[3])) is not None:
            self.calls[owner] += 1
            kept = source
            if source is not None:
                self.norms[source].append(owner)
        elif name in _BY_CHANNEL and len(given) == 1 and not (name == "constant_pad_nd" and len(args[1]) > 4):
            kept = source
        else:
            self.spoil(given)
        for i, x in enumerate(results):
            self.source.pop(id(x), None)
            if kept is not None and i == 0:
                self.source[id(x)] = kept
        return out

    def _owner(self, weight: Any) -> str | None:
        """The path of the module that a weight belongs to; None if there is none, or more than one."""
        owners = self.owners.get(id(weight), [])
        return owners[0] if len(owners) == 1 else None


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, Tensor)]


@torch.no_grad()
def find_blocks(model: nn.Module, convs: Collection[str], image: tuple[int, ...]) -> dict[str, tuple[str, ...]]:
    """The blocks of a model that can be left out, by path, with the convolutions in them.

    A block is a numbered part of a sequence, but not the first. It is called once, with one tensor, and its output has
    the same shape.

    Args:
        model: A model on the meta device, in evaluation mode.
        convs: Paths of the convolutions that can vary. A block has at least one of them.
        image: Shape of an image.
    """
    calls: dict[str, list[bool]] = defaultdict(list)

    def note(path: str, inputs: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        is_simple = len(inputs) == 1 and not kwargs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor)
        calls[path].append(is_simple and inputs[0].shape == output.shape)

    hooks, blocks = [], {}
    for path, module in model.named_modules():
        parent, _, number = path.rpartition(".")
        inside = tuple(conv for conv in convs if conv.startswith(f"{path}."))
        in_sequence = number.isdigit() and isinstance(model.get_submodule(parent), nn.Sequential | nn.ModuleList)
        if in_sequence and int(number) > 0 and inside:
            blocks[path] = inside
            hooks.append(
                module.register_forward_hook(
                    lambda _, inputs, kwargs, output, path=path: note(path, inputs, kwargs, output), with_kwargs=True
                )
            )
    try:
        model(torch.empty(1, *image, device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    found: dict[str, tuple[str, ...]] = {}
    for path, inside in blocks.items():  # a block comes before the blocks in it
        if calls[path] == [True] and not path.startswith(tuple(f"{block}." for block in found)):
            found[path] = inside
    return found


def leave_out(model: nn.Module, blocks: Iterable[str]) -> None:
    """Put an identity in place of each of these blocks."""
    for path in blocks:
        model.set_submodule(path, nn.Identity())


@torch.no_grad()
def narrow(
    model: nn.Module, widths: Mapping[str, int], inner: Mapping[str, Inner], init: Rule | None = "composite"
) -> None:
    """Remove filters of inner layers, and the channels of norms and convolutions that read them.

    Args:
        model: The model, which is changed in place.
        widths: The new number of filters of each layer, by path.
        inner: The inner layers.
        init: The rule for new weights of these layers. None: their most important filters are kept. The importance of a
            filter is the length of its readers' weights for it, times the factor of its norm or, without one, its own
            length.

    Raises:
        ConversionError: If an argument of the model has replaced a batch norm.
    """
    levels = feature_levels(model)
    for path, width in widths.items():
        conv = cast(nn.Conv2d, model.get_submodule(path))
        norms = [cast(Any, model.get_submodule(norm)) for norm in inner[path].norms]
        readers = [cast(nn.Conv2d, model.get_submodule(reader)) for reader in inner[path].readers]
        if not all(isinstance(norm, _BatchNorm) for norm in norms):
            raise ConversionError(
                f"{path} can have fewer filters only with batch norm, but an argument changes the norm; leave this "
                "argument out"
            )
        for number in inner[path].levels:
            if number == len(levels) - 1 and getattr(model, "num_features", None) == conv.out_channels:
                model.num_features = width  # type: ignore[assignment]
            levels[number]["num_chs"] = width
        kept = torch.arange(width, device=conv.weight.device)
        if init is None:
            factors = [norm.weight for norm in norms if norm.weight is not None]
            scale = factors[0] if factors else conv.weight.flatten(1).norm(dim=1)
            lengths = torch.stack([reader.weight.transpose(0, 1).flatten(1).norm(dim=1) for reader in readers])
            kept = (scale.abs() * lengths.norm(dim=0)).topk(width).indices.sort().values
        for layer in (conv, *norms):
            _keep(layer, kept, 0)
        conv.out_channels = width
        for norm in norms:
            norm.num_features = width
        for reader in readers:
            reader.weight = _part(reader.weight, kept, 1)
            reader.in_channels = width
        if init is not None:
            initialise(conv, init)


def feature_levels(model: nn.Module) -> list[dict[str, Any]]:
    """The entries of timm's `feature_info` of a model; none if it has none."""
    return list(cast(Any, getattr(model, "feature_info", None)) or ())


def _keep(layer: nn.Module, kept: Tensor, dim: int) -> None:
    """Keep these indices of every parameter and buffer of a layer that has one value, or one filter, per channel."""
    for name, parameter in list(layer.named_parameters(recurse=False)):
        setattr(layer, name, _part(parameter, kept, dim))
    for name, buffer in list(layer.named_buffers(recurse=False)):
        if buffer.ndim:  # not the number of batches
            setattr(layer, name, buffer.index_select(dim, kept))


def _part(parameter: Tensor, kept: Tensor, dim: int) -> nn.Parameter:
    return nn.Parameter(parameter.index_select(dim, kept), requires_grad=parameter.requires_grad)


def set_stem_stride(model: nn.Module, stride: int) -> None:
    """Set the stride of the first convolution of a timm model.

    Raises:
        ConversionError: If its first layer is not one ordinary convolution.
    """
    path = (getattr(model, "default_cfg", None) or {}).get("first_conv")
    conv = model.get_submodule(path) if isinstance(path, str) and path else None
    if not isinstance(conv, nn.Conv2d) or type(conv) not in (nn.Conv2d, Conv2dSame):
        raise ConversionError(
            f"the first layer of this model is not one ordinary convolution; got stem_stride {stride}; leave it out"
        )
    before, conv.stride = conv.stride[0], (stride, stride)
    for level in feature_levels(model):
        level["reduction"] = level["reduction"] * stride // before
