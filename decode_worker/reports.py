"""What the receiving side needs of the worker that it belongs to."""

from __future__ import annotations

from typing import Protocol

from engine.core.request import Request, RequestId
from kv_transfer import Ticket
from rpc.baton.v1 import worker_pb2


class IncomingJob(Protocol):
    """A request whose KV another worker sends."""

    @property
    def id(self) -> RequestId: ...

    @property
    def request(self) -> Request: ...

    @property
    def arrival(self) -> float:
        """Time of arrival at the worker, on the clock of the engine loop."""

    @property
    def label(self) -> str:
        """Name in logs."""

    def digest(self, num_tokens: int) -> int:
        """Digest of the first `num_tokens` tokens and the sampling parameters. O(num_tokens)."""


class IncomingReports(Protocol):
    """Reports to the router and the metrics. Methods ignore jobs that have ended."""

    def is_running(self, request_id: RequestId) -> bool:
        """False: the job has ended."""

    def reserved(self, request_id: RequestId, ticket: Ticket, waited_s: float) -> None:
        """The sender may write the pages of the ticket."""

    def waited(self, seconds: float) -> None:
        """A handoff has got its pages after `seconds`."""

    def arrived(self, request_id: RequestId, num_tokens: int, transfer_s: float, exposed_s: float) -> None:
        """KV of the first `num_tokens` tokens is complete and verified. See `Ready` for the times."""

    def fail(self, request_id: RequestId, code: worker_pb2.FailureCode, message: str) -> None:
        """The request fails before any transfer."""

    def not_received(self, request_id: RequestId, reason: str, *, by_sender: bool) -> None:
        """The handoff failed, and the request with it."""

    def wanted(self, request_id: RequestId, ticket: Ticket) -> None:
        """A request waits for a cached prefix, which another worker may write."""

    def pulled(
        self, request_id: RequestId, outcome: str, seconds: float, num_tokens: int = 0, num_bytes: int = 0
    ) -> None:
        """The wait for a cached prefix has ended after `seconds`, with `num_tokens` received."""
