"""Clients that use HTTP as SDKs do not: old, half-closed, compressed, under other names."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from pathlib import Path

import httpx
import pytest

from router.api.access import ApiKeys
from router.dispatch.token_stream import Delta
from tests.integration.frontends import Call, Frontends, open_frontends

ASK = json.dumps({"prompt": "hi", "max_tokens": 4}).encode()
STREAM = json.dumps({"prompt": "hi", "max_tokens": 4, "stream": True}).encode()
ORIGIN = "https://chat.example"
PATIENCE_S = 10.0


def request(body: bytes, *, version: str = "1.1", head: str = "host: localhost\r\n") -> bytes:
    return (
        f"POST /v1/completions HTTP/{version}\r\n{head}content-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def talk(frontends: Frontends, sent: bytes, *, half_close: bool = False) -> bytes:
    """All that the server writes until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", frontends.http.port)
    try:
        writer.write(sent)
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
async def test_http_1_0_has_no_chunks(frontends: Frontends, body: bytes) -> None:
    head, _, rest = (await talk(frontends, request(body, version="1.0", head=""))).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    if body is ASK:
        assert json.loads(rest)["usage"]["completion_tokens"] == 4
    else:
        events = rest.decode().split("\n\n")
        assert all(event.startswith("data: ") for event in events[:-1])
        assert events[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
async def test_a_client_that_closes_its_side_after_the_request_gets_the_response(
    frontends: Frontends, body: bytes
) -> None:
    frontends.dispatcher.pause_s = 0.1
    answer = await talk(frontends, request(body), half_close=True)
    while answer.startswith(b"HTTP/1.1 100 "):
        answer = answer.partition(b"\r\n\r\n")[2]
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert (b"[DONE]" if body is STREAM else b'"completion_tokens":4') in answer


@pytest.mark.parametrize("body", [ASK, STREAM], ids=["whole", "stream"])
async def test_a_client_that_closes_both_sides_while_it_waits_ends_its_request(
    frontends: Frontends, body: bytes
) -> None:
    asked = asyncio.Event()

    def script(call: Call) -> list[Delta]:
        asked.set()
        return [Delta(token_ids=[1])]

    frontends.dispatcher.script, frontends.dispatcher.hang_after = script, 0
    _, writer = await asyncio.open_connection("127.0.0.1", frontends.http.port)
    writer.write(request(body))
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()
    writer.close()
    await frontends.dispatcher.until_all_given_up()


@pytest.mark.parametrize("head", ["", "host: localhost\r\nhost: localhost\r\n"], ids=["none", "two"])
async def test_http_1_1_needs_exactly_one_host(frontends: Frontends, head: str) -> None:
    answer = await talk(frontends, request(ASK, head=head))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"param":"host"' in answer
    assert b'"code":"invalid_value"' in answer


@pytest.mark.parametrize(
    ("coding", "compressed"),
    [
        ("gzip", gzip.compress(ASK)),
        ("x-gzip", gzip.compress(ASK)),
        ("deflate", zlib.compress(ASK)),
        ("", ASK),
    ],
    ids=["gzip", "x-gzip", "deflate", "none"],
)
async def test_a_body_may_be_compressed(http: httpx.AsyncClient, coding: str, compressed: bytes) -> None:
    headers = {"content-type": "application/json", "content-encoding": coding}
    answer = await http.post("/v1/completions", content=compressed, headers=headers)
    assert answer.json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("br", ASK, 415),
        ("gzip, gzip", gzip.compress(gzip.compress(ASK)), 415),
        ("gzip", ASK, 400),
        ("gzip", gzip.compress(ASK)[:-5], 400),
        ("gzip", gzip.compress(ASK) + b"more", 400),
        ("deflate", gzip.compress(ASK), 400),
        ("gzip", gzip.compress(b" " * (5 << 20)), 413),
        ("deflate", zlib.compress(b" " * (50 << 20)), 413),
    ],
    ids=["other", "twice", "plain", "incomplete", "longer", "gzip as deflate", "large", "huge"],
)
async def test_a_body_that_cannot_be_decompressed_within_the_limit_is_refused(
    frontends: Frontends, http: httpx.AsyncClient, coding: str, body: bytes, status: int
) -> None:
    headers = {"content-type": "application/json", "content-encoding": coding}
    answer = await http.post("/v1/completions", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]["code"]
    assert not frontends.dispatcher.calls


async def test_a_trailing_slash_makes_no_difference(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health/")).json() == (await http.get("/health")).json()
    assert (await http.post("/v1/completions/", json={"prompt": "hi"})).status_code == 200
    assert (await http.get("/v1/models/small/")).json()["id"] == "small"
    assert (await http.get("//")).headers["content-type"].startswith("text/html")


async def test_a_trailing_slash_opens_nothing(folder: Path) -> None:
    keys = ApiKeys({"the key": "alice"})
    async with (
        open_frontends(folder, keys=keys) as frontends,
        httpx.AsyncClient(base_url=frontends.url) as http,
    ):
        assert (await http.get("/metrics/")).status_code == 401
        assert (await http.get("/metrics/", headers={"authorization": "Bearer the key"})).status_code == 403


@pytest.mark.parametrize(
    "path", ["/", "/page/page.js", "/status", "/live", "/none", "/v1/completions", "/health/"]
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "DELETE"])
async def test_every_response_has_a_request_id(http: httpx.AsyncClient, method: str, path: str) -> None:
    assert (await http.request(method, path)).headers["x-request-id"].startswith("req-")


async def test_web_pages_may_ask_if_the_operator_names_their_origin(folder: Path) -> None:
    preflight = {"origin": ORIGIN, "access-control-request-method": "POST"}
    async with (
        open_frontends(folder, cors_origins=(ORIGIN,)) as frontends,
        httpx.AsyncClient(base_url=frontends.url) as http,
    ):
        answer = await http.options("/v1/completions", headers=preflight)
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert answer.headers["x-request-id"].startswith("req-")
    async with open_frontends(folder) as frontends, httpx.AsyncClient(base_url=frontends.url) as http:
        answer = await http.options("/v1/completions", headers=preflight)
        assert answer.status_code == 405
        assert "access-control-allow-origin" not in answer.headers


async def test_a_request_that_offers_another_protocol_is_answered_in_this_one(frontends: Frontends) -> None:
    """As Java's HttpClient does with its first request."""
    upgrade = "host: localhost\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    answer = await talk(frontends, request(ASK, head=upgrade) + request(ASK, version="1.0"))
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b'"completion_tokens":4') == 2


async def test_clients_cannot_fill_the_log(
    frontends: Frontends, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    upgrade = {"connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    assert (await http.get("/v1/responses", headers=upgrade)).status_code == 405
    assert (await talk(frontends, b"\x16\x03\x01 no HTTP at all\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    assert (await talk(frontends, b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    assert not caplog.records


@pytest.mark.parametrize("host", ["evil.example", "evil.example:30000", "localhost.evil.example", "[::1"])
async def test_a_local_server_without_keys_refuses_names_that_any_page_could_have(
    frontends: Frontends, http: httpx.AsyncClient, host: str
) -> None:
    for path in ("/v1/models", "/status", "/"):
        answer = await http.get(path, headers={"host": host})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "unknown_host")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:1", "127.0.0.1:1", "[::1]:1", "10.0.0.1", "x.localhost"]
)
async def test_a_local_server_answers_to_its_own_names(http: httpx.AsyncClient, host: str) -> None:
    assert (await http.get("/v1/models", headers={"host": host})).status_code == 200


async def test_a_local_server_with_keys_may_stand_behind_a_proxy(folder: Path) -> None:
    keys = ApiKeys({"the key": "alice"})
    async with (
        open_frontends(folder, keys=keys) as frontends,
        httpx.AsyncClient(base_url=frontends.url) as http,
    ):
        headers = {"host": "llm.example", "authorization": "Bearer the key"}
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
