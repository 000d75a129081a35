"""Bad input over HTTP: an OpenAI-style 4xx each, and the service goes on."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from router.api.http.foreign_routes import ADVICE
from tests.integration.frontends import Frontends, open_frontends

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
LONG = "word " * 400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def frontends(folder: Path) -> AsyncIterator[Frontends]:
    async with open_frontends(folder) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def http(frontends: Frontends) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=frontends.url, timeout=10) as client:
        yield client


def assert_refused(
    response: httpx.Response, status: int, param: str | None = None, code: str | None = None
) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if param is not None:
        assert error["param"] == param
    assert error["code"] == code if code is not None else error["code"]


async def assert_still_serves(frontends: Frontends, http: httpx.AsyncClient) -> None:
    """And whatever was refused never reached a worker."""
    assert not frontends.dispatcher.calls
    assert (await http.post(COMPLETIONS, json={"prompt": "hi"})).status_code == 200
    frontends.dispatcher.calls.clear()


@pytest.mark.parametrize(
    ("path", "fields", "status", "param", "code"),
    [
        (COMPLETIONS, {"model": "nope"}, 404, "model", "model_not_found"),
        (CHAT, {"model": "nope"}, 404, "model", "model_not_found"),
        (COMPLETIONS, {"prompt": ""}, 400, "prompt", None),
        (COMPLETIONS, {"prompt": []}, 400, "prompt", None),
        (COMPLETIONS, {"prompt": ["fine", ""]}, 400, "prompt", None),
        (COMPLETIONS, {"prompt": [[]]}, 400, "prompt", None),
        (CHAT, {"messages": []}, 400, "messages", None),
        (COMPLETIONS, {"prompt": LONG}, 400, "prompt", "context_length_exceeded"),
        (CHAT, {"messages": [{"role": "user", "content": LONG}]}, 400, "messages", "context_length_exceeded"),
        (COMPLETIONS, {"prompt": [1] * 256}, 400, "prompt", "context_length_exceeded"),
        (COMPLETIONS, {"prompt": [1] * 255, "max_tokens": 2}, 400, "max_tokens", "context_length_exceeded"),
        (COMPLETIONS, {"max_tokens": 10**12}, 400, "max_tokens", "context_length_exceeded"),
        (COMPLETIONS, {"max_tokens": -1}, 400, "max_tokens", None),
        (COMPLETIONS, {"max_tokens": -5}, 400, "max_tokens", None),
        (COMPLETIONS, {"temperature": -1}, 400, "temperature", None),
        (COMPLETIONS, {"temperature": 1e300}, 400, "temperature", None),
        (COMPLETIONS, {"n": 0}, 400, "n", None),
        (COMPLETIONS, {"n": -1}, 400, "n", None),
        (COMPLETIONS, {"n": 10**9}, 400, "n", None),
        (COMPLETIONS, {"prompt": ["a"] * 200, "n": 2}, 400, "n", None),
        (COMPLETIONS, {"priority": 1}, 400, "priority", "unsupported_parameter"),
        (CHAT, {"priority": -1}, 400, "priority", "unsupported_parameter"),
        (COMPLETIONS, {"prompt": [49152]}, 400, "prompt", None),
        (COMPLETIONS, {"prompt": [-1]}, 400, "prompt", None),
        (COMPLETIONS, {"prompt": [10**30]}, 400, "prompt", None),
        (COMPLETIONS, {"stop_token_ids": [10**30]}, 400, "stop_token_ids.0", None),
        (COMPLETIONS, {"seed": 10**30}, 400, "seed", None),
        (COMPLETIONS, {"stop": ["x"] * 100}, 400, "stop", None),
        (COMPLETIONS, {"logprobs": 10**6}, 400, "logprobs", None),
        (CHAT, {"logprobs": True, "top_logprobs": 99}, 400, "top_logprobs", None),
        (COMPLETIONS, {"max_tokens": "many"}, 400, "max_tokens", "invalid_value"),
        (COMPLETIONS, {"prompt": {"text": "hi"}}, 400, "prompt", "invalid_value"),
        (COMPLETIONS, {"prompt": None}, 400, "prompt", "invalid_value"),
        (COMPLETIONS, {"stream": 1}, 400, "stream", "invalid_value"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages.0.content", "invalid_value"),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "messages.0.content", "missing_required_parameter"),
        (COMPLETIONS, {"nonsense": 1}, 400, "nonsense", "unknown_parameter"),
        (CHAT, {"tools": [{"type": "function"}]}, 400, "tools.0.function", "missing_required_parameter"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_value_is_refused_by_name(
    frontends: Frontends,
    http: httpx.AsyncClient,
    path: str,
    fields: dict[str, Any],
    status: int,
    param: str,
    code: str | None,
    stream: bool,
) -> None:
    required = {"prompt": "hi"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "hi"}]}
    assert_refused(await http.post(path, json={"stream": stream} | required | fields), status, param, code)
    await assert_still_serves(frontends, http)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi"}),
        (
            "/v1/messages",
            {"model": "small", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]},
        ),
    ],
)
async def test_foreign_fields_are_refused_with_the_advice_of_chat_completions(
    http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    for name, advice in (
        ("vllm_xargs", "use logit_bias or structured_outputs"),
        ("min_p", "a field of POST /v1/chat"),
    ):
        answer = await http.post(path, json=body | {name: 1})
        assert answer.status_code == 400
        assert name in answer.json()["error"]["message"]
        assert advice in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"hello",
        b"[1]",
        b"null",
        b"\x00\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b"[" * 10_000,
        b'{"prompt": 1,}',
    ],
)
async def test_a_malformed_body_is_refused(
    frontends: Frontends, http: httpx.AsyncClient, body: bytes
) -> None:
    for path in (COMPLETIONS, CHAT):
        assert_refused(await http.post(path, content=body, headers=JSON), 400)
    await assert_still_serves(frontends, http)


async def test_a_body_of_ten_megabytes_is_refused(frontends: Frontends, http: httpx.AsyncClient) -> None:
    big = b'{"prompt": "' + b"a" * 10_000_000 + b'"}'

    async def in_pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(big), 1 << 16):
            yield big[begin : begin + (1 << 16)]

    assert_refused(await http.post(COMPLETIONS, content=big, headers=JSON), 413, code="request_too_large")
    assert_refused(await http.post(CHAT, content=in_pieces(), headers=JSON), 413, code="request_too_large")
    await assert_still_serves(frontends, http)


async def test_a_long_text_does_not_stop_the_others_while_it_is_tokenized(
    frontends: Frontends, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = frontends.generation.tokenizer
    encode, others_served = tokenizer._encode_now, threading.Event()

    def encode_slowly(text: str, add_special_tokens: bool) -> list[int]:
        assert others_served.wait(10)
        return encode(text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "_encode_now", encode_slowly)
    text = "word " * 3_000
    assert tokenizer.fewest_tokens(text) < 256, "it would be refused before"
    refused = asyncio.create_task(http.post(COMPLETIONS, json={"prompt": text}))
    assert (await http.get("/live")).status_code == 200
    assert (await http.get("/live")).status_code == 200
    assert not refused.done()
    others_served.set()
    assert_refused(await refused, 400, "prompt", "context_length_exceeded")


@pytest.mark.parametrize(
    "fields", [{"prompt": "word " * 400_000}, {"messages": [{"role": "user", "content": "word " * 400_000}]}]
)
async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(
    frontends: Frontends, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    def tokenize(text: str, add_special_tokens: bool) -> list[int]:
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(frontends.generation.tokenizer, "_encode_now", tokenize)
    path, param = (COMPLETIONS, "prompt") if "prompt" in fields else (CHAT, "messages")
    refused = await http.post(path, json=fields)
    assert_refused(refused, 400, param, "context_length_exceeded")
    assert "at least" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "media_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"]
)
async def test_what_a_web_page_may_send_without_asking_is_refused(
    frontends: Frontends, http: httpx.AsyncClient, media_type: str | None
) -> None:
    for path in (COMPLETIONS, CHAT):
        headers = {} if media_type is None else {"content-type": media_type}
        refused = await http.post(path, content=b'{"prompt": "hi"}', headers=headers)
        assert_refused(refused, 415, code="unsupported_media_type")
    await assert_still_serves(frontends, http)


async def test_a_media_type_may_have_a_charset(frontends: Frontends, http: httpx.AsyncClient) -> None:
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    answered = await http.post(COMPLETIONS, content=b'{"prompt": "hi"}', headers=headers)
    assert answered.status_code == 200
    frontends.dispatcher.calls.clear()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/v2/completions", 404),
        ("GET", COMPLETIONS, 405),
        ("DELETE", CHAT, 405),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/models/nope", 404),
    ],
)
async def test_a_route_that_is_not_there_is_an_openai_error_too(
    http: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    assert_refused(await http.request(method, path), status)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/chat/completions", "There is no POST /chat/completions. Did you mean /v1/chat/completions?"),
        ("/api/generate", "Use POST /v1/completions"),
        ("/load_lora_adapter_from_tensors", "use POST /v1/load_lora_adapter"),
    ],
)
async def test_a_route_of_another_server_is_answered_with_what_to_use(
    http: httpx.AsyncClient, path: str, words: str
) -> None:
    refused = await http.post(path, json={})
    assert_refused(refused, 404)
    assert words in refused.json()["error"]["message"]


async def test_advice_is_given_only_for_routes_that_are_not_served(http: httpx.AsyncClient) -> None:
    for path, advice in ADVICE.items():
        for method in ("GET", "POST"):
            response = await http.request(method, path)
            assert response.status_code == 404, path
            assert advice in response.json()["error"]["message"]


async def test_bytes_that_are_not_http_are_refused_and_others_continue(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    for noise in (b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", frontends.http.port)
        writer.write(noise)
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 400")
        assert b'"type":"invalid_request_error"' in answer
        writer.close()
    await assert_still_serves(frontends, http)


async def test_a_byte_order_mark_is_not_part_of_the_body(
    frontends: Frontends, http: httpx.AsyncClient
) -> None:
    body = b"\xef\xbb\xbf" + b'{"prompt": "hi"}'
    for content, headers in ((body, {}), (gzip.compress(body), {"content-encoding": "gzip"})):
        response = await http.post(COMPLETIONS, content=content, headers=JSON | headers)
        assert response.status_code == 200, response.text
    frontends.dispatcher.calls.clear()
