"""The filters that a layer has learned: those of each shape, and the k×k filters that come of them.

- With a join, a mixed-shape layer is exactly one k×k convolution (`layers.fold`): filters of 3×1 and 1×3 make crosses.
- A separable layer is one of outer products, but for the border of the map where its first half has a bias.
- Without a join, a 1×1 layer may come next, as in Network in Network. Its combinations are drawn with the activation
  between left out, and are called so: they are not what the network computes.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lrnas.errors import LrnasError
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d
from lrnas.layers.fold import Folding, dense_form, fold, foldable_layers
from lrnas.layers.norms import find_norms
from lrnas.models.plan import make_plan

MOST_NAMES = 40
"""Layers that an error names."""


class FilterError(LrnasError):
    """Filters that cannot be shown as asked."""


@dataclass(frozen=True)
class FilterSet:
    """Filters of one shape, as they are or as they come of others."""

    label: str
    kernels: Tensor
    """[number, channels, rows, columns]."""
    learned: bool = True
    """Whether these are weights, rather than what comes of them."""
    remark: str = ""
    """How they come of others."""

    @property
    def shape(self) -> str:
        return "×".join(map(str, self.kernels.shape[2:]))


@dataclass(frozen=True)
class LayerFilters:
    """All that there is to see of a layer."""

    name: str
    path: str
    """In the model."""
    sets: tuple[FilterSet, ...]
    remark: str = ""
    """Why nothing comes of the filters, where nothing does."""

    @property
    def channels(self) -> int:
        return self.sets[0].kernels.shape[1]


@dataclass(frozen=True)
class Pictures:
    """The strongest filters of a set as pictures: weights between -1 and 1, each scaled by its own largest one."""

    label: str
    values: npt.NDArray[np.float64]
    """[number, rows, columns], and 3 colours where the channels are colours."""
    total: int
    """Filters that there are."""
    channels: int
    shown_as: str
    """What of the channels is shown: colour, principal, mean or the number of one."""
    energy: float | None = None
    """Of the principal pictures, the mean share of a filter's squared weights that is in its picture."""

    @property
    def is_coloured(self) -> bool:
        return self.values.ndim == 4

    def to_dict(self) -> dict[str, Any]:
        shape = list(self.values.shape[1:3])
        data = {"label": self.label, "shape": shape, "filters": self.total, "drawn": len(self.values)}
        return data | {"channels": self.channels, "shown_as": self.shown_as, "energy": self.energy}


def mixed_layers(model: nn.Module) -> dict[str, str]:
    """The layers whose filters are not all k×k: their paths in the model by the names that `lrnas count` has."""
    names = {conv.path: conv.name for conv in make_plan(model.architecture, check_fit=False).convs}  # type: ignore[arg-type]
    return {names.get(path, path): path for path in foldable_layers(model)}


@torch.no_grad()
def read_filters(model: nn.Module, name: str | None, images: Tensor) -> LayerFilters:
    """The filters of one layer, the first if none is named; one of the images is run to see which layers follow."""
    known = mixed_layers(model)
    if not known:
        raise FilterError(
            "filters are drawn of mixed-shape layers; got a network whose layers are all dense; give one with others, "
            "vgg-gmp-lr-join say"
        )
    by_path = {path: known_name for known_name, path in known.items()}
    name = next(iter(known)) if name is None else by_path.get(name, name)
    if name not in known:
        listed = ", ".join([*known][:MOST_NAMES]) + ", …" * (len(known) > MOST_NAMES)
        raise FilterError(f"a layer is a mixed-shape one of the network; got {name!r}; known: {listed}")
    path = known[name]
    layer = model.get_submodule(path)
    if isinstance(layer, SeparableConv2d):
        return LayerFilters(name, path, _separable_sets(layer))
    learned = _learned_sets(layer)
    if isinstance(layer, CompositeConv2d) and layer.join is not None:
        return LayerFilters(name, path, (*learned, _joined(layer)))
    mixed = _mixed_by_the_next(model, path, images[:1])
    if mixed is None:
        return LayerFilters(name, path, learned, "no join, and no 1×1 layer right after it, combines them")
    return LayerFilters(name, path, (*learned, mixed))


def to_pictures(filters: FilterSet, number: int, show: str | None = None) -> Pictures:
    """The strongest filters of a set by their norm, the strongest first, as pictures.

    `show` says what is done with the channels: they are the `colour`s of three, else the `principal` pattern over rows
    and columns is shown, the one that times a factor for each channel comes closest to the filter; or their `mean`, or
    one by its number.
    """
    kernels = filters.kernels.double().cpu().numpy()
    total, channels = kernels.shape[:2]
    if number < 1:
        raise FilterError(f"the number of filters to draw is at least 1; got {number}")
    shown = show or ("colour" if channels == 3 else "principal")
    order = np.argsort(-np.linalg.norm(kernels.reshape(total, -1), axis=1), kind="stable")[:number]
    kernels = kernels[order]
    energy = None
    if shown == "colour":
        if channels != 3:
            raise FilterError(f"colours are of 3 channels; the {filters.label} filters have {channels}; leave it out")
        values = kernels.transpose(0, 2, 3, 1)
    elif shown == "principal":
        values, energy = _principal(kernels)
    elif shown == "mean":
        values = kernels.mean(axis=1)
    elif shown.isdecimal() and int(shown) < channels:
        values = kernels[:, int(shown)]
    else:
        raise FilterError(
            f"channels are shown as colour, principal, mean or one by its number, 0 to {channels - 1}; got {shown!r}"
        )
    largest = np.abs(values).reshape(len(values), -1).max(axis=1)
    values = values / np.where(largest, largest, 1).reshape(-1, *[1] * (values.ndim - 1))
    return Pictures(filters.label, values, total, channels, shown, energy)


def _principal(kernels: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], float]:
    """Of every filter the best single pattern, with the sign it has in most channels' favour; its share of energy."""
    number, channels, rows, columns = kernels.shape
    if channels == 1:
        return kernels[:, 0], 1.0
    factors, strengths, patterns = np.linalg.svd(kernels.reshape(number, channels, -1), full_matrices=False)
    signs = np.where(factors[:, :, 0].sum(axis=1) < 0, -1.0, 1.0)
    values = (signs * strengths[:, 0])[:, None] * patterns[:, 0]
    squares = strengths**2
    sums = squares.sum(axis=1)
    shares = squares[:, 0] / np.where(sums, sums, 1)
    return values.reshape(number, rows, columns), float(shares.mean())


def _learned_sets(layer: nn.Module) -> tuple[FilterSet, ...]:
    convs = [layer] if isinstance(layer, WindowConv2d) else []
    if isinstance(layer, CompositeConv2d):
        convs = list(layer.group_convs())
    return tuple(FilterSet("{}×{}".format(*conv.kernel_size), conv.weight.detach()) for conv in convs)


def _joined(layer: CompositeConv2d) -> FilterSet:
    dense = dense_form(layer)
    assert isinstance(dense, nn.Conv2d)
    return _combined(dense.weight, "as the join combines them: exactly what the layer computes")


def _separable_sets(layer: SeparableConv2d) -> tuple[FilterSet, ...]:
    first, second = layer.halves()
    alone = copy.deepcopy(layer)
    start = alone.halves()[0]
    if start.bias is not None:  # it moves no weight, and with it there is no dense form where maps are padded
        start.bias.zero_()
    dense = dense_form(alone)
    assert isinstance(dense, nn.Conv2d)
    return (
        FilterSet("{}×{}, first".format(*first.kernel_size), first.weight.detach()),
        FilterSet("{}×{}, second".format(*second.kernel_size), second.weight.detach()),
        _combined(dense.weight, "one after the other: what the layer computes, but at the border of the map"),
    )


def _combined(kernels: Tensor, remark: str) -> FilterSet:
    return FilterSet("effective {}×{}".format(*kernels.shape[2:]), kernels.detach(), False, remark)


def _mixed_by_the_next(model: nn.Module, path: str, images: Tensor) -> FilterSet | None:
    """What a 1×1 layer right after a layer makes of its filters; None where none follows.

    A batch norm after the layer is folded in first. The model is run once: the 1×1 layer is the one that is given what
    the layer put out, through a ReLU or nothing.
    """
    norms = {own: norm for own, norm in find_norms(model, images).items() if own == path}
    model = fold(copy.deepcopy(model).eval(), Folding(norms))
    layer = model.get_submodule(path)
    outputs: list[Tensor] = []
    takers: list[tuple[str, nn.Conv2d, bool]] = []
    layer.register_forward_hook(
        lambda module, inputs, output: outputs.append(output.clone())
    )  # a ReLU may overwrite it

    def watch(name: str) -> Any:
        def hook(module: nn.Conv2d, inputs: tuple[Tensor, ...]) -> None:
            if outputs and inputs[0].shape == outputs[-1].shape:
                bare = torch.equal(inputs[0], outputs[-1])
                if bare or torch.equal(inputs[0], outputs[-1].relu()):
                    takers.append((name, module, bare))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1:
            module.register_forward_pre_hook(watch(name))
    model(images)
    if len(takers) != 1:
        return None
    name, taker, bare = takers[0]
    dense = dense_form(layer)
    assert isinstance(dense, nn.Conv2d)
    kernels = torch.einsum("on,ncyx->ocyx", taker.weight[:, :, 0, 0].double(), dense.weight.double())
    taken = name.removesuffix(".conv")
    left_out = "exactly" if bare else "the ReLU between left out"
    return _combined(kernels, f"as the 1×1 layer {taken} combines them, {left_out}")
