"""Clients that know the right answer, and so can tell whether a stream is right, refused, or wrong."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import httpx
import orjson

from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from tests.faults.support.small_model import Question

_CLEAN_STATUS = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
_CLEAN_HTTP = {429, 503, 504}


class Refused(Exception):
    """The service said no, in the way it promises to."""


class Client(Protocol):
    def ask(self, question: Question) -> AsyncIterator[Sequence[int] | str]:
        """Pieces of the answer, ids or text. Raises Refused; anything else is a fault of the service."""


@dataclass
class GrpcClient:
    target: str

    async def ask(self, question: Question) -> AsyncIterator[Sequence[int]]:
        request = router_pb2.GenerateRequest(
            token_ids=router_pb2.TokenIds(ids=question.prompt),
            sampling=sampling_pb2.SamplingParams(
                max_tokens=question.max_tokens,
                temperature=question.temperature,
                seed=question.seed,
                ignore_eos=True,
            ),
        )
        try:
            async with grpc.aio.insecure_channel(self.target) as channel:
                async for response in router_pb2_grpc.RouterStub(channel).Generate(request, timeout=120):
                    yield response.token_ids
        except grpc.aio.AioRpcError as error:
            if error.code() not in _CLEAN_STATUS:
                raise
            raise Refused(error.details()) from None


@dataclass
class HttpClient:
    url: str
    router_may_die: bool = False
    """Then a broken connection counts as a clean end too: no server is left to report more."""

    async def ask(self, question: Question) -> AsyncIterator[str]:
        body = {
            "prompt": question.prompt,
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
            "seed": question.seed,
            "ignore_eos": True,
            "stream": True,
        }
        try:
            async with (
                httpx.AsyncClient(timeout=120) as client,
                client.stream("POST", f"{self.url}/v1/completions", json=body) as response,
            ):
                if response.status_code != 200:
                    await response.aread()
                    assert response.status_code in _CLEAN_HTTP, response.text
                    raise Refused(response.json()["error"]["message"])
                async for text in _texts(response):
                    yield text
        except httpx.TransportError as error:
            if not self.router_may_die:
                raise
            raise Refused(str(error)) from None


async def _texts(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        data = line.removeprefix("data: ")
        if not data:
            continue
        if data == "[DONE]":
            return
        event = orjson.loads(data)
        if "error" in event:
            raise Refused(event["error"]["message"])
        yield "".join(choice["text"] for choice in event["choices"])
    raise AssertionError("the stream ended without [DONE] and without an error")


@dataclass
class Answered:
    """One question's story."""

    question: Question
    times: list[float] = field(default_factory=list)
    """When each piece came, on the monotonic clock."""
    refusal: str | None = None


async def check(
    client: Client, question: Question, right: Mapping[Question, Sequence[int] | str], story: Answered
) -> None:
    """Asks, and compares every piece as it comes. AssertionError: an answer was wrong, even for a moment."""
    expected = right[question]
    received = expected[:0]
    try:
        async for piece in client.ask(question):
            received = received + (piece if isinstance(piece, str) else list(piece))
            assert expected[: len(received)] == received, _difference(expected, received)
            if piece:
                story.times.append(time.monotonic())
    except Refused as refusal:
        story.refusal = str(refusal)
    else:
        assert received == expected, f"{len(received)} of {len(expected)}, and no word of an error"


def _difference(expected: Sequence[int] | str, received: Sequence[int] | str) -> str:
    at = next(i for i, pair in enumerate(zip(expected, received, strict=False)) if pair[0] != pair[1])
    return f"wrong from position {at}: {received[at : at + 8]!r} instead of {expected[at : at + 8]!r}"
