"""Clients that do not read: what they cost the router, and the others."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from contextlib import AsyncExitStack, aclosing

import pytest

from tests.integration.fake_cluster import PROMPT, pair, sampling, service
from tests.integration.fake_worker import answer, decode_worker
from tests.integration.reading import deltas_of

TOKENS = 8_000


@pytest.mark.parametrize("mode", ["mixed", "disagg"])
async def test_a_client_that_does_not_read_costs_a_few_bytes_a_token(mode: str) -> None:
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(
            service(*([decode_worker("decode-0")] if mode == "mixed" else pair()))
        )
        deltas = await stack.enter_async_context(
            aclosing(deltas_of(served.dispatcher, PROMPT, sampling(TOKENS)))
        )
        seen = list((await anext(deltas)).token_ids)
        await asyncio.sleep(0.5)
        gc.collect()
        tracemalloc.start()
        for session in served.registry.sessions():
            assert await session.idle(60.0)  # it is over for the workers, and no token is read
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert grown < 100 * TOKENS
        seen += [token async for delta in deltas for token in delta.token_ids]
        assert seen == answer(PROMPT, TOKENS)


async def test_twenty_clients_that_do_not_read_do_not_slow_down_one_that_does() -> None:
    async with service(decode_worker("decode-0", token_s=0.02)) as served, AsyncExitStack() as stack:
        alone = await timed(served.tokens(30))
        for _ in range(20):
            idle = await stack.enter_async_context(
                aclosing(deltas_of(served.dispatcher, PROMPT, sampling(10_000)))
            )
            await anext(idle)
        assert await timed(served.tokens(30)) < 3 * alone + 5.0


async def timed(call: object) -> float:
    began = time.monotonic()
    await call  # type: ignore[misc]
    return time.monotonic() - began
