"""New weights on all workers by one call: what is computed before, during and after it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.api.access import Access, ApiKeys
from router.config.choices import Mode, UpdateMode
from router.config.settings import RouterConfig
from router.dispatch.admission.pause_gate import PauseMode
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.weights.update_result import UpdateFailed
from router.dispatch.weights.weight_updates import WeightUpdates
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.changed_weights import (
    ADMIN,
    KEY,
    PROMPT,
    Changed,
    Streamed,
    agrees,
    ask,
    body,
    cached,
    check_documented,
    continued,
    ids_of,
    post,
)


@pytest.fixture(params=[Mode.MIXED, Mode.DISAGG], ids=str)
async def cluster(small: SmallModel, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    access = Access(admin_keys=ApiKeys({KEY: "trainer"}))
    async with local_cluster(small, request.param, access=access, update_mode=UpdateMode.TOGETHER) as running:
        yield running
        await running.all_pages_back()
        assert not running.deaths


async def test_all_requests_after_an_update_are_computed_with_the_new_weights_alone(
    cluster: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    old, new = (continued(model, PROMPT, 12) for model in (small.model, changed.model))
    assert old != new
    assert ids_of(await ask(cluster, 12)) == old
    assert cached(await ask(cluster, 12)) > 0

    answer = await post(
        cluster, "/update_weights_from_disk", {"model_path": str(changed.folder), "weight_version": "2"}
    )

    assert answer.status_code == 200, answer.text
    assert answer.json()["weight_version"] == "2"
    await check_documented(cluster, "/update_weights_from_disk", answer.json())
    first, again = await ask(cluster, 12), await ask(cluster, 12)
    assert ids_of(first) == ids_of(again) == new
    assert cached(first) == 0
    assert cached(again) > 0
    async with httpx.AsyncClient(base_url=cluster.url, headers=ADMIN) as client:
        info = (await client.get("/weight_info")).json()
    await check_documented(cluster, "/weight_info", info, "get")
    async with httpx.AsyncClient(base_url=cluster.url, headers=ADMIN) as client:
        size = (await client.get("/get_world_size")).json()
        server = (await client.get("/server_info")).json()
    await check_documented(cluster, "/get_world_size", size, "get")
    await check_documented(cluster, "/server_info", server, "get")
    assert size == {"world_size": len(cluster.registry.sessions())}
    assert server["vllm_config"]["weight_transfer_config"] is None
    digests = {worker["digest"] for worker in info["workers"].values()}
    assert digests == {info["digest"]} == {answer.json()["digest"]}
    assert len(info["workers"]) == len(cluster.registry.members())


async def test_a_kept_request_goes_on_with_the_new_weights_after_the_tokens_that_it_has(
    cluster: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    answers = [Streamed(cluster, 400) for _ in range(3)]
    for answer in answers:
        await answer.has(5)

    await post(cluster, "/pause?mode=keep")
    before = [len(answer.ids) for answer in answers]
    waiting = asyncio.create_task(ask(cluster, 12))
    updated = await post(cluster, "/update_weights", {"update_info": {"model_path": str(changed.folder)}})
    assert updated.status_code == 200, updated.text
    await asyncio.sleep(0.1)
    assert [len(answer.ids) for answer in answers] == before
    assert not waiting.done()
    await post(cluster, "/resume")

    for answer, count in zip(answers, before, strict=True):
        await answer.ended()
        assert len(answer.ids) == 400
        assert answer.ids[:count] == continued(small.model, PROMPT, count)
        rest = continued(changed.model, [*PROMPT, *answer.ids[:count]], 20)
        assert answer.ids[count : count + 20] == rest
        assert answer.finish == "length"
    assert ids_of(await waiting) == continued(changed.model, PROMPT, 12)


async def test_an_update_under_load_loses_no_request_and_no_page(
    cluster: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    """Each answer is of the old weights, then of the new ones, with at most one change per update."""
    folders = [changed.folder, small.folder]
    models = [small.model, changed.model]
    going = True

    async def keep_asking(number: int) -> list[tuple[list[int], list[int]]]:
        answers = []
        while going:
            prompt = [*PROMPT[:40], 90 + number, *range(10, 20)]
            answers.append((prompt, ids_of(await ask(cluster, 30, prompt))))
        return answers

    askers = [asyncio.create_task(keep_asking(number)) for number in range(4)]
    for turn in range(6):
        await asyncio.sleep(0.1)
        await cluster.weights.update(str(folders[turn % 2]), str(turn))
    going = False
    every = [pair for asker in askers for pair in await asker]
    assert len(every) >= 4
    for prompt, answer in every:
        assert len(answer) == 30
        assert any(agrees(answer, prompt, order) for order in (models, models[::-1])), (
            "tokens of no sequence of these weights"
        )


async def test_aborted_requests_end_with_what_they_have_and_new_ones_are_refused(
    cluster: LocalCluster, small: SmallModel
) -> None:
    answer = Streamed(cluster, 1500)
    await answer.has(3)
    paused = await post(cluster, "/pause_generation", {"mode": "abort"})
    assert paused.json() == {"status": "paused"}
    await check_documented(cluster, "/pause_generation", paused.json())
    await answer.ended()
    assert answer.finish == "abort"
    assert answer.ids == continued(small.model, PROMPT, len(answer.ids))
    async with httpx.AsyncClient(base_url=cluster.url, headers=ADMIN) as client:
        refused = await client.post("/v1/completions", json=body(PROMPT, 3))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "paused")
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        await client.post("/continue_generation")
        assert (await client.get("/is_paused")).json() == {"is_paused": False}
        await check_documented(cluster, "/is_paused", {"is_paused": False}, "get")
    assert ids_of(await ask(cluster, 3)) == continued(small.model, PROMPT, 3)


async def test_requests_that_are_waited_for_come_to_their_end(
    cluster: LocalCluster, small: SmallModel
) -> None:
    answer = Streamed(cluster, 60)
    await answer.has(3)
    await post(cluster, "/pause?mode=wait")
    await answer.ended()
    assert answer.ids == continued(small.model, PROMPT, 60)
    await post(cluster, "/resume")


async def test_a_failed_update_says_which_worker_has_failed_and_the_old_weights_serve(
    cluster: LocalCluster, small: SmallModel, changed: Changed, tmp_path: Path
) -> None:
    torn = tmp_path / "torn"
    shutil.copytree(changed.folder, torn)
    content = (torn / "model.safetensors").read_bytes()
    (torn / "model.safetensors").write_bytes(content[:-100])
    assert cached(await ask(cluster, 5)) == 0

    for folder, reason in ((torn, "download or copy it again"), (tmp_path / "none", "config.json")):
        answer = await post(cluster, "/update_weights_from_disk", {"model_path": str(folder)})
        message = answer.json()["error"]["message"]
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "update_failed"
        assert "decode-0: " in message
        assert reason in message

    kept = await ask(cluster, 5)
    assert ids_of(kept) == continued(small.model, PROMPT, 5)
    assert cached(kept) > 0


async def test_workers_that_have_the_weights_give_them_back_if_another_has_not(
    small: SmallModel, changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with local_cluster(small, Mode.DISAGG, update_mode=UpdateMode.TOGETHER) as cluster:
        first = await ask(cluster, 5)
        sessions = {session.worker_id: session for session in cluster.registry.sessions()}
        decode, update = sessions["decode-0"], sessions["decode-0"].update_weights

        async def dies(request: Any) -> Any:
            request.weights.folder = request.weights.folder and "/not/here"
            return await update(request)

        monkeypatch.setattr(decode, "update_weights", dies)
        with pytest.raises(UpdateFailed, match=r"decode-0: .*/not/here"):
            await cluster.weights.update(str(changed.folder))
        monkeypatch.undo()
        assert {session.info.served.tag for session in sessions.values()} == {""}
        assert ids_of(await ask(cluster, 5)) == ids_of(first)
        await cluster.weights.update(str(changed.folder))
        assert ids_of(await ask(cluster, 5)) == continued(changed.model, PROMPT, 5)
        await cluster.all_pages_back()


async def test_a_worker_that_comes_back_is_given_the_weights_of_the_others(
    small: SmallModel, changed: Changed
) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        await cluster.weights.update(str(changed.folder), "2")
        (member,) = cluster.registry.members()
        host = member.handle.host  # type: ignore[attr-defined]
        await host.stop()
        await host.start()
        await cluster.registry.wait_until(lambda: member.session is not None, 20.0)
        assert member.session is not None
        assert member.session.info.served.version == "2"
        assert ids_of(await ask(cluster, 8)) == continued(changed.model, PROMPT, 8)


async def test_a_router_that_comes_later_takes_over_the_weights_of_its_workers(
    small: SmallModel, changed: Changed
) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        await cluster.weights.update(str(changed.folder), "2")
        dispatcher = ClusterDispatcher(
            RouterConfig(model="small", mode=Mode.MIXED), cluster.registry, RouterMetrics()
        )
        later = WeightUpdates(cluster.registry, dispatcher, lambda: None)
        await later.begin()
        assert later.served == cluster.weights.served
        assert dispatcher.versions == {later.served.tag: "2"}


async def test_a_request_for_other_weights_is_refused_by_a_worker(
    small: SmallModel, changed: Changed
) -> None:
    """Such as one of a router that does not know of the update yet."""
    async with local_cluster(small, Mode.MIXED) as cluster:
        await cluster.weights.update(str(changed.folder), mode=PauseMode.WAIT)
        (session,), dispatcher = cluster.registry.sessions(), cluster.weights._dispatcher
        known = session.info.served.tag
        session.info.served.tag = "of-yesterday"
        dispatcher.serve({"of-yesterday": "1"})
        asked = asyncio.create_task(ask(cluster, 5))
        await asyncio.sleep(0.2)
        assert not asked.done()
        session.info.served.tag = known
        dispatcher.serve({known: "2"})
        await cluster.registry.reconsider()
        assert ids_of(await asked) == continued(changed.model, PROMPT, 5)


async def test_routes_that_change_weights_take_an_admin_key(cluster: LocalCluster) -> None:
    async with httpx.AsyncClient(base_url=cluster.url) as client:
        for path in ("/pause", "/resume", "/update_weights", "/flush_cache", "/reset_prefix_cache"):
            assert (await client.post(path)).status_code == 401
        assert (await client.post("/reset_prefix_cache", headers=ADMIN)).json() == {"status": "cleared"}
        assert (await client.post("/pause?mode=in_place", headers=ADMIN)).status_code == 400
