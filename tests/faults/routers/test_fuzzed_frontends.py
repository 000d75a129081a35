"""The frontends against random and malformed input."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import grpc
import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from engine.modeling.loader.checkpoint import resolve
from router.api.http.protocol import BoundedProtocol
from router.command.preflight import allow_many_connections
from rpc.baton.v1 import router_pb2, router_pb2_grpc, sampling_pb2
from tests.faults.support.bounds import bounded
from tests.integration.frontends import Frontends, open_frontends

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_IDLE_CLIENT = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
idle = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def frontends() -> Iterator[Frontends]:
    """Served from a thread: what attacks them does not always wait in an asyncio way."""
    opened: list[Frontends] = []
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        async with open_frontends(resolve("smollm2").path) as frontends:
            opened.append(frontends)
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    yield opened[0]
    done.set()
    thread.join()


@bounded("examples", here=40, soak=2000)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"],
)
def test_bodies_and_answers_are_as_the_openapi_document_says(
    frontends: Frontends, path: str, mode: GenerationMode, examples: int
) -> None:
    """What the document calls wrong is refused; every answer has a shape and a status that it names."""
    operation = schemathesis.openapi.from_url(f"{frontends.url}/openapi.json")[path]["POST"]
    document = httpx.get(f"{frontends.url}/openapi.json").json()
    [body] = document["paths"][path]["post"]["requestBody"]["content"].values()
    documented = Draft202012Validator(body["schema"] | {"components": document["components"]})

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def holds(case: schemathesis.Case) -> None:
        answer = case.call(timeout=10)
        # Prompt and answer must fit the context together: see router/api/endpoints/openapi.py. And a body
        # that violates one member of a union may be right for another, which only a validator can tell.
        unchecked = [positive_data_acceptance, negative_data_rejection]
        case.validate_response(answer, excluded_checks=unchecked)
        if answer.status_code == httpx.codes.OK:
            documented.validate(json.loads(answer.request.body or b"null"))

    holds()


def a_request() -> router_pb2.GenerateRequest:
    options = sampling_pb2.SamplingParams(max_tokens=4, temperature=0.5, stop=["x"])
    return router_pb2.GenerateRequest(
        request_id="a", model="small", text="Hello there", sampling=options, n=1
    )


def generated_text(frontends: Frontends) -> str:
    with grpc.insecure_channel(frontends.target) as channel:
        stub = router_pb2_grpc.RouterStub(channel)  # type: ignore[no-untyped-call]
        return "".join(response.text for response in stub.Generate(a_request(), timeout=10))


def test_random_bytes_on_the_grpc_port_affect_no_other_client(frontends: Frontends) -> None:
    draw = random.Random(4)
    for number in range(200):
        noise = draw.randbytes(draw.randrange(1, 4096))
        with socket.create_connection(("127.0.0.1", frontends.grpc.port), timeout=10) as connection:
            connection.sendall((_HTTP2_PREFACE if number % 2 else b"") + noise)
            if number % 3:
                connection.shutdown(socket.SHUT_WR)
    assert generated_text(frontends)


def test_random_messages_in_well_formed_calls_are_refused_or_answered(frontends: Frontends) -> None:
    draw = random.Random(5)
    # The last is gRPC's own word for bytes that are no message.
    clean = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNKNOWN}
    refusals = []
    with grpc.insecure_channel(frontends.target) as channel:
        call = channel.unary_stream("/baton.v1.Router/Generate")
        for _ in range(300):
            message = bytearray(a_request().SerializeToString())
            for _ in range(draw.randrange(1, 4)):
                message[draw.randrange(len(message))] = draw.randrange(256)
            try:
                list(call(bytes(message), timeout=10))
            except grpc.RpcError as refusal:
                refusals.append(refusal)
    assert refusals
    assert all(refusal.code() in clean for refusal in refusals), refusals
    assert generated_text(frontends)


def test_connections_of_slow_senders_are_closed_and_other_clients_are_not_affected(
    frontends: Frontends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedProtocol, "arrival_s", 1.5)
    post = b"POST /v1/completions HTTP/1.1\r\n"
    json_body = b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    trickles = [(b"G", b""), (post, b"x"), (post + json_body, b" ")]
    with ExitStack() as stack:
        http = stack.enter_context(httpx.Client(base_url=frontends.url, timeout=30))
        slow = [
            (
                stack.enter_context(socket.create_connection(("127.0.0.1", frontends.http.port), timeout=10)),
                drop,
            )
            for _, drop in trickles * 100
        ]
        for (connection, _), (beginning, _) in zip(slow, trickles * 100, strict=True):
            connection.sendall(beginning)
        for _ in range(20):
            for connection, drop in slow:
                with suppress(ConnectionError):
                    connection.sendall(drop)
            assert http.get("/live").status_code == 200
            time.sleep(0.1)
        for connection, _ in slow:
            with suppress(ConnectionResetError):
                assert connection.recv(1024).startswith(b"HTTP/1.1 408 ")


def test_an_answer_may_take_longer_than_a_request_may_take_to_arrive(
    frontends: Frontends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedProtocol, "arrival_s", 0.3)
    monkeypatch.setattr(frontends.dispatcher, "pause_s", 0.1)
    with httpx.Client(base_url=frontends.url, timeout=30) as http:
        for _ in range(2):  # the second time over the same connection
            answer = http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 6})
            assert answer.json()["usage"]["completion_tokens"] == 6


def test_headers_without_end_are_cut_off(frontends: Frontends) -> None:
    with socket.create_connection(("127.0.0.1", frontends.http.port), timeout=10) as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\n")
        header = b"x: " + b"y" * 8192 + b"\r\n"
        sent = 0
        with suppress(ConnectionError):
            while sent < 64 << 20:
                connection.sendall(header)
                sent += len(header)
    assert sent < 16 << 20, "the server goes on reading"


def test_ten_thousand_idle_connections_leave_the_service_responsive(frontends: Frontends) -> None:
    allow_many_connections()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1000
    count = min(10_000, most)
    idle = subprocess.Popen(
        [sys.executable, "-c", _IDLE_CLIENT, str(frontends.http.port), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert idle.stdin
    assert idle.stdout
    try:
        assert idle.stdout.readline() == b"connected\n"
        with httpx.Client(base_url=frontends.url, timeout=30) as http:
            asked_at = time.monotonic()
            answer = http.post("/v1/completions", json={"prompt": "hi"})
            took = time.monotonic() - asked_at
        assert answer.status_code == 200
        print(f"\nwith {count} idle connections a request took {took * 1000:.0f} ms", end="")
    finally:
        idle.communicate()
