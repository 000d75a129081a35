"""A transport that damages what it carries. It wraps a real one; nothing of it is known to the product."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from unittest.mock import patch

from kv_transfer import KVPort, Peer, PoolMemory
from kv_transfer.planner import Copy
from kv_transfer.transports import Transport
from kv_transfer.transports.base import ReceivedMessage, TransportEvent
from worker.assembly import assemble, open_port
from worker.kv_pool_access import memory_of
from worker.parts import Parts
from worker.request_handler import RequestHandler


@dataclass
class Corruption:
    """One bit of a page, flipped after the bytes have arrived and before the receiver hears of them."""

    probability: float
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    flipped: int = 0
    written: dict[bytes, tuple[Copy, ...]] = field(default_factory=dict)
    """Writes by the message that follows them: what was written and the receiver has not heard of."""

    def assemble(self, parts: Parts) -> RequestHandler:
        """As `worker.assembly.assemble`, with the worker's transport wrapped."""
        with patch("worker.assembly.open_port", self._open):
            return assemble(parts)

    def flip(self, memory: PoolMemory, message: bytes) -> None:
        """In pages that `message` is about."""
        bytes_ = memory.host_bytes()
        for copy in self.written.pop(message, ()):
            for page in range(copy.remote, copy.remote + copy.length, memory.page_bytes):
                if self.draw.random() < self.probability:
                    bytes_[page + self.draw.randrange(memory.page_bytes)] ^= 1 << self.draw.randrange(8)
                    self.flipped += 1

    def _open(self, parts: Parts) -> KVPort:
        port = open_port(parts)
        memory = memory_of(parts.engine.runner.kv)
        port.transport = _CorruptingTransport(port.transport, memory, self)
        return port


class _CorruptingTransport:
    def __init__(self, inner: Transport, memory: PoolMemory, corruption: Corruption) -> None:
        self._inner = inner
        self._memory = memory
        self._corruption = corruption
        self.name = inner.name
        self.metadata = inner.metadata
        self.connect: Callable[[Peer], None] = inner.connect
        self.send: Callable[[Peer, bytes], None] = inner.send
        self.is_local: Callable[[Peer], bool] = inner.is_local
        self.forget: Callable[[Peer], None] = inner.forget
        self.close: Callable[[], None] = inner.close

    def write(self, peer: Peer, copies: Sequence[Copy], message: bytes) -> int:
        self._corruption.written[message] = tuple(copies)
        return self._inner.write(peer, copies, message)

    def poll(self) -> list[TransportEvent]:
        events = self._inner.poll()
        for event in events:
            if isinstance(event, ReceivedMessage):
                self._corruption.flip(self._memory, event.data)
        return events
