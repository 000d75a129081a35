"""Statistics of the last minute, for the live page. Prometheus has the history."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from router.dispatch.metrics.windows import QuantileWindow, RateWindow
from rpc.baton.v1 import router_pb2

__all__ = ["EndedRequest", "Handoffs", "Recent"]

_KEPT: Final = 32


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A sequence that has ended, without its text."""

    id: str
    outcome: str
    ended: float
    """Time of the end, on the clock of `Recent`."""
    prompt_tokens: int
    output_tokens: int
    timings: router_pb2.Timings


class Handoffs:
    """Totals of the handoffs from one worker to another."""

    def __init__(self, now: float) -> None:
        self.count = 0
        self.bytes = 0
        self.rate = RateWindow(now)
        """Bytes per second."""


class Recent:
    """Constant memory; each call costs O(1)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock: Final = clock
        now = clock()
        self.since: Final = now
        self.prompt_tokens: Final = RateWindow(now)
        """Tokens of prompts whose first token was produced."""
        self.output_tokens: Final = RateWindow(now)
        self.ended_requests: Final = RateWindow(now)
        self.ttft: Final = QuantileWindow()
        self.itl: Final = QuantileWindow()
        self.e2e: Final = QuantileWindow()
        self.requests: Final[deque[EndedRequest]] = deque(maxlen=_KEPT)
        """The latest ended requests, oldest first."""
        self.links: Final[dict[tuple[str, str], Handoffs]] = {}
        """By (prefill worker, decode worker). Bounded, since worker ids are fixed."""

    def first_token(self, ttft_s: float) -> None:
        self.ttft.add(ttft_s, self.clock())

    def served(self, prompt_tokens: int) -> None:
        """The first token of a prompt was produced."""
        self.prompt_tokens.add(prompt_tokens, self.clock())

    def gaps(self, seconds: float, count: int) -> None:
        """`count` tokens had this inter-token latency."""
        self.itl.add(seconds, self.clock(), count)

    def sent(self, tokens: int) -> None:
        self.output_tokens.add(tokens, self.clock())

    def handed_off(self, prefill_worker: str, decode_worker: str, size: int) -> None:
        now = self.clock()
        link = self.links.setdefault((prefill_worker, decode_worker), Handoffs(now))
        link.count += 1
        link.bytes += size
        link.rate.add(size, now)

    def ended(self, request: EndedRequest) -> None:
        self.ended_requests.add(1, request.ended)
        self.e2e.add(request.timings.e2e_s, request.ended)
        self.requests.append(request)
