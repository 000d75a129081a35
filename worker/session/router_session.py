"""The worker's end of a router's stream: a queue of event batches from the engine thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

from rpc.baton.v1 import worker_pb2
from rpc.session import LEASE_S

_MAX_UNSENT: Final = 4096
"""Limit of queued batches, one per step. At the limit the router counts as hung and the session ends."""
_HEARTBEAT_S: Final = 0.2
"""Heartbeat interval: without events for this long, an empty batch is sent, even during an engine step."""


class SessionBroken(Exception):
    """The worker has ended the session; the message is the reason."""


class RouterLate(SessionBroken):
    """The router is the cause: it hangs, is stopped, or cannot be reached."""


_Item: TypeAlias = worker_pb2.EventBatch | SessionBroken | None
"""None: the session ends in order."""


class RouterSession:
    """A queue from the engine thread to the asyncio loop that owns the stream.

    A request belongs to the session over which it arrived: its events go there, and it is aborted when the
    session ends.
    """

    def __init__(self, router: str = "") -> None:
        """Create it on the asyncio loop that reads `batches`. `router`: the router's name."""
        self.router: Final = router
        self.without_ray = False
        """Whether Ray does not answer the router, by its last heartbeat. Of the engine thread."""
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[_Item] = asyncio.Queue()
        self._closed = False

    def tell(self, *, without_ray: bool) -> None:
        self.without_ray = without_ray

    async def batches(self) -> AsyncIterator[worker_pb2.EventBatch]:
        """The sent batches in order, with heartbeats in between, until `close`. Raises SessionBroken."""
        while True:
            try:
                async with asyncio.timeout(_HEARTBEAT_S):
                    item = await self._unsent.get()
            except TimeoutError:
                item = worker_pb2.EventBatch()
            if item is None:
                return
            if isinstance(item, SessionBroken):
                raise item
            item.written_s = time.monotonic()
            yield item

    def close(self) -> None:
        """From any thread: end `batches` after those already sent."""
        self.send(None)

    def fail(self, reason: str) -> None:
        """From any thread: make `batches` raise SessionBroken after those already sent."""
        self.send(SessionBroken(reason))

    def give_up(self, reason: str) -> None:
        """As `fail`, because of the router."""
        self.send(RouterLate(reason))

    def send(self, item: _Item) -> None:
        """From any thread, without blocking. Dropped if the session has ended."""
        try:
            self._loop.call_soon_threadsafe(self._put, item)
        except RuntimeError:  # the asyncio loop is closed, and the stream with it
            self._closed = True

    def _put(self, item: _Item) -> None:
        if self._closed:
            return
        if self._unsent.qsize() >= _MAX_UNSENT:
            item = RouterLate(f"the router left {_MAX_UNSENT} event batches unread")
        self._closed = not isinstance(item, worker_pb2.EventBatch)
        self._unsent.put_nowait(item)


TURN_S: Final = 0.5
"""Interval of calls of `passed`."""
_LONGEST_TURN_S: Final = 1.0


class Lease:
    """A router's lease on its session: one that is silent for too long loses its requests here.

    The kernel reports the end of a router's process at once, but not that it is stopped, or hangs. Its
    requests would hold their pages, and delay those of other routers.

    A turn counts at most `_LONGEST_TURN_S`, however long it took: while the worker itself
    is stopped, its routers must not appear silent.
    """

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.lease_s: Final = lease_s
        self._silent_s = 0.0

    @property
    def has_ended(self) -> bool:
        """Stays so: a router that continues opens another session."""
        return self._silent_s >= self.lease_s

    def heard(self) -> None:
        """Record a command or heartbeat. No effect after the end."""
        if not self.has_ended:
            self._silent_s = 0.0

    def passed(self, seconds: float) -> None:
        """Record a turn of `seconds`."""
        self._silent_s += min(max(seconds, 0.0), _LONGEST_TURN_S)
