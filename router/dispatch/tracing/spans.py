"""The trace of a sequence: its timeline as spans, by the conventions of OpenTelemetry. Pure.

Workers report their times to the router, which creates the spans of all processes on one clock. Each span
belongs to the process that did the work.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from router.dispatch.sequence import SequenceState
from rpc.baton.v1 import router_pb2

Value: TypeAlias = str | int | float | bool | list[str]

ROUTER: Final = "router"
_GOOD: Final = frozenset({"stop", "length", "abort"})


@dataclass(frozen=True, slots=True)
class TraceSpan:
    name: str
    process: str
    """Name of the worker, or ROUTER."""
    trace_id: str
    span_id: str
    parent_id: str
    """Empty: the root of the trace."""
    begin_s: float
    """Unix time."""
    end_s: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    is_server: bool = False
    """Entered from outside."""
    error: str = ""
    """The error; empty if there was none."""


def spans_of(
    sequence: SequenceState, outcome: str, arrived_s: float, ended_s: float, model: str
) -> Iterator[TraceSpan]:
    """The request's span, its stages below it, and chunks, encodes and pushes below those.

    `arrived_s`, `ended_s`: Unix times of the waterfall's arrival and end.
    """
    timings = sequence.waterfall.timings(sequence.waterfall.arrival + ended_s - arrived_s)
    trace = sequence.trace
    yield TraceSpan(
        f"{sequence.operation} {model}",
        ROUTER,
        trace.trace_id,
        sequence.span_id,
        trace.parent_id,
        arrived_s,
        ended_s,
        _attributes(sequence, outcome, timings, model),
        is_server=True,
        error="" if outcome in _GOOD else outcome,
    )
    for name, process, begin_s, end_s in _stages(timings):
        span_id = secrets.token_hex(8)
        yield TraceSpan(
            name, process, trace.trace_id, span_id, sequence.span_id, arrived_s + begin_s, arrived_s + end_s
        )
        if name != "prefill":
            continue
        kinds = (("chunk", timings.chunks), ("encode", timings.encodes), ("kv_push", timings.pushes))
        for kind, spans in kinds:
            for span in spans:
                yield TraceSpan(
                    kind,
                    timings.prefill_worker,
                    trace.trace_id,
                    secrets.token_hex(8),
                    span_id,
                    arrived_s + span.begin_s,
                    arrived_s + span.end_s,
                    {"baton.tokens": span.num_tokens, "baton.first_token": span.first_token}
                    | ({"baton.bytes": span.bytes} if span.bytes else {}),
                )


def _stages(timings: router_pb2.Timings) -> Iterator[tuple[str, str, float, float]]:
    """Name, process, begin and end in seconds since arrival, of stages that took any time."""
    prefill, decode = timings.prefill_worker or ROUTER, timings.decode_worker or ROUTER
    begin = 0.0
    for name, process, seconds in (
        ("queue", ROUTER, timings.queue_s),
        ("prefill", prefill, timings.prefill_s),
        ("reserve", decode, timings.reserve_s),
        ("transfer", decode, timings.transfer_s),
        ("first_decode", decode, timings.first_decode_s),
    ):
        if seconds > 0:
            yield name, process, begin, begin + seconds
        begin += seconds
    if timings.e2e_s > begin:
        yield "decode", decode, begin, timings.e2e_s


def _attributes(
    sequence: SequenceState, outcome: str, timings: router_pb2.Timings, model: str
) -> dict[str, Value]:
    """Attributes by the GenAI semantic conventions, without text."""
    sampling = sequence.sampling
    attributes: dict[str, Value] = {
        "gen_ai.operation.name": sequence.operation,
        "gen_ai.provider.name": "baton",
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": sequence.id,
        "gen_ai.response.finish_reasons": [outcome],
        "gen_ai.usage.input_tokens": len(sequence.prompt),
        "gen_ai.usage.output_tokens": len(sequence.output),
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.seed": str(sampling.seed),
        "baton.prefill_worker": timings.prefill_worker,
        "baton.decode_worker": timings.decode_worker,
        "baton.placement": timings.placement,
    }
    if timings.read_s:
        attributes["baton.read_seconds"] = timings.read_s
    elif sequence.waterfall.first_token is not None:
        attributes["gen_ai.server.time_to_first_token"] = timings.ttft_s
    if outcome not in _GOOD:
        attributes["error.type"] = outcome
    return attributes
