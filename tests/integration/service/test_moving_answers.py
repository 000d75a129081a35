"""Running answers move between real workers without a gap in their streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from router.command.admin.drain import WorkerDrainer
from rpc.baton.v1 import router_pb2
from rpc.baton.v1.worker_pb2 import ROLE_DECODE, ROLE_PREFILL
from tests.integration.conftest import Oracle
from tests.integration.service.test_adaptive_placement import (
    EVERY_PAIR,
    Cluster,
    D,
    Forced,
    P,
    cluster,
    prompt,
)
from tests.integration.tiny_cluster import slow_down

LENGTH = 60


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def slowly(served: Cluster, seconds: float = 0.005) -> None:
    for link in served.links.values():
        slow_down(link.host, seconds)


def writers(served: Cluster) -> list[str]:
    running = served.dispatcher.answers._running
    return [attempt.decoder.worker_id for attempt in running if attempt.decoder is not None]


@pytest.mark.parametrize("pair", EVERY_PAIR)
async def test_an_answer_moves_without_a_gap_or_a_duplicate(
    folder: Path, oracle: Oracle, pair: tuple[str, str]
) -> None:
    async with cluster(folder, Forced(pair)) as served:
        slowly(served)
        asked = asyncio.create_task(served.generate(prompt(3), LENGTH))
        await until(lambda: writers(served) == [pair[1]])
        assert await served.dispatcher.migrate_from(pair[1], 10.0) == 1
        there = D if pair[1] == P else P
        await until(lambda: writers(served) == [there])
        answer, timings = await asked
        assert answer == oracle(prompt(3), LENGTH)
        assert timings.decode_worker == there
        await served.all_pages_back()
        assert all(session.load.requests == 0 for session in served.registry.sessions())


async def test_answers_move_back_and_forth_under_load(folder: Path, oracle: Oracle) -> None:
    async with cluster(folder, Forced(*EVERY_PAIR), num_pages=512) as served:
        slowly(served, 0.003)
        prompts = [prompt(seed, 10 + 6 * seed) for seed in range(10)]
        asked = [asyncio.create_task(served.generate(p, LENGTH)) for p in prompts]
        moved = 0
        while not all(task.done() for task in asked):
            for worker in (P, D):
                moved += await served.dispatcher.migrate_from(worker, 10.0)
            await asyncio.sleep(0.01)
        answers = [(await task)[0] for task in asked]
        assert answers == [oracle(p, LENGTH) for p in prompts]
        assert moved > 3
        await served.all_pages_back()


async def test_answers_move_while_pools_are_full_and_requests_are_preempted(
    folder: Path, oracle: Oracle
) -> None:
    async with cluster(folder, Forced(*EVERY_PAIR), num_pages=40) as served:
        slowly(served, 0.002)
        prompts = [prompt(seed, 30) for seed in range(12)]
        asked = [asyncio.create_task(served.generate(p, 50)) for p in prompts]
        while not all(task.done() for task in asked):
            for worker in (P, D):
                await served.dispatcher.migrate_from(worker, 0.3)
            await asyncio.sleep(0.01)
        answers = [(await task)[0] for task in asked]
        assert answers == [oracle(p, 50) for p in prompts]
        await served.all_pages_back()


async def test_clients_that_disconnect_during_a_move_leak_no_page(folder: Path) -> None:
    async with cluster(folder, Forced((P, P)), num_pages=512) as served:
        slowly(served)
        asked = [asyncio.create_task(served.generate(prompt(seed), LENGTH)) for seed in range(6)]
        await until(lambda: len(writers(served)) == 6)
        moves = asyncio.create_task(served.dispatcher.migrate_from(P, 10.0))
        for task in asked:
            await asyncio.sleep(0.003)
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await moves
        await served.all_pages_back()
        assert all(session.load.requests == 0 for session in served.registry.sessions())


@pytest.mark.parametrize("ended", [P, D])
@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03])
async def test_a_stream_continues_when_either_worker_ends_during_a_move(
    folder: Path, oracle: Oracle, ended: str, after_s: float
) -> None:
    async with cluster(folder, Forced((P, P)), num_pages=512) as served:
        slowly(served)
        asked = [asyncio.create_task(served.generate(prompt(seed), LENGTH)) for seed in range(3)]
        await until(lambda: len(writers(served)) == 3)
        moves = asyncio.create_task(served.dispatcher.migrate_from(P, 2.0))
        await asyncio.sleep(after_s)
        await served.links[ended].host.stop()
        assert [(await task)[0] for task in asked] == [oracle(prompt(seed), LENGTH) for seed in range(3)]
        await moves


async def test_a_worker_changes_its_role_while_it_decodes(folder: Path, oracle: Oracle) -> None:
    """Running requests stay; new ones are placed by the new role."""
    async with cluster(folder, None) as served:
        slowly(served)
        asked = [asyncio.create_task(served.generate(prompt(seed), LENGTH)) for seed in range(4)]
        await until(lambda: writers(served))
        drainer = WorkerDrainer(served.registry, needs_roles=False)
        for role in (ROLE_PREFILL, ROLE_DECODE):
            await drainer.assign(D, role)
            assert [s.worker_id for s in served.registry.ready(role) if s.worker_id == D] == [D]
            answer, _ = await served.generate(prompt(9))
            assert answer == oracle(prompt(9), 12)
        assert [(await task)[0] for task in asked] == [oracle(prompt(seed), LENGTH) for seed in range(4)]
        await served.all_pages_back()


async def test_draining_a_worker_interrupts_no_answer(folder: Path, oracle: Oracle) -> None:
    async with cluster(folder, Forced((P, P)), num_pages=512) as served:
        slowly(served)
        asked = [asyncio.create_task(served.generate(prompt(seed), LENGTH)) for seed in range(4)]
        await until(lambda: len(writers(served)) == 4)
        drainer = WorkerDrainer(served.registry, served.dispatcher.migrate_from)
        assert await drainer.drain(P, 10.0) == 4
        done: list[tuple[list[int], router_pb2.Timings]] = [await task for task in asked]
        assert [answer for answer, _ in done] == [oracle(prompt(seed), LENGTH) for seed in range(4)]
        assert {timings.decode_worker for _, timings in done} == {D}
        await served.links[D].all_pages_back()
