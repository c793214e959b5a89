"""Rank and number of the workers that train one network together. A single process is worker 0 of 1."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def rank() -> int:
    """The rank of this worker, counted from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """The number of workers that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather_objects(mine: T, device: torch.device) -> list[T]:
    """Collect one object from every worker. All workers must call this function.

    Args:
        mine: The object of this worker.
        device: The device of this worker.

    Returns:
        The objects of all workers, in the order of their ranks.
    """
    if not dist.is_initialized():
        return [mine]
    everyone: list[T] = [mine] * world_size()
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # NCCL uses the current device
        dist.all_gather_object(everyone, mine)
    return everyone
