"""New weights on one worker after another, while the others serve."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from router.config.choices import Mode, UpdateMode
from router.dispatch.weights.update_result import UpdateFailed
from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import SmallModel
from tests.integration.service.changed_weights import (
    PROMPT,
    Changed,
    Streamed,
    agrees,
    ask,
    cached,
    check_documented,
    continued,
    ids_of,
    spans_agree,
)

FLEETS = [(Mode.MIXED, 2), (Mode.DISAGG, 1), (Mode.DISAGG, 2), (Mode.ADAPTIVE, 1)]


@pytest.fixture(params=FLEETS, ids=lambda fleet: f"{fleet[0].value}-{fleet[1]}")
async def fleet(small: SmallModel, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    mode, each = request.param
    async with local_cluster(small, mode, each=each) as running:
        yield running
        await running.all_pages_back()
        assert not running.deaths


async def test_workers_are_updated_while_others_answer(
    fleet: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    """Every answer is of the old weights, then of the new ones; none waits for the end of the update."""
    answered_meanwhile = 0
    going = True
    updating = asyncio.Event()

    async def keep_asking(number: int) -> list[tuple[list[int], list[int]]]:
        nonlocal answered_meanwhile
        answers = []
        while going:
            prompt = [*PROMPT[:40], 90 + number, *range(10, 20)]
            answers.append((prompt, ids_of(await ask(fleet, 30, prompt))))
            answered_meanwhile += updating.is_set()
        return answers

    askers = [asyncio.create_task(keep_asking(number)) for number in range(4)]
    folders = [changed.folder, small.folder]
    for turn in range(4):
        await asyncio.sleep(0.2)
        updating.set()
        done = await fleet.weights.update(str(folders[turn % 2]), str(turn))
        updating.clear()
        assert (done.how, done.paused) == (UpdateMode.ROLLING, False)
        assert {s.info.served.tag for s in fleet.registry.sessions()} == {done.served.tag}
    going = False
    every = [pair for asker in askers for pair in await asker]
    assert answered_meanwhile
    models = [small.model, changed.model]
    for prompt, answer in every:
        assert len(answer) == 30
        assert any(agrees(answer, prompt, order) for order in (models, models[::-1]))


async def test_after_a_rolling_update_all_answers_are_those_of_a_fresh_start(
    fleet: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    assert ids_of(await ask(fleet, 12)) == continued(small.model, PROMPT, 12)
    await fleet.weights.update(str(changed.folder), "2")
    answers = [await ask(fleet, 12) for _ in range(6)]
    assert all(ids_of(answer) == continued(changed.model, PROMPT, 12) for answer in answers)
    assert cached(answers[0]) == 0
    assert cached(answers[-1]) > 0


async def test_a_kept_stream_says_which_weights_have_computed_which_tokens(
    fleet: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    prompts = [[*PROMPT, 90 + i] for i in range(4)]
    answers = [Streamed(fleet, 900, prompt) for prompt in prompts]
    for answer in answers:
        await answer.has(5)
    await fleet.weights.update(str(changed.folder), "2")
    models = {"default": small.model, "2": changed.model}
    for prompt, answer in zip(prompts, answers, strict=True):
        await answer.ended()
        assert (len(answer.ids), answer.finish) == (900, "length")
        assert [span["version"] for span in answer.versions] == ["default", "2"]
        assert answer.versions[0]["end"] >= 5
        assert answer.versions[-1]["end"] == 900
        assert spans_agree(answer.ids, answer.versions, models, prompt)


async def test_weight_versions_over_grpc(fleet: LocalCluster, small: SmallModel, changed: Changed) -> None:
    request = router_pb2.GenerateRequest(
        token_ids=router_pb2.TokenIds(ids=PROMPT),
        sampling=sampling_pb2.SamplingParams(max_tokens=600, temperature=0.0, ignore_eos=True),
        weight_versions=True,
    )
    ids: list[int] = []
    begins: list[tuple[int, str]] = []
    updating: asyncio.Task[object] | None = None
    async with grpc.aio.insecure_channel(fleet.target) as channel:
        stub = router_pb2_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        async for response in stub.Generate(request):
            if response.HasField("weights_begin"):
                begins.append((response.weights_begin.position, response.weights_begin.version))
            ids += response.token_ids
            if updating is None and len(ids) >= 5:
                updating = asyncio.create_task(fleet.weights.update(str(changed.folder), "2"))
    assert updating is not None
    await updating
    spans: list[dict[str, Any]] = []
    for position, version in begins:
        if spans and spans[-1]["version"] == version:
            continue  # it has moved to another worker with the same weights
        spans.append({"version": version, "start": position})
    for span, end in zip(spans, [*(span["start"] for span in spans[1:]), len(ids)], strict=True):
        span["end"] = end
    assert [span["version"] for span in spans] == ["default", "2"]
    assert spans_agree(ids, spans, {"default": small.model, "2": changed.model}, PROMPT)


async def test_an_answer_leaves_its_worker_once_another_one_has_computed_its_kv(
    fleet: LocalCluster, changed: Changed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    prompts = [[100 + i, *PROMPT] for i in range(4)]
    answers = [Streamed(fleet, 900, prompt) for prompt in prompts]
    for answer in answers:
        await answer.has(5)
    before = sum(stats.cache_hit_tokens for stats in await fleet.stats())
    await fleet.weights.update(str(changed.folder), "2")
    for answer in answers:
        await answer.ended()
    reused = sum(stats.cache_hit_tokens for stats in await fleet.stats()) - before
    assert reused >= 4 * (len(PROMPT) - 16)
    assert "others go on with its answers" in caplog.text
    assert "its worker gets other weights" not in caplog.text, "it was ended before it was handed over"
    assert "another router" not in caplog.text


async def test_every_choice_of_a_whole_answer_has_its_own_spans(
    fleet: LocalCluster, small: SmallModel, changed: Changed
) -> None:
    more = {"n": 3, "return_weight_versions": True}
    asked = asyncio.create_task(ask(fleet, 900, **more))
    async with asyncio.timeout(20.0):
        while sum(stats.generated_tokens for stats in await fleet.stats()) < 30:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await fleet.weights.update(str(changed.folder), "2")
    models = {"default": small.model, "2": changed.model}
    answer = await asked
    await check_documented(fleet, "/v1/completions", answer)
    for choice in answer["choices"]:
        spans = choice["weight_versions"]
        assert [span["version"] for span in spans] == ["default", "2"]
        assert spans_agree(choice["token_ids"], spans, models, PROMPT)
    after = await ask(fleet, 4, **more)
    assert [choice["weight_versions"] for choice in after["choices"]] == 3 * [
        [{"version": "2", "start": 0, "end": 4}]
    ]
    assert "weight_versions" not in (await ask(fleet, 4))["choices"][0]


async def test_an_answer_that_a_stop_string_cuts_reports_the_tokens_that_it_has(
    fleet: LocalCluster,
) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 30}
    chat |= {"return_weight_versions": True, "temperature": 0.0, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=fleet.url, timeout=60.0) as client:
        whole = (await client.post("/v1/chat/completions", json=chat)).json()["choices"][0]
        text = whole["message"]["content"]
        cut = await client.post("/v1/chat/completions", json={**chat, "stop": text[3:6]})
    await check_documented(fleet, "/v1/chat/completions", cut.json())
    (span,) = cut.json()["choices"][0]["weight_versions"]
    assert (span["start"], span["end"]) == (0, cut.json()["usage"]["completion_tokens"])
    assert span["end"] < whole["weight_versions"][0]["end"]


async def test_a_worker_that_refuses_takes_all_back_to_the_old_weights(
    fleet: LocalCluster, small: SmallModel, changed: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses = fleet.registry.sessions()[-1]
    update = refuses.update_weights

    async def not_here(request: Any) -> Any:
        request.weights.folder = request.weights.folder and "/not/here"
        return await update(request)

    monkeypatch.setattr(refuses, "update_weights", not_here)
    with pytest.raises(UpdateFailed, match=rf"{refuses.worker_id}: .*/not/here"):
        await fleet.weights.update(str(changed.folder))
    assert {session.info.served.tag for session in fleet.registry.sessions()} == {""}
    assert ids_of(await ask(fleet, 5)) == continued(small.model, PROMPT, 5)
    monkeypatch.undo()
    await fleet.weights.update(str(changed.folder))
    assert ids_of(await ask(fleet, 5)) == continued(changed.model, PROMPT, 5)


async def test_a_worker_that_reads_other_weights_than_the_first_one_takes_the_old_ones_back(
    fleet: LocalCluster, small: SmallModel, changed: Changed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a folder of the same name on another machine."""
    elsewhere = tmp_path / "model"
    shutil.copytree(small.folder, elsewhere)
    refuses = fleet.registry.sessions()[-1]
    update = refuses.update_weights

    async def other(request: Any) -> Any:
        request.weights.folder = request.weights.folder and str(elsewhere)
        return await update(request)

    monkeypatch.setattr(refuses, "update_weights", other)
    with pytest.raises(UpdateFailed, match="elsewhere"):
        await fleet.weights.update(str(changed.folder))
    assert {session.info.served.tag for session in fleet.registry.sessions()} == {""}
    assert ids_of(await ask(fleet, 5)) == continued(small.model, PROMPT, 5)
