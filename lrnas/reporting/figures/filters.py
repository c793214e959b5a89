"""Pictures of the filters that a layer has learned, and of the k×k filters that result from them.

- With a join, a mixed-shape layer is exactly one k×k convolution (`layers.fold`): 3×1 and 1×3 filters make crosses.
- A separable layer is a convolution with outer products, except at the border of the map if its first half has a bias.
- Without a join, a 1×1 layer may follow and combine the filters, as in Network in Network. These combinations are
  drawn without the activation in between, so they are not what the network computes; their label says so.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import colormaps
from torch import Tensor, nn

from lrnas.errors import LrnasError
from lrnas.exporting.sample_inputs import find_inputs
from lrnas.exporting.sources import Source
from lrnas.layers.conv import CompositeConv2d, SeparableConv2d, WindowConv2d
from lrnas.layers.fold import Folding, dense_form, fold, foldable_layers
from lrnas.layers.norms import find_norms
from lrnas.models.plan import make_plan
from lrnas.reporting.figures import style

MAX_NAMES = 40
"""Number of layers that an error message lists."""
WEIGHT, GAP = 4, 3
"""Width of a weight and of the gap between filters, in pixels."""
SIGNED = colormaps["RdBu_r"]


class FilterError(LrnasError):
    """Filters that cannot be shown as requested."""


class NoMixedLayer(FilterError):
    """A network without a mixed-shape layer."""


@dataclass(frozen=True)
class FilterSet:
    """Filters of one shape: weights of a layer, or filters that result from them."""

    label: str
    kernels: Tensor
    """[number, channels, rows, columns]."""
    learned: bool = True
    """True for weights of the layer, False for filters that result from them."""
    remark: str = ""
    """How these filters result from the weights; empty for weights."""


@dataclass(frozen=True)
class LayerFilters:
    """All filters of a layer."""

    name: str
    path: str
    """Path of the layer in the model."""
    sets: tuple[FilterSet, ...]
    remark: str = ""
    """Why there are no resulting filters; empty if there are."""


@dataclass(frozen=True)
class Pictures:
    """The strongest filters of a set: weights between -1 and 1, each filter scaled by its own largest weight."""

    filters: FilterSet
    values: npt.NDArray[np.float64]
    """[number, rows, columns], with a last dimension of 3 if the channels are colours."""
    shown_as: str
    """How input channels are shown: colour, principal, mean, or the number of a channel."""
    energy: float | None = None
    """For principal pictures: the share of a filter's squared weights that its picture contains, mean over filters."""

    @property
    def total(self) -> int:
        """Number of filters in the set."""
        return len(self.filters.kernels)

    @property
    def channels(self) -> int:
        return self.filters.kernels.shape[1]

    @property
    def is_coloured(self) -> bool:
        return self.values.ndim == 4

    def to_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self.filters, name) for name in ("label", "learned", "remark")},
            **{name: getattr(self, name) for name in ("channels", "shown_as", "energy")},
            "shape": list(self.values.shape[1:3]),
            "filters": self.total,
            "drawn": len(self.values),
        }


@dataclass(frozen=True)
class FilterFigure:
    """A figure of filters that was written."""

    source: Source
    layer: LayerFilters
    pictures: tuple[Pictures, ...]
    layers: tuple[str, ...]
    """All layers of the network that can be drawn."""
    file: Path

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.source.name,
            "origin": self.source.origin,
            "trained": self.source.weights is not None,
            "layer": self.layer.name,
            "path": self.layer.path,
            "sets": [each.to_dict() for each in self.pictures],
            "remark": self.layer.remark,
            "layers": list(self.layers),
            "file": str(self.file),
        }


def draw_filters(
    source: Source, layer: str | None = None, out: Path | None = None, *, number: int = 64, show: str | None = None
) -> FilterFigure:
    """Draw the filters of a layer of a network.

    Args:
        source: The network.
        layer: Name or path of a mixed-shape layer; None: the first one.
        out: File to write; None: figures/NAME-LAYER.png.
        number: Draw at most this many filters of each shape.
        show: How to show input channels, see `to_pictures`.

    Returns:
        Description of the figure, and its file.
    """
    if out is not None:
        style.check_format(out)
    model, channels = source.create_model()
    rows, columns = model.pretrained_cfg["input_size"][1:]  # type: ignore[index]
    images = find_inputs(source, None, (channels, rows, columns), None, None).images[:1]
    found = read_filters(model, layer, images)
    own_channels = found.sets[0].kernels.shape[1]  # the second half of a separable layer has others
    pictures = tuple(
        to_pictures(each, number, show if each.kernels.shape[1] == own_channels else None) for each in found.sets
    )
    file = out or Path("figures") / f"{source.name}-{found.name}.png"
    _draw(source, found, pictures, file)
    return FilterFigure(source, found, pictures, tuple(mixed_layers(model)), file)


def mixed_layers(model: nn.Module) -> dict[str, str]:
    """Layers whose filters are not all k×k: paths in the model by the names that `lrnas count` shows."""
    names = {conv.path: conv.name for conv in make_plan(model.architecture).convs}  # type: ignore[arg-type]
    return {names.get(path, path): path for path in foldable_layers(model)}


@torch.no_grad()
def read_filters(model: nn.Module, name: str | None, images: Tensor) -> LayerFilters:
    """Filters of one layer.

    Args:
        model: The network.
        name: Name or path of a mixed-shape layer; None: the first one.
        images: Images; the first is run through the model to find out which layer follows.
    """
    known = mixed_layers(model)
    if not known:
        raise NoMixedLayer("the network must have a mixed-shape layer; got one whose layers are all dense")
    by_path = {path: known_name for known_name, path in known.items()}
    name = next(iter(known)) if name is None else by_path.get(name, name)
    if name not in known:
        listed = ", ".join([*known][:MAX_NAMES]) + ", …" * (len(known) > MAX_NAMES)
        raise FilterError(f"--layer must be a mixed-shape layer of the network; got {name!r}; known: {listed}")
    path = known[name]
    layer = model.get_submodule(path)
    if isinstance(layer, SeparableConv2d):
        return LayerFilters(name, path, _separable_sets(layer))
    assert isinstance(layer, CompositeConv2d | WindowConv2d)
    learned = tuple(map(_learned_set, layer.group_convs() if isinstance(layer, CompositeConv2d) else [layer]))
    if isinstance(layer, CompositeConv2d) and layer.join is not None:
        remark = "as the join combines them: exactly what the layer computes"
        return LayerFilters(name, path, (*learned, _effective_set(_dense_kernels(layer), remark)))
    combined = _combined_by_next_layer(model, path, images[:1])
    if combined is None:
        return LayerFilters(name, path, learned, "no join or 1×1 layer combines them")
    return LayerFilters(name, path, (*learned, combined))


def to_pictures(filters: FilterSet, number: int, show: str | None = None) -> Pictures:
    """Pictures of the strongest filters of a set, ordered by norm, the strongest first.

    Args:
        filters: The filters.
        number: Number of filters to show, at most.
        show: How to show input channels. "colour": three channels as red, green and blue. "principal": the pattern
            over rows and columns that, times a factor for each channel, is closest to the filter. "mean": their mean.
            A number: that channel. None: colour for three channels, else principal.
    """
    kernels = filters.kernels.double().cpu().numpy()
    total, channels = kernels.shape[:2]
    if number < 1:
        raise FilterError(f"the number of filters to draw must be at least 1; got {number}")
    show = show or ("colour" if channels == 3 else "principal")
    order = np.argsort(-np.linalg.norm(kernels.reshape(total, -1), axis=1), kind="stable")[:number]
    kernels = kernels[order]
    energy = None
    if show == "colour":
        if channels != 3:
            raise FilterError(f"colour needs 3 channels; the {filters.label} filters have {channels}; leave out --show")
        values = kernels.transpose(0, 2, 3, 1)
    elif show == "principal":
        values, energy = _find_principal(kernels)
    elif show == "mean":
        values = kernels.mean(axis=1)
    elif show.isdecimal() and int(show) < channels:
        values = kernels[:, int(show)]
    else:
        raise FilterError(
            f"--show must be colour, principal, mean, or the number of a channel, 0 to {channels - 1}; got {show!r}"
        )
    largest = np.abs(values).reshape(len(values), -1).max(axis=1)
    values = values / np.where(largest, largest, 1).reshape(-1, *[1] * (values.ndim - 1))
    return Pictures(filters, values, show, energy)


def _find_principal(kernels: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], float]:
    """The principal pattern of every filter, with the sign it has in most channels, and its mean share of energy."""
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


def _learned_set(conv: WindowConv2d, suffix: str = "") -> FilterSet:
    return FilterSet("{}×{}".format(*conv.kernel_size) + suffix, conv.weight.detach())


def _effective_set(kernels: Tensor, remark: str) -> FilterSet:
    return FilterSet("effective {}×{}".format(*kernels.shape[2:]), kernels.detach(), False, remark)


def _dense_kernels(layer: nn.Module) -> Tensor:
    """Kernels of the dense convolution that computes the same as a layer."""
    dense = dense_form(layer)
    assert isinstance(dense, nn.Conv2d)
    return dense.weight


def _separable_sets(layer: SeparableConv2d) -> tuple[FilterSet, ...]:
    first, second = layer.halves()
    without_bias = copy.deepcopy(layer)
    start = without_bias.halves()[0]
    if start.bias is not None:  # the bias does not change the kernels, but with padding it prevents a dense form
        start.bias.zero_()
    remark = "one after the other: what the layer computes, except at the border of the map"
    effective = _effective_set(_dense_kernels(without_bias), remark)
    return _learned_set(first, ", first"), _learned_set(second, ", second"), effective


def _combined_by_next_layer(model: nn.Module, path: str, images: Tensor) -> FilterSet | None:
    """Combinations of a layer's filters by the 1×1 layer right after it; None if no such layer follows.

    A batch norm after the layer is folded in first. The model is run once: the 1×1 layer is the one whose input is the
    layer's output, directly or through a ReLU.
    """
    norms = {own: norm for own, norm in find_norms(model, images).items() if own == path}
    model = fold(copy.deepcopy(model).eval(), Folding(norms))
    layer = model.get_submodule(path)
    outputs: list[Tensor] = []
    followers: list[tuple[str, nn.Conv2d, bool]] = []
    # cloned, because a ReLU may overwrite it
    layer.register_forward_hook(lambda module, inputs, output: outputs.append(output.clone()))

    def watch(name: str) -> Any:
        def hook(module: nn.Conv2d, inputs: tuple[Tensor, ...]) -> None:
            if outputs and inputs[0].shape == outputs[-1].shape:
                is_direct = torch.equal(inputs[0], outputs[-1])
                if is_direct or torch.equal(inputs[0], outputs[-1].relu()):
                    followers.append((name, module, is_direct))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1:
            module.register_forward_pre_hook(watch(name))
    model(images)
    if len(followers) != 1:
        return None
    name, follower, is_direct = followers[0]
    kernels = torch.einsum("on,ncyx->ocyx", follower.weight[:, :, 0, 0].double(), _dense_kernels(layer).double())
    exactness = "exactly" if is_direct else "without the ReLU in between"
    return _effective_set(kernels, f"as the 1×1 layer {name.removesuffix('.conv')} combines them, {exactness}")


@style.in_own_style
def _draw(source: Source, layer: LayerFilters, pictures: tuple[Pictures, ...], file: Path) -> None:
    sheets = [_make_sheet(each) for each in pictures]
    widths = [sheet.shape[1] for sheet in sheets]
    height = 10 / sum(widths) * max(sheet.shape[0] for sheet in sheets)
    figure = style.make_figure(10 + 0.2 * len(sheets), min(max(height, 1.5), 8) + 1.6, style.COARSE_DPI)
    panels = figure.subplots(1, len(sheets), width_ratios=widths, squeeze=False)[0]
    for axes, sheet, shown in zip(panels, sheets, pictures, strict=True):
        axes.imshow(sheet, interpolation="nearest")
        axes.set_axis_off()
        axes.set_anchor("N")
        number = len(shown.values)
        drawn = f"{number} filters" if number == shown.total else f"the strongest {number} of {shown.total} filters"
        axes.set_title(style.escape_text(f"{shown.filters.label}: {drawn}"), fontsize=9)
    weights = source.origin if source.weights is not None else f"NOT TRAINED: {source.origin}"
    title = style.wrap_text(f"{source.name}, {layer.name}\n{weights}", figure.get_figwidth(), 10)
    figure.suptitle(title, fontsize=10)
    style.add_footer(figure, _explain(layer, pictures))
    style.save_figure(figure, file)


def _explain(layer: LayerFilters, pictures: tuple[Pictures, ...]) -> list[str]:
    """Lines below the figure that say what it shows."""
    lines = [f"{each.label}: {each.remark}." for each in layer.sets if each.remark]
    if layer.remark:
        lines.append(f"{layer.remark[0].upper()}{layer.remark[1:]}.")
    first = pictures[0]
    channels = f"{first.channels} input channels" if first.channels > 1 else "one input channel"
    colours = "red is positive, blue negative"
    if first.shown_as == "colour":
        what, colours = "The 3 input channels as red, green and blue", "grey is zero"
    elif first.shown_as == "principal" and first.channels > 1:
        shares = ", ".join(
            f"{100 * each.energy:.0f} % ({each.filters.label})" for each in pictures if each.energy is not None
        )
        lines.append(f"The pattern closest to all {channels}; its mean share of the squared weights is {shares}.")
        what = "Pattern"
    else:
        what = {"principal": channels.capitalize(), "mean": f"Mean of {channels}"}.get(
            first.shown_as, f"Input channel {first.shown_as} of {first.channels}"
        )
    lines.append(f"{what}: {colours}; every filter is scaled by its own largest weight; the strongest (by norm) first.")
    return lines + [
        f"{each.filters.label}: the pattern closest to all {each.channels} channels."
        for each in pictures
        if each.shown_as != first.shown_as
    ]


def _make_sheet(pictures: Pictures) -> npt.NDArray[np.float64]:
    """All pictures of a set as one image, about square, with colours between 0 and 1."""
    values = pictures.values
    colours = 0.5 + 0.5 * values if pictures.is_coloured else SIGNED(0.5 + 0.5 * values)[..., :3]
    number, rows, columns = colours.shape[:3]
    tall, wide = WEIGHT * rows + GAP, WEIGHT * columns + GAP
    across = min(number, math.ceil(math.sqrt(number * tall / wide)))
    down = math.ceil(number / across)
    background = 1.0 if pictures.is_coloured else 0.8  # zero is grey in the one, white in the other
    sheet = np.full((down * tall + GAP, across * wide + GAP, 3), background)
    for i, tile in enumerate(colours):
        top, left = GAP + i // across * tall, GAP + i % across * wide
        sheet[top : top + tall - GAP, left : left + wide - GAP] = tile.repeat(WEIGHT, axis=0).repeat(WEIGHT, axis=1)
    return sheet
