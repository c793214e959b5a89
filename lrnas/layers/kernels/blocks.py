"""How a matrix-product kernel cuts its work into blocks: a rule, or what was measured on this GPU and kept on disk.

The rule pads little and was chosen on an H200, where it is within a few per cent of the best for the paper's layers.
Inside `with tuning():` every kind of shape that is met for the first time is measured with a few other cuts, and the
best is remembered, per GPU, for all layers that resemble it: a search never waits for a measurement.
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
"""How often a candidate is measured; the best counts."""


class Blocks(NamedTuple):
    """Rows, columns and inner length of what one program multiplies, its warps, and the loads it has in flight."""

    rows: int
    cols: int
    inner: int
    warps: int
    stages: int


def fitting(sizes: Iterable[int], options: Sequence[int]) -> int:
    """The largest block length that pads these sizes hardly more than the smallest one does."""
    sizes = list(sizes)
    padded = {option: sum(math.ceil(size / option) * option for size in sizes) for option in options}
    least = min(padded.values())
    return max(option for option in options if padded[option] <= 1.1 * least)


_measuring = False


@contextmanager
def tuning() -> Iterator[None]:
    """Inside, kernels measure how to cut kinds of shapes that have not been measured on this GPU."""
    global _measuring
    before, _measuring = _measuring, True
    try:
        yield
    finally:
        _measuring = before


def choose(
    kind: str, shape: Sequence[int], default: Blocks, others: Sequence[Blocks], run: Callable[[Blocks], object]
) -> Blocks:
    """The best known blocks for a kernel on a shape; `run` is the kernel, for measuring."""
    if not torch.cuda.is_available():
        return default
    table, key = _table(_gpu_name()), f"{kind} {' '.join(str(_rounded(size)) for size in shape)}"
    if key not in table and _measuring and not torch.cuda.is_current_stream_capturing():
        times = {blocks: _measure(run, blocks) for blocks in dict.fromkeys((default, *others))}
        table[key] = min(times, key=lambda blocks: times[blocks])
        _keep(_gpu_name(), key, table[key])
    return table.get(key, default)


def _rounded(size: int) -> int:
    """Sizes that round to the same number resemble each other: two steps for every doubling."""
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
    except Exception as error:  # more shared memory or registers than this GPU has
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


def _keep(gpu: str, key: str, blocks: Blocks) -> None:
    """Adds to what is on disk by now; the file is replaced as a whole, so that nobody reads half of it."""
    file = _file(gpu)
    try:
        known = json.loads(file.read_text()) if file.exists() else {}
        known[key] = blocks
        with write_atomically(file) as part:
            part.write_text(json.dumps(known, indent=0, sort_keys=True))
    except (OSError, ValueError):
        return  # measured again next time
