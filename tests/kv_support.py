"""Small pools, layouts and handoffs for the tests of kv_transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kv_transfer import Final, KVLayout, KVReceiver, KVSender, PoolMemory
from kv_transfer.transports import Transport

__all__ = ["LAYOUT", "REQUEST", "Pool", "expect_handed_over", "final_for", "receiver_on", "sender_on"]

LAYOUT = KVLayout(weights="tiny", dtype="float32", num_layers=2, num_kv_heads=2, head_dim=4, page_size=4)
REQUEST = 0xFEED
"""A request digest."""


@dataclass(slots=True)
class Pool:
    """A KV pool in host memory whose bytes tests read and write."""

    num_pages: int
    layout: KVLayout = LAYOUT
    bytes: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.bytes = np.zeros((self.num_pages, self.layout.page_bytes), dtype=np.uint8)

    @property
    def memory(self) -> PoolMemory:
        view = memoryview(self.bytes.reshape(-1))
        return PoolMemory(self.bytes.ctypes.data, self.layout.page_bytes, self.num_pages, view=view)

    def fill(self, pages: Sequence[int], seed: int = 0) -> None:
        """Random bytes, different for each page and seed."""
        for page in pages:
            drawn = np.random.default_rng((seed, page)).bytes(self.layout.page_bytes)
            self.bytes[page] = np.frombuffer(drawn, dtype=np.uint8)


def sender_on(transport: Transport, pool: Pool, epoch: int = 1, **options: float) -> KVSender:
    return KVSender(transport, pool.memory, pool.layout, epoch, **options)  # type: ignore[arg-type]


def receiver_on(transport: Transport, pool: Pool, epoch: int = 2, **options: float) -> KVReceiver:
    return KVReceiver(transport, pool.memory, pool.layout, epoch, **options)  # type: ignore[arg-type]


def final_for(num_tokens: int, first_token: int = 7) -> Final:
    return Final(first_token, position=num_tokens, seed=42, request_digest=REQUEST)


def expect_handed_over(source: Pool, local: Sequence[int], target: Pool, remote: Sequence[int]) -> None:
    np.testing.assert_array_equal(target.bytes[list(remote)], source.bytes[list(local)])
