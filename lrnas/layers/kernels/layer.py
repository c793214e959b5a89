"""The description of a mixed-shape layer for the kernels.

A tap is one position of a filter: a 3×1 filter has three taps. A box is a part of a map, images × rows × columns ×
channels, that the GPU copies at once (see `tiled`). Packed weights are a matrix with one row of channels for every
group, tap and filter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

Pair = tuple[int, int]
ALIGNMENT = 8
"""Number of channels that are loaded at once: 16 bytes in half precision.

A box must begin at a multiple of this number. Maps are padded with channels of zeros up to a multiple of it.
"""
_SPEEDS = {16: 0.5, 32: 0.9, 64: 1.0}
"""Approximate relative speed of products, by the number of filters in a block."""


class Layer(NamedTuple):
    """Groups of filters side by side.

    `filters` are the numbers of filters of each group, `kernels` their rows and columns. `margins` are the rows and
    columns of zeros above and to the left of the input for each group; negative numbers crop the input. `size` is the
    rows and columns of the output, from which the zeros below and to the right follow.
    """

    filters: tuple[int, ...]
    kernels: tuple[Pair, ...]
    margins: tuple[Pair, ...]
    stride: Pair
    dilation: Pair
    size: Pair
    taps: tuple[int, ...] = ()
    """For a layer of one group: the taps that may have nonzero weights, counted row by row. Empty: all taps."""

    @property
    def areas(self) -> tuple[int, ...]:
        return tuple(rows * cols for rows, cols in self.kernels)

    @property
    def num_filters(self) -> int:
        return sum(self.filters)

    @property
    def filter_unit(self) -> int:
        """8 if the filters of every group are a multiple of 8, otherwise 1."""
        return unit(math.gcd(*self.filters))

    @property
    def filter_units(self) -> tuple[int, ...]:
        """The number of filters of each group, in units of `filter_unit`."""
        return tuple(num // self.filter_unit for num in self.filters)

    def work(self, blocks: Iterable[int]) -> dict[int, int]:
        """Products per position and channel if filters are computed in whole blocks, by number of filters per block."""
        return {
            block: sum(
                math.ceil(num / block) * block * area for num, area in zip(self.filters, self.areas, strict=True)
            )
            for block in blocks
        }

    @property
    def filter_block(self) -> int:
        """Number of filters per block. In packed weights, each tap has a multiple of this number of rows.

        Longer blocks are faster, but waste more products on zeros.
        """
        work = self.work(_SPEEDS)
        return min(_SPEEDS, key=lambda block: (work[block] / _SPEEDS[block], -block))

    @property
    def filter_rows(self) -> tuple[int, ...]:
        """Rows of one tap of each group in packed weights: one for every filter, then zeros to fill the last block."""
        return self._in_blocks(self.filters)

    @property
    def leads(self) -> tuple[int, ...]:
        """Number of filters of other groups that precede each group in its box, which begins at an aligned filter."""
        before = itertools.accumulate(self.filters[:-1], initial=0)
        return tuple(first % ALIGNMENT for first in before)

    @property
    def box_rows(self) -> tuple[int, ...]:
        """`filter_rows` for boxes: zeros also stand in for the `leads`, the filters of other groups in a box."""
        return self._in_blocks(lead + num for lead, num in zip(self.leads, self.filters, strict=True))

    def _in_blocks(self, lengths: Iterable[int]) -> tuple[int, ...]:
        block = self.filter_block
        return tuple(length + -length % block for length in lengths)


def unit(number: int) -> int:
    """Number of values that a kernel can load at once: 8 if `number` is a multiple of 8, otherwise 1."""
    return 1 if number % ALIGNMENT else ALIGNMENT


def precision(dtype: torch.dtype) -> str:
    """Triton's name for the precision of float32 products that is set for PyTorch's convolutions."""
    return "tf32" if dtype == torch.float32 and torch.backends.cudnn.allow_tf32 else "ieee"
