"""Workers that draft: answers are transformers', wherever they are computed, moved, or begun again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import SpeculationConfig
from engine.model_config.model_spec import ModelSpec
from engine.speculation.kinds import DrafterKind
from router.config.groups.scheduling import SchedulingSettings
from rpc.baton.v1 import worker_pb2
from tests.eagle_head import HeadShape, TrainableHead
from tests.integration.conftest import Oracle
from tests.integration.tiny_cluster import pair, slow_down, work, worker
from tests.integration.workers.test_disagg_workers import prompt
from tests.integration.workers.test_live_migration import LENGTH, running
from worker.config import WorkerRole

MODEL_ONLY = frozenset({DrafterKind.MODEL})
DRAFTING: dict[str, Any] = {"speculation": SpeculationConfig(num_draft_tokens=5, adaptive=False)}


def predicting(job: worker_pb2.Work, answer: list[int]) -> worker_pb2.Work:
    """With the answer as its client's prediction, except for a token in the middle."""
    middle = len(answer) // 2
    job.sampling.drafts.prediction.extend([*answer[:middle], *answer[middle + 1 :]])
    return job


async def test_a_predicted_answer_comes_in_fewer_events_and_counts_what_was_right(
    folder: Path, oracle: Oracle
) -> None:
    expected = oracle(prompt(30), LENGTH)
    async with worker(folder, WorkerRole.DECODE, None, **DRAFTING) as link:
        job = predicting(work(prompt(30), max_tokens=LENGTH), expected)
        await link.submit(job)
        await link.next(job.request_id, "started")
        ids, events = list[int](), list[worker_pb2.Tokens]()
        while not (events and events[-1].finish):
            events.append(await link.next(job.request_id, "tokens"))
            assert events[-1].position == len(ids)
            ids += events[-1].ids
        assert ids == expected
        right = sum(event.accepted for event in events if event.predicted)
        assert right > LENGTH // 2
        assert len(events) <= LENGTH - sum(event.accepted for event in events)
        stats = await link.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.accepted_tokens >= right
        await link.all_pages_back()


async def test_a_prediction_is_drafted_by_default(folder: Path, oracle: Oracle) -> None:
    speculation = SchedulingSettings().speculation
    assert speculation is not None
    default: dict[str, Any] = {"speculation": replace(speculation, adaptive=False)}  # whatever steps take
    expected = oracle(prompt(30), LENGTH)
    async with pair(folder, "loopback", default, default) as workers:
        assert await workers.generate(predicting(work(prompt(30), max_tokens=LENGTH), expected)) == expected
        stats = await workers.decode.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.accepted_tokens > 0
        assert await workers.generate(work(prompt(30), max_tokens=LENGTH)) == expected
        again = await workers.decode.stub.GetStats(worker_pb2.GetStatsRequest())
        assert again.drafted_tokens == stats.drafted_tokens
        await workers.all_pages_back()


async def test_a_request_that_wants_no_drafts_gets_none(folder: Path, oracle: Oracle) -> None:
    async with worker(folder, WorkerRole.DECODE, None, **DRAFTING) as link:
        job = work(prompt(30), max_tokens=LENGTH)
        job.sampling.drafts.off = True
        await link.submit(job)
        await link.next(job.request_id, "started")
        assert (await link.tokens(job.request_id))[0] == oracle(prompt(30), LENGTH)
        assert (await link.stub.GetStats(worker_pb2.GetStatsRequest())).drafted_tokens == 0


async def test_an_answer_is_handed_over_and_drafted_on_the_other_worker(folder: Path, oracle: Oracle) -> None:
    expected = oracle(prompt(30), LENGTH)
    async with pair(folder, "loopback", DRAFTING, DRAFTING) as workers:
        job = predicting(work(prompt(30), max_tokens=LENGTH), expected)
        assert await workers.generate(job) == expected
        stats = await workers.decode.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.accepted_tokens > 0
        await workers.all_pages_back()


async def test_a_draft_model_catches_up_with_an_answer_that_was_handed_over(
    folder: Path, oracle: Oracle
) -> None:
    by_model = SpeculationConfig(drafters=MODEL_ONLY, num_draft_tokens=5, adaptive=False, model_path=folder)
    drafting: dict[str, Any] = {"speculation": by_model}
    async with pair(folder, "loopback", drafting, drafting) as workers:
        assert await workers.generate(work(prompt(30), max_tokens=LENGTH)) == oracle(prompt(30), LENGTH)
        stats = await workers.decode.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.accepted_tokens == stats.drafted_tokens > LENGTH // 2
        await workers.all_pages_back()


async def test_an_eagle_head_drafts_behind_the_prompt_of_an_answer_that_was_handed_over(
    folder: Path, oracle: Oracle, tmp_path: Path
) -> None:
    model = ModelSpec.from_folder(folder)
    shape = HeadShape(
        vocab_size=model.vocab_size,
        draft_vocab_size=model.vocab_size // 2,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        max_position=model.max_position,
        layers=(0, 1),
    )
    TrainableHead(shape, torch.arange(shape.draft_vocab_size)).save(tmp_path)
    by_head = SpeculationConfig(drafters=MODEL_ONLY, num_draft_tokens=5, adaptive=False, model_path=tmp_path)
    drafting: dict[str, Any] = {"speculation": by_head}
    async with pair(folder, "loopback", drafting, drafting) as workers:
        assert await workers.generate(work(prompt(30), max_tokens=LENGTH)) == oracle(prompt(30), LENGTH)
        stats = await workers.decode.stub.GetStats(worker_pb2.GetStatsRequest())
        assert stats.drafted_tokens > 0
        await workers.all_pages_back()


@pytest.mark.parametrize("transport", ["loopback", "nixl"])
async def test_a_drafted_answer_moves_while_it_is_verified(
    folder: Path, oracle: Oracle, transport: str
) -> None:
    async with running(folder, transport, source=DRAFTING, target=DRAFTING) as move:
        await move.migrate(await move.reserve())
        await move.target.next(move.there.request_id, "arrived")
        await move.rest(move.source, move.here.request_id)
        await move.rest(move.target, move.there.request_id)
        assert move.complete() == oracle(prompt(30), LENGTH)
        await move.all_pages_back()


async def test_the_answer_of_a_worker_that_ends_while_verifying_continues_elsewhere(
    folder: Path, oracle: Oracle
) -> None:
    expected = oracle(prompt(30), LENGTH)
    async with worker(folder, WorkerRole.DECODE, None, "b", **DRAFTING) as other:
        async with worker(folder, WorkerRole.DECODE, None, "a", **DRAFTING) as lost:
            slow_down(lost.host, 0.005)
            job = predicting(work(prompt(30), max_tokens=LENGTH), expected)
            await lost.submit(job)
            await lost.next(job.request_id, "started")
            told: list[int] = []
            while len(told) < 8:
                told += (await lost.next(job.request_id, "tokens")).ids
        again = predicting(work(prompt(30), max_tokens=LENGTH), expected)
        again.output.extend(told)
        await other.submit(again)
        await other.next(again.request_id, "started")
        assert told + (await other.tokens(again.request_id))[0] == expected


async def test_many_answers_are_drafted_beside_prompts_in_chunks(folder: Path, oracle: Oracle) -> None:
    async with worker(folder, WorkerRole.DECODE, None, **DRAFTING, max_running_requests=4) as link:
        jobs = [work(prompt(20 + 7 * i), max_tokens=24) for i in range(8)]
        for job in jobs:
            await link.submit(job)

        async def answer(job: worker_pb2.Work) -> list[int]:
            await link.next(job.request_id, "started")
            return (await link.tokens(job.request_id))[0]

        answers = await asyncio.gather(*map(answer, jobs))
        assert answers == [oracle(prompt(20 + 7 * i), 24) for i in range(8)]
        await link.all_pages_back()
