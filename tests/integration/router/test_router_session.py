"""The router's end of a worker's stream."""

from __future__ import annotations

import asyncio

from router.workers.events import Event
from rpc.baton.v1 import worker_pb2
from tests.integration.fake_cluster import service
from tests.integration.fake_worker import decode_worker

STREAMS = 100


async def test_the_first_answer_of_a_step_does_not_wait_for_the_last() -> None:
    """In a step's events, prompts come first: requests that wait for their first token are at the head."""
    told: list[int] = []
    news = asyncio.Event()

    def listener(event: Event) -> None:
        if isinstance(event.message, worker_pb2.Tokens):  # at the end, they hear that the session is over
            told.append(event.message.request_id)
            news.set()

    async def reader() -> int:
        await news.wait()
        return len(told)

    async with service(decode_worker("decode-0")) as served:
        (session,) = served.registry.sessions()
        for request_id in range(STREAMS):
            session.listen(request_id, listener)
        reading = asyncio.create_task(reader())
        tokens = [worker_pb2.Tokens(request_id=k, ids=[7]) for k in range(STREAMS)]
        await session._deliver(worker_pb2.EventBatch(tokens=tokens))
        assert told == list(range(STREAMS))
        assert await reading < STREAMS / 2
