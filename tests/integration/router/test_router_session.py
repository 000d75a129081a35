"""The router's end of a worker's stream."""

from __future__ import annotations

import asyncio

from router.dispatch.workers.events import SessionListener
from router.dispatch.workers.registry import Registry
from rpc.baton.v1 import worker_pb2
from tests.integration.fake_cluster import service
from tests.integration.fake_worker import decode_worker

STREAMS = 100


async def test_the_tokens_of_a_step_are_handed_out_in_one_turn_of_the_loop() -> None:
    """In the order of the message: a worker puts requests that wait for their first token at the head."""
    turns: dict[int, int] = {}
    turn = 0

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def on_output(output: worker_pb2.Output, at: float) -> None:
        turns[output.request_id] = turn

    async with service(decode_worker("decode-0")) as served:
        (session,) = served.registry.sessions()
        for request_id in range(STREAMS):
            session.listen(request_id, SessionListener(lambda _message, _at: None, on_output))
        tokens = worker_pb2.Tokens(ids=[7])
        outputs = [worker_pb2.Output(request_id=k, tokens=tokens) for k in range(STREAMS)]
        counting = asyncio.create_task(count_turns())
        served.workers[0].say(outputs=outputs)
        async with asyncio.timeout(30):
            while len(turns) < STREAMS:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        counting.cancel()
    assert list(turns) == list(range(STREAMS))
    assert len(set(turns.values())) == 1


async def test_a_worker_that_is_removed_while_it_is_connected_is_announced_as_gone() -> None:
    worker, seen = decode_worker("decode-0"), list[bool]()
    await worker.start()
    try:
        async with Registry([worker], lambda _member, up: seen.append(up)) as registry:
            assert await registry.wait_for_all(5.0)
            await registry.remove(registry.members()[0])
            assert seen == [True, False]
    finally:
        await worker.stop()
