"""Which of several workers this is; one process on its own is rank 0 of 1."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")


def rank() -> int:
    """This worker's number."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather_objects(mine: T, device: torch.device) -> list[T]:
    """What every worker has, in the order of their ranks; all of them have to ask."""
    if not dist.is_initialized():
        return [mine]
    everyone: list[T] = [mine] * world_size()
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():  # NCCL takes the current one
        dist.all_gather_object(everyone, mine)
    return everyone
