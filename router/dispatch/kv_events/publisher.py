"""Sends batches of events over ZeroMQ as vLLM does, and sends past ones again on request.

A message has three frames: the topic, the batch's number (8 bytes, big-endian, from 0), and the batch in
msgpack: [time, [event, ...], rank]. An event is an array that begins with its name; fields are in the order
of vllm/distributed/kv_events.py. A subscriber that misses numbers sends the first of them (8 bytes) to the
replay endpoint. It gets every later batch that is still kept, then one with the number -1.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgpack
import zmq
import zmq.asyncio

from common.background import cancelled, repeat, supervised
from router.dispatch.kv_events.blocks import BlockEvent, BlocksStored

_log = logging.getLogger(__name__)

_KEPT_BATCHES: Final = 10_000
_UNSENT_BATCHES: Final = 100_000
"""For a subscriber that is too slow; further ones are dropped for it, which it sees by their numbers."""
_FULL_S: Final = 0.02
"""Until a subscriber that reads past batches slowly is tried again."""
_RANK: Final = 0
_MEDIUM: Final = "GPU"
_CLEARED: Final = ["AllBlocksCleared"]
_END: Final = (-1).to_bytes(8, "big", signed=True)


def encoded(events: Sequence[BlockEvent], page_size: int, now: float) -> bytes:
    """A batch. `now`: seconds since 1970."""
    return _packed([_fields(event, page_size) for event in events], now)


def _fields(event: BlockEvent, page_size: int) -> list[Any]:
    if isinstance(event, BlocksStored):
        adapter_id = None  # deprecated
        fields: list[Any] = [
            "BlockStored",
            event.blocks,
            event.parent,
            event.tokens,
            page_size,
            adapter_id,
            _MEDIUM,
            event.adapter or None,
        ]
        if event.extra_keys:
            fields.append([event.extra_keys.get(block) for block in event.blocks])
        return fields
    return ["BlockRemoved", event.blocks, _MEDIUM]


def _packed(events: list[list[Any]], now: float) -> bytes:
    packed: bytes = msgpack.packb([now, events, _RANK])
    return packed


class Publisher:
    """Belongs to the event loop. `open`, then `send`, then `close`."""

    def __init__(self, endpoint: str, replay_endpoint: str | None, topic: str) -> None:
        """Endpoints to bind to, such as tcp://*:5557."""
        self._endpoint: Final = endpoint
        self._replay_endpoint: Final = replay_endpoint
        self._topic: Final = topic.encode()
        self._context: Final = zmq.asyncio.Context()
        self._number = 0
        self._kept: Final[deque[tuple[bytes, bytes]]] = deque(maxlen=_KEPT_BATCHES)
        self._listening: asyncio.Task[None] | None = None
        self._replays: dict[bytes, asyncio.Task[None]] = {}
        """The last one of each subscriber."""

    async def open(self) -> None:
        """Bind, and say that nothing is cached: a subscriber may know blocks of a router that ended.

        Raises OSError.
        """
        try:
            self._publishing = self._context.socket(zmq.PUB)
            self._publishing.set_hwm(_UNSENT_BATCHES)
            self._publishing.bind(self._endpoint)
            if self._replay_endpoint is not None:
                replies = self._context.socket(zmq.ROUTER)
                replies.set(zmq.ROUTER_MANDATORY, 1)  # otherwise what does not fit is dropped
                replies.bind(self._replay_endpoint)
                listening = repeat(partial(self._listen, replies), 0.0, _log, "KV events are not replayed")
                self._listening = supervised(listening, "replays of KV events")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, str(error)) from None
        await self._send(_packed([_CLEARED], time.time()))

    async def send(self, events: Sequence[BlockEvent], page_size: int) -> None:
        """Never waits for a subscriber."""
        await self._send(encoded(events, page_size, time.time()))

    async def close(self) -> None:
        if self._listening is not None:
            await cancelled(self._listening, *self._replays.values())
        self._context.destroy(linger=0)

    async def _send(self, batch: bytes) -> None:
        number = self._number.to_bytes(8, "big")
        self._number += 1
        self._kept.append((number, batch))
        await self._publishing.send_multipart([self._topic, number, batch])

    async def _listen(self, replies: zmq.asyncio.Socket) -> None:
        """Begin to answer one subscriber. Its last question counts."""
        client, *_, first = await replies.recv_multipart()
        self._replays = {known: task for known, task in self._replays.items() if not task.done()}
        if (before := self._replays.pop(client, None)) is not None:
            await cancelled(before)
        kept = [each for each in self._kept if each[0] >= first] if len(first) == len(_END) else []
        self._replays[client] = supervised(_replay(replies, client, kept), "replay of KV events")


async def _replay(replies: zmq.asyncio.Socket, client: bytes, batches: Sequence[tuple[bytes, bytes]]) -> None:
    """Send numbered batches as fast as the client takes them, until it has all or is gone."""
    for number, batch in [*batches, (_END, b"")]:
        while True:
            try:
                await replies.send_multipart([client, b"", number, batch], zmq.NOBLOCK)
                break
            except zmq.Again:
                await asyncio.sleep(_FULL_S)
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
                return
