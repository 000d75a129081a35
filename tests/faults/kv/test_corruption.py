"""Bits flip while pages travel: no client ever gets a token that came from them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from router.config.choices import Mode
from tests.faults.support.clients import Answered, GrpcClient, HttpClient, check
from tests.faults.support.corruption import Corruption
from tests.faults.support.local_cluster import LocalCluster, local_cluster
from tests.faults.support.small_model import Question, SmallModel

TRANSPORTS = ["loopback", "nixl"]


@asynccontextmanager
async def damaged_cluster(
    small: SmallModel, transport: str, damage: Corruption
) -> AsyncIterator[LocalCluster]:
    async with local_cluster(small, Mode.DISAGG, transport=transport, assemble=damage.assemble) as cluster:
        yield cluster
        await cluster.all_pages_back()
        assert not cluster.deaths


def questions(small: SmallModel, count: int) -> list[Question]:
    draw = random.Random(3)
    return [small.question(seed, length=draw.randrange(40, 400), max_tokens=8) for seed in range(count)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_damaged_pages_are_never_answered_from_and_the_next_request_is_fine(
    small: SmallModel, transport: str
) -> None:
    damage = Corruption(probability=1.0)
    asked = questions(small, 6)
    texts = [small.text(small.answer(question)) for question in asked]
    async with damaged_cluster(small, transport, damage) as cluster, httpx.AsyncClient(timeout=60) as http:
        bodies = [
            {"prompt": q.prompt, "max_tokens": q.max_tokens, "temperature": 0, "ignore_eos": True}
            for q in asked
        ]
        url = f"{cluster.url}/v1/completions"
        answers = await asyncio.gather(*(http.post(url, json=body) for body in bodies))
        assert {answer.status_code for answer in answers} == {503}, [answer.text for answer in answers]
        assert damage.flipped > 0

        damage.probability = 0.0
        for text, body in zip(texts, bodies, strict=True):
            answer = await http.post(url, json=body)
            assert answer.status_code == 200
            assert answer.json()["choices"][0]["text"] == text


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_streams_under_occasional_damage_are_right_up_to_their_end_or_their_error(
    small: SmallModel, transport: str
) -> None:
    damage = Corruption(probability=0.02)
    asked = questions(small, 16)
    ids = {question: small.answer(question) for question in asked}
    texts = {question: small.text(answer) for question, answer in ids.items()}
    async with damaged_cluster(small, transport, damage) as cluster:
        stories = [Answered(question) for question in asked]
        grpc, http = GrpcClient(cluster.target), HttpClient(cluster.url)
        await asyncio.gather(
            *(check(grpc, story.question, ids, story) for story in stories[::2]),
            *(check(http, story.question, texts, story) for story in stories[1::2]),
        )
        assert damage.flipped > 0
        assert any(story.refusal is None for story in stories), "nothing got through"
