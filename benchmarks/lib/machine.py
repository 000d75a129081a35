"""Description of the machine that results were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch


def describe_machine() -> str:
    """ "2 cores of Intel Xeon …", or the GPUs if there are any."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return f"{len(os.sched_getaffinity(0))} cores of {_cpu_name()}"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()
