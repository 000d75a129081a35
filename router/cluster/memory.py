"""Measures the memory of the machine that a process runs on, in bytes."""

from __future__ import annotations

import os


def gpu_memory() -> int:
    """Of the first GPU, in total."""
    import torch

    return int(torch.cuda.get_device_properties(0).total_memory)


def free_main_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
