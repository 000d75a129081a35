"""Small pools, layouts and handoffs for the tests of kv_transfer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from common.kv_groups import full_group
from kv_transfer import EndpointEvent, HandoffState, KVEndpoint, KVLayout, KVPort, Peer, PoolMemory, Reopened
from kv_transfer.handoff.receiver import KVReceiver
from kv_transfer.handoff.sender import KVSender
from kv_transfer.transports import Transport

LAYOUT = KVLayout(
    model="tiny", dtype="float32", groups=full_group(2), num_kv_heads=2, head_dim=4, page_size=4
)
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


class Half:
    """One half of an endpoint whose other half has nothing to do."""

    def __init__(self, endpoint: KVEndpoint, port: KVPort, half: KVSender | KVReceiver) -> None:
        self.endpoint = endpoint
        self.port = port
        self._half = half

    def __getattr__(self, name: str) -> Any:
        return getattr(self._half, name)

    @property
    def peer(self) -> Peer:
        return self.port.peer

    @property
    def transport(self) -> Transport:
        return self.port.transport

    @property
    def unexpected(self) -> Counter[str]:
        return self.port.unexpected

    def is_busy(self, now: float) -> bool:
        return self.endpoint.is_busy(now)

    def poll(self, now: float) -> list[EndpointEvent]:
        """Without `Reopened`."""
        return [event for event in self.endpoint.poll(now) if not isinstance(event, Reopened)]

    def fence(self, epoch: int, reason: str, now: float) -> None:
        self.endpoint.fence(epoch, reason, now)

    def close(self) -> None:
        self.endpoint.close()


def sender_on(transport: Transport, pool: Pool, epoch: int = 1, **options: float) -> Half:
    port = KVPort(transport, pool.memory, pool.layout, epoch)
    endpoint = KVEndpoint(port, **options)
    return Half(endpoint, port, endpoint.sender)


def receiver_on(
    transport: Transport,
    pool: Pool,
    epoch: int = 2,
    reopen: Callable[[], Transport] | None = None,
    **options: float,
) -> Half:
    port = KVPort(transport, pool.memory, pool.layout, epoch, reopen=reopen)
    endpoint = KVEndpoint(port, **options)
    return Half(endpoint, port, endpoint.receiver)


def final_for(num_tokens: int, first_token: int = 7) -> HandoffState:
    return HandoffState((first_token,), position=num_tokens, seed=42, request_digest=REQUEST)


def expect_handed_off(source: Pool, local: Sequence[int], target: Pool, remote: Sequence[int]) -> None:
    np.testing.assert_array_equal(target.bytes[list(remote)], source.bytes[list(local)])
