"""Records of finished requests with their timings, for `router explain` and the log."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from common.log_format import data
from router.dispatch.request_status import RequestStatus
from rpc.as_json import as_json
from rpc.baton.v1 import router_pb2

_log = logging.getLogger(__name__)

_SPANS: Final = ("chunks", "pushes", "encodes", "row_transfers")
"""Fields of `Timings` with begins and ends."""


@dataclass(slots=True)
class CompletionRecord:
    """One completion of a request."""

    finish: str
    output_tokens: int
    timings: router_pb2.Timings | None
    ended_in: RequestStatus | None = None
    """Stage of a completion that ended before its last token."""


@dataclass(slots=True)
class RequestRecord:
    """A request that has ended."""

    id: str
    client: str
    """Name of its API key; not derived from the key."""
    outcome: str
    """"ok", "abort", or the code of the error."""
    message: str
    """The error's message; empty without an error."""
    seconds: float
    priority: int
    prompt_tokens: int
    cached_tokens: int
    completions: list[CompletionRecord] = field(default_factory=list)
    clients_id: str = ""
    """`x-request-id` of the client; empty without one."""

    def as_json(self) -> dict[str, Any]:
        return {
            "request": self.id,
            "client_request": self.clients_id,
            "client": self.client,
            "outcome": self.outcome,
            "message": self.message,
            "seconds": self.seconds,
            "priority": self.priority,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completions": [_completion(record) for record in self.completions],
        }


class History:
    """Keeps the last `limit` requests by id; O(1) per request."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: OrderedDict[str, RequestRecord] = OrderedDict()

    def add(self, record: RequestRecord) -> None:
        """Add and log a request. Of equal ids, the last one is kept."""
        self._records.pop(record.id, None)
        self._records[record.id] = record
        while len(self._records) > self._limit:
            self._records.popitem(last=False)
        if _log.isEnabledFor(logging.INFO):
            line = record.as_json()
            line["error"] = line.pop("message")  # a log line's message is its text
            for completion in line["completions"]:
                for spans in _SPANS:
                    completion.pop(spans, None)
            _log.info("%s", _summary(record), extra=data(event="request", **line))

    def find(self, request_id: str) -> dict[str, Any] | None:
        """The record of a request; None if it is still running or no longer kept.

        By its own id, or by that of its client: of several, the last one. O(kept requests).
        """
        record = self._records.get(request_id)
        if record is None and request_id:
            kept = reversed(self._records.values())
            record = next((one for one in kept if one.clients_id == request_id), None)
        return None if record is None else record.as_json()


def _summary(record: RequestRecord) -> str:
    """One line of text: outcome, tokens, times and workers."""
    output = sum(completion.output_tokens for completion in record.completions)
    timed = [one.timings for one in record.completions if one.timings is not None]
    reads = sum(1 for timings in timed if timings.read_s)
    parts = [
        record.outcome,
        f"{record.prompt_tokens} prompt tokens ({record.cached_tokens} cached)",
        f"{reads} reads" if reads else f"{output} output tokens",
    ]
    first = min((timings.ttft_s for timings in timed if timings.ttft_s), default=0.0)
    if first and not reads:
        parts.append(f"TTFT {first:.3f} s")
    parts.append(f"{record.seconds:.3f} s")
    ways = dict.fromkeys(_way(timings) for timings in timed)
    parts += [way for way in ways if way]
    name = repr(record.id) + (f" ({record.clients_id})" if record.clients_id else "")
    return f"request {name}: {', '.join(parts)}"


def _way(timings: router_pb2.Timings) -> str:
    """The workers in order; empty if none had computed anything."""
    workers = (timings.prefill_worker, *(move.worker for move in timings.moves), timings.decode_worker)
    return " -> ".join(dict.fromkeys(worker for worker in workers if worker))


def _completion(record: CompletionRecord) -> dict[str, Any]:
    known: dict[str, Any] = {"finish": record.finish, "output_tokens": record.output_tokens}
    if record.ended_in is not None:
        known["ended_in"] = record.ended_in.as_json()
    timings = record.timings
    if timings is None:
        return known
    spans = {name: _spans(getattr(timings, name)) for name in _SPANS}
    return known | as_json(timings) | spans


def _spans(spans: Iterable[router_pb2.TimingSpan]) -> list[dict[str, float]]:
    return [
        {"begin_s": s.begin_s, "end_s": s.end_s, "first_token": s.first_token, "tokens": s.num_tokens}
        for s in spans
    ]
