"""TTFT waterfall: the stages between a request's arrival and its second token.

The five stages follow each other without gaps, from the request's arrival to its second token. A handoff
mostly runs beside the prefill: `reserve` and `transfer` are only what is left of it after the first token,
that is, what the client waits for. The spans show the rest: when each chunk was computed, and when its pages
travelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from rpc.baton.v1 import router_pb2, worker_pb2

__all__ = ["Observer", "Waterfall", "busy_seconds"]


class Observer(Protocol):
    """Callbacks about the progress of a request."""

    def on_first_token(self, timings: router_pb2.Timings) -> None:
        """`ttft_s`, `queue_s` and `prefill_s` are final."""

    def on_second_token(self, timings: router_pb2.Timings) -> None:
        """The other stages are final, too."""

    def on_gap(self, seconds: float) -> None:
        """The time between two tokens; once for each token after the first."""

    def on_handed_over(self, prefill_worker: str, decode_worker: str, size: int, seconds: float) -> None:
        """So many bytes of KV are at the decode worker; for so long some of them travelled."""

    def on_moved(self, reason: str) -> None:
        """The answer goes on at another worker."""


class _Nobody:
    def on_first_token(self, timings: router_pb2.Timings) -> None:
        pass

    def on_second_token(self, timings: router_pb2.Timings) -> None:
        pass

    def on_gap(self, seconds: float) -> None:
        pass

    def on_handed_over(self, prefill_worker: str, decode_worker: str, size: int, seconds: float) -> None:
        pass

    def on_moved(self, reason: str) -> None:
        pass


_NOBODY: Observer = _Nobody()


@dataclass(slots=True, eq=False)
class Waterfall:
    """Marks of one request. Times are time.monotonic() of the router; the first mark of a kind stands."""

    arrival: float
    observer: Observer = _NOBODY

    submitted: float | None = None
    started: float | None = None
    reserved: float | None = None
    first_token: float | None = None
    arrived: float | None = None
    second_token: float | None = None
    prefill_worker: str = ""
    decode_worker: str = ""
    split: int = 0
    """Prompt token from which on the decode worker computes; 0: see router.proto."""
    why: str = ""
    waited: dict[str, float] = field(default_factory=dict)
    """Seconds in the worker's queue by reason."""
    _moves: list[router_pb2.TimingMove] = field(default_factory=list)
    _preemptions: list[router_pb2.TimingPreemption] = field(default_factory=list)
    _is_telling: bool = True
    """Spans of the latest attempt are shown: it is the one that gives the first token."""
    _last_token: float = 0.0
    _chunks: list[router_pb2.TimingSpan] = field(default_factory=list)
    """Of the prompt, where the answer is computed."""
    _chunks_elsewhere: list[router_pb2.TimingSpan] = field(default_factory=list)
    """Those whose KV was handed over."""
    _pushes: list[router_pb2.TimingSpan] = field(default_factory=list)

    def attempt(self, at: float) -> None:
        """The request goes to a worker. What an attempt that gave no token did counts as queueing."""
        self._is_telling = self.first_token is None
        if self._is_telling:
            self.submitted, self.started, self.reserved = at, None, None
            self._chunks, self._chunks_elsewhere, self._pushes = [], [], []

    def placed(
        self, prefill_worker: str, decode_worker: str | None, why: str, split: int | None = None
    ) -> None:
        """Where the latest attempt is computed; `split` as in `Route`.

        `decode_worker`: None if the same, or not chosen yet.
        """
        self.prefill_worker, self.why, self.split = prefill_worker, why, split or 0
        self.decode_worker = decode_worker or prefill_worker

    def moved(self, worker: str, reason: str, at: float) -> None:
        """Another worker decodes from now on."""
        self.decode_worker = worker
        self._moves.append(router_pb2.TimingMove(at_s=at - self.arrival, worker=worker, reason=reason))
        self.observer.on_moved(reason)

    def preempted(self, worker: str, reason: str, at: float) -> None:
        """A worker freed its pages and queued it again."""
        self._preemptions.append(
            router_pb2.TimingPreemption(at_s=at - self.arrival, worker=worker, reason=reason)
        )

    def resumed(self, waited_s: float) -> None:
        """The worker that preempted it last computes it again."""
        if self._preemptions:
            self._preemptions[-1].waited_s = waited_s

    def start(self, event: worker_pb2.Started, at: float) -> None:
        """The event may be a step old; the wait that it reports is exact."""
        if self.started is None and self.first_token is None and self.submitted is not None:
            self.started = min(self.submitted + event.queued_s, at)
            self.waited = dict(event.waited)

    def reserve(self, at: float) -> None:
        self.reserved = self.reserved or at

    def arrive(self, at: float) -> None:
        self.arrived = self.arrived or at

    def tokens(self, count: int, at: float) -> None:
        first = self.first_token is None
        if first:
            self.first_token = at
            self.observer.on_first_token(self.timings(at))
            count -= 1
        if count and self.second_token is None:
            self.second_token = at
            self.observer.on_second_token(self.timings(at))
        for _ in range(count):
            self.observer.on_gap(0.0 if first else (at - self._last_token) / count)
        self._last_token = at

    def hand_over(self, event: worker_pb2.HandedOver) -> None:
        """Spans come in the worker's seconds since it was sent the request."""
        offset = (self.submitted or self.arrival) - self.arrival
        if self._is_telling:
            self._chunks_elsewhere = [_shifted(span, offset) for span in event.chunks]
            self._pushes = [_shifted(span, offset) for span in event.pushes]
        travelled = _covered((span.begin_s, span.end_s) for span in event.pushes)
        self.observer.on_handed_over(self.prefill_worker, self.decode_worker, event.bytes, travelled)

    def computed(self, chunks: Iterable[worker_pb2.Span], asked: float) -> None:
        """The prompt's chunks, from a worker that was sent the request at `asked` and computes the answer."""
        if self._is_telling:
            self._chunks = [_shifted(span, asked - self.arrival) for span in chunks]

    def timings(self, at: float) -> router_pb2.Timings:
        """As of now; stages that were not reached are 0."""
        first = self.first_token or at
        started = self.started or (first if self.first_token is None else self.submitted or first)
        reserved = max(self.reserved or first, first)
        arrived = max(self.arrived or reserved, reserved)
        return router_pb2.Timings(
            queue_s=started - self.arrival,
            prefill_s=max(first - started, 0.0),
            reserve_s=reserved - first,
            transfer_s=arrived - reserved,
            first_decode_s=max((self.second_token or arrived) - arrived, 0.0),
            ttft_s=first - self.arrival,
            e2e_s=at - self.arrival,
            chunks=[*self._chunks_elsewhere, *self._chunks],
            pushes=self._pushes,
            prefill_worker=self.prefill_worker,
            decode_worker=self.decode_worker,
            placement=self.why,
            split=self.split,
            moves=self._moves,
            preemptions=self._preemptions,
            waited=self.waited,
        )


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds that lie in at least one of the spans."""
    covered, upto = 0.0, -math.inf
    for begin, end in sorted(spans):
        covered += max(end - max(begin, upto), 0.0)
        upto = max(upto, end)
    return covered


def _shifted(span: worker_pb2.Span, offset: float) -> router_pb2.TimingSpan:
    return router_pb2.TimingSpan(
        begin_s=span.begin_s + offset,
        end_s=span.end_s + offset,
        first_token=span.first_token,
        num_tokens=span.num_tokens,
        bytes=span.bytes,
    )


def busy_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of the spans, each (begin, end), was under way."""
    total = latest = 0.0
    for begin, end in sorted(spans):
        total += max(end - max(begin, latest), 0.0)
        latest = max(latest, end)
    return total
