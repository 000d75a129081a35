"""TTFT waterfall: the stages between a request's arrival and its second token.

The five stages are contiguous, from the request's arrival to its second token. Most of a handoff overlaps
with the prefill: `reserve` and `transfer` are only the exposed part after the first token. The spans show all
of it: when each chunk was computed, and when its pages were transferred.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from router.dispatch.pauses import PAUSE_S, UNKNOWN, USUAL, Interruption, StreamPause, pause_of
from router.dispatch.workers.arrivals import ON_TIME, BatchTiming
from rpc.baton.v1 import router_pb2, worker_pb2

_MOST_PAUSES: Final = 32
"""Most pauses that are kept of one answer."""


class Observer:
    """Callbacks about the progress of a request; these do nothing."""

    def on_first_token(self, timings: router_pb2.Timings) -> None:
        """`ttft_s`, `queue_s` and `prefill_s` are final."""

    def on_read(self, timings: router_pb2.Timings) -> None:
        """A read has ended: all of its timings are final."""

    def on_second_token(self, timings: router_pb2.Timings) -> None:
        """The other stages are final, too."""

    def on_gap(self, seconds: float, count: int) -> None:
        """Inter-token latency of `count` tokens after the first."""

    def on_handed_off(self, prefill_worker: str, decode_worker: str, size: int, seconds: float) -> None:
        """A handoff of `size` bytes is complete; `seconds`: time with a write in flight."""

    def on_moved(self, reason: str) -> None:
        """Another worker continues the answer."""

    def on_pause(self, pause: StreamPause) -> None:
        """A gap before the latest tokens that readers notice."""


@dataclass(slots=True, eq=False)
class Waterfall:
    """Timestamps of one request: time.monotonic() of the router. An attempt keeps the first value of each."""

    arrival: float
    observer: Observer = field(default_factory=Observer)

    submitted: float | None = None
    started: float | None = None
    reserved: float | None = None
    first_token: float | None = None
    arrived: float | None = None
    second_token: float | None = None
    prefill_worker: str = ""
    decode_worker: str = ""
    why: str = ""
    waited: dict[str, float] = field(default_factory=dict)
    """Seconds in the worker's queue by reason."""
    promoted: dict[str, int] = field(default_factory=dict)
    """Cached prompt tokens that came from a KV tier, by its name."""
    adapter_loads: dict[str, float] = field(default_factory=dict)
    """Seconds that workers took to load its adapter, by their names."""
    encode_worker: str = ""
    """The worker that encodes its images for the prefill worker; empty: none does."""
    _encodes_elsewhere: list[router_pb2.TimingSpan] = field(default_factory=list)
    _row_transfers: list[router_pb2.TimingSpan] = field(default_factory=list)
    _moves: list[router_pb2.TimingMove] = field(default_factory=list)
    _preemptions: list[router_pb2.TimingPreemption] = field(default_factory=list)
    _pauses: list[router_pb2.TimingPause] = field(default_factory=list)
    _interrupted: tuple[float, Interruption] | None = None
    """The latest interruption and its time."""
    _read_s: float = 0.0
    """Seconds until the numbers of a read were here; 0: they are not, or it is none."""
    _num_tokens: int = 0
    _drafted: int = 0
    _accepted: int = 0
    _records_spans: bool = True
    """Until the first token, the spans of the latest attempt replace earlier ones."""
    _last_token: float = 0.0
    _chunks: list[router_pb2.TimingSpan] = field(default_factory=list)
    """Prompt chunks computed by the worker that decodes."""
    _chunks_elsewhere: list[router_pb2.TimingSpan] = field(default_factory=list)
    """Prompt chunks whose KV was transferred."""
    _pushes: list[router_pb2.TimingSpan] = field(default_factory=list)
    _encodes: list[router_pb2.TimingSpan] = field(default_factory=list)
    """One for each image that was encoded for it."""

    def attempt(self, at: float) -> None:
        """An attempt begins. Time of earlier attempts without a token counts as queueing."""
        self._records_spans = self.first_token is None
        if not self._records_spans:
            self._interrupted = at, Interruption.RETRY
        if self._records_spans:
            self.submitted, self.started, self.reserved = at, None, None
            self._chunks, self._chunks_elsewhere, self._pushes = [], [], []
            self._encodes, self._row_transfers = [], []

    def placed(self, prefill_worker: str, decode_worker: str | None, why: str) -> None:
        """The workers of the latest attempt. `decode_worker`: None if the same, or not chosen yet."""
        self.prefill_worker, self.why = prefill_worker, why
        self.decode_worker = decode_worker or prefill_worker

    def moved(self, worker: str, reason: str, at: float) -> None:
        """Another worker decodes from now on."""
        self.decode_worker = worker
        self._interrupted = at, Interruption.MOVED
        self._moves.append(router_pb2.TimingMove(at_s=at - self.arrival, worker=worker, reason=reason))
        self.observer.on_moved(reason)

    def preempted(self, worker: str, reason: str, at: float) -> None:
        """A worker freed its pages and queued it again."""
        self._interrupted = at, Interruption.PREEMPTED
        self._preemptions.append(
            router_pb2.TimingPreemption(at_s=at - self.arrival, worker=worker, reason=reason)
        )

    def drafted(self, drafted: int, accepted: int) -> None:
        """A step has verified drafted tokens of the answer."""
        self._drafted += drafted
        self._accepted += accepted

    def resumed(self, waited_s: float) -> None:
        """The worker that preempted it last computes it again."""
        if self._preemptions:
            self._preemptions[-1].waited_s = waited_s

    def start(self, event: worker_pb2.Started, at: float) -> None:
        """The event may arrive a step late, but the queue time in it is exact."""
        if self.started is None and self.first_token is None and self.submitted is not None:
            self.started = min(self.submitted + event.queued_s, at)
            self.waited = dict(event.waited)
            self.promoted = dict(event.promoted)

    def adapter_loaded(self, worker: str, seconds: float) -> None:
        """A worker had its adapter after `seconds`; 0: from the start."""
        if seconds:
            self.adapter_loads[worker] = seconds

    def reserve(self, at: float) -> None:
        self.reserved = self.reserved or at

    def arrive(self, at: float) -> None:
        self._interrupted = at, Interruption.TRANSFER
        self.arrived = self.arrived or at

    def read(self, at: float) -> None:
        """The numbers of a prompt that is read arrived, with which the request ends."""
        self.first_token = at
        self._read_s = at - self.arrival
        self.observer.on_read(self.timings(at))

    def tokens(self, count: int, at: float, arrival: BatchTiming = ON_TIME) -> None:
        """`count` tokens, at least one, arrived at `at`; `arrival`: of their batch."""
        first = self.first_token is None
        if not first and at - self._last_token > PAUSE_S:
            self._note_pause(at, arrival)
        self._num_tokens += count
        if first:
            self.first_token = at
            self.observer.on_first_token(self.timings(at))
            count -= 1
        if count and self.second_token is None:
            self.second_token = at
            self.observer.on_second_token(self.timings(at))
        if count:
            self.observer.on_gap(0.0 if first else (at - self._last_token) / count, count)
        self._last_token = at

    def _note_pause(self, at: float, arrival: BatchTiming) -> None:
        """Unless the gaps of this answer are all as long."""
        assert self.first_token is not None
        seconds, gaps = at - self._last_token, self._num_tokens - 1
        if gaps and seconds <= USUAL * (self._last_token - self.first_token) / gaps:
            return
        since, what = self._interrupted or (-math.inf, None)
        interruption = what if since > self._last_token else None
        pause = pause_of(seconds, at, self.decode_worker, arrival, interruption)
        if not gaps and pause.cause == UNKNOWN:
            return  # there is no gap to compare it with
        self.observer.on_pause(pause)
        if len(self._pauses) < _MOST_PAUSES:
            self._pauses.append(
                router_pb2.TimingPause(
                    at_s=at - self.arrival,
                    seconds=seconds,
                    worker=pause.worker,
                    cause=pause.cause,
                    parts=pause.parts,
                )
            )

    def on_handed_off(self, event: worker_pb2.HandedOff) -> None:
        """Spans in the event count from when the request was sent to the worker."""
        offset = (self.submitted or self.arrival) - self.arrival
        if self._records_spans:
            self._chunks_elsewhere = [_shifted(span, offset) for span in event.chunks]
            self._pushes = [_shifted(span, offset) for span in event.pushes]
        busy_s = busy_seconds((span.begin_s, span.end_s) for span in event.pushes)
        self.observer.on_handed_off(self.prefill_worker, self.decode_worker, event.bytes, busy_s)

    def computed(self, chunks: Iterable[worker_pb2.Span], sent_at: float) -> None:
        """Prompt chunks of the worker that decodes, which was sent the request at `sent_at`."""
        if self._records_spans:
            self._chunks = [_shifted(span, sent_at - self.arrival) for span in chunks]

    def encoded(self, event: worker_pb2.Encoded, sent_at: float) -> None:
        """A worker, which was sent the request at `sent_at`, has encoded images, or their rows came to it."""
        if self._records_spans:
            self._encodes += [_shifted(span, sent_at - self.arrival) for span in event.items]
            self._row_transfers += [_shifted(span, sent_at - self.arrival) for span in event.fetched]

    def encoded_elsewhere(self, images: Iterable[worker_pb2.Span], sent_at: float) -> None:
        """The encode worker, which got its images at `sent_at`, has encoded some, or had their rows."""
        offset = sent_at - self.arrival
        self._encodes_elsewhere += [_shifted(span, offset) for span in images if span.end_s > span.begin_s]

    def timings(self, at: float) -> router_pb2.Timings:
        """The timings as of `at`; stages that were not reached are 0."""
        first = self.first_token or at
        started = self.started or (first if self.first_token is None else self.submitted or first)
        reserved = max(self.reserved or first, first)
        arrived = max(self.arrived or reserved, reserved)
        encodes = [*self._encodes_elsewhere, *self._encodes]
        return router_pb2.Timings(
            queue_s=started - self.arrival,
            prefill_s=max(first - started, 0.0),
            reserve_s=reserved - first,
            transfer_s=arrived - reserved,
            first_decode_s=max((self.second_token or arrived) - arrived, 0.0),
            ttft_s=first - self.arrival,
            e2e_s=at - self.arrival,
            read_s=self._read_s,
            chunks=[*self._chunks_elsewhere, *self._chunks],
            pushes=self._pushes,
            encode_s=busy_seconds((span.begin_s, span.end_s) for span in encodes),
            encodes=encodes,
            encode_worker=self.encode_worker,
            row_transfers=self._row_transfers,
            prefill_worker=self.prefill_worker,
            decode_worker=self.decode_worker,
            placement=self.why,
            moves=self._moves,
            preemptions=self._preemptions,
            pauses=self._pauses,
            waited=self.waited,
            promoted=self.promoted,
            adapter_loads=self.adapter_loads,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
        )


def without_workers(timings: router_pb2.Timings) -> router_pb2.Timings:
    """A copy for clients that may not learn the names of workers and the load that placed the request."""
    public = router_pb2.Timings()
    public.CopyFrom(timings)
    for name in ("prefill_worker", "decode_worker", "encode_worker", "placement", "adapter_loads"):
        public.ClearField(name)
    for change in (*public.moves, *public.preemptions, *public.pauses):
        change.ClearField("worker")
    return public


def _shifted(span: worker_pb2.Span, offset: float) -> router_pb2.TimingSpan:
    return router_pb2.TimingSpan(
        begin_s=span.begin_s + offset,
        end_s=span.end_s + offset,
        first_token=span.first_token,
        num_tokens=span.num_tokens,
        bytes=span.bytes,
    )


def busy_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Length in seconds of the union of spans (begin, end)."""
    total, latest = 0.0, -math.inf
    for begin, end in sorted(spans):
        total += max(end - max(begin, latest), 0.0)
        latest = max(latest, end)
    return total
