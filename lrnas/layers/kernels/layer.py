"""The description of a layer with filters of different shapes that the kernels use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

Pair = tuple[int, int]
ALIGNMENT = 8
"""Number of channels that are loaded at a time: 16 bytes in half precision. A box must begin at a multiple of it, and
maps get channels of zeros up to a multiple of it."""
_SPEEDS = {16: 0.5, 32: 0.9, 64: 1.0}
"""Approximate relative speed of products, by the length of the blocks of filters."""


class Layer(NamedTuple):
    """Groups of filters side by side.

    `margins` are the zeros above and to the left of the input for each group; negative numbers crop it. `size` is the
    rows and columns of the output, which determine the zeros below and to the right.
    """

    filters: tuple[int, ...]
    kernels: tuple[Pair, ...]
    margins: tuple[Pair, ...]
    stride: Pair
    dilation: Pair
    size: Pair
    taps: tuple[int, ...] = ()
    """For a layer of one group: the positions of its window that may have nonzero weights, counted row by row; empty
    for all positions."""

    @property
    def areas(self) -> tuple[int, ...]:
        return tuple(rows * cols for rows, cols in self.kernels)

    @property
    def num_filters(self) -> int:
        return sum(self.filters)

    @property
    def filter_unit(self) -> int:
        return unit(math.gcd(*self.filters))

    @property
    def filter_units(self) -> tuple[int, ...]:
        return tuple(num // self.filter_unit for num in self.filters)

    def work(self, blocks: Iterable[int]) -> dict[int, int]:
        """Products per position and channel if filters are computed in whole blocks, by the length of the blocks."""
        return {
            block: sum(
                math.ceil(num / block) * block * area for num, area in zip(self.filters, self.areas, strict=True)
            )
            for block in blocks
        }

    @property
    def filter_block(self) -> int:
        """The number of rows of each tap of the packed weights is a multiple of this.

        Longer blocks are faster, but waste more products on zeros.
        """
        work = self.work(_SPEEDS)
        return min(_SPEEDS, key=lambda block: (work[block] / _SPEEDS[block], -block))

    @property
    def filter_rows(self) -> tuple[int, ...]:
        """Rows of one tap of each group: one for every filter, and zeros up to whole blocks."""
        return self._in_blocks(self.filters)

    @property
    def leads(self) -> tuple[int, ...]:
        """Distance from the beginning of each group's box to its first filter."""
        before = itertools.accumulate(self.filters[:-1], initial=0)
        return tuple(first % ALIGNMENT for first in before)

    @property
    def box_rows(self) -> tuple[int, ...]:
        """`filter_rows` for boxes: also with zeros where a box begins before the first filter of its group."""
        return self._in_blocks(lead + num for lead, num in zip(self.leads, self.filters, strict=True))

    def _in_blocks(self, lengths: Iterable[int]) -> tuple[int, ...]:
        block = self.filter_block
        return tuple(length + -length % block for length in lengths)


def unit(number: int) -> int:
    """A divisor of a number that a kernel may rely on: it loads eight values at a time, or one."""
    return 1 if number % ALIGNMENT else ALIGNMENT


def precision(dtype: torch.dtype) -> str:
    """The precision of float32 products, as set for PyTorch's convolutions."""
    return "tf32" if dtype == torch.float32 and torch.backends.cudnn.allow_tf32 else "ieee"
