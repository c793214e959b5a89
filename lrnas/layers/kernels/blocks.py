"""Block sizes of matrix-product kernels: by a rule, or measured on this GPU and stored on disk.

The rule prefers large blocks that need little padding. It was chosen on an H200, where its times are within a few per
cent of the best for the paper's layers. Inside `with tuning():` a few other block sizes are measured for every new kind
of shape, and the best is stored per GPU for all similar layers. Outside, nothing is measured, so a search never waits
for measurements.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from lrnas._files import write_atomically

ROUNDS = 3
"""Number of measurements of a candidate; the shortest time is used."""


class Blocks(NamedTuple):
    """Rows, columns and inner length of the matrix product of one program, its warps, and its pipeline stages."""

    rows: int
    cols: int
    inner: int
    warps: int
    stages: int


def fitting(sizes: Iterable[int], options: Sequence[int]) -> int:
    """The largest block length that needs at most 10 % more than the best one, if sizes are padded to whole blocks.

    Args:
        sizes: Lengths that are divided into blocks.
        options: Block lengths to choose from.
    """
    sizes = list(sizes)
    padded = {option: sum(math.ceil(size / option) * option for size in sizes) for option in options}
    least = min(padded.values())
    return max(option for option in options if padded[option] <= 1.1 * least)


_measuring = False


@contextmanager
def tuning() -> Iterator[None]:
    """Measure block sizes for new kinds of shapes inside a `with` block."""
    global _measuring
    before, _measuring = _measuring, True
    try:
        yield
    finally:
        _measuring = before


def choose(
    kind: str, shape: Sequence[int], default: Blocks, others: Sequence[Blocks], run: Callable[[Blocks], object]
) -> Blocks:
    """The best known blocks for a kernel and a shape.

    Args:
        kind: Name of the kernel.
        shape: Sizes that the best blocks depend on.
        default: Blocks by the rule.
        others: Further candidates.
        run: Runs the kernel with given blocks, for measurements.
    """
    if not torch.cuda.is_available():
        return default
    table, key = _table(_gpu_name()), f"{kind} {' '.join(str(_rounded(size)) for size in shape)}"
    if key not in table and _measuring and not torch.cuda.is_current_stream_capturing():
        times = {blocks: _measure(run, blocks) for blocks in dict.fromkeys((default, *others))}
        table[key] = min(times, key=lambda blocks: times[blocks])
        _store(_gpu_name(), key, table[key])
    return table.get(key, default)


def _rounded(size: int) -> int:
    """A number that is the same for similar sizes; it grows by 2 when the size doubles."""
    return 0 if size <= 0 else round(2 * math.log2(size))


def _measure(run: Callable[[Blocks], object], blocks: Blocks) -> float:
    try:
        run(blocks)
        times = []
        for _ in range(ROUNDS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run(blocks)
            run(blocks)
            end.record()
            end.synchronize()
            times.append(float(start.elapsed_time(end)))
        return min(times)
    except Exception as error:  # the blocks need more shared memory or registers than the GPU has
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        return math.inf


def _gpu_name() -> str:
    return _name_of(torch.cuda.current_device())


@functools.cache
def _name_of(device: int) -> str:
    return torch.cuda.get_device_name(device)


def _file(gpu: str) -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(folder).expanduser() / "lrnas" / "kernels" / f"{re.sub(r'[^A-Za-z0-9]+', '-', gpu)}.json"


@functools.cache
def _table(gpu: str) -> dict[str, Blocks]:
    try:
        return {key: Blocks(*numbers) for key, numbers in json.loads(_file(gpu).read_text()).items()}
    except (OSError, ValueError, TypeError):
        return {}


def _store(gpu: str, key: str, blocks: Blocks) -> None:
    """Add an entry to the file, which other processes may have changed in the meantime."""
    file = _file(gpu)
    try:
        known = json.loads(file.read_text()) if file.exists() else {}
        known[key] = blocks
        with write_atomically(file) as part:
            part.write_text(json.dumps(known, indent=0, sort_keys=True))
    except (OSError, ValueError):
        return  # the next process will measure again
