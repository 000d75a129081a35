"""Running answers move off a worker whose steps exceed the ITL target."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import generate_latest

from router.dispatch.rebalancing import rebalance
from router.dispatch.routing.adaptive import AdaptivePlacing
from router.placement import Moves, Targets
from router.placement.moves import _REVIEWS, predicted_itl
from tests.integration.conftest import Oracle
from tests.integration.service.test_adaptive_placement import Cluster, D, Forced, P, cluster, prompt
from tests.integration.service.test_moving_answers import until, writers
from tests.integration.service.test_split_placement import view_of
from tests.integration.tiny_cluster import slow_down

LENGTH = 100
TARGETS = Targets(ttft_s=0.5, itl_s=0.02)


def placing_of(served: Cluster) -> AdaptivePlacing:
    placing = served.dispatcher._placing
    assert isinstance(placing, AdaptivePlacing)
    return placing


@asynccontextmanager
async def slow_decode_worker(folder: Path) -> AsyncIterator[Cluster]:
    """The decode worker gets every request, and its steps take 30 ms."""
    async with cluster(folder, Forced((D, D)), num_pages=512) as served:
        slow_down(served.links[D].host, 0.03)
        placing_of(served)._make_moves = lambda device: Moves(TARGETS)
        yield served


def is_slow(served: Cluster) -> bool:
    """Whether the router predicts that the decode worker misses its ITL target."""
    seen = next(w for w in view_of(served).workers if w.id.startswith(D))
    return predicted_itl(seen, seen.decodes, seen.context_tokens) > TARGETS.itl_s


async def test_an_answer_moves_off_an_overloaded_worker_and_is_not_moved_back(
    folder: Path, oracle: Oracle
) -> None:
    async with slow_decode_worker(folder) as served:
        placing, prompts = placing_of(served), [prompt(seed, 20) for seed in range(3)]
        asked = [asyncio.create_task(served.generate(p, LENGTH)) for p in prompts]
        await until(lambda: writers(served) == [D] * 3 and is_slow(served))
        answers = served.dispatcher._answers.now()
        planned_moves = [placing.planned_move(answers) for _ in range(_REVIEWS)]
        assert planned_moves[:-1] == [None] * (_REVIEWS - 1)
        planned_move = planned_moves[-1]
        assert planned_move is not None
        assert (planned_move.target.worker_id, planned_move.reason) == (P, "itl")
        assert await planned_move.answer.move(planned_move.target, 10.0, planned_move.reason)
        assert placing.planned_move(answers) is None, "the next review waits until the effect is measured"
        done = [await task for task in asked]
        assert [answer for answer, _ in done] == [oracle(p, LENGTH) for p in prompts]
        assert [(m.worker, m.reason) for _, timings in done for m in timings.moves] == [(P, "itl")]
        scraped = generate_latest(served.dispatcher._metrics.registry).decode()
        counters = [line for line in scraped.splitlines() if line.startswith("baton_moved_answers_total{")]
        assert any('reason="itl"' in line and line.endswith(" 1.0") for line in counters)
        await served.all_pages_back()


async def test_no_answer_moves_without_move_answers(folder: Path) -> None:
    async with cluster(folder, Forced((D, D))) as served:
        await served.generate(prompt(3))
        assert placing_of(served).planned_move(served.dispatcher._answers.now()) is None


async def test_answers_are_rebalanced_until_the_router_stops(folder: Path, oracle: Oracle) -> None:
    async with slow_decode_worker(folder) as served:
        rebalancing = asyncio.create_task(
            rebalance(placing_of(served), served.dispatcher._answers, every_s=0.02)
        )
        prompts = [prompt(seed, 20) for seed in range(3)]
        done = await asyncio.gather(*(served.generate(p, LENGTH) for p in prompts))
        assert [answer for answer, _ in done] == [oracle(p, LENGTH) for p in prompts]
        assert sum(len(timings.moves) for _, timings in done) >= 1
        assert not rebalancing.done()
        rebalancing.cancel()
        await served.all_pages_back()
