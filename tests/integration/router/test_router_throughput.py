"""The benchmark of the router counts every token that its worker says."""

from __future__ import annotations

import pytest

from benchmarks.router_throughput import measure, stage
from engine.modeling.loader.checkpoint import resolve


@pytest.mark.parametrize("frontends", [1, 2])
async def test_every_token_of_every_stream_arrives_after_it_was_said(frontends: int) -> None:
    async with stage(resolve("smollm2"), frontends) as setting:
        outcome = await measure(setting, streams=4, step_ms=10.0, seconds=0.3)

    assert outcome.tokens_an_event >= 1.0
    assert 0.0 < outcome.streamed <= outcome.offered
    assert 0.0 < outcome.latency_ms.p50 <= outcome.latency_ms.max
