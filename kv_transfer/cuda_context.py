"""A thread's CUDA context. UCX looks for one and never asks for it: on a thread without, it takes memory of a
GPU for memory of the host's or goes without NVLink, and says nothing."""

from __future__ import annotations

import ctypes
import threading

from kv_transfer.memory import PoolMemory

__all__ = ["Caller", "NoContext", "enter"]


class NoContext(RuntimeError):
    """The calling thread has no CUDA context although it was given one."""


class Caller:
    """The thread that drives a transport: made on one, run on another, at any time on one only."""

    def __init__(self, memory: PoolMemory) -> None:
        self._memory = memory
        self._thread = 0

    def enter(self) -> None:
        """At the start of every call that may reach UCX; next to free but the first time on a thread.

        Raises NoContext.
        """
        if self._thread == threading.get_ident():
            return
        if self._memory.device.startswith("cuda"):
            enter(self._memory.device_index)
        self._thread = threading.get_ident()


def enter(device_index: int) -> None:
    """Gives the calling thread the context of a GPU, for good. Raises NoContext."""
    import torch

    torch.cuda.set_device(device_index)
    # For set_device returns early where the number is right already, as 0 always is: the first piece of work
    # is what binds the context to the thread.
    torch.zeros(1, device=f"cuda:{device_index}")
    if not _is_there():
        raise NoContext(
            f"this thread got no CUDA context on cuda:{device_index}; KV would silently travel without NVLink"
        )


def _is_there() -> bool:
    """What the driver says, since UCX asks the driver."""
    context = ctypes.c_void_p()
    status = ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    return status == 0 and context.value is not None
