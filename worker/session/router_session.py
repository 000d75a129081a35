"""The worker's end of one router's stream: batches leave the engine thread here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from rpc.baton.v1 import worker_pb2

__all__ = ["RouterSession", "SessionBroken"]

_MAX_UNSENT: Final = 4096
"""Batches, one a step. A router this far behind is not reading any more, and memory is finite."""
_HEARTBEAT_S: Final = 0.2
"""The longest silence: an empty batch says that this process lives, whatever its engine is doing."""


class SessionBroken(Exception):
    """The session ended from the worker's side; the message says why."""


class RouterSession:
    """A queue from the engine thread to the asyncio loop that owns the stream.

    Requests belong to the session they came over: their events go there and nowhere else, and they end
    with it.
    """

    def __init__(self) -> None:
        """To be made on the asyncio loop that will read `batches`."""
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[worker_pb2.EventBatch | SessionBroken | None] = asyncio.Queue()
        self._closed = False

    def send(self, batch: worker_pb2.EventBatch) -> None:
        """From any thread; does not wait. Batches for a session that has ended go nowhere."""
        self._post(batch)

    def close(self) -> None:
        """From any thread: `batches` ends after what was sent before."""
        self._post(None)

    def fail(self, reason: str) -> None:
        """From any thread: `batches` raises SessionBroken after what was sent before."""
        self._post(SessionBroken(reason))

    async def batches(self) -> AsyncIterator[worker_pb2.EventBatch]:
        """What was sent, in order, until `close`; heartbeats meanwhile. Raises SessionBroken."""
        while (item := await self._next()) is not None:
            if isinstance(item, SessionBroken):
                raise item
            yield item

    async def _next(self) -> worker_pb2.EventBatch | SessionBroken | None:
        try:
            async with asyncio.timeout(_HEARTBEAT_S):
                return await self._unsent.get()
        except TimeoutError:
            return worker_pb2.EventBatch()

    def _post(self, item: worker_pb2.EventBatch | SessionBroken | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._put, item)
        except RuntimeError:  # the asyncio loop is closed, and the stream with it
            self._closed = True

    def _put(self, item: worker_pb2.EventBatch | SessionBroken | None) -> None:
        if self._closed:
            return
        if self._unsent.qsize() >= _MAX_UNSENT:
            item = SessionBroken(f"the router left {_MAX_UNSENT} event batches unread")
        self._closed = not isinstance(item, worker_pb2.EventBatch)
        self._unsent.put_nowait(item)
