"""Traces: W3C context in and out, spans of the timeline, and OTLP as a collector reads it."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import orjson
import pytest

from router.dispatch.sequence import RequestIdentity, SequenceState, TraceContext
from router.dispatch.tracing.otlp import TraceExporter, export_request, headers_of
from router.dispatch.tracing.spans import spans_of
from router.dispatch.waterfall import Waterfall
from rpc.baton.v1 import sampling_pb2, worker_pb2

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def ended_sequence(trace: TraceContext) -> SequenceState:
    """Prefilled on one worker in two chunks, decoded on another; 1 s to the first token, 3 s in all."""
    marks = Waterfall(arrival=100.0)
    marks.attempt(100.1)
    marks.placed("prefill-0", "decode-0", "disagg")
    marks.start(worker_pb2.Started(queued_s=0.1), at=100.25)
    marks.reserve(100.3)
    marks.tokens(1, 101.0)
    spans = [worker_pb2.Span(begin_s=0.1, end_s=0.5, num_tokens=32)]
    marks.on_handed_off(worker_pb2.HandedOff(bytes=640, chunks=spans, pushes=spans))
    marks.arrive(101.2)
    marks.tokens(1, 101.5)
    sampling = sampling_pb2.SamplingParams(max_tokens=9, temperature=0.5, top_p=1.0)
    return SequenceState(
        worker_pb2.Work(prompt=[1, 2, 3], sampling=sampling),
        marks,
        id="chatcmpl-1",
        trace=trace,
        operation="chat",
        output=[4, 5],
    )


class Collector(BaseHTTPRequestHandler):
    bodies: list[bytes]
    arrived: Event

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        assert self.headers["content-type"] == "application/json"
        self.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        self.arrived.set()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes], Event]]:
    handler = type("Handler", (Collector,), {"bodies": [], "arrived": Event()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler.bodies, handler.arrived
        server.shutdown()
        thread.join()


def test_a_read_has_a_span_for_its_prompt_and_no_first_token() -> None:
    marks = Waterfall(arrival=100.0)
    marks.attempt(100.0)
    marks.placed("decode-0", None, "soonest")
    marks.start(worker_pb2.Started(queued_s=0.25), at=100.25)
    marks.read(101.0)
    sequence = SequenceState(worker_pb2.Work(prompt=[1, 2], read=worker_pb2.Read(label_ids=[3])), marks)
    whole, *stages = spans_of(sequence, "stop", 5000.0, 5001.0, "small")
    assert [span.name for span in stages if span.name != "chunk"] == ["queue", "prefill"]
    assert whole.attributes["baton.read_seconds"] == 1.0
    assert "gen_ai.server.time_to_first_token" not in whole.attributes


def test_a_request_continues_the_trace_of_its_caller() -> None:
    trace = TraceContext.of(f"00-{TRACE}-{PARENT}-01")
    assert trace == TraceContext(TRACE, PARENT, True)
    assert trace.traceparent("a" * 16) == f"00-{TRACE}-{'a' * 16}-01"
    assert not TraceContext.of(f"00-{TRACE}-{PARENT}-00").sampled
    assert TraceContext.of(f"cc-{TRACE}-{PARENT}-01-of-the-future").trace_id == TRACE


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00-abc-def-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE.upper()}-{PARENT}-01",
    ],
)
def test_without_a_valid_caller_a_trace_begins(header: str | None) -> None:
    trace = TraceContext.of(header)
    assert len(trace.trace_id) == 32
    assert trace.trace_id != TRACE
    assert (trace.parent_id, trace.sampled) == ("", True)


def test_sequences_of_one_request_have_spans_of_their_own() -> None:
    identity = RequestIdentity("cmpl-7")
    assert [identity.next_sequence() for _ in range(3)] == [(0, "cmpl-7"), (1, "cmpl-7-1"), (2, "cmpl-7-2")]
    assert RequestIdentity().next_sequence() != RequestIdentity().next_sequence()


def test_workers_get_the_request_id_and_the_trace() -> None:
    sequence = ended_sequence(TraceContext(TRACE, PARENT))
    work = sequence.work(7)
    assert work.name == "chatcmpl-1"
    assert work.traceparent == f"00-{TRACE}-{sequence.span_id}-01"


def test_spans_are_the_stages_each_of_the_process_that_did_the_work() -> None:
    sequence = ended_sequence(TraceContext(TRACE, PARENT))
    root, *stages = spans_of(sequence, "stop", 1000.0, 1003.0, "m")
    assert (root.name, root.parent_id, root.is_server) == ("chat m", PARENT, True)
    assert (root.begin_s, root.end_s) == (1000.0, 1003.0)
    assert root.attributes["gen_ai.usage.input_tokens"] == 3
    assert root.attributes["gen_ai.usage.output_tokens"] == 2
    assert [(s.name, s.process) for s in stages] == [
        ("queue", "router"),
        ("prefill", "prefill-0"),
        ("chunk", "prefill-0"),
        ("kv_push", "prefill-0"),
        ("transfer", "decode-0"),
        ("first_decode", "decode-0"),
        ("decode", "decode-0"),
    ]
    top = [s for s in stages if s.parent_id == root.span_id]
    assert [s.end_s for s in top[:-1]] == pytest.approx([s.begin_s for s in top[1:]])
    assert top[-1].end_s == pytest.approx(1003.0)
    assert {s.trace_id for s in stages} == {TRACE}


def test_a_failed_request_has_the_error_in_its_span() -> None:
    root, *_ = spans_of(ended_sequence(TraceContext(TRACE)), "unavailable", 0.0, 3.0, "m")
    assert root.error == "unavailable"
    assert root.attributes["error.type"] == "unavailable"


def test_a_collector_gets_the_trace(collector: tuple[str, list[bytes], Event]) -> None:
    url, bodies, arrived = collector
    with TraceExporter(url, "m") as exporter:
        exporter.ended(ended_sequence(TraceContext(TRACE, PARENT)), "stop", 103.0)
        exporter.ended(ended_sequence(TraceContext(TRACE, PARENT, sampled=False)), "stop", 103.0)
    assert arrived.wait(10)
    [body] = bodies
    resources = orjson.loads(body)["resourceSpans"]
    names = {_text(r["resource"]["attributes"], "service.instance.id") for r in resources}
    assert names == {"router", "prefill-0", "decode-0"}


def test_a_collector_that_is_gone_costs_no_request_anything() -> None:
    with TraceExporter("http://127.0.0.1:9", "m") as exporter:
        exporter.ended(ended_sequence(TraceContext(TRACE)), "stop", 103.0)
    assert exporter.num_dropped == 1


def test_the_request_is_what_opentelemetrys_own_messages_say() -> None:
    service = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs opentelemetry-proto"
    )
    import base64

    from google.protobuf import json_format

    request = export_request(spans_of(ended_sequence(TraceContext(TRACE, PARENT)), "stop", 0.5, 3.5, "m"))
    for resource in request["resourceSpans"]:  # OTLP has ids in hexadecimal, where protobuf's JSON has base64
        for span in resource["scopeSpans"][0]["spans"]:
            for name in ("traceId", "spanId", "parentSpanId"):
                span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    read = json_format.ParseDict(request, service.ExportTraceServiceRequest())
    root = read.resource_spans[0].scope_spans[0].spans[0]
    assert root.trace_id.hex() == TRACE
    assert root.parent_span_id.hex() == PARENT
    assert root.start_time_unix_nano == 500_000_000
    assert root.kind == 2
    assert {a.key: a.value.string_value for a in root.attributes}["gen_ai.operation.name"] == "chat"


def test_headers_are_those_of_the_standard_variable() -> None:
    assert headers_of("api-key=a%20b, x=1") == {"api-key": "a b", "x": "1"}
    assert headers_of("") == {}


def _text(attributes: list[dict[str, Any]], key: str) -> str:
    [value] = [a["value"]["stringValue"] for a in attributes if a["key"] == key]
    return str(value)
