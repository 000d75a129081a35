"""Asynchronous copies of small results from the device to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Readback:
    """Copies enqueued right behind the kernels that produce the data: later work does not delay them."""

    def __init__(self, tensors: Sequence[torch.Tensor], device: torch.device) -> None:
        """With no tensors, `wait` still waits for the work enqueued before."""
        on_gpu = device.type == "cuda"
        self._done = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._host = [_to_pinned(tensor) for tensor in tensors] if on_gpu else list(tensors)
        if self._done is not None:
            self._done.record()

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._done is None or bool(self._done.query())  # type: ignore[no-untyped-call]

    def wait(self) -> list[torch.Tensor]:
        """The tensors, in host memory. Returns at once on a CPU."""
        if self._done is not None:
            self._done.synchronize()
        return self._host


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    # A copy to pageable memory would block until the device is done.
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
