"""The benchmark of the router counts every token that its worker says."""

from __future__ import annotations

import os

from benchmarks.router_throughput import measure, stage
from engine.loader.checkpoint import resolve


async def test_every_token_of_every_stream_arrives_after_it_was_said() -> None:
    async with stage(resolve("smollm2"), router_core=min(os.sched_getaffinity(0))) as setting:
        outcome = await measure(setting, streams=4, step_ms=10.0, seconds=0.3)

    assert outcome.tokens_an_event >= 1.0
    assert 0.0 < outcome.streamed <= outcome.offered
    assert 0.0 < outcome.latency_ms.p50 <= outcome.latency_ms.max
