"""New weights on all workers by one call: what is computed before, during and after it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from router.api.access import Access, ApiKeys
from router.config.choices import Mode
from router.config.settings import RouterConfig
from router.dispatch.admission.pause_gate import PauseMode
from router.dispatch.dispatcher import ClusterDispatcher
from router.dispatch.metrics.router_metrics import RouterMetrics
from router.dispatch.weights.weight_updates import UpdateFailed, WeightUpdates
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel

KEY = "an-admin-key-of-a-test"
ADMIN = {"authorization": f"Bearer {KEY}"}
PROMPT = list(range(5, 75))


@dataclass(frozen=True)
class Changed:
    """The model with other values of the same shape."""

    folder: Path
    model: Any


@pytest.fixture(scope="module")
def changed(small: SmallModel, tmp_path_factory: pytest.TempPathFactory) -> Changed:
    folder = tmp_path_factory.mktemp("changed") / "model"
    shutil.copytree(small.folder, folder)
    values = load_file(folder / "model.safetensors")
    torch.manual_seed(1)
    values = {
        name: value + 0.3 * torch.randn_like(value) if value.dim() > 1 else value
        for name, value in values.items()
    }
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    return Changed(folder, type(small.model).from_pretrained(folder).eval())


@pytest.fixture(params=[Mode.MIXED, Mode.DISAGG], ids=str)
async def cluster(small: SmallModel, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    access = Access(admin_keys=ApiKeys({KEY: "trainer"}))
    async with local_cluster(small, request.param, access=access) as running:
        yield running
        await running.all_pages_back()
        assert not running.deaths


@torch.no_grad()
def continued(model: Any, tokens: Sequence[int], count: int) -> list[int]:
    """What transformers says, greedily."""
    answer: list[int] = []
    for _ in range(count):
        answer.append(int(model(torch.tensor([[*tokens, *answer]])).logits[0, -1].argmax()))
    return answer


async def ask(cluster: LocalCluster, count: int, prompt: Sequence[int] = PROMPT) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client:
        answer = await client.post("/v1/completions", json=body(prompt, count))
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def body(prompt: Sequence[int], count: int, **more: Any) -> dict[str, Any]:
    fields = {"model": "small", "prompt": list(prompt), "max_tokens": count, "temperature": 0.0}
    return {**fields, "ignore_eos": True, "return_token_ids": True, **more}


def ids_of(answer: dict[str, Any]) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def check_documented(cluster: LocalCluster, path: str, answer: Any, method: str = "post") -> None:
    """Compare an answer with /openapi.json."""
    async with httpx.AsyncClient(base_url=cluster.url) as client:
        document = (await client.get("/openapi.json")).json()
    described = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.validate(answer, {**described, "components": document["components"]})


async def post(cluster: LocalCluster, path: str, content: Any = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60.0, headers=ADMIN) as client:
        return await client.post(path, json=content) if content is not None else await client.post(path)


class Streamed:
    """An answer that is read as it comes."""

    def __init__(self, cluster: LocalCluster, count: int) -> None:
        self.ids: list[int] = []
        self.finish: str | None = None
        self._task = asyncio.create_task(self._read(cluster, count))

    async def _read(self, cluster: LocalCluster, count: int) -> None:
        fields = body(PROMPT, count, stream=True)
        async with (
            httpx.AsyncClient(base_url=cluster.url, timeout=60.0) as client,
            client.stream("POST", "/v1/completions", json=fields) as response,
        ):
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"] or [{}]
                    self.ids += choice.get("token_ids") or []
                    self.finish = choice.get("finish_reason") or self.finish

    async def has(self, count: int) -> None:
        async with asyncio.timeout(20.0):
            while len(self.ids) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def ended(self) -> None:
        await self._task


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


def agrees(answer: list[int], prompt: list[int], order: list[Any]) -> bool:
    """Whether the weights of `order`, one after the other and then again, have computed the answer."""
    at, turn, since = 0, 0, 0
    while at < len(answer):
        said = continued(order[turn % 2], [*prompt, *answer[:at]], 1)[0]
        if said == answer[at]:
            at, since = at + 1, 0
        elif since:
            return False
        else:
            turn, since = turn + 1, 1
    return turn <= 6


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
    async with local_cluster(small, Mode.DISAGG) as cluster:
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


async def test_an_update_is_refused_while_another_router_uses_the_workers(
    small: SmallModel, changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Access(admin_keys=ApiKeys({KEY: "trainer"}))
    async with local_cluster(small, Mode.MIXED, access=access) as cluster:
        monkeypatch.setattr(cluster.registry, "other_routers", lambda: ["router-b"])
        answer = await post(cluster, "/update_weights_from_disk", {"model_path": str(changed.folder)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "several_routers")
        assert ids_of(await ask(cluster, 5)) == continued(small.model, PROMPT, 5)


async def test_a_router_that_comes_later_takes_over_the_weights_of_its_workers(
    small: SmallModel, changed: Changed
) -> None:
    async with local_cluster(small, Mode.MIXED) as cluster:
        await cluster.weights.update(str(changed.folder), "2")
        dispatcher = ClusterDispatcher(
            RouterConfig(model="small", mode=Mode.MIXED), cluster.registry, RouterMetrics()
        )
        later = WeightUpdates(cluster.registry, dispatcher, lambda: None)
        assert later.served == cluster.weights.served
        assert dispatcher.gate.weights == later.served.tag != ""


async def test_a_request_for_other_weights_is_refused_by_a_worker(
    small: SmallModel, changed: Changed
) -> None:
    """Such as one of a router that does not know of the update yet."""
    async with local_cluster(small, Mode.MIXED) as cluster:
        await cluster.weights.update(str(changed.folder), mode=PauseMode.WAIT)
        gate = cluster.weights._dispatcher.gate
        known, gate.weights = gate.weights, "of-yesterday"
        asked = asyncio.create_task(ask(cluster, 5))
        await asyncio.sleep(0.2)
        assert not asked.done()
        gate.weights = known
        assert ids_of(await asked) == continued(changed.model, PROMPT, 5)


async def test_routes_that_change_weights_take_an_admin_key(cluster: LocalCluster) -> None:
    async with httpx.AsyncClient(base_url=cluster.url) as client:
        for path in ("/pause", "/resume", "/update_weights", "/flush_cache", "/reset_prefix_cache"):
            assert (await client.post(path)).status_code == 401
        assert (await client.post("/reset_prefix_cache", headers=ADMIN)).json() == {"status": "cleared"}
        assert (await client.post("/pause?mode=in_place", headers=ADMIN)).status_code == 400
