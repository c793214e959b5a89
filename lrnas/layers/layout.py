"""The order in which maps and weights are kept in memory, so that training is fast."""

from __future__ import annotations

import platform

import torch

IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


def fastest_layout(device: torch.device) -> torch.memory_format:
    """Return the layout in which networks are trained and run fastest on a device.

    Libraries for convolutions compute in the channels-last layout, and copy maps in another one before and after each
    convolution. Whether that is slower too on other processors than x86 was not measured.
    """
    is_known = device.type == "cuda" or (device.type == "cpu" and IS_X86)
    return torch.channels_last if is_known else torch.contiguous_format
