"""Programmatic dependent launch (PDL): kernels that begin while the previous one still runs. Hopper and
later.

Between two kernels a device drains and fills again, which takes one or two microseconds, and a step has three
hundred kernels. A kernel launched early loads what does not depend on its inputs, above all weights, and then
waits for them.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@cache
def supports_pdl(device: torch.device) -> bool:
    """Whether kernels may be launched with `launch_pdl` on this device, and compiled with `use_pdl`."""
    return torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit  # type: ignore[untyped-decorator]
def pdl_wait(use_pdl: tl.constexpr):  # type: ignore[no-untyped-def]
    """Wait for all previous kernels, and let the next one begin; it waits in the same way.

    Before this call, load only what no kernel writes, and store nothing. Every PDL kernel must call this,
    except in blocks that do nothing: ordering does not extend past a predecessor that did not wait.
    """
    if use_pdl:
        gdc_launch_dependents()
        gdc_wait()
