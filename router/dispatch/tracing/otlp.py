"""Sends spans to an OpenTelemetry collector: OTLP over HTTP, JSON encoding, no library needed.

Nothing waits for the collector: spans are queued, sent by a thread, and dropped when the queue is full.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote
from urllib.request import Request, urlopen

from common.version import VERSION
from router.dispatch.sequence import SequenceState
from router.dispatch.tracing.spans import TraceSpan, Value, spans_of

_log = logging.getLogger(__name__)

_HEADERS_VARIABLE: Final = "OTEL_EXPORTER_OTLP_HEADERS"
_CAPACITY: Final = 2048
"""Sequences."""
_AT_ONCE: Final = 256
_INTERVAL_S: Final = 1.0
_TIMEOUT_S: Final = 10.0
_INTERNAL: Final = 1
_SERVER: Final = 2
_ERROR: Final = 2


class TraceExporter:
    """A context manager; the dispatcher calls `ended`. Queued spans are sent once more at exit."""

    def __init__(self, endpoint: str, model: str) -> None:
        """`endpoint`: URL of the collector, such as http://127.0.0.1:4318; /v1/traces is added if missing."""
        self._url = endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"
        self._model = model
        self._headers = headers_of(os.environ.get(_HEADERS_VARIABLE, ""))
        self._queue: queue.Queue[list[TraceSpan] | None] = queue.Queue(_CAPACITY)
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._is_failing = False
        self.num_dropped = 0
        """Sequences whose spans were not sent."""

    def __enter__(self) -> TraceExporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return  # the collector does not keep up
        self._thread.join(_TIMEOUT_S)

    def ended(self, sequence: SequenceState, outcome: str, at: float) -> None:
        """A sequence ended; `at` is on its waterfall's clock. Returns at once."""
        if not sequence.trace.sampled:
            return
        now = time.time()
        began = now - (at - sequence.waterfall.arrival)
        try:
            self._queue.put_nowait(list(spans_of(sequence, outcome, began, now, self._model)))
        except queue.Full:
            self.num_dropped += 1

    def _run(self) -> None:
        is_over = False
        while not is_over:
            batch = [self._queue.get()]
            deadline = time.monotonic() + _INTERVAL_S
            while batch[-1] is not None and len(batch) < _AT_ONCE:
                try:
                    batch.append(self._queue.get(timeout=max(deadline - time.monotonic(), 0.0)))
                except queue.Empty:
                    break
            is_over = batch[-1] is None
            traces = [spans for spans in batch if spans is not None]
            if traces:
                self._send(traces)

    def _send(self, traces: list[list[TraceSpan]]) -> None:
        body = json.dumps(export_request(span for spans in traces for span in spans)).encode()
        headers = {"content-type": "application/json", **self._headers}
        try:
            with urlopen(Request(self._url, body, headers, method="POST"), timeout=_TIMEOUT_S) as answer:
                answer.read()
        except OSError as error:  # also what HTTP refuses
            self.num_dropped += len(traces)
            if not self._is_failing:
                _log.warning("traces cannot be sent to %s: %s; requests are not affected", self._url, error)
            self._is_failing = True
        else:
            self._is_failing = False


def export_request(spans: Iterable[TraceSpan]) -> dict[str, Any]:
    """ExportTraceServiceRequest of OTLP, as its JSON."""
    by_process: defaultdict[str, list[TraceSpan]] = defaultdict(list)
    for span in spans:
        by_process[span.process].append(span)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(_resource(process))},
                "scopeSpans": [
                    {"scope": {"name": "baton", "version": VERSION}, "spans": list(map(_span, of_process))}
                ],
            }
            for process, of_process in by_process.items()
        ]
    }


def headers_of(text: str) -> dict[str, str]:
    """Parse OTEL_EXPORTER_OTLP_HEADERS: key=value pairs, comma-separated, percent-encoded."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}


def _resource(process: str) -> dict[str, Value]:
    return {"service.name": "baton", "service.version": VERSION, "service.instance.id": process}


def _span(span: TraceSpan) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "parentSpanId": span.parent_id,
        "name": span.name,
        "kind": _SERVER if span.is_server else _INTERNAL,
        "startTimeUnixNano": str(round(span.begin_s * 1e9)),
        "endTimeUnixNano": str(round(span.end_s * 1e9)),
        "attributes": _attributes(span.attributes),
        "status": {"code": _ERROR, "message": span.error} if span.error else {},
    }


def _attributes(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
        case _:
            return {"stringValue": value}
