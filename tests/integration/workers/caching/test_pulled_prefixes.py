"""Workers that take cached prefixes from each other: the tokens are those of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpc.baton.v1 import worker_pb2
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import Link, Pair, pair, work

PROMPT = [(93 + i * i * 7) % 97 for i in range(60)]
LONGER = [*PROMPT, 5, 6, 7]


@pytest.fixture(params=["loopback", "nixl"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def answer(link: Link, prompt: list[int]) -> list[int]:
    job = work(prompt)
    await link.submit(job)
    await link.next(job.request_id, "started")
    return (await link.tokens(job.request_id))[0]


async def pull(workers: Pair, job: worker_pb2.Work, num_tokens: int = 60, handoff_id: int = 1 << 40) -> None:
    """Submit a request to the decode worker, which is to get its prefix from the prefill worker."""
    peer = (await workers.prefill.stub.Describe(worker_pb2.DescribeRequest())).peer
    source = worker_pb2.Pull(handoff_id=handoff_id, source=peer, num_tokens=num_tokens)
    await workers.decode.send(submit=worker_pb2.Submit(work=job, pull=source))


async def share(workers: Pair, job: worker_pb2.Work) -> worker_pb2.Ticket:
    """What the router does with a worker's ticket."""
    ticket = (await workers.decode.next(job.request_id, "wanted")).ticket
    tokens = job.prompt[: ticket.num_tokens + 1]
    await workers.prefill.send(share=worker_pb2.Share(ticket=ticket, tokens=tokens))
    return ticket


async def test_a_prefix_comes_from_the_cache_of_another_worker(
    folder: Path, oracle: Oracle, transport: str
) -> None:
    async with pair(folder, transport) as workers:
        assert await answer(workers.prefill, PROMPT) == oracle(PROMPT, 8)
        job = work(LONGER)
        await pull(workers, job)
        ticket = await share(workers, job)
        started = await workers.decode.next(job.request_id, "started")
        assert started.cached_tokens == started.promoted["peer"] == 60
        assert started.waited["pull"] > 0
        assert (await workers.decode.tokens(job.request_id))[0] == oracle(LONGER, 8)
        sent = await workers.prefill.next(ticket.handoff_id, "handed_off")
        assert sent.bytes == 15 * ticket.receiver.page_bytes
        await workers.all_pages_back()


async def test_a_prompt_whose_prefix_the_source_has_lost_is_computed(folder: Path, oracle: Oracle) -> None:
    async with pair(folder) as workers:
        job = work(LONGER)
        await pull(workers, job)
        await share(workers, job)
        started = await workers.decode.next(job.request_id, "started")
        assert started.cached_tokens == 0
        assert (await workers.decode.tokens(job.request_id))[0] == oracle(LONGER, 8)
        await workers.all_pages_back()


async def test_a_prompt_is_computed_if_nobody_answers(folder: Path, oracle: Oracle) -> None:
    async with pair(folder) as workers:
        await answer(workers.decode, [1, 2, 3])  # its rate is known from now on
        job = work(LONGER)
        await pull(workers, job)
        await workers.decode.next(job.request_id, "wanted")
        started = await workers.decode.next(job.request_id, "started")
        assert started.cached_tokens == 0
        assert (await workers.decode.tokens(job.request_id))[0] == oracle(LONGER, 8)
        await workers.all_pages_back()


async def test_a_prefix_pulled_for_a_prompt_that_is_handed_back(folder: Path, oracle: Oracle) -> None:
    """As in disaggregated mode when an answer's worker has more of the next turn than the prefill worker."""
    async with pair(folder) as workers:
        first = await workers.generate(work(PROMPT))
        turn = [*PROMPT, *first, 5, 6, 7, 8]
        job = work(turn)
        peer = (await workers.decode.stub.Describe(worker_pb2.DescribeRequest())).peer
        source = worker_pb2.Pull(handoff_id=1 << 41, source=peer, num_tokens=64)
        await workers.prefill.send(submit=worker_pb2.Submit(work=job, handoff=True, pull=source))
        ticket = (await workers.prefill.next(job.request_id, "wanted")).ticket
        assert ticket.first_token == 60
        tokens = turn[: ticket.num_tokens + 1]
        await workers.decode.send(share=worker_pb2.Share(ticket=ticket, tokens=tokens))
        started = await workers.prefill.next(job.request_id, "started")
        assert (started.cached_tokens, started.promoted["peer"]) == (64, 4)
        await workers.reserve(job)
        await workers.attach(job)
        await workers.all_pages_back()
