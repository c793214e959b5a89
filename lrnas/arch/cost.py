"""What a network costs: multiply-accumulates and parameters, per layer and in all.

One **MAC** is one multiplication of an input (or padding) value by a weight, added up, in one forward
pass of one image: a convolution has out_rows × out_columns × in_channels × Σ(filters × rows × columns)
of them, a linear layer in × out. Bias additions, activations, pooling and normalisation count nothing
(batch norm folds into the convolution before it). **Parameters** are all that training changes,
the scale and shift of a norm included. Both are of the network as it is used after training:
auxiliary heads are kept apart.

**The paper's convention** adds one for every bias term (once, not once per pixel). Its GoogLeNet table
counts the auxiliary heads too, and leaves the last classifier out of the parameters: `Convention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from lrnas.arch.architecture import Mix

Role = Literal["body", "auxiliary", "classifier"]


class LayerCost(NamedTuple):
    """One layer's part of the cost."""

    name: str
    kind: str
    macs: int
    params: int
    biases: int
    output: tuple[int, ...]
    """Shape of its output for one image: channels, rows, columns; or features."""
    role: Role = "body"


class MixCost(NamedTuple):
    """What a mix of filters costs in one place of a network."""

    macs: int
    params: int
    biases: int
    out_channels: int


def mix_cost(mix: Mix, in_channels: int, in_rows: int, rows: int, columns: int, bias: bool) -> MixCost:
    """The cost of a mix of filters that turns a map of `in_rows` rows into one of rows × columns."""
    filters = weights = 0
    for height, width, count in mix.groups:
        filters += count
        weights += height * width * count
    weights *= in_channels
    if mix.second is None:
        biases = filters if bias else 0
        return MixCost(weights * rows * columns, weights + biases, biases, filters)
    height, width, count = mix.second
    # the 1×k half of a separable layer strides over columns only, the k×1 half over rows
    macs = weights * (in_rows if height > 1 else rows) * columns
    second = filters * height * width * count
    biases = filters + count if bias else 0
    return MixCost(macs + second * rows * columns, weights + second + biases, biases, count)


@dataclass(frozen=True, slots=True)
class Convention:
    """What a published table counts besides the multiply-accumulates of the network in use."""

    auxiliary_macs: bool = False
    """The multiply-accumulates (and biases) of auxiliary heads, used only in training."""
    classifier_params: bool = True
    """The parameters of the last layer."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a network at one input size."""

    layers: Sequence[LayerCost]

    @property
    def macs(self) -> int:
        return sum(layer.macs for layer in self.layers if layer.role != "auxiliary")

    @property
    def params(self) -> int:
        return sum(layer.params for layer in self.layers if layer.role != "auxiliary")

    def paper_multiply_acc(self, convention: Convention = Convention()) -> int:  # noqa: B008 - frozen
        """Multiply-accumulates as the paper counts them."""
        return sum(
            layer.macs + layer.biases for layer in self.layers if convention.auxiliary_macs or layer.role != "auxiliary"
        )

    def paper_params(self, convention: Convention = Convention()) -> int:  # noqa: B008 - frozen
        """Parameters as the paper counts them."""
        return sum(
            layer.params
            for layer in self.layers
            if layer.role == "body" or (layer.role == "classifier" and convention.classifier_params)
        )

    def layers_as_dicts(self) -> list[dict[str, Any]]:
        """The layers in use, for JSON."""
        keys = ("name", "kind", "macs", "params", "output")
        return [{key: getattr(layer, key) for key in keys} for layer in self.layers if layer.role != "auxiliary"]
