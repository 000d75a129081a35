"""Three hundred clients at once that all lose interest in the middle of their answers, again and again."""

from __future__ import annotations

import asyncio
import random
import time

import grpc
import pytest

from router.config.choices import Mode
from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from tests.faults.support.bounds import bounded
from tests.faults.support.clients import Answered, GrpcClient, check
from tests.faults.support.local_cluster import local_cluster
from tests.faults.support.small_model import Question, SmallModel

pytestmark = pytest.mark.thorough

CLIENTS = 300
ANSWER_TOKENS = 600
PROBE_S = 60.0
"""For a machine that has other things to do; a probe takes 0.1 s where it has not."""


async def lose_interest(stub: router_pb2_grpc.RouterStub, question: Question, after_tokens: int) -> int:
    """Tokens that came before the client hung up. After none, it hangs up while it waits for the first."""
    request = router_pb2.GenerateRequest(
        token_ids=router_pb2.TokenIds(ids=question.prompt),
        sampling=sampling_pb2.SamplingParams(max_tokens=question.max_tokens, temperature=0, ignore_eos=True),
    )
    call = stub.Generate(request)
    received = 0
    if after_tokens == 0:
        asyncio.get_running_loop().call_later(0.1, call.cancel)
    try:
        async for response in call:
            received += len(response.token_ids)
            if received >= after_tokens > 0:
                call.cancel()
    except asyncio.CancelledError:
        pass
    return received


@bounded("rounds", here=2, soak=50)
@pytest.mark.parametrize("mode", Mode)
async def test_after_every_wave_of_cancellations_a_probe_is_answered_and_every_page_is_back(
    small: SmallModel, mode: Mode, rounds: int
) -> None:
    draw = random.Random(11)
    probe = small.question(10_000, length=100, max_tokens=16)
    right = {probe: small.answer(probe)}
    async with (
        local_cluster(small, mode, num_pages=4096, max_running_requests=CLIENTS) as cluster,
        grpc.aio.insecure_channel(cluster.target) as channel,
    ):
        stub = router_pb2_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        for wave in range(rounds):
            questions = [
                small.question(wave * CLIENTS + i, length=draw.randrange(16, 200), max_tokens=ANSWER_TOKENS)
                for i in range(CLIENTS)
            ]
            received = await asyncio.gather(
                *(lose_interest(stub, question, draw.randrange(0, 30)) for question in questions)
            )
            assert max(received) < ANSWER_TOKENS
            assert sum(count > 0 for count in received) > CLIENTS / 2
            asked_at = time.monotonic()
            async with asyncio.timeout(PROBE_S):
                await check(GrpcClient(cluster.target), probe, right, Answered(probe))
            print(
                f"\n{mode.value} wave {wave}: {sum(received)} tokens came before everybody hung up, "
                f"the probe took {time.monotonic() - asked_at:.2f} s",
                end="",
            )
            await cluster.all_pages_back()
        assert not cluster.deaths
