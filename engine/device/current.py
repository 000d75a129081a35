"""The GPU that a thread works on."""

from __future__ import annotations

import torch


def enter_device(name: str) -> torch.device:
    """The device called `name` ("cpu", "cuda" or "cuda:N"), from now on the calling thread's current one.

    Events are recorded and kernels are launched on the current device, which CUDA keeps for each thread. So
    every thread that drives an engine calls this first; "cuda" is the GPU that the thread has already.
    """
    device = torch.device(name)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device
