"""The cost of a network: multiply-accumulates and parameters, per layer and in total.

One **MAC** is the multiplication of one input (or padding) value by one weight and its addition to a sum, in one
forward pass of one image. A convolution has out_rows × out_columns × in_channels × Σ(filters × rows × columns) of them,
a linear layer in × out. Bias additions, activations, pooling and normalisation are not counted (batch norm can be
folded into the convolution before it). **Parameters** are all trained numbers, including the scale and shift of a norm.
Both are counted for the network as it is used after training, that is, without auxiliary heads.

**As deployed**: there is no activation inside a layer, so the groups of a composite layer and its join are together one
convolution, and so are the halves of a separable layer. `cheapest_form` is the form of a layer with the fewest MACs.

**The paper** adds one to its count for every bias term (once, not once per pixel). In its GoogLeNet table it also
counts the auxiliary heads and omits the parameters of the last classifier: see `Convention`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lrnas._notebook import NotebookView
from lrnas.arch.architecture import Mix

Role = Literal["body", "auxiliary", "classifier"]


class LayerCost(NamedTuple):
    """The cost of one layer."""

    name: str
    kind: str
    macs: int
    params: int
    biases: int
    output: tuple[int, ...]
    """Shape of the output for one image: channels, rows, columns; or features."""
    role: Role = "body"

    def with_channels(self, channels: int) -> LayerCost:
        """A layer without MACs, such as a norm, with this number of channels."""
        params = self.params * channels // self.output[0]
        return self._replace(params=params, output=(channels, *self.output[1:]))

    def with_inputs(self, channels: int, before: int) -> LayerCost:
        """A single convolution with this number of input channels instead of `before`."""
        params = (self.params - self.biases) * channels // before + self.biases
        return self._replace(macs=self.macs * channels // before, params=params)


class MixCost(NamedTuple):
    """The cost of a mix of filters on maps of one size."""

    macs: int
    params: int
    biases: int
    out_channels: int


def mix_cost(mix: Mix, in_channels: int, in_rows: int, rows: int, columns: int, bias: bool) -> MixCost:
    """The cost of a layer, computed from its filters and the sizes of its maps.

    Args:
        mix: The filters of the layer.
        in_channels: Channels of the input map.
        in_rows: Rows of the input map.
        rows: Rows of the output map.
        columns: Columns of the output map.
        bias: Whether the convolutions have a bias.
    """
    filters = weights = 0
    for height, width, count in mix.groups:
        filters += count
        weights += height * width * count
    weights *= in_channels
    if mix.second is None:
        biases = filters if bias else 0
        return MixCost(weights * rows * columns, weights + biases, biases, filters)
    height, width, count = mix.second
    # in a separable layer with a stride, the 1×k filters stride over columns only, the k×1 filters over rows only
    macs = weights * (in_rows if height > 1 else rows) * columns
    second = filters * height * width * count
    biases = filters + count if bias else 0
    return MixCost(macs + second * rows * columns, weights + second + biases, biases, count)


def cheapest_form(mix: Mix, macs_of: Callable[[Mix], int], halves_fold: bool) -> Mix:
    """The filters of a layer as deployed: as they are, or as one convolution if that has no more MACs.

    Args:
        mix: The filters of the layer.
        macs_of: Returns the MACs that the layer would have with other filters.
        halves_fold: Whether the two halves of a separable layer are exactly one convolution. They are not if the first
            half has a bias and the second half pads with zeros, where one convolution would have the bias.
    """
    if mix.second is None or (mix.is_separable and not halves_fold):
        return mix
    return mix.folded if macs_of(mix.folded) <= macs_of(mix) else mix


@dataclass(frozen=True, slots=True)
class Convention:
    """The rules of counting that differ between tables of the paper. All tables count one for every bias."""

    auxiliary_macs: bool = False
    """Whether the multiply-accumulates (and biases) of auxiliary heads are counted."""
    classifier_params: bool = True
    """Whether the parameters of the last layer are counted."""


@dataclass(frozen=True, slots=True, repr=False)
class Cost(NotebookView):
    """The cost of a network at one input size.

    Args:
        layers: The cost of every layer, auxiliary heads included.

    Example:
        >>> from lrnas import Architecture, make_plan
        >>> cost = make_plan(Architecture("nin"), input_size=32).cost
        >>> cost.macs, cost.params
        (222486528, 966986)
    """

    layers: Sequence[LayerCost]

    def __repr__(self) -> str:
        layers = sum(layer.macs > 0 and layer.role != "auxiliary" for layer in self.layers)
        return f"<Cost: {self.macs:,} MACs, {self.params:,} parameters, {layers} layers with MACs>"

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one forward pass of one image, without auxiliary heads."""
        return sum(layer.macs for layer in self.layers if layer.role != "auxiliary")

    @property
    def params(self) -> int:
        """Number of parameters, without auxiliary heads."""
        return sum(layer.params for layer in self.layers if layer.role != "auxiliary")

    @property
    def num_values(self) -> int:
        """Number of values that all layers write for one image, without auxiliary heads."""
        return sum(math.prod(layer.output) for layer in self.layers if layer.output and layer.role != "auxiliary")

    def paper_multiply_acc(self, convention: Convention = Convention()) -> int:  # noqa: B008 - frozen
        """Multiply-accumulates by the rules of a table of the paper."""
        layers = [layer for layer in self.layers if convention.auxiliary_macs or layer.role != "auxiliary"]
        return sum(layer.macs + layer.biases for layer in layers)

    def paper_params(self, convention: Convention = Convention()) -> int:  # noqa: B008 - frozen
        """Number of parameters by the rules of a table of the paper."""
        roles = ("body", "classifier") if convention.classifier_params else ("body",)
        return sum(layer.params for layer in self.layers if layer.role in roles)

    def layers_as_dicts(self) -> list[dict[str, Any]]:
        """The costs of the layers as JSON objects, without auxiliary heads."""
        keys = ("name", "kind", "macs", "params", "output")
        return [{key: getattr(layer, key) for key in keys} for layer in self.layers if layer.role != "auxiliary"]
