"""A reader of a sequence that takes one delta at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from router.dispatch.interface import Dispatcher
from router.dispatch.token_stream import Delta, TokenStream
from rpc.baton.v1 import sampling_pb2, worker_pb2


async def deltas_of(
    dispatcher: Dispatcher, prompt: Sequence[int], sampling: sampling_pb2.SamplingParams, **options: Any
) -> AsyncGenerator[Delta, None]:
    """While the caller works on a delta, the next ones are merged. Closing it ends the sequence."""
    deltas: deque[Delta] = deque()
    news = asyncio.Event()

    def deliver(delta: Delta) -> bool:
        deltas.append(delta)
        stream.pause()
        news.set()
        return False

    stream = TokenStream(deliver)
    generating = asyncio.create_task(
        dispatcher.generate(worker_pb2.Work(prompt=prompt, sampling=sampling, **options), stream)
    )
    generating.add_done_callback(lambda _: news.set())
    try:
        while deltas or not generating.done():
            await news.wait()
            news.clear()
            while deltas:
                yield deltas.popleft()
            stream.resume()
        await generating
    finally:
        generating.cancel()
        await asyncio.wait([generating])
