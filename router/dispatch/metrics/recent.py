"""Statistics of the last minute, in constant memory, for the live page. Prometheus has the history."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from router.dispatch.pauses import StreamPause
from rpc.baton.v1 import router_pb2

_SECONDS: Final = 60
_SLOTS: Final = 6
_SLOT_S: Final = _SECONDS / _SLOTS
_SHORTEST_S: Final = 1e-5
_STEP: Final = math.log(1.05)
"""Buckets grow by 5%, so a percentile is at most 2.5% off."""
_BUCKETS: Final = 360


class RateWindow:
    """Sums per second over the last 60 seconds. `add` is O(1)."""

    def __init__(self, now: float) -> None:
        self._began = self._second = int(now)
        self._sums = [0.0] * _SECONDS

    def add(self, amount: float, now: float) -> None:
        self._advance(now)
        self._sums[self._second % _SECONDS] += amount

    def rate(self, now: float, over_s: int = 5) -> float:
        """Rate per second over the last `over_s` complete seconds, or fewer just after the start."""
        seconds = min(over_s, int(now) - self._began)
        return sum(self.history(now)[-seconds:]) / seconds if seconds else 0.0

    def history(self, now: float) -> list[float]:
        """Sums of the last 59 complete seconds, oldest first."""
        self._advance(now)
        return [self._sums[(self._second + 1 + i) % _SECONDS] for i in range(_SECONDS - 1)]

    def _advance(self, now: float) -> None:
        second = max(int(now), self._second)
        for passed in range(self._second + 1, min(second, self._second + _SECONDS) + 1):
            self._sums[passed % _SECONDS] = 0.0
        self._second = second


class QuantileWindow:
    """Percentiles of durations in seconds over the last 50 to 60 seconds. `add` is O(1)."""

    def __init__(self) -> None:
        self._slot = 0
        self._counts = [[0] * _BUCKETS for _ in range(_SLOTS)]

    def add(self, seconds: float, now: float, count: int = 1) -> None:
        self._advance(now)
        bucket = math.log(max(seconds, _SHORTEST_S) / _SHORTEST_S) / _STEP
        self._counts[self._slot % _SLOTS][min(int(bucket), _BUCKETS - 1)] += count

    def quantiles(self, levels: Sequence[float], now: float) -> list[float] | None:
        """One value per level, in seconds; None without samples."""
        self._advance(now)
        counts = [sum(column) for column in zip(*self._counts, strict=True)]
        total = sum(counts)
        return [_quantile(counts, math.ceil(level * total)) for level in levels] if total else None

    def count(self, now: float) -> int:
        self._advance(now)
        return sum(map(sum, self._counts))

    def _advance(self, now: float) -> None:
        slot = max(int(now / _SLOT_S), self._slot)
        for passed in range(self._slot + 1, min(slot, self._slot + _SLOTS) + 1):
            self._counts[passed % _SLOTS] = [0] * _BUCKETS
        self._slot = slot


def _quantile(counts: Sequence[int], rank: int) -> float:
    """Midpoint of the bucket that holds the value of this 1-based rank."""
    seen = 0
    for bucket, count in enumerate(counts):
        seen += count
        if seen >= max(rank, 1):
            return _SHORTEST_S * math.exp((bucket + 0.5) * _STEP)
    raise AssertionError(f"rank {rank} of {seen}")


_KEPT: Final = 32
_KEPT_PAUSES: Final = 256


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A sequence that has ended, without its text."""

    id: str
    outcome: str
    ended: float
    """Time of the end, on time.monotonic()."""
    prompt_tokens: int
    output_tokens: int
    timings: router_pb2.Timings


@dataclass(slots=True)
class SharedPause:
    """A pause of all the answers that waited for the same batch of a worker, for the same cause."""

    first: StreamPause
    number: int
    """Counted from 1."""
    answers: int = 1
    seconds: float = 0.0
    """The longest of them."""


class HandoffTotals:
    """Totals of the handoffs from one worker to another."""

    def __init__(self, now: float) -> None:
        self.count = 0
        self.bytes = 0
        self.rate = RateWindow(now)
        """Bytes per second."""


class Recent:
    """Constant memory; each call costs O(1)."""

    def __init__(self) -> None:
        now = time.monotonic()
        self.since: Final = now
        self.prompt_tokens: Final = RateWindow(now)
        """Tokens of prompts whose first token was produced."""
        self.output_tokens: Final = RateWindow(now)
        self.ended_requests: Final = RateWindow(now)
        self.ttft: Final = QuantileWindow()
        self.read: Final = QuantileWindow()
        """Seconds until the numbers of reads."""
        self.itl: Final = QuantileWindow()
        self.e2e: Final = QuantileWindow()
        self.requests: Final[deque[EndedRequest]] = deque(maxlen=_KEPT)
        """The latest ended requests, oldest first."""
        self.pauses: Final[deque[SharedPause]] = deque(maxlen=_KEPT_PAUSES)
        """The latest, oldest first."""
        self.links: Final[dict[tuple[str, str], HandoffTotals]] = {}
        """Handoffs by (prefill worker, decode worker). Bounded, since worker ids are fixed."""

    def first_token(self, ttft_s: float) -> None:
        self.ttft.add(ttft_s, time.monotonic())

    def served(self, prompt_tokens: int) -> None:
        """The first token of a prompt was produced."""
        self.prompt_tokens.add(prompt_tokens, time.monotonic())

    def gaps(self, seconds: float, count: int) -> None:
        """`count` tokens had this inter-token latency."""
        self.itl.add(seconds, time.monotonic(), count)

    def sent(self, tokens: int) -> None:
        self.output_tokens.add(tokens, time.monotonic())

    def handed_off(self, prefill_worker: str, decode_worker: str, size: int) -> None:
        now = time.monotonic()
        link = self.links.setdefault((prefill_worker, decode_worker), HandoffTotals(now))
        link.count += 1
        link.bytes += size
        link.rate.add(size, now)

    def paused(self, pause: StreamPause) -> None:
        last = self.pauses[-1] if self.pauses else None
        if last is not None and _shared(last.first) == _shared(pause):
            last.answers += 1
            last.seconds = max(last.seconds, pause.seconds)
        else:
            number = 1 if last is None else last.number + 1
            self.pauses.append(SharedPause(pause, number, seconds=pause.seconds))

    def ended(self, request: EndedRequest) -> None:
        self.ended_requests.add(1, request.ended)
        self.e2e.add(request.timings.e2e_s, request.ended)
        self.requests.append(request)


def _shared(pause: StreamPause) -> tuple[float, str, str]:
    return pause.at, pause.worker, pause.cause
