"""Kernels that begin while the one before them still runs, where the device can: Hopper and later.

Between two kernels a device drains and fills again, for a microsecond or two, and a step has three hundred.
A kernel launched early is there before its inputs are: it loads what does not depend on them, weights above
all, and waits. (NVIDIA's programmatic dependent launch.)
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["pdl_wait", "supports_pdl"]


@cache
def supports_pdl(device: torch.device) -> bool:
    """Whether kernels there may be launched with `launch_pdl`, and compiled with `use_pdl`."""
    return torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit  # type: ignore[untyped-decorator]
def pdl_wait(use_pdl: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait for all kernels before this one; let the one behind it begin, which waits likewise.

    Before it, load only what no kernel writes, and store nothing. Every kernel launched with `launch_pdl` has
    to call it, but for blocks that do nothing: who waits for a kernel that did not wait itself has waited for
    that one alone.
    """
    if use_pdl:
        gdc_launch_dependents()
        gdc_wait()
