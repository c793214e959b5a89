"""Rank and number of the workers that train one network together. A single process is worker 0 of 1."""

from __future__ import annotations

import torch.distributed as dist


def rank() -> int:
    """The rank of this worker, counted from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of workers that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1
