"""What HTTP clients see of failures, and what becomes of requests whose client is gone or does not read."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from router.errors import DeadlineExceeded, Internal, Overloaded, Unavailable
from tests.integration.frontends import Call, Frontends, open_frontends, say

TEXT = "Hello, wörld! 你好 👋🏽 and goodbye."
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Greet me."}]
EOS = 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Overloaded("queues are full", retry_after_s=1.2), openai.RateLimitError),
        (Unavailable("no workers"), openai.InternalServerError),
        (DeadlineExceeded("too slow"), openai.InternalServerError),
    ],
)
async def test_a_failure_before_the_first_token_is_an_http_error(
    frontends: Frontends, client: openai.AsyncOpenAI, failure: Any, expected: Any, stream: bool
) -> None:
    frontends.dispatcher.failure = failure
    with pytest.raises(expected) as error:
        await client.completions.create(model="small", prompt="hi", stream=stream)
    assert error.value.status_code == failure.http_status
    assert error.value.code == failure.code
    if failure.retry_after_s:
        assert error.value.response.headers["retry-after"] == "2"


async def test_a_failure_after_the_first_token_is_an_event_of_the_stream(
    frontends: Frontends, client: openai.AsyncOpenAI
) -> None:
    frontends.dispatcher.failure, frontends.dispatcher.fail_after = Unavailable("a worker died"), 3
    stream = await client.completions.create(model="small", prompt="hi", stream=True)
    for _ in range(3):
        await anext(stream)
    with pytest.raises(openai.APIError, match=r"cannot process.*Request id: cmpl-"):
        await anext(stream)


@pytest.mark.parametrize("fail_after", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("decode-1 at 10.0.0.7:4711 is lost"),
        Internal("10.0.0.7 ran into a NaN"),
        RuntimeError("10.0.0.7"),
    ],
)
async def test_a_server_error_has_a_plain_message_and_is_logged_under_its_request_id(
    frontends: Frontends,
    client: openai.AsyncOpenAI,
    caplog: pytest.LogCaptureFixture,
    failure: Any,
    fail_after: int,
    stream: bool,
) -> None:
    frontends.dispatcher.failure, frontends.dispatcher.fail_after = failure, fail_after

    async def ask() -> None:
        answer = await client.completions.create(model="small", prompt="hi", stream=stream)
        if stream:
            [event async for event in answer]

    with pytest.raises(openai.APIError) as error:
        await ask()
    assert "10.0.0.7" not in str(error.value)
    (request_id,) = re.findall(r"Request id: (cmpl-\w+)", error.value.message)
    if isinstance(error.value, openai.APIStatusError):
        assert error.value.request_id == request_id
    [line] = [message for message in caplog.messages if request_id in message]
    assert str(failure) in line


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def read_all(url: str, body: dict[str, Any]) -> bytes:
    async with (
        httpx.AsyncClient(timeout=None) as client,
        client.stream("POST", url, json=body) as response,
    ):
        return await response.aread()


@pytest.mark.parametrize("hang_after", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_disconnects_ends_its_request(
    frontends: Frontends, hang_after: int, stream: bool
) -> None:
    frontends.dispatcher.hang_after = hang_after
    body = {"prompt": "hi", "n": 2, "stream": stream, "max_tokens": 10}
    reading = asyncio.create_task(read_all(f"{frontends.url}/v1/completions", body))
    await until(lambda: [call.deltas for call in frontends.dispatcher.calls] == [hang_after] * 2)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await frontends.dispatcher.until_all_given_up()
    await until(lambda: not frontends.generation._running)


async def settled(call: Call) -> int:
    """How many deltas were asked for when no more were for a while."""
    for _ in range(50):
        before = call.deltas
        await asyncio.sleep(0.2)
        if call.deltas == before:
            break
    return before


async def test_a_client_that_does_not_read_makes_only_its_own_tokens_wait(folder: Path) -> None:
    count = 60_000
    async with open_frontends(folder, max_model_len=2 * count) as frontends:
        frontends.dispatcher.script = say(frontends.generation.tokenizer, " word" * count)
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect(("127.0.0.1", frontends.http.port))
        body = b'{"prompt":"hi","stream":true,"max_tokens":%d}' % count
        head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        head += b"content-length: %d\r\n\r\n" % len(body)
        unread.sendall(head + body)
        await asyncio.sleep(0.1)
        async with httpx.AsyncClient() as client:
            other = await client.post(
                f"{frontends.url}/v1/completions", json={"prompt": "hi", "max_tokens": 5}
            )
        assert other.status_code == 200
        stuck, _ = frontends.dispatcher.calls
        assert 0 < await settled(stuck) < count
        unread.close()
        await asyncio.wait_for(stuck.given_up.wait(), 5)
