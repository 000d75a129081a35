"""CUDA contexts of threads. UCX uses the context of the calling thread: on a thread without one it silently
treats GPU memory as host memory, or does not use NVLink."""

from __future__ import annotations

import ctypes
import threading

from kv_transfer.memory import PoolMemory


class NoContext(RuntimeError):
    """The calling thread has no CUDA context after setting one."""


class Caller:
    """Binds the device's context to the thread that drives a transport, whichever thread created it."""

    def __init__(self, memory: PoolMemory) -> None:
        self._memory = memory
        self._thread = 0

    def enter(self) -> None:
        """Must be called before every use of UCX; cheap after the first call on a thread.

        Raises NoContext.
        """
        if self._thread == threading.get_ident():
            return
        if self._memory.device.startswith("cuda"):
            enter(self._memory.device_index)
        self._thread = threading.get_ident()


def enter(device_index: int) -> None:
    """Bind the context of a GPU to the calling thread. Raises NoContext."""
    import torch

    torch.cuda.set_device(device_index)
    # set_device returns early if the number is current already, as 0 is by default; the first operation binds
    # the context to the thread.
    torch.zeros(1, device=f"cuda:{device_index}")
    if not _has_context():
        raise NoContext(
            f"this thread got no CUDA context on cuda:{device_index}; UCX would silently not use NVLink"
        )


def _has_context() -> bool:
    """Queries the driver, as UCX does."""
    context = ctypes.c_void_p()
    status = ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    return status == 0 and context.value is not None
