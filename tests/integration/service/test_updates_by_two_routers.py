"""New weights where several routers have the same workers: one call to any of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from router.config.choices import Mode, UpdateMode
from router.dispatch.admission.pause_gate import PauseMode
from router.errors import InvalidRequest
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.changed_weights import (
    PROMPT,
    Changed,
    Streamed,
    ask,
    continued,
    ids_of,
    spans_agree,
)

NAMES = ("router-1", "router-2")


@pytest.fixture(params=[(Mode.MIXED, 2), (Mode.DISAGG, 1)], ids=lambda fleet: f"{fleet[0].value}-{fleet[1]}")
async def pair(small: SmallModel, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    mode, each = request.param
    async with local_cluster(small, mode, each=each, names=NAMES) as running:
        yield running
        await running.all_pages_back()
        assert not running.deaths


@pytest.mark.parametrize("how", UpdateMode)
async def test_an_update_by_one_router_holds_at_both(
    pair: LocalCluster, small: SmallModel, changed: Changed, how: UpdateMode
) -> None:
    other = pair.others[0]
    prompts = [[*PROMPT, 90 + i] for i in range(4)]
    routers = [pair, other, pair, other]
    answers = [Streamed(router, 900, prompt) for router, prompt in zip(routers, prompts, strict=True)]
    for answer in answers:
        await answer.has(5)
    done = await pair.weights.update(str(changed.folder), "2", how=how)
    assert (done.how, done.paused) == (how, how is UpdateMode.TOGETHER)
    assert other.weights.served == pair.weights.served == done.served
    for router in (pair, other):
        assert ids_of(await ask(router, 12)) == continued(changed.model, PROMPT, 12)
    models = {"default": small.model, "2": changed.model}
    for prompt, answer in zip(prompts, answers, strict=True):
        await answer.ended()
        assert (len(answer.ids), answer.finish) == (900, "length")
        assert answer.versions[-1]["version"] == "2"
        assert spans_agree(answer.ids, answer.versions, models, prompt)
    await other.weights.update(str(small.folder), "3", how=how)
    assert ids_of(await ask(pair, 12)) == continued(small.model, PROMPT, 12)


async def test_a_pause_by_one_router_holds_back_the_requests_of_both(pair: LocalCluster) -> None:
    other = pair.others[0]
    answer = Streamed(other, 300)
    await answer.has(3)
    await pair.weights.pause(PauseMode.KEEP)
    assert other.weights.is_paused
    before = len(answer.ids)
    await asyncio.sleep(0.1)
    assert len(answer.ids) == before
    await other.weights.resume()
    assert not pair.weights.is_paused
    await answer.ended()
    assert len(answer.ids) == 300


async def test_two_updates_at_once_are_one_after_the_other_or_refused(
    pair: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    other = pair.others[0]
    found = await asyncio.gather(
        pair.weights.update(str(changed.folder), "a"),
        other.weights.update(str(changed.folder), "b"),
        return_exceptions=True,
    )
    assert all(isinstance(one, tuple | InvalidRequest) for one in found), found
    assert any(isinstance(one, tuple) for one in found)
    assert pair.weights.served == other.weights.served
    for router in (pair, other):
        assert ids_of(await ask(router, 12)) == continued(changed.model, PROMPT, 12)


async def test_the_update_of_a_router_that_ends_is_taken_back(
    pair: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    """After its first worker: this one has the new weights, and the others the old ones."""
    other, first = pair.others[0], asyncio.Event()
    update_one = other.weights._update_one

    async def stuck_after(*of: object) -> None:
        await update_one(*of)  # type: ignore[arg-type]
        first.set()
        await asyncio.Event().wait()

    other.weights._update_one = stuck_after  # type: ignore[method-assign, assignment]
    updating = asyncio.create_task(other.weights.update(str(changed.folder), "2"))
    await first.wait()
    assert len({session.info.served.tag for session in other.registry.sessions()}) == 2
    assert other.end is not None
    await other.end()
    async with asyncio.timeout(20.0):
        while pair.weights.agreed.state.by:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert {session.info.served.tag for session in pair.registry.sessions()} == {""}
    assert ids_of(await ask(pair, 12)) == continued(small.model, PROMPT, 12)
    updating.cancel()
    await pair.weights.update(str(changed.folder), "3")
    assert ids_of(await ask(pair, 12)) == continued(changed.model, PROMPT, 12)
