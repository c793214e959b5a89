"""What the kernels know of a layer whose filters have different shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

Pair = tuple[int, int]
ALIGNMENT = 8
"""Channels are loaded so many at a time: 16 bytes of half precision. A box may begin at no other place, and a map with
another number of channels is filled up with zeros first."""
_SPEEDS = {16: 0.5, 32: 0.9, 64: 1.0}
"""Of products over blocks of filters of some lengths, roughly."""


class Layer(NamedTuple):
    """Groups of filters side by side. `margins` are the zeros above and to the left of the input, or what is cropped
    there where negative; `size` is the output's rows and columns, which say how far it reaches below and to the right.
    """

    filters: tuple[int, ...]
    kernels: tuple[Pair, ...]
    margins: tuple[Pair, ...]
    stride: Pair
    dilation: Pair
    size: Pair
    taps: tuple[int, ...] = ()
    """Of a layer of one group: the positions of its window that are looked at, counted row by row, where the weights of
    the others are zero; all where empty."""

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
        """Products of a position and a channel, where filters come in whole blocks of one length or another."""
        return {
            block: sum(
                math.ceil(num / block) * block * area for num, area in zip(self.filters, self.areas, strict=True)
            )
            for block in blocks
        }

    @property
    def filter_block(self) -> int:
        """Each tap of the packed weights has a multiple of this many rows.

        Products over longer blocks are faster, those with zeros are for nothing.
        """
        work = self.work(_SPEEDS)
        return min(_SPEEDS, key=lambda block: (work[block] / _SPEEDS[block], -block))

    @property
    def filter_rows(self) -> tuple[int, ...]:
        """Of one tap of each group: a row for every filter, and zeros up to whole blocks."""
        return self._in_blocks(self.filters)

    @property
    def leads(self) -> tuple[int, ...]:
        """How far before each group's first filter the box begins that holds it."""
        before = itertools.accumulate(self.filters[:-1], initial=0)
        return tuple(first % ALIGNMENT for first in before)

    @property
    def box_rows(self) -> tuple[int, ...]:
        """As `filter_rows`, for boxes: with zeros before each group's first filter too, where they begin before it."""
        return self._in_blocks(lead + num for lead, num in zip(self.leads, self.filters, strict=True))

    def _in_blocks(self, lengths: Iterable[int]) -> tuple[int, ...]:
        block = self.filter_block
        return tuple(length + -length % block for length in lengths)


def unit(number: int) -> int:
    """What a kernel takes for granted to divide a number: it loads eight at a time, or one."""
    return 1 if number % ALIGNMENT else ALIGNMENT


def precision(dtype: torch.dtype) -> str:
    """Of products of float32, as for PyTorch's convolutions."""
    return "tf32" if dtype == torch.float32 and torch.backends.cudnn.allow_tf32 else "ieee"
