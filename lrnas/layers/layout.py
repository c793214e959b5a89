"""The order in which maps and weights are kept in memory, so that training is fast."""

from __future__ import annotations

import platform

import torch

IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


def fastest_layout(device: torch.device) -> torch.memory_format:
    """Return the layout in which networks are trained on a device: channels-last on GPUs and x86 CPUs.

    The libraries for convolutions compute in this layout. Maps in PyTorch's default layout are copied before and after
    each convolution. Most networks are faster without these copies, and none is clearly slower
    (results/cpu_training.json). Other processors than x86 were not measured.
    """
    is_known = device.type == "cuda" or (device.type == "cpu" and IS_X86)
    return torch.channels_last if is_known else torch.contiguous_format
