"""What the sending side needs of the worker that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from engine.core.request import Request, RequestId
from rpc.baton.v1 import sampling_pb2, worker_pb2

SharedReport: TypeAlias = Callable[[int, int, Sequence[worker_pb2.Span]], None]
"""Reports a sent prefix: handoff id, bytes, writes."""


class OutgoingJob(Protocol):
    """A request whose KV is sent."""

    @property
    def request(self) -> Request: ...

    @property
    def sampling(self) -> sampling_pb2.SamplingParams:
        """Sampling parameters of the client; the engine may compute only the first token."""

    @property
    def arrival(self) -> float:
        """Time of arrival at the worker, on the clock of the engine loop."""

    def digest(self, num_tokens: int) -> int:
        """Digest of the first `num_tokens` tokens and the sampling parameters. O(num_tokens)."""


class OutgoingReports(Protocol):
    """Reports to the router and the metrics. Methods ignore jobs that have ended."""

    def job(self, request_id: RequestId) -> OutgoingJob | None:
        """None: it has ended."""

    def handed_off(
        self,
        request_id: RequestId,
        num_bytes: int,
        chunks: Sequence[worker_pb2.Span],
        pushes: Sequence[worker_pb2.Span],
    ) -> None:
        """The receiver continues the request, which ends here. `chunks`: prefill chunks."""

    def not_sent(self, request_id: RequestId, reason: str) -> None:
        """The handoff failed, and the request with it."""

    def not_moved(self) -> None:
        """A migration failed; the request continues here."""
