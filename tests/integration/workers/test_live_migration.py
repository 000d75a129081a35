"""A running answer moves from one worker to another, at the commands of a router that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from prefill_worker.migrations import _LONGEST_PAUSE_S
from rpc.baton.v1 import worker_pb2
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import PATIENCE_S, Link, before_each_step, slow_down, work, worker
from tests.integration.workers.test_disagg_workers import prompt
from worker.config import WorkerRole

LENGTH = 60


@dataclass
class Move:
    """An answer on its way from `source` to `target`, as the client would see it: position to token."""

    source: Link
    target: Link
    here: worker_pb2.Work
    there: worker_pb2.Work = field(default_factory=worker_pb2.Work)
    answer: dict[int, int] = field(default_factory=dict)

    async def run(self, tokens: int) -> None:
        """Takes tokens from the source."""
        while len(self.answer) < tokens:
            self.take(await self.source.next(self.here.request_id, "tokens"))

    def take(self, event: worker_pb2.Tokens) -> None:
        for position, token in enumerate(event.ids, event.position):
            assert self.answer.setdefault(position, token) == token, "two workers disagree"

    async def reserve(self, room: int = 64) -> worker_pb2.Ticket:
        new_id = work(self.here.prompt).request_id
        self.there.CopyFrom(self.here)
        self.there.request_id = new_id
        self.there.output.extend(self.answer[i] for i in range(len(self.answer)))
        info = await self.source.stub.Describe(worker_pb2.DescribeRequest())
        await self.target.send(
            reserve=worker_pb2.Reserve(
                work=self.there, sender=info.peer, timeout_s=PATIENCE_S, room_tokens=room
            )
        )
        return (await self.target.next(self.there.request_id, "reserved")).ticket

    async def migrate(self, ticket: worker_pb2.Ticket) -> None:
        await self.source.send(migrate=worker_pb2.Migrate(request_id=self.here.request_id, ticket=ticket))

    async def rest(self, link: Link, request_id: int) -> None:
        """Tokens of one worker up to the end of the answer; `handed_off` may be among them."""
        while True:
            async with asyncio.timeout(PATIENCE_S):
                kind, event = await link.events[request_id].get()
            if kind == "handed_off":
                return
            assert kind == "tokens", event
            self.take(event)
            if event.finish:
                return

    def complete(self) -> list[int]:
        assert sorted(self.answer) == list(range(len(self.answer))), "a gap"
        return [self.answer[i] for i in range(len(self.answer))]

    async def all_pages_back(self) -> None:
        await self.source.all_pages_back()
        await self.target.all_pages_back()


@asynccontextmanager
async def running(
    folder: Path,
    transport: str = "loopback",
    target: dict[str, Any] | None = None,
    source: dict[str, Any] | None = None,
    **sampling: Any,
) -> AsyncIterator[Move]:
    """An answer of which the client has three tokens. Steps of the source take 5 ms."""
    async with (
        worker(folder, WorkerRole.DECODE, transport, "a", **(source or {})) as origin,
        worker(folder, WorkerRole.DECODE, transport, "b", **(target or {})) as destination,
    ):
        slow_down(origin.host, 0.005)
        move = Move(origin, destination, work(prompt(30), max_tokens=LENGTH, **sampling))
        await origin.submit(move.here)
        await origin.next(move.here.request_id, "started")
        await move.run(3)
        yield move


@pytest.mark.parametrize("transport", ["loopback", "nixl"])
async def test_a_migrated_answer_continues_at_its_next_token(
    folder: Path, oracle: Oracle, transport: str
) -> None:
    async with running(folder, transport) as move:
        await move.migrate(await move.reserve())
        arrived = await move.target.next(move.there.request_id, "arrived")
        await move.rest(move.source, move.here.request_id)
        assert len(move.answer) == arrived.position < LENGTH, "it stopped there, and no token is missing"
        await move.rest(move.target, move.there.request_id)
        assert move.complete() == oracle(prompt(30), LENGTH)
        await move.all_pages_back()


async def test_sampling_with_penalties_is_unchanged_by_a_migration(folder: Path) -> None:
    settings = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.4}
    async with running(folder, **settings) as move:
        await move.migrate(await move.reserve())
        await move.target.next(move.there.request_id, "arrived")
        await move.rest(move.source, move.here.request_id)
        await move.rest(move.target, move.there.request_id)
        alone = work(prompt(30), max_tokens=LENGTH, **settings)
        await move.target.submit(alone)
        await move.target.next(alone.request_id, "started")
        assert move.complete() == (await move.target.tokens(alone.request_id))[0]


async def test_an_answer_that_outgrows_its_reservation_stays_at_its_source(
    folder: Path, oracle: Oracle
) -> None:
    async with running(folder) as move:
        ticket = await move.reserve(room=0)
        await move.run(20)
        await move.migrate(ticket)
        failed = await move.target.next(move.there.request_id, "failed")
        assert failed.code == worker_pb2.FAILURE_CODE_SENDER
        await move.rest(move.source, move.here.request_id)
        assert move.complete() == oracle(prompt(30), LENGTH)
        await move.all_pages_back()


async def test_a_migration_is_cancelled_by_aborting_it_at_the_source(folder: Path, oracle: Oracle) -> None:
    async with running(folder) as move:
        before_each_step(move.target.host, lambda: None)
        ticket = await move.reserve()
        await move.migrate(ticket)
        await move.source.abort(ticket.handoff_id)
        await move.target.abort(ticket.handoff_id)
        await move.rest(move.source, move.here.request_id)
        if len(move.answer) == LENGTH:  # else it was handed off in time, and the target has dropped it
            assert move.complete() == oracle(prompt(30), LENGTH)
        await move.all_pages_back()


@pytest.mark.parametrize("who", ["source", "target"])
async def test_an_abort_at_either_worker_at_any_moment_leaks_no_page(folder: Path, who: str) -> None:
    async with running(folder) as move:
        ticket = await move.reserve()
        await move.migrate(ticket)
        link, request_id = {
            "source": (move.source, move.here.request_id),
            "target": (move.target, move.there.request_id),
        }[who]
        await link.abort(request_id)
        await move.source.abort(move.here.request_id)
        await move.target.abort(move.there.request_id)
        await move.all_pages_back()


async def test_an_answer_that_ends_during_its_migration_is_complete(folder: Path, oracle: Oracle) -> None:
    async with running(folder) as move:
        ticket = await move.reserve()
        await move.run(LENGTH)
        await move.migrate(ticket)
        await move.target.next(move.there.request_id, "failed")
        assert move.complete() == oracle(prompt(30), LENGTH)
        await move.all_pages_back()


async def test_an_answer_stays_at_its_source_when_the_receiver_dies(folder: Path, oracle: Oracle) -> None:
    """Over NIXL tests/faults kills receivers: UCX may abort where a peer vanishes within the process."""
    async with running(folder) as move:
        ticket = await move.reserve()
        await move.target.host.stop()
        await move.migrate(ticket)
        await move.rest(move.source, move.here.request_id)
        assert move.complete() == oracle(prompt(30), LENGTH)
        await move.source.all_pages_back()


async def test_an_answer_paused_for_a_slow_receiver_continues_at_its_source(
    folder: Path, oracle: Oracle
) -> None:
    """The receiver hangs when it should confirm."""
    async with running(folder) as move:
        ticket = await move.reserve()
        transport = move.target.host._handler.transfer
        assert transport is not None
        hang = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hanging(now: float) -> None:
            asyncio.run_coroutine_threadsafe(hang.wait(), loop).result()

        transport._post(hanging)
        await move.migrate(ticket)
        await move.run(LENGTH)
        assert move.complete() == oracle(prompt(30), LENGTH)
        hang.set()
        await move.source.all_pages_back()
        await move.target.abort(move.there.request_id)
        await move.all_pages_back()
    assert _LONGEST_PAUSE_S < PATIENCE_S


async def test_several_answers_migrate_at_once_beside_other_prompts(folder: Path, oracle: Oracle) -> None:
    async with running(folder) as first:
        moves = [
            Move(first.source, first.target, work(prompt(20 + i, i), max_tokens=LENGTH)) for i in range(4)
        ]
        for move in moves:
            await move.source.submit(move.here)
            await move.source.next(move.here.request_id, "started")

        async def follow(move: Move) -> None:
            await move.run(2)
            await move.migrate(await move.reserve())
            await move.target.next(move.there.request_id, "arrived")
            await move.rest(move.source, move.here.request_id)
            await move.rest(move.target, move.there.request_id)

        await asyncio.gather(*(follow(move) for move in moves))
        for i, move in enumerate(moves):
            assert move.complete() == oracle(prompt(20 + i, i), LENGTH)
        await first.source.abort(first.here.request_id)
        await first.all_pages_back()
