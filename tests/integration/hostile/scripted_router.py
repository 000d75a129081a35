"""A router process whose dispatcher follows a script. Prints its two ports; ends with its standard input.

A request for more than a thousand tokens gets one every 5 ms, for ever; any other gets ten at a time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator

from common.garbage_collection import freeze_gc
from engine.modeling.loader.checkpoint import resolve
from router.dispatch.token_stream import Delta
from router.request_limits import RequestLimits
from tests.integration.frontends import LENGTH, Call, open_frontends, token_logprobs

MAX_MODEL_LEN = 100_000
_STEP = 10


def script(call: Call) -> Iterator[Delta]:
    sampling = call.sampling
    if sampling.max_tokens > 1000:
        while True:
            yield Delta(token_ids=[504])
    logprobs = token_logprobs(504, sampling.logprobs) if sampling.HasField("logprobs") else None
    for left in range(sampling.max_tokens, 0, -_STEP):
        delta = Delta(token_ids=[504] * min(left, _STEP))
        if logprobs is not None:
            delta.logprobs = [logprobs] * len(delta.token_ids)
        delta.finish = LENGTH if left <= _STEP else 0
        yield delta


async def main() -> None:
    limits = RequestLimits(max_completions=64)
    async with open_frontends(
        resolve("smollm2").path, max_model_len=MAX_MODEL_LEN, limits=limits
    ) as frontends:
        frontends.dispatcher.script = script
        frontends.dispatcher.pause_s = 0.005
        freeze_gc()
        print(frontends.http.port, frontends.grpc.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
