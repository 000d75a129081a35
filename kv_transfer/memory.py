"""The KV pool as a transport sees it: one block of bytes, divided into pages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Memory that peers may write, page by page. It must outlive every transport that has it registered."""

    address: int
    """Address of page 0."""
    page_bytes: int
    num_pages: int
    device: str = "cpu"
    """"cpu" or "cuda:N"."""
    view: memoryview | None = None
    """The same bytes for host code: one-dimensional, format "B", writable. None on a GPU."""

    @property
    def num_bytes(self) -> int:
        return self.page_bytes * self.num_pages

    @property
    def device_index(self) -> int:
        """N of "cuda:N"; 0 for host memory."""
        return int(self.device.partition(":")[2] or 0)

    def require_page_bytes(self, page_bytes: int) -> None:
        """Raises ValueError if the layout's page size in bytes differs from this memory's."""
        if self.page_bytes != page_bytes:
            raise ValueError(f"the pool has {self.page_bytes} bytes per page, its layout {page_bytes}")

    def host_bytes(self) -> memoryview:
        """The pages as writable bytes. Raises TypeError for memory that the host cannot address."""
        if self.view is None:
            raise TypeError(f"memory on {self.device} cannot be read or written by the host")
        return self.view[: self.num_bytes]
